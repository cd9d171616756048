"""What runs a model: the engine protocol, its registry, the engines."""
