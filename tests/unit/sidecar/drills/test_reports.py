"""What a drill leaves to read: JSON, JUnit XML, one HTML page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from sidecar.drills.drawing import runs, state_of
from sidecar.drills.reading import parse_drill
from sidecar.drills.record import Accounts, Call, Check, FaultSpan, Look, Record, Scrape, Seen, Share, Span
from sidecar.drills.reports import Outcome, as_html, as_json, as_junit, summary, write
from sidecar.drills.verdict import judge

DRILL = parse_drill(
    b"""\
version: 1
name: one
title: One & <only>
phases:
  - {name: load, load: {path: /x, rate_per_s: 10}}
  - {name: f, fault: {id: slow, kind: delay, delay_ms: 1, endpoint: a, for_s: 5}}
objectives:
  - {measure: error_ratio, at_most: 0.5}
  - {measure: p95_ms, at_most: 1}
""",
    "one.yaml",
)
RECORD = Record(
    length_s=10,
    spans=(Span("load", "load", 0, 0), Span("<f>", "fault", 2, 7)),
    faults=(FaultSpan("slow", "delay", "a", 2, 7, "delay, endpoint a"),),
    calls=tuple(Call(n / 10, 20.0, n % 10 > 0, "ok" if n % 10 else "http_503") for n in range(100)),
    looks=tuple(Look(n, {"a": Seen("breaker_open" if 3 <= n < 6 else "")}, {"m": Share()}) for n in range(10)),
    scrapes=tuple(Scrape(at, {"ok": 10 * at}, injected=count) for at, count in ((0, 5), (4, 27), (5, 0), (10, 3))),
    checks=(Check("later", "a is out\x07 within 1 s", False, 1.0, "a is picked"),),
    accounts=Accounts(sent=100),
)
OUTCOME = Outcome(DRILL, RECORD, judge(DRILL, RECORD), "2026-01-02T03:04:05+00:00", file="one.yaml")


def test_json_has_everything_but_single_requests() -> None:
    document = json.loads(as_json(OUTCOME))
    assert document["passed"] is False
    assert [one["passed"] for one in document["objectives"]] == [True, False]
    assert document["figures"]["requests"] == 100
    assert document["outcomes"] == {"ok": 90, "http_503": 10}
    assert document["faults_injected"] == 25
    assert [second["errors"] for second in document["timeline"]] == [1] * 10
    assert document["faults"][0]["begin"] == 2


def test_junit_has_a_case_for_each_question_and_says_what_failed() -> None:
    suite = ElementTree.fromstring(as_junit(OUTCOME)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["p95_ms at most 1 ms", "later: a is out within 1 s"]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "2")
    assert suite.get("timestamp") == OUTCOME.started


def test_junit_is_xml_whatever_a_text_holds() -> None:
    unfit = "".join(map(chr, [0, 8, 11, 27, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF]))
    outcome = replace(OUTCOME, drill=msgspec.structs.replace(OUTCOME.drill, name=f"a{unfit}b\U0001f525\ufffd"))
    names = [str(one.get("name")) for one in ElementTree.fromstring(as_junit(outcome)).iter("testsuite")]
    assert names == ["drill.ab\U0001f525\ufffd"]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "line", "rect", "polyline"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def test_html_is_one_page_that_loads_nothing() -> None:
    text = as_html(OUTCOME).decode()
    page = Page(text)
    assert page.open == []
    assert page.tags.count("svg") == 1
    assert page.tags.count("polyline") >= 4  # P50, P95, P99, the share of a
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in {"src", "href"} or "url(" in (value or "")]
    assert ("class", "fault") in page.attributes
    assert "One &amp; &lt;only&gt;" in text
    assert "a breaker_open 3.0 to 6.0 s" in text
    for name in ("P50", "P95", "P99", "answered", "failed", "a"):  # the lines are named without pointing at them
        assert re.search(f'<text class="small key"[^>]*>{name}</text>', text), name


def test_a_drill_in_which_nothing_was_seen_has_reports_too() -> None:
    empty = replace(OUTCOME, record=Record(length_s=0, cut_short="interrupted"))
    empty = replace(empty, verdict=judge(DRILL, empty.record))
    assert Page(as_html(empty).decode()).open == []
    assert json.loads(as_json(empty))["cut_short"] == "interrupted"
    assert "cut short: interrupted" in "\n".join(summary(empty))


def test_reports_have_the_drills_name_and_variant(tmp_path: Path) -> None:
    made = write(replace(OUTCOME, variant="without cache"), tmp_path / "new")
    assert sorted(path.name for path in made) == [f"one-without-cache.{kind}" for kind in ("html", "json", "xml")]
    assert all(path.stat().st_size for path in made)


def test_the_end_on_a_terminal() -> None:
    lines = list(summary(OUTCOME))
    assert lines[0] == "  ok     error_ratio at most 50%: 10%"
    assert lines[-2:] == ["  100 requests, 10 failed, 0 answered degraded, 25 met a fault", "FAILED one"]


def test_stretches_and_states() -> None:
    assert runs([(0, "a"), (1, "a"), (2, "b"), (3, "a")], 9) == [(0, 2, "a"), (2, 3, "b"), (3, 9, "a")]
    assert runs([], 9) == []
    seen = (None, Seen(), Seen(breaker="half_open"), Seen("breaker_open", "open"), Seen("stale"))
    assert [state_of(one) for one in seen] == ["gone", "picked", "half_open", "breaker_open", "other"]
