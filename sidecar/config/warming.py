"""What a schema cannot say of warm-up requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from router.urls import protocol_of
from sidecar.config.choosing import FIELD_NAME
from sidecar.config.problems import Path, nearest
from sidecar.settings import Shapes, Warmup, WarmupRequest

GRPC: Final = "grpc"
_OURS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Fields of framing and of the connection, which are made here."""
_VALUE: Final = re.compile(r"[!-~]([ !-~]{0,4094}[!-~])?")
_NO_ANSWERS: Final = frozenset({"CONNECT", "HEAD"})


def examine_warmup(path: Path, warmup: Warmup, urls: Sequence[str]) -> Iterator[tuple[Path, str, bool]]:
    """Yield (path, remedy, whether it is a warning) for what makes no sense in the warm-up at ``path``.

    ``urls`` are the static endpoints that it is sent to.
    """
    if not urls:
        yield path, "has no effect: the model has no static endpoints, and workers in the store prove themselves", True
    kinds = {protocol_of(url) for url in urls}
    if len(kinds) > 1:
        yield path, "cannot prove both HTTP/1.1 and gRPC endpoints: leave out one of the two kinds", False
    names = [request.name for request in warmup.requests]
    for index, request in enumerate(warmup.requests):
        place: Path = (*path, "requests", index)
        if request.name in names[:index]:
            first = names.index(request.name)
            yield (*place, "name"), f"already the name of requests[{first}]: give each shape class its own", False
        yield from _request(place, request)
        if kinds == {GRPC}:
            yield from _call(place, request)
    if warmup.required is not None:
        if not warmup.required:
            yield (*path, "required"), "must name at least one shape class; to need none, leave warmup out", False
        for index, name in enumerate(warmup.required):
            if name not in names:
                meant = nearest(name, names)
                hint = f'did you mean "{meant}"?' if meant else f"there are: {', '.join(names)}"
                yield (*path, "required", index), f"no such request; {hint}", False
    if warmup.retry_max_s < warmup.retry_s:
        yield (*path, "retry_max_s"), f"must be at least retry_s ({warmup.retry_s:g})", False
    for index, request in enumerate(warmup.requests):
        if request.within_s >= warmup.timeout_s:
            text = f"must be below timeout_s ({warmup.timeout_s:g}), so that what is late is waited for"
            yield (*path, "requests", index, "within_s"), text, False


def _call(place: Path, request: WarmupRequest) -> Iterator[tuple[Path, str, bool]]:
    """Refuse what a gRPC call has not: it is POST, its message comes from a file, and its status is OK or not."""
    for name in ("json", "body"):
        if getattr(request, name) is not None:
            yield (*place, name), "is no message of a gRPC call: put one, in bytes, into a body_file", False
    for name in request.headers:
        if name.lower() == "content-type":
            yield (*place, "headers", name), "is set by warmroute itself: leave it out", False
    if request.method != "POST":
        yield (*place, "method"), "gRPC calls are POST: leave it out", False
    if request.expect is not None and request.expect.status is not None:
        yield (*place, "expect", "status"), "gRPC calls must end with OK: leave it out", False


def _request(place: Path, request: WarmupRequest) -> Iterator[tuple[Path, str, bool]]:
    bodies = [name for name in ("json", "body", "body_file") if getattr(request, name) is not None]
    if len(bodies) > 1:
        yield (*place, bodies[1]), f"{bodies[0]} gives it a body already: keep one of the two", False
    if request.method in _NO_ANSWERS:
        yield (*place, "method"), "has no body to wait for in its answer: choose another", False
    for name, value in request.headers.items():
        where: Path = (*place, "headers", name)
        if not FIELD_NAME.fullmatch(name):
            yield where, "must be a field name: 1 to 64 letters, digits or hyphens", False
        elif name.lower() in _OURS or name.lower() == "warmroute-background":
            yield where, "is set by warmroute itself: leave it out", False
        elif not _VALUE.fullmatch(value):
            yield where, "must be 1 to 4096 visible characters, spaces between them", False


def examine_shapes(path: Path, shapes: Shapes, warmup: Warmup | None) -> Iterator[tuple[Path, str, bool]]:
    """Yield (path, remedy, whether it is a warning) for what makes no sense in how a model's classes are told apart."""
    if shapes.header is not None and not FIELD_NAME.fullmatch(shapes.header):
        yield (*path, "header"), "must be a field name: 1 to 64 letters, digits or hyphens", False
    names = [one.name for one in shapes.classes]
    lengths = [one.max_body_bytes for one in shapes.classes]
    batches = [one.max_batch for one in shapes.classes]
    if shapes.header is None and all(most is None for most in (*lengths, *batches)):
        yield path, "says nothing of any request: set header, or the max_body_bytes or max_batch of classes", False
    proven = None if warmup is None else [request.name for request in warmup.requests]
    for index, one in enumerate(shapes.classes):
        place: Path = (*path, "classes", index)
        if one.name in names[:index]:
            yield (*place, "name"), f"already the name of classes[{names.index(one.name)}]: name each once", False
        elif proven is not None and one.name not in proven:
            meant = nearest(one.name, proven)
            hint = f'did you mean "{meant}"?' if meant else f"there are: {', '.join(proven)}"
            yield (*place, "name"), f"no warm-up request proves it; {hint}", False
        if one.max_body_bytes is not None and one.max_body_bytes in lengths[:index]:
            first = lengths.index(one.max_body_bytes)
            yield (*place, "max_body_bytes"), f"already that of classes[{first}]: give each its own", False
        if one.max_batch is not None and one.max_batch in batches[:index]:
            first = batches.index(one.max_batch)
            yield (*place, "max_batch"), f"already that of classes[{first}]: give each its own", False
