"""What is measured: each profile is one kind of traffic, and who is worth comparing under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tools.bench.asks import COMPLETION, GET, INFER, LARGE, STREAM, Ask
from tools.bench.contenders import AGAIN, COMPILED, DIRECT, FAULT, FLOOR, NO_FAULT, OURS
from tools.bench.origins import EVENTS_PER_S

if TYPE_CHECKING:
    from tools.bench.asks import Heads
    from tools.bench.origins import Kind

MEMORY = "memory"
CHOICE = "choice"
FAULTS = "faults"

_BOTH = (OURS, COMPILED)


@dataclass(frozen=True)
class Profile:
    """One kind of traffic.

    ``kind`` is how paced.c loads: each connection again and again, at a fixed rate, or as readers of streams. For gRPC
    grpc/wire.py is the load, whose calls are its own.
    """

    name: str
    title: str
    ask: Ask
    contenders: tuple[str, ...]
    heads: Heads = "usual"
    kind: Literal["closed", "requests", "streams", "grpc"] = "closed"
    rate: float = 0.0

    @property
    def unit(self) -> str:
        """What CPU is counted over."""
        return {"streams": "event", "grpc": "call"}.get(self.kind, "request")

    @property
    def origin(self) -> Kind:
        """Which origin stands behind the proxies."""
        return {"streams": "streams", "grpc": "grpc"}.get(self.kind, "answers")  # type: ignore[return-value]


RATE = 8000.0
"""Requests a second of the fixed-rate profile: about two fifths of what Envoy can do on one core here."""

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("get", "small GET, every head different", GET, ("nginx", "haproxy", "envoy", *_BOTH)),
        Profile(
            "post",
            "1 KB POST, every head different",
            INFER,
            ("nginx", "haproxy", "envoy", "aiohttp", FLOOR, *_BOTH),
        ),
        Profile(FAULTS, "1 KB POST, with faults that strike nobody", INFER, (OURS, AGAIN, FAULT, NO_FAULT)),
        Profile("repeat", "1 KB POST, heads that repeat", INFER, ("nginx", "haproxy", *_BOTH), heads="same"),
        Profile("new", "1 KB POST, no two heads of one shape", INFER, ("nginx", "haproxy", *_BOTH), heads="new"),
        Profile("large", "64 KiB answers", LARGE, ("nginx", "haproxy", "envoy", *_BOTH)),
        Profile(
            "openai",
            "1 KB POST to /v1/completions",
            COMPLETION,
            ("nginx", "vllm-router", "sglang-router", *_BOTH),
        ),
        Profile(
            "rate",
            f"1 KB POST, {RATE:,.0f} a second",
            INFER,
            (DIRECT, "nginx", "haproxy", "envoy", *_BOTH),
            kind="requests",
            rate=RATE,
        ),
        Profile(
            "sse",
            f"events of 50 B, 32 streams of {EVENTS_PER_S:,.0f} a second",
            STREAM,
            (DIRECT, "nginx", "haproxy", "envoy", "aiohttp", *_BOTH),
            kind="streams",
        ),
        Profile(
            "grpc",
            "unary gRPC calls of 1 KB, 32 at a time on 4 connections",
            INFER,
            ("envoy", "grpc.aio", "h2-relay", *_BOTH),
            kind="grpc",
        ),
    )
}

MEASURED_FOR_MEMORY = ("nginx", "haproxy", "envoy", *_BOTH)
NAMES = (*PROFILES, MEMORY, CHOICE)
