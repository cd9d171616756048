"""The inference worker: model store, loaders, warm gate, engines, V2 HTTP server, reports to the shared state."""
