"""The schema of the configuration, as msgspec describes it."""

from __future__ import annotations

import functools

import msgspec
from msgspec import inspect

from sidecar.settings import Settings

Object = inspect.StructType | inspect.DataclassType


def schema() -> inspect.StructType:
    """Return msgspec's description of :class:`Settings`."""
    return described(Settings)


@functools.cache
def described(shape: type[msgspec.Struct]) -> inspect.StructType:
    """Return msgspec's description of ``shape``."""
    found = inspect.type_info(shape)
    if not isinstance(found, inspect.StructType):
        raise TypeError(f"{shape.__name__} is no Struct")
    return found


def bare(kind: inspect.Type) -> inspect.Type:
    """Return ``kind`` without metadata and without ``None`` as an alternative."""
    while True:
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
        else:
            return kind
