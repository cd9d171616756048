"""What the end of a drill takes back: what the drill changed, and nothing that an operator had before."""

from __future__ import annotations

import pytest

from sidecar.cli.shapes import CountedVersion, ModelVersions, Rollout, SteeredVersions
from sidecar.drills.place import steered_as, undoing
from sidecar.drills.scenario import Act, Do

DRAIN, RESUME = Do(act=Act.DRAIN, endpoint="a"), Do(act=Act.RESUME, endpoint="a")
RESET = Do(act=Act.RESET, model="m")
PINNED = Do(act=Act.PROMOTE, model="m", version="1")
HALVES = Do(act=Act.SPLIT, model="m", split={"1": 50, "2": 50})
ROLLED = SteeredVersions("rollout", "2026-01-01T00:00:00Z", "bad")
STEERED = SteeredVersions("ops", "2026-01-01T00:00:00Z", "by hand")


@pytest.mark.parametrize(
    ("do", "before", "undo"),
    [
        (DRAIN, RESUME, RESUME),
        (DRAIN, DRAIN, None),  # an operator had drained it: it stays so
        (RESUME, DRAIN, DRAIN),
        (RESUME, RESUME, None),
        (HALVES, RESET, RESET),
        (RESET, RESET, None),
        (RESET, HALVES, HALVES),
        (Do(act=Act.PROMOTE, model="m", version="2"), PINNED, PINNED),
    ],
)
def test_it_is_as_before(do: Do, before: Do, undo: Do | None) -> None:
    assert undoing(do, before) == undo


def versions(serve: str, weights: tuple[float | None, float | None], **more: object) -> ModelVersions:
    rows = tuple(CountedVersion(name, 1, 1, 0.5, weight, "") for name, weight in zip("12", weights, strict=True))
    return ModelVersions("m", serve, "any", more.get("steered"), more.get("rollout"), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "before"),
    [
        (versions("any", (None, None)), RESET),
        (versions("split: 1 0.5, 2 0.5", (50, 50)), RESET),  # by its configuration
        (versions("split: 1 0.5, 2 0.5", (50, 50), steered=STEERED), HALVES),
        (versions("version 1", (None, None), steered=STEERED), PINNED),
        (versions("split: 1 0.5, 2 0.5", (50, 50), steered=ROLLED, rollout=Rollout("running", 0.5)), RESET),
        (versions("version 1", (None, None), steered=ROLLED, rollout=Rollout("rolled_back", 0)), PINNED),
        (versions("split: 1 0.5, 2 0.5", (50, 50), steered=STEERED, rollout=Rollout("running", 0.5)), HALVES),
    ],
)
def test_versions_are_steered_as_somebody_had_by_hand(found: ModelVersions, before: Do) -> None:
    assert steered_as("m", (found,)) == before
