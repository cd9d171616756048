"""The guard and what the plane does on its word: by hand, on figures that the test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from router.matching import Surface
from router.outcomes import Outcome
from sidecar.http1.answers import error_answer
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.plane import FEW, TIGHT_LEAST
from sidecar.meters import Meters
from sidecar.overload import LATE_TICKS, LEAST_MEMORY_BYTES, SAMPLE_S, Guard
from sidecar.settings import Overload
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import UpstreamConnection
from tests.support.by_hand import Bench, bench
from tests.support.fake_transport import FakeTransport
from tests.support.wires import CHUNKED, answer, chunk, post, request

MEMORY = 1 << 30
FILES = 1000
LIVE = request(b"GET /v2/health/live HTTP/1.1")
READY = request(b"GET /v2/health/ready HTTP/1.1")


class Figures(Meters):
    """What the guard is told."""

    def __init__(self) -> None:
        self.memory = 0.0
        self.files = 0.0

    def resident_bytes(self) -> int:
        return int(self.memory * MEMORY)

    def open_files(self) -> int:
        return int(self.files * FILES)


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))


class Rig:
    def __init__(self, bench: Bench, settings: Overload) -> None:
        self.bench = bench
        self.plane = bench.plane
        self.figures = Figures()
        self.guard = Guard(self.plane, settings, 2, meters=self.figures, files=lambda: FILES, memory=lambda: 8 * MEMORY)
        self.log = Log()
        self.guard._log = self.log  # type: ignore[assignment]
        self.late = 0.0

    def measure(self, *, memory: float = 0.0, files: float = 0.0, late: float = 0.0) -> None:
        self.figures.memory, self.figures.files = memory, files
        self.bench.now += SAMPLE_S
        self.guard.ticked(late, self.bench.now)

    def connect(self) -> tuple[DownstreamConnection, FakeTransport]:
        connection, transport = DownstreamConnection(self.plane), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    def idle(self, count: int) -> list[FakeTransport]:
        """Open connections, have each answered once, a millisecond apart, and leave them idle."""
        made = []
        for _ in range(count):
            self.bench.now += 0.001
            connection, transport = self.connect()
            connection.data_received(request())
            self.bench.busy[0].data_received(answer(b"x"))
            made.append(transport)
        return made

    def scalar(self, member: Scalar) -> int:
        return int(self.plane.words[self.plane.page.scalar(member)])


@pytest.fixture
def by_hand() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture
def rig(by_hand: Bench) -> Rig:
    return Rig(by_hand, Overload(memory_bytes=MEMORY))


# --- the guard ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "processes", "most"),
    [(8 * MEMORY, 2, int(8 * MEMORY * 0.4)), (256 << 20, 1, int((256 << 20) * 0.8)), (64 << 20, 4, LEAST_MEMORY_BYTES)],
)
def test_memory_that_is_not_configured_is_an_equal_share(
    by_hand: Bench, memory: int, processes: int, most: int
) -> None:
    guard = Guard(by_hand.plane, Overload(), processes, meters=Figures(), memory=lambda: memory)
    assert guard._most_memory == by_hand.plane.memory_bytes == most


def test_half_of_the_descriptors_go_to_callers_and_a_warning_says_so(rig: Rig) -> None:
    rig.figures.files = 0.02
    rig.guard.begin()
    assert rig.plane.most_connections == (FILES - 20 - 32 - 2 * 64) // 2
    ((level, event, fields),) = rig.log.lines
    assert (level, event, fields["remedy"]) == ("warning", "overload.limits", "raise the limit on open files to 8704")
    assert (fields["connections"], fields["connections_asked"], fields["descriptors"]) == (410, 4096, FILES)


def test_a_changed_configuration_is_gone_by_at_the_next_look(rig: Rig) -> None:
    rig.figures.files = 0.02
    rig.guard.begin()
    rig.measure(memory=0.5)
    assert not rig.plane.tight
    rig.guard.configure(Overload(memory_bytes=MEMORY // 2, reserve_connections=10))
    assert rig.plane.most_connections == (FILES - 20 - 32 - 2 * 10) // 2
    rig.measure(memory=0.5)
    assert rig.plane.refusing


@pytest.mark.parametrize(("resource", "word"), [("memory", "bytes of memory"), ("files", "descriptors")])
def test_a_resource_that_fills_is_said_once_a_level_and_shown(rig: Rig, resource: str, word: str) -> None:
    member = {"memory": Scalar.OVERLOAD_MEMORY_NOW, "files": Scalar.OVERLOAD_DESCRIPTORS_NOW}[resource]
    seen = []
    for used in (0.5, 0.86, 0.86, 0.96, 0.92, 0.86, 0.5):
        rig.measure(**{resource: used})
        seen.append((rig.scalar(member), rig.plane.tight, bool(rig.plane.refusing)))
        if seen[-1][2]:
            assert word in rig.plane.refusing
    normal, soft, hard = (0, False, False), (1, True, False), (2, True, True)
    assert seen == [normal, soft, soft, hard, hard, soft, normal]
    assert [(level, fields["before"], fields["after"]) for level, _, fields in rig.log.lines] == [
        ("warning", "normal", "soft"),
        ("warning", "soft", "hard"),
        ("info", "hard", "soft"),
        ("info", "soft", "normal"),
    ]


def test_one_long_callback_is_no_overload_and_a_loop_that_is_always_late_is(rig: Rig) -> None:
    rig.measure(late=30.0)
    for _ in range(LATE_TICKS):
        rig.measure(late=0.1)
    assert rig.plane.refusing == ""
    for _ in range(LATE_TICKS):
        rig.measure(late=2.0)
    assert rig.plane.refusing == "2.00 of 1 seconds behind"
    assert not rig.plane.tight  # closing connections would only cost more of what is short
    rig.measure(late=0.0)
    assert rig.plane.refusing == ""


def test_a_loop_s_lateness_can_be_ignored(by_hand: Bench) -> None:
    rig = Rig(by_hand, Overload(memory_bytes=MEMORY, loop_lag_s=None))
    for _ in range(2 * LATE_TICKS):
        rig.measure(late=30.0)
    assert rig.plane.refusing == ""


# --- hard: no new work ----------------------------------------------------------------------------------------------


def test_at_the_hard_mark_new_requests_are_refused_and_running_ones_go_on(rig: Rig) -> None:
    down, transport = rig.connect()
    down.data_received(request())
    (worker,) = rig.bench.busy
    other, told = rig.connect()
    for _ in range(LATE_TICKS):
        rig.measure(late=1.0)
    worker.data_received(answer(b"whole"))
    assert transport.written.endswith(b"whole")
    for data in (request(), post(b"x"), request(b"POST / HTTP/1.1", CHUNKED) + chunk(b"x")):
        told.written = b""
        other, told = rig.connect()
        other.data_received(data)
        assert told.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nwarmroute-outcome: overloaded\r\n" in told.written
        assert b"\r\nRetry-After: 1\r\n" in told.written
        assert b"the proxy is at its limit: 1.00 of 1 seconds behind" in told.written
    assert rig.scalar(Scalar.OVERLOAD_REFUSED_TOTAL) == 3
    assert rig.bench.busy == []
    rig.measure()
    down.data_received(request())
    assert len(rig.bench.busy) == 1


def test_health_answers_at_the_hard_mark(rig: Rig) -> None:
    """Also where a default model takes such paths otherwise: nothing is asked of a worker."""
    down, transport = rig.connect()
    rig.measure(files=0.99)
    down.data_received(LIVE)
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in transport.written  # connections are what is short
    down, transport = rig.connect()
    down.data_received(READY)
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    assert rig.bench.busy == []


def test_a_body_over_its_limit_is_still_that(rig: Rig) -> None:
    down, transport = rig.connect()
    down.data_received(request(b"POST / HTTP/1.1", b"Content-Length: 65"))
    assert transport.written.startswith(b"HTTP/1.1 413 ")


# --- soft: give back, and do not grow --------------------------------------------------------------------------------


def test_at_the_soft_mark_the_longest_idle_connections_go_first(rig: Rig) -> None:
    transports = rig.idle(160)
    rig.measure(files=0.86)
    assert [transport.closing for transport in transports] == [True] * 20 + [False] * 140
    rig.measure(files=0.86)
    assert sum(transport.closing for transport in transports) == 20 + 17
    assert rig.scalar(Scalar.OVERLOAD_SHED_TOTAL) == 37


def test_at_the_soft_mark_answers_close_and_nothing_is_kept_for_a_retry(rig: Rig) -> None:
    down, transport = rig.connect()
    down.data_received(request())
    rig.measure(memory=0.86)
    rig.bench.busy[0].data_received(answer(b"x"))
    assert b"Connection: close\r\n" in transport.written
    assert transport.closing
    assert rig.plane.replay_bytes == 0
    rig.measure(memory=0.5)
    assert rig.plane.replay_bytes == 16
    down, transport = rig.connect()
    down.data_received(request())
    rig.bench.busy[0].data_received(answer(b"x"))
    assert not transport.closing


def test_at_the_soft_mark_half_of_the_idle_connections_to_workers_go(rig: Rig) -> None:
    pool = rig.bench.cluster.endpoints["o0"].shell
    transports = []
    for _ in range(4):
        connection = UpstreamConnection(pool)
        transports.append(FakeTransport())
        connection.connection_made(transports[-1])
        pool.release(connection, rig.bench.now)
    rig.measure(files=0.86)
    assert [transport.closing for transport in transports] == [True, True, False, False]
    rig.measure(files=0.86)
    rig.measure(files=0.86)
    assert pool.pooled == 0


@pytest.mark.parametrize(("there", "most"), [(0, TIGHT_LEAST), (79, 80)])
def test_at_the_soft_mark_connections_do_not_become_more(rig: Rig, there: int, most: int) -> None:
    rig.plane.offer(100, 0)
    for _ in range(there):
        rig.connect()
    rig.measure(files=0.86)
    while len(rig.plane.connections) < most:
        assert rig.connect()[1].written == b""
    assert rig.connect()[1].written.startswith(b"HTTP/1.1 503 ")
    rig.measure()
    assert rig.plane.most_connections == 100


# --- over the limit -------------------------------------------------------------------------------------------------


@pytest.fixture
def full(rig: Rig) -> Rig:
    rig.plane.offer(1, 2)  # the bench holds the one
    return rig


@pytest.mark.parametrize("data", [LIVE, READY, request(b"GET /v2 HTTP/1.1"), LIVE.replace(b"GET", b"HEAD")])
def test_over_the_limit_health_is_answered_and_the_connection_closed(full: Rig, data: bytes) -> None:
    down, transport = full.connect()
    assert transport.written == b""
    down.data_received(data)
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close\r\n" in transport.written
    assert transport.closing
    assert full.bench.busy == []
    assert full.scalar(Scalar.REFUSED_CONNECTIONS_TOTAL) == 0


@pytest.mark.parametrize("data", [request(), post(b"hello"), post(b"hello")[:-2], LIVE.replace(b"GET", b"DELETE")])
def test_over_the_limit_anything_else_is_refused(full: Rig, data: bytes) -> None:
    down, transport = full.connect()
    down.data_received(data)
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    assert b"too many connections" in transport.written
    assert b"Connection: close\r\n" in transport.written
    assert transport.closing or transport.half_closed
    assert full.bench.busy == []
    assert full.scalar(Scalar.REFUSED_CONNECTIONS_TOTAL) == 1
    down.connection_lost(None)
    assert not full.plane.spare


def test_the_newest_connections_over_the_limit_have_the_places(full: Rig) -> None:
    """Those who only connect cannot keep the one who asks for health out."""
    silent = [full.connect() for _ in range(5)]
    down, transport = full.connect()
    down.data_received(LIVE)
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    refusal = error_answer(Surface.PLAIN, Outcome.OVERLOADED, "too many connections", close=True)
    assert [one.written for _, one in silent] == [refusal] * 4 + [b""]
    for connection, _ in [*silent, (down, transport)]:
        connection.connection_lost(None)
    assert not full.plane.spare
    assert len(full.plane.connections) == 1


def test_in_a_flood_only_the_newest_refused_are_waited_for(full: Rig) -> None:
    made = [full.connect() for _ in range(20)]
    assert [transport.closing for _, transport in made] == [True] * 12 + [False] * 8
    for connection, _ in made:
        connection.connection_lost(None)
    assert not full.plane.spare
    assert not full.plane.parting


def test_those_that_linger_behind_their_refusal_hold_places_too(full: Rig) -> None:
    """Half a request each, refused at once: not one of them may be kept beyond the places that there are."""
    unfinished = post(b"hello")[:-2]
    made = [full.connect() for _ in range(20)]
    for connection, transport in made[-2:]:
        connection.data_received(unfinished)
        assert transport.written.startswith(b"HTTP/1.1 503 ")
    for _ in range(20):
        connection, transport = full.connect()
        connection.data_received(unfinished)
        made.append((connection, transport))
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        assert not transport.closing
        assert sum(not one.closing for _, one in made) <= 2 + FEW
    assert len(full.plane.parting) == 2 + FEW
    down, transport = full.connect()
    down.data_received(LIVE)
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_place_that_is_free_again_is_a_whole_one(full: Rig) -> None:
    full.bench.connection.connection_lost(None)
    down, _ = full.connect()
    down.data_received(request())
    assert len(full.bench.busy) == 1
