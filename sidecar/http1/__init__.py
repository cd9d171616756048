"""HTTP/1.1: framing, heads, and the protocols of the two sides."""
