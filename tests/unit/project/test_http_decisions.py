"""docs/http.md says what warmroute does wherever the standard leaves a choice."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_case_that_leaves_a_choice_is_decided_once() -> None:
    corpus = (ROOT / "tests" / "conformance" / "smuggle" / "corpus.jsonl").read_text(encoding="utf-8")
    open_cases = {case["id"] for case in map(json.loads, corpus.splitlines()) if case["level"] != "MUST"}
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9, -]+) \| .+ \| .+ \|$", page.partition("leaves a choice")[2], re.MULTILINE)
    named = [case for row in rows if row != "case" for case in row.split(", ") if not case.startswith("-")]
    assert sorted(named) == sorted(open_cases)
