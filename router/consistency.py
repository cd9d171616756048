"""Whether replicas of one version hold the same: what each says that it loaded, compared with most, at each heartbeat.

A replica that says something else ``mismatches`` times in a row is not picked until it says the same again. What most
say is what most *warm* ones say, as long as any is warm: a rollout that goes wrong must not outvote those that serve.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from router.model import State

if TYPE_CHECKING:
    from router.endpoint import Candidate

Key = tuple[str, str, int]
"""What is compared: model, version, shard."""
Identity = tuple[str, str]
"""What a replica says that it loaded: content hash and configuration revision."""

SHOWN: Final = 12
"""So many characters of a hash are shown to people."""


class Consistency:
    """What all replicas say. ``mismatches``: after so many in a row one is inconsistent; None compares nothing."""

    __slots__ = ("_most_say", "_said", "mismatches")

    def __init__(self, mismatches: int | None) -> None:
        self.mismatches = mismatches
        self._said: dict[Key, dict[Candidate, tuple[Identity, bool]]] = {}
        self._most_say: dict[Key, Identity] = {}

    def configure(self, mismatches: int | None) -> None:
        """Go by another number from now on."""
        if mismatches == self.mismatches:
            return
        self.mismatches = mismatches
        for others in self._said.values():
            for candidate in others:
                candidate.inconsistent = mismatches is not None and candidate.mismatches >= mismatches

    def heard(self, candidate: Candidate) -> bool:
        """Compare one replica at a heartbeat; return whether it became inconsistent, or is no longer."""
        replica = candidate.replica
        if self.mismatches is None:
            return self._note(candidate, 0)
        if not replica.content_hash:
            self.forget(candidate)
            if candidate.mismatches and replica.state is State.WARM:
                return False  # one that falls silent about what it serves has not put it right
            return self._note(candidate, 0)
        key = (replica.model, replica.version, replica.shard)
        said = (replica.content_hash, replica.config_revision), replica.state is State.WARM
        others = self._said.setdefault(key, {})
        if others.get(candidate) != said:
            others[candidate] = said
            self._agree(key, others)
        same = self._most_say[key] == said[0]
        return self._note(candidate, 0 if same else candidate.mismatches + 1)

    def _note(self, candidate: Candidate, mismatches: int) -> bool:
        candidate.mismatches = mismatches
        before = candidate.inconsistent
        candidate.inconsistent = self.mismatches is not None and mismatches >= self.mismatches
        candidate.differs = self.differs(candidate) if mismatches else ""
        return candidate.inconsistent is not before

    def _agree(self, key: Key, others: dict[Candidate, tuple[Identity, bool]]) -> None:
        """Find out what most say; of as many, what was so before stands, else the longest warm."""
        warm = [identity for identity, is_warm in others.values() if is_warm]
        counts = Counter(warm or [identity for identity, _ in others.values()])
        most = max(counts.values())
        leading = {identity for identity, count in counts.items() if count == most}
        if self._most_say.get(key) not in leading:
            since = {
                identity: min(candidate.warm_at for candidate, (other, _) in others.items() if other == identity)
                for identity in leading
            }
            self._most_say[key] = min(leading, key=lambda identity: (since[identity], identity))

    def forget(self, candidate: Candidate) -> None:
        """A replica is gone, or says nothing of it."""
        replica = candidate.replica
        self._drop((replica.model, replica.version, replica.shard), candidate)

    def _drop(self, key: Key, candidate: Candidate) -> None:
        others = self._said.get(key)
        if others is None or others.pop(candidate, None) is None:
            return
        if others:
            self._agree(key, others)
        else:
            del self._said[key]
            self._most_say.pop(key, None)

    def differs(self, candidate: Candidate) -> str:
        """Say how a replica differs from most, in words; nothing where it does not."""
        replica = candidate.replica
        most = self._most_say.get((replica.model, replica.version, replica.shard))
        if most is None or not replica.content_hash:
            return ""
        parts = []
        for what, own, other in (
            ("loaded", replica.content_hash, most[0]),
            ("configured as", replica.config_revision, most[1]),
        ):
            if own != other:
                parts.append(f"{what} {_shown(own)}, most {_shown(other)}")
        times = f"; {candidate.mismatches} heartbeats in a row" if candidate.mismatches else ""
        return ", ".join(parts) + times if parts else ""


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…" if text else "nothing"
