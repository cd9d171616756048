"""Unary gRPC calls: a load and an origin that speak frames, so that they are no part of the question, and two proxies.

``python -m tools.bench --profile grpc`` measures them.
"""
