"""The configuration's endpoints as a data process holds them, so that no change of them leaves a model without any.

A data process takes endpoints out of and into its cluster by its own settings, in one step with them; the control
process says only what probes found. Where a model would be left with nobody but newcomers that no probe has found warm
yet, all that leaves is kept meanwhile. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.model import EndpointRecord, Replica, State
from sidecar.discovery.planned import first_record, is_news, next_record, place_of, with_finding, with_load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.discovery.planned import StaticEndpoint


class Members:
    """What is to be in the cluster of the endpoints in the configuration: :attr:`records`, by id."""

    def __init__(self, endpoints: Iterable[StaticEndpoint]) -> None:
        self._planned = {endpoint.id: endpoint for endpoint in endpoints}
        self._found = {endpoint.id: first_record(endpoint) for endpoint in self._planned.values()}
        self._leaving: dict[str, EndpointRecord] = {}
        self._awaited: frozenset[str] = frozenset()
        self._taken_out: set[str] = set()
        self._said: dict[str, EndpointRecord] = {}
        self.records: dict[str, EndpointRecord] = dict(self._found)

    @property
    def settling(self) -> bool:
        """Whether something is kept that is no longer in the configuration."""
        return bool(self._awaited)

    @property
    def awaited(self) -> frozenset[str]:
        """The models that have nobody yet but newcomers which no probe found warm."""
        return self._awaited - self._warm() if self._awaited else self._awaited

    def configure(self, endpoints: Iterable[StaticEndpoint]) -> None:
        """Go by another configuration; what leaves stays in :attr:`records` until :meth:`settle` where it is needed."""
        before, planned, found = self.records, self._planned, self._found
        self._planned = {endpoint.id: endpoint for endpoint in endpoints}
        self._found = {}
        for id, endpoint in self._planned.items():  # noqa: A001
            record = next_record(endpoint, planned.get(id), found.get(id))
            said = self._said.get(id)  # the control process may have read the settings, and probed, before us
            self._found[id] = record if said is None else self._heard(record, said)
        unprobed = {
            replica.model
            for record in self._found.values()
            for replica in record.replicas
            if not is_news(replica.reason)
        }
        self._awaited = frozenset(unprobed - self._warm())
        self._leaving = before if self._awaited else {}
        self.records = self._all()
        self._taken_out.update(before.keys() - self.records.keys())
        self._taken_out -= self._planned.keys()

    def settle(self) -> None:
        """Let go what was kept."""
        before, self._leaving, self._awaited = self.records, {}, frozenset()
        self.records = self._all()
        self._taken_out.update(before.keys() - self.records.keys())

    def seen(self, said: EndpointRecord, held: EndpointRecord | None = None) -> EndpointRecord | None:
        """Take what the control process says of an endpoint; return what holds of it, None where that is nothing.

        Its settings may be older or newer than ours for a moment: who is a member goes by ours, and of those it has
        the say on what probes found. ``held`` is what is known so far of one that is no member: a name stands for it.
        """
        id = said.id  # noqa: A001
        self._said[id] = said
        if id not in self.records:
            return None if id in self._taken_out else _with_news(held, said)
        if id in self._found:
            self._found[id] = self._heard(self._found[id], said)
        self.records[id] = self._one(id)
        return self.records[id]

    def gone(self, id: str) -> bool:  # noqa: A002
        """Take that the control process has an endpoint no longer; return whether it is to go."""
        self._said.pop(id, None)
        self._taken_out.discard(id)
        return id not in self.records

    def forget_said(self) -> None:
        """Forget what the control process said of others than members: another one begins."""
        self._said.clear()
        self._taken_out.clear()

    def _warm(self) -> set[str]:
        return {
            replica.model
            for record in self._found.values()
            for replica in record.replicas
            if replica.state is State.WARM
        }

    def _heard(self, record: EndpointRecord, said: EndpointRecord) -> EndpointRecord:
        """Return a member's record with what was found out of it; that nothing was yet is no news."""
        if said.address != record.address:
            return record
        news = {place_of(replica): replica for replica in said.replicas}
        replicas: list[Replica] = []
        for planned, replica in zip(self._planned[record.id].replicas, record.replicas, strict=True):
            new = news.get(place_of(replica))
            if planned.is_found_out and new is not None and is_news(new.reason):
                replica = with_finding(replica, new)
            replicas.append(replica)
        return with_load(replace(record, replicas=tuple(replicas)), said)

    def _all(self) -> dict[str, EndpointRecord]:
        return {id: self._one(id) for id in self._leaving | self._found}  # noqa: A001

    def _one(self, id: str) -> EndpointRecord:  # noqa: A002
        """Return one member's record: as found, and as before where something of that is kept."""
        kept, found = self._leaving.get(id), self._found.get(id)
        if kept is None:
            return self._found[id]
        if found is None or kept.address != found.address:
            return kept
        there = {place_of(replica) for replica in found.replicas}
        old = tuple(replica for replica in kept.replicas if place_of(replica) not in there)
        return replace(found, replicas=found.replicas + old) if old else found


def _with_news(held: EndpointRecord | None, said: EndpointRecord) -> EndpointRecord:
    """Return what is said of an endpoint, and for what of that is no news what was known of it."""
    if held is None or held.address != said.address:
        return said
    known = {(replica.model, replica.version): replica for replica in held.replicas}
    replicas = []
    for replica in said.replicas:
        before = known.get((replica.model, replica.version))
        stands = not is_news(replica.reason) and before is not None and is_news(before.reason)
        replicas.append(with_finding(replica, before) if stands and before is not None else replica)
    return replace(said, replicas=tuple(replicas))
