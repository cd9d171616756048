"""How models are split over endpoints."""

from __future__ import annotations

from typing import Annotated

from router.policy import MAX_SHARDS, ShardMode
from sidecar.settings.base import Base, Reload, doc


class Shards(Base, frozen=True):
    """How each version of a model is split over endpoints; which of them hold what stands under endpoints."""

    mode: Annotated[
        ShardMode,
        doc(
            Reload.LIVE,
            "replicated: every endpoint holds the whole model; tensor: all shards answer together, behind one of them; "
            "keyed: each shard answers the requests whose keys it has",
        ),
    ] = ShardMode.REPLICATED
    count: Annotated[
        int,
        doc(
            Reload.LIVE,
            "shards of each version; of tensor, 1: as many as the workers of a version report",
            "shards",
            ge=1,
            le=MAX_SHARDS,
        ),
    ] = 1
    entry: Annotated[
        int, doc(Reload.LIVE, "of tensor: the shard whose endpoint takes the requests", "shard", ge=0, le=MAX_SHARDS)
    ] = 0
