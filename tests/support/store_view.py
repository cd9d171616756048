"""What writers put into the store, and views that read it, for tests of the view."""

from __future__ import annotations

import json
from typing import Any

from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.wire import encode_fields
from sidecar.state.view import StoreView, Told

TTL_S = 5.0


def record(name: str, *, epoch: str = "e1", free: int = 1, state: State = State.WARM, warm_for_s: float = 0.0) -> Any:
    return EndpointRecord(
        id=name,
        address=f"http://127.0.0.1:{9000 + len(name)}",
        epoch=epoch,
        replicas=(Replica("m", "1", state=state, warm_for_s=warm_for_s),),
        free_memory_bytes=free,
    )


class Store:
    """The writers' side: what Redis would hold and publish."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self.hashes: dict[str, dict[str, str]] = {}

    def put(self, record: EndpointRecord, *only: str, **more: str) -> str:
        self.revision += 1
        fields = encode_fields(record) | more
        if only:
            fields = {name: fields[name] for name in only}
        held = self.hashes.get(record.id, {})
        if held.get("epoch") != record.epoch:
            held = {}
        revision = str(self.revision)
        own = {"v": "1", "epoch": record.epoch, "rev": revision, "crev": revision}
        self.hashes[record.id] = held | fields | own
        return self._message(record.id, record.epoch, "set", fields)

    def beat(self, name: str) -> str:
        self.revision += 1
        self.hashes[name]["rev"] = str(self.revision)
        return self._message(name, self.hashes[name]["epoch"], "beat")

    def drop(self, name: str) -> str:
        self.revision += 1
        epoch = self.hashes.pop(name)["epoch"]
        return self._message(name, epoch, "del")

    def _message(self, name: str, epoch: str, kind: str, fields: dict[str, str] | None = None) -> str:
        body: dict[str, Any] = {"v": 1, "id": name, "epoch": epoch, "rev": self.revision, "kind": kind}
        return json.dumps(body | ({"f": fields} if fields is not None else {}))

    def reply(self, has: list[str] | None = None) -> list[Any]:
        """What READ_LUA returns; ``has`` as a view gave it at the read's beginning."""
        known = dict(zip(has[::2], has[1::2], strict=True)) if has else {}
        out: list[Any] = [self.revision]
        for name, fields in self.hashes.items():
            same = "crev" in fields and known.get(name) == fields["crev"]
            out += [name, int(fields["rev"]) if same else [part for pair in fields.items() for part in pair]]
        return out


def read(view: StoreView, reply: list[Any], now: float = 0.0) -> list[Told]:
    view.read_begins()
    return list(view.read_ended(reply, now))


def started(*ids: str) -> tuple[Store, StoreView]:
    store, view = Store(), StoreView(TTL_S)
    for name in ids:
        store.put(record(name))
    read(view, store.reply())
    return store, view


def seen(events: list[Told]) -> list[str]:
    return [event.record.id for event in events if isinstance(event, EndpointSeen)]
