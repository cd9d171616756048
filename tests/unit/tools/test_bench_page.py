from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from tests.unit.tools.test_bench_results import SAMPLE, run_of
from tools.bench import page
from tools.bench.choice import Choice
from tools.bench.contenders import COMPILED, DIRECT, OURS
from tools.bench.explain import Explanation
from tools.bench.memory import Memory
from tools.bench.plots import Group, bars
from tools.bench.report import print_report
from tools.bench.results import Run


def test_the_committed_page_and_plots_are_those_of_the_committed_results() -> None:
    run = Run.from_json((page.FOLDER / "results.json").read_bytes())
    text = (page.FOLDER / "README.md").read_text(encoding="utf-8")
    assert page.replaced(text, run) == text, "stale: python -m tools.bench --render"
    for name, drawn in page.drawn(run).items():
        assert (page.FOLDER / name).read_text(encoding="utf-8") == drawn, f"{name} is stale"


def test_a_miss_is_marked_and_explained_beside_its_table() -> None:
    run = run_of("post", nginx=[10], warmroute=[18], warmroute_compiled=[12])
    run.explained = {
        "post": {
            "nginx": Explanation({"kernel: writing": 0.5, "libc": 0.1}),
            OURS: Explanation({"the interpreter": 0.6, "kernel: writing": 0.3}, {"data_received (caller.py)": 0.2}),
        }
    }
    text = page.rendered(run)
    assert "| CPU per 1 KB POST | ≤ 1.5 × nginx; compiled ≤ 1.3 × nginx | **1.80 × ✗ missed** | 1.20 × ✓ |" in text
    assert "Missed: interpreted ≤ 1.5 × nginx.\n\n**Where the time goes**" in text
    assert "| part | nginx | warmroute |" in text
    assert "| the interpreter |  | 5.4 |" in text
    assert "| kernel: writing | 4.5 | 2.7 |" in text  # nine of a sample's ten µs are the serving process's
    assert "| in all | 9.0 | 9.0 |" in text
    assert "| data_received (caller.py) | 20% | 1.8 |" in text


def test_what_is_missing_is_said() -> None:
    run = run_of("post", nginx=[10], warmroute=[18])
    run.skipped = {"haproxy": "haproxy is not installed"}
    run.explained = {"post": {OURS: Explanation(missing=["perf is not installed"])}}
    text = page.rendered(run)
    assert "Not measured: haproxy (haproxy is not installed)." in text
    assert "Not sampled further: perf is not installed." in text


def test_latency_is_shown_less_what_it_is_without_a_proxy() -> None:
    run = Run({}, rounds=1, seconds=1.0)
    run.samples["rate"] = {DIRECT: [replace(SAMPLE, cpu_us=0.0)], OURS: [replace(SAMPLE, p50_us=170, p99_us=450)]}
    text = page.rendered(run)
    assert "| no proxy |  |  | (100.0 in all) | (300.0 in all) |" in text
    assert "| warmroute | 10.00 |  | 70.0 | 150.0 |" in text


def test_memory_over_its_bound_is_taken_apart() -> None:
    run = Run({}, rounds=1, seconds=1.0)
    run.memory = {
        OURS: Memory(30_000_000, 1, 1, 1000, {"uvloop": 1}),
        COMPILED: Memory(50_000_000, 90_000_000, 1, 1000, {"heap and stacks": 40_000_000, "uvloop": 5_000_000}),
    }
    run.choices = [Choice(2, 1.0, 2.0)]
    text = page.rendered(run)
    assert "What the idle data process of the compiled build is:" in text
    assert "the interpreted build is:" not in text
    assert "| heap and stacks | 40.0 |" in text
    assert "| 2 | 1.00 | 2.00 |" in text


def test_the_page_is_replaced_between_its_marks_only() -> None:
    run = run_of("get", nginx=[10], warmroute=[12])
    text = page.replaced(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", run)
    assert text.startswith(f"before\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text
    assert page.replaced(text, run) == text
    with pytest.raises(ValueError, match="the page needs the lines"):
        page.replaced("no marks", run)


def test_plots_are_drawn_of_what_there_is() -> None:
    assert page.drawn(Run({}, rounds=1, seconds=1.0)) == {}
    drawn = page.drawn(run_of("post", nginx=[10], warmroute=[15]))
    assert set(drawn) == {"cpu.svg", "others.svg"}
    assert "15.0 µs, 1.50 × nginx" in drawn["cpu.svg"]


def test_bars_share_one_scale() -> None:
    text = bars("t", [Group("a", [("nginx", 10.0, "10"), ("warmroute", 20.0, "20")]), Group("empty", [])])
    widths = [
        int(rect.attrib["width"])
        for rect in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")
        if "height" in rect.attrib and rect.attrib.get("rx") == "2"
    ]
    assert widths[1] == pytest.approx(2 * widths[0], abs=1)
    assert "empty" not in text


def test_the_terminal_says_ratio_and_bound(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("post", nginx=[10], warmroute=[16])
    run.memory = {OURS: Memory(30_000_000, 80_000_000, 2_000_000, 1000)}
    print_report(run)
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "nginx 1.22.1" in line]
    assert "1.60 ×" in row
    (verdict,) = [line for line in lines if "≤ 1.5 × nginx" in line]
    assert "1.60 × ✗ missed" in verdict
    assert any("30.0 MB ✓" in line for line in lines)


def test_events_that_came_together_are_told() -> None:
    run = Run({}, rounds=1, seconds=1.0)
    run.samples["sse"] = {DIRECT: [replace(SAMPLE, cpu_us=0.0)], OURS: [replace(SAMPLE, units_per_read=1.25)]}
    text = page.rendered(run)
    assert "| added p50 µs | added p99 µs | events/read |" in text
    assert "| 0.0 | 0.0 | 1.25 |" in text


def test_calls_are_counted_as_calls() -> None:
    assert "| proxy | CPU µs/call | warmroute is | calls/s on one core |" in page.rendered(
        run_of("grpc", warmroute=[50])
    )
