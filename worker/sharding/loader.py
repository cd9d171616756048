"""The loader of a worker that holds one shard: brings in that shard's slices, nothing else of the files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.engines import GivenUpError
from worker.loading import Loaded, LoadError
from worker.sharding import ShardError
from worker.sharding.manifest import NAME, read_manifest
from worker.stages import Stage

if TYPE_CHECKING:
    from worker.engines import Cancellation
    from worker.loading import Loader, Progress
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
        if files.shard is None:
            return files
        return dataclasses.replace(files, shard=dataclasses.replace(files.shard, weights=self.weights))

    def release(self) -> None:
        """Let go of the weights."""
        if self.weights is not None:
            self.weights.close()


class ShardLoader:
    """Loads a version's shard where it is to hold one; else another loader does."""

    def __init__(self, whole: Loader) -> None:
        """``whole`` loads versions that are not split."""
        self._whole = whole

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        """Map and check the slices of the version's shard; see :class:`worker.loading.Loader`."""
        if files.shard is None or files.directory is None:
            return self._whole.load(files, progress, cancellation, stages)

        def go_on() -> None:
            if cancellation.cancelled:
                raise GivenUpError("given up while reading")

        try:
            with stages.measure(Stage.OPEN):
                from worker.sharding.reading import read_shard  # with it numpy, which others need not wait for

                manifest = read_manifest(files.directory)
            if manifest.shards != files.shard.count:
                raise ShardError(
                    f"{files.directory / NAME}: {manifest.shards} shards now, {files.shard.count} when it was found"
                )
            with stages.measure(Stage.PAGE_IN):  # every byte is hashed as it comes, so the two cannot be told apart
                weights = read_shard(files.directory, manifest, files.shard.index, read=progress, go_on=go_on)
        except ShardError as error:
            raise LoadError(str(error)) from error
        return LoadedShard(weights.content_hash, weights.bytes, weights.bytes, weights=weights)
