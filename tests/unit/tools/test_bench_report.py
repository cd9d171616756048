from __future__ import annotations

import os

import pytest

from tools.bench import procfs
from tools.bench.choice import Choice
from tools.bench.load import Sample
from tools.bench.report import Report


def sample(cpu_us: float) -> Sample:
    return Sample(
        requests=1000,
        seconds=2,
        cpu_us_per_request=cpu_us,
        cpu_ratio=0.5,
        p50_ms=1,
        p99_ms=2,
        pss_bytes=5_000_000,
        by_process={},
    )


def report(ours: list[float], nginx: list[float], choose_us: float = 1.0) -> Report:
    rounds = {"nginx": [sample(cpu) for cpu in nginx], "warmroute": [sample(cpu) for cpu in ours]}
    return Report.of(rounds, {"nginx": "1", "warmroute": "2"}, [Choice(2, choose_us, 2 * choose_us)])


def test_ratios_are_taken_round_by_round() -> None:
    # the machine got twice as slow in the second round: the ratio did not move
    spread = report([15, 30, 16], [10, 20, 10]).ratios["nginx"]
    assert (spread.least, spread.median, spread.most) == (1.5, 1.5, 1.6)


def test_rows_are_medians_over_the_rounds() -> None:
    nginx, ours = report([15, 30, 16], [10, 20, 12]).rows
    assert (nginx.cpu_us.median, ours.cpu_us.median) == (12, 16)
    assert (ours.requests_per_s, ours.pss_mb) == (500, 5)


def test_a_broken_bound_is_named() -> None:
    assert report([18], [10]).over == ()
    assert report([19], [10]).over == ("CPU per request 1.90 x nginx, at most 1.8",)
    assert report([10], [10], choose_us=5.5).over == ("one choice of 2 endpoints 5.50 µs, at most 5.0",)


def test_without_warmroute_there_is_nothing_to_compare() -> None:
    assert Report.of({"nginx": [sample(1)]}, {"nginx": "1"}, []).ratios == {}


def test_a_process_tree_is_read_from_proc() -> None:
    own = os.getpid()
    assert own in procfs.tree(os.getppid())
    assert procfs.cpu_s(own) > 0
    assert procfs.pss_bytes(own) > 1_000_000
    assert "pytest" in procfs.command(own) or "python" in procfs.command(own)


@pytest.mark.parametrize("read", [procfs.cpu_s, procfs.pss_bytes])
def test_a_process_that_is_gone_costs_nothing(read: object) -> None:
    assert callable(read)
    assert read(2**22 + 1) == 0  # over the kernel's largest pid
