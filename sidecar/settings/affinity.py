"""Where a prompt's beginning was seen before."""

from __future__ import annotations

from typing import Annotated

from sidecar.settings.base import Base, Reload, doc


class Affinity(Base, frozen=True):
    """Requests prefer the endpoint that saw the beginning of their prompt last; {} has all the defaults."""

    block_bytes: Annotated[int, doc(Reload.LIVE, "prompts are compared in such blocks", "bytes", ge=1, le=65536)] = 512
    blocks: Annotated[int, doc(Reload.LIVE, "so many of them count, from the beginning", "blocks", ge=1, le=256)] = 32
    least_blocks: Annotated[
        int, doc(Reload.LIVE, "so many must have been seen for a request to go there", "blocks", ge=1, le=256)
    ] = 2
    load_factor: Annotated[
        float,
        doc(
            Reload.LIVE,
            "an endpoint with so many times the mean in flight takes no more for a prompt's sake",
            "times",
            ge=1,
            le=1000,
        ),
    ] = 1.25
    remembered: Annotated[
        int, doc(Reload.LIVE, "blocks that each process remembers for each route", "blocks", ge=1, le=1 << 20)
    ] = 16384
    body_bytes: Annotated[
        int,
        doc(Reload.LIVE, "longer bodies and messages are not kept back for their prompt", "bytes", ge=1, le=1 << 26),
    ] = 1 << 20
    input: Annotated[
        str,
        doc(
            Reload.LIVE,
            "the input that has the prompt in requests of the V2 protocol, over gRPC and in JSON",
            form=(r"^.{1,128}\Z", "1 to 128 characters in one line"),
        ),
    ] = "text_input"
