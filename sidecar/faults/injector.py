"""Which attempts injected faults strike: the rules in force in one data process, and what is under way of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult, Outcome
from sidecar.faults.headers import asked_for
from sidecar.faults.kind import Plan
from sidecar.faults.kinds import KINDS
from sidecar.faults.link import Link
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from router.routes import Attempt
    from sidecar.faults.rules import FaultRule
    from sidecar.http1.plane import Plane
    from sidecar.upstreams.connection import UpstreamConnection

COUNTERS: Final = {kind: Scalar[f"FAULTS_{kind.upper()}_TOTAL"] for kind in KINDS}
"""What counts the attempts that each kind struck."""
_UNHARMED: Final = frozenset({AttemptResult.SUCCESS, AttemptResult.CANCELLED, AttemptResult.OUTRUN})
_FAILURES: Final = frozenset(
    {
        Outcome.UPSTREAM_4XX,
        Outcome.UPSTREAM_5XX,
        Outcome.UPSTREAM_BUSY,
        Outcome.CONNECT_FAILED,
        Outcome.CONNECT_TIMEOUT,
        Outcome.UPSTREAM_RESET,
        Outcome.UPSTREAM_PROTOCOL,
        Outcome.UPSTREAM_TIMEOUT,
        Outcome.UPSTREAM_CUT,
        Outcome.STREAM_IDLE,
        Outcome.DEADLINE_EXCEEDED,
    }
)


def counted_as(outcome: Outcome, fault: str) -> Outcome:
    """Return what a request counts as that ends in ``outcome``, where ``fault`` struck its last attempt ("": none)."""
    return Outcome.FAULT if fault and outcome in _FAILURES else outcome


class Struck:
    """What is done to one attempt: by which rules, the first ones first."""

    __slots__ = ("_injector", "attempt", "rules")

    def __init__(self, injector: Injector, attempt: Attempt, rules: tuple[FaultRule, ...]) -> None:
        self._injector: Final = injector
        self.attempt: Final = attempt
        self.rules: Final = rules

    @property
    def spoils(self) -> bool:
        """What is answered may seem whole, and be wrong."""
        return any(KINDS[rule.kind].spoils for rule in self.rules)

    @property
    def names(self) -> str:
        """The names of the rules."""
        return ", ".join(rule.id for rule in self.rules)

    def plan(self, draw: Callable[[], float], *, bodiless: bool = False, call: bool = False) -> Plan:
        """Return what the rules come to."""
        plan = Plan(draw, bodiless=bodiless, call=call)
        for rule in self.rules:
            KINDS[rule.kind].plan(rule, plan)
        return plan

    def links(
        self, loop: asyncio.AbstractEventLoop, draw: Callable[[], float], *, bodiless: bool
    ) -> Callable[[UpstreamConnection], Link]:
        """Return what makes the link that carries the attempt, for the connection that reads the answer."""
        plan = self.plan(draw, bodiless=bodiless)
        return lambda reader: Link(loop, plan, reader, self.over)

    def over(self) -> None:
        """Nothing is done to it any more."""
        self._injector.under_way.pop(self.attempt, None)


class _Scope:
    """A rule, with what has to be looked for in a request's head."""

    __slots__ = ("field", "rule")

    def __init__(self, rule: FaultRule) -> None:
        self.rule: Final = rule
        name, _, value = rule.header.partition(":")
        what = re.escape(value.strip().encode()) if value else rb"[^\r]*?"
        line = rb"\r\n%s:[ \t]*%s[ \t]*\r" % (re.escape(name.lower().encode()), what)
        self.field: Final = re.compile(line, re.IGNORECASE) if name else None


class Injector:
    """The faults in force in one data process, whose ``plane`` counts them.

    ``most_attempts`` are touched at once; the others go unharmed then.
    """

    def __init__(self, plane: Plane, most_attempts: int = 256) -> None:
        self._plane: Final = plane
        self._scopes: tuple[_Scope, ...] = ()
        self.rules: tuple[FaultRule, ...] = ()
        self.most_attempts = most_attempts
        self.headers = False
        """Callers that are believed may ask for faults in their requests' fields."""
        self.under_way: dict[Attempt, Struck] = {}

    def put(self, rules: Iterable[FaultRule]) -> None:
        """Go by these rules from now on; those of kinds that are not known strike nobody."""
        self.rules = tuple(rules)
        self._scopes = tuple(_Scope(rule) for rule in self.rules if rule.kind in KINDS)

    def expire(self, now: float) -> None:
        """Forget rules whose time is over."""
        if any(now >= rule.until for rule in self.rules):
            self.put(rule for rule in self.rules if now < rule.until)

    @property
    def idle(self) -> bool:
        """True where there is nothing to strike, and nothing under way that was."""
        return not self.rules and not self.under_way and not self.headers

    def strike(
        self, attempt: Attempt, head: bytes, now: float, rng: Callable[[], float], *, trusted: bool = False
    ) -> Struck | None:
        """Return what the rules that apply and strike do to an attempt, None where none does.

        ``head`` is the request's, as it came. ``rng`` is asked once per rule that applies; a rule strikes where it
        returns less than the rule's ratio.
        """
        rules = [
            scope.rule
            for scope in self._scopes
            if now < scope.rule.until and self._applies(scope, attempt, head, trusted) and rng() < scope.rule.ratio
        ]
        if self.headers and trusted:
            rules += [rule for rule in asked_for(head) if rng() < rule.ratio]
        if not rules or len(self.under_way) >= self.most_attempts:
            return None
        struck = self.under_way[attempt] = Struck(self, attempt, tuple(rules))
        self._plane.count(Scalar.FAULTS_INJECTED_TOTAL)
        for kind in {rule.kind for rule in rules}:
            self._plane.count(COUNTERS[kind])
        return struck

    def _applies(self, scope: _Scope, attempt: Attempt, head: bytes, trusted: bool) -> bool:
        rule = scope.rule
        route = attempt.route
        return (
            (not rule.model or rule.model == route.model)
            and (not rule.version or rule.version == attempt.candidate.version)
            and (rule.shard is None or rule.shard == route.shard)
            and (not rule.endpoint or rule.endpoint == attempt.endpoint.id)
            and (scope.field is None or scope.field.search(head) is not None)
            and (not rule.tenant or rule.tenant == self._tenant_of(head, trusted))
        )

    def _tenant_of(self, head: bytes, trusted: bool) -> str:
        """Return whose a request is, by the law of ``policies.admission``."""
        return self._plane.admission.sorting.of_head(head, 0, 0.0, trusted=trusted).tenant

    def spoils(self, attempt: Attempt) -> bool:
        """Return whether the answer to an attempt under way may seem whole, and be wrong."""
        struck = self.under_way.get(attempt)
        return struck is not None and struck.spoils

    def ended(self, attempt: Attempt, result: AttemptResult) -> None:
        """Count an attempt that was struck and came to nothing."""
        if self.under_way.pop(attempt, None) is not None and result not in _UNHARMED:
            self._plane.count(Scalar.FAULTS_FAILED_TOTAL)
