"""Which versions of a model take the requests that name none."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from router.policy import MirrorPolicy, RolloutPolicy, ServePolicy, ServeRule, VersionShare
from sidecar.settings.base import Base, Reload, doc

RULES = ("any", "latest", "split")
"""Words of ``serve`` that are no version."""

_VERSION = (r"^[^\x00-\x20/@\x7f]{1,128}\Z", "1 to 128 characters without spaces, slashes and @")
_Percent = Annotated[float, Meta(gt=0, le=100)]


class Split(Base, frozen=True):
    """One version's part of a split."""

    version: Annotated[str, doc(Reload.LIVE, "version, as its workers report it", form=_VERSION)]
    weight: Annotated[float, doc(Reload.LIVE, "its weight beside those of the others; 0: none", "weight", ge=0, le=1e6)]


class StickyKey(Base, frozen=True):
    """What keeps a caller at its version of a split."""

    header: Annotated[
        str, doc(Reload.LIVE, "field whose value is the key, the first one where it comes twice", "field name")
    ]


class Mirror(Base, frozen=True):
    """A version that gets a copy of requests, whose answers are thrown away."""

    version: Annotated[str, doc(Reload.LIVE, "version, as its workers report it", form=_VERSION)]
    share: Annotated[float, doc(Reload.LIVE, "part of the requests that is sent there too", "ratio", ge=0, le=1)] = 1.0
    most: Annotated[
        int, doc(Reload.LIVE, "under way at once in one process; more are dropped", "requests", ge=1, le=1024)
    ] = 16
    timeout_s: Annotated[
        float, doc(Reload.LIVE, "an answer that is not over by then is given up", "seconds", gt=0, le=3600)
    ] = 30.0


class Rollout(Base, frozen=True):
    """How a new version takes over a split, step by step, while it is no worse than the others."""

    version: Annotated[str, doc(Reload.LIVE, "the new version; empty: the newest of the split", "version")] = ""
    steps: Annotated[
        tuple[_Percent, ...], doc(Reload.LIVE, "its shares, rising, the last one 100; 2 to 16", "percent")
    ] = (5.0, 25.0, 50.0, 100.0)
    interval_s: Annotated[float, doc(Reload.LIVE, "least time of a step", "seconds", gt=0, le=604_800)] = 60.0
    min_samples: Annotated[
        int, doc(Reload.LIVE, "attempts on either side without which nothing is decided", "attempts", ge=1, le=10**9)
    ] = 100
    max_error_ratio_delta: Annotated[
        float, doc(Reload.LIVE, "how much more often it may fail than the others", "ratio", ge=0, le=1)
    ] = 0.01
    max_p95_ratio: Annotated[float, doc(Reload.LIVE, "its P95 over theirs, at most", "ratio", ge=1, le=1000)] = 1.5
    false_alarm_ratio: Annotated[
        float,
        doc(Reload.LIVE, "how likely one within these limits may be rolled back, at most", "ratio", gt=0, le=0.5),
    ] = 0.01


class Versions(Base, frozen=True):
    """Which versions of a model take requests that name none; one that is named always gets it."""

    serve: Annotated[
        str,
        doc(
            Reload.LIVE,
            "any: all that are warm; latest: the newest with a warm replica; split: several by weight; or one VERSION",
            form=_VERSION,
        ),
    ] = "any"
    split: Annotated[tuple[Split, ...], doc(Reload.LIVE, "versions and weights, with serve: split; 8 at most")] = ()
    key: Annotated[
        StickyKey | None, doc(Reload.LIVE, "keeps callers at their version of a split; null: each request alone")
    ] = None
    mirror: Annotated[Mirror | None, doc(Reload.LIVE, "a version that gets a copy of requests and gRPC calls")] = None
    rollout: Annotated[
        Rollout | None, doc(Reload.LIVE, "moves the split to its new version by itself; null: only by command")
    ] = None


def serve_policy(versions: Versions) -> ServePolicy:
    """Return what the router needs of it."""
    rule = ServeRule(versions.serve) if versions.serve in RULES else ServeRule.PINNED
    split = versions.split if rule is ServeRule.SPLIT else ()
    mirror, rollout = versions.mirror, versions.rollout
    return ServePolicy(
        rule,
        version=versions.serve if rule is ServeRule.PINNED else "",
        shares=tuple(VersionShare(share.version, share.weight) for share in split),
        header=None if versions.key is None else versions.key.header,
        mirror=None if mirror is None else MirrorPolicy(**msgspec.structs.asdict(mirror)),
        rollout=None if rollout is None else RolloutPolicy(**msgspec.structs.asdict(rollout)),
    )
