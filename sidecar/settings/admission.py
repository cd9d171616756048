"""Who waits for room, how long, and in which order."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from sidecar.settings.base import Base, Number, Reload, doc

MOST_CLASSES = 7
"""Priority classes by name at most; those who name none are one more."""


class Trust(StrEnum):
    """Whose fields are believed."""

    TRUSTED = "trusted"
    ANYBODY = "anybody"


class Priority(Base, frozen=True):
    """Classes of requests by the value of a field; the highest rank goes first, and the lowest is shed first."""

    header: Annotated[str, doc(Reload.LIVE, "field that names the class", "field name")] = "warmroute-priority"
    classes: Annotated[
        dict[str, Annotated[int, Meta(ge=-1000, le=1000)]],
        doc(Reload.LIVE, "rank by name; requests that name none of them have rank 0", "ranks"),
    ] = msgspec.field(default_factory=dict)


class Tenant(Base, frozen=True):
    """Whom a request is for; tenants of one class share a queue fairly."""

    header: Annotated[str | None, doc(Reload.LIVE, "field that names the tenant; null: all are one", "field name")] = (
        None
    )


class Admission(Base, frozen=True):
    """The queue of requests that find every endpoint, or their model, at its limit."""

    queue_wait_s: Annotated[
        float, doc(Reload.LIVE, "longest wait for room; 0: nobody waits, 503 at once", "seconds", ge=0, le=3600)
    ] = 0.05
    queue_requests: Annotated[
        int, doc(Reload.LIVE, "requests that wait so, of one model and process", "requests", ge=1, le=1 << 20)
    ] = 1024
    queue_bytes: Annotated[
        int, doc(Reload.LIVE, "what is kept of them while they wait", "bytes", ge=1024, le=1 << 40)
    ] = 64 << 20
    priority: Priority = msgspec.field(default_factory=Priority)
    tenant: Tenant = msgspec.field(default_factory=Tenant)
    tenants: Annotated[
        int, doc(Reload.LIVE, "tenants told apart in a queue; those beyond share one place", "tenants", ge=1, le=65536)
    ] = 256
    trust: Annotated[
        Trust,
        doc(Reload.LIVE, "whose priority and tenant count: of callers in listeners[].trusted_networks, or of anybody"),
    ] = Trust.TRUSTED


class ModelAdmission(Base, frozen=True):
    """What one model may have in flight."""

    requests: Annotated[
        Number | None,
        doc(
            Reload.LIVE,
            "requests of the model in flight, of the whole sidecar: divided over its data processes; null for no limit",
            "requests",
        ),
    ] = None


class Wait(Base, frozen=True):
    """How requests wait for a replica, where on_no_candidate is wait or lazy."""

    max_s: Annotated[float, doc(Reload.LIVE, "longest wait", "seconds", gt=0, le=3600)] = 30.0
    load_s: Annotated[
        float,
        doc(Reload.LIVE, "lazy: how long one endpoint may load before the next is asked", "seconds", gt=0, le=86_400),
    ] = 300.0
    requests: Annotated[int, doc(Reload.LIVE, "requests that wait, of one process", "requests", ge=1, le=1 << 20)] = (
        1024
    )
    bytes: Annotated[int, doc(Reload.LIVE, "what is kept of them while they wait", "bytes", ge=1024, le=1 << 40)] = (
        64 << 20
    )
