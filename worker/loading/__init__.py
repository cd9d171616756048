"""How a model's files come from disk into memory before the engine makes something of them: the loader's interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.loading.digests import FileDigest
    from worker.loading.mapping import Mapping as FileMapping
    from worker.loading.places import Place
    from worker.loading.version_files import SourceFile
    from worker.stages import Stages
    from worker.store import ModelFiles

Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in all, in the loader's thread."""


class LoadError(Exception):
    """The files cannot be read; the text names the file and the operating system's reason."""


class NoRoomError(LoadError):
    """There is no room where the files were to be put; they can still be loaded from where they are."""


LAZY: Final = "lazy"
"""What the strategy is called of a load that was hastened: pages that were not there yet come when they are used."""


class StrategyName(StrEnum):
    """The ways to bring files in; docs/loading.md says when each is the right one."""

    AUTO = "auto"
    FULL = "full"
    MMAP = "mmap"
    POPULATE = "populate"
    PREFETCH = "prefetch"
    CHUNKED = "chunked"
    STREAM = "stream"  # fetched from load.source, and then as auto would


class Verify(StrEnum):
    """When a version's bytes are read to hash them."""

    CACHED = "cached"  # not where these very files were hashed before
    ALWAYS = "always"
    MANIFEST = "manifest"  # never: SHA256SUMS is believed


class HashedFrom(StrEnum):
    """What a content hash was made from."""

    NOTHING = "nothing"  # there are no files
    BYTES = "bytes"
    CACHE = "cache"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader brought in. ``content_hash`` is equal where the version's files are, on whatever path or host."""

    content_hash: str
    bytes_read: int
    """Bytes that the strategy went over; 0 where there was no need to read any."""
    bytes_total: int = 0
    strategy: str = StrategyName.FULL
    """A :class:`StrategyName`, or ``shm``: found in shared memory, ``copied`` into it, ``unpacked`` into memory.

    Or :data:`LAZY`: it was hastened before all pages were there.
    """
    hashed_from: HashedFrom = HashedFrom.NOTHING
    bytes_fetched: int = 0
    """What came over the network for it."""
    residency_ratio: float | None = None
    """The part of the files' pages that memory held when the loader was done; None where the kernel does not say."""
    first_access_s: float | None = None
    """The longest that reading one page took then, of pages spread over the files; None where there are none."""
    model_file: Path | None = None
    """Where the engine finds the model's file, other files beside it; None: where the repository has it."""
    files: tuple[SourceFile, ...] = ()
    digests: Mapping[str, FileDigest] = field(default_factory=dict, repr=False)
    """What ``files`` hash to, by name; without those of which what is written down was believed."""
    mappings: tuple[FileMapping, ...] = field(default=(), repr=False)
    """What is kept mapped as long as the model is loaded."""
    place: Place | None = field(default=None, repr=False)
    """Where the files were put, where they are not used from where they lie."""

    def facts(self) -> dict[str, str | int | float | None]:
        """Return what the event ``model.warm`` says of the loading."""
        return {
            "strategy": str(self.strategy),
            "hashed_from": self.hashed_from.value,
            "bytes_total": self.bytes_total,
            "bytes_read": self.bytes_read,
            "bytes_fetched": self.bytes_fetched,
            "residency_ratio": None if self.residency_ratio is None else round(self.residency_ratio, 4),
            "first_access_ms": None if self.first_access_s is None else round(self.first_access_s * 1000, 3),
        }

    def placed(self, files: ModelFiles) -> ModelFiles:
        """Return ``files`` as the engine should load them."""
        return dataclasses.replace(
            files,
            model_file=self.model_file or files.model_file,
            content_hash=self.content_hash,
            in_shared_memory=self.place is not None,
        )

    def check(self) -> None:
        """Look whether the files are still those that were loaded.

        Raises:
            LoadError: one was changed, cut short or taken away meanwhile.
        """
        for file in self.files:
            file.check()

    def release(self) -> None:
        """Give back what is held for the model. The engine has closed it."""
        for mapping in self.mappings:
            mapping.close()
        if self.place is not None:
            self.place.end()

    def keep(self) -> None:
        """Have what the next process can use stay when this is released, because this process ends."""
        if self.place is not None:
            self.place.keep()


class Loader(Protocol):
    """One strategy of bringing files in."""

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Bring everything in, and measure its ``stages``; blocks, in a thread that is not the event loop's.

        Raises:
            LoadError: a file cannot be read.
            GivenUpError: ``cancellation`` said so.
        """
