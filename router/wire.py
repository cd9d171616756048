"""The schema of the shared state in Redis: key names, hash fields and delta messages. Scripts are in router/scripts.py.

Keys of a namespace share one hash slot (the braces are literal), so scripts also run on a cluster::

    wr:{NS}:ep:ID   hash, expires after the TTL: the fields below
    wr:{NS}:eps     sorted set: endpoint id, scored by the server time in ms at which it expires
    wr:{NS}:rev     integer: the namespace's revision, one step per write
    wr:{NS}:delta   publish/subscribe channel: one JSON message per write

A message is ``{"v", "id", "epoch", "rev", "kind": "set"|"beat"|"del", "f": {changed fields}}``. Revisions of a
namespace are consecutive; a receiver that sees a gap reads everything again. ``beat`` carries no fields: it only says
"still here".
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from router.model import EndpointRecord, Replica, State
from router.texts import spelled_out
from router.urls import check_address, protocol_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA_VERSION = 1
MAX_REPLICAS = 4096
MAX_FIELD_CHARS = 1 << 20
MAX_ID_CHARS = 128
"""Longest id of an endpoint or a group: it stands in messages with many others, in labels and in log lines."""

MAX_NAME_CHARS = 128
"""Longest name of a model and longest version, as in the configuration: whatever is longer could not be asked for."""

MAX_RECORD_BYTES = 90 * 1024
"""Largest record, by :func:`record_bytes`: one datagram of the sidecar's channel (sidecar/channel.py) must hold it."""

CONTENT_FIELD = "crev"
"""Field of a record: the revision at which anything but its revision last changed. Writers before it had none."""

MAX_INTEGER = (1 << 63) - 1
"""Largest number taken from the store: what every encoding of it can hold."""

NEWS_FIELD = "news"
"""Field of a record, where there is any: what became of the endpoint's models lately. Older readers pass it by."""

MAX_WARM_IN_S = 7 * 86400.0
"""Longest time until a replica is warm that is believed: callers are told it in Retry-After."""

MAX_NEWS = 8
"""Pieces of news that a record holds; older ones go."""

_WHOLE = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""Numbers as they are written here: what int() and float() would take beyond that is a writer's mistake."""

_MAX_DIGITS = 19
_RECORD_FRAME_BYTES = 256
_REPLICA_FRAME_BYTES = 204
_WARMTH_FRAME_BYTES = 16

UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading foreign JSON may raise: missing, of another kind, infinite, nested without end."""


MALFORMED: Final = "malformed"
OTHER_VERSION: Final = "version"
OVER_LIMIT: Final = "over_limit"
REASONS: Final = (MALFORMED, OTHER_VERSION, OVER_LIMIT)
"""Why something in the shared state is not taken: it makes no sense, is of another schema, or more than is read."""


class WireError(ValueError):
    """A record or message in the shared state that this version cannot read; the text names key, field and value.

    ``reason`` is one of REASONS.
    """

    def __init__(self, text: str, reason: str = MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one namespace."""

    namespace: str

    def endpoint(self, id: str) -> str:  # noqa: A002
        """Return the key of one endpoint's hash."""
        return f"wr:{{{self.namespace}}}:ep:{id}"

    @property
    def index(self) -> str:
        """The sorted set of endpoint ids."""
        return f"wr:{{{self.namespace}}}:eps"

    @property
    def revision(self) -> str:
        """The revision counter."""
        return f"wr:{{{self.namespace}}}:rev"

    @property
    def channel(self) -> str:
        """The publish/subscribe channel of deltas."""
        return f"wr:{{{self.namespace}}}:delta"

    def latencies(self, sidecar: str) -> str:
        """Return the key of one sidecar's latencies (router/sketches.py)."""
        return f"wr:{{{self.namespace}}}:lat:{sidecar}"

    @property
    def latency_index(self) -> str:
        """The sorted set of sidecars that tell latencies."""
        return f"wr:{{{self.namespace}}}:lats"

    @property
    def latency_channel(self) -> str:
        """The publish/subscribe channel of latencies."""
        return f"wr:{{{self.namespace}}}:latd"

    @property
    def answers(self) -> str:
        """The sorted set of kept answers, by the time at which they expire; each key of one begins with it."""
        return f"wr:{{{self.namespace}}}:cache"

    @property
    def hint_channel(self) -> str:
        """The publish/subscribe channel of open breakers (router/hints.py)."""
        return f"wr:{{{self.namespace}}}:hints"


def encode_fields(record: EndpointRecord) -> dict[str, str]:
    """Return the hash fields of ``record`` other than ``v``, ``epoch`` and ``rev``, which the script sets."""
    fields = {
        "addr": record.address,
        "proto": record.protocol,
        "draining": "1" if record.draining else "0",
        "replicas": json.dumps([_replica_out(r) for r in record.replicas], separators=(",", ":")),
    }
    for name, value in (
        ("free", record.free_memory_bytes),
        ("total", record.total_memory_bytes),
        ("queue", record.queue_depth),
        ("cpu", record.cpu_load),
        ("wait", record.queue_time_ms),
        ("idle", record.idle_for_s),
    ):
        fields[name] = "" if value is None else repr(value)
    return fields


def changed_fields(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return what of ``after`` differs from ``before``."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def decode_fields(id: str, fields: Mapping[str, str]) -> EndpointRecord:  # noqa: A002
    """Read one endpoint's hash.

    Raises:
        WireError: a field is missing, too long or not a value of its kind, or the schema version is not this one.
    """
    try:
        version = _number(fields["v"])
        if version != SCHEMA_VERSION:
            raise WireError(f"schema version {version}, this is {SCHEMA_VERSION}", OTHER_VERSION)
        address = _address(fields["addr"])
        record = EndpointRecord(
            id=_id(id),
            address=address,
            epoch=_name(fields["epoch"], "epoch"),
            revision=_number(fields["rev"]),
            protocol=_protocol(fields["proto"], address),
            replicas=_replicas_in(fields["replicas"]),
            free_memory_bytes=_count(fields.get("free", "")),
            total_memory_bytes=_count(fields.get("total", "")),
            queue_depth=_count(fields.get("queue", "")),
            queue_time_ms=_seconds(fields.get("wait", "")),
            cpu_load=_load(fields.get("cpu", "")),
            idle_for_s=_seconds(fields.get("idle", "")),
            draining=_switch(fields["draining"]),
        )
        _check_memory(record)
    except WireError as error:
        raise WireError(f"endpoint {_shown(id)}: {error}", error.reason) from error
    except UNREADABLE as error:
        raise WireError(f"endpoint {_shown(id)}: {type(error).__name__}: {_cut(str(error))}") from error
    size = record_bytes(record)
    if size > MAX_RECORD_BYTES:
        text = f"endpoint {_shown(id)}: a record of up to {size} bytes, at most {MAX_RECORD_BYTES}"
        raise WireError(text, OVER_LIMIT)
    return record


def record_bytes(record: EndpointRecord) -> int:
    """Return how many bytes ``record`` takes at most as a map of its fields in MessagePack, frames included."""
    texts = (record.id, record.address, record.epoch, record.protocol)
    return _RECORD_FRAME_BYTES + sum(map(_utf8, texts)) + sum(map(replica_bytes, record.replicas))


def replica_bytes(replica: Replica) -> int:
    """Return how many bytes ``replica`` adds to those of its record at most."""
    texts = (
        replica.model,
        replica.version,
        replica.content_hash,
        replica.config_revision,
        replica.reason,
        replica.group,
    )
    names = (name for name, _ in replica.warmth)
    frames = _REPLICA_FRAME_BYTES + len(replica.warmth) * _WARMTH_FRAME_BYTES
    return frames + sum(map(_utf8, texts)) + sum(map(_utf8, names))


class ModelEvent(StrEnum):
    """What became of one model version at an endpoint."""

    LOADED = "model-loaded"
    LOAD_FAILED = "model-load-failed"
    SWAPPED = "model-swapped"  # new content took over
    SWAP_FAILED = "model-swap-failed"  # it did not, and the old one serves
    UNLOADED = "model-unloaded"


class ModelNews(NamedTuple):
    """One thing that became of a model version; ``number`` counts them within an epoch, from 1."""

    number: int
    event: ModelEvent
    model: str
    version: str
    reason: str


def encode_news(news: Iterable[ModelNews]) -> str:
    """Return the field's value."""
    return json.dumps([list(one) for one in news], separators=(",", ":"))


def decode_news(id: str, text: str, after: int = 0) -> list[ModelNews]:  # noqa: A002
    """Read the field; returns what is numbered higher than ``after``. Events that are unknown here are left out.

    Raises:
        WireError: it is no list of news.
    """
    try:
        if len(text) > MAX_FIELD_CHARS:
            raise WireError(f"{len(text)} characters, at most {MAX_FIELD_CHARS}", OVER_LIMIT)
        rows = json.loads(text)
        if not isinstance(rows, list) or len(rows) > MAX_NEWS:
            raise WireError(f"not a list of at most {MAX_NEWS}", OVER_LIMIT if isinstance(rows, list) else MALFORMED)
        return [
            ModelNews(
                number,
                ModelEvent(event),
                _short(model, "model", MAX_NAME_CHARS),
                _short(version, "version", MAX_NAME_CHARS),
                _cut(spelled_out(_text(reason))),
            )
            for number, event, model, version, reason in rows
            if _integer(number) > after and event in _MODEL_EVENTS
        ]
    except WireError as error:
        raise WireError(f"endpoint {_shown(id)}: {NEWS_FIELD}: {error}", error.reason) from error
    except UNREADABLE as error:
        raise WireError(f"endpoint {_shown(id)}: {NEWS_FIELD}: {type(error).__name__}: {_cut(str(error))}") from error


_MODEL_EVENTS = frozenset(one.value for one in ModelEvent)


@dataclass(frozen=True, slots=True)
class Delta:
    """One decoded message of the delta channel. ``kind`` is ``set``, ``beat`` or ``del``."""

    id: str
    epoch: str
    revision: int
    kind: str
    fields: dict[str, str]


def decode_delta(payload: bytes | str) -> Delta:
    """Read one message of the delta channel.

    Raises:
        WireError: not a message of this schema version.
    """
    try:
        raw = json.loads(payload)
        if type(raw["v"]) is not int or raw["v"] != SCHEMA_VERSION:
            raise WireError(f"schema version {raw['v']!r}, this is {SCHEMA_VERSION}", OTHER_VERSION)
        fields = raw.get("f") or {}
        if raw["kind"] not in ("set", "beat", "del") or not isinstance(fields, dict):
            raise WireError(f"kind {raw['kind']!r}")
        return Delta(
            _id(raw["id"]),
            _text(raw["epoch"]),
            _integer(raw["rev"]),
            raw["kind"],
            {k: _text(v) for k, v in fields.items()},
        )
    except WireError as error:
        raise WireError(f"delta: {error}", error.reason) from error
    except UNREADABLE as error:
        raise WireError(f"delta: {type(error).__name__}: {_cut(str(error))}") from error


def decode_revision(value: object) -> int:
    """Read the namespace's revision from the reply of READ_LUA (router/scripts.py).

    Raises:
        WireError: it is none: the key holds something else.
    """
    if not isinstance(value, int):
        raise WireError("the revision in the store is not a number")
    return _integer(value)


def _replica_out(replica: Replica) -> dict[str, Any]:
    out: dict[str, Any] = {"m": replica.model, "v": replica.version, "s": replica.state.value}
    if replica.shard_count != 1:
        out["k"], out["n"] = replica.shard, replica.shard_count
    if replica.warmth:
        out["w"] = dict(replica.warmth)
    if replica.content_hash:
        out["h"] = replica.content_hash
    if replica.config_revision:
        out["c"] = replica.config_revision
    if replica.generation:
        out["g"] = replica.generation
    if replica.warm_for_s:
        out["t"] = round(replica.warm_for_s, 3)
    if replica.warm_in_s:
        out["i"] = replica.warm_in_s
    if replica.reason:
        out["r"] = replica.reason
    if replica.group:
        out["p"] = replica.group
    return out


def _replicas_in(text: str) -> tuple[Replica, ...]:
    if len(text) > MAX_FIELD_CHARS:
        raise WireError(f"replicas: {len(text)} characters, at most {MAX_FIELD_CHARS}", OVER_LIMIT)
    rows = json.loads(text)
    if not isinstance(rows, list) or len(rows) > MAX_REPLICAS:
        raise WireError(
            f"replicas: not a list of at most {MAX_REPLICAS}", OVER_LIMIT if isinstance(rows, list) else MALFORMED
        )
    replicas = tuple(_replica_in(row) for row in rows)
    told: set[tuple[str, str, int]] = set()
    for one in replicas:
        key = (one.model, one.version, one.shard)
        if key in told:
            raise WireError(f"replicas: {one.model!r} version {one.version!r} shard {one.shard} stands there twice")
        told.add(key)
    return replicas


def _replica_in(row: dict[str, Any]) -> Replica:
    warmth = tuple(sorted((_name(name, "shape class"), _ratio(value)) for name, value in row.get("w", {}).items()))
    shard, count = _integer(row.get("k", 0)), _integer(row.get("n", 1))
    if not 0 <= shard < count:
        raise WireError(f"shard {shard} of {count}")
    return Replica(
        model=_there(_short(row["m"], "model", MAX_NAME_CHARS), "model"),
        version=_short(row.get("v", ""), "version", MAX_NAME_CHARS),
        shard=shard,
        shard_count=count,
        state=State(row["s"]),
        warmth=warmth,
        content_hash=_name(row.get("h", ""), "content hash"),
        config_revision=_name(row.get("c", ""), "configuration revision"),
        generation=_integer(row.get("g", 0)),
        warm_for_s=_finite(row.get("t", 0.0)),
        warm_in_s=_warm_in(row.get("i", 0.0)),
        reason=spelled_out(_text(row.get("r", ""))),
        group=_short(row.get("p", ""), "group", MAX_ID_CHARS),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WireError(f"{_cut(repr(value))} is not text")
    if len(value) > MAX_FIELD_CHARS:
        raise WireError(f"text of {len(value)} characters, at most {MAX_FIELD_CHARS}", OVER_LIMIT)
    _utf8(value)
    return value


def _id(value: object) -> str:
    return _there(_short(value, "id", MAX_ID_CHARS), "id")


def _there(text: str, of: str) -> str:
    if not text:
        raise WireError(f"{of} is empty")
    return text


def _short(value: object, of: str, most: int) -> str:
    text = _name(value, of)
    if len(text) > most:
        raise WireError(f"{of} of {len(text)} characters, at most {most}", OVER_LIMIT)
    return text


def _name(value: object, of: str) -> str:
    """Take text that stands in tables, labels and log lines as it is: each character is seen, and blanks are spaces."""
    text = _text(value)
    if not text.isprintable():
        raise WireError(f"{of} {_cut(ascii(text), MAX_ID_CHARS)} holds control or invisible characters")
    return text


def _utf8(text: str) -> int:
    """Return the bytes of ``text`` in UTF-8; half of a surrogate pair, which JSON can spell, has no such bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _address(value: object) -> str:
    address = _text(value)
    try:
        check_address(address)
    except ValueError as error:
        raise WireError(f"addr: {_cut(repr(address))} {error}") from error
    return address


def _protocol(value: object, address: str) -> str:
    meant = protocol_of(address)
    if value != meant:
        raise WireError(f"proto: {_cut(repr(value))}, but at {address} it is {meant!r}")
    return meant


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise WireError(f"draining: {_cut(repr(text))} is neither '0' nor '1'")
    return text == "1"


def _check_memory(record: EndpointRecord) -> None:
    free, total = record.free_memory_bytes, record.total_memory_bytes
    if free is not None and total is not None and free > total:
        raise WireError(f"free: {free} is more than total, {total}")


def _integer(value: object) -> int:
    """Take a number of JSON, and neither a boolean nor one with a fraction."""
    if type(value) is not int:
        raise WireError(f"{_cut(repr(value))} is no whole number")
    if value < 0:
        raise WireError(f"{_cut(str(value))} is negative")
    if value > MAX_INTEGER:
        raise WireError(f"{_cut(str(value))} is too large", OVER_LIMIT)
    return value


def _number(text: str) -> int:
    """Read a number from a field of a hash."""
    if not _WHOLE.fullmatch(text):
        raise WireError(f"{_cut(repr(text))} is no whole number")
    if text.startswith("-"):
        raise WireError(f"{_cut(repr(text))} is negative")
    if len(text) > _MAX_DIGITS or (number := int(text)) > MAX_INTEGER:
        raise WireError(f"{_cut(repr(text))} is too large", OVER_LIMIT)
    return number


def _shown(id: object) -> str:  # noqa: A002
    return repr(_cut(str(id), MAX_ID_CHARS))


def _cut(text: str, most: int = 256) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise WireError(f"{_cut(repr(value))} is not a duration")
    return float(value)


def _warm_in(value: object) -> float:
    seconds = _finite(value)
    if seconds > MAX_WARM_IN_S:
        raise WireError(f"warm in {seconds:g} s, at most {MAX_WARM_IN_S:g}", OVER_LIMIT)
    return seconds


def _ratio(value: object) -> float:
    number = _finite(value)
    if number > 1:
        raise WireError(f"{value!r} is not a ratio")
    return number


def _count(text: str) -> int | None:
    return None if text == "" else _number(text)


def _seconds(text: str) -> float | None:
    if text == "":
        return None
    if not _DECIMAL.fullmatch(text):
        raise WireError(f"{_cut(repr(text))} is not a duration")
    return _finite(float(text))


def _load(text: str) -> float | None:
    if text == "":
        return None
    if not _DECIMAL.fullmatch(text) or not (number := float(text)) <= 1:
        raise WireError(f"cpu: {_cut(text)} is no load in [0, 1]")
    return number
