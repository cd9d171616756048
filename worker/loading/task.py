"""What a strategy is given and what it gives back. One strategy is one class with :meth:`Strategy.bring_in`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from worker.loading.digests import BLOCK_BYTES
from worker.loading.reading import Wanted

if TYPE_CHECKING:
    from worker.engines import Cancellation
    from worker.loading import Progress
    from worker.loading.digests import FileDigest
    from worker.loading.mapping import Mapping
    from worker.loading.version_files import SourceFile
    from worker.stages import Stages


@dataclass(slots=True)
class LoadTask:
    """One load: the files, what is to be hashed of them, and how many threads may share the work."""

    files: tuple[SourceFile, ...]
    threads: int
    progress: Progress
    cancellation: Cancellation
    stages: Stages
    wanted: Wanted = field(default_factory=Wanted)
    done_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """How long the files are together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def wanted_files(self) -> tuple[SourceFile, ...]:
        """The files that must be read because something of them is to be hashed."""
        return tuple(file for file in self.files if file.name in self.wanted.blocks or file.name in self.wanted.sums)

    def threads_for(self, files: tuple[SourceFile, ...]) -> int:
        """Return how many threads are worth starting to read ``files``."""
        return max(1, min(self.threads, sum(-(-file.size_bytes // BLOCK_BYTES) for file in files)))

    def note(self, count: int) -> None:
        """Tell that ``count`` more bytes are in."""
        self.done_bytes += count
        self.progress(self.done_bytes, max(self.total_bytes, self.done_bytes))


@dataclass(slots=True)
class Brought:
    """What a strategy did: digests and SHA-256 of what it hashed, bytes that it went over, and what stays mapped."""

    digests: dict[str, FileDigest] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    bytes_read: int = 0
    mappings: tuple[Mapping, ...] = ()
    cut: bool = False
    """It was hastened, and has left something out: pages that come when they are first used."""


class Strategy(Protocol):
    """One way to bring files in.

    Where the task's cancellation is hastened, it leaves out what only has pages come before they are used. What is
    wanted is hashed all the same.
    """

    def bring_in(self, task: LoadTask) -> Brought:
        """Bring the task's files in, and hash what it wants; blocks.

        Raises:
            LoadError: a file cannot be read, mapped or held.
            GivenUpError: the task was given up.
        """
