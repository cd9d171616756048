"""The example of docs/drills.md can be used as it is written."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.drills.reading import load_drill, parse_drill

ROOT = Path(__file__).parents[4]


def test_the_example_of_the_page_can_be_used_and_asks_as_a_drill_does_that_is_run() -> None:
    page = (ROOT / "docs" / "drills.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(version: 1\n.*?)```", page, re.DOTALL)
    drill = parse_drill(example.encode(), "drills.md")
    shipped = load_drill(ROOT / "deploy" / "drills" / "latency-surge.yaml")
    (asks,) = [phase.load for phase in drill.phases if phase.load]
    (asked,) = [phase.load for phase in shipped.phases if phase.load]
    assert (asks.path, asks.method, asks.headers, asks.body) == (asked.path, asked.method, asked.headers, asked.body)
