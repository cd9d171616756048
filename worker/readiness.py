"""Whether a worker as a whole takes requests, and what there is to say of a model that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.models import Models
    from worker.replica import HeldReplica


def not_ready(models: Models, *, strict: bool = False) -> HeldReplica | None:
    """Return a replica that keeps the worker from being ready, and whose gate says why; None: it is ready.

    It is once each model that it loads at the start is warm, failed, or waits for what it depends on, and one of all is
    warm or comes on request. ``strict``: each model of the start must be warm. What is loaded later, by a request or
    because somebody said so, takes no other model away: its own readiness tells of it.
    """
    away: HeldReplica | None = None
    takes_requests = False
    for name in models.names:
        replica, versions = models.find(name), models.of(name)
        if replica.gate.is_open or any(one.comes_on_request for one in versions):
            takes_requests = True
            continue
        starting = next((one for one in versions if one.starting), None)
        if starting is not None:
            return starting
        if any(one.at_start for one in versions):
            if strict:
                return replica
            away = away or replica
    return None if takes_requests else away


def said_of(models: Models, replica: HeldReplica, *, newer: bool) -> str:
    """Return what there is to say of a replica that is ready; empty where there is nothing.

    ``newer``: also why newer versions of its model do not serve instead, where they should.
    """
    said = [replica.reason] if replica.reason else []
    for one in models.of(replica.name) if newer else ():
        if one is replica:
            break
        if one.rest is None and not one.serves and one.reason:
            said.append(f"version {one.version} does not serve: {one.reason}")
    return "; ".join(said)
