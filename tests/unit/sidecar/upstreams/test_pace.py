from __future__ import annotations

from sidecar.upstreams.pace import BURST_S, Pace


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    pace = Pace(10.0)
    assert [pace.book(1, 100.0) for _ in range(10)] == [0.0] * 10
    assert [round(pace.book(1, 100.0), 6) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert pace.late == 2
    assert pace.book(1, 100.0 + BURST_S) == 0.0


def test_over_any_time_no_more_than_the_rate_and_one_burst_goes() -> None:
    pace = Pace(50.0)
    moments = sorted(step * 0.01 + pace.book(4, step * 0.01) for step in range(200))
    for start in (0, 20, 100):
        inside = [at for at in moments if moments[start] <= at < moments[start] + 1.0]
        assert 4 * len(inside) <= 50 * (1.0 + BURST_S) + 4


def test_another_rate_holds_from_the_next_on() -> None:
    pace = Pace(1.0)
    pace.book(2, 0.0)
    assert pace.book(1, 0.0) == 1.0
    pace.configure(1000.0)
    pace.book(1, 2.0)
    assert 0 < pace.book(1, 2.0) < 0.01


def test_those_who_hurry_have_what_is_left_over_half_of_the_burst() -> None:
    pace = Pace(10.0)
    assert pace.spare(0.0)
    pace.book(6, 0.0)
    assert not pace.spare(0.0)
    assert pace.spare(0.1)
