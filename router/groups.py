"""Shards: what of a model version an endpoint offers, which replicas answer together, and which shard has a key.

``tensor``: all shards of a version answer together, behind the endpoint of one of them, the entry. A group is what
holds every shard: one endpoint that has them all, or those of one name on one generation. It can answer while each of
its shards is held by one fit replica, no less and no more: of two, nobody could say which one is meant.
``keyed``: each shard answers for itself the requests whose keys it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from router.keyed import hash_of
from router.model import WHOLE, State
from router.outcomes import Reason
from router.pickers import mixed
from router.policy import MAX_SHARDS, ShardMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.endpoint import Candidate
    from router.model import EndpointRecord, Replica
    from router.policy import ShardPolicy

KEPT_KEYS: Final = 65536
"""Keys whose shard is remembered; then all are forgotten."""

CROWD: Final = 4
"""A group has no more than so many replicas for each shard, old ones and new: looking at each costs time."""
FEW: Final = 8
"""Missing shards that are named one by one."""

Offer = tuple[str, str, int]
"""Model, version and shard of what an endpoint offers."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What keeps a group from answering: of one shard, at an endpoint (empty where nobody holds it)."""

    shard: int
    endpoint: str
    why: str

    def __str__(self) -> str:
        """Return it as it stands in explanations."""
        return f"shard {self.shard}{f' at {self.endpoint}' if self.endpoint else ''}: {self.why}"


class Group:
    """The replicas of one model version that go by one name, each on one shard; ``entry`` is the one that is asked.

    ``key`` is model, version, protocol and name. ``on`` has the replicas by their generation: what holds on one says
    nothing of another, so a change costs no more than its own, however many groups go by one name.
    """

    __slots__ = ("count", "entry", "key", "name", "on")

    def __init__(self, key: tuple[str, str, str, str], policy: ShardPolicy) -> None:
        self.key = key
        self.name = key[3]
        self.count = policy.count
        self.entry = policy.entry
        self.on: dict[int, list[Candidate]] = {}

    def add(self, member: Candidate) -> None:
        """Take a replica in."""
        self.on.setdefault(member.replica.generation, []).append(member)

    def remove(self, member: Candidate, generation: int) -> None:
        """Let go of a replica that was on this generation."""
        there = self.on[generation]
        there.remove(member)
        if not there:
            del self.on[generation]

    def entries(self, generation: int) -> list[Candidate]:
        """Return those on a generation that are asked themselves."""
        return [member for member in self.on.get(generation, ()) if member.entry]

    def _count_for(self, entry: Candidate) -> int:
        return self.count if self.count > 1 else entry.replica.shard_count

    def others(self, entry: Candidate) -> Iterator[Candidate]:
        """Yield the replicas of other shards that are on the entry's generation; none where those are too many."""
        there = self.on.get(entry.replica.generation, [])
        if len(there) <= CROWD * self._count_for(entry):
            for member in there:
                if member.shard != self.entry:
                    yield member

    def lacks(self, entry: Candidate, unfit: Callable[[Candidate], Reason | None]) -> tuple[Lack, ...]:
        """Return what keeps the group from answering through ``entry``; ``unfit`` says so of one replica of it.

        The entry's own fitness is not looked at: it is a candidate, and left out for its own reasons.
        """
        count = self._count_for(entry)
        if count > MAX_SHARDS:
            return (Lack(entry.shard, entry.endpoint.id, f"one of {count}, at most {MAX_SHARDS}"),)
        found: list[Lack] = []
        generation = entry.replica.generation
        crowd = len(self.on.get(generation, ()))
        if crowd > CROWD * count:
            why = f"{crowd} replicas of {count} shards go by one name and generation. Name the groups"
            return (Lack(entry.shard, entry.endpoint.id, why),)
        holders: dict[int, list[Candidate]] = {}
        for member in self.on.get(generation, ()):
            holders.setdefault(member.shard, []).append(member)
        for shard in range(count):
            there = [one for one in holders.get(shard, ()) if one.replica.shard_count == count]
            if shard == self.entry:
                fit = [one for one in there if one is entry or one.replica.state is State.WARM]
            else:
                fit = [one for one in there if unfit(one) is None]
            if len(fit) > 1:
                found.append(Lack(shard, _names(fit), "which of them is meant? Name the groups"))
            elif not fit:
                of_shard = holders.get(shard) or self._elsewhere(shard)
                found.append(_lack(shard, of_shard, there, (generation, count), unfit))
        return tuple(found)

    def _elsewhere(self, shard: int) -> list[Candidate]:
        return [member for members in self.on.values() for member in members if member.shard == shard]


def _lack(
    shard: int,
    holders: list[Candidate],
    there: list[Candidate],
    wanted: tuple[int, int],
    unfit: Callable[[Candidate], Reason | None],
) -> Lack:
    generation, count = wanted
    if there:
        return Lack(shard, there[0].endpoint.id, str(unfit(there[0])))
    if not holders:
        return Lack(shard, "", "nobody holds it")
    name, replica = holders[0].endpoint.id, holders[0].replica
    if replica.shard_count != count:
        return Lack(shard, name, f"one of {replica.shard_count}, not {count}")
    return Lack(shard, name, f"on generation {replica.generation}, not {generation}")


def _names(members: list[Candidate]) -> str:
    return " and ".join(sorted(member.endpoint.id for member in members))


def unfit(member: Candidate, reason: Reason | None, now: float) -> Reason | None:
    """Return why a member that is not asked itself cannot do its part; ``reason`` is what the filters say of it.

    One whose quarantine is over counts as fit: it gets no request of this group that could be a probe of it.
    """
    if reason is Reason.NOT_ENTRY:
        return None
    if reason is Reason.QUARANTINED and member.endpoint.quarantine.probe_at(alone=False) <= now:
        return None
    return reason


def offered(record: EndpointRecord, policy_of: Callable[[str], ShardPolicy]) -> dict[Offer, Replica]:
    """Return what a record offers: one replica for each model version, or for each shard of it.

    What is not split is offered whole, and so are shards of which an endpoint has all, except where each answers for
    itself. Of those that are offered together, the one that is furthest from warm speaks for all.
    """
    out: dict[Offer, Replica] = {}
    for replica in record.replicas:
        shard = WHOLE
        if replica.shard_count != 1:
            mode = policy_of(replica.model).mode
            if mode is ShardMode.KEYED or (mode is ShardMode.TENSOR and _missing(record, replica)):
                shard = replica.shard
        key = (replica.model, replica.version, shard)
        known = out.get(key)
        if known is None or (known.state is State.WARM and replica.state is not State.WARM):
            out[key] = replica
    return out


def lacks_alone(record: EndpointRecord, replica: Replica, shard: int, policy: ShardPolicy) -> tuple[Lack, ...]:
    """Return what keeps a replica from answering that lies in its endpoint's own record."""
    count = replica.shard_count
    if count == 1:
        return ()
    if policy.count > 1 and count != policy.count:
        return (Lack(replica.shard, record.id, f"one of {count}, while the configuration says {policy.count}"),)
    if shard != WHOLE:
        return ()
    lacks = [Lack(missing, record.id, "not there") for missing in _missing(record, replica)]
    of = replica.generation
    lacks += [
        Lack(other.shard, record.id, f"on generation {other.generation}, not {of}")
        for other in _of_version(record, replica)
        if other.generation != of
    ]
    return tuple(lacks)


def _of_version(record: EndpointRecord, replica: Replica) -> list[Replica]:
    return [one for one in record.replicas if one.model == replica.model and one.version == replica.version]


def _missing(record: EndpointRecord, replica: Replica) -> list[int]:
    """Return the first shards that its endpoint does not hold: a record may say anything of how many there are."""
    held = {other.shard for other in _of_version(record, replica)}
    return list(islice((shard for shard in range(replica.shard_count) if shard not in held), FEW))


class ShardMap:
    """Which of so many shards has a key: the one that the key ranks first, by rendezvous.

    One shard more takes from each of the others the keys that prefer it, and moves nothing else: of N + 1 shards the
    new one gets a part in N + 1. See ``router.keyed.Keyed`` for the source.
    """

    __slots__ = ("_known", "_seeds")

    def __init__(self, count: int) -> None:
        self._seeds = [hash_of(b"shard %d" % shard) for shard in range(count)]
        self._known: dict[int, int] = {}

    def shard_of(self, key: bytes) -> int:
        """Return the shard that has ``key``."""
        of_key = hash_of(key)
        shard = self._known.get(of_key)
        if shard is None:
            scores = [mixed(of_key ^ seed) for seed in self._seeds]
            shard = scores.index(max(scores))
            if len(self._known) >= KEPT_KEYS:
                self._known.clear()
            self._known[of_key] = shard
        return shard
