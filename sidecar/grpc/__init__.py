"""gRPC through the data path: calls as raw bytes over HTTP/2, each routed on its own. No gRPC library takes part."""
