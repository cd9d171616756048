"""Adapters: from what some server says of itself to the words of the router. One small class per dialect, all pure.

An adapter names what to ask, and reads the answers. ``docs/signals.md`` shows for each kind of server what that is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from router.model import State
from router.texts import spelled_out
from sidecar.settings import PROBE_PATH
from sidecar.upstreams.metrics_page import PAGE_BYTES, MetricsPage, read_page, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.settings import Expectation

BODY_BYTES: Final = 65536
"""Most of a body that is read where it is what matters."""
READY_BYTES: Final = 4096
"""Most of a body that is read where it only may say that the server is not ready, whatever the status says."""
ANYTHING: Final = "*"
"""Stands for a model's name where a server is asked for itself alone."""
ANY_CLASS: Final = "any"
"""The one shape class of a server that does not tell its runs apart."""
MOST: Final = float(1 << 53)
"""Larger counts are taken for this one."""
REASON_BYTES: Final = 256
"""Longest reason: some of it is a server's own words."""
_SHOWN: Final = 3
_SHOWN_CHARACTERS: Final = 48

Held = tuple[str, str]
"""What a server is asked about: a model by the name under which the server knows it, and a version, empty for any."""


@dataclass(frozen=True, slots=True)
class Question:
    """One GET: its path, the port where that is another than the endpoint's (0: it is not), and how much is read.

    ``every_s``: it need not be asked again earlier than that.
    A warm-up request has a ``method``, ``fields`` and a ``body`` of its own.
    """

    path: str
    port: int = 0
    body_bytes: int = READY_BYTES
    every_s: float = 0.0
    method: str = "GET"
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from asking a server. ``status`` is None where nothing did, and ``error`` then says why.

    ``cut``: there is more of the body than was asked for. ``ended``: it was an answer, with this for gRPC's status OK.
    """

    status: int | None
    error: str = ""
    body: bytes = b""
    cut: bool = False
    ended: str = ""

    @property
    def good(self) -> bool:
        """Whether it is a 2xx."""
        return self.status is not None and 200 <= self.status < 300

    def document(self) -> Any:
        """Return the body as JSON, None where it is none or is not whole."""
        if self.cut or not self.good:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


NOT_ASKED: Final = Answer(None, "not asked")


def reason_of(text: str) -> str:
    """Return a reason fit to be shown, of a bounded length: a server may have had a say in it."""
    return spelled_out(text).encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Signal:
    """What answers say of a replica: its state, why where it is not warm, and what has been proven of it by a run."""

    state: State
    reason: str = ""
    warmth: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What answers say of the endpoint as a whole; None is not known.

    ``queue_depth`` counts requests that wait at the server. ``free_memory_ratio`` is the free share of what it keeps
    requests in (a KV cache), where it names no bytes. ``queue_time_ms``: how long requests lately waited, on average.
    """

    queue_depth: int | None = None
    free_memory_bytes: int | None = None
    total_memory_bytes: int | None = None
    free_memory_ratio: float | None = None
    queue_time_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a round of answers says. ``refused`` counts values that were no use, by reason.

    ``load`` is None where the server could not be asked, which is not the same as that it says nothing. ``queued`` are
    the seconds that requests waited since the server started, and how many of them did; None where it does not tell.
    """

    signals: Mapping[Held, Signal]
    load: Load | None = Load()
    refused: Mapping[str, int] = field(default_factory=dict)
    queued: tuple[float, float] | None = None


class SignalAdapter(Protocol):
    """Speaks one dialect. Pure: it says what to ask, is given answers and returns what they say, and never raises."""

    name: str

    def questions(self, held: Sequence[Held]) -> tuple[Question, ...]:
        """Return what to ask, the most important first, to learn about ``held`` and the endpoint that holds it."""

    def read(self, held: Sequence[Held], answers: Mapping[Question, Answer]) -> Reading:
        """Return what ``answers`` say; a question without an answer was not asked."""


# --- readiness ------------------------------------------------------------------------------------------------------


def readiness(answer: Answer, what: str = "this path; check probe.path") -> Signal:
    """Return ``warm`` for a 2xx, else ``loading`` with the reason.

    Not ready is spelled differently: Triton and MLServer answer 400, KServe and most others 503, some 429 while they
    are full. All of these mean "not now". A redirect is not followed, since whoever is behind it is not the endpoint;
    where the path or the permission is wrong, the reason says so, because waiting will not help. ``what`` is what the
    server does not know where it says 404. A JSON body that says ``"ready": false`` is believed over a 2xx.
    """
    status = answer.status
    if status is None:
        return Signal(State.LOADING, f"no answer: {answer.error}")
    if answer.good:
        said = answer.document() if answer.body else None
        if isinstance(said, dict) and said.get("ready") in (False, "False", "false"):
            return Signal(State.LOADING, f'not ready (HTTP {status} with "ready": false)')
        return Signal(State.WARM)
    if status in (404, 405, 501):
        return Signal(State.LOADING, f"HTTP {status}: the server does not know {what}")
    if status in (401, 403):
        return Signal(State.LOADING, f"HTTP {status}: the server does not let us ask")
    if 300 <= status < 400:
        return Signal(State.LOADING, f"HTTP {status}: a redirect is no answer")
    return Signal(State.LOADING, f"not ready (HTTP {status})")


class HttpReadiness:
    """Any server: one path, whose status (or what is expected instead) says whether it is ready. It says no more."""

    name = "http"

    def __init__(self, path: str | None = None, expect: Expectation | None = None) -> None:
        self._status = None if expect is None else expect.status
        self._text = None if expect is None else expect.body_contains
        self._question = Question(path or PROBE_PATH, body_bytes=READY_BYTES if self._text is None else BODY_BYTES)

    def questions(self, held: Sequence[Held]) -> tuple[Question, ...]:
        """Ask the one path."""
        return (self._question,)

    def read(self, held: Sequence[Held], answers: Mapping[Question, Answer]) -> Reading:
        """Return the same for all that it holds."""
        return Reading(dict.fromkeys(held, self._signal(answers.get(self._question, NOT_ASKED))))

    def _signal(self, answer: Answer) -> Signal:
        if self._status is None and self._text is None:
            return readiness(answer)
        if answer.status is not None:
            wanted = answer.good if self._status is None else answer.status == self._status
            if wanted and (self._text is None or self._text.encode() in answer.body):
                return readiness(answer) if answer.good else Signal(State.WARM)
            if wanted:
                return Signal(State.LOADING, f"HTTP {answer.status}, but the body lacks probe.expect.body_contains")
            if self._status is not None:
                return Signal(State.LOADING, f"HTTP {answer.status}, not the {self._status} of probe.expect.status")
        return readiness(answer)


# --- metrics --------------------------------------------------------------------------------------------------------


def metrics_question(path: str, port: int | None = None) -> Question:
    """Return the question for a metrics page."""
    return Question(path, port or 0, PAGE_BYTES)


def page_of(
    question: Question | None, names: frozenset[str], answers: Mapping[Question, Answer]
) -> tuple[MetricsPage, bool]:
    """Return the metrics page that was answered, empty where none was; False where that is for want of an answer."""
    answer = NOT_ASKED if question is None else answers.get(question, NOT_ASKED)
    if question is not None and answer.status is None:
        return MetricsPage(), False
    return read_page(answer.body if answer.good else b"", names, cut=answer.good and answer.cut), True


def clipped(value: float) -> int:
    """Return a count as a whole number that fits everywhere."""
    return int(min(value, MOST))


def queued(page: MetricsPage, time: str, count: str, *, unit_s: float = 1.0) -> tuple[float, float] | None:
    """Return the seconds that requests waited since the server started, by two counters, and how many they were."""
    waited, requests = total(page.whole((time,))), total(page.whole((count,)))
    return None if waited is None or requests is None else (waited * unit_s, requests)


def proof(count: float | None) -> tuple[tuple[str, float], ...]:
    """Return the warmth of a replica that has counted so many good runs; nothing where it counts none."""
    return () if count is None else ((ANY_CLASS, 1.0 if count > 0 else 0.0),)


# --- names ----------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a name as it stands in a path."""
    return quote(text, safe="")


def served(answer: Answer) -> tuple[str, ...] | None:
    """Return the names in an answer to ``GET /v1/models``; None where it does not tell."""
    said = answer.document()
    entries = said.get("data") if isinstance(said, dict) else None
    if not isinstance(entries, list):
        return None
    return tuple(entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str))


def is_not_served(name: str, names: Sequence[str]) -> str:
    """Return the reason that a server which knows ``names`` is not ready for ``name``; empty where it knows it."""
    if name == ANYTHING or name in names:
        return ""
    shown = ", ".join(one[:_SHOWN_CHARACTERS] for one in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it serves {shown or 'no model'}{more}, not {name[:_SHOWN_CHARACTERS]}; check probe.served_as"
