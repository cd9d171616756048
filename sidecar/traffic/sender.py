"""An open loop over HTTP/1.1, HTTP/2 or gRPC: requests go out at their moments, whatever became of those before.

A closed loop asks again only after an answer, so while a server stalls it asks less, and the stall shows in few of its
latencies (what Gil Tene named coordinated omission). Here each latency counts from the moment that the request was
meant for: where all connections are busy it waits for one, and that waiting is part of what its caller saw.

Nothing is sent a second time: what fails has failed.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import os
import secrets
import ssl
import time
from typing import TYPE_CHECKING, Final, cast

from sidecar.http2.sending import Flusher
from sidecar.traffic.addresses import Speech, destination
from sidecar.traffic.answers import UnfilledError, filled, taken
from sidecar.traffic.connection import Connection
from sidecar.traffic.reading import Reading
from sidecar.traffic.requests import REQUEST_ID, Timed, check, id_of
from sidecar.traffic.samples import Ended, Sample
from sidecar.traffic.streams import StreamConnection
from sidecar.traffic.trusting import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Values = dict[str, Any]

    from sidecar.traffic.lines import Answer, Line

TIMEOUT_S: Final = 30.0
MAX_CONNECTIONS: Final = 256
IDLE_S: Final = 4.0
"""How long a connection is used again after its last answer: servers close them after 5 s and more, and a request that
crosses such a close would fail by the sender's fault."""
KEPT: Final = frozenset({"age", "cache-status", "retry-after", "warmroute-degraded", "warmroute-outcome"})
"""Fields of answers that samples keep."""
_EMPTY: Final = Reading("GET")


class Sender:
    """Sends timed requests to one address and tells what became of each.

    At most ``max_connections`` are open at once; over HTTP/2 each takes up to 100 requests at once, and another one is
    opened where all are full. ``take`` is called once for each request, in the order in which they
    end; it must be quick. ``keep`` names the answers' fields that samples have, in lower case. ``prefix`` begins the
    ids of requests that bring none. ``tls`` is for ``https://`` and ``grpcs://`` addresses, and has to say what is
    spoken (``Speech.alpn``).

    A sender runs once.
    """

    def __init__(
        self,
        address: str,
        take: Callable[[Sample], None],
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
        keep: frozenset[str] = KEPT,
        prefix: str = "",
        tls: ssl.SSLContext | None = None,
        http2: bool = False,
    ) -> None:
        """``address`` and ``http2``: see ``sidecar.traffic.addresses.destination``.

        Raises:
            ValueError: it is none, it needs ``tls``, or a limit is not above 0.
        """
        if max_connections < 1 or timeout_s <= 0:
            raise ValueError("max_connections and timeout_s must be above 0")
        self._to = destination(address, http2=http2)
        if self._to.secure and tls is None:
            raise ValueError(f"address {address!r}: there is nothing here that says whom to trust over TLS")
        self._tls = tls if self._to.secure else None
        self._take = take
        self._max = max_connections
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self.keep = keep | {REQUEST_ID}
        self._prefix = prefix or secrets.token_hex(4)
        self._idle: list[Line] = []  # those that can take a request
        self._open: set[Line] = set()  # those that are being opened too
        self._flusher: Flusher
        self._later: list[tuple[float, int, Timed, tuple[Timed, ...], Values]] = []  # what follows in flows, a heap
        self._waiter: asyncio.Future[None] | None = None
        self._calls: set[_Call] = set()
        self._error: BaseException | None = None
        self._stopping = False
        self._numbers = 0
        self.began = 0.0
        """The monotonic time of moment 0."""
        self.begun = 0
        """Requests whose moment has come."""
        self.ended = 0
        self.unasked_answers = 0
        """Times that something came which answered nothing: an answer sent twice, for one."""

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._calls)

    def now_s(self) -> float:
        """Return the seconds since moment 0."""
        return time.monotonic() - self.began

    def stop(self) -> None:
        """Begin nothing more; what is under way may end."""
        self._stopping = True
        self._wake()

    async def run(self, requests: Iterable[Timed]) -> None:
        """Send them and wait until each has ended. Moments must not decrease; what comes late is sent at once.

        ``requests`` is taken from as moments come, so it may be long and made on the way. Where this is cancelled,
        connections are closed and what was under way has no sample.

        Raises:
            ValueError: a request cannot be sent.
        """
        self._loop = asyncio.get_running_loop()
        self._flusher = Flusher(self._loop, time.monotonic)
        self.began = time.monotonic()
        source = iter(requests)
        upcoming = next(source, None)
        try:
            while self._error is None and not self._stopping:
                if self._later and (upcoming is None or self._later[0][0] <= upcoming.at_s):
                    at_s, number, request, rest, values = self._later[0]
                    if await self._reached(at_s, request) and self._later[0][1] == number:
                        heapq.heappop(self._later)
                        self._begin(request, at_s, rest, values)
                elif upcoming is not None:
                    if await self._reached(upcoming.at_s, upcoming):
                        self._begin(upcoming, upcoming.at_s, upcoming.then, {})
                        upcoming = next(source, None)
                elif not self._calls:
                    break
                else:
                    await self._change()
            while self._calls and self._error is None:
                await self._change()
            if self._error is not None:
                raise self._error
        finally:
            self._close()

    async def _reached(self, at_s: float, request: Timed) -> bool:
        """Wait for a moment, and then for a connection; return False where something changed before both were there.

        Where the request's time is over it waits for none.
        """
        wait_s = at_s - self.now_s()
        if wait_s > 0:
            await self._change(math.ceil(1000 * wait_s) / 1000)  # loops count in milliseconds: rather late than twice
            return False
        while self._idle and time.monotonic() - self._idle[-1].idle_since > self._idle_s:
            self._unlist().drop()
        left_s = at_s + self._time_s(request) - self.now_s()
        if self._idle or len(self._open) < self._max or left_s <= 0:
            return True
        await self._change(left_s)
        return False

    def _time_s(self, request: Timed) -> float:
        return self._timeout_s if request.timeout_s is None else request.timeout_s

    async def _change(self, within_s: float | None = None) -> None:
        self._waiter = self._loop.create_future()
        handle = None if within_s is None else self._loop.call_later(within_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if handle is not None:
                handle.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _begin(self, request: Timed, at_s: float, rest: tuple[Timed, ...], values: Values) -> None:
        self._numbers += 1
        self.begun += 1
        lacking = ""
        if request.fill:
            try:
                request = filled(request, values)
            except UnfilledError as error:
                lacking = str(error)
        wrong = check(request)
        if wrong:
            raise ValueError(wrong)
        request_id = id_of(request, f"{self._prefix}-{self._numbers}")
        call = _Call(self, self._numbers, request, request_id, at_s, rest, values)
        self._calls.add(call)
        if lacking:
            call.finish(Ended.UNSENT, lacking, _EMPTY)
            return
        left_s = at_s + self._time_s(request) - self.now_s()
        if left_s <= 0:
            call.finish(Ended.UNSENT, "its time was over before it could be sent", _EMPTY)
            return
        call.timer = self._loop.call_later(left_s, call.time_out)
        call.line = line = self._line()
        line.take(call)
        if line.room:
            self.idle(line)

    def _line(self) -> Line:
        """Return a connection that can take a request; one is opened where there is none."""
        while self._idle:
            line = self._unlist()
            if line.room:
                return line
        if self._to.speech is Speech.HTTP1:
            line = Connection(self, time.monotonic, self._to.host_field)
        else:
            host = self._to.host_field
            line = StreamConnection(
                self, time.monotonic, self._flusher, self._loop.call_later, host, secure=self._to.secure
            )
        self._open.add(line)
        line.opening = asyncio.create_task(self._connect(line), name=f"connect-{self._numbers}")
        return line

    async def _connect(self, line: Line) -> None:
        protocol = cast("asyncio.Protocol", line)
        to = self._to
        try:
            if to.socket is not None:
                await self._loop.create_unix_connection(lambda: protocol, to.socket)
            else:
                await self._loop.create_connection(lambda: protocol, to.name, to.port, ssl=self._tls)
        except OSError as error:
            self.gone(line)
            if isinstance(error, ssl.SSLError):  # its errno is none of the system's
                line.refused(*refusal(error))
            else:
                line.refused(Ended.NO_CONNECTION, _plain(error))
        except asyncio.CancelledError:
            self.gone(line)
            raise
        finally:
            line.opening = None

    def _unlist(self) -> Line:
        line = self._idle.pop()
        line.listed = False
        return line

    def idle(self, line: Line) -> None:
        """Keep it for the next request."""
        if not line.listed:
            line.listed = True
            self._idle.append(line)
        self._wake()

    def gone(self, line: Line) -> None:
        """Another may be opened in its place."""
        self._open.discard(line)
        if line.listed:
            line.listed = False
            self._idle.remove(line)
        self._wake()

    def unasked(self) -> None:
        """Count it."""
        self.unasked_answers += 1

    def over(self, call: _Call, sample: Sample) -> None:
        """A call has ended: tell it, and let what follows in its flow have its moment."""
        self._calls.discard(call)
        self.ended += 1
        if call.rest and not self._stopping:
            following, *rest = call.rest
            entry = (sample.ended_s + following.at_s, sample.number, following, tuple(rest), call.values)
            heapq.heappush(self._later, entry)
        try:
            self._take(sample)
        except Exception as error:  # noqa: BLE001 (raised again by run)
            self._error = error
        self._wake()

    def _close(self) -> None:
        for call in list(self._calls):
            call.abandon()
        self._calls.clear()
        while self._idle:
            self._unlist()
        for line in list(self._open):
            line.drop()


def _plain(error: OSError) -> str:
    """Return what the system says; asyncio's own words name the address once more."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__


class _Call:
    """One request under way."""

    def __init__(
        self,
        sender: Sender,
        number: int,
        request: Timed,
        request_id: str,
        at_s: float,
        rest: tuple[Timed, ...],
        values: Values,
    ) -> None:
        self._sender = sender
        self._number = number
        self.request = request
        self.request_id = request_id
        self._at_s = at_s
        self.rest = rest
        self.values = values
        """What was taken from answers of its flow, up to its own."""
        self.first_byte_at: float | None = None
        self._sent_s: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._hang_up: asyncio.TimerHandle | None = None
        self.line: Line | None = None
        """What it is sent on, or will be."""

    def sending(self) -> None:
        """Note the moment; from now on its caller may hang up."""
        self._sent_s = self._sender.now_s()
        if self.request.hang_up_s is not None:
            self._hang_up = asyncio.get_running_loop().call_later(self.request.hang_up_s, self._leave)

    def time_out(self) -> None:
        """Its time is over."""
        self.finish(Ended.TIMED_OUT, "nothing whole in time", self._let_go())

    def answered(self, answer: Answer) -> None:
        """Judge a whole answer."""
        self.line = None
        echoed = answer.fields(frozenset({REQUEST_ID})).get(REQUEST_ID, self.request_id)
        status = answer.status
        if echoed != self.request_id:
            self.finish(Ended.WRONG, f"the answer to {echoed[:80]!r}", answer)
        elif status >= 400:
            self.finish(Ended.STATUS_5XX if status >= 500 else Ended.STATUS_4XX, "", answer)
        elif self.request.call and answer.grpc_status is None:
            self.finish(Ended.FALSE_END, "ended without a gRPC status", answer)
        elif answer.grpc_status:
            self.finish(Ended.GRPC_STATUS, answer.grpc_message[:256], answer)
        elif not answer.tail.endswith(self.request.ends_with):
            self.finish(Ended.FALSE_END, "ended without its end mark", answer)
        else:
            if self.request.take and self.rest:
                self.values = {**self.values, **taken(self.request, answer.tail, answer.body_bytes)}
            self.finish(Ended.OK, "", answer)

    def failed(self, ended: Ended, error: str, answer: Answer) -> None:
        """It has no whole answer."""
        self.line = None
        self.finish(ended, error, answer)

    def finish(self, ended: Ended, error: str, answer: Answer) -> None:
        """Make its sample."""
        self._cancel_timers()
        sender = self._sender
        first = None if self.first_byte_at is None else self.first_byte_at - sender.began
        sample = Sample(
            number=self._number,
            name=self.request.name,
            request_id=self.request_id,
            intended_s=self._at_s,
            sent_s=self._sent_s,
            first_byte_s=first,
            ended_s=sender.now_s(),
            ended=ended,
            status=answer.status,
            grpc_status=answer.grpc_status,
            recorded=self.request.recorded,
            body_bytes=answer.body_bytes,
            error=error,
            headers=answer.fields(sender.keep),
        )
        sender.over(self, sample)

    def abandon(self) -> None:
        """End without a sample."""
        self._cancel_timers()
        self._let_go()

    def _leave(self) -> None:
        self.finish(Ended.HUNG_UP, "", self._let_go())

    def _let_go(self) -> Answer:
        line, self.line = self.line, None
        return _EMPTY if line is None else line.leave(self)

    def _cancel_timers(self) -> None:
        for timer in (self.timer, self._hang_up):
            if timer is not None:
                timer.cancel()
