"""Warm-up requests: how endpoints that cannot prove their warmth themselves are proven by the sidecar."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.policy import ShapePolicy
from sidecar.settings.base import PATH_FORM, Base, Reload, Seconds, UrlPath, doc
from sidecar.settings.probes import Expectation

BODY_FILE_BYTES = 8 << 20
"""Largest body of a warm-up request that is read from a file."""

_CLASS_FORM = (r"^[A-Za-z0-9._-]{1,64}\Z", "1 to 64 letters, digits, dots, underscores or hyphens")
_METHOD_FORM = (r"^[A-Z]{1,16}\Z", "an HTTP method in capitals, for example POST")


class WarmupRequest(Base, frozen=True):
    """One request that proves one shape class of a model."""

    name: Annotated[str, doc(Reload.LIVE, "the shape class that it proves, for example batch-1", form=_CLASS_FORM)]
    path: Annotated[UrlPath, doc(Reload.LIVE, "its path, for example /v2/models/NAME/infer", form=PATH_FORM)]
    method: Annotated[str, doc(Reload.LIVE, "its method", form=_METHOD_FORM)] = "POST"
    headers: Annotated[dict[str, str], doc(Reload.LIVE, "more fields of its head, by name")] = msgspec.field(
        default_factory=dict
    )
    json: Annotated[
        dict[str, Any] | None, doc(Reload.LIVE, "its body as a mapping, sent as JSON with that content type")
    ] = None
    body: Annotated[str | None, doc(Reload.LIVE, "its body as text")] = None
    body_file: Annotated[
        str | None, doc(Reload.LIVE, "the file with its body, at most 8 MiB, read whenever it is sent", "path")
    ] = None
    expect: Annotated[
        Expectation | None, doc(Reload.LIVE, "what the answer must be besides in time; null: any 2xx")
    ] = None
    within_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "time in which a warm replica gives the whole answer: one that came later proves nothing",
            "seconds",
            gt=0,
            le=3600,
        ),
    ] = 1.0
    count: Annotated[int, doc(Reload.LIVE, "how many in a row must succeed in time", "requests", ge=1, le=100)] = 1
    max_answer_bytes: Annotated[
        int, doc(Reload.LIVE, "a body of an answer that is longer proves nothing", "bytes", ge=0, le=1 << 28)
    ] = 8 << 20


class Warmup(Base, frozen=True):
    """Warm-up requests: a new or returned endpoint is warming until they succeeded in time."""

    requests: Annotated[
        tuple[WarmupRequest, ...], doc(Reload.LIVE, "one for each shape class"), Meta(min_length=1, max_length=32)
    ]
    required: Annotated[
        tuple[str, ...] | None,
        doc(Reload.LIVE, "the shape classes that must be proven before anything is routed; null: all", "names"),
    ] = None
    parallel: Annotated[
        int, doc(Reload.LIVE, "warm-up requests at once at one endpoint for this model", "requests", ge=1, le=32)
    ] = 1
    timeout_s: Annotated[
        float, doc(Reload.LIVE, "an answer is waited for so long, though it may be late", "seconds", gt=0, le=3600)
    ] = 30.0
    retry_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "after one that failed the next is sent so much later, doubling; a fifth less at random",
            "seconds",
            ge=0.01,
            le=3600,
        ),
    ] = 0.25
    retry_max_s: Annotated[float, doc(Reload.LIVE, "but no later than this", "seconds", ge=0.01, le=3600)] = 5.0
    watch: Annotated[
        bool,
        doc(
            Reload.LIVE,
            "keep one idle connection to each endpoint: its end shows a restart that no probe saw",
        ),
    ] = True
    keep_warm_after_s: Annotated[
        Seconds | None,
        doc(
            Reload.LIVE,
            "prove an endpoint again that has answered nothing for so long; null: never",
            "seconds",
        ),
    ] = None


class ShapeClass(Base, frozen=True):
    """One shape class of a model's requests, and which of them are in it."""

    name: Annotated[str, doc(Reload.LIVE, "its name, as in warmup.requests or as workers report it", form=_CLASS_FORM)]
    max_body_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 40)] | None,
        doc(
            Reload.LIVE,
            "bodies up to this length are in it, if in no shorter class; null: none is",
            "bytes",
        ),
    ] = None
    max_batch: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 31)] | None,
        doc(
            Reload.LIVE,
            "over gRPC: ModelInfer with a first input of up to so many rows is in it, if in no smaller one; null: none",
            "rows",
        ),
    ] = None


class Shapes(Base, frozen=True):
    """How requests say of which shape class they are, so that they go to replicas that are proven for it."""

    classes: Annotated[tuple[ShapeClass, ...], doc(Reload.LIVE, "the shape classes"), Meta(min_length=1, max_length=32)]
    header: Annotated[str | None, doc(Reload.LIVE, "field whose value is the class", "field name")] = None


def shape_policy(shapes: Shapes) -> ShapePolicy:
    """Return what the router and the data path need of it, the shortest class first."""
    by_length = sorted(shapes.classes, key=lambda one: one.max_body_bytes or 0)
    batches = [(one.name, one.max_batch) for one in shapes.classes if one.max_batch is not None]
    return ShapePolicy(
        shapes.header,
        tuple((one.name, one.max_body_bytes) for one in by_length),
        tuple(sorted(batches, key=lambda one: one[1])),
    )
