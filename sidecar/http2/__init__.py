"""HTTP/2 (RFC 9113) and HPACK (RFC 7541): frames, header blocks, flow control, one connection class for both roles."""
