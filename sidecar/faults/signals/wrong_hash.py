"""Wrong content hash: replicas say that they hold something else than the others of their version."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from sidecar.faults.signals.kind import SignalKind, with_replicas

if TYPE_CHECKING:
    from router.model import EndpointRecord, Replica
    from sidecar.faults.rules import FaultRule


class WrongHashFault(SignalKind):
    """Puts another hash in place of one; a replica that tells none is left as it is."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord:
        """Return the record with other hashes."""
        return with_replicas(record, rule, another)


def another(replica: Replica) -> Replica:
    """Return the replica with a hash that is not its own, and always the same."""
    if not replica.content_hash:
        return replica
    algorithm, colon, _ = replica.content_hash.rpartition(":")
    return replace(replica, content_hash=algorithm + colon + sha256(replica.content_hash.encode()).hexdigest())
