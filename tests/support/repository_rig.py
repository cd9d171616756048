"""A model repository on disk and the worker's side of it, driven by tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from router.model import State
from tests.support.loops import until
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.conditions import Conditions
from worker.control import Behaviour, Control, Source
from worker.engines import EngineError
from worker.governor import Governor, Place
from worker.memory import Memory
from worker.models import Models
from worker.replica import HeldReplica
from worker.repository import Repository
from worker.store import Versions

if TYPE_CHECKING:
    from worker.dependencies import Dependency
    from worker.engines import Cancellation
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
