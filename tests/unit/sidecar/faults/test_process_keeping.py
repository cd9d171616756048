"""What the keeper of process faults does with them, on a clock of our own and without a process."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from sidecar.faults.processes.fault import Act, Memo, ProcessFault, ProcessFaultError, Reach, checked
from sidecar.faults.processes.keeping import LOOK_S, MAX_FAULTS, Keeping
from sidecar.faults.processes.kinds import KINDS
from sidecar.faults.processes.wire import REQUESTS, Begin, End, Look, Reply, encode


class Clock:
    """Monotonic seconds that stand still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Noted:
    """Writes down what is done; ``step`` is due every tenth of a second."""

    SUBJECT: ClassVar[str] = "running"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.ANSWERS
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "as it was"
    LASTS: ClassVar[bool] = True

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refuses = ""
        self.fails: Exception | None = None
        self.stumbles = False

    def begin(self, fault: ProcessFault) -> Memo:
        if self.refuses:
            raise ProcessFaultError(self.refuses)
        if self.stumbles:
            raise ValueError("unforeseen")
        self.done.append(f"begin {fault.pid}")
        return {"pid": fault.pid}

    def step(self, memo: Memo, now: float) -> float | None:
        if self.stumbles:
            raise PermissionError("unforeseen")
        self.done.append(f"step {memo['pid']}")
        return now + 0.1

    def end(self, memo: Memo) -> bool:
        self.done.append(f"end {memo['pid']}")
        if self.fails is not None:
            raise self.fails
        return True


class Asks(Noted):
    """Strikes something else, and has to have an answer of the process for it."""

    SUBJECT: ClassVar[str] = "role"
    NEEDS: ClassVar[Reach] = Reach.ANSWERS


class Silences(Noted):
    """While it is in force nothing answers."""

    LEAVES: ClassVar[Reach] = Reach.SOCKET


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def act() -> Noted:
    return Noted()


@pytest.fixture
def keeping(clock: Clock, act: Noted) -> Keeping:
    return Keeping({"noted": act}, clock)


def begun(keeping: Keeping, number: int, pid: int, for_s: float = 10.0) -> Reply:
    return keeping.answer(Begin(number, number, ProcessFault("noted", pid=pid, for_s=for_s)))


def test_a_fault_ends_at_its_lifetime(keeping: Keeping, clock: Clock, act: Noted) -> None:
    assert begun(keeping, 1, 40, for_s=3.0) == Reply(1, memo={"pid": 40}, until=1003.0)
    clock.now = 1002.99
    keeping.tick()
    assert keeping.answer(Look(2)).in_force == (1,)
    clock.now = 1003.0
    keeping.tick()
    assert act.done == ["begin 40", "step 40", "end 40"]
    assert keeping.answer(Look(3)) == Reply(3)
    assert keeping.answer(End(4, 1)) == Reply(4, undone=False), "it has ended by itself"


def test_a_tick_says_when_something_is_due_next(keeping: Keeping, clock: Clock, act: Noted) -> None:
    assert keeping.tick() == LOOK_S
    begun(keeping, 1, 40)
    assert keeping.tick() == pytest.approx(0.1)
    clock.now += 0.04
    assert keeping.tick() == pytest.approx(0.06)
    assert act.done.count("step 40") == 1
    begun(keeping, 2, 41, for_s=0.01)
    assert keeping.tick() == pytest.approx(0.01)


def test_a_fault_is_ended_once(keeping: Keeping, act: Noted) -> None:
    begun(keeping, 1, 40)
    assert keeping.answer(End(2, 1)) == Reply(2, undone=True)
    assert keeping.answer(End(3, 1)) == Reply(3, undone=False)
    keeping.end_all()
    assert act.done == ["begin 40", "end 40"]


def test_one_process_has_one_fault_of_a_sort(keeping: Keeping) -> None:
    begun(keeping, 1, 40)
    assert begun(keeping, 2, 40).error == "noted: pid 40: noted is in force there: end it first"
    assert not begun(keeping, 3, 41).error
    keeping.answer(End(4, 1))
    assert not begun(keeping, 5, 40).error


def test_what_is_to_answer_is_not_to_be_silenced(clock: Clock) -> None:
    keeping = Keeping({"asks": Asks(), "silences": Silences()}, clock)
    assert not keeping.answer(Begin(1, 1, ProcessFault("silences", pid=40))).error
    asks = ProcessFault("asks", pid=40)
    assert keeping.answer(Begin(2, 2, asks)).error == "asks: pid 40: silences is in force there: end it first"
    keeping.answer(End(3, 1))
    assert not keeping.answer(Begin(4, 4, asks)).error
    assert not keeping.answer(Begin(5, 5, ProcessFault("silences", pid=40))).error, "it has its answer"


def test_faults_are_limited(keeping: Keeping) -> None:
    for number in range(MAX_FAULTS):
        assert not begun(keeping, number, 40 + number).error
    assert begun(keeping, 99, 99).error == "noted: 16 process faults are in force already: end some first"


def test_what_is_refused_is_not_in_force(keeping: Keeping, act: Noted) -> None:
    act.refuses = "noted: pid 40: there is no such process"
    assert begun(keeping, 1, 40) == Reply(1, error="noted: pid 40: there is no such process")
    keeping.end_all()
    assert act.done == []


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (ProcessFaultError("noted: pid 40: still limited"), "noted: pid 40: still limited"),
        (OSError("broken"), "noted: could not be undone: OSError: broken"),
    ],
)
def test_what_cannot_be_undone_holds_up_nothing_else_and_is_told(
    keeping: Keeping, clock: Clock, act: Noted, failure: Exception, text: str
) -> None:
    begun(keeping, 1, 40, for_s=1.0)
    begun(keeping, 2, 41)
    act.fails = failure
    clock.now += 1.0
    keeping.tick()
    act.fails = None
    assert keeping.answer(Look(3)) == Reply(3, error=text, in_force=(2,))
    assert keeping.answer(End(4, 1)) == Reply(4, error=text)
    keeping.end_all()
    assert act.done[-1] == "end 41"
    assert keeping.left == (text,)


def test_what_nobody_foresaw_ends_one_fault_and_no_other(keeping: Keeping, clock: Clock, act: Noted) -> None:
    begun(keeping, 1, 40)
    act.stumbles = True
    assert begun(keeping, 2, 41) == Reply(2, error="ValueError: unforeseen")
    keeping.tick()
    assert act.done == ["begin 40", "end 40"], "it could not go on"
    act.stumbles = False
    assert not begun(keeping, 3, 40).error


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            ProcessFault("explode", pid=40),
            f"no process fault of kind 'explode'; there are: {', '.join(sorted(KINDS))}",
        ),
        (ProcessFault("stop", pid=40, for_s=0), "stop: for_s 0: must be above 0, at most 3600 seconds"),
        (ProcessFault("stop", pid=40, for_s=3601), "stop: for_s 3601: must be above 0, at most 3600 seconds"),
        (ProcessFault("stop", pid=40, for_s=float("nan")), "stop: for_s nan: must be above 0, at most 3600 seconds"),
        (ProcessFault("slow", pid=40, share=float("nan")), "slow: share nan: must be a number"),
        (ProcessFault("stop", pid=40, share=0.5), "stop: share does not belong to it; leave it out"),
    ],
)
def test_fields_that_are_refused(fault: ProcessFault, text: str) -> None:
    with pytest.raises(ProcessFaultError) as raised:
        checked(fault, KINDS)
    assert str(raised.value) == text


def test_requests_survive_the_way() -> None:
    for request in (Begin(1, 2, ProcessFault("slow", pid=40, share=0.5)), End(3, 2), Look(4)):
        assert REQUESTS.decode(encode(request)) == request
    with pytest.raises(msgspec.ValidationError):
        REQUESTS.decode(b'{"type": "begin", "call": 1, "number": 2, "fault": {"kind": "stop", "wrong": 1}}')


def test_every_kind_says_what_becomes_of_the_process() -> None:
    acts: list[Act] = list(KINDS.values())
    assert all(act.UNDONE and act.SUBJECT for act in acts)
