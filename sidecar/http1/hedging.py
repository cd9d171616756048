"""A second try beside the first: sent where the first is slow, the first good answer wins, the loser is cancelled.

Until it wins, a hedge is the ``Exchange`` of its own connection, and nothing that it is told goes downstream. When it
wins, or when the first try fails, the caller's connection takes its place: there is one try in hand again. An answer
that says that its endpoint failed or pushed back wins nothing while the other try is under way: it is set aside.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.hedging import HedgeDenied
from router.matching import asks_otherwise
from router.outcomes import NO_WINNER, AttemptResult
from sidecar.http1.caller import WAITING
from sidecar.http1.exchange import SAFE_METHODS, ExchangeConnection, result_of
from sidecar.http1.forwarding import numbered
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.routes import Attempt
    from sidecar.http1.head import ResponseHead
    from sidecar.http1.watch import Watch
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.exchanging import Sink
    from sidecar.upstreams.pool import Upstream


class Hedge:
    """The second try of one request.

    ``promoted``: the first try has failed, and this one is the caller's attempt although it has no connection yet.
    """

    __slots__ = (
        "_caller",
        "active",
        "attempt",
        "connection",
        "fault",
        "meant",
        "method",
        "old_client",
        "promoted",
        "request_done",
        "wanted",
    )

    def __init__(self, caller: HedgingConnection, attempt: Attempt) -> None:
        self._caller: Final = caller
        self.attempt: Final = attempt
        self.connection: UpstreamConnection | None = None
        self.meant: AttemptResult | None = None  # what an error was recognised as
        self.fault = ""  # the faults that struck it
        self.promoted = False
        self.wanted = True
        self.active = False
        self.request_done = True
        self.method = caller.method
        self.old_client = caller.old_client

    @property
    def sink(self) -> Sink:
        """Where the answer goes that it wins with: known once the caller has begun it."""
        return self._caller.sink

    def is_wanted(self) -> bool:
        """Return whether a connection that is being made is still waited for."""
        return self.wanted

    def cancel(self) -> None:
        """Stop it wherever it is. Its attempt is for the caller's connection to settle."""
        self.wanted = False
        if self.connection is not None:
            self.connection.drop()
            self.connection = None

    # --- Exchange: what its connection reports ----------------------------------------------------------------------

    def set_aside(self, head: ResponseHead) -> bool:
        """A failure or back-pressure is no reason to cancel the first try, which goes on."""
        result = self.meant or result_of(head)
        if result not in NO_WINNER:
            return False
        self.connection = None
        self._caller.hedge_failed(self, result, "", head.retry_after_s)
        return True

    def looks_at(self, head: ResponseHead) -> int:
        """As the caller's own try."""
        return self._caller.looks_at(head)

    def recognise(self, head: ResponseHead, body: bytes) -> bool:
        """Look whether an error is one that means something else than its status."""
        self.meant = self._caller.recognised(head, body)
        return self.meant is not None

    def begin_answer(self, head: ResponseHead) -> bytes:
        """It wins; what follows of the answer goes to the caller's connection."""
        self._caller.outrun(self, self.connection)
        self._caller.take_meaning(self.meant)
        return self._caller.begin_answer(head)

    def whole_answer(self, now: float, head: ResponseHead, body: bytes) -> None:
        """It wins with all of an answer; its connection is back in the pool already."""
        self._caller.outrun(self, None)
        self._caller.take_meaning(self.meant)
        self._caller.whole_answer(now, head, body)

    def trailers(self, lines: bytes) -> None:
        """They ended its answer."""
        self._caller.trailers(lines)

    def answer_ended(self, now: float, head: ResponseHead) -> None:
        """The answer that it won with ended within the same piece of data."""
        self._caller.answer_ended(now, head)

    def interim(self, head: ResponseHead) -> None:
        """A 1xx says nothing of who will answer first, and the caller hears those of one try only."""

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """It failed; the first try goes on, or it was the last hope."""
        self.connection = None
        self._caller.hedge_failed(self, result, detail)

    def attached(self, connection: UpstreamConnection) -> None:
        """A connection was made for it."""
        self._caller.hedge_attached(self, connection)

    def switched(self, head: ResponseHead, data: bytes) -> str:
        """A request that asks for another protocol is not hedged."""
        return "switched protocols unasked"

    def worker_finished(self) -> bool:
        """It is no tunnel."""
        return False

    def tunnel_lost(self, exc: Exception | None) -> None:
        """It is no tunnel."""

    def upstream_full(self, *, full: bool) -> None:
        """The request is whole and small: there is nobody to hold back."""

    def crashed(self, error: Exception) -> None:
        """An error of warmroute's own ends the whole request, unless that is over already."""
        self.connection = None
        self._caller.hedge_crashed(self, error)


class HedgingConnection(ExchangeConnection):
    """A caller's connection whose requests may be hedged. The hooks are called where a request has a watch only."""

    __slots__ = ()

    def _arm_hedge(self, watch: Watch, now: float) -> None:
        """The request is whole: from here on its first try is waited for."""
        route = self._target.route
        if route is None or route.hedging is None or self._head.upgrade:
            return
        watch.asked_at = now
        delay_s = route.hedging.delay_s
        if delay_s < inf and self._head.attempt == 1 and delay_s < watch.ends_at - now:
            watch.hedge_timer = self._plane.loop.call_later(delay_s, self._hedge_due)

    def _hedge_due(self) -> None:
        watch = self._watch
        if watch is None:
            return
        watch.hedge_timer = None
        try:
            self._try_hedge(watch, self._plane.clock())
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _try_hedge(self, watch: Watch, now: float) -> None:
        plane = self._plane
        attempt = self._attempt
        if attempt is None or self._phase != WAITING or self._write_paused:
            return  # a retry waits already, or it is the caller who is slow
        if plane.refusing or self._sets_up():  # where others find no room for their first try, there is no second one
            plane.count(Scalar.HEDGES_DENIED_TOTAL)
            return
        source = self._target.key_source
        hedge_attempt = plane.cluster.hedge(
            attempt,
            answered=False,
            replayable=self._whole and len(self._seen) <= plane.replay_bytes,
            tries=self._tries + 1,
            left_s=watch.ends_at - now,
            now=now,
            rng=plane.rng,
            key=None if source is None else self._key_from(source),
        )
        if isinstance(hedge_attempt, HedgeDenied):
            plane.count(Scalar.HEDGES_DENIED_TOTAL)
            return
        plane.count(Scalar.HEDGES_TOTAL)
        watch.hedged = True
        watch.hedge = hedge = Hedge(self, hedge_attempt)
        upstream: Upstream = hedge_attempt.endpoint.shell or plane.upstream(hedge_attempt.endpoint)
        if plane.faults is None or not self._hedge_struck(hedge, upstream, now):
            self._send_hedge(hedge, upstream, now)

    def _sets_up(self) -> bool:
        """Return whether the request sets its worker up, which may well take long: no second one is to be set up."""
        return self.method not in SAFE_METHODS and asks_otherwise(self._head.target)

    def _hedge_struck(self, hedge: Hedge, upstream: Upstream, now: float) -> bool:
        """Have a hedge that injected faults strike go over a link of its own; True where it does."""
        plane = self._plane
        head = self._head
        if plane.faults is None or not upstream.has_room:
            return False
        struck = plane.faults.strike(hedge.attempt, head.raw, now, plane.rng, trusted=self._peer.trusted)
        if struck is None:
            return False
        hedge.fault = struck.names
        upstream.make_room()
        links = struck.links(plane.loop, plane.rng, bodiless=head.method == b"HEAD")
        upstream.connect(hedge, hedge.is_wanted, links)
        return True

    def _send_hedge(self, hedge: Hedge, upstream: Upstream, now: float) -> None:
        hedge.connection = upstream.checkout(now)
        if hedge.connection is not None:
            hedge.connection.begin(hedge, self._hedge_head(hedge, now) + self._seen)
        elif upstream.full:
            self.hedge_failed(hedge, AttemptResult.CANCELLED, "")
            hedge.attempt.endpoint.found_full(now)
        else:
            upstream.connect(hedge, hedge.is_wanted)

    def _hedge_head(self, hedge: Hedge, now: float) -> bytes:
        return self._outgoing(numbered(self._sent_head, self._tries + 2), hedge.attempt, now)

    def _forget_hedge(self) -> None:
        if self._watch is not None:
            self._watch.hedge = None

    # --- what a hedge reports ---------------------------------------------------------------------------------------

    def hedge_attached(self, hedge: Hedge, connection: UpstreamConnection) -> None:
        """A connection stands for it: send the request there."""
        if hedge.promoted:
            self._forget_hedge()
            self.attached(connection)
        else:
            hedge.connection = connection
            connection.begin(hedge, self._hedge_head(hedge, self._plane.clock()) + self._seen)

    def hedge_failed(
        self, hedge: Hedge, result: AttemptResult, detail: str, retry_after_s: float | None = None
    ) -> None:
        """It came to nothing. Where the first try has failed too, that is the request's failure."""
        self._forget_hedge()
        if hedge.promoted:
            self.attempt_failed(result, detail)
            return
        if result is not AttemptResult.CANCELLED:  # else it was never sent, and a retry is still to be had
            self._tries += 1
        self._plane.attempt_ended(hedge.attempt, result, self._plane.clock(), retry_after_s)

    def hedge_crashed(self, hedge: Hedge, error: Exception) -> None:
        """An error of warmroute's own came up in it: it ends the request, unless that is over; then it is reported."""
        if hedge.wanted:
            self.crashed(error)
        else:
            context = {"message": "a cancelled try crashed", "exception": error, "protocol": self}
            self._plane.loop.call_exception_handler(context)

    def outrun(self, hedge: Hedge, connection: UpstreamConnection | None) -> None:
        """Its answer came first: cancel the first try and go on with it."""
        plane = self._plane
        self._forget_hedge()
        self._drop_upstream()
        self._settle(AttemptResult.OUTRUN, plane.clock())
        self._tries += 1
        plane.count(Scalar.HEDGES_WON_TOTAL)
        self._take_over(hedge, connection)

    def set_aside(self, head: ResponseHead) -> bool:
        """The first try's endpoint failed or pushed back: where a hedge is under way, that is the retry."""
        watch = self._watch
        attempt = self._attempt
        if watch is None or watch.hedge is None or watch.hedge.promoted or attempt is None:
            return super().set_aside(head)
        result = self._meaning_of(head)
        if result not in NO_WINNER:
            return False
        self._leave_answer(attempt, result, head, self._plane.clock())
        return self._hedge_takes_over(watch)

    def _hedge_takes_over(self, watch: Watch) -> bool:
        """The first try failed and is settled; True where a hedge is under way, which is the retry then."""
        hedge = watch.hedge
        if hedge is None or hedge.promoted:
            return False
        self._tries += 1
        if hedge.connection is None:
            hedge.promoted = True
            self._attempt = hedge.attempt
            self._fault = hedge.fault
            self._sent_head = numbered(self._sent_head, self._tries + 1)
        else:
            watch.hedge = None
            self._take_over(hedge, hedge.connection)
        self._wait_for_head(hedge.attempt.started)
        return True

    def _take_over(self, hedge: Hedge, connection: UpstreamConnection | None) -> None:
        """Let the hedge's attempt be the one in hand, and what its connection says be said to the caller."""
        self._attempt = hedge.attempt
        self._fault = hedge.fault
        self._peer_full = False
        if connection is not None:
            self._upstream = connection
            connection.exchange = self
            if self._write_paused:
                connection.pause_reading()
        if self._read_paused:
            self._read_on()
