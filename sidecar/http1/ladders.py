"""The ladders of one process's models: where each route stands, what it may fall back to, and what it keeps.

A model with a fallback, a cache or a static answer has a ladder; its requests take a step (``steps``) for it. Models
without have none, and their requests hear nothing of this.
"""

from __future__ import annotations

from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import msgspec

from router.ladder import Ladder, LadderStep, Moved, step_below, steps_of
from router.matching import Surface
from router.outcomes import Outcome
from sidecar.cache.keeping import DEGRADED
from sidecar.cache.store import Answers
from sidecar.cache.terms import MOST_BODY_BYTES, Refused, Terms
from sidecar.http1.retrying import NOT_BEGUN
from sidecar.http1.steps import CACHED
from sidecar.telemetry.logs import Throttle, get_log
from sidecar.telemetry.page import MODEL_LADDER, LadderWord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policy import LadderPolicy
    from sidecar.cache.keeping import Kept
    from sidecar.http1.degrading import DegradingConnection
    from sidecar.http1.shared_answers import SharedTier
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course
    from sidecar.http1.targets import Target
    from sidecar.settings import Admission, Cache, Model, SharedCache, StaticAnswer, StaticCall
    from sidecar.telemetry.page import Page

NOT_STARTED: Final = NOT_BEGUN | {Outcome.NO_CANDIDATE, Outcome.OVERLOADED}
"""Ends after which surely no worker began with the request."""
LOGGED_S: Final = 1.0
"""Moves of one model's ladders that come faster are counted, not logged."""
FORGOTTEN_S: Final = 60.0
"""A route that nobody asked for so long (``hold_s``, where that is more) begins again with its replicas."""

_log = get_log("ladder")


class StaticReply:
    """The declared answer of a model, ready to be told."""

    __slots__ = ("_body", "_head")

    def __init__(self, answer: StaticAnswer) -> None:
        self._body = (answer.body or "").encode()
        known = answer.status in HTTPStatus.__members__.values()
        phrase = HTTPStatus(answer.status).phrase if known else "Declared"
        lines = [b"HTTP/1.1 %d %s" % (answer.status, phrase.encode()), b"Content-Type: " + answer.content_type.encode()]
        lines += [b"%s: %s" % (name.encode(), value.encode()) for name, value in answer.headers.items()]
        lines += [b"Content-Length: %d" % len(self._body), DEGRADED + b"static"]
        self._head = b"\r\n".join(lines) + b"\r\nx-request-id: "

    def tell(self, request_id: bytes, *, close: bool, head_only: bool) -> bytes:
        """Return it as the answer to one request."""
        end = b"\r\nConnection: close\r\n\r\n" if close else b"\r\n\r\n"
        return self._head + request_id + end + (b"" if head_only else self._body)


class StaticMessage:
    """The declared answer of the calls of one gRPC ``method``: initial metadata, and the framed message."""

    __slots__ = ("data", "fields", "method")

    def __init__(self, call: StaticCall) -> None:
        message = b64decode(call.message or "")
        self.method: Final = call.method.encode()
        self.data: Final = b"\0" + len(message).to_bytes(4, "big") + message
        fields = [(name.encode(), value.encode()) for name, value in call.metadata.items()]
        self.fields: Final[list[tuple[bytes, ...]]] = [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            *fields,
            (b"warmroute-degraded", b"static"),
        ]


class ModelLadder:
    """One model's ladder in this process: one configuration, and where each of its routes stands.

    Where a route stands is known by its key, once a request failed there; all others are at the first step. ``at`` is
    the lowest of them, ``since`` when it became that. ``terms`` and ``answers`` are there where it keeps answers,
    ``shared`` where it does so in a second tier, too. ``last_versions`` is which version answered last, by route.
    """

    __slots__ = (
        "_cache",
        "_changed",
        "_ladders",
        "_page",
        "_policy",
        "_row",
        "_throttle",
        "answers",
        "at",
        "fallbacks",
        "idempotent",
        "last_versions",
        "model",
        "on",
        "shared",
        "since",
        "static",
        "static_call",
        "steps",
        "terms",
    )

    def __init__(
        self,
        model: Model,
        policy: LadderPolicy,
        admission: Admission,
        page: Page,
        changed: Callable[[ModelLadder], None],
        now: float,
    ) -> None:
        self.model = model.name
        self._page = page
        self._row: Final = page.model_row(model.name) + MODEL_LADDER
        self._changed = changed
        self._throttle = Throttle(LOGGED_S)
        self._ladders: dict[str, Ladder] = {}
        self.last_versions: dict[str, str] = {}
        self._policy = policy
        self.steps: tuple[LadderStep, ...] = ()
        self.at = LadderStep.REPLICA
        self.since = now
        self.answers: Answers | None = None
        self._cache: Cache | None = None
        self.terms: Terms | None = None
        self.configure(model, policy, admission, now)

    def configure(self, model: Model, policy: LadderPolicy, admission: Admission, now: float) -> None:
        """Go by another configuration; what is kept stays, unless it may have been kept by other terms."""
        self.on = frozenset([Outcome(end.value) for end in model.fallback_on])
        self.idempotent = model.idempotent
        self.fallbacks: tuple[tuple[str, str], ...] = ()
        if policy.fallback:
            self.fallbacks = tuple([_name_and_version(entry) for entry in model.fallback])
        self.static: StaticReply | None = None
        self.static_call: StaticMessage | None = None
        declared = model.static_answer if policy.static else None
        if declared is not None:
            if declared.call is not None:
                self.static_call = StaticMessage(declared.call)
            if declared.call is None or declared.body is not None:
                self.static = StaticReply(declared)
        terms, self.terms = self.terms, None
        self.shared: SharedCache | None = None
        before, self._cache = self._cache, model.cache if policy.cache else None
        cache = self._cache
        if cache is None:
            self.answers = None
        else:
            self.terms = Terms(cache, admission)
            self.shared = cache.redis
            same = terms is not None and terms.revision == self.terms.revision
            if self.answers is None or before is None or not same or not _same_terms(before, cache):
                self.answers = Answers(cache.entries, cache.bytes)
            else:
                self.answers.resize(cache.entries, cache.bytes)
        steps = []
        if self.fallbacks:
            steps.append(LadderStep.FALLBACK)
        if self.terms is not None:
            steps.append(LadderStep.CACHE)
        if self.static is not None or self.static_call is not None:
            steps.append(LadderStep.STATIC)
        self.steps = steps_of(steps)
        self._policy = policy
        for ladder in self._ladders.values():
            ladder.configure(steps, policy, now)
        self.flush(now)

    @property
    def useful(self) -> bool:
        """True while there is any step between the first and the last."""
        return len(self.steps) > 2

    def body_bytes(self, surface: Surface) -> int:
        """Return how long a body is waited for before a request on this surface is sent."""
        if self.terms is not None or (self.fallbacks and surface is Surface.OPENAI):
            return MOST_BODY_BYTES
        return 0

    def begin(self, place: str, now: float, *, whole: bool) -> LadderStep:
        """Return the step that a request on a route (``place`` is its key) begins with; ``whole``: it is all here."""
        ladder = self._ladders.get(place)
        return LadderStep.REPLICA if ladder is None else ladder.begin(now, whole=whole)

    def below(self, step: LadderStep) -> LadderStep:
        """Return the next step down; the last is its own."""
        return step_below(self.steps, step)

    def degraded(self, place: str) -> bool:
        """Return whether a route is below the first step."""
        ladder = self._ladders.get(place)
        return ladder is not None and ladder.degraded

    def succeeded(self, place: str, step: LadderStep, now: float) -> None:
        """A request was answered at ``step``, as one is where all is well."""
        ladder = self._ladders.get(place)
        if ladder is not None:
            self._moved(place, ladder.succeeded(step, now), now)

    def failed(
        self, place: str, step: LadderStep, now: float, cause: str, *, certain: bool = False, of_its_own: bool = False
    ) -> None:
        """A request could not be answered at ``step``."""
        ladder = self._ladders.get(place)
        if ladder is None:
            if of_its_own:
                return
            ladder = self._ladders[place] = Ladder(self.steps, self._policy, now)
        self._moved(place, ladder.failed(step, now, cause, certain=certain, of_its_own=of_its_own), now)

    def count(self, word: LadderWord, by: int = 1) -> None:
        """Add to one of its counters."""
        self._page.words[self._row + word] += by

    def refuse(self, why: Refused) -> None:
        """An answer is not kept, or not looked for."""
        self._page.words[self._row + LadderWord.REFUSED + why] += 1

    # --- what is kept -------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes] | Refused, now: float, *, counted: bool = True) -> Kept | None:
        """Return what is kept under the first of these keys that has something; Refused: why there is no key."""
        answers = self.answers
        if answers is None:
            return None
        if isinstance(keys, Refused):
            if counted:
                self.refuse(keys)
            return None
        for key in keys:
            answer = answers.find(key, now)
            if answer is not None:
                return answer
        if counted:
            self.count(LadderWord.MISSES)
        return None

    def renews(self, key: bytes, now: float) -> bool:
        """Return whether an answer under this key would be kept, for there is none, or one of some age."""
        return self.answers is not None and self.answers.renews(key, now)

    def keep(self, key: bytes, answer: Kept | Refused, ladders: Ladders | None) -> None:
        """Keep an answer, in the second tier of ``ladders`` too where there is one; Refused: why not."""
        if isinstance(answer, Refused):
            self.refuse(answer)
        elif self.answers is not None and self.answers.keep(key, answer):
            self.count(LadderWord.FILLS)
            if ladders is not None and ladders.tier is not None and self.shared is not None:
                sent = ladders.tier.fill(self.shared, key, answer)
                self.count(LadderWord.SHARED_FILLS if sent else LadderWord.SHARED_DROPPED)

    def clear(self) -> int:
        """Forget what is kept; return how many answers that were."""
        if self.answers is None:
            return 0
        number = len(self.answers)
        self.answers.clear()
        return number

    def flush(self, now: float) -> None:
        """Write the gauges, and let go what is too old to be told."""
        for place in [one for one, ladder in self._ladders.items() if now - ladder.asked_at > self._forgotten_s]:
            before = self._ladders.pop(place).at
            if before is not LadderStep.REPLICA:
                self._moved(place, Moved(before, LadderStep.REPLICA, f"nobody asked for {self._forgotten_s:g} s"), now)
        self._look(now)
        words = self._page.words
        row = self._row
        words[row + LadderWord.STEP_NOW] = int(self.at) if self.useful else 0
        words[row + LadderWord.SINCE_MS_NOW] = int(self.since * 1000)
        answers = self.answers
        if answers is not None:
            answers.expire(now)
            words[row + LadderWord.EVICTED] += answers.evicted
            answers.evicted = 0
        words[row + LadderWord.ENTRIES_NOW] = 0 if answers is None else len(answers)
        words[row + LadderWord.BYTES_NOW] = 0 if answers is None else answers.kept_bytes

    def end(self) -> None:
        """The model has no ladder any more."""
        for word in (LadderWord.STEP_NOW, LadderWord.SINCE_MS_NOW, LadderWord.ENTRIES_NOW, LadderWord.BYTES_NOW):
            self._page.words[self._row + word] = 0

    @property
    def _forgotten_s(self) -> float:
        return max(FORGOTTEN_S, self._policy.hold_s)

    def _look(self, now: float) -> None:
        """Take the lowest of its routes for where the model stands."""
        at = max([ladder.at for ladder in self._ladders.values()], default=LadderStep.REPLICA)
        if at is not self.at:
            self.at = at
            self.since = now

    def _moved(self, place: str, moved: Moved | None, now: float) -> None:
        if moved is None:
            return
        self._look(now)
        self._page.words[self._row + LadderWord.STEP_NOW] = int(self.at)
        self._page.words[self._row + LadderWord.SINCE_MS_NOW] = int(self.since * 1000)
        self._changed(self)
        suppressed = self._throttle.admit(now)
        if suppressed is None:
            return
        say = _log.warning if moved.down else _log.info
        say(
            "ladder.down" if moved.down else "ladder.up",
            model=self.model,
            route=place,
            step=moved.after.name.lower(),
            before=moved.before.name.lower(),
            cause=moved.cause,
            unlogged_moves=suppressed,
        )


class OnLadder:
    """The step that requests of a model with a ladder take."""

    __slots__ = ("_model", "body_bytes", "rank")

    def __init__(self, model: ModelLadder, surface: Surface) -> None:
        self.rank = CACHED
        self.body_bytes = model.body_bytes(surface)
        self._model = model

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Begin with the step that answers now; True where that is a replica of the model."""
        return cast("DegradingConnection", caller).begin_on_ladder(course, self._model, now)


class Ladders:
    """The ladders of all models of this process, by name. ``degraded`` counts those below their first step."""

    def __init__(
        self, models: Sequence[Model], policy: LadderPolicy, page: Page, now: float, admission: Admission
    ) -> None:
        self._page = page
        self.by_model: dict[str, ModelLadder] = {}
        self.degraded = 0
        self.tier: SharedTier | None = None  # where there is a store
        self.configure(models, policy, now, admission)

    def configure(self, models: Sequence[Model], policy: LadderPolicy, now: float, admission: Admission) -> None:
        """Go by another configuration from now on. What targets meant must be forgotten then (``Plane.configure``)."""
        before, self.by_model = self.by_model, {}
        for model in models:
            known = before.pop(model.name, None)
            if known is not None:
                known.configure(model, policy, admission, now)
            elif model.fallback or model.cache is not None or model.static_answer is not None:
                known = ModelLadder(model, policy, admission, self._page, self._count, now)
            if known is not None and known.useful:
                self.by_model[model.name] = known
            elif known is not None:
                known.end()
        for gone in before.values():
            gone.end()
        self._recount()

    def maker(self, target: Target) -> OnLadder | None:
        """Return the step of requests to a target, None where its model has no ladder."""
        route = target.route
        ladder = None if route is None else self.by_model.get(route.model)
        return None if ladder is None else OnLadder(ladder, target.surface)

    def flush(self, now: float) -> None:
        """Write all gauges. Once a second."""
        for ladder in self.by_model.values():
            ladder.flush(now)

    def shed(self) -> None:
        """Memory is short: give back part of what is kept."""
        for ladder in self.by_model.values():
            if ladder.answers is not None:
                ladder.answers.shed()

    def clear(self, model: str = "") -> int:
        """Forget what is kept, of one model or of all; return how many answers that were."""
        return sum([ladder.clear() for name, ladder in self.by_model.items() if model in ("", name)])

    def _count(self, _: ModelLadder) -> None:
        self._recount()

    def _recount(self) -> None:
        self.degraded = sum([ladder.at is not LadderStep.REPLICA for ladder in self.by_model.values()])


def _same_terms(one: Cache, other: Cache) -> bool:
    """Return whether two caches differ in their bounds at most."""
    one, other = [msgspec.structs.replace(cache, entries=1, bytes=1024, redis=None) for cache in (one, other)]
    return one == other


def _name_and_version(entry: str) -> tuple[str, str]:
    name, _, version = entry.partition("@")
    return name, version
