"""The data plane and the command line: sockets, HTTP/1.1, upstream pools, state, admin API, telemetry, supervisor."""
