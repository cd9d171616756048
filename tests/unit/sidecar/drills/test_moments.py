"""When something was noticed, taken out, let in again, and when callers were well again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.drills.moments import detect_s, eject_s, recover_s, return_s
from sidecar.drills.record import Call, FaultSpan, Look, Record, Scrape, Seen

FAULT = FaultSpan("f", "delay", "a", 10.0, 20.0)


def looks(*seen: tuple[float, Seen | None]) -> Record:
    return Record(40, looks=tuple(Look(at, {} if one is None else {"a": one}) for at, one in seen), faults=(FAULT,))


WELL = Seen()
OUT = Seen(out="breaker_open", breaker="open")
HELD = Seen(out="held")
NEVER = "never"


@pytest.mark.parametrize(
    ("seen", "detected", "ejected"),
    [
        ((10.5, WELL), NEVER, NEVER),
        ((10.5, Seen(breaker="half_open")), 0.5, NEVER),
        ((11.0, OUT), 1.0, 1.0),
        ((11.0, Seen(out="quarantined")), 1.0, 1.0),
        ((12.0, None), 2.0, 2.0),  # gone altogether
        ((20.1, OUT), pytest.approx(10.1), pytest.approx(10.1)),  # the first look after the end
    ],
)
def test_what_counts_as_noticed_and_as_taken_out(
    seen: tuple[float, Seen | None], detected: float | str, ejected: float | str
) -> None:
    record = looks((2.0, Seen(out="not_warm")), (8.0, WELL), (9.0, WELL), seen)
    assert detect_s(record, FAULT, "a") == detected
    assert eject_s(record, FAULT, "a") == ejected


@pytest.mark.parametrize(
    "seen",
    [
        [(20.1, WELL), (20.2, OUT)],  # after the fault
        [(12.0, HELD), (14.0, WELL)],  # an operator's doing
        [(12.0, Seen(out="draining")), (13.0, None), (14.0, WELL)],  # and what follows from it
    ],
)
def test_what_is_not_of_the_fault_counts_for_nothing(seen: list[tuple[float, Seen | None]]) -> None:
    record = looks((9.0, WELL), *seen)
    assert detect_s(record, FAULT, "a") == NEVER
    assert eject_s(record, FAULT, "a") == NEVER
    assert return_s(record, FAULT, "a") == "cannot be measured: it was never ejected"


def picked(per_s: float, before: float, since: float, *seen: tuple[float, Seen]) -> Record:
    """Return what is seen where ``a`` had the share ``before`` and has ``since`` from the fault on."""
    scrapes, a, b = [], 0.0, 0.0
    for at in range(5, 31):
        scrapes.append(Scrape(float(at), {}, picks={"a": a, "b": b}))
        share = before if at < 10 else since
        a, b = a + share * per_s, b + (1 - share) * per_s
    return replace(looks((9.0, WELL), *seen), scrapes=tuple(scrapes))


@pytest.mark.parametrize(
    ("record", "detected"),
    [
        (picked(60, 0.5, 0.5), NEVER),
        (picked(60, 0.5, 0.3), NEVER),
        (picked(60, 0.5, 0.2), 1.0),
        (picked(20, 0.5, 0.2), 3.0),  # 60 attempts are needed to be sure
        (picked(5, 0.5, 0.0), NEVER),  # too few before to know what is usual
        (picked(60, 0.5, 0.0, *((10.1 + n / 10, HELD) for n in range(100))), NEVER),  # an operator's doing
        (picked(60, 0.5, 0.2, (10.5, OUT)), 0.5),
    ],
)
def test_half_of_what_was_picked_is_noticed(record: Record, detected: float | str) -> None:
    assert detect_s(record, FAULT, "a") == detected


def test_after_draining_it_is_ejected_as_before() -> None:
    assert eject_s(looks((9.0, WELL), (11, HELD), (12, WELL), (13, OUT)), FAULT, "a") == 3


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ([], "nothing was seen before the fault"),
        ([(9.9, HELD)], "it was out (held) before the fault"),
        ([(9.0, WELL), (9.9, OUT)], "it was out (breaker_open) before the fault"),
        ([(9.9, None)], "it was out (gone) before the fault"),
        ([(9.9, Seen(breaker="half_open"))], "its breaker was half_open before the fault"),
    ],
)
def test_nothing_can_be_measured_of_what_was_not_well_before(before: list[tuple[float, Seen | None]], why: str) -> None:
    record = looks(*before, (11, OUT), (21, WELL))
    for measure in (detect_s, eject_s, return_s):
        assert measure(record, FAULT, "a") == f"cannot be measured: {why}"


def test_it_returned_when_it_was_picked_again_after_the_fault() -> None:
    record = looks((9, WELL), (11, OUT), (15, Seen()), (20.1, OUT), (24, Seen(breaker="half_open")), (30, Seen()))
    assert return_s(record, FAULT, "a") == 4
    assert return_s(looks((9, WELL), (11, OUT), (15, WELL), (20.1, WELL)), FAULT, "a") == 0
    assert return_s(looks((9, WELL), (11, OUT), (20.1, OUT), (39, OUT)), FAULT, "a") == NEVER


def test_another_faults_phase_is_not_this_ones() -> None:
    record = looks((9, WELL), (11, OUT), (20.1, OUT), (30, OUT), (35, WELL))
    other = FaultSpan("g", "delay", "a", 25.0, 28.0)
    assert return_s(replace(record, faults=(FAULT, other)), FAULT, "a") == NEVER
    elsewhere = replace(other, endpoint="b")
    assert return_s(replace(record, faults=(FAULT, elsewhere)), FAULT, "a") == 15


def test_a_kill_has_ended_when_the_process_is_there_again() -> None:
    killed = FaultSpan("k", "kill", "a", 10.0, 40.0, there_again=12.0)
    record = looks((9, WELL), (12.5, OUT), (13, OUT), (15, WELL), (40, WELL))
    assert eject_s(record, killed, "a") == 2.5  # noticed only once it was there again
    assert return_s(record, killed, "a") == 3
    later = FaultSpan("l", "delay", "a", 14.0, 20.0)
    record = looks((9, WELL), (13, WELL), (14.5, WELL), (16, OUT))
    assert eject_s(replace(record, faults=(killed, later)), killed, "a") == NEVER


def traffic(*bad: int, last: int = 40, slow: tuple[int, ...] = ()) -> Record:
    calls = tuple(Call(s + 0.5, 500.0 if s in slow else 10.0, s not in bad, "") for s in range(last))
    return Record(last, calls=calls, faults=(FAULT,))


@pytest.mark.parametrize(
    ("record", "slow_ms", "expected"),
    [
        (traffic(), None, 0),
        (traffic(3), None, 0),  # before the fault
        (traffic(10, 11, 12), None, 3),
        (traffic(10, 14), None, 5),  # not for good before
        (traffic(slow=(10, 12)), None, 3),  # by what was usual before
        (traffic(slow=(10, 12)), 600.0, 0),
        (traffic(39), None, None),  # still not well at the end
        (traffic(last=8), None, None),  # nobody asked any more
    ],
)
def test_callers_are_well_again(record: Record, slow_ms: float | None, expected: float | None) -> None:
    assert recover_s(record, FAULT, slow_ms) == expected
