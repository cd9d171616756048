"""What a new configuration changes in a running sidecar: what it takes over, and what needs a new process. Pure.

Each field's reload class (``sidecar/settings/``) decides. Listeners, models and endpoints are told apart by their
address, name and URL, not by their place in a list.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from router.urls import MASK, protocol_of
from sidecar.config.problems import Path, dotted, may_be_secret, shown
from sidecar.config.schema import Object, bare, schema
from sidecar.config.semantics import examine
from sidecar.config.state import Change
from sidecar.discovery.planned import static_endpoints
from sidecar.settings import Endpoint, Listener, Model, Reload, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ABSENT = "absent"
"""Stands for the value of something that is not there."""

_KEYS: dict[type, str] = {Listener: "address", Model: "name", Endpoint: "url"}


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """What a running sidecar makes of a new configuration. ``restart`` are changes that it cannot take over."""

    settings: Settings
    applied: tuple[Change, ...]
    restart: tuple[Change, ...]


def revision(settings: Settings) -> str:
    """Return a short hash of everything in ``settings``: the same for the same configuration, on every machine."""
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:10]


def merge(running: Settings, wanted: Settings) -> Merged:
    """Return ``wanted`` as far as a running sidecar can take it over, and what changes thereby."""
    walk = _Walk()
    settings = walk.struct(schema(), running, wanted, "")
    assert isinstance(settings, Settings)  # noqa: S101  the walk keeps types
    return Merged(settings, tuple(walk.applied), tuple(walk.restart))


def would_break(running: Settings, wanted: Settings, merged: Merged) -> tuple[str, ...]:
    """Return what would be wrong with ``merged``, a line each, although both of what it is made of are good.

    That is what a file could not say either, and a model that would lose the endpoints by which callers reach it now
    because the listener or the store that goes with the new ones waits for a restart.
    """
    if not merged.restart or not merged.applied:
        return ()  # all of the one, or all of the other
    found = [
        f"{_place(merged.settings, one.path)}: {one.remedy}" for one in examine(merged.settings) if not one.warning
    ]
    return tuple(dict.fromkeys((*found, *_out_of_reach(running, wanted, merged))))


def _out_of_reach(running: Settings, wanted: Settings, merged: Merged) -> Iterator[str]:
    """Yield which models would have nobody left that they have now."""
    before, after = _spoken(running), _spoken(merged.settings)
    stay = [model.name for model in merged.settings.models if model.name in before]
    to_be = {listener.address: listener.protocol for listener in wanted.listeners}
    for listener in merged.settings.listeners:
        if to_be.get(listener.address) is listener.protocol:
            continue  # it is to be as it is, and what is taken out behind it is meant to be
        protocol = listener.protocol.value
        for name in stay:
            if protocol in before[name] - after.get(name, set()):
                yield (
                    f"models[{name}].endpoints: none would be left that speaks {protocol}, as "
                    f"listeners[{listener.address}] does until a restart"
                )
    store = [change.path for change in merged.restart if change.path.startswith("state.")]
    if store and merged.settings.state.url != "none":
        for name in stay:
            if name not in after:
                yield f"models[{name}].endpoints: none would be left until a restart puts {', '.join(store)} in force"


def _spoken(settings: Settings) -> dict[str, set[str]]:
    """Return what the static endpoints of each model speak that has any."""
    spoken: dict[str, set[str]] = {}
    for endpoint in static_endpoints(settings):
        for replica in endpoint.replicas:
            spoken.setdefault(replica.model, set()).add(protocol_of(endpoint.address))
    return spoken


def _place(settings: Settings, path: Path) -> str:
    """Return ``path`` with an item's address, name or URL for its place, as changes are named."""
    steps: list[str | int] = []
    value: Any = settings
    for step in path:
        value = value[step] if isinstance(step, int) else getattr(value, step, None)
        key = _KEYS.get(type(value))
        if isinstance(step, int) and key is not None:
            steps[-1] = f"{steps[-1]}[{getattr(value, key)}]"
        else:
            steps.append(step)
    return dotted(tuple(steps))


class _Walk:
    def __init__(self) -> None:
        self.applied: list[Change] = []
        self.restart: list[Change] = []

    def struct(self, kind: Object, running: Any, wanted: Any, prefix: str) -> Any:
        """Return the merged value of two structs (or policies) of the same type."""
        values = {
            field.name: self._value(
                field, getattr(running, field.name), getattr(wanted, field.name), f"{prefix}{field.name}"
            )
            for field in kind.fields
        }
        return type(wanted)(**values)

    def _value(self, field: inspect.Field, running: Any, wanted: Any, path: str) -> Any:
        if running == wanted:
            return wanted
        inner = bare(field.type)
        reload = _reload(field)
        if isinstance(inner, inspect.StructType | inspect.DataclassType) and running is not None and wanted is not None:
            return self.struct(inner, running, wanted, f"{path}.")
        if isinstance(inner, inspect.VarTupleType):
            item = bare(inner.item_type)
            if isinstance(item, inspect.StructType) and item.cls in _KEYS:
                return self._items(item, reload, running, wanted, path)
        change = Change(path, _shown(running, path), _shown(wanted, path))
        if reload is Reload.RESTART:
            self.restart.append(change)
            return running
        self.applied.append(change)
        return wanted

    def _items(
        self, kind: inspect.StructType, reload: Reload, running: tuple[Any, ...], wanted: tuple[Any, ...], path: str
    ) -> tuple[Any, ...]:
        """Merge two lists, item by item. Where the list needs a restart, its items stay those that run."""
        key = _KEYS[kind.cls]
        old = {getattr(item, key): item for item in running}
        new = {getattr(item, key): item for item in wanted}
        found = self.restart if reload is Reload.RESTART else self.applied
        found += [Change(f"{path}[{name}]", "there", ABSENT) for name in old if name not in new]
        found += [Change(f"{path}[{name}]", ABSENT, "there") for name in new if name not in old]
        merged = {
            name: self.struct(kind, old[name], item, f"{path}[{name}].") for name, item in new.items() if name in old
        }
        if reload is Reload.RESTART:
            return tuple(merged.get(name, item) for name, item in old.items())
        return tuple(merged.get(name, item) for name, item in new.items())


def _reload(field: inspect.Field) -> Reload:
    """Return a field's class. The router's policies name none, and are live; a section that comes or goes is not."""
    extra = field.type.extra if isinstance(field.type, inspect.Metadata) else None
    default = Reload.RESTART if isinstance(bare(field.type), inspect.StructType) else Reload.LIVE
    return Reload((extra or {}).get("reload", default))


def _shown(value: object, path: str) -> str:
    name = path.rpartition(".")[2]
    if may_be_secret(name) and not name.endswith("_file") and value is not None:
        return MASK
    if isinstance(value, tuple) and all(isinstance(item, str | int | float) for item in value):
        return f"[{', '.join(shown(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {shown(item)}' for name, item in value.items())}}}"
    return shown(value) if not isinstance(value, msgspec.Struct) else "there"
