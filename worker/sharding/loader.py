"""The loader of a worker that holds one shard: brings in that shard's slices, nothing else of the files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from worker.engines import GivenUpError
from worker.loading import Loaded, LoadError
from worker.loading.full import Full
from worker.loading.sums import read_sums
from worker.loading.task import LoadTask
from worker.loading.verification import Verification
from worker.loading.version_files import version_files
from worker.paths import within
from worker.sharding import ShardError
from worker.sharding.manifest import GRAPH, NAME, read_manifest, shard_bytes
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.loading import Loader, Progress
    from worker.loading.hash_cache import HashCache
    from worker.loading.version_files import SourceFile
    from worker.sharding.manifest import Manifest
    from worker.sharding.reading import ShardWeights
    from worker.stages import Stages
    from worker.store import ModelFiles


@dataclass(frozen=True, slots=True)
class LoadedShard(Loaded):
    """What was brought in of one shard."""

    weights: ShardWeights | None = None

    def facts(self) -> dict[str, str | int | float | None]:
        """Return what the event ``model.warm`` says of the loading."""
        return {"strategy": "shard", "bytes_total": self.bytes_total, "bytes_read": self.bytes_read}

    def placed(self, files: ModelFiles) -> ModelFiles:
        """Return ``files`` with the shard's weights, for the engine."""
        files = dataclasses.replace(files, content_hash=self.content_hash)
        if files.shard is None:
            return files
        return dataclasses.replace(files, shard=dataclasses.replace(files.shard, weights=self.weights))

    def release(self) -> None:
        """Let go of the weights."""
        if self.weights is not None:
            self.weights.close()


@dataclass(frozen=True, slots=True)
class _Files:
    """A version's files as one shard has them."""

    own: tuple[SourceFile, ...]
    """What is not described slice by slice: its graph, labels, the manifest; not the graphs of other shards."""
    weights: tuple[SourceFile, ...]
    """Those with slices of this shard."""
    uncounted: Callable[[str], bool]
    """True of the name of a file that is no part of what the shard's content hash has of whole files."""


class ShardLoader:
    """Loads a version's shard where it is to hold one; else another loader does.

    Its slices are held to the manifest's hashes, and whole files to their SHA-256 where one is written down: its graph,
    the manifest, and a file of weights too, which is then read whole, once for as long as ``cache`` remembers it.
    """

    def __init__(self, whole: Loader, cache: HashCache | None = None, threads: int = 1) -> None:
        """``whole`` loads versions that are not split. ``cache``: what files hashed to. ``threads``: how many hash."""
        self._whole = whole
        self._cache = cache
        self._threads = threads

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Check the version's files and map the slices of its shard; see :class:`worker.loading.Loader`."""
        if files.shard is None or files.directory is None:
            return self._whole.load(files, progress, cancellation, stages)
        try:
            return self._load(files, files.directory, files.shard.index, progress, cancellation, stages)
        except ShardError as error:
            raise LoadError(str(error)) from error

    def _load(
        self,
        files: ModelFiles,
        directory: Path,
        shard: int,
        progress: Progress,
        cancellation: Cancellation,
        stages: Stages,
    ) -> LoadedShard:
        with stages.measure(Stage.OPEN):
            from worker.sharding.reading import read_shard  # with it numpy, which others need not wait for

            manifest = read_manifest(directory)
            if files.shard is not None and manifest.shards != files.shard.count:
                raise ShardError(
                    f"{directory / NAME}: {manifest.shards} shards now, {files.shard.count} when it was found"
                )
            here = _files(files, directory, manifest, shard)
            said = read_sums(directory, files.sha256)
            verification = Verification(
                directory,
                (*here.own, *(file for file in here.weights if file.name in said)),
                files.sha256,
                files.load.verify,
                self._cache,
                uncounted=here.uncounted,
            )
        slices_bytes = shard_bytes(manifest, shard)
        found = (*here.own, *here.weights)
        task = LoadTask(found, self._threads, lambda *_: None, cancellation, stages, verification.wanted)
        task.files = task.wanted_files
        hashed_bytes = task.total_bytes
        task.progress = lambda done, _: progress(done, hashed_bytes + slices_bytes)
        brought = Full().bring_in(task)
        own_hash, hashed_from = verification.conclude(brought.digests, brought.sums)

        def go_on() -> None:
            if cancellation.cancelled:
                raise GivenUpError("given up while reading")

        def note(done: int, total: int) -> None:
            progress(hashed_bytes + done, hashed_bytes + total)

        with stages.measure(Stage.PAGE_IN):  # every byte is hashed as it comes, so the two cannot be told apart
            weights = read_shard(directory, manifest, shard, read=note, go_on=go_on)
        try:
            for file in found:
                file.check()
        except LoadError:
            weights.close()
            raise
        return LoadedShard(
            xxhash.xxh3_128_hexdigest(f"{own_hash}\0{weights.content_hash}"),
            brought.bytes_read + weights.bytes,
            weights.bytes,
            hashed_from=hashed_from,
            files=found,
            weights=weights,
        )


def _files(files: ModelFiles, directory: Path, manifest: Manifest, shard: int) -> _Files:
    found = version_files(directory)
    graph = "" if files.model_file is None else files.model_file.relative_to(directory).as_posix()
    sliced = {within(part.file) for tensor in manifest.tensors for part in tensor.slices}
    read = {within(part.file) for _, part in manifest.slices_of(shard)}

    def uncounted(name: str) -> bool:
        return name != graph and (name in sliced or GRAPH.fullmatch(name) is not None)

    return _Files(
        tuple(file for file in found if not uncounted(file.name)),
        tuple(file for file in found if file.name in read and file.name != graph),
        uncounted,
    )
