"""What a unary gRPC call costs through a proxy: scheduler time of the proxy's processes over calls, side by side.

``python -m tools.bench.grpc`` runs it; the load and the origin speak frames, so that they are no part of the question.
"""
