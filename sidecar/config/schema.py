"""The schema of the configuration, as msgspec describes it."""

from __future__ import annotations

import functools

from msgspec import inspect

from sidecar.settings import Settings

Object = inspect.StructType | inspect.DataclassType


@functools.cache
def schema() -> inspect.StructType:
    """Return msgspec's description of :class:`Settings`."""
    described = inspect.type_info(Settings)
    if not isinstance(described, inspect.StructType):
        raise TypeError("Settings is a Struct")
    return described


def bare(kind: inspect.Type) -> inspect.Type:
    """Return ``kind`` without metadata and without ``None`` as an alternative."""
    while True:
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
        else:
            return kind
