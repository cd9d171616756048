"""``manifest.json``: what each shard of a model version reads, down to the byte.

::

    {"version": 1, "shards": 4, "tensors": [
      {"name": "h.0.attn.q_proj.weight", "dtype": "F32", "shape": [64, 64], "dim": 0, "padded": 64, "slices": [
        {"shard": 0, "file": "model.safetensors", "offset": 1024, "bytes": 4096, "rows": 1, "stride": 4096,
         "dtype": "F32", "shape": [16, 64], "hash": "..."}]}]}

A slice is ``rows`` pieces of ``bytes / rows`` bytes each, the first at ``offset`` and each ``stride`` behind the one
before: one piece where the tensor is split on dimension 0 or not at all. ``shape`` is that of the shard's array; where
it takes more than ``bytes``, the last columns or elements are padding, zeros. ``hash`` is the xxh3-128 of the pieces.
A tensor with ``parts`` is that many tensors of one size, one behind the other along ``dim``; a slice has its piece of
each, in the same order, and each is padded by itself.
A slice without ``shard`` is every shard's.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import xxhash

from worker import json_text
from worker.paths import within
from worker.sharding import ShardError
from worker.sharding.rules import MOST_PARTS, MOST_SHARDS, Split, check_shards, split_for
from worker.sharding.tensors import ITEM_BYTES, TensorInfo, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from worker.sharding.rules import Rule

NAME: Final = "manifest.json"
GRAPH: Final = re.compile(r"shard-[0-9]+\.onnx")
"""What the graph of one shard is called."""
VERSION: Final = 1
MOST_BYTES: Final = 256 << 20
_PIECES_AT_ONCE: Final = 1 << 20
"""Bytes read at once where a slice has many pieces."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Shape = tuple[Count, ...]


class Slice(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, kw_only=True):
    """What one shard, or where ``shard`` is None every shard, reads of one tensor."""

    shard: Count | None = None
    file: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    offset: Count
    bytes: Count
    rows: Annotated[int, msgspec.Meta(ge=1)] = 1
    stride: Count = 0
    dtype: str
    shape: Shape
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]

    @property
    def piece_bytes(self) -> int:
        """Bytes of each piece."""
        return self.bytes // self.rows

    @property
    def end(self) -> int:
        """Where the last piece ends in the file."""
        return self.offset + (self.rows - 1) * self.stride + self.piece_bytes


class Tensor(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, kw_only=True):
    """One tensor: ``dim`` is the dimension it is split on, ``padded`` the size of that with the padding.

    ``parts`` of it are split each by itself.
    """

    name: str
    dtype: str
    shape: Shape
    dim: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None
    padded: Count = 0
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 1
    slices: tuple[Slice, ...]


class Manifest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A whole split."""

    version: int
    shards: Annotated[int, msgspec.Meta(ge=2, le=MOST_SHARDS)]
    tensors: tuple[Tensor, ...]

    def slices_of(self, shard: int) -> Iterator[tuple[Tensor, Slice]]:
        """Yield what one shard reads."""
        for tensor in self.tensors:
            for part in tensor.slices:
                if part.shard in (None, shard):
                    yield tensor, part


def make_manifest(
    directory: Path,
    tensors: Sequence[TensorInfo],
    shards: int,
    rules: Sequence[Rule] = (),
    told: Callable[[str, int, int], None] = lambda *_: None,
) -> Manifest:
    """Plan the split of ``tensors``, whose files are in ``directory``, and hash every slice: reads each byte once.

    ``told`` is called with a tensor's name, how many are done, and how many there are.

    Raises:
        ShardError: a layer cannot be split so, or a file cannot be read.
    """
    check_shards(shards)
    plans = [(tensor, split_for(tensor, shards, rules)) for tensor in tensors]  # all of them, before the long part
    described = []
    for done, (tensor, split) in enumerate(plans, 1):
        described.append(_describe(directory, tensor, split, shards))
        told(tensor.name, done, len(plans))
    return Manifest(VERSION, shards, tuple(described))


def write_manifest(manifest: Manifest, directory: Path) -> Path:
    """Write ``manifest.json`` into ``directory``, whole or not at all; returns its path.

    Raises:
        ShardError: it cannot be written.
    """
    path = directory / NAME
    part = directory / f".{NAME}.{os.getpid()}"
    try:
        part.write_bytes(_text(manifest))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ShardError(f"{path}: {error.strerror}") from error
    return path


def _text(manifest: Manifest) -> bytes:
    """Return it as JSON, a tensor a line."""
    tensors = b",\n".join(json_text.encode(tensor) for tensor in manifest.tensors)
    return b'{"version":%d,"shards":%d,"tensors":[\n%s\n]}\n' % (manifest.version, manifest.shards, tensors)


def read_manifest(directory: Path, *, files: bool = True) -> Manifest:
    """Read ``manifest.json``, and check it against the sizes of the files that it names, unless ``files`` is false.

    Raises:
        ShardError: it is not there, not as it should be, or a file is not there or shorter than it says.
    """
    path = directory / NAME
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ShardError(f"{path}: over {MOST_BYTES} bytes")
        manifest = json_text.decode(path.read_bytes(), Manifest)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; write it with: warmroute models shard") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ShardError(f"{path}: {error}") from error
    if manifest.version != VERSION:
        raise ShardError(f"{path}: version {manifest.version}: this is for version {VERSION}")
    sizes: dict[str, int] = {}
    for tensor in manifest.tensors:
        known = {part.shard for part in tensor.slices}
        if known != {None} and known != set(range(manifest.shards)):
            raise ShardError(f"{path}: tensor {tensor.name!r}: slices of {len(known)} shards, not of {manifest.shards}")
        for part in tensor.slices:
            name = _check(path, tensor, part)
            if files:
                _check_size(path, directory / name, tensor, part, sizes)
    return manifest


def _check(path: Path, tensor: Tensor, part: Slice) -> str:
    """Look whether a slice can be one; returns its file's path within the directory."""
    what = f"{path}: tensor {tensor.name!r}: slice of shard {part.shard}"
    if part.dtype not in ITEM_BYTES:
        raise ShardError(f"{what}: dtype {part.dtype!r}: known: {', '.join(ITEM_BYTES)}")
    room = bytes_of(part.dtype, part.shape)
    if part.bytes % part.rows or part.bytes > room or (part.rows > 1 and part.stride < part.piece_bytes):
        raise ShardError(f"{what}: {part.bytes} bytes in {part.rows} rows do not fit {part.dtype} {list(part.shape)}")
    name = within(part.file)
    if name is None:
        raise ShardError(f"{what}: file {part.file!r}: must be a path within the version's directory")
    return name


def _check_size(path: Path, file: Path, tensor: Tensor, part: Slice, sizes: dict[str, int]) -> None:
    what = f"{path}: tensor {tensor.name!r}: slice of shard {part.shard}"
    if part.file not in sizes:
        try:
            sizes[part.file] = file.stat().st_size
        except OSError as error:
            raise ShardError(f"{what}: {part.file}: {error.strerror}") from error
    if part.end > sizes[part.file]:
        raise ShardError(f"{what}: ends at byte {part.end} of {part.file}, which has {sizes[part.file]}: it was cut")


def _describe(directory: Path, tensor: TensorInfo, split: Split, shards: int) -> Tensor:
    file = tensor.file.relative_to(directory).as_posix()
    parts = [None] if split.dim is None else range(shards)
    try:
        with tensor.file.open("rb", buffering=0) as opened:
            slices = tuple(_slice(opened.fileno(), file, tensor, split, shard, shards) for shard in parts)
    except OSError as error:
        raise ShardError(f"{tensor.file}: {error.strerror}") from error
    return Tensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        dim=split.dim,
        padded=split.padded,
        parts=split.parts,
        slices=slices,
    )


def _slice(fd: int, file: str, tensor: TensorInfo, split: Split, shard: int | None, shards: int) -> Slice:
    shape, offset, rows, piece, stride = tensor.shape, tensor.offset, 1, tensor.bytes, 0
    if split.dim is not None and shard is not None:
        begin, end = split.part(shard, shards)
        width = split.padded // shards
        inner = bytes_of(tensor.dtype, shape[split.dim + 1 :])
        shape = (*shape[: split.dim], width, *shape[split.dim + 1 :])
        offset += begin * inner
        piece = (end - begin) * inner
        rows = split.parts if split.dim == 0 else tensor.shape[0] * split.parts
        stride = split.size // split.parts * inner
    digest = xxhash.xxh3_128()
    for data in read_pieces(fd, offset, piece, rows, stride):
        digest.update(data)
    return Slice(
        shard=shard,
        file=file,
        offset=offset,
        bytes=piece * rows,
        rows=max(1, rows),
        stride=stride,
        dtype=tensor.dtype,
        shape=shape,
        hash=digest.hexdigest(),
    )


def read_pieces(fd: int, offset: int, piece: int, rows: int, stride: int) -> Iterator[bytes]:
    """Yield the bytes of a slice in order, in blocks of about a megabyte; reads nothing that lies between the pieces.

    Raises:
        ShardError: the file ends before them.
    """
    for row in range(rows):
        at, left = offset + row * stride, piece
        while left:
            data = os.pread(fd, min(left, _PIECES_AT_ONCE), at)
            if not data:
                raise ShardError(f"the file ends at byte {at}, {left} bytes before the slice does")
            yield data
            at += len(data)
            left -= len(data)


def all_bytes(manifest: Manifest) -> int:
    """Return the bytes of all tensors, each once."""
    return sum(bytes_of(tensor.dtype, tensor.shape) for tensor in manifest.tensors)


def shard_bytes(manifest: Manifest, shard: int) -> int:
    """Return the bytes that one shard reads."""
    return sum(part.bytes for _, part in manifest.slices_of(shard))


def tensors_of(directory: Path, readers: Iterable[tuple[str, Callable[[Path], list[TensorInfo]]]]) -> list[TensorInfo]:
    """Return the tensors of a version's directory: of all files that the first reader with any takes.

    Graphs of single shards are passed over: they name the same weights.

    Raises:
        ShardError: there is none, one cannot be read, or two files have a tensor of one name.
    """
    for pattern, read in readers:
        files = sorted(path for path in directory.glob(pattern) if path.is_file() and not GRAPH.fullmatch(path.name))
        if files:
            found = [tensor for path in files for tensor in read(path)]
            seen: set[str] = set()
            for tensor in found:
                if tensor.name in seen:
                    raise ShardError(f"{tensor.file}: tensor {tensor.name!r} stands in another file, too")
                seen.add(tensor.name)
            return found
    raise ShardError(f"{directory}: no weights: {' or '.join(pattern for pattern, _ in readers)} is needed")
