"""What a drill's file may say. ``reading`` builds these from YAML; nothing here looks at the world."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from router.model import StoreMode
from router.outcomes import Reason
from sidecar.config.structure import LINES
from sidecar.settings.base import Base

MAX_S = 3600.0
"""Longest time that anything in a drill may take, in seconds."""
MAX_PHASES = 100
MAX_OBJECTIVES = 100

Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9._-]{1,64}\Z",
        extra={"form": "1 to 64 letters, digits, dots, underscores or hyphens"},
    ),
]
PhaseName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9._-]{0,64}\Z",
        extra={"form": "at most 64 letters, digits, dots, underscores or hyphens"},
    ),
]
"""A fault without an id goes by it, so it has the form of one; "" is for what a phase is called by default."""
Word = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
        extra={"form": "1 to 64 letters, digits, dots, underscores or hyphens, the first a letter or digit"},
    ),
]
"""What a command line could take for an option is none."""
Text = Annotated[str, Meta(extra={LINES: True})]
Seconds = Annotated[float, Meta(gt=0, le=MAX_S)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]


class Spacing(StrEnum):
    """How requests follow each other."""

    EVEN = "even"
    RANDOM = "random"  # as many callers that know nothing of each other: exponential gaps


class Trust(Base, frozen=True):
    """Of a load over TLS: whose certificates count, the system's without ``ca_file``, and what is shown to who asks.

    Files are as seen from where the drill is run.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False


class Load(Base, frozen=True):
    """Requests that the drill itself sends, open loop, from this phase to the drill's end or for ``for_s``.

    In ``path``, ``headers`` and ``body``, ``$N`` is the request's number modulo ``distinct``, and ``$ID`` is
    another text in each. ``to`` is where they go instead of the sidecar's listener, as ``--to`` of ``warmroute
    replay``; where that is gRPC's each is a call with the one message ``message_base64``. ``ends_with`` is what a
    whole answer ends with, such as ``data: [DONE]`` and two line ends.
    """

    path: Annotated[str, Meta(description="/v2/models/NAME/infer")]
    rate_per_s: Annotated[float, Meta(gt=0, le=5000, description="requests per second")]
    to: str = ""
    http2: bool = False
    tls: Trust | None = None
    message_base64: str = ""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: Text = ""
    spacing: Spacing = Spacing.EVEN
    distinct: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    seed: int = 1
    connections: Annotated[int, Meta(ge=1, le=1024)] = 64
    timeout_s: Seconds = 10.0
    for_s: Seconds | None = None
    ends_with: Text = ""


class Wait(Base, frozen=True):
    """Nothing changes for so long."""

    for_s: Annotated[float, Meta(gt=0, le=MAX_S, description="seconds")]


class End(Base, frozen=True):
    """A fault ends before its time."""

    fault: Annotated[str, Meta(description="the id of a fault that began in a phase before")]


class Being(StrEnum):
    """What an endpoint can be expected to be."""

    OUT = "out"  # not picked, whatever the reason
    PICKED = "picked"  # takes requests
    WARM = "warm"  # all its replicas say so, whether or not it is picked
    NOT_WARM = "not_warm"
    OPEN = "open"  # its breaker, of any model
    HALF_OPEN = "half_open"
    CLOSED = "closed"


class Step(StrEnum):
    """Who answers a model's requests."""

    REPLICA = "replica"
    FALLBACK = "fallback"
    CACHE = "cache"
    STATIC = "static"
    NOBODY = "nobody"


class Expect(Base, frozen=True):
    """Something that must come to be within a time; all that is named must hold at one moment.

    ``reason`` is why the endpoint is out. ``share`` is the endpoint's part of the attempts of late at the
    model's endpoints, ``weight`` what it or the version is to get, as the route's weights say.
    """

    within_s: Annotated[float, Meta(gt=0, le=MAX_S, description="seconds")]
    endpoint: str = ""
    being: Being | None = None
    reason: Reason | None = None
    model: str = ""
    step: Step | None = None
    picked: Annotated[int, Meta(ge=0, le=4096)] | None = None
    version: str = ""
    share_at_most: Annotated[float, Meta(ge=0, le=1)] | None = None
    share_at_least: Annotated[float, Meta(ge=0, le=1)] | None = None
    weight_at_most: Annotated[float, Meta(ge=0, le=1)] | None = None
    weight_at_least: Annotated[float, Meta(ge=0, le=1)] | None = None
    store: StoreMode | None = None
    ready: bool | None = None


class Act(StrEnum):
    """What an operator does."""

    DRAIN = "drain"
    RESUME = "resume"
    SPLIT = "split"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    RESET = "reset"


class Do(Base, frozen=True):
    """Something that an operator does through the admin API; what it changed is taken back at the end."""

    act: Annotated[Act, Meta(description="drain, resume, split, promote, rollback or reset")]
    endpoint: str = ""
    model: str = ""
    version: str = ""
    split: dict[str, Annotated[float, Meta(ge=0, le=1e6)]] = field(default_factory=dict)


class Phase(Base, frozen=True):
    """One step of the script: exactly one of load, fault, end, do, wait, expect."""

    name: PhaseName = ""
    load: Load | None = None
    fault: dict[str, Any] | None = None
    end: End | None = None
    do: Do | None = None
    wait: Wait | None = None
    expect: Expect | None = None


class Measure(StrEnum):
    """What an objective can be about. Seconds, milliseconds and shares as the name says, else counts."""

    ERROR_RATIO = "error_ratio"
    P50_MS = "p50_ms"
    P95_MS = "p95_ms"
    P99_MS = "p99_ms"
    MAX_MS = "max_ms"
    REQUESTS = "requests"
    DETECT_S = "detect_s"
    EJECT_S = "eject_s"
    RETURN_S = "return_s"
    RECOVER_S = "recover_s"
    CACHE_RATIO = "cache_ratio"
    DEGRADED_RATIO = "degraded_ratio"
    ATTEMPTS_RATIO = "attempts_ratio"
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"
    CLEAN_CUT = "clean_cut"


OF_A_FAULT = frozenset({Measure.DETECT_S, Measure.EJECT_S, Measure.RETURN_S, Measure.RECOVER_S})
OF_OWN_LOAD = frozenset({Measure.LOST, Measure.DOUBLED, Measure.WRONG, Measure.CLEAN_CUT, Measure.MAX_MS})
"""What only a sender can know; from metrics alone these cannot be told."""
SHARES = frozenset({Measure.ERROR_RATIO, Measure.CACHE_RATIO, Measure.DEGRADED_RATIO})


class Objective(Base, frozen=True):
    """What must hold for the drill to pass, over all of it or ``during`` some phases."""

    measure: Annotated[Measure, Meta(description="what is measured")]
    at_most: NotNegative | None = None
    at_least: NotNegative | None = None
    during: tuple[str, ...] = ()
    fault: str = ""
    endpoint: str = ""
    slow_ms: Annotated[float, Meta(gt=0, le=3_600_000)] | None = None


class Abort(Base, frozen=True):
    """What ends the drill at once: a measure over the last ``over_s``, of ``least`` requests or more, above a value."""

    measure: Annotated[Measure, Meta(description="error_ratio, p50_ms, p95_ms or p99_ms")]
    above: Annotated[float, Meta(ge=0, le=1e9, description="the value that it must not exceed")]
    over_s: Seconds = 5.0
    least: Annotated[int, Meta(ge=1, le=1_000_000)] = 20


ABORTING = frozenset({Measure.ERROR_RATIO, Measure.P50_MS, Measure.P95_MS, Measure.P99_MS})


class Up(Base, frozen=True):
    """A fleet of the drill's own: ``warmroute up`` with these arguments, ended with the drill."""

    workers: Annotated[int, Meta(ge=1, le=64)] = 3
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    models: Annotated[tuple[Word, ...], Meta(min_length=1)] = ("drill",)
    models_dir: str | None = None
    engine: Word | None = "deterministic"
    worker_flags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    ready_s: Seconds = 60.0


class Streams(Base, frozen=True):
    """Stand-ins for servers with OpenAI's streams: endpoints ``stream-1`` and on, beside the workers.

    Each answers any POST with ``events`` events, ``every_ms`` apart, and ``data: [DONE]``.
    """

    model: Annotated[Name, Meta(description="the name that requests give their model")]
    count: Annotated[int, Meta(ge=1, le=16)] = 3
    events: Annotated[int, Meta(ge=1, le=10_000)] = 10
    every_ms: Annotated[float, Meta(ge=0, le=60_000)] = 10.0


class Start(Base, frozen=True):
    """What the drill starts itself."""

    up: Annotated[Up, Meta(description="arguments of warmroute up; {} for its defaults")]
    streams: Streams | None = None

    @property
    def endpoints(self) -> list[str]:
        """The ids of its endpoints."""
        workers = [f"worker-{number}" for number in range(1, self.up.workers + 1)]
        return workers + [f"stream-{number}" for number in range(1, (self.streams.count if self.streams else 0) + 1)]

    @property
    def models(self) -> list[str]:
        """The names of its models: of its workers, of its stand-ins, and of its configuration."""
        said = self.up.config.get("models")
        listed = said if isinstance(said, list) else []  # what else it may be the configuration's own check tells
        configured = [str(one.get("name")) for one in listed if isinstance(one, dict)]
        return sorted({*self.up.models, *configured, *([self.streams.model] if self.streams else [])})


class Without(Base, frozen=True):
    """How the feature that a drill tests is switched off: laid over ``start.up``, or by phases that are left out.

    Without it, the drill must fail.
    """

    config: dict[str, Any] = field(default_factory=dict)
    worker_flags: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()


class Short(Base, frozen=True):
    """The short form: all times of phases, faults and objectives times ``time_ratio``, and ``config`` on top.

    Waits go by ``wait_ratio`` where that is given: how long to look is another matter than how long things may take.
    """

    time_ratio: Annotated[float, Meta(gt=0, le=1)] = 1.0
    wait_ratio: Annotated[float, Meta(gt=0, le=1)] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    worker_flags: tuple[str, ...] | None = None


class Drill(Base, frozen=True):
    """A whole file. Without ``start`` it addresses a sidecar that runs; without a load it watches real traffic."""

    version: Annotated[int, Meta(ge=1, le=1, description="1")]
    name: Annotated[Name, Meta(description="what reports call it")]
    title: str
    phases: Annotated[tuple[Phase, ...], Meta(min_length=1)]
    objectives: Annotated[tuple[Objective, ...], Meta(min_length=1)]
    about: Text = ""
    start: Start | None = None
    abort: tuple[Abort, ...] = ()
    without: dict[str, Without] = field(default_factory=dict)
    short: Short = Short()
    limit_s: Seconds = 900.0


def named(drill: Drill) -> Drill:
    """Return ``drill`` with a name for each phase: its own, or what it does and its number."""
    phases = tuple(
        phase if phase.name else msgspec.structs.replace(phase, name=f"{kind_of(phase)}-{number}")
        for number, phase in enumerate(drill.phases, 1)
    )
    return msgspec.structs.replace(drill, phases=phases)


def kind_of(phase: Phase) -> str:
    """Return which step a phase is; "" where it is none."""
    kinds = ("load", "fault", "end", "do", "wait", "expect")
    return next((kind for kind in kinds if getattr(phase, kind) is not None), "")


def overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return ``above`` laid over ``below``: mappings go together, all else is replaced."""
    made = dict(below)
    for name, value in above.items():
        under = made.get(name)
        made[name] = overlaid(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return made


def lacking(drill: Drill, feature: str) -> Drill:
    """Return ``drill`` with ``feature`` switched off.

    :raises KeyError: it does not say how.
    """
    off = drill.without[feature]
    kept = tuple(phase for phase in drill.phases if phase.name not in off.skip)
    return _with(msgspec.structs.replace(drill, phases=kept), off.config, off.worker_flags)


def shortened(drill: Drill) -> Drill:
    """Return the short form: as the file's ``short`` says, its times scaled."""
    short = drill.short
    ratio = short.time_ratio
    wait_ratio = ratio if short.wait_ratio is None else short.wait_ratio
    phases = tuple(
        msgspec.structs.replace(
            phase,
            wait=phase.wait and Wait(for_s=phase.wait.for_s * wait_ratio),
            expect=phase.expect and msgspec.structs.replace(phase.expect, within_s=phase.expect.within_s * ratio),
            load=phase.load and _scaled_load(phase.load, ratio),
            fault=phase.fault and _scaled_fault(phase.fault, ratio),
        )
        for phase in drill.phases
    )
    objectives = tuple(_scaled_objective(one, ratio) for one in drill.objectives)
    made = msgspec.structs.replace(drill, phases=phases, objectives=objectives)
    return _with(made, short.config, short.worker_flags)


def _scaled_load(load: Load, ratio: float) -> Load:
    return load if load.for_s is None else msgspec.structs.replace(load, for_s=load.for_s * ratio)


def _scaled_fault(fault: dict[str, Any], ratio: float) -> dict[str, Any]:
    return fault | {"for_s": fault["for_s"] * ratio} if isinstance(fault.get("for_s"), int | float) else fault


def _scaled_objective(objective: Objective, ratio: float) -> Objective:
    if objective.measure not in OF_A_FAULT:
        return objective
    most, least = objective.at_most, objective.at_least
    return msgspec.structs.replace(
        objective,
        at_most=most if most is None else most * ratio,
        at_least=least if least is None else least * ratio,
    )


def _with(drill: Drill, config: dict[str, Any], worker_flags: tuple[str, ...] | None) -> Drill:
    if drill.start is None:
        return drill
    up = drill.start.up
    made = msgspec.structs.replace(
        up,
        config=overlaid(up.config, config),
        worker_flags=up.worker_flags if worker_flags is None else worker_flags,
    )
    return msgspec.structs.replace(drill, start=msgspec.structs.replace(drill.start, up=made))
