"""Whatever bytes come, in whatever pieces: no connection raises, writes too late, or leaves anything unsettled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.model import EndpointRecord, EndpointSeen, Replica
from router.policy import LadderPolicy, MirrorPolicy, ModelPolicy, ServePolicy, ServeRule, VersionShare
from sidecar.channel import AnswerAsked, AnswerFound
from sidecar.http1.ladders import Ladders
from sidecar.http1.mirrors import mirror_step
from sidecar.http1.shared_answers import SharedTier
from sidecar.http1.special import SpecialConnection
from sidecar.http1.steps import ADMITTED, Course, StepMaker
from sidecar.http1.versions import version_step
from sidecar.settings import (
    Admission,
    Cache,
    CachedMethod,
    FallbackOn,
    Model,
    ModelAdmission,
    SharedCache,
    StaticAnswer,
)
from sidecar.telemetry.page import Scalar
from tests.support.by_hand import Bench, bench

CHAT = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v2/models/none/infer HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/x HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nT: v\r\n\r\n",
    b"HEAD http://a.test:1/x?y HTTP/1.1\r\nHost: a\r\nConnection: close, x\r\nx: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x, websocket\r\n\r\n",
    CHAT + b'Content-Length: 27\r\n\r\n{"x":[{"a":1}],"model":"m"}',
    CHAT + b'Transfer-Encoding: chunked\r\n\r\nb\r\n{"model":"m\r\n3\r\n","\r\n6;x\r\nx":5}\n\r\n0\r\n\r\n',
    CHAT + b'Content-Length: 27\r\nExpect: 100-continue\r\n\r\n{"model":"m","model" : "n"}',
    CHAT + b'Content-Length: 13\r\n\r\n{"model":"n"}',
    b"GET /v1/x HTTP/1.1\r\nHost: a\r\nwarmroute-model: m\r\nX-Forwarded-For: b\r\nwarmroute_attempt: 9\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nx-request-timeout-ms: 90\r\nContent-Length: 5\r\n\r\nhello",
    b"\r\n\r\n",
)
RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nT: v\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nhello",
    b"HTTP/1.0 503 Busy\r\nRetry-After: 1\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbytes",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
)
ODD = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b":", b" ", b"\0", b"\xff", b"0", b"-1", b"chunked", b"Content-Length: 5\r\n"]
)


@st.composite
def streams(draw: st.DrawFn, messages: tuple[bytes, ...], *, damages: int = 3, cuts_at: int = 6) -> list[bytes]:
    """Messages, some damaged, cut into pieces anywhere."""
    data = b"".join(draw(st.lists(st.sampled_from(messages), max_size=4)))
    for _ in range(draw(st.integers(0, damages))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.one_of(ODD, st.binary(max_size=6))) + data[at + draw(st.integers(0, 4)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=cuts_at)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


# a body that comes whole while the retry waits: its time is added to the deadline
@example([b"POST /v1/x HTTP/1.0\r\nContent-Length: 5\r\n\r\n", b"hello"], [b"\rHTTP/1.1 200 OK\r\n\r\n"], [], False)
@FUZZ
@given(streams(REQUESTS), streams(RESPONSES), st.lists(st.sampled_from("caowtfrhe"), max_size=24), st.booleans())
def test_any_bytes_both_ways_end_in_one_outcome_each(
    asked: list[bytes], answered: list[bytes], steps: list[str], reset: bool
) -> None:
    drive(asked, answered, steps, reset=reset, bounded=False)


@FUZZ
@given(
    streams(REQUESTS, damages=0, cuts_at=1),
    st.lists(streams(RESPONSES, damages=1, cuts_at=1), max_size=4).map(lambda each: [b for one in each for b in one]),
    st.lists(st.sampled_from(["cw", "cw", "w", "a", "A", "aA", "o", "O", "t", "f", "r"]), max_size=32).map("".join),
    st.booleans(),
)
def test_any_bytes_of_two_workers_at_once_end_in_one_outcome_each(
    asked: list[bytes], answered: list[bytes], steps: str, reset: bool
) -> None:
    """Hedges, times of tries and of requests, one connection for each worker: nothing is lost or counted twice."""
    drive(asked, answered, steps, reset=reset, bounded=True)


@FUZZ
@given(
    streams(REQUESTS, damages=1),
    streams(RESPONSES, damages=1),
    st.lists(st.sampled_from("caowtfrhe"), max_size=24),
    st.booleans(),
    st.booleans(),
)
def test_any_bytes_that_wait_for_their_steps_end_in_one_outcome_each(
    asked: list[bytes], answered: list[bytes], steps: list[str], reset: bool, bounded: bool
) -> None:
    """Requests whose bodies are kept back whole, and which wait a turn of the loop before they are dispatched."""
    drive(asked, answered, steps, reset=reset, bounded=bounded, step_makers=[lambda target: Waiting()])


@FUZZ
@given(
    streams((INFER, INFER, INFER, *REQUESTS[:5]), damages=1, cuts_at=2),
    st.lists(streams(RESPONSES, damages=1, cuts_at=1), max_size=4).map(lambda each: [b for one in each for b in one]),
    st.lists(st.sampled_from(["cw", "cw", "cw", "w", "a", "A", "o", "O", "t", "f", "r", "h", "e"]), max_size=24),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_bytes_of_requests_that_are_divided_and_copied_end_in_one_outcome_each(
    asked: list[bytes], answered: list[bytes], steps: list[str], reset: bool, bounded: bool, split: bool
) -> None:
    """Versions by a split or the latest, both workers holding several, and each request copied to the other one.

    A copy goes out in the next turn of the loop: the first request surely has one.
    """

    def prepare(by_hand: Bench) -> None:
        for name, versions in (("o0", ("1", "3")), ("o1", ("2", "3"))):
            endpoint = by_hand.cluster.endpoints[name]
            replicas = tuple(Replica("m", version) for version in versions)
            record = EndpointRecord(name, endpoint.address, replicas=replicas, static=True)
            by_hand.cluster.apply(EndpointSeen(record, 0.0), 0.0)
        shares = tuple(VersionShare(version, 1) for version in "12")
        rule = ServeRule.SPLIT if split else ServeRule.LATEST
        serve = ServePolicy(rule, shares=shares if split else (), mirror=MirrorPolicy("1", most=2))
        models = [ModelPolicy("m", idempotent=True, default=True, hedge=bounded, serve=serve), ModelPolicy("n")]
        by_hand.cluster.configure(by_hand.cluster.policies, models, 0.0)

    makers = [version_step, mirror_step]
    steps = ["cw", *steps]
    drive([INFER, *asked], answered, "".join(steps), reset=reset, bounded=bounded, step_makers=makers, prepare=prepare)


@FUZZ
@given(
    streams((INFER, INFER, INFER, *REQUESTS[:5]), damages=1, cuts_at=2),
    streams(RESPONSES, damages=1),
    st.lists(st.sampled_from("caowtfrhe"), max_size=24),
    st.booleans(),
    st.booleans(),
)
def test_any_bytes_of_requests_that_queue_end_in_one_outcome_each(
    asked: list[bytes], answered: list[bytes], steps: list[str], reset: bool, bounded: bool
) -> None:
    """Somebody else has the only place of the model, until the loop runs for the first time."""

    def prepare(by_hand: Bench) -> None:
        admission = by_hand.plane.admission
        admission.configure(Admission(queue_wait_s=1.0), (Model(name="m", admission=ModelAdmission(requests=1)),))
        permit = admission.permit_for(by_hand.cluster.route("m"))
        assert permit is not None
        assert permit.take()
        by_hand.loop.call_soon(permit.give_back)

    drive([INFER, *asked], answered, ["c", *steps], reset=reset, bounded=bounded, prepare=prepare)


@FUZZ
@given(
    streams((INFER, INFER, INFER, *REQUESTS), damages=1, cuts_at=3),
    st.lists(streams(RESPONSES, damages=1, cuts_at=1), max_size=4).map(lambda each: [b for one in each for b in one]),
    st.lists(st.sampled_from(["cw", "cw", "w", "a", "A", "o", "O", "t", "f", "r", "h", "e"]), max_size=32),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "found", "none", "silent"]),
    st.integers(1, 3),
    st.sampled_from(["cwo", "cwawcwowcwow", "cwawcwowcwowcwow", "cwowcwawcwow", "cwowwOwcw"]),
)
def test_any_bytes_of_requests_that_go_down_a_ladder_end_in_one_outcome_each(
    asked: list[bytes],
    answered: list[bytes],
    steps: list[str],
    reset: bool,
    bounded: bool,
    static: bool,
    shared: str,
    failures: int,
    first: str,
) -> None:
    """A fallback that the second worker has, what is kept here and in a second tier, a declared answer or none.

    The first requests are good ones, some answered and some cut: so that something is kept, and the model goes down.
    """
    made: list[Ladders] = []

    def prepare(by_hand: Bench) -> None:
        endpoint = by_hand.cluster.endpoints["o1"]
        record = EndpointRecord("o1", endpoint.address, replicas=(Replica("n"),), static=True)
        by_hand.cluster.apply(EndpointSeen(record, 0.0), 0.0)
        models = [ModelPolicy("m", idempotent=failures < 3, default=True, hedge=bounded), ModelPolicy("n")]
        by_hand.cluster.configure(by_hand.cluster.policies, models, 0.0)
        cache = Cache(
            deterministic=True,
            methods=(CachedMethod.GET, CachedMethod.POST),
            statuses=(200, 404),
            errors=True,
            streams=True,
            redis=SharedCache() if shared else None,
        )
        model = Model(
            name="m",
            fallback=("n",),
            cache=cache,
            static_answer=StaticAnswer(body="[]") if static else None,
            fallback_on=tuple(FallbackOn),
        )
        policy = LadderPolicy(failures=failures, hold_s=0.0, trial_s=0.0, successes=1)
        by_hand.plane.ladders = ladders = Ladders((model,), policy, by_hand.plane.page, 0.0, Admission())
        made.append(ladders)

        def take(message: object) -> bool:
            if isinstance(message, AnswerAsked) and shared != "silent":
                head = b"HTTP/1.1 200 OK\r\n" if shared == "found" else b""
                by_hand.loop.call_soon(tier.found, AnswerFound(message.number, head, b"kept"))
            return True

        ladders.tier = tier = SharedTier(by_hand.plane.loop, by_hand.plane.clock, take)

    drive(
        [INFER] * 4 + asked,
        [RESPONSES[0], *answered],
        first + "".join(steps),
        reset=reset,
        bounded=bounded,
        step_makers=[lambda target: made[0].maker(target) if made else None],
        prepare=prepare,
    )


class Waiting:
    """Wants short bodies, and has each request wait a turn of the loop."""

    rank = ADMITTED
    body_bytes = 20

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        assert course.body is None or len(course.body) <= self.body_bytes
        caller.plane.loop.call_soon(caller.proceed, course)
        return False


def drive(
    asked: list[bytes],
    answered: list[bytes],
    steps: Iterable[str],
    *,
    reset: bool,
    bounded: bool,
    step_makers: Sequence[StepMaker] = (),
    prepare: Callable[[Bench], None] = lambda by_hand: None,
) -> None:
    """Let it all happen in this order. Small letters: the first worker that was asked, large ones: the last."""
    with bench(bounded=bounded, step_makers=step_makers) as by_hand:
        prepare(by_hand)
        down, transport = by_hand.connection, by_hand.transport
        for step in [*steps, *"ca" * 12]:
            by_hand.now += 0.01
            if step == "c" and asked and transport.reading and not transport.closing:
                down.data_received(asked.pop(0))
            elif step in "aA" and answered and by_hand.busy:
                worker = by_hand.busy[0 if step == "a" else -1]
                if not worker.transport.is_closing():
                    worker.data_received(answered.pop(0))
            elif step in "oO" and by_hand.busy:  # the worker's end
                worker = by_hand.busy[0 if step == "o" else -1]
                worker.connection_lost(ConnectionResetError() if reset else None)
            elif step == "h" and by_hand.busy:  # one half of it
                worker = by_hand.busy[0]
                if not worker.transport.is_closing() and not worker.eof_received():
                    worker.transport.close()
                    worker.connection_lost(None)
            elif step == "e" and not transport.closing:
                asked.clear()
                if not down.eof_received():
                    transport.close()
            elif step == "w":
                by_hand.loop.run()
            elif step == "t":
                by_hand.now += 40.0 if not bounded else 16.0
                by_hand.plane.sweep(by_hand.now)
            elif step == "f":
                down.pause_writing()
            elif step == "r":
                down.resume_writing()
        settled = by_hand.outcomes()
        was_busy = down.busy
        down.connection_lost(None)
        by_hand.check_rest()
        assert by_hand.outcomes() == settled + was_busy  # what was in hand ends in exactly one, what was settled stays
        copies = by_hand.plane.words[by_hand.plane.page.scalar(Scalar.MIRRORS_TOTAL)]
        assert by_hand.results() + copies == by_hand.attempts


@FUZZ
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_at_all_from_a_caller_are_answered_or_waited_on(data: bytes, cuts: list[int]) -> None:
    with bench() as by_hand:
        start = 0
        for end in [*sorted(cuts), len(data)]:
            if data[start:end] and not by_hand.transport.closing:
                by_hand.connection.data_received(data[start:end])
            start = max(start, end)
        by_hand.connection.eof_received()
        by_hand.connection.connection_lost(None)
        by_hand.check_rest()


@FUZZ
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_at_all_from_a_worker_end_in_one_outcome(data: bytes, old: bool) -> None:
    with bench() as by_hand:
        version = b"1.0" if old else b"1.1"
        by_hand.connection.data_received(b"GET / HTTP/%s\r\nHost: a\r\n\r\n" % version)
        (worker,) = by_hand.busy
        if data:
            worker.data_received(data)
        if worker.exchange is not None:
            worker.connection_lost(None)
        by_hand.loop.run()
        for _ in range(3):  # the retry, and what waits for it
            for other in by_hand.busy:
                other.connection_lost(None)
            by_hand.loop.run()
        by_hand.connection.connection_lost(None)
        by_hand.check_rest()
        assert by_hand.outcomes() == 1
        assert by_hand.results() == by_hand.attempts >= 1
