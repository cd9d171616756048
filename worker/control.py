"""Who decides what a worker holds, where models come from, and how the worker goes about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from worker.store import NAME, ModelFiles, ShardPlace, StoreError, Versions, choose, is_there, names_in, unfit

if TYPE_CHECKING:
    from pathlib import Path

    from worker.recording import Recordings

POLL_S = 15.0
LEAST_POLL_S = 0.1
IDLE_S = 30.0


class Control(StrEnum):
    """Who decides what is loaded."""

    NONE = "none"  # everything there is, as the worker starts
    EXPLICIT = "explicit"  # whoever asks for it, by the repository API
    POLL = "poll"  # the repository: what is changed there is followed


@dataclass(frozen=True, slots=True)
class Source:
    """Where models come from, and which: ``names`` where there are any, else every directory under ``root``."""

    root: Path | None
    names: tuple[str, ...]
    file_name: str | None
    versions: Versions
    place: ShardPlace | None = None
    recordings: Recordings | None = None
    """Of warm-up inputs."""

    def listed(self) -> list[str]:
        """Return the models that may be loaded.

        Raises:
            StoreError: the repository cannot be looked at.
        """
        return list(self.names) if self.names or self.root is None else names_in(self.root)

    def choose(self, name: str) -> list[ModelFiles]:
        """Return the versions of a model that are to be served, the newest first; none where there is no such model.

        Raises:
            StoreError: it is not as it should be.
        """
        if not NAME.fullmatch(name):
            return self._misnamed(name)
        if self.names and name not in self.names:
            return []
        if self.root is None:
            return [self._recorded(ModelFiles(name, "1"))] if name in self.names else []
        if not is_there(self.root, name) and (self.file_name is not None or name not in self.names):
            return []
        chosen = choose(self.root, name, self.file_name, self.versions, self.place)
        return [self._recorded(files) for files in chosen]

    def _misnamed(self, name: str) -> list[ModelFiles]:
        """Say what is wrong with a directory that no model may be called after; nothing else is looked for by it."""
        if not self.names and self.root is not None and name in names_in(self.root):
            raise StoreError(unfit(self.root / name))
        return []

    def _recorded(self, files: ModelFiles) -> ModelFiles:
        return files if self.recordings is None else self.recordings.of(files)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a worker goes about its models; times in seconds.

    ``startup``: under explicit control, what is loaded at the start. ``lazy`` and ``idle_unload_s`` (0: never) hold for
    models whose own description says nothing else. ``settle_s``: how long requests are still let in after callers were
    told that a model goes; ``drain_s``: how long those that were let in have.
    """

    control: Control = Control.NONE
    poll_s: float = POLL_S
    startup: tuple[str, ...] = ()
    lazy: bool = False
    idle_unload_s: float = 0.0
    settle_s: float = 0.0
    drain_s: float = 30.0
