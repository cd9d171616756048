"""The Open Inference Protocol's gRPC surface, with grpc.health.v1 and load reports beside it.

Imported only where a worker was told to listen for gRPC: the library takes time and memory that others do not pay.
"""
