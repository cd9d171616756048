"""The worker's loader: finds a version's files, has the chosen strategy bring them in, and hashes what must be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from worker.baseline import held_bytes
from worker.loading import LAZY, Loaded, LoadError, NoRoomError, StrategyName
from worker.loading.auto import choose, look
from worker.loading.chunked import Chunked
from worker.loading.digests import FileDigest
from worker.loading.full import Full
from worker.loading.mapped import Mmap, Populate
from worker.loading.mapping import PAGE_BYTES, Mapping, cached_pages, ratio
from worker.loading.places import IntoPlace, NamelessPlace
from worker.loading.prefetch import Prefetch
from worker.loading.sums import DamagedError
from worker.loading.task import LoadTask
from worker.loading.unpacking import check_plain, plain_name
from worker.loading.verification import Verification
from worker.loading.version_files import version_files
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.loading import Progress
    from worker.loading.fetching import Fetched, Fetcher
    from worker.loading.hash_cache import HashCache
    from worker.loading.places import Place
    from worker.loading.shm import ShmEntry, ShmStore
    from worker.loading.task import Brought, Strategy
    from worker.loading.version_files import SourceFile
    from worker.memory import Memory
    from worker.numa import Placer
    from worker.stages import Stages
    from worker.store import ModelFiles

SAMPLES = 16
MAX_THREADS = 4
"""Threads that read and hash one model: with more, memory is what they wait for."""
MOST_PACKED = 2000
"""No packing does better than one byte for so many that would be worth loading."""
MEMORY_SHARE = 0.8
"""Of the free memory, that unpacked files may take."""

STRATEGIES: dict[StrategyName, Callable[[], Strategy]] = {
    StrategyName.FULL: Full,
    StrategyName.MMAP: Mmap,
    StrategyName.POPULATE: Populate,
    StrategyName.PREFETCH: Prefetch,
    StrategyName.CHUNKED: Chunked,
}


class ModelLoader:
    """See this module's text."""

    def __init__(
        self,
        strategy: StrategyName = StrategyName.AUTO,
        cache: HashCache | None = None,
        memory: Callable[[], Memory | None] = lambda: None,
        threads: int = 1,
        shm: ShmStore | None = None,
        fetcher: Fetcher | None = None,
        placer: Placer | None = None,
        on_fetched: Callable[[ModelFiles, Cancellation], None] | None = None,
    ) -> None:
        """``strategy``: where a version names none. ``memory``: what is there now. ``threads``: how many may read.

        ``shm``: where versions are unpacked, and kept where it keeps them. ``fetcher``: brings versions here.
        ``placer``: says which memory nodes they go to. ``on_fetched``: called with a version that has just come, before
        it is brought in; may block, and raise what :meth:`load` may.
        """
        self._strategy = strategy
        self._cache = cache
        self._memory = memory
        self._threads = min(threads, MAX_THREADS)
        self._shm = shm
        self._fetcher = fetcher
        self._placer = placer
        self._on_fetched = on_fetched

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Bring the files in, where there is a directory; see :class:`worker.loading.Loader`."""
        if files.directory is None:
            progress(0, 0)
            return Loaded("", 0)
        fetched = None if self._fetcher is None else self._fetcher.fetch(files, progress, cancellation, stages)
        if fetched is not None and self._on_fetched is not None:
            self._on_fetched(files, cancellation)
        with stages.measure(Stage.OPEN):
            found = version_files(files.directory)
            check_plain(found, files.directory)
            entry, place = self._place(files, found)
        task = LoadTask(found, self._threads, progress, cancellation, stages)
        try:
            return self._load(files, files.directory, task, fetched, entry, place)
        except NoRoomError as error:
            if entry is None or _packed(found):
                _end(place)
                raise
            entry.refuse(f"{files.name}@{files.version}", error)
        except DamagedError as error:
            _end(place)
            raise _thrown_away(files, found, error) from error
        except BaseException:
            _end(place)
            raise
        task = LoadTask(found, self._threads, progress, cancellation, stages)
        return self._load(files, files.directory, task, fetched, None, None)

    def _place(self, files: ModelFiles, found: tuple[SourceFile, ...]) -> tuple[ShmEntry | None, Place | None]:
        """Return where the files are to be put, or None where they are used from where they lie."""
        packed = _packed(found)
        nameless = hasattr(os, "memfd_create") and not (self._shm is not None and self._shm.kept)
        if packed and len(found) == 1 and nameless:
            self._check_memory(found[0])
            return None, NamelessPlace(files.name)
        wants = self._shm is not None and self._shm.kept and self._named(files) is not StrategyName.CHUNKED
        if self._shm is None or not (packed or wants):
            return None, None
        need_bytes = sum(map(_put_bytes, found))
        try:
            entry = self._shm.entry(files, found, need_bytes)
        except OSError as error:
            if not packed:
                self._shm.tell(f"{files.name}@{files.version}", error)
                return None, None
            raise LoadError(
                f"{packed[0].path}: cannot be unpacked: the version's files need {need_bytes} bytes below --shm-dir: "
                f"{error}; or unpack it beside its place, and put that there instead"
            ) from error
        return entry, entry

    def _check_memory(self, file: SourceFile) -> None:
        """Refuse to begin what is known to have no room.

        Raises:
            LoadError: it has none.
        """
        memory, need_bytes = self._memory(), _put_bytes(file)
        if memory is not None and need_bytes > MEMORY_SHARE * memory.free_bytes:
            raise LoadError(
                f"{file.path}: cannot be unpacked: {need_bytes} bytes are more than {MEMORY_SHARE:.0%} of the "
                f"{memory.free_bytes} that memory has free; unpack it beside its place, and put that there instead"
            )

    def _bring_in(self, strategy: Strategy, task: LoadTask) -> Brought:
        if self._placer is None:
            return strategy.bring_in(task)
        with self._placer.placing(task.total_bytes) as plan:
            brought = strategy.bring_in(task)
        if plan is not None and not brought.cut:  # locking brings all pages in
            self._placer.hold(brought.mappings, plan)
        return brought

    def _named(self, files: ModelFiles) -> StrategyName:
        named = files.load.strategy or self._strategy
        return StrategyName.AUTO if named is StrategyName.STREAM else named

    def _load(
        self,
        files: ModelFiles,
        directory: Path,
        task: LoadTask,
        fetched: Fetched | None,
        entry: ShmEntry | None,
        place: Place | None,
    ) -> Loaded:
        found = task.files
        held = None if entry is None else entry.digests
        known = held if held is not None or fetched is None else fetched.digests or None
        with task.stages.measure(Stage.OPEN):
            verification = Verification(
                directory,
                found,
                files.sha256,
                files.load.verify,
                self._cache,
                known,
                fetched=held is None and fetched is not None,
            )
            task.wanted = verification.wanted
            strategy: Strategy
            if entry is not None and held is not None:
                name, strategy, task.files = "shm", Mmap(), entry.files()
            elif place is not None:
                name = "unpacked" if _packed(found) else "copied"
                small = (lambda _: None) if self._shm is None else self._shm.tell_small_pages
                strategy = IntoPlace(place, self._limit_bytes(entry), small)
            else:
                chosen = self._named(files)
                if chosen is StrategyName.AUTO:
                    chosen = choose(look(found, self._memory()))
                    # whom nobody told to populate, need not fail where others take the memory meanwhile
                    make = STRATEGIES[chosen] if chosen is not StrategyName.POPULATE else _populate_if_it_stays
                else:
                    make = STRATEGIES[chosen]
                name, strategy = chosen, make()
        task.progress(0, task.total_bytes)
        brought = self._bring_in(strategy, task)
        try:
            content_hash, hashed_from = verification.conclude(brought.digests, brought.sums)
            for file in found:
                file.check()
            used = task.files
            if place is not None and held is None:
                sizes = {file.name: FileDigest(file.size_bytes, b"") for file in found}
                used = place.finish({**sizes, **brought.digests, **verification.known})
                brought.mappings = tuple(Mapping(file.path) for file in used)
            residency_ratio = _residency(used, brought)
            access_s = first_access_s(used)
        except BaseException:
            for mapping in brought.mappings:
                mapping.close()
            raise
        task.progress(task.total_bytes, task.total_bytes)
        return Loaded(
            content_hash,
            brought.bytes_read,
            sum(file.size_bytes for file in used),
            LAZY if brought.cut else StrategyName.STREAM if fetched is not None and fetched.digests else name,
            hashed_from,
            0 if fetched is None else fetched.bytes_fetched,
            residency_ratio,
            access_s,
            model_file=_model_file(files, used) if place is not None else None,
            files=used,
            digests={name: digest for name, digest in verification.known.items() if digest.whole},
            mappings=brought.mappings,
            place=place,
        )

    def _limit_bytes(self, entry: ShmEntry | None) -> int:
        memory = self._memory()
        free_bytes = 1 << 62 if memory is None else int(MEMORY_SHARE * memory.free_bytes)
        return free_bytes if entry is None else min(free_bytes, entry.room_bytes)


def _populate_if_it_stays() -> Strategy:
    return Populate(must_hold=False)


def _packed(files: tuple[SourceFile, ...]) -> list[SourceFile]:
    return [file for file in files if plain_name(file.name) != file.name]


def _put_bytes(file: SourceFile) -> int:
    """Return what a file takes where it is put: a packed one what it says it holds, as far as that is known."""
    told_bytes = held_bytes(file)
    return told_bytes if told_bytes <= MOST_PACKED * file.size_bytes else file.size_bytes  # else it is damaged


def _model_file(files: ModelFiles, used: tuple[SourceFile, ...]) -> Path | None:
    """Return where the model's file is now."""
    if files.model_file is None or files.directory is None:
        return None
    wanted = plain_name(files.model_file.relative_to(files.directory).as_posix())
    return next((file.path for file in used if plain_name(file.name) == wanted), None)


def _end(place: Place | None) -> None:
    if place is not None:
        place.end()


def _thrown_away(files: ModelFiles, found: tuple[SourceFile, ...], error: DamagedError) -> LoadError:
    """Remove a damaged file that can be fetched again, so that it is; returns what is to be said then.

    The model's file goes too, because the version counts as fetched for as long as that is there.
    """
    damaged = next((file for file in found if file.path == error.path), None)
    if not files.load.fetches or files.directory is None or damaged is None:
        return error  # nobody else has it, or it is not of the version's content
    plain = plain_name(files.model_file.relative_to(files.directory).as_posix()) if files.model_file else ""
    try:
        for file in found:
            if file is damaged or not plain or plain_name(file.name) == plain:
                file.path.unlink(missing_ok=True)
    except OSError as refused:
        return LoadError(f"{error}; it cannot be removed, to be fetched again: {refused.strerror}")
    return LoadError(f"{error}; it was removed, and the next load fetches it again")


def _residency(files: tuple[SourceFile, ...], brought: Brought) -> float | None:
    counted = [mapping.held_pages() for mapping in brought.mappings] or [cached_pages(files)]
    known = [count for count in counted if count is not None]
    if len(known) != len(counted):
        return None
    return ratio(sum(held for held, _ in known), sum(pages for _, pages in known))


def first_access_s(files: tuple[SourceFile, ...], samples: int = SAMPLES) -> float | None:
    """Return the longest that reading one page took, of ``samples`` pages spread evenly over ``files``.

    Raises:
        LoadError: a file cannot be read.
    """
    total = sum(file.size_bytes for file in files)
    if not total:
        return None
    longest = 0.0
    places = [total * k // samples for k in range(samples)]
    buffer = bytearray(PAGE_BYTES)
    before = 0
    for file in files:
        here = [place - before for place in places if before <= place < before + file.size_bytes]
        before += file.size_bytes
        if not here:
            continue
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if hasattr(os, "posix_fadvise"):  # a page is asked for, not what lies around it
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                for place in here:
                    began = time.perf_counter()
                    os.preadv(descriptor, [buffer], place // PAGE_BYTES * PAGE_BYTES)
                    longest = max(longest, time.perf_counter() - began)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LoadError(f"{file.path}: {error.strerror}") from error
    return longest
