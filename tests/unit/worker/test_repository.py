"""What a worker holds follows its repository: at the start, by request, by polling, and for idleness."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.model import State
from tests.support.loops import in_loop, turns, until
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.conditions import Conditions
from worker.control import Behaviour, Control, Source
from worker.engines import EngineError
from worker.gate import GateClosedError
from worker.governor import Governor, Place
from worker.memory import Memory
from worker.models import Models, UnknownModelError
from worker.replica import HeldReplica, Rest
from worker.repository import Entry, LoadFailedError, RefusedError, Repository
from worker.store import StoreError, Versions

if TYPE_CHECKING:
    from worker.dependencies import Dependency
    from worker.engines import Cancellation
    from worker.loading import Loaded, Progress
    from worker.stages import Stages
    from worker.store import ModelFiles

FILE = "model.txt"
HOUR_S = 3600.0


class FileModel(DoublingModel):
    """Remembers what it was made of."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.content = content


class FileEngine(FixedEngine):
    """Makes a model of a text; ``bad`` is none. Loads wait for ``hold``, where there is one."""

    def __init__(self) -> None:
        super().__init__(DoublingModel())
        self.loaded: list[FileModel] = []

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> FileModel:
        while self.hold is not None and not self.hold.is_set():
            cancellation.wait(0.005)
        assert files.model_file is not None
        content = files.model_file.read_text()
        if content == "bad":
            raise EngineError(f"{files.model_file}: not a model")
        self.loaded.append(FileModel(content))
        return self.loaded[-1]

    @property
    def open(self) -> list[str]:
        """What is loaded and was not closed."""
        return sorted(model.content for model in self.loaded if not model.closed)


class Bench:
    """A repository on disk, and the worker's side of it."""

    def __init__(
        self,
        root: Path,
        control: Control = Control.NONE,
        versions: Versions | None = None,
        names: tuple[str, ...] = (),
        memory_wait_s: float = 0.0,
        **behaviour: object,
    ) -> None:
        self.root = root
        self.engine = FileEngine()
        self.log = ReadableLog()
        self.now = 0.0
        self.memory = Memory(100, 100)
        self.amiss = ""
        self.models = Models()
        self.repository = Repository(
            Source(root, names, FILE, versions or Versions()),
            Behaviour(control, poll_s=HOUR_S, **behaviour),  # type: ignore[arg-type]
            self.models,
            self._make,
            self.log,
            conditions=Conditions(
                self.log,
                lambda: self.now,
                Governor([Place("host", lambda: self.memory)], wait_s=memory_wait_s),
                amiss=self._amiss,
                every_s=0.0,
            ),
        )

    async def _amiss(self, depends_on: Sequence[Dependency]) -> str:
        return self.amiss

    def _make(self, files: ModelFiles) -> HeldReplica:
        return HeldReplica(files, self.engine, EmptyLoader(), self.log, lambda: self.now, lambda: None)

    def put(self, name: str, version: str, content: str) -> None:
        """Put a version's content into its place, as one rename does."""
        place = self.root / name / version
        place.mkdir(parents=True, exist_ok=True)
        (place / ".new").write_text(content)
        (place / ".new").rename(place / FILE)

    @property
    def states(self) -> dict[str, State]:
        return {f"{replica.name}@{replica.version}": replica.state for replica in self.models}

    @property
    def answering(self) -> dict[str, str]:
        """What each model's requests without a version run on."""
        found = {}
        for name in self.models.names:
            model = self.models.find(name).model
            if isinstance(model, FileModel):
                found[name] = model.content
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.repository.find()
        running = asyncio.create_task(self.repository.run())
        try:
            await until(
                lambda: all(
                    replica.rest is not None or replica.state in (State.WARM, State.FAILED) for replica in self.models
                ),
                "the start",
            )
            yield
            assert not running.done() or running.exception() is None
        finally:
            self.repository.drain()
            await asyncio.wait_for(running, 5)
            self.repository.take_down()

    async def look_twice(self) -> None:
        await self.repository.look_again()
        await self.repository.look_again()


@in_loop
async def test_nothing_rests_and_nothing_is_loaded_by_request_without_control(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put("m", "1", "a")
    async with bench.running():
        assert bench.answering == {"m": "a"}
        for change in (bench.repository.load, bench.repository.unload):
            with pytest.raises(RefusedError) as caught:
                await change("m")
            assert str(caught.value) == (
                "model 'm': loading and unloading by request is off; start the worker with --model-control explicit"
            )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


# --- explicit ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_under_explicit_control_only_what_was_said_is_loaded(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("b",))
    for name in "abc":
        bench.put(name, "1", name)
    async with bench.running():
        assert bench.answering == {"b": "b"}
        assert [entry for entry in await bench.repository.index() if entry.name == "a"] == [
            Entry("a", "1", "UNAVAILABLE", "unloaded")
        ]
        assert await bench.repository.index(ready_only=True) == [Entry("b", "1", "READY", "")]
        await bench.repository.load("a")
        assert bench.answering == {"a": "a", "b": "b"}
        await bench.repository.unload("b")
        await bench.repository.unload("b")
        assert bench.engine.open == ["a"]
        assert bench.states == {"a@1": State.COLD, "b@1": State.COLD, "c@1": State.COLD} | {"a@1": State.WARM}
        reason = "it is not loaded; POST /v2/repository/models/b/load loads it"
        assert bench.models.find("b").reason == reason
        await bench.repository.load("b")
        assert bench.engine.open == ["a", "b"]


@in_loop
async def test_all_may_be_loaded_at_the_start(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    for name in "ab":
        bench.put(name, "1", name)
    async with bench.running():
        assert bench.answering == {"a": "a", "b": "b"}


@in_loop
async def test_a_model_to_load_at_the_start_must_be_there(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("x",))
    with pytest.raises(StoreError) as caught:
        await bench.repository.find()
    assert str(caught.value) == f"--load-model x: no such model in {root}"


@in_loop
async def test_loading_again_takes_over_what_changed_and_leaves_what_did_not(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, Versions(2), startup=("*",))
    bench.put("m", "1", "one")
    bench.put("m", "2", "two")
    async with bench.running():
        first = bench.models.find("m", "1").model
        bench.put("m", "2", "two again")
        await bench.repository.load("m")
        assert bench.models.find("m", "1").model is first
        assert bench.engine.open == ["one", "two again"]
        bench.put("m", "3", "three")
        await bench.repository.load("m")
        assert bench.engine.open == ["three", "two again"]
        assert list(bench.states) == ["m@3", "m@2"]


@in_loop
async def test_a_load_that_fails_says_why_and_what_served_serves(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "2", "bad")
        with pytest.raises(LoadFailedError) as caught:
            await bench.repository.load("m")
        assert str(caught.value) == f"model 'm' was not loaded: version 2: {root}/m/2/{FILE}: not a model"
        assert (bench.answering, bench.engine.open) == ({"m": "one"}, ["one"])
        assert bench.states == {"m@2": State.FAILED, "m@1": State.WARM}
        assert await bench.repository.index() == [
            Entry("m", "2", "UNAVAILABLE", f"{root}/m/2/{FILE}: not a model"),
            Entry("m", "1", "READY", ""),
        ]
        bench.put("m", "2", "two")
        await bench.repository.load("m")
        assert (bench.states, bench.engine.open) == ({"m@2": State.WARM}, ["two"])
        bench.put("m", "2", "bad")
        with pytest.raises(LoadFailedError) as caught:
            await bench.repository.load("m")
        why = f"the new content was not taken over: {root}/m/2/{FILE}: not a model"
        assert str(caught.value) == f"model 'm' was not loaded: version 2: {why}"
        assert await bench.repository.index() == [Entry("m", "2", "READY", why)]
        assert bench.answering == {"m": "two"}


@in_loop
async def test_what_is_not_in_the_repository_is_not_loaded(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, names=("m", "n"))
    bench.put("m", "1", "one")
    bench.put("secret", "1", "not to be served")
    async with bench.running():
        assert [event["model"] for event in bench.log.events("model.refused")] == ["n"]
        for name in ("secret", "../m", "n"):
            with pytest.raises(UnknownModelError) as caught:
                await bench.repository.load(name)
            assert str(caught.value) == f"model {name!r} is not in the repository"
        with pytest.raises(UnknownModelError):
            await bench.repository.unload("secret")


@in_loop
async def test_unloading_ends_a_load_that_is_under_way(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: bench.states["m@1"] is State.LOADING, "the load")
        await bench.repository.unload("m")
        with pytest.raises(LoadFailedError, match="it was unloaded meanwhile"):
            await loading
        bench.engine.hold.set()
        assert bench.states == {"m@1": State.COLD}
        await bench.repository.load("m")
        assert bench.states == {"m@1": State.WARM}


@in_loop
async def test_a_load_goes_on_where_whoever_asked_goes_away(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.engine.hold = threading.Event()
        loading = asyncio.create_task(bench.repository.load("m"))
        await until(lambda: bench.states["m@1"] is State.LOADING, "the load")
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        bench.engine.hold.set()
        await until(lambda: bench.states["m@1"] is State.WARM, "the model")


@in_loop
async def test_the_index_finds_models_that_are_new_on_disk_and_forgets_cold_ones_that_left(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "7", "new")
        (root / "broken" / "v1").mkdir(parents=True)
        why = f"{root}/broken/v1: version 'v1': a version is a number from 1, without leading zeros"
        assert await bench.repository.index() == [
            Entry("m", "1", "UNAVAILABLE", "unloaded"),
            Entry("n", "7", "UNAVAILABLE", "unloaded"),
            Entry("broken", "", "UNAVAILABLE", why),
        ]
        with pytest.raises(UnknownModelError) as caught:
            bench.models.find("broken")
        assert str(caught.value) == f"model 'broken' is not served here: {why}"
        with pytest.raises(LoadFailedError) as failed:
            await bench.repository.load("broken")
        assert str(failed.value) == f"model 'broken' was not loaded: {why}"
        shutil.rmtree(root / "m")
        shutil.rmtree(root / "broken")
        assert await bench.repository.index() == [Entry("n", "7", "UNAVAILABLE", "unloaded")]


@in_loop
async def test_the_index_leaves_what_is_still_to_be_loaded_at_the_start(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    for name in "ab":
        bench.put(name, "1", name)
    bench.engine.hold = threading.Event()
    await bench.repository.find()
    running = asyncio.create_task(bench.repository.run())
    await until(lambda: bench.states["a@1"] is State.LOADING, "the first load")
    assert [entry.state for entry in await bench.repository.index()] == ["LOADING", "UNAVAILABLE"]
    bench.engine.hold.set()
    await until(lambda: bench.states == {"a@1": State.WARM, "b@1": State.WARM}, "both")
    bench.repository.drain()
    await running
    bench.repository.take_down()


@in_loop
async def test_what_the_index_finds_rests_until_it_is_asked_for_also_where_models_are_lazy(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "1", "new")
        await bench.repository.index()
        assert {replica.rest for replica in bench.models} == {Rest.UNLOADED}


@in_loop
async def test_whoever_asks_for_what_is_not_there_leaves_nothing_behind(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    async with bench.running():
        for number in range(50):
            with pytest.raises(UnknownModelError):
                await bench.repository.load(f"x{number}")
        assert bench.repository._locks == {}


# --- polling ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_polling_follows_what_comes_changes_and_goes(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "1", "n")
        await bench.look_twice()
        assert bench.answering == {"m": "one", "n": "n"}
        bench.put("m", "1", "one again")
        await bench.look_twice()
        assert bench.answering == {"m": "one again", "n": "n"}
        bench.put("m", "2", "two")
        await bench.look_twice()
        assert (bench.states, bench.answering["m"]) == ({"m@2": State.WARM, "n@1": State.WARM}, "two")
        shutil.rmtree(root / "m" / "2")
        await bench.look_twice()
        assert bench.answering["m"] == "one again"
        shutil.rmtree(root / "n")
        await bench.look_twice()
        assert list(bench.states) == ["m@1"]
        assert bench.engine.open == ["one again"]


@in_loop
async def test_what_may_be_half_there_is_left_alone_until_it_stood_still_for_two_looks(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        await bench.repository.look_again()
        for content in ("two", "three", "four"):
            bench.put("m", "1", content)
            await bench.repository.look_again()
            assert bench.answering == {"m": "one"}
        await bench.repository.look_again()
        assert bench.answering == {"m": "four"}
        assert [model.content for model in bench.engine.loaded] == ["one", "four"]


@in_loop
async def test_what_fails_is_tried_once_and_again_when_it_changed(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    bench.put("b", "1", "bad")
    async with bench.running():
        bench.put("m", "1", "bad")
        for _ in range(4):
            await bench.repository.look_again()
        assert len(bench.log.events("model.swap_failed")) == 1
        assert [event["to"] for event in bench.log.events("model.state") if event["model"] == "b"] == [
            "loading",
            "failed",
        ]
        assert bench.answering == {"m": "one"}
        bench.put("m", "1", "two")
        bench.put("b", "1", "good")
        await bench.look_twice()
        assert bench.answering == {"m": "two", "b": "good"}
        assert bench.models.find("m").reason == ""


@in_loop
async def test_a_new_version_that_fails_leaves_the_one_before(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "2", "bad")
        await bench.look_twice()
        assert (bench.states, bench.answering) == ({"m@2": State.FAILED, "m@1": State.WARM}, {"m": "one"})


@in_loop
async def test_a_description_that_cannot_be_read_changes_nothing_and_is_told_once(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        (root / "m" / "model.yaml").write_text("version: 1")
        for _ in range(3):
            await bench.repository.look_again()
        assert bench.answering == {"m": "one"}
        (refused,) = bench.log.events("model.refused")
        assert refused["reason"].startswith(f"{root}/m/model.yaml: Object contains unknown field")
        (root / "m" / "model.yaml").write_text("versions: all")
        bench.put("m", "2", "two")
        await bench.look_twice()
        assert bench.engine.open == ["one", "two"]
        assert bench.models.refused == {}


@in_loop
async def test_a_model_that_never_could_be_read_is_forgotten_with_its_directory(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    (root / "broken" / "v1").mkdir(parents=True)
    async with bench.running():
        await bench.repository.look_again()
        assert list(bench.models.refused) == ["broken"]
        shutil.rmtree(root / "broken")
        await bench.look_twice()
        assert bench.models.refused == {}


@in_loop
async def test_a_repository_that_cannot_be_looked_at_changes_nothing(root: Path) -> None:
    bench = Bench(root / "models", Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        (root / "models").rename(root / "elsewhere")
        await bench.look_twice()
        assert bench.answering == {"m": "one"}
        assert "not a directory" in bench.log.events("repository.unreadable")[0]["error"]


@in_loop
async def test_polling_looks_when_its_time_has_come(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.repository._behaviour = Behaviour(Control.POLL, poll_s=0.01)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        await until(lambda: bench.answering == {"m": "two"}, "the new content")


# --- lazy, idle -------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_lazy_model_is_loaded_by_the_first_request_for_it(root: Path) -> None:
    bench = Bench(root, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        assert bench.states == {"m@1": State.COLD}
        assert bench.models.find("m").rest is Rest.LAZY
        bench.models.find("m")
        await turns()
        assert bench.states == {"m@1": State.COLD}, "whoever only looks loads nothing"
        for _ in range(3):
            bench.models.wanted("m")
        await until(lambda: bench.states["m@1"] is State.WARM, "the model")
        assert len(bench.engine.loaded) == 1
        assert len(bench.log.events("model.wanted")) == 1


@in_loop
async def test_a_lazy_model_that_failed_is_tried_again_by_later_requests_ever_more_rarely(root: Path) -> None:
    bench = Bench(root, lazy=True)
    bench.put("m", "1", "bad")

    def retry_after_s() -> int:
        with pytest.raises(GateClosedError, match="not a model") as caught:
            bench.models.find("m").gate.check()
        return caught.value.retry_after_s

    def failures() -> int:
        return sum(event["to"] == "failed" for event in bench.log.events("model.state"))

    async with bench.running():
        await turns()
        for tries, wait_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
            bench.models.wanted("m")
            await until(lambda tries=tries: failures() == tries, "the failure")  # type: ignore[misc]
            assert retry_after_s() == wait_s
            bench.now += wait_s - 0.5
            bench.models.wanted("m")
            await turns()
            assert len(bench.log.events("model.wanted")) == tries, "it is not tried before its time"
            assert retry_after_s() == 1
            bench.now += 0.5
        bench.put("m", "1", "good")
        await turns()
        assert bench.states == {"m@1": State.FAILED}, "nobody asked for it"
        for _ in range(2):
            bench.models.wanted("m")
        await until(lambda: bench.answering == {"m": "good"}, "the model")
        assert len(bench.log.events("model.wanted")) == 9


@in_loop
async def test_what_is_no_longer_to_be_loaded_by_requests_is_not_tried_again_by_them(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, lazy=True, startup=("*",))
    bench.put("m", "1", "bad")
    async with bench.running():
        bench.models.wanted("m")
        await until(lambda: bench.states["m@1"] is State.FAILED, "the failure")
        await bench.repository.unload("m")
        bench.now = 100.0
        assert not bench.models.wanted("m").can_be_wanted
        await turns()
        assert len(bench.log.events("model.wanted")) == 1


@in_loop
async def test_polling_follows_when_a_model_is_to_be_loaded_and_unloaded(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    bench.put("z", "1", "two")
    (root / "z" / "model.yaml").write_text("lazy: true")
    async with bench.running():
        assert bench.engine.open == ["one"]
        (root / "z" / "model.yaml").write_text("lazy: false")
        (root / "m" / "model.yaml").write_text("idle_unload_s: 5")
        await bench.look_twice()
        assert bench.engine.open == ["one", "two"]
        assert len(bench.engine.loaded) == 2, "what serves is not loaded anew for it"
        bench.now = 6.0
        bench.repository.unload_idle()
        await until(lambda: bench.engine.open == ["two"], "the unload")


@in_loop
async def test_each_model_may_say_for_itself_whether_it_is_lazy(root: Path) -> None:
    bench = Bench(root)
    for name in "ab":
        bench.put(name, "1", name)
    (root / "b" / "model.yaml").write_text("lazy: true")
    async with bench.running():
        assert bench.answering == {"a": "a"}
        await bench.repository.load("b")
        assert bench.answering == {"a": "a", "b": "b"}, "whoever could have it loaded by a request may ask for it"


@in_loop
async def test_a_request_without_a_version_calls_for_the_newest_while_an_older_one_answers(root: Path) -> None:
    bench = Bench(root, versions=Versions(2), lazy=True)
    bench.put("m", "1", "one")
    bench.put("m", "2", "two")
    async with bench.running():
        bench.models.wanted("m", "1")
        await until(lambda: bench.states["m@1"] is State.WARM, "version 1")
        assert bench.states["m@2"] is State.COLD
        assert bench.models.wanted("m").version == "1"
        await until(lambda: bench.states["m@2"] is State.WARM, "version 2")
        assert bench.models.wanted("m").version == "2"


@in_loop
async def test_what_is_idle_is_unloaded_but_not_while_a_request_is_under_way(root: Path) -> None:
    bench = Bench(root, idle_unload_s=30.0)
    for name in "ab":
        bench.put(name, "1", name)
    (root / "b" / "model.yaml").write_text("idle_unload_s: 0")
    async with bench.running():
        with bench.models.find("a").request():
            bench.now = 100.0
            bench.repository.unload_idle()
            await turns()
            assert bench.states == {"a@1": State.WARM, "b@1": State.WARM}
        bench.now = 129.0
        bench.repository.unload_idle()
        await turns()
        assert bench.states == {"a@1": State.WARM, "b@1": State.WARM}
        bench.now = 130.0
        bench.repository.unload_idle()
        await until(lambda: bench.states["a@1"] is State.COLD, "the unload")
        assert bench.engine.open == ["b"]
        assert bench.models.find("a").rest is Rest.IDLE
        assert bench.models.find("a").reason == "it was idle for 30 s; the next request has it loaded"
        bench.models.wanted("a")
        await until(lambda: bench.states["a@1"] is State.WARM, "the next load")


@in_loop
async def test_idleness_is_watched_where_it_counts(root: Path) -> None:
    bench = Bench(root, idle_unload_s=0.5)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.now = 1.0
        await until(lambda: bench.states["m@1"] is State.COLD, "the unload")


@in_loop
async def test_new_content_of_what_rests_is_loaded_when_it_is_wanted(root: Path) -> None:
    bench = Bench(root, Control.POLL, lazy=True)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.engine.loaded == []
        bench.models.wanted("m")
        await until(lambda: bench.answering == {"m": "two"}, "the model")
        bench.put("m", "2", "three")
        await bench.look_twice()
        assert bench.answering == {"m": "three"}, "a model that answers goes on to"
        assert bench.engine.open == ["three"]


# --- what must hold before --------------------------------------------------------------------------------------------


@in_loop
async def test_new_content_for_which_there_is_no_memory_leaves_the_old_one_serving(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("*",))
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        bench.memory = Memory(1, 100)
        with pytest.raises(LoadFailedError, match="version 1: the new content was not taken over: there was no memory"):
            await bench.repository.load("m")
        assert bench.models.find("m").gate.is_open
        assert (bench.answering, bench.engine.open) == ({"m": "one"}, ["one"])
        bench.memory = Memory(100, 100)
        await bench.repository.load("m")
        assert (bench.answering, bench.models.find("m").reason) == ({"m": "two"}, "")


class WaitingLoader(EmptyLoader):
    """Brings nothing in until it is given up, as one that fetches from a source that is slow."""

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        while True:
            cancellation.wait(0.005)


@in_loop
async def test_what_is_fetched_holds_up_no_other_model_and_is_unloaded_at_once(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT)
    (root / "f" / "1").mkdir(parents=True)
    (root / "f" / "1" / "model.yaml").write_text("load: {source: 'http://127.0.0.1:9/f'}")
    make = bench._make
    bench.repository._make = lambda files: (
        HeldReplica(files, bench.engine, WaitingLoader(), bench.log, lambda: bench.now, lambda: None)
        if files.name == "f"
        else make(files)
    )
    bench.put("m", "1", "one")
    async with bench.running():
        fetching = asyncio.create_task(bench.repository.load("f"))
        await until(lambda: bench.states["f@1"] is State.LOADING, "the fetch")
        await bench.repository.load("m")
        assert bench.answering == {"m": "one"}
        await bench.repository.unload("f")
        with pytest.raises(LoadFailedError):
            await fetching


@in_loop
async def test_what_waits_for_its_dependencies_holds_up_no_other_model(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.amiss = "the sun is down"
        bench.put("d", "1", "depends")
        (root / "d" / "1" / "model.yaml").write_text("depends_on: ['tcp://127.0.0.1:9']")
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.answering == {"m": "two"}
        await until(lambda: any("the sun is down" in one.reason for one in bench.models.of("d")), "why it waits")
        bench.put("m", "1", "three")
        await bench.look_twice()
        assert bench.answering == {"m": "three"}
        bench.amiss = ""
        await until(lambda: bench.states["d@1"] is State.WARM, "the model that waited")


@in_loop
async def test_new_content_of_a_model_that_lost_its_dependencies_is_taken_over_when_it_has_them_again(
    root: Path,
) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    (root / "d" / "1" / "model.yaml").write_text("depends_on: ['tcp://127.0.0.1:9']")
    async with bench.running():
        bench.amiss = "the sun is down"
        await until(lambda: bench.models.find("d").lost, "the loss")
        bench.put("d", "1", "two")
        await bench.look_twice()
        await turns()
        assert bench.engine.open == ["one"]
        bench.amiss = ""
        await until(lambda: bench.states["d@1"] is State.WARM, "its return")
        await bench.repository.look_again()
        await until(lambda: bench.engine.open == ["two"], "the new content")


@in_loop
async def test_a_model_that_lost_its_dependencies_serves_once_it_needs_them_no_more(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("d", "1", "one")
    source = root / "d" / "1" / "model.yaml"
    source.write_text("depends_on: ['tcp://127.0.0.1:9']")
    async with bench.running():
        bench.amiss = "the sun is down"
        await until(lambda: bench.models.find("d").lost, "the loss")
        source.unlink()
        await bench.look_twice()
        await until(lambda: bench.states["d@1"] is State.WARM, "its return")
        assert bench.engine.open == ["one"]


@in_loop
async def test_what_is_held_back_for_memory_holds_up_no_other_model(root: Path) -> None:
    bench = Bench(root, Control.POLL, memory_wait_s=HOUR_S)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.memory = Memory(50, 100)
        bench.put("huge", "1", "x" * 60)
        looking = asyncio.create_task(bench.look_twice())
        await until(lambda: any("held back" in one.reason for one in bench.models.of("huge")), "why it waits")
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.answering == {"m": "two"}
        bench.memory = Memory(100, 100)
        await until(lambda: bench.states["huge@1"] is State.WARM, "the model that waited")
        await looking
