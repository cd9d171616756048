"""What the sidecar tells of itself: the shared metrics page, the Prometheus exposition, the logs."""
