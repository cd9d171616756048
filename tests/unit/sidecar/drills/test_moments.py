"""When something was noticed, taken out, let in again, and when callers were well again."""

from __future__ import annotations

import pytest

from sidecar.drills.moments import detect_s, eject_s, recover_s, return_s
from sidecar.drills.record import Call, FaultSpan, Look, Record, Seen

FAULT = FaultSpan("f", "delay", "a", 10.0, 20.0)


def looks(*seen: tuple[float, Seen | None]) -> Record:
    return Record(40, looks=tuple(Look(at, {} if one is None else {"a": one}) for at, one in seen), faults=(FAULT,))


@pytest.mark.parametrize(
    ("seen", "detected", "ejected"),
    [
        ((10.5, Seen(share=0.5)), None, None),
        ((10.5, Seen(share=0.2)), 0.5, None),  # half of what it had
        ((10.5, Seen(share=0.5, breaker="half_open")), 0.5, None),
        ((11.0, Seen(out="breaker_open", breaker="open")), 1.0, 1.0),
        ((11.0, Seen(out="quarantined")), 1.0, 1.0),
        ((12.0, None), 2.0, 2.0),  # gone altogether
    ],
)
def test_what_counts_as_noticed_and_as_taken_out(
    seen: tuple[float, Seen | None], detected: float | None, ejected: float | None
) -> None:
    record = looks((2.0, Seen(out="not_warm")), (8.0, Seen(share=0.5)), (9.0, Seen(share=0.5)), seen)
    assert detect_s(record, FAULT, "a") == detected
    assert eject_s(record, FAULT, "a") == ejected


def test_it_returned_when_it_was_picked_again_after_the_fault() -> None:
    out = Seen(out="breaker_open", breaker="open")
    record = looks((11, out), (15, Seen()), (20.1, out), (24, Seen(breaker="half_open")), (30, Seen()))
    assert return_s(record, FAULT, "a") == 4
    assert return_s(looks((20.1, Seen())), FAULT, "a") == 0
    assert return_s(looks((20.1, out), (39, out)), FAULT, "a") is None


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
