"""How a model's files come from disk into memory before the engine makes something of them: the loader's interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from worker.engines import Cancellation
    from worker.stages import Stages
    from worker.store import ModelFiles

Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in all, in the loader's thread."""


class LoadError(Exception):
    """The files cannot be read; the text names the file and the operating system's reason."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader brought in. ``content_hash`` is equal where the version's files are, on whatever path or host."""

    content_hash: str
    bytes_read: int


class Loader(Protocol):
    """One strategy of bringing files in."""

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Bring everything in, and measure its ``stages``; blocks, in a thread that is not the event loop's.

        Raises:
            LoadError: a file cannot be read.
            GivenUpError: ``cancellation`` said so.
        """
