"""What a load waits for, and what becomes of a model whose dependencies leave it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from router.model import State
from tests.support.worker_parts import DoublingModel, EmptyLoader, ReadableLog
from worker.conditions import Conditions, size_bytes
from worker.dependencies import Dependency, DependencyError, parse
from worker.engines import Cancellation, Engine, EngineError, GivenUpError
from worker.gate import STEPS, GateClosedError
from worker.governor import Governor, Place, refusal
from worker.loading import LoadError
from worker.memory import Memory
from worker.replica import HeldReplica
from worker.served import Rest
from worker.store import ModelFiles, StoreError, scan

MIB = 1 << 20


def test_the_four_combinations() -> None:
    said = {(ready, healthy): step.value for (ready, healthy), step in STEPS.items()}
    assert said == {
        (False, False): "refuse",
        (False, True): "trigger",
        (True, False): "wait",
        (True, True): "idle",
    }
    page = Path("docs/lifecycle.md").read_text(encoding="utf-8")
    words = {True: "yes", False: "no"}
    for (ready, healthy), step in said.items():
        assert f"| {words[ready]} | {words[healthy]} | `{step}` |" in page


def test_the_size_of_what_cannot_be_looked_at_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("m.onnx", "weights/w"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10))
    files = ModelFiles("m", "1", tmp_path)
    assert size_bytes(files) == 20
    assert size_bytes(replace(files, directory=tmp_path / "gone")) == 0
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("weights"):
            raise OSError(116, "Stale file handle", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert size_bytes(files) == 10


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "free", "total", "mark", "over"),
    [
        (10, 60, 100, 0.95, None),
        (55, 60, 100, 0.95, None),
        (56, 60, 100, 0.95, 1),
        (200, 60, 100, 0.95, 145),
        (0, 0, 100, 0.95, 5),
        (0, 5, 100, 0.95, None),
        (1, 1, 2, 1.0, None),
    ],
)
def test_a_load_may_not_cross_the_mark(need: int, free: int, total: int, mark: float, over: int | None) -> None:
    why = refusal("host", need * MIB, Memory(free * MIB, total * MIB), mark)
    if over is None:
        assert why == ""
    else:
        assert f"host memory: a load takes about {need * MIB} bytes, {free * MIB} of {total * MIB} are free" in why
        assert f"that is {over * MIB} over the mark of {mark:g} (--memory-mark)" in why


def test_every_place_is_asked_and_one_that_is_unknown_refuses_nothing() -> None:
    host, device = Memory(80, 100), Memory(10, 100)
    governor = Governor((Place("host", lambda: host), Place("device", lambda: device), Place("none", lambda: None)))
    assert governor.refuses(5) is None
    refused = governor.refuses(6)
    assert refused is not None
    assert refused.why.startswith("device memory: a load takes about 6 bytes")
    assert not refused.passes
    assert Governor((Place("device", lambda: device),), 1.0).refuses(1000) is None


def test_what_is_allowed_is_kept_from_others_in_the_same_step() -> None:
    governor = Governor((Place("host", lambda: Memory(100, 100)), Place("device", lambda: Memory(70, 100))))
    with governor.reserved("a", 40) as first:
        with governor.reserved("b", 30) as second:
            assert (first, second) == (True, False)
        refused = governor.refuses(30)
        assert refused is not None
        assert refused.why == (
            "device memory: a load takes about 30 bytes, 70 of 100 are free, 40 of them for loads under way; "
            "that is 5 over the mark of 0.95 (--memory-mark)"
        )
        assert refused.passes, "once the first has ended, there is room"
        hopeless = governor.refuses(90)
        assert hopeless is not None
        assert not hopeless.passes
        with governor.reserved("c", 25) as third:
            assert third
    with governor.reserved("d", 65) as later:
        assert later, "it was given back, and so was what was refused"


def test_memory_is_given_back_when_a_load_fails() -> None:
    governor = Governor((Place("host", lambda: Memory(100, 100)),))
    with pytest.raises(ZeroDivisionError), governor.reserved("a", 90):
        raise ZeroDivisionError
    assert governor.refuses(95) is None


def test_of_two_places_the_one_that_will_not_pass_is_told() -> None:
    governor = Governor((Place("host", lambda: Memory(100, 100)), Place("device", lambda: Memory(100, 100))))
    with governor.reserved("a", 90):
        governor._places = (governor._places[0], Place("device", lambda: Memory(0, 100)))
        refused = governor.refuses(10)
    assert refused is not None
    assert (refused.why[:6], refused.passes) == ("device", False)


# --- dependencies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tcp://127.0.0.1:80", ("tcp", "127.0.0.1", 80, "")),
        ("tcp://[::1]:80", ("tcp", "::1", 80, "")),
        ("http://h:1/a?b=c", ("http", "h", 1, "/a?b=c")),
        ("http://h", ("http", "h", 80, "/")),
        ("file:///run/a", ("file", "", 0, "/run/a")),
    ],
)
def test_what_a_dependency_looks_like(text: str, wanted: tuple[str, str, int, str]) -> None:
    one = parse(text)
    assert (one.scheme, one.host, one.port, one.path) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "h:1", "tcp://h", "tcp://h:0", "tcp://h:99999", "tcp://h:1/p", "ftp://h:1", "file://h/a", "file:a", "http://",
     "http://u:p@h/", "http://h/a b", "http://h/\r\nX: y", "http://[::1",
     "http://a..b:80/", f"http://{'l' * 70}/", f"tcp://{'l.' * 200}l:1"],
)  # fmt: skip
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(DependencyError, match="expected tcp://HOST:PORT, http://HOST:PORT/PATH or file:///PATH"):
        parse(text)


def test_they_are_read_from_the_description(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    source = directory / "model.yaml"
    source.write_text("depends_on: [tcp://h:1]\ndeadline_s: 2.5\n")
    (files,) = scan(tmp_path, (), None)
    assert (files.depends_on, files.deadline_s) == ((parse("tcp://h:1"),), 2.5)
    source.write_text("depends_on: [h]\n")
    with pytest.raises(StoreError, match=r"model.yaml: depends_on: 'h': expected tcp://HOST:PORT"):
        scan(tmp_path, (), None)


# --- waiting ----------------------------------------------------------------------------------------------------------


class OneEngine:
    def __init__(self) -> None:
        self.loads = 0
        self.model = DoublingModel()

    def load(self, *_: Any) -> DoublingModel:
        self.loads += 1
        return self.model


class Bench:
    def __init__(self, deadline_s: float = 0.0, governor: Governor | None = None) -> None:
        self.now = 0.0
        self.log = ReadableLog()
        self.files = ModelFiles("m", "1", depends_on=(parse("tcp://h:1"),), deadline_s=deadline_s)
        self.engine = OneEngine()
        engine = cast("Engine", self.engine)
        self.replica = HeldReplica(self.files, engine, EmptyLoader(), self.log, lambda: self.now, lambda: None)
        self.answers: list[str] = []
        self.looks = 0
        self.then: Callable[[], None] = lambda: None
        self.over = False
        self.conditions = Conditions(self.log, lambda: self.now, governor, amiss=self.amiss, every_s=0.0)

    async def amiss(self, depends_on: Sequence[Dependency]) -> str:
        assert depends_on == self.files.depends_on
        self.looks += 1
        self.now += 1.0
        if not self.answers:
            self.over = True
            return ""
        return self.answers.pop(0)

    def healthy(self) -> bool:
        return asyncio.run(self.conditions.until_healthy(self.replica, self.files, lambda: self.over))

    def refusal(self) -> str:
        with pytest.raises(GateClosedError) as raised:
            self.replica.gate.check()
        return str(raised.value)


def test_a_load_waits_for_its_dependencies_and_says_so_once() -> None:
    bench = Bench()
    bench.answers = ["tcp://h:1: refused", "tcp://h:1: refused", ""]
    assert bench.healthy()
    assert bench.looks == 3
    assert bench.replica.state is State.COLD
    assert bench.refusal() == "model 'm' is not ready: it waits for what it depends on: tcp://h:1: refused"
    assert [event["reason"] for event in bench.log.events("model.waits")] == ["tcp://h:1: refused"]


def test_after_its_deadline_a_load_does_not_begin() -> None:
    bench = Bench(deadline_s=2.0)
    bench.answers = ["tcp://h:1: refused"] * 9
    assert not bench.healthy()
    assert bench.replica.state is State.FAILED
    assert "its dependencies were not there within 2 s: tcp://h:1: refused" in bench.replica.reason
    assert bench.engine.loads == 0


def test_waiting_can_be_given_up() -> None:
    bench = Bench()
    bench.answers = ["amiss"]
    bench.over = True
    assert not bench.healthy()
    assert bench.looks == 0
    assert bench.replica.state is State.COLD


def test_a_load_is_held_back_until_there_is_memory() -> None:
    rooms = [Memory(1, 100), Memory(1, 100), Memory(90, 100)]
    bench = Bench(governor=Governor((Place("host", lambda: rooms.pop(0)),)))
    assert asyncio.run(bench.conditions.until_memory(bench.replica, bench.files, lambda: False))
    assert bench.conditions.governor.held_back == 1
    assert bench.conditions.governor.last.startswith("host memory")
    assert "it is held back: host memory" in bench.refusal()
    assert len(bench.log.events("model.held_back")) == 1


def test_a_load_that_finds_no_memory_in_time_fails() -> None:
    bench = Bench(governor=Governor((Place("host", lambda: Memory(0, 100)),), wait_s=0.0))
    assert not asyncio.run(bench.conditions.until_memory(bench.replica, bench.files, lambda: False))
    assert bench.replica.state is State.FAILED
    assert "there was no memory for it within 0 s: host memory" in bench.replica.reason


def test_the_time_of_loads_under_way_does_not_count(tmp_path: Path) -> None:
    governor = Governor((Place("host", lambda: Memory(100, 100)),), wait_s=0.0)
    bench = Bench(governor=governor)
    (tmp_path / "m.txt").write_text("x" * 10)
    bench.files = replace(bench.files, directory=tmp_path)
    looks = 0

    def given_up() -> bool:
        nonlocal looks
        looks += 1
        return looks > 5

    with governor.reserved("a", 95):
        assert not asyncio.run(bench.conditions.until_memory(bench.replica, bench.files, given_up))
    assert looks == 6
    assert bench.replica.state is State.COLD, "it waits, and has not failed"
    assert "it is held back: host memory" in bench.refusal()


class Bounded(Cancellation):
    """One that is given up after fifty waits, so that what should not wait is seen to."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, timeout_s: float) -> None:
        self.waits += 1
        if self.waits == 50:
            self.cancel()
        super().wait(timeout_s)


class OneFetched:
    """A version of 60 bytes that has just been fetched, beside loads that are under way."""

    def __init__(self, directory: Path, room: list[Memory], wait_s: float = 0.0) -> None:
        (directory / "m.txt").write_text("x" * 60)
        self.files = ModelFiles("m", "1", directory)
        self.log = ReadableLog()
        self.governor = Governor((Place("host", lambda: room.pop(0) if len(room) > 1 else room[0]),), wait_s=wait_s)
        self.conditions = Conditions(self.log, lambda: 0.0, self.governor, every_s=0.0)

    def fetched(self, cancellation: Cancellation | None = None) -> None:
        self.conditions.fetched(self.files, cancellation or Bounded())


def test_what_was_fetched_is_kept_room_for_once_its_size_is_known(tmp_path: Path) -> None:
    one = OneFetched(tmp_path, [Memory(100, 100)])
    with one.governor.reserved(("m", "1"), 0), one.governor.reserved("another", 10):
        one.fetched()
        assert one.governor.refuses(26) is not None
        assert one.governor.refuses(25) is None
        one.fetched()
        assert one.governor.refuses(25) is None, "it is not counted twice"
    assert one.governor.refuses(95) is None
    assert one.log.events() == []


def test_what_was_fetched_waits_for_memory(tmp_path: Path) -> None:
    one = OneFetched(tmp_path, [Memory(10, 100), Memory(10, 100), Memory(100, 100)], wait_s=1.0)
    with one.governor.reserved(("m", "1"), 0):
        one.fetched()
    (event,) = one.log.events("model.held_back")
    assert event["reason"].startswith("host memory: a load takes about 60 bytes, 10 of 100 are free")
    assert one.governor.held_back == 1


def test_what_was_fetched_and_has_no_memory_fails(tmp_path: Path) -> None:
    one = OneFetched(tmp_path, [Memory(100, 100), Memory(10, 100)])
    with one.governor.reserved(("m", "1"), 0), pytest.raises(LoadError, match="there was no memory for it"):
        one.fetched()


def test_what_was_fetched_and_waits_for_memory_can_be_given_up(tmp_path: Path) -> None:
    one = OneFetched(tmp_path, [Memory(100, 100)])
    cancellation = Cancellation()
    cancellation.cancel()
    with one.governor.reserved("another", 50), one.governor.reserved(("m", "1"), 0), pytest.raises(GivenUpError):
        one.fetched(cancellation)


# --- following --------------------------------------------------------------------------------------------------------


def follow(bench: Bench, *answers: str) -> list[str]:
    """Bring it up, have its dependencies answer that, and return the states it went through after it was warm."""
    bench.answers = list(answers)

    async def scenario() -> None:
        assert await bench.replica.bring_up()
        await bench.conditions.follow(bench.replica, lambda: bench.over)

    asyncio.run(scenario())
    steps = [event["to"] for event in bench.log.events("model.state")]
    return steps[steps.index("warm") + 1 :]


def test_two_misses_are_nothing() -> None:
    assert follow(Bench(), "a", "a", "", "a", "a", "") == []


def test_after_three_misses_it_is_out_and_comes_back_without_a_load() -> None:
    bench = Bench()
    assert follow(bench, "a", "a", "a", "a", "") == ["failed", "loading", "warming", "warm"]
    assert bench.engine.loads == 1
    assert len(bench.engine.model.ran) == 2  # each time it was proven
    assert bench.replica.gate.is_open


def test_while_it_is_out_it_says_why() -> None:
    bench = Bench()
    assert follow(bench, "tcp://h:1: refused", "tcp://h:1: refused", "tcp://h:1: refused") == ["failed"]
    assert bench.refusal() == "model 'm' is not ready: what it depends on is amiss: tcp://h:1: refused"
    assert bench.replica.report().state is State.FAILED


def test_it_stays_out_where_it_cannot_be_proven_again() -> None:
    bench = Bench()

    def fail(*_: Any) -> Any:
        raise EngineError("the device is gone")

    bench.answers = ["a", "a", "a", "", ""]

    async def scenario() -> None:
        assert await bench.replica.bring_up()
        bench.engine.model.run = fail  # type: ignore[method-assign, assignment]
        await bench.conditions.follow(bench.replica, lambda: bench.over)

    asyncio.run(scenario())
    assert bench.replica.state is State.FAILED
    assert "the device is gone" in bench.replica.reason


def test_one_that_was_lost_can_be_unloaded() -> None:
    bench = Bench()
    follow(bench, "a", "a", "a")

    async def scenario() -> None:
        await bench.replica.unload(Rest.UNLOADED, "asked for")

    asyncio.run(scenario())
    assert bench.replica.state is State.COLD
    assert bench.replica.model is None
