"""Messages between processes: what is large is told in parts that fit, and nothing of it is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from router.model import (
    WHOLE,
    BreakerRule,
    EjectCause,
    EndpointEjected,
    Evidence,
    LoadReport,
    ModelObservation,
    Observation,
)
from sidecar.channel import BATCH, GUARDS, MAX_MESSAGE_BYTES, encode, guard_messages, observation_messages


def seen(model: str, buckets: int, count: int = 1) -> ModelObservation:
    pairs = tuple((index - buckets // 2, count) for index in range(buckets))
    return ModelObservation(model, "v" * 40, 12.5, pairs, buckets * count, 3, 2, 3, 4, WHOLE, 5)


@pytest.mark.parametrize(
    ("endpoints", "models", "buckets", "count"),
    [
        (0, 0, 0, 0),
        (1, 1, 1, 1),
        (1000, 1, 10, 1),
        (70, 20, 200, 2**31),
        (1, 4096, 30, 1),
        (1, 1, 20_000, 2**40),
        (3, 3, 3000, 1 << 50),
    ],
)
def test_observations_of_any_size_fit(endpoints: int, models: int, buckets: int, count: int) -> None:
    report = LoadReport(0.5, 3, 0.25)
    given = tuple(
        Observation(
            "é" * 124 + f"{number:04}", number, tuple(seen(f"m{m}", buckets, count) for m in range(models)), report
        )
        for number in range(endpoints)
    )
    messages = list(observation_messages(3, given, 7.0))
    assert messages
    told: dict[tuple[str, str], Counter[int]] = {}
    totals: Counter[str] = Counter()
    in_flight: dict[str, set[int]] = {}
    reports: Counter[str] = Counter()
    for message in messages:
        assert (message.source, message.at) == (3, 7.0)
        assert len(encode(message)) <= MAX_MESSAGE_BYTES
        assert len(message.observations) <= BATCH
        for one in message.observations:
            in_flight.setdefault(one.id, set()).add(one.in_flight)
            reports[one.id] += one.report is not None
            for each in one.seen:
                told.setdefault((one.id, each.model), Counter()).update(dict(each.buckets))
                totals["good"] += each.successes
                totals["bad"] += each.failures
                totals["rest"] += each.unanswered + each.slow + each.others + each.overdue + each.failed_calls
    assert in_flight == {one.id: {one.in_flight} for one in given}
    assert all(reports[one.id] >= 1 for one in given)
    assert told == {(one.id, each.model): Counter(dict(each.buckets)) for one in given for each in one.seen}
    assert totals["good"] == sum(each.successes for one in given for each in one.seen)
    assert totals["rest"] == 14 * sum(len(one.seen) for one in given), "told once, in however many parts"
    assert totals["bad"] == sum(each.failures for one in given for each in one.seen)


FULL = Evidence(1 << 40, 1 << 40, 1 << 40, 1 << 40, True, 1.5, 2.5, 3.5, 0.5)


def test_guards_of_the_longest_names_fit() -> None:
    events = tuple(
        EndpointEjected(
            "é" * 128,
            EjectCause.BREAKER,
            1.0,
            1,
            1.0,
            "é" * 256,
            "é" * 256,
            BreakerRule.UNAVAILABLE,
            FULL,
            trials=10,
            tried=FULL,
        )
        for _ in range(BATCH + 1)
    )
    messages = list(guard_messages(events))
    assert [len(message.ejected) for message in messages] == [GUARDS, GUARDS, 1]
    assert [(message.first, message.last) for message in messages] == [(True, False), (False, False), (False, True)]
    assert all(len(encode(message)) <= MAX_MESSAGE_BYTES for message in messages)
