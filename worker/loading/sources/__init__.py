"""Where a version's files come from when they are not here: a web server, an object store, or another worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_SUMS_BYTES = 4 << 20
PEERS = "peers"
SCHEMES = ("http", "https", "s3")


class SourceError(Exception):
    """It did not give what was asked for; the text says why.

    ``again``: it may be worth asking once more; ``busy``: it is there, and has no time now.
    """

    def __init__(self, text: str, *, again: bool = False, busy: bool = False) -> None:
        super().__init__(text)
        self.again = again or busy
        self.busy = busy


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the version. ``tag`` is equal where its content is; ``blocks`` are its digests, where it is known."""

    name: str
    size_bytes: int
    tag: str
    blocks: bytes = b""


class Source(Protocol):
    """One place to fetch a version from. Used from several threads at once."""

    name: str
    """For messages; holds no password."""

    def sums(self) -> bytes | None:
        """Return the SHA256SUMS of the version, which says what its files are; None where :meth:`files` knows itself.

        Raises:
            SourceError: it cannot be had.
        """

    def files(self, names: Sequence[str]) -> tuple[RemoteFile, ...]:
        """Return what is known of the files ``names``, or of all where the source itself says which there are.

        Raises:
            SourceError: one is not there, or nobody answers.
        """

    def read(self, file: RemoteFile, offset: int, length: int) -> Iterator[bytes]:
        """Return a part of a file, piece by piece.

        Raises:
            SourceError: it cannot be had, or is of another content by now.
        """

    def close(self) -> None:
        """Let go of connections."""


def open_source(text: str, peers: Sequence[str], model: str, version: str) -> Source:
    """Return the source that ``load.source`` names; its libraries are imported only now.

    Raises:
        SourceError: it needs what is not installed or not configured.
    """
    if text == PEERS:
        if not peers:
            raise SourceError("load.source is peers, and the worker knows none; name some with --peers")
        from worker.loading.sources.peer import PeerSource

        return PeerSource(peers, model, version)
    if text.startswith("s3://"):
        from worker.loading.sources.s3 import S3Source

        return S3Source(text)
    from worker.loading.sources.http import HttpSource

    return HttpSource(text)
