"""The model that a bench starts: where its files are, what it is asked, and a repository that holds it for a worker."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from worker.bench.contenders import merged
from worker.loading import LoadError
from worker.loading.unpacking import check_plain, plain_name, unpacker
from worker.loading.version_files import version_files
from worker.paths import PACKED
from worker.store import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.loading.version_files import SourceFile


NAME: Final = "benched"
"""What the model is called in the repositories that are made here."""
_DESCRIPTION: Final = "model.yaml"


class ModelError(Exception):
    """There is no model there that could be benched; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class BenchModel:
    """One model version on disk, and the shapes it is asked with: those of its first declared shape class, or ones."""

    directory: Path
    file: Path
    description: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files that hold it, without its description."""
        return version_files(self.directory)

    @property
    def packed(self) -> tuple[SourceFile, ...]:
        """Those of its files that are unpacked as they are loaded."""
        return tuple(file for file in self.files if file.path.suffix in PACKED)

    @property
    def size_bytes(self) -> int:
        """What they take on disk."""
        return sum(file.size_bytes for file in self.files)

    @property
    def shown_shapes(self) -> str:
        """The shapes that it is asked with, for people."""
        return ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items()) or "1 for what varies"


def find_model(
    path: Path, given: Mapping[str, tuple[int, ...]] | None = None, file_name: str = "model.onnx"
) -> BenchModel:
    """Find the model at ``path``: a version's directory, a model's directory (its highest version), or its file.

    ``given``: shapes to ask it with, and to prove it warm with, instead of those that its description declares.

    Raises:
        ModelError: there is none.
    """
    directory = path.parent if path.is_file() else path
    if _model_file(directory, file_name) is None and directory.is_dir():
        versions = [one for one in directory.iterdir() if VERSION.fullmatch(one.name) and one.is_dir()]
        directory = max(versions, key=lambda one: int(one.name), default=directory)
    file = _model_file(directory, file_name)
    if file is None:
        raise ModelError(f"{path}: no {file_name} there; give a version's directory, as models/synthetic/1")
    source = directory / _DESCRIPTION
    try:
        description = yaml.safe_load(source.read_text()) if source.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelError(f"{source}: not valid YAML: {error}") from error
    if not isinstance(description, dict):
        raise ModelError(f"{source}: expected fields")
    classes = description.get("warmup") or [{}]
    try:
        shapes = msgspec.convert(classes[0].get("shapes") or {}, dict[str, tuple[int, ...]])
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{source}: warmup: {error}") from error
    if given:
        shapes = {**shapes, **given}
        classes = [{"name": "benched", "shapes": {name: list(shape) for name, shape in shapes.items()}}]
        description = {**description, "warmup": classes}
    found = BenchModel(directory, file, description, shapes)
    _check_packed(found)
    return found


def _model_file(directory: Path, file_name: str) -> Path | None:
    """Return the model's file, plain or packed, or None."""
    names = (file_name, *(f"{file_name}{suffix}" for suffix in PACKED))
    return next((path for name in names if (path := directory / name).is_file()), None)


def _check_packed(model: BenchModel) -> None:
    """Do nothing where what is packed can be unpacked, each file to a name of its own.

    Raises:
        ModelError: it cannot.
    """
    try:
        check_plain(model.files, model.directory)
        for file in model.packed:
            unpacker(file.name)
    except LoadError as error:
        raise ModelError(str(error)) from error
    except ValueError as error:
        raise ModelError(f"{file.path}: {error}") from error


class PlainFiles:
    """Where a plain session finds a model: as it lies, or for a packed one in a directory of its own beside it.

    There each start unpacks it anew, as one would who has no worker; files that are not packed are linked there.
    """

    def __init__(self, model: BenchModel) -> None:
        """Make the directory, where one is needed.

        Raises:
            ModelError: links cannot be made beside the model.
        """
        self.file = model.file
        self.unpacks: dict[str, str] = {}
        """Packed files, and where to they are to be unpacked."""
        self._place: Path | None = None
        if not model.packed:
            return
        self._place = model.directory.parent / f".bench-{os.getpid()}-plain"
        self.file = self._place / plain_name(model.file.name)
        packed = {file.name for file in model.packed}
        try:
            for file in model.files:
                place = self._place / plain_name(file.name)
                place.parent.mkdir(parents=True, exist_ok=True)
                if file.name in packed:
                    self.unpacks[str(file.path)] = str(place)
                else:
                    place.hardlink_to(file.path)
        except OSError as error:
            self.close()
            raise _no_links(self._place, error) from error

    def clear(self) -> None:
        """Take away what the last start has unpacked."""
        for place in self.unpacks.values():
            with suppress(FileNotFoundError):
                Path(place).unlink()

    def close(self) -> None:
        """Take the directory away."""
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)


def _no_links(place: Path, error: OSError) -> ModelError:
    return ModelError(f"{place}: {error.strerror}: the bench links the model's files beside it")


class Repository:
    """A repository that holds one model by hard links, with a description of its own; gone at the end of ``with``."""

    def __init__(self, model: BenchModel, changes: Mapping[str, Any]) -> None:
        """``changes`` to the description, by section.

        Raises:
            ModelError: links cannot be made beside the model.
        """
        self.root = model.directory.parent / f".bench-{os.getpid()}-{id(self):x}"
        version = self.root / NAME / "1"
        try:
            for file in model.files:
                place = version / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.hardlink_to(file.path)
        except OSError as error:
            self.close()
            raise _no_links(self.root, error) from error
        description = merged(model.description, changes)
        if description:
            (version / _DESCRIPTION).write_text(yaml.safe_dump(description))

    def close(self) -> None:
        """Take it away."""
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(specs: list[dict[str, Any]], shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return the body of an inference request of zeros, by the inputs that ``GET /v2/models/NAME`` lists."""
    inputs = []
    for spec in specs:
        shape = shape_of(spec["name"], spec["shape"], shapes)
        count = 1
        for dim in shape:
            count *= dim
        zero: object = "" if spec["datatype"] == "BYTES" else False if spec["datatype"] == "BOOL" else 0
        inputs.append({"name": spec["name"], "datatype": spec["datatype"], "shape": shape, "data": [zero] * count})
    return json.dumps({"inputs": inputs}).encode()


def shape_of(name: str, dims: list[int], shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the shape that input ``name`` is asked with."""
    given = shapes.get(name)
    return list(given) if given is not None else [1 if dim < 0 else dim for dim in dims]
