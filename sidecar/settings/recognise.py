"""Answers that mean something else than their status: a model that is not ready, a fault of the caller's."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from sidecar.settings.base import Base, Reload, doc

GRPC_STATUSES: Final = {
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
}
"""The codes of gRPC that a server's error may be taken for something else by."""

MAX_RULES: Final = 64


class Means(StrEnum):
    """What a worker's answer says, whatever its status."""

    NOT_READY = "not_ready"
    CALLER_FAULT = "caller_fault"


class RecogniseRule(Base, frozen=True):
    """One kind of answer, by its status and by what it says."""

    body_contains: Annotated[
        str,
        doc(
            Reload.LIVE,
            "what stands in the answer's body, or in its grpc-message: capitals matter",
            form=(r"^.{4,256}\Z", "4 to 256 characters in one line"),
        ),
    ]
    means: Annotated[
        Means,
        doc(
            Reload.LIVE,
            "not_ready: it counts for nothing, and others are picked for a while; caller_fault: it counts as a 4xx",
        ),
    ]
    status: Annotated[
        Annotated[int, Meta(ge=400, le=599)] | None, doc(Reload.LIVE, "the HTTP status; 400 to 599", "status")
    ] = None
    grpc_status: Annotated[str | None, doc(Reload.LIVE, "the name of the gRPC status, for example UNAVAILABLE")] = None


class Recognise(Base, frozen=True):
    """What answers are recognised as something else than their status says."""

    known: Annotated[
        bool,
        doc(
            Reload.LIVE,
            "whether the errors of Triton, vLLM, SGLang, MLServer and our worker that are known are among them",
        ),
    ] = True
    look_at_bytes: Annotated[
        int, doc(Reload.LIVE, "how much of an error's body is looked at", "bytes", ge=64, le=65536)
    ] = 4096
    rules: Annotated[
        tuple[RecogniseRule, ...], doc(Reload.LIVE, "more kinds of answers, looked for before those; at most 64")
    ] = msgspec.field(default=())
