"""No message with two readings passes: raw HTTP/1.1 cases against a real sidecar with a recording origin behind it.

The harness under ``smuggle/`` judges from the bytes that its origin received. MUST cases may not fail; what warmroute
decides in the cases that leave a choice (SHOULD, POLICY) stands in docs/http.md. ``own_corpus.jsonl`` has cases of our
own in the same form, those that fuzzing found among them; each must pass without a remark, with the status it names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sidecar_process import free_port, sidecar_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[..., list[dict[str, Any]]]

HARNESS = Path(__file__).with_name("smuggle")
OWN = Path(__file__).with_name("own_corpus.jsonl")
DECISIONS = Path(__file__).resolve().parents[2] / "docs" / "http.md"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in map(json.loads, (HARNESS / "corpus.jsonl").read_text().splitlines())
}
QUICK = [name for name, case in CASES.items() if case["kind"] != "slow"]
LARGE = {name for name, case in CASES.items() if sum(len(part["data"]) for part in case["segments"]) > 16 << 10}
"""In pieces of 5 bytes these few would be most of all pieces, to reach a limit: they come in pieces of 512."""
PARTS = 3

pytestmark = pytest.mark.timeout(420)


@contextmanager
def judging(directory: Path, timeouts: dict[str, float] | None = None) -> Iterator[Judge]:
    """Run a sidecar; yield what runs the harness against it and returns its verdict on each case."""
    origin, results = free_port(), directory / "results.json"
    settings = {
        "models": [{"name": "default", "default": True, "endpoints": [f"http://127.0.0.1:{origin}"]}],
        # a broken answer is the case's own doing: the next case must find the origin in
        "policies": {"quarantine": {"base_s": 0.001, "max_s": 0.001}, "breaker": {"minimum_calls": 1_000_000}},
        "timeouts": {"drain_s": 1, **(timeouts or {})},
    }
    with sidecar_process(directory, settings) as sidecar:

        def judge(*options: str) -> list[dict[str, Any]]:
            argv = [sys.executable, str(HARNESS / "smuggle_check.py"), "--target", sidecar.listen]
            argv += ["--origin", f"127.0.0.1:{origin}", "--json", str(results), *options]
            results.unlink(missing_ok=True)
            done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
            assert results.exists(), f"no verdicts: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            verdicts: list[dict[str, Any]] = json.loads(results.read_text())
            return verdicts

        yield judge
        assert sidecar.stop() == 0


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Yield what has ``names`` judged in parts side by side, as most of a case's time is waiting, and remembers.

    So each way to run the harness is run once, on the same sidecars, whatever the order of the tests.
    """
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    with ExitStack() as stack, ThreadPoolExecutor(PARTS) as pool:
        judges = [stack.enter_context(judging(tmp_path_factory.mktemp("smuggle"))) for _ in range(PARTS)]

        def once(*options: str, names: list[str] = QUICK) -> list[dict[str, Any]]:
            if options not in known:
                parts = [",".join(names[number::PARTS]) for number in range(PARTS)]
                judged = pool.map(lambda judge, part: judge(*options, "--only", part), judges, parts)
                rows = {row["id"]: row for part in judged for row in part}
                known[options] = [rows[name] for name in names if name in rows]
            return known[options]

        yield once


def failed(verdicts: list[dict[str, Any]], *levels: str) -> list[str]:
    """Return the failed cases of ``levels``, each with what was found."""
    return [
        f"{row['id']} ({row['level']}): {'; '.join(row['fail'])}"
        for row in verdicts
        if row["verdict"] == "FAIL" and row["level"] in levels
    ]


def test_no_must_case_fails(verdicts: Judge) -> None:
    rows = verdicts()
    assert [row["id"] for row in rows] == QUICK
    assert failed(rows, "MUST") == []


def test_nor_does_one_in_pieces_of_5_bytes(verdicts: Judge) -> None:
    assert 3 <= len(LARGE) <= 8
    for piece_bytes, names in (
        ("5", [name for name in QUICK if name not in LARGE]),
        ("512", [name for name in QUICK if name in LARGE]),
    ):
        rows = verdicts("--fragment", piece_bytes, names=names)
        assert [row["id"] for row in rows] == names
        assert failed(rows, "MUST") == []


def test_where_there_is_a_choice_it_is_the_documented_one(verdicts: Judge) -> None:
    rows = {row["id"]: row for row in verdicts()}
    assert failed(list(rows.values()), "SHOULD", "POLICY") == []
    wrong = []
    for case, here in decisions().items():
        refused = re.match(r"\d{3}", here)
        if case not in rows or CASES[case]["kind"] == "abort":
            continue
        first = rows[case]["statuses"][0]
        if first != int(refused[0]) if refused else CASES[case]["kind"] == "request" and first != 200:
            wrong.append(f"{case}: {first}, documented: {here}")
    assert wrong == []


def decisions() -> dict[str, str]:
    """Return what docs/http.md says of each case that leaves a choice."""
    page = DECISIONS.read_text(encoding="utf-8").partition("leaves a choice")[2]
    rows = re.findall(r"^\| ([a-z0-9, -]+) \| (.+) \| .+ \|$", page, re.MULTILINE)
    return {case: here for cases, here in rows for case in cases.split(", ")}


def test_our_own_cases_pass_without_a_remark(verdicts: Judge) -> None:
    names = [json.loads(line)["id"] for line in OWN.read_text(encoding="utf-8").splitlines()]
    rows = verdicts("--corpus", str(OWN), "--settle", "0.01", names=names)
    assert [row["id"] for row in rows] == names
    assert len(set(names)) == len(names)
    assert [(row["id"], row["statuses"], row["fail"], row["warn"]) for row in rows if row["verdict"] != "PASS"] == []


@pytest.mark.acceptance
@pytest.mark.roomy  # what it counts is seconds
def test_slow_clients_are_cut(tmp_path: Path) -> None:
    timeouts = {"client_head_s": 2.0, "client_body_idle_s": 2.0, "keep_alive_s": 3.0}
    with judging(tmp_path, timeouts) as judge:
        verdicts = judge("--slow", "--only", "slow", "--slow-limit", "15")
    assert {row["id"] for row in verdicts} == {name for name, case in CASES.items() if case["kind"] == "slow"}
    assert failed(verdicts, "MUST", "SHOULD", "POLICY") == []
