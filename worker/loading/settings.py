"""How a version is to be loaded: the flags of a worker, and what ``load`` in a version's ``model.yaml`` may say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from worker.loading import StrategyName, Verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what is put there is checked, see worker.loading.private


class LoadDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``load: {...}`` in ``model.yaml``. A strategy given here comes before the worker's ``--load``."""

    strategy: StrategyName | None = None
    verify: Verify = Verify.CACHED


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the command line says of loading."""

    strategy: StrategyName = StrategyName.AUTO
    shm: bool = False
    shm_dir: Path = SHARED_MEMORY
    shm_limit_bytes: int = 0
    prefetch: bool = False

    @classmethod
    def read(cls, given: argparse.Namespace) -> LoadOptions:
        """Return what was given for the flags of :func:`add_flags`."""
        return cls(StrategyName(given.load), given.shm, given.shm_dir, given.shm_limit_bytes, given.prefetch)


def add_flags(add: Callable[..., Any], count: Callable[[int, int], Callable[[str], int]]) -> None:
    """Add the flags of loading to a parser, by its ``add_argument``; ``count`` makes a type of bounds."""
    add(
        "--load",
        choices=[name.value for name in StrategyName],
        default=StrategyName.AUTO.value,
        help="how a model's files come into memory, where its model.yaml does not say",
    )
    add(
        "--prefetch",
        action="store_true",
        help="once all others are up, have the kernel read ahead the files of models that are not loaded",
    )
    add(
        "--shm-dir",
        type=Path,
        default=SHARED_MEMORY,
        metavar="DIR",
        help="shared memory: where the hashes of files are remembered, and weights are kept or unpacked",
    )
    add(
        "--shm",
        action="store_true",
        help="keep weights in shared memory for the next worker with this --id and --namespace",
    )
    add(
        "--shm-limit-bytes",
        type=count(0, 1 << 50),
        default=0,
        metavar="N",
        help="what may be kept there; 0: half of it",
    )
