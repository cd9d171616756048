"""Attribution of files that grow: read across rotation, cuts and torn lines, joined, and added up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.traffic.attribution.attributing import Attribution
from sidecar.traffic.attribution.files import CallerLines
from sidecar.traffic.attribution.following import MOVED_S, PIECE_BYTES, Tail
from sidecar.traffic.attribution.joining import Half, Joined, Orphan, Side
from sidecar.traffic.attribution.tally import MAX_ROWS, OTHERS, UNNAMED, Tally
from sidecar.traffic.traces.trace import TraceError

BEGAN = "2026-11-30T00:00:00+00:00"
EPOCH_S = 1_795_996_800.0
OPENING = json.dumps({"warmroute_trace": 1, "began": BEGAN}) + "\n"


def caller(name: str, at_s: float, took_s: float = 0.1, ended: str = "ok", worker: str = "w0") -> str:
    line = {"at_s": at_s, "request_id": name, "took_s": took_s, "ended": ended, "worker": worker, "body": "x"}
    return json.dumps(line) + "\n"


def worker(name: str, at_s: float, seq: int, who: str = "w0", version: str = "1", **more: object) -> str:
    line = {"request_id": name, "at": EPOCH_S + at_s, "took_s": 0.05, "worker": who, "epoch": "e", "seq": seq}
    return json.dumps({**line, "model": "m", "version": version, "status": 200, **more}) + "\n"


def attribution(tmp_path: Path, *workers: str) -> Attribution:
    paths = [tmp_path / name for name in workers or ("workers",)]
    return Attribution(tmp_path / "callers", paths, lambda half: half.label, 0.05, 0.3, 30.0, 1000)


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_tail_reads_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert (tail.read(0.0), tail.missing) == ([], True)
    add(path, "one\ntw")
    assert (tail.read(0.0), tail.fresh, tail.missing) == ([(1, b"one")], True, False)
    add(path, "o\n\nfour\n")
    assert (tail.read(0.0), tail.fresh) == ([(2, b"two"), (3, b""), (4, b"four")], False)
    assert tail.read(0.0) == []
    long = "x" * (2 * PIECE_BYTES)
    add(path, long + "\n")
    assert tail.read(0.0) == [(5, long.encode())]
    tail.close()


def test_a_file_that_was_moved_is_read_to_its_end_and_then_the_one_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    add(path, "1\n")
    assert tail.read(0.0) == [(1, b"1")]
    add(path, "2\n")
    path.rename(tmp_path / "log.1")
    assert tail.read(1.0) == [(2, b"2")]
    assert tail.read(1.0) == []  # nothing is in its place yet
    add(path, "new\n")
    assert tail.read(1.1) == []
    add(tmp_path / "log.1", "3\n")  # by a writer that had not noticed
    assert tail.read(1.2) == [(3, b"3")]
    assert tail.read(1.2) == []
    assert (tail.read(1.2 + 2 * MOVED_S), tail.fresh) == ([(1, b"new")], True)
    tail.close()


def test_a_file_that_was_cut_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    add(path, "first\ntorn")
    assert tail.read(0.0) == [(1, b"first")]
    path.write_text("2\n")
    assert (tail.read(0.0), tail.fresh, tail.long) == ([(1, b"2")], True, 1)
    tail.close()


def test_a_pipe_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    tail = Tail(path)
    assert tail.read(0.0) == []
    writing = os.open(path, os.O_WRONLY)
    assert tail.read(0.0) == []
    os.write(writing, b"a\nb")
    assert tail.read(0.0) == [(1, b"a")]
    os.write(writing, b"\n")
    assert tail.read(0.0) == [(2, b"b")]
    os.close(writing)
    assert tail.read(0.0) == []
    tail.close()


def test_each_line_counts_once_across_rotation_and_restarts(tmp_path: Path) -> None:
    callers, log = tmp_path / "callers", tmp_path / "workers"
    work = attribution(tmp_path)
    add(callers, OPENING + caller("a", 1.0))
    add(log, worker("before", -9.0, 6) + worker("a", 1.01, 7))
    work.step(0.0)
    assert (work.join.joined, work.before) == (1, 1)
    log.rename(tmp_path / "workers.1")
    add(log, worker("b", 2.01, 8) + worker("c", 3.01, 10))
    callers.rename(tmp_path / "callers.1")
    add(callers, OPENING + caller("b", 2.0))
    work.step(1.0)
    work.step(1.0 + 2 * MOVED_S)
    assert work.join.joined == 2
    log.write_text("")  # a restarted worker, and a rotation by copying
    work.step(2.3)
    add(log, worker("d", 4.01, 1, epoch="f") + worker("a", 1.01, 7))
    add(callers, caller("d", 4.0) + caller("c", 3.0))
    work.step(2.4)
    assert work.join.joined == 4
    work.close()
    report = work.report()
    assert (report["offered"], report["repeated"], report["lost"]) == (9, {"worker": 1}, 1)
    assert (report["orphans"], report["unreadable"], report["missing"]) == ({}, {}, [])


def test_a_bad_line_is_an_error_at_first_and_counted_later(tmp_path: Path) -> None:
    add(tmp_path / "callers", OPENING + caller("a", 1.0) + '{"at_s"' + "\n" + caller("b", 2.0))
    add(tmp_path / "workers", "no json\n")
    with pytest.raises(TraceError, match="workers:1: JSON is malformed"):
        attribution(tmp_path).step(0.0)
    (tmp_path / "workers").write_text(worker("a", 1.0, 1) + "torn\n" + worker("b", 2.0, 2))
    work = attribution(tmp_path, "workers", "later")
    work.step(0.0)
    report = work.report()
    assert (report["joined"], report["missing"]) == (2, [str(tmp_path / "later")])
    assert [one["lines"] for one in report["unreadable"].values()] == [1, 1]
    assert f"{tmp_path}/callers:3: " in report["unreadable"][str(tmp_path / "callers")]["first"]
    work.close()


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        ({"ended": "ok"}, False),
        ({"ended": "status_4xx"}, False),
        ({"ended": "status_5xx"}, True),
        ({"ended": "cut"}, True),
        ({"ended": "hung_up"}, False),
        ({"ended": "grpc_status", "grpc_status": 3}, False),
        ({"ended": "grpc_status", "grpc_status": 14}, True),
        ({}, False),
    ],
)
def test_what_callers_did_wrong_is_no_version_s_error(ended: dict[str, object], failed: bool) -> None:
    lines = CallerLines()
    assert lines.half("trace:1", OPENING.encode()) is None
    half = lines.half("trace:2", json.dumps({"at_s": 0, "request_id": "r", "took_s": 1, **ended}).encode())
    assert half is not None
    assert half.failed is failed


def test_what_waits_too_long_is_told_of_its_version(tmp_path: Path) -> None:
    add(tmp_path / "callers", OPENING + caller("a", 1.0, ended="status_5xx") + caller("cached", 2.0, worker=""))
    add(tmp_path / "w0", worker("a", 1.0, 1, failed=True, attempt=2) + worker("alone", 3.0, 2, version="2"))
    add(tmp_path / "w1", worker("a", 1.0, 1, who="w1", failed=True))
    work = attribution(tmp_path, "w0", "w1")
    work.step(0.0)
    assert (work.join.joined, work.join.waiting) == (1, 2)
    work.step(31.0)
    report = work.report()
    assert report["orphans"] == {"caller: deadline": 1, "worker: deadline": 1}
    one, two = report["rows"]["m@1"], report["rows"]["m@2"]
    assert (one["requests"], one["joined"], one["failed"], one["attempts"]) == (1, 1, 1, {"count": 1, "failed": 1})
    assert (two["requests"], two["joined"], two["unmatched"], two["error_interval"]) == (1, 0, {"deadline": 1}, None)
    work.close()


def half(side: Side, label: str = "m@1", who: str = "w0", **more: float) -> Half:
    return Half(side, "r", 0.0, more.pop("took_s", 0.1), who, False, label, 1, "", **more)


def test_figures_are_of_callers_workers_and_the_way_between() -> None:
    tally = Tally(lambda one: one.label)
    for number in range(1, 101):
        caller_half = half(Side.CALLER, took_s=number / 100)
        tally.take(Joined(caller_half, half(Side.WORKER, took_s=number / 200, queue_s=0.001, run_s=0.002), late=False))
    figures = tally.rows["m@1"].figures()
    assert figures["caller_ms"] == pytest.approx({"p50": 500, "p95": 950, "p99": 990}, rel=0.02)
    assert figures["worker_ms"]["p99"] == pytest.approx(495, rel=0.02)
    assert figures["between_ms"]["p50"] == pytest.approx(250, rel=0.02)
    assert (figures["queue_ms"]["p50"], figures["run_ms"]["p50"]) == pytest.approx((1.0, 2.0), rel=0.02)
    assert figures["error_ratio"] == 0.0
    assert figures["error_interval"] == pytest.approx([0.0, 0.037], abs=1e-3)


def test_rows_have_a_bound() -> None:
    tally = Tally(lambda one: one.label)
    for number in range(3 * MAX_ROWS):
        tally.other(half(Side.WORKER, f"m@{number}"))
        tally.lone(half(Side.WORKER, who=f"w{number}"), Orphan.CLOCK, half(Side.CALLER))
    tally.other(half(Side.WORKER, ""))
    assert len(tally.rows) == MAX_ROWS + 1
    assert tally.rows[OTHERS].attempts == 2 * MAX_ROWS + 1
    assert len(tally.apart) == MAX_ROWS + 1
    named = Tally(lambda one: one.label)
    named.other(half(Side.WORKER, ""))
    assert list(named.rows) == [UNNAMED]
