"""Requests that say of which shape class they are reach a worker that is proven for it."""

from __future__ import annotations

from dataclasses import replace

from router.model import EndpointSeen, Replica
from router.policy import ModelPolicy, ShapePolicy
from tests.support.data_path import DataPath, on_data_path, says
from tests.support.wires import answer, chunk, post, request

SHAPES = ShapePolicy("x-shape", (("small", 10), ("large", 1000), ("huge", None)))
MODELS = (ModelPolicy("m", default=True, shapes=SHAPES),)


def prove(path: DataPath, **proven: dict[str, float]) -> None:
    """Have each endpoint be proven for these classes."""
    for id_, warmth in proven.items():
        known = path.cluster.endpoints[id_].record
        replicas = (Replica("m", warmth=tuple(sorted(warmth.items()))),)
        path.cluster.apply(EndpointSeen(replace(known, replicas=replicas), path.plane.clock()), path.plane.clock())


async def hits(path: DataPath, data: bytes, times: int = 12) -> set[int]:
    """Return which origins a request came to that was sent so often."""
    before = [len(origin.requests) for origin in path.origins]
    client = await path.connect()
    for _ in range(times):
        assert (await client.ask(data)).status == 200
    return {index for index, origin in enumerate(path.origins) if len(origin.requests) > before[index]}


@on_data_path(says(answer(b"x")), says(answer(b"x")), models=MODELS)
async def test_a_field_or_the_length_of_the_body_names_the_class(path: DataPath) -> None:
    prove(path, o0={"small": 1.0, "large": 0.0, "huge": 0.0}, o1={"small": 0.0, "large": 1.0, "huge": 0.0})
    assert await hits(path, post(b"y" * 10)) == {0}
    assert await hits(path, post(b"y" * 11)) == {1}
    assert await hits(path, post(b"y" * 10, b"X-Shape: large")) == {1}, "what it says of itself counts"
    assert await hits(path, request()) == {0}, "no body is a short one"
    chunked = b"POST / HTTP/1.1\r\nHost: t\r\nX-Shape: small\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await hits(path, chunked + chunk(b"y") + b"0\r\n\r\n") == {0}


@on_data_path(says(answer(b"x")), says(answer(b"x")), models=MODELS)
async def test_what_names_no_class_or_one_that_nobody_is_proven_for_goes_to_anybody(path: DataPath) -> None:
    prove(path, o0={"small": 0.5, "large": 0.0}, o1={"small": 0.0, "large": 1.0})
    assert await hits(path, post(b"y", b"X-Shape: large")) == {1}
    for data in (post(b"y" * 1001), post(b"y", b"X-Shape: other"), post(b"y", b"X-Shape: huge")):
        assert await hits(path, data) == {0}, "the first of all, as these draws go"
