from __future__ import annotations

import os

import pytest

from tools.bench import procfs
from tools.bench.choice import Choice
from tools.bench.load import Sample
from tools.bench.report import Report, print_report


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


def report(choose_us: float = 1.0, **cpu_us: list[float]) -> Report:
    rounds = {name.replace("_", "-"): [sample(cpu) for cpu in of_one] for name, of_one in cpu_us.items()}
    return Report.of(rounds, dict.fromkeys(rounds, "1"), [Choice(2, choose_us, 2 * choose_us)])


def test_ratios_are_taken_round_by_round() -> None:
    # the machine got twice as slow in the second round: the ratio did not move
    spread = report(warmroute=[15, 30, 16], nginx=[10, 20, 10]).ratios["warmroute"]["nginx"]
    assert (spread.least, spread.median, spread.most) == (1.5, 1.5, 1.6)


def test_each_build_is_compared_with_the_others_and_the_compiled_one_with_the_interpreted() -> None:
    ratios = report(nginx=[10], envoy=[30], warmroute=[16], warmroute_compiled=[12]).ratios
    medians = {ours: {name: round(one.median, 3) for name, one in spreads.items()} for ours, spreads in ratios.items()}
    assert medians == {
        "warmroute": {"nginx": 1.6, "envoy": 0.533},
        "warmroute-compiled": {"nginx": 1.2, "envoy": 0.4, "warmroute": 0.75},
    }


def test_rows_are_medians_over_the_rounds() -> None:
    nginx, ours = report(nginx=[10, 20, 12], warmroute=[15, 30, 16]).rows
    assert (nginx.cpu_us.median, ours.cpu_us.median) == (12, 16)
    assert (ours.requests_per_s, ours.pss_mb) == (500, 5)


def test_a_broken_bound_is_named() -> None:
    assert report(warmroute=[18], nginx=[10], envoy=[10]).over == ()
    assert report(warmroute=[19], nginx=[10]).over == ("warmroute: CPU per request 1.90 x nginx, at most 1.8",)
    assert report(warmroute_compiled=[13], nginx=[10], envoy=[29]).over == ()
    assert report(warmroute_compiled=[14], nginx=[10], envoy=[28]).over == (
        "warmroute-compiled: CPU per request 1.40 x nginx, at most 1.3",
        "warmroute-compiled: CPU per request 0.50 x envoy, at most 0.45",
    )
    broken = report(choose_us=5.5, warmroute=[10], nginx=[10])
    assert broken.over == ("one choice of 2 endpoints 5.50 µs, at most 5.0",)


def test_the_table_says_ratio_and_bound(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report(nginx=[10], warmroute=[16], warmroute_compiled=[12]))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "nginx 1" in line]
    assert "1.60 (1.60..1.60) x <= 1.8" in row
    assert "1.20 (1.20..1.20) x <= 1.3" in row


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
