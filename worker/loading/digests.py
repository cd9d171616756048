"""What the files of a version hash to. Equal where names and bytes are, on whatever path, host or strategy.

A file is hashed in blocks of 16 MiB, each with xxh3-128, so that several threads can share one file and a part of it
can be checked by itself; the file's hash is that of its blocks' hashes, and the content hash goes over each file's
name, size and hash. It finds replicas that loaded something else, and damage; against forgery there is SHA256SUMS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK_BYTES = 16 << 20
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file's size and what its blocks hash to, in order; ``sha256`` is empty where it was not asked for."""

    size_bytes: int
    blocks: bytes
    sha256: str = ""

    @property
    def whole(self) -> bool:
        """True where every block was hashed; not where SHA256SUMS was believed instead."""
        return len(self.blocks) == -(-self.size_bytes // BLOCK_BYTES) * DIGEST_BYTES


def block_offsets(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Return offset and length of each block of a file."""
    for offset in range(0, size_bytes, BLOCK_BYTES):
        yield offset, min(BLOCK_BYTES, size_bytes - offset)


def content_hash(files: Iterable[tuple[str, FileDigest]]) -> str:
    """Return the hash of a version by its files' names and digests; empty where there are none."""
    whole = xxhash.xxh3_128()
    count = 0
    for name, digest in sorted(files):
        whole.update(f"{name}\0{digest.size_bytes}\0".encode())
        whole.update(xxhash.xxh3_128_digest(digest.blocks))
        count += 1
    return whole.hexdigest() if count else ""


def manifest_hash(sums: Iterable[tuple[str, str]]) -> str:
    """Return the hash of a version by what its SHA256SUMS says; the same on every host that believes the same."""
    whole = xxhash.xxh3_128()
    for name, sha256 in sorted(sums):
        whole.update(f"{name}\0sha256\0{sha256}\0".encode())
    return whole.hexdigest()
