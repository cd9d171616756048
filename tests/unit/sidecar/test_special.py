"""Requests that need more than a pick: the order of their steps, bodies that are waited for, waiting, ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from router.outcomes import Outcome
from sidecar.http1.steps import ADMITTED, VERSION
from sidecar.settings import Limits
from tests.support.by_hand import Bench, bench

if TYPE_CHECKING:
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, StepMaker

ROOMY = Limits(body_bytes=1 << 20, replay_bytes=1 << 16)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
WHOLE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"


@dataclass
class Recording:
    """Writes down what it saw, and says what it is told to."""

    rank: int = VERSION
    body_bytes: int = 0
    goes_on: bool = True
    seen: list[bytes | None] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    ended: int = 0

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        self.seen.append(course.body)
        self.courses.append(course)
        course.hears.append(self)
        return self.goes_on

    def request_ended(self, course: Course) -> None:
        self.ended += 1


def makers(*steps: Recording) -> list[StepMaker]:
    def maker_of(step: Recording) -> StepMaker:
        return lambda target: step if target.route is not None and target.route.model == "m" else None

    return [maker_of(step) for step in steps]


def answer(made: Bench) -> None:
    made.loop.run()
    (worker,) = made.busy
    worker.data_received(ANSWER)


def test_a_model_without_steps_has_its_route_at_once() -> None:
    step = Recording()
    with bench(ROOMY, step_makers=makers(step)) as made:
        assert made.plane.resolve(b"/v2/models/n/infer", None).route is not None
        special = made.plane.resolve(b"/v2/models/m/infer", None)
        assert special.route is None
        assert special.special is not None
        assert special.special.target.route is made.cluster.route("m")
        assert special.row == special.special.target.row


def test_steps_come_in_the_order_of_their_rank_and_the_request_is_passed_on() -> None:
    order: list[int] = []

    class Noting(Recording):
        def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
            order.append(self.rank)
            return super().take(caller, course, now)

    last, first = Noting(rank=ADMITTED), Noting(rank=VERSION)
    with bench(ROOMY, step_makers=makers(last, first)) as made:
        for _ in range(2):
            made.connection.data_received(WHOLE)
            answer(made)
        assert made.transport.written.count(b"200 OK") == 2
        assert order == [VERSION, ADMITTED] * 2
        assert first.seen == [None, None]  # nobody wanted the body
        assert (first.ended, last.ended) == (2, 2)
        made.connection.connection_lost(None)
        assert made.outcomes() == 2
        made.check_rest()


@pytest.mark.parametrize("cut", [0, 1, 4, 10])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_wanted_comes_whole_and_without_framing(cut: int, chunked: bool) -> None:
    step = Recording(body_bytes=64)
    body = b"4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\n\r\n" if chunked else b"0123456789"
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 10"
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + length + b"\r\n\r\n"
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(head + body[:cut])
        made.loop.run()
        if cut < len(body):
            assert made.attempts == 0
            made.connection.data_received(body[cut:])
        answer(made)
        assert step.seen == [b"0123456789"]
        sent = made.loop.connected[0].written
        assert sent.endswith(body)
        assert sent.count(body) == 1
        assert made.transport.written.count(b"200 OK") == 1
        made.connection.connection_lost(None)
        made.check_rest()


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_long_is_not_waited_for(declared: bool) -> None:
    step = Recording(body_bytes=64)
    body = b"x" * 100 if declared else b"50\r\n" + b"x" * 80 + b"\r\n" + b"14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"
    length = b"Content-Length: 100" if declared else b"Transfer-Encoding: chunked"
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + length + b"\r\n\r\n"
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(head + body[:90])
        made.loop.run()
        assert step.seen == [None]
        assert made.attempts == 1
        made.connection.data_received(body[90:])
        answer(made)
        assert made.loop.connected[0].written.endswith(body)
        made.connection.connection_lost(None)
        made.check_rest()


def test_who_waits_for_leave_to_send_a_wanted_body_is_given_it_here() -> None:
    step = Recording(body_bytes=64)
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(head)
        assert made.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.connection.data_received(b"0123456789")
        answer(made)
        assert b"xpect" not in made.loop.connected[0].written
        made.connection.connection_lost(None)
        made.check_rest()


def test_a_request_that_waits_goes_on_when_it_is_told_to_and_only_once() -> None:
    step = Recording(goes_on=False)
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(WHOLE)
        made.loop.run()
        assert made.attempts == 0
        (course,) = step.courses
        made.connection.proceed(course)
        answer(made)
        assert course.over
        made.connection.proceed(course)  # too late: nothing
        assert made.attempts == 1
        assert step.ended == 1
        made.connection.connection_lost(None)
        made.check_rest()


def test_a_caller_that_leaves_while_it_waits_ends_its_course() -> None:
    step = Recording(goes_on=False)
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(WHOLE)
        made.connection.connection_lost(None)
        assert step.ended == 1
        made.connection.proceed(step.courses[0])
        made.loop.run()
        assert made.attempts == 0
        assert made.outcomes() == 1
        made.check_rest()


def test_a_step_may_refuse() -> None:
    class Refusing(Recording):
        def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
            super().take(caller, course, now)
            caller.end_unanswered(Outcome.OVERLOADED, "no room", 1.0)
            return False

    step = Refusing()
    with bench(ROOMY, step_makers=makers(step)) as made:
        made.connection.data_received(WHOLE)
        assert b" 503 " in made.transport.written
        assert b"no room" in made.transport.written
        assert step.ended == 1
        made.connection.connection_lost(None)
        assert made.outcomes() == 1
        made.check_rest()


def test_a_key_that_a_step_found_is_the_one_that_is_picked_by() -> None:
    class Keying(Recording):
        def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
            course.key = b"k"
            return super().take(caller, course, now)

    step = Keying()
    with bench(ROOMY, step_makers=makers(step)) as made:
        special = made.plane.resolve(b"/v2/models/m/infer", None).special
        assert special is not None
        asked: list[bytes | None] = []
        choose = made.cluster.choose

        class Source:
            def of(self, head: object) -> bytes:
                return b"of the head"

        def noting(*arguments: object) -> object:
            asked.append(arguments[4] if len(arguments) > 4 else None)  # type: ignore[arg-type]
            return choose(*arguments)  # type: ignore[arg-type]

        special.target.key_source = Source()  # type: ignore[assignment]
        made.cluster.choose = noting  # type: ignore[method-assign, assignment]
        made.connection.data_received(WHOLE)
        answer(made)
        assert asked == [b"k"]
        made.connection.connection_lost(None)


def test_a_body_that_names_a_model_with_steps_is_whole_for_them() -> None:
    step = Recording(body_bytes=256)
    body = b'{"model": "m", "prompt": "' + b"x" * 60 + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    for cut in (0, 5, 20, len(body)):
        with bench(ROOMY, step_makers=makers(step)) as made:
            made.connection.data_received(head + body[:cut])
            made.loop.run()
            if cut < len(body):
                assert made.attempts == 0
                made.connection.data_received(body[cut:])
            answer(made)
            assert step.seen[-1] == body
            assert made.loop.connected[0].written.count(body) == 1
            made.connection.connection_lost(None)
            made.check_rest()
