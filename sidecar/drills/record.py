"""What a drill saw. Plain values; moments are seconds since the drill began, on one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the drill's own load. ``at`` is when it was meant to be sent, and latency counts from there.

    ``outcome`` is ``ok``, ``http_STATUS``, or how it ended without an answer; ``degraded`` who answered instead of a
    replica (``cache``, ``static``, a model), "" where a replica did.
    """

    at: float
    latency_ms: float
    ok: bool
    outcome: str
    degraded: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase, and when it was."""

    name: str
    kind: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """One fault, and when it was in force.

    ``there_again`` is, of a fault that a process did not survive, when the next one was there.
    """

    id: str
    kind: str
    endpoint: str
    begin: float
    end: float
    about: str = ""
    there_again: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One endpoint in one look. ``out`` is the reason why it is picked for nothing, "" where it is picked."""

    out: str = ""
    breaker: str = "closed"
    state: str = "warm"
    """Of its replicas; of several the first that is not warm."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a route holds: how many replicas are picked, and each endpoint's and version's part of its weights."""

    picked: int = 0
    endpoints: dict[str, float] = field(default_factory=dict)
    versions: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What the sidecar showed. ``at`` is when its answer came: it shows nothing of what was after that."""

    at: float
    endpoints: dict[str, Seen]
    routes: dict[str, Share] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    store: str = ""
    ready: bool | None = None


@dataclass(frozen=True, slots=True)
class Scrape:
    """The sidecar's counters at one moment, over all models. ``buckets`` are (upper bound in s, count up to there)."""

    at: float
    outcomes: dict[str, float]
    buckets: tuple[tuple[float, float], ...] = ()
    attempts: float = 0.0
    injected: float = 0.0
    retries: float = 0.0
    picks: dict[str, float] = field(default_factory=dict)
    """Attempts by endpoint."""


@dataclass(frozen=True, slots=True)
class Check:
    """What a phase expected, and whether it came to be in time."""

    phase: str
    text: str
    held: bool
    took_s: float
    last: str = ""
    """What was seen last, where it did not come to be."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What became of the drill's own requests: no whole answer, an answer twice, somebody else's answer.

    ``clean_cut``: answers that ended as if they were whole, without what a whole one ends with.
    """

    sent: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    clean_cut: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a drill."""

    length_s: float
    spans: tuple[Span, ...] = ()
    faults: tuple[FaultSpan, ...] = ()
    calls: tuple[Call, ...] = ()
    looks: tuple[Look, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    checks: tuple[Check, ...] = ()
    accounts: Accounts | None = None
    cut_short: str = ""
    """Why it ended before its script did: an abort condition, an interruption, something that could not be done."""
    left_behind: tuple[str, ...] = ()
    """What the end of the drill could not take back."""
