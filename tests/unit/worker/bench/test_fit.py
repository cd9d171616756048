"""The fit of the baseline: it finds a law that runs follow, says how far it errs, and is refused under 30 runs."""

from __future__ import annotations

import json
import random
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from router.baseline_load import PRIOR, StartFeatures
from worker.baseline import read_baseline
from worker.bench.__main__ import main
from worker.bench.contenders import DEFAULT
from worker.bench.fit import FitError, describe, fit
from worker.bench.runs import Run, RunsError, append_runs, read_runs

# asked for, not imported: that would take a second of each process that collects
missing = find_spec("sklearn") is None
pytestmark = pytest.mark.skipif(missing, reason="scikit-learn is not in this environment; make dev")


def runs(count: int, noise_s: float = 0.01, **fixed: float) -> list[Run]:
    """Runs that follow the published law, with an accelerator 0.5 s slower and a full page cache 0.2 s quicker."""
    rng = random.Random(7)
    found = []
    for _ in range(count):
        values: dict[str, Any] = {
            "parameters_billions": rng.uniform(0.1, 5),
            "saved_percent": rng.uniform(30, 95),
            "free_memory_gb": rng.uniform(2, 24),
            "accelerator": rng.random() < 0.5,
            "cached_ratio": rng.choice((0.0, 1.0)),
            **fixed,
        }
        known = StartFeatures(**values)
        law_s = PRIOR.predict_s(known) + 1 + 0.5 * known.accelerator - 0.2 * known.cached_ratio
        found.append(Run(DEFAULT, seconds=law_s + rng.gauss(0, noise_s), **values))
    return found


def test_it_finds_the_published_law_again() -> None:
    found = fit(runs(60))
    baseline = found.baseline
    for mine, published in (
        (baseline.parameters, PRIOR.parameters),
        (baseline.saved, PRIOR.saved),
        (baseline.memory, PRIOR.memory),
    ):
        assert (mine.low, mine.high) == (published.low, published.high)
        assert mine.coefficient == pytest.approx(published.coefficient, abs=0.03)
    assert baseline.intercept_s == pytest.approx(1.69, abs=0.03)
    assert baseline.accelerator_s == pytest.approx(0.5, abs=0.03)
    assert baseline.cached_s == pytest.approx(-0.2, abs=0.03)
    assert (found.runs, found.held_out, baseline.runs) == (60, 15, 60)
    assert found.error_s < 0.02 < 0.1 < found.published_error_s
    assert baseline.band_s is not None
    assert -0.1 < baseline.band_s[0] < 0 < baseline.band_s[1] < 0.1


def test_a_law_of_its_own_is_found_too() -> None:
    own = [
        Run(one.row, one.parameters_billions, one.saved_percent, one.free_memory_gb, False, one.cached_ratio, seconds)
        for one in runs(48)
        for seconds in [0.9 + 2 * one.parameters_billions - 0.1 * one.cached_ratio]
    ]
    baseline = fit(own).baseline
    assert baseline.parameters.coefficient == pytest.approx(2 * 4.9, rel=0.02)
    assert baseline.saved.coefficient == pytest.approx(0, abs=0.05)
    assert baseline.memory.coefficient == pytest.approx(0, abs=0.05)


def test_what_runs_say_nothing_of_keeps_what_is_published() -> None:
    baseline = fit(runs(40, free_memory_gb=12.0, saved_percent=50.0)).baseline
    assert baseline.memory == PRIOR.memory
    assert baseline.saved == PRIOR.saved


def test_a_range_is_widened_to_the_runs_and_costs_the_same_from_one_value_to_another() -> None:
    baseline = fit(runs(40, free_memory_gb=46.0, saved_percent=0.0)).baseline
    assert (baseline.memory.low, baseline.memory.high) == (2, 46)
    assert baseline.memory.coefficient == pytest.approx(-0.28 * 2, abs=1e-5)
    assert (baseline.saved.low, baseline.saved.high) == (0, 95)
    assert baseline.saved.coefficient == pytest.approx(-0.41 * 95 / 65, abs=1e-5)


def test_runs_that_are_all_alike_give_their_mean() -> None:
    one = runs(1)[0]
    found = fit([one] * 30)
    assert found.baseline.predict_s(one.features) == pytest.approx(one.seconds, abs=1e-4)
    assert found.error_s < 1e-4


@pytest.mark.parametrize("count", [0, 29])
def test_a_fit_under_thirty_runs_is_refused(count: int) -> None:
    with pytest.raises(FitError, match=f"{count} runs: a fit needs 30"):
        fit(runs(count))


def test_what_is_printed_has_the_number_of_runs_and_the_held_out_error() -> None:
    text = describe(fit(runs(60)))
    assert "60 runs, 15 held out: error 0.0" in text
    assert "0.62 over 0.1 to 5" in text
    assert "-0.41 over 30 to 95" in text
    assert "-0.28 over 2 to 24" in text
    assert "band: -0.0" in text


def test_the_command_fits_to_a_file_and_writes_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "runs.jsonl", tmp_path / "baseline.json"
    arguments = ["coldstart", "--fit", "--runs", str(path), "--baseline", str(out)]
    append_runs(path, runs(20))
    others = [Run("zygote", 1, 30, 2, False, 0, 99.0)] * 40
    append_runs(path, others)
    assert main(arguments) == 1
    assert "20 runs: a fit needs 30" in capsys.readouterr().err
    assert not out.exists()
    append_runs(path, runs(20))
    assert main(arguments) == 0
    assert "40 runs, 10 held out" in capsys.readouterr().out
    baseline = read_baseline(out)
    assert baseline.runs == 40
    assert baseline.band_s is not None
    assert baseline.predict_s(StartFeatures(1, 30, 2)) < 5, "runs of other rows are left out"


def test_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_runs(path, runs(2))
    append_runs(path, runs(1))
    assert read_runs(path) == [*runs(2), *runs(1)]


@pytest.mark.parametrize("line", ["{", "{}", json.dumps({"row": 1})])
def test_a_line_that_is_no_run_is_told(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_runs(path, runs(1))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunsError, match=rf"{path}:2: .*; take that line out"):
        read_runs(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", "0"),
        ("seconds", "-1"),
        ("seconds", "1e308"),
        ("seconds", "1e999"),
        ("seconds", "NaN"),
        ("seconds", ""),
        ("parameters_billions", "-1"),
        ("parameters_billions", "1e308"),
        ("saved_percent", "101"),
        ("free_memory_gb", "1e308"),
        ("cached_ratio", "-0.1"),
    ],
)
def test_a_number_that_no_start_has_is_told(
    field: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    append_runs(path, runs(40))
    lines = path.read_text().splitlines()
    lines[7] = re.sub(rf'"{field}":[^,}}]*', f'"{field}":{value}', lines[7])
    path.write_text("\n".join(lines))
    assert main(["coldstart", "--fit", "--runs", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}:8: ")
    assert said.endswith("; take that line out\n")


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["coldstart"]) == 2
    assert "MODEL: name the directory" in capsys.readouterr().err
    assert main(["coldstart", "--fit"]) == 2
    assert "--fit: needs --runs FILE" in capsys.readouterr().err
    assert main(["coldstart", "--fit", "--runs", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
