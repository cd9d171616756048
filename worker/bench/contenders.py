"""Who takes part in the cold-start bench: the plain session, each loading strategy, each measure alone, all together.

What exists is asked of the worker itself: its loading strategies are the choices of its flag ``--load``, and a measure
takes part where the worker has what switches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from worker.flags import choices, has_flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAIN: Final = "plain session"
NOTHING: Final = "no measure"
DEFAULT: Final = "worker as it comes"
ALL: Final = "all together"
HOT: Final = "hot restart"
STANDBY: Final = "standby"
LOADED: Final = "loaded standby"


@dataclass(frozen=True, slots=True)
class Change:
    """How a worker is started otherwise than it comes: flags, sections of ``model.yaml``, by a zygote or not."""

    flags: tuple[str, ...] = ()
    """``{kept}`` in one stands for a directory that the row's starts share, ``{id}`` for an id that they do."""
    description: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    zygote: bool = False
    standby: bool = False
    """A worker that is up, and does not have the model: it is told to load it, and measured from then on."""
    in_line: bool = False
    """A worker that has all loaded and stands by: measured from the moment that the one before it is killed."""
    kept: tuple[str, ...] = ()
    """Events that say, some time after the first answer, that what the next start finds is there."""

    def with_also(self, other: Change) -> Change:
        """Return both; where they disagree, ``other`` wins."""
        return Change(
            (*self.flags, *other.flags),
            merged(self.description, other.description),
            self.zygote or other.zygote,
            self.standby or other.standby,
            self.in_line or other.in_line,
            (*self.kept, *other.kept),
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that makes starts shorter, and how it is switched ``on`` and ``off``."""

    name: str
    on: Change
    off: Change = Change()


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the bench. ``change`` is None for the plain session."""

    name: str
    change: Change | None


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both descriptions; sections that both have are merged, and for the rest ``other`` wins."""
    both = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            both[name] = {**one[name], **other[name]}
    return both


MEASURES: Final = (
    Measure("load: auto", Change(("--load", "auto")), Change(("--load", "full"))),
    Measure(
        "remembered hash",
        Change(description={"load": {"verify": "cached"}}),
        Change(description={"load": {"verify": "always"}}),
    ),
    Measure("zygote", Change(zygote=True)),
    Measure(
        "two phases",
        Change(description={"engine": {"two_phase": "on"}}),
        Change(description={"engine": {"two_phase": "off"}}),
    ),
    Measure("kept graph", Change(("--model-cache", "{kept}"), kept=("model_cache.stored",))),
)
SHARED: Final = Measure("shared memory", Change(("--shm", "--id", "{id}"), description={"load": {"verify": "cached"}}))
"""Apart from the rest: with it a start has its weights in memory, whatever the page cache holds."""


def contenders(
    measures: Sequence[Measure], strategies: Sequence[str], providers: Sequence[str] = ()
) -> list[Contender]:
    """Return every row: the plain session first, the strategies with everything else as it comes, then the measures."""
    device = Change(description={"engine": {"providers": list(providers)}}) if providers else Change()
    off = device
    on = device
    for measure in measures:
        off = off.with_also(measure.off)
        on = on.with_also(measure.on)
    rows = [Contender(PLAIN, None), Contender(NOTHING, off), Contender(DEFAULT, device)]
    rows += [Contender(f"load: {name}", device.with_also(Change(("--load", name)))) for name in strategies]
    rows += [Contender(measure.name, off.with_also(measure.on)) for measure in measures]
    rows += [Contender(SHARED.name, off.with_also(SHARED.on))]
    rows += [Contender(ALL, on), Contender(HOT, on.with_also(SHARED.on))]
    standby = Change(("--model-control", "explicit"), standby=True)
    rows += [Contender(STANDBY, on.with_also(standby))]
    return [*rows, Contender(LOADED, on.with_also(Change(("--standby",), in_line=True)))]


def available(measures: Sequence[Measure]) -> list[Measure]:
    """Return the measures whose flags this worker has."""
    return [
        measure
        for measure in measures
        if all(has_flag(flag) for flag in (*measure.on.flags, *measure.off.flags) if flag.startswith("--"))
    ]


def strategies() -> list[str]:
    """Return a worker's loading strategies: what its ``--load`` takes, but ``auto``, which is how it comes."""
    return [name for name in choices("--load") if name != "auto"]
