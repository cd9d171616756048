"""How a version is to be loaded: the flags of a worker, and what ``load`` in a version's ``model.yaml`` may say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from worker.loading import StrategyName, Verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

PEER_STREAMS = 4
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what is put there is checked, see worker.loading.private


_PLAIN = re.compile(r"[!\"$-~]+")
_SOURCE = r"^(peers|(https?|s3)://[^\s]+)$"


class PeerListenError(Exception):
    """Nothing can listen on the address of ``--peer-listen``."""


class LoadDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``load: {...}`` in ``model.yaml``. A strategy given here comes before the worker's ``--load``."""

    strategy: StrategyName | None = None
    verify: Verify = Verify.CACHED
    source: Annotated[str, msgspec.Meta(pattern=_SOURCE, max_length=2048)] | None = None

    @property
    def fetches(self) -> bool:
        """Whether the files come from ``source`` where they are not here."""
        return self.source is not None

    def trouble(self) -> str | None:
        """Return what is wrong with it as a whole, where something is."""
        if self.strategy is StrategyName.STREAM and self.source is None:
            return "strategy is stream, and there is no source; add an http(s):// or s3:// URL, or peers"
        return None if self.source is None else _source_trouble(self.source)


def _source_trouble(source: str) -> str | None:
    """Return what is wrong with a URL, without a word of it: where one is wrong, a password may be anywhere."""
    from urllib.parse import urlsplit

    if "@" in re.split(r"[/?#]", source.partition("://")[2], maxsplit=1)[0]:
        return (
            "source has a name or password before its host, which logs and status would show; take it out (a signature "
            "in the query stays secret; S3's credentials come from the environment)"
        )
    try:
        parts = urlsplit(source)
        known = parts.scheme == "s3" or parts.port is None or parts.port > 0
    except ValueError:  # whose text has parts of it
        known = False
    if not known:
        return "source is no URL: its host or port is wrong (a port is a number from 1 to 65535)"
    if parts.scheme != "s3" and not _PLAIN.fullmatch(source):
        return (
            "source has characters that no URL has, beyond ASCII, or a #; percent-encode them (of a host, give what "
            "DNS has: xn--...)"
        )
    return None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the command line says of loading."""

    strategy: StrategyName = StrategyName.AUTO
    shm: bool = False
    shm_dir: Path = SHARED_MEMORY
    shm_limit_bytes: int = 0
    prefetch: bool = False
    peers: tuple[str, ...] = ()
    peer_listen: str | None = None
    peer_streams: int = PEER_STREAMS
    numa: bool = False
    guard: bool = True

    @classmethod
    def read(cls, given: argparse.Namespace) -> LoadOptions:
        """Return what was given for the flags of :func:`add_flags`."""
        return cls(
            StrategyName(given.load),
            given.shm,
            given.shm_dir,
            given.shm_limit_bytes,
            given.prefetch,
            tuple(given.peers),
            given.peer_listen,
            given.peer_streams,
            given.numa == "bind",
            given.guard_files == "on",
        )


def add_flags(
    add: Callable[..., Any],
    count: Callable[[int, int], Callable[[str], int]],
    listen: Callable[[str], tuple[str, int]],
) -> None:
    """Add the flags of loading to a parser, by its ``add_argument``.

    ``count`` makes a type of bounds, ``listen`` is the type of HOST:PORT.
    """

    def address(text: str) -> str:
        host, port = listen(text)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def addresses(text: str) -> list[str]:
        return [address(one) for one in text.split(",")]

    add(
        "--peers",
        type=addresses,
        default=[],
        metavar="HOST:PORT,...",
        help="workers whose --peer-listen hands out what they have loaded, for versions with load.source: peers",
    )
    add("--peer-listen", type=address, metavar="HOST:PORT", help="hand out the files of loaded models to peers here")
    add(
        "--peer-streams",
        type=count(1, 64),
        default=PEER_STREAMS,
        metavar="N",
        help="how many may be read by peers at once",
    )
    add(
        "--load",
        choices=[name.value for name in StrategyName if name is not StrategyName.STREAM],
        default=StrategyName.AUTO.value,
        help="how a model's files come into memory, where its model.yaml does not say",
    )
    add(
        "--numa",
        choices=("off", "bind"),
        default="off",
        help="bind what is loaded to the memory nodes next to this worker's processors, and lock it in memory",
    )
    add(
        "--guard-files",
        choices=("on", "off"),
        default="on",
        help="have whoever opens a file for writing wait until no loaded model needs it as it was any more",
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
