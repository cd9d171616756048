"""``stream``: a version whose files are somewhere else is fetched, hashed and brought into memory in one go.

Blocks of 16 MiB are fetched by a few threads at once, hashed as they come, and written into ``.incoming`` below the
version's directory, which leaves them in the page cache. When all are there the files are moved to their places, the
model's last. What a failure leaves in ``.incoming`` is gone on from, as long as it is still the same at the source.
Before they are moved they are read once more, because what counts is what lies there, whoever has written it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import xxhash

from worker import json_text
from worker.crew import Crew
from worker.engines import GivenUpError
from worker.loading import LoadError, NoRoomError
from worker.loading.digests import BLOCK_BYTES, DIGEST_BYTES, FileDigest, block_offsets
from worker.loading.fetch_lock import fetching_alone
from worker.loading.reading import LOOK_S, BlockReader, Wanted, write_all
from worker.loading.sources import SourceError, open_source
from worker.loading.sums import parse_sums, read_sums
from worker.loading.unpacking import plain_name
from worker.loading.version_files import DESCRIPTION, SUMS, SourceFile, file_key
from worker.paths import MAX_FILES, PACKED
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.loading import Progress
    from worker.loading.sources import RemoteFile, Source
    from worker.log import EventLog
    from worker.stages import Stages
    from worker.store import ModelFiles

INCOMING = ".incoming"
STATE = ".state.json"
THREADS = 4
TRIES = 5
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 2.0
BUSY_S = 60.0
"""How long a source that says it is busy is waited for, beside the tries."""
SAVE_EVERY_S = 1.0
JOIN_S = 0.5
"""How long threads whose connections were closed are waited for: a look-up of a name cannot be ended."""
MAX_STATE_BYTES = 64 << 20
T = TypeVar("T")


class _Part(msgspec.Struct):
    """What is there of one file. ``digests`` has 16 bytes for each block, in hex; ``done`` which of them are there."""

    tag: str
    size_bytes: int
    done: list[int]
    digests: str


class _State(msgspec.Struct):
    source: str
    files: dict[str, _Part]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched: the digests of the version's files, by name, and how many bytes came over the network.

    There are no digests where another process fetched it meanwhile.
    """

    digests: dict[str, FileDigest]
    bytes_fetched: int


class Fetcher:
    """Fetches versions that name a source and are not here yet."""

    def __init__(self, peers: Sequence[str], log: EventLog, pause_s: float = FIRST_PAUSE_S) -> None:
        """``peers``: HOST:PORT of workers that hand out what they have loaded."""
        self._peers = tuple(peers)
        self._log = log
        self._pause_s = pause_s

    def fetch(
        self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages
    ) -> Fetched | None:
        """Bring a version's files here; None where they are here already. Blocks.

        Raises:
            LoadError: they cannot be had or written; what came is kept for the next try.
            GivenUpError: ``cancellation`` said so.
        """
        directory = files.directory
        if directory is None or not to_be_fetched(files):
            return None
        began = time.perf_counter()
        with stages.measure(Stage.FETCH):
            try:
                with fetching_alone(directory, cancellation, lambda: self._waits(files)):
                    if not to_be_fetched(files):
                        return Fetched({}, 0)
                    source = open_source(files.load.source or "", self._peers, files.name, files.version)
                    fetched = self._fetch(files, directory, source, progress, cancellation)
            except SourceError as error:
                raise LoadError(f"{directory}: cannot be fetched: {error}") from error
            except OSError as error:
                kind = NoRoomError if error.errno == errno.ENOSPC else LoadError
                raise kind(f"{error.filename or directory}: cannot be fetched: {error.strerror}") from error
        self._log.info(
            "model.fetched",
            model=files.name,
            version=files.version,
            source=source.name,
            bytes=fetched.bytes_fetched,
            seconds=round(time.perf_counter() - began, 3),
        )
        return fetched

    def _fetch(
        self, files: ModelFiles, directory: Path, source: Source, progress: Progress, cancellation: Cancellation
    ) -> Fetched:
        last = files.model_file.name if files.model_file is not None else ""
        try:
            return _Fetch(directory, source, progress, cancellation, self._pause_s).run(files.sha256, last)
        except SourceError as error:
            raise LoadError(f"{directory}: cannot be fetched from {source.name}: {error}") from error
        finally:
            source.close()

    def _waits(self, files: ModelFiles) -> None:
        self._log.info(
            "model.fetch_waits", model=files.name, version=files.version, reason="another process fetches it"
        )


def to_be_fetched(files: ModelFiles) -> bool:
    """Whether a version names a source and is not here yet; blocks.

    Raises:
        OSError: its directory cannot be looked at.
    """
    directory = files.directory
    if directory is None or not files.load.fetches:
        return False
    if files.model_file is not None:  # which is moved to its place last: where it is, all others are
        plain = files.model_file
        return not any(path.is_file() for path in (plain, *(plain.with_name(plain.name + suffix) for suffix in PACKED)))
    return (directory / INCOMING).is_dir() or not any(
        path.name != DESCRIPTION and not path.name.startswith(".") for path in directory.iterdir()
    )


class _Fetch:
    """One fetch. The threads share what is to be done; one state tells what is."""

    def __init__(
        self, directory: Path, source: Source, progress: Progress, cancellation: Cancellation, pause_s: float
    ) -> None:
        self._directory = directory
        self._incoming = directory / INCOMING
        self._source = source
        self._progress = progress
        self._cancellation = cancellation
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._jobs: queue.SimpleQueue[tuple[RemoteFile, int, int]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Exception | int] = queue.SimpleQueue()
        self._state = _State(source.name, {})
        self._said: dict[str, tuple[str, str]] = {}
        """The SHA-256 of a file, and what says it, by name."""
        self._made: dict[str, os.stat_result] = {}
        """The files that this fetch writes, by name: what another process puts in their place is none of them."""

    def run(self, described: dict[str, str], last: str) -> Fetched:
        """Fetch everything; see :meth:`Fetcher.fetch`. ``last``: which file is moved to its place last."""
        self._incoming.mkdir(exist_ok=True)
        wanted = self._listing(described)
        self._check_room(wanted)
        self._resume(wanted)
        total = sum(file.size_bytes for file in wanted)
        jobs = [job for file in wanted for job in self._left(file)]
        done = total - sum(length for _, _, length in jobs)
        fetched = 0
        self._progress(done, total)
        for job in jobs:
            self._jobs.put(job)
        crew = Crew()
        try:
            for _ in range(min(THREADS, len(jobs))):
                crew.start(self._work)
            saved = time.monotonic()
            for _ in jobs:
                length = self._next(crew)
                done, fetched = done + length, fetched + length
                self._progress(done, total)
                if time.monotonic() - saved >= SAVE_EVERY_S:
                    self._save()
                    saved = time.monotonic()
        finally:
            self._stop.set()
            self._source.close()  # which ends what still waits
            crew.end(JOIN_S)  # one that waits on writes nothing any more
            self._save()
        came = tuple(self._found(file.name) for file in wanted)
        digests = self._compare(came)
        self._place(came, last)
        return Fetched(digests, fetched)

    def _listing(self, described: dict[str, str]) -> tuple[RemoteFile, ...]:
        """Return what is to be fetched: what is written down here, or there."""
        said = read_sums(self._directory, described)
        names = sorted(name for name in said if name != DESCRIPTION)
        self._said = {name: (said[name].sha256, str(said[name].source)) for name in names}
        (self._incoming / SUMS).unlink(missing_ok=True)  # an earlier try's
        if not names:
            raw = self._asked(self._source.sums)
            if raw is not None:
                there = f"{self._source.name}/{SUMS}"
                listed = parse_sums(raw.decode("utf-8", "replace"), there)
                names = sorted(name for name in listed if name != DESCRIPTION)
                if not names:
                    raise SourceError(f"{SUMS} there lists no file")
                self._said = {name: (listed[name], there) for name in names}
                (self._incoming / SUMS).write_bytes(raw)
        found = self._asked(lambda: self._source.files(names))
        if len(found) > MAX_FILES:
            raise SourceError(f"over {MAX_FILES} files; a version holds the files of one model")
        hidden = next((file.name for file in found if any(part.startswith(".") for part in file.name.split("/"))), None)
        if hidden is not None:
            raise SourceError(f"{hidden}: names that begin with a dot are not fetched")
        return tuple(file for file in found if file.name not in (DESCRIPTION, SUMS))

    def _check_room(self, wanted: Sequence[RemoteFile]) -> None:
        total = sum(file.size_bytes for file in wanted)
        have = sum(path.stat().st_blocks * 512 for path in self._incoming.rglob("*") if path.is_file())
        status = os.statvfs(self._directory)
        if total - have > status.f_bavail * status.f_frsize:
            raise NoRoomError(
                f"{self._directory}: cannot be fetched: it has {total} bytes, and the file system has "
                f"{status.f_bavail * status.f_frsize} left"
            )

    def _resume(self, wanted: Sequence[RemoteFile]) -> None:
        """Make a place for each file, and take over what an earlier try has left of it, where it is still the same."""
        before = self._saved()
        for file in wanted:
            path = self._incoming / file.name
            part = before.files.get(file.name) if before is not None else None
            blocks = -(-file.size_bytes // BLOCK_BYTES)
            same = (
                part is not None
                and file.tag != ""
                and (part.tag, part.size_bytes) == (file.tag, file.size_bytes)
                and len(part.digests) == 2 * DIGEST_BYTES * blocks
                and all(0 <= at < blocks for at in part.done)
                and path.is_file()
                and path.stat().st_size == file.size_bytes
            )
            if part is None or not same:
                part = _Part(file.tag, file.size_bytes, [], "00" * DIGEST_BYTES * blocks)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                with path.open("xb") as made:
                    made.truncate(file.size_bytes)
            self._made[file.name] = path.stat()
            self._state.files[file.name] = part

    def _left(self, file: RemoteFile) -> list[tuple[RemoteFile, int, int]]:
        done = set(self._state.files[file.name].done)
        return [
            (file, offset, length)
            for at, (offset, length) in enumerate(block_offsets(file.size_bytes))
            if at not in done
        ]

    def _saved(self) -> _State | None:
        path = self._incoming / STATE
        try:
            if path.stat().st_size > MAX_STATE_BYTES:
                return None
            state = json_text.decode(path.read_bytes(), _State)
        except (OSError, ValueError):
            return None
        return state if state.source == self._source.name else None

    def _save(self) -> None:
        with self._lock:
            raw = json_text.encode(self._state)
        beside = self._incoming / f"{STATE}.new"
        try:
            beside.write_bytes(raw)
            beside.rename(self._incoming / STATE)
        except OSError:
            beside.unlink(missing_ok=True)  # the next try then fetches what this one had

    def _next(self, crew: Crew) -> int:
        """Return how many bytes the block had that ended next."""
        while True:
            if self._cancellation.cancelled:
                raise GivenUpError("given up while fetching")
            try:
                ended = self._ended.get(timeout=LOOK_S)
            except queue.Empty:
                if crew.is_over and self._ended.empty():
                    raise MemoryError("the threads that fetch found no memory") from None
                continue
            if isinstance(ended, Exception):
                raise ended
            return ended

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                file, offset, length = self._jobs.get_nowait()
            except queue.Empty:
                return
            try:
                self._again(partial(self._block, file, offset, length))
                self._ended.put(length)
            except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
                self._ended.put(error)
                return

    def _block(self, file: RemoteFile, offset: int, length: int) -> None:
        """Fetch one block, hash it and write it."""
        digest = xxhash.xxh3_128()
        descriptor = os.open(self._incoming / file.name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check_own(file.name, os.fstat(descriptor))
            at = offset
            for piece in self._source.read(file, offset, length):
                if self._stop.is_set() or self._cancellation.cancelled:
                    raise GivenUpError("given up while fetching")
                if at + len(piece) > offset + length:
                    raise SourceError(f"{file.name}: more came than was asked for", again=True)
                digest.update(piece)
                write_all(descriptor, memoryview(piece), at, self._incoming / file.name)
                at += len(piece)
        finally:
            os.close(descriptor)
        if at != offset + length:
            raise SourceError(f"{file.name}: {at - offset} of {length} bytes from {offset} came", again=True)
        index = offset // BLOCK_BYTES
        place = index * DIGEST_BYTES
        if file.blocks and digest.digest() != file.blocks[place : place + DIGEST_BYTES]:
            raise SourceError(f"{file.name}: the block at {offset} was damaged on the way", again=True)
        with self._lock:
            part = self._state.files.get(file.name)
            if part is None:
                return
            part.done.append(index)
            part.digests = (
                f"{part.digests[: 2 * place]}{digest.hexdigest()}{part.digests[2 * (place + DIGEST_BYTES) :]}"
            )

    def _again(self, ask: Callable[[], T]) -> T:
        """Return what ``ask`` gives; asks some times more where that may help."""
        pause_s, tries, waited_s = self._pause_s, 1, 0.0
        while True:
            try:
                return ask()
            except SourceError as error:
                if not error.again or self._stop.is_set():
                    raise
                if error.busy and waited_s < BUSY_S:
                    waited_s += pause_s
                elif tries == TRIES:
                    raise
                else:
                    tries += 1
            self._cancellation.wait(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return what :meth:`_again` does, asked in another thread, so that this one need not wait when given up."""
        answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((self._again(ask), None))
            except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
                answers.put((None, error))

        crew = Crew()
        crew.start(run)
        while True:
            if self._cancellation.cancelled:
                self._stop.set()
                raise GivenUpError("given up while fetching")
            with contextlib.suppress(queue.Empty):
                answer, error = answers.get(timeout=LOOK_S)
                if error is not None:
                    raise error
                return cast("T", answer)
            if crew.is_over and answers.empty():
                raise MemoryError("the thread that asks found no memory")

    def _check_own(self, name: str, status: os.stat_result) -> None:
        if not os.path.samestat(status, self._made[name]):
            with self._lock:
                self._state.files.pop(name, None)  # what it says of it is not of what is there
            self._save()
            raise LoadError(
                f"{self._incoming / name}: another process has put it there meanwhile; one at a time may fetch a "
                f"version, and the file system's locks (flock) did not keep it away"
            )

    def _found(self, name: str) -> SourceFile:
        path = self._incoming / name
        status = path.stat()
        self._check_own(name, status)
        return SourceFile(path, name, file_key(status))

    def _compare(self, came: tuple[SourceFile, ...]) -> dict[str, FileDigest]:
        """Read what lies here before any of it is the version's; returns its digests.

        Raises:
            LoadError: a file is not what came, or not what is said of it. It is fetched anew by the next try.
            GivenUpError: the fetch was given up.
        """
        wanted = Wanted(frozenset(file.name for file in came), frozenset(self._said))
        with BlockReader(wanted, THREADS) as reader:
            reader.read_all(came)
            tally = reader.finish(self._cancellation)
        digests = tally.digests(came)
        wrong = {}
        for file in came:
            said, where = self._said.get(file.name, ("", ""))
            if digests[file.name].sha256 != said:
                wrong[file.name] = (
                    f"its SHA-256 is {digests[file.name].sha256}, as it came from {self._source.name}, and {where} "
                    f"says {said}"
                )
            elif digests[file.name].blocks != bytes.fromhex(self._state.files[file.name].digests):
                wrong[file.name] = (
                    f"what lies in {INCOMING} is not what came from {self._source.name}; it was overwritten, or lost"
                )
        for name in wrong:
            (self._incoming / name).unlink()
            del self._state.files[name]
        if wrong:
            self._save()
            name, why = next(iter(wrong.items()))
            raise LoadError(f"{self._directory / name}: {why}; it was thrown away, and the next load fetches it again")
        return digests

    def _place(self, came: tuple[SourceFile, ...], last: str) -> None:
        """Move the files to their places, ``last`` last, so that nothing half is ever found."""
        if (self._incoming / SUMS).is_file():
            (self._incoming / SUMS).rename(self._directory / SUMS)
        for file in sorted(came, key=lambda file: plain_name(file.name) == plain_name(last)):
            target = self._directory / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            file.check()
            file.path.rename(target)
        shutil.rmtree(self._incoming)
