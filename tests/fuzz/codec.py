"""One run of the data path by hand on some bytes, and what must hold of what came out at both ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.settings import Limits
from sidecar.telemetry.page import Page
from tests.fuzz import readings
from tests.fuzz.readings import Answered
from tests.support.by_hand import Bench
from tests.support.fake_transport import FakeTransport

LIMITS = Limits(head_bytes=8192, target_bytes=512, fields=40, body_bytes=1 << 16, pipelined=1 << 16)
OWN = "warmroute-outcome"


@dataclass
class Passed:
    """What came out: at the caller's end, and at each worker's connection."""

    down: bytes
    ended: bool  # the caller's connection was closed, or half of it
    aborted: bool
    up: list[bytes] = field(default_factory=list)
    whole: list[tuple[bytes, bytes]] = field(default_factory=list)  # method and body of requests that arrived whole


def ask(page: Page, pieces: list[bytes]) -> Passed:
    """Send ``pieces`` as a caller, to workers that answer every whole request with 200."""
    by_hand = Bench(page, LIMITS, idempotent=False)
    whole: list[tuple[bytes, bytes]] = []
    seen: dict[FakeTransport, int] = {}
    try:
        for piece in pieces:
            if by_hand.transport.closing:
                break
            by_hand.connection.data_received(piece)
            _serve(by_hand, seen, whole)
        passed = _take(by_hand)
        passed.whole = whole
        if not by_hand.transport.closing:
            by_hand.connection.eof_received()
        by_hand.connection.connection_lost(None)
        by_hand.check_rest()
        return passed
    finally:
        by_hand.loop.close()


def _serve(by_hand: Bench, seen: dict[FakeTransport, int], whole: list[tuple[bytes, bytes]]) -> None:
    """Answer what has arrived whole, until nothing moves any more."""
    moved = True
    while moved:
        moved = False
        by_hand.loop.run()
        for worker in by_hand.busy:
            transport = worker.transport
            assert isinstance(transport, FakeTransport)
            start = seen.get(transport, 0)
            reading = readings.requests(transport.written[start:])
            assert len(reading.asked) <= 1, f"two requests at once to a worker: {transport.written[start:]!r}"
            if reading.asked:
                asked = reading.asked[0]
                seen[transport] = start + asked.end
                whole.append((asked.method, asked.body))
                body = b"" if asked.method == b"HEAD" else b"ok"
                worker.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + body)
                moved = True


def _take(by_hand: Bench) -> Passed:
    transport = by_hand.transport
    ended = transport.closing or transport.half_closed
    up = [one.written for one in by_hand.loop.connected]
    return Passed(transport.written, ended, transport.aborted, up)


def check_asked(sent: bytes, passed: Passed) -> None:
    """Hold what came of a caller's bytes against other readings of them."""
    for data in passed.up:
        strict = readings.requests(data)
        assert strict.tail in ("end", "incomplete"), f"a worker got {strict.error}: {data!r}"
        chunked = b"\r\ntransfer-encoding:" in data.lower()
        for model in readings.LENIENT:
            if chunked and model.get("te") == "ignore":  # a server that knows no chunks takes none
                continue
            other = readings.requests(data, model)
            ends = [asked.end for asked in other.asked]
            assert ends == [asked.end for asked in strict.asked], f"{model['name']} reads otherwise: {data!r}"
        if strict.tail == "end":
            bodies = readings.llhttp_bodies(data)
            assert bodies is None or bodies == [asked.body for asked in strict.asked], f"llhttp: {data!r}"
    meant = readings.requests_of_caller(sent)
    expected = [(asked.method, asked.body) for asked in meant.asked]
    assert passed.whole == expected[: len(passed.whole)], f"meant {expected}, arrived {passed.whole}"
    answers = _answers(passed, [asked.method for asked in meant.asked])
    refused = [one for one in answers if one.status >= 400]
    assert len(answers) == len(passed.whole) + len(refused)
    assert refused in ([], answers[-1:]), "something was answered behind a refusal"
    if refused:
        assert passed.ended or refused[0].status == 404
    elif not passed.ended:
        assert len(passed.whole) == len(expected), f"a whole request hangs: meant {expected}, arrived {passed.whole}"
        assert meant.tail != "error" or not _hopeless(sent, meant), f"waits for the rest of {meant.error}"


def _hopeless(sent: bytes, meant: readings.Reading) -> bool:
    """Return whether a head that is whole can be read by nobody, so that there is nothing to wait for."""
    at = meant.asked[-1].end if meant.asked else 0
    return b"\r\n\r\n" in sent[at:].lstrip(b"\r\n")


def _answers(passed: Passed, methods: list[bytes]) -> list[Answered]:
    """Read all answers at the caller's end, strictly, and nothing behind them."""
    at = 0
    found: list[Answered] = []
    while at < len(passed.down):
        method = methods[len(found)] if len(found) < len(methods) else b"GET"
        one = readings.response(passed.down, at, method, ended=passed.ended)
        if one.status >= 400 and one.state == "incomplete" and OWN in one.fields and at == passed.down.rfind(b"HTTP/"):
            one = readings.response(passed.down, at, b"HEAD", ended=True)  # what was refused may have been a HEAD
        assert one.state == "ok", f"the caller reads {one} in {passed.down[at:]!r}"
        found.append(one)
        at = one.end
    return found


def answer(page: Page, asked: bytes, pieces: list[bytes], *, ended: bool, reset: bool) -> tuple[Passed, bytes, bool]:
    """Have a worker answer ``asked`` with ``pieces`` (and an end); return what passed, what was read, if it is kept."""
    by_hand = Bench(page, LIMITS, idempotent=False)
    try:
        counted = by_hand.outcomes(), by_hand.results()
        by_hand.connection.data_received(asked)
        (worker,) = by_hand.busy
        read = b""
        for piece in pieces:
            if worker.exchange is None or worker.transport.is_closing():
                break
            worker.data_received(piece)
            read += piece
        whole = worker.exchange is not None
        if whole and ended:
            worker.connection_lost(ConnectionResetError() if reset else None)
        by_hand.loop.run()
        passed = _take(by_hand)
        kept = sum(endpoint.shell.pooled for endpoint in by_hand.cluster.endpoints.values()) > 0
        by_hand.connection.connection_lost(None)
        by_hand.check_rest()
        assert (by_hand.outcomes() - counted[0], by_hand.results() - counted[1]) == (1, 1)
        return passed, read, kept
    finally:
        by_hand.loop.close()


def check_answered(method: bytes, old: bool, read: bytes, passed: Passed, *, ended: bool, kept: bool) -> bool:
    """Hold what came of a worker's bytes against another reading of them; return whether its answer passed whole."""
    meant = readings.final(read, method, ended=ended)
    got = readings.final(passed.down, method, ended=passed.ended and not passed.aborted)
    assert got.state != "error", f"the caller reads {got} in {passed.down!r}"
    own = OWN in got.fields
    if own:
        assert got.status >= 500
        assert not passed.down[got.end :]
    elif got.state == "ok":
        assert meant.state == "ok", f"a false end: the worker said {read!r}, the caller reads {passed.down!r}"
        assert (got.status, got.body) == (meant.status, meant.body)
        assert not passed.down[got.end :], f"something behind the answer: {passed.down!r}"
        assert not old or "transfer-encoding" not in got.fields
    elif passed.down and not passed.ended:
        assert meant.state == "incomplete", f"it waits for more of {read!r}"
    if kept:
        assert meant.state == "ok"
        assert not meant.to_close
        assert meant.end == len(read), f"kept with bytes that nobody read: {read[meant.end :]!r}"
    return got.state == "ok" and not own
