"""The model repository on disk: ``NAME/VERSION/`` with the model's file and, where wanted, a ``model.yaml``.

::

    models/magika/model.yaml        versions: {latest: 2}      # which are served; the newest one if not said
    models/magika/1/model.onnx
    models/magika/1/model.yaml      labels: labels.txt
                                    warmup: [{name: batch-1, shapes: {bytes: [1, 2048]}}]
                                    engine: {...}              # the engine's own options
                                    load: {strategy: mmap}     # how its files come into memory

Whatever is not right is an error that names file, field, value and remedy; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from worker import json_text
from worker.dependencies import MAX_DEPENDENCIES, Dependency, DependencyError, parse
from worker.loading.settings import LoadDescription
from worker.paths import MAX_FILES, PACKED, NotAFileError, has_file, within
from worker.yaml_file import YamlFileError, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from worker.sharding.reading import ShardWeights

NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:-]{1,128}")
"""A model's name, as in the sidecar's configuration schema; not a path to somewhere else."""
VERSION = re.compile(r"[1-9][0-9]{0,8}")
MAX_LABELS = 1 << 20
Fill = Literal["zeros", "ones", "random"]
Dim = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


MAX_VERSIONS = 64
"""Of one model at once."""
T = TypeVar("T", bound=msgspec.Struct)


class StoreError(Exception):
    """The repository is not as it should be; the text names file, field, value and remedy."""

    def __init__(self, text: str) -> None:
        """``text`` may have names as the file system has them; what is no UTF-8 in them is shown escaped."""
        super().__init__(text.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class Versions:
    """Which versions of a model are served: the ``latest`` so many (0: all there are), or exactly those ``named``."""

    latest: int = 1
    named: tuple[str, ...] = ()


class Batching(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How requests are joined: into runs of at most ``max_size`` rows, waiting for each other ``max_delay_ms``."""

    max_size: Annotated[int, msgspec.Meta(ge=2, le=65536)]
    max_delay_ms: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """One kind of request that a warm-up run proves: a name and the input shapes, by tensor; no tensor: the default.

    ``file`` has the inputs themselves; else they are made, of what ``fill`` says. ``recorded``: a request's, which
    nobody has said that the model must take.
    """

    name: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    file: Path | None = None
    fill: Fill = "zeros"
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Which shard of every version a worker is told to hold, and for which group; see :class:`HeldShard`."""

    index: int
    group: str = ""
    generation: int = 1


@dataclass(frozen=True, slots=True)
class HeldShard:
    """Which shard of a version a worker holds: ``index`` of ``count``, answering together with those of ``group``.

    ``generation``: shards of different ones do not belong together. ``weights`` are there once they are loaded.
    """

    index: int
    count: int
    group: str = ""
    generation: int = 1
    weights: ShardWeights | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model version in the repository. ``directory`` and ``model_file`` are None where the engine needs no file."""

    name: str
    version: str
    directory: Path | None = None
    model_file: Path | None = None
    labels: tuple[str, ...] = ()
    warmup: tuple[ShapeClass, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    """What ``model.yaml`` says of files, by their path within the directory."""
    signature: str = field(default="", compare=False)
    """What changes when a file of the directory does: names, sizes, times and inodes, not the content."""
    load: LoadDescription = field(default_factory=LoadDescription)
    max_requests: int = 0
    """So many requests may be let in at once, those that wait included; 0: as many as the worker takes."""
    lazy: bool | None = None
    """Whether it is loaded when a request comes for it, and not before; None: as the worker was told."""
    batching: Batching | None = None
    """Whether requests are joined; None: each runs alone."""
    idle_unload_s: float | None = None
    """After so long without a request it is unloaded; 0: never; None: as the worker was told."""
    content_hash: str = ""
    """What is equal where the files are; known once they have been read."""
    in_shared_memory: bool = False
    """Whether ``model_file`` and what lies beside it are copies in shared memory."""
    shard: HeldShard | None = None
    """Which shard of it is held; None: all of it."""
    depends_on: tuple[Dependency, ...] = ()
    """What must answer before it is loaded, and while it serves."""
    deadline_s: float = 0.0
    """How long a load waits for that before it fails; 0: as long as it takes."""

    @property
    def config_revision(self) -> str:
        """Return what is equal where a version's description means the same: labels, warm-up and engine options.

        How the files come into memory changes nothing of what the model computes.
        """
        classes = sorted(
            (one.name, sorted(one.shapes.items()), one.file.name if one.file else "", one.fill) for one in self.warmup
        )
        said = (self.labels, classes, self.options)
        return hashlib.blake2b(json_text.encode_sorted(said), digest_size=8).hexdigest()


_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Warmup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
    shapes: dict[str, tuple[Dim, ...]] = msgspec.field(default_factory=dict)
    file: Annotated[str, msgspec.Meta(pattern=r"\.(json|npz)$")] | None = None
    fill: Fill = "zeros"


class _Description(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    labels: str | None = None
    warmup: Annotated[tuple[_Warmup, ...], msgspec.Meta(max_length=64)] = ()
    engine: dict[str, Any] = msgspec.field(default_factory=dict)
    files: Annotated[dict[str, _Sha256], msgspec.Meta(max_length=MAX_FILES)] = msgspec.field(default_factory=dict)
    load: LoadDescription = LoadDescription()
    depends_on: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_DEPENDENCIES)] = ()
    deadline_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    max_requests: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    batching: Batching | None = None


class _Latest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    latest: Annotated[int, msgspec.Meta(ge=1, le=MAX_VERSIONS)]


_Number = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]


class _ModelDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``NAME/model.yaml``: what holds for all versions of a model."""

    versions: (
        Literal["all"]
        | _Latest
        | Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1, max_length=MAX_VERSIONS)]
        | None
    ) = None
    lazy: bool | None = None
    idle_unload_s: Annotated[float, msgspec.Meta(ge=0, le=86_400_000)] | None = None


def scan(
    root: Path | None,
    names: Iterable[str],
    file_name: str | None,
    versions: Versions = Versions(),
    place: ShardPlace | None = None,
) -> list[ModelFiles]:
    """Find what to serve: ``names``, or where that is empty every model under ``root``; a model's newest version first.

    ``file_name`` is the file that the engine loads from a version's directory. Where it is None the engine needs none:
    a named model without a directory is then version 1 with nothing in it. ``versions`` holds for models whose own
    ``model.yaml`` says nothing else. ``place``: of each version that shard is held, and no more.

    Raises:
        StoreError: nothing to serve, or a model that is named or found is not as it should be.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if not NAME.fullmatch(name):
            raise StoreError(f"model name {name!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    if root is None:
        if file_name is not None:
            raise StoreError(f"no model repository: give --models DIR with NAME/VERSION/{file_name} in it")
        if not wanted:
            raise StoreError("no model: give --models DIR, or name one with --model NAME")
        return [ModelFiles(name, "1") for name in wanted]
    wanted = wanted or names_in(root)
    if not wanted:
        raise StoreError(f"{root}: holds no model; add NAME/VERSION/{file_name or 'model.yaml'}")
    return [files for name in wanted for files in choose(root, name, file_name, versions, place)]


def names_in(root: Path) -> list[str]:
    """Return the names of the directories that stand for models.

    Raises:
        StoreError: ``root`` is no directory, or cannot be looked at.
    """
    try:
        if not root.is_dir():
            raise StoreError(f"{root}: not a directory; give --models the directory that holds NAME/VERSION/")
        return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise _unreadable(root, error) from error


def choose(
    root: Path, name: str, file_name: str | None, versions: Versions, place: ShardPlace | None = None
) -> list[ModelFiles]:
    """Return the versions of one model that are to be served, the newest first; see :func:`scan`.

    Every file that describes a model is read below here, and whatever goes wrong with one is that model's error alone.

    Raises:
        StoreError: there is no such model, or it is not as it should be.
    """
    try:
        return _choose(root, name, file_name, versions, place)
    except StoreError:
        raise
    except OSError as error:
        raise _unreadable(root / name, error) from error
    except Exception as error:
        raise StoreError(f"{root / name}: cannot be read: {type(error).__name__}: {error}") from error


def is_there(root: Path, name: str) -> bool:
    """Return whether there is a directory for the model.

    Raises:
        StoreError: it cannot be looked at.
    """
    try:
        return (root / name).is_dir()
    except OSError as error:
        raise _unreadable(root / name, error) from error


def unfit(directory: Path) -> str:
    """Return what to say of a model's directory whose name no model may have."""
    return f"{directory}: name {directory.name!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -"


def _unreadable(path: Path, error: OSError) -> StoreError:
    """Return what to say of a file that left meanwhile, may not be read, or is where nothing answers."""
    if isinstance(error, NotAFileError):
        return StoreError(f"{error.filename}: {error.strerror}")
    remedy = "let the worker's user read it" if isinstance(error, PermissionError) else "is all of it there?"
    return StoreError(f"{os.fsdecode(error.filename or path)}: {error.strerror or error}; {remedy}")


def _choose(
    root: Path, name: str, file_name: str | None, versions: Versions, place: ShardPlace | None
) -> list[ModelFiles]:
    directory = root / name
    if not NAME.fullmatch(name):
        raise StoreError(unfit(directory))
    if not directory.is_dir():
        if file_name is None:
            return [ModelFiles(name, "1")]
        raise StoreError(f"{directory}: no such model; add {name}/1/{file_name} or take --model {name} away")
    there = {}
    for path in directory.iterdir():
        if path.name.startswith(".") or not path.is_dir():
            continue
        if not VERSION.fullmatch(path.name):
            raise StoreError(
                f"{path}: version {path.name!r}: a version is a number from 1 to 999999999, without leading zeros"
            )
        there[path.name] = path
    if not there:
        raise StoreError(f"{directory}: holds no version; add {name}/1/{file_name or 'model.yaml'}")
    source = directory / "model.yaml"
    said = _describe(source, _ModelDescription) if has_file(source) else _ModelDescription()
    policy = versions if said.versions is None else _policy(said.versions)
    missing = next((version for version in policy.named if version not in there), None)
    if missing is not None:
        by = f"{source}: versions" if said.versions is not None else "--versions"
        raise StoreError(f"{by}: version {missing} of model {name!r}: no such directory {directory / missing}")
    newest_first = sorted(policy.named or there, key=int, reverse=True)
    chosen = newest_first if policy.named or not policy.latest else newest_first[: policy.latest]
    if len(chosen) > MAX_VERSIONS:
        raise StoreError(f"{directory}: {len(chosen)} versions to serve, at most {MAX_VERSIONS}; name those or fewer")
    return [
        replace(_read(name, there[version], file_name, place), lazy=said.lazy, idle_unload_s=said.idle_unload_s)
        for version in chosen
    ]


def _policy(said: Literal["all"] | _Latest | tuple[int, ...]) -> Versions:
    if isinstance(said, _Latest):
        return Versions(said.latest)
    return Versions(0) if said == "all" else Versions(named=tuple(dict.fromkeys(str(version) for version in said)))


def _read(name: str, directory: Path, file_name: str | None, place: ShardPlace | None) -> ModelFiles:
    shard = None if place is None else _held(directory, place)
    model_file = directory / file_name if file_name is not None else None
    if model_file is not None and shard is not None:
        own = model_file.with_name(f"shard-{shard.index}{model_file.suffix}")
        model_file = own if own.is_file() else model_file
    if model_file is not None and not model_file.is_file():
        packed = (directory / f"{file_name}{suffix}" for suffix in PACKED)
        model_file = next((path for path in packed if path.is_file()), model_file)
    source = directory / "model.yaml"
    description = _describe(source, _Description) if has_file(source) else _Description()
    trouble = description.load.trouble()
    if trouble is not None:
        raise StoreError(f"{source}: load: {trouble}")
    if model_file is not None and not model_file.is_file() and not description.load.fetches:
        raise StoreError(f"{model_file}: no such file; the engine loads {file_name} from a version's directory")
    names = [shape_class.name for shape_class in description.warmup]
    twice = next((shape_name for shape_name in names if names.count(shape_name) > 1), None)
    if twice is not None:
        raise StoreError(f"{source}: warmup: {twice!r} is there twice; give each shape class a name of its own")
    outside = next((path for path in description.files if within(path) is None), None)
    if outside is not None:
        raise StoreError(f"{source}: files: {outside!r}: name a file of this version, relative to its directory")
    return ModelFiles(
        name,
        directory.name,
        directory,
        model_file,
        _labels(source, directory, description.labels) if description.labels is not None else (),
        tuple(_shape_class(source, directory, one) for one in description.warmup),
        description.engine,
        {within(path) or path: digest for path, digest in description.files.items()},
        signature(directory, source if description.load.fetches else None),
        description.load,
        shard=shard,
        depends_on=_dependencies(source, description.depends_on),
        deadline_s=description.deadline_s,
        max_requests=description.max_requests,
        batching=description.batching,
    )


def _shape_class(source: Path, directory: Path, said: _Warmup) -> ShapeClass:
    if said.file is None:
        return ShapeClass(said.name, dict(said.shapes), fill=said.fill)
    where = f"{source}: warmup {said.name!r}"
    if said.shapes or said.fill != "zeros":
        raise StoreError(f"{where}: file: the inputs are in {said.file}, so leave shapes and fill away")
    name = within(said.file)
    if name is None or not (directory / name).is_file():
        raise StoreError(f"{where}: file: {said.file!r}: no such file beside it; name a .json or .npz of this version")
    return ShapeClass(said.name, file=directory / name)


def _dependencies(source: Path, texts: tuple[str, ...]) -> tuple[Dependency, ...]:
    try:
        return tuple(parse(text) for text in texts)
    except DependencyError as error:
        raise StoreError(f"{source}: depends_on: {error}") from error


def _held(directory: Path, place: ShardPlace) -> HeldShard:
    from worker.sharding import ShardError
    from worker.sharding.manifest import read_manifest

    try:
        # The weights are looked at when they are loaded: what is amiss with them is that version's trouble alone.
        count = read_manifest(directory, files=False).shards
    except ShardError as error:
        raise StoreError(f"--shard {place.index}: {error}") from error
    if place.index >= count:
        raise StoreError(f"--shard {place.index}: {directory}/manifest.json has shards 0 to {count - 1}")
    return HeldShard(place.index, count, place.group, place.generation)


def signature(directory: Path, alone: Path | None = None) -> str:
    """Return what is equal as long as nobody touched a file of ``directory``: names, sizes, times and inodes.

    ``alone``: the only file that counts, where the worker itself brings the others.

    Raises:
        StoreError: a file cannot be looked at, or there are more than ``MAX_FILES``.
    """
    digest, count, folders, path = hashlib.blake2b(digest_size=16), 0, [str(directory)], ""
    try:
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.name.startswith(".") or (alone is not None and entry.path != str(alone)):
                        continue
                    count += 1
                    if count > MAX_FILES:
                        raise StoreError(f"{directory}: over {MAX_FILES} files; a version holds the files of one model")
                    path = entry.path
                    path.encode()  # what loads, hashes and hands on the files names them in UTF-8
                    if entry.is_dir():
                        folders.append(path)
                        continue
                    status = entry.stat()
                    said = (path, status.st_size, status.st_mtime_ns, status.st_ino)
                    digest.update(json_text.encode(said))
    except OSError as error:
        raise _unreadable(directory, error) from error
    except UnicodeEncodeError as error:
        raise StoreError(f"{path}: its name is not UTF-8; rename the file, or take it away") from error
    return digest.hexdigest()


def _describe(source: Path, kind: type[T]) -> T:
    try:
        raw = read_yaml(source)
    except YamlFileError as error:
        raise StoreError(f"{source}: {error}") from error
    try:
        return msgspec.convert({} if raw is None else raw, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__)
        raise StoreError(f"{source}: {error}; known fields: {known} (see docs/worker.md)") from error


def _labels(source: Path, directory: Path, name: str) -> tuple[str, ...]:
    path = directory / name
    if path.parent != directory or not path.is_file():
        raise StoreError(f"{source}: labels: {name!r}: no such file beside it; name a text file with one label a line")
    try:
        labels = tuple(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: not UTF-8: {error}") from error
    if not 1 <= len(labels) <= MAX_LABELS:
        raise StoreError(f"{path}: {len(labels)} lines; a label file has 1 to {MAX_LABELS}, one label a line")
    return labels
