"""Prefix affinity: a request goes where the beginning of its prompt was seen last, as long as that overloads nobody.

LLM servers keep what they computed for a prompt's beginning and need not compute it again. What a request's key is here
are its prompt's blocks: 8 bytes for each, which say all of the prompt up to that block's end (:func:`blocks_of`). Which
endpoints have seen a block is what this process and its siblings sent there; nothing is asked of the servers.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from router.fits import Anyone
from router.keyed import LoadBound
from router.protocols import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.pickers import HandPicker
    from router.policy import AffinityPolicy
    from router.protocols import Balancer, Choosable, Fit, Measure, Rng

HASH_BYTES: Final = 8
HOLDERS: Final = 4
"""So many endpoints are remembered for a block, the last one first."""
MOST_UNTOLD: Final = 128
"""Requests whose blocks siblings are to hear of, at most; further ones they find out for themselves."""
_PERSON: Final = b"warmroute-prefix"

Seen = tuple[bytes, str, str]
"""A request's blocks, and the id and epoch of the endpoint that it was sent to."""


def blocks_of(prompt: bytes, policy: AffinityPolicy) -> bytes | None:
    """Return the blocks of a prompt's beginning, None where it has fewer than count: each says all before it, too."""
    size = policy.block_bytes
    whole = min(len(prompt) // size, policy.blocks)
    if whole < policy.least_blocks:
        return None
    out = bytearray()
    state = blake2b(digest_size=HASH_BYTES, person=_PERSON)
    for start in range(0, whole * size, size):
        state.update(prompt[start : start + size])
        out += state.copy().digest()
    return bytes(out)


class AffinityCounts:
    """How often prompts decided, on all routes: ``hits``, ``declined`` for load, or ``unseen`` by anybody there is."""

    __slots__ = ("declined", "hits", "unseen")

    def __init__(self) -> None:
        self.hits = self.declined = self.unseen = 0

    def take(self) -> tuple[int, int, int]:
        """Return all three since the last call."""
        out = (self.hits, self.declined, self.unseen)
        self.hits = self.declined = self.unseen = 0
        return out


class Affinity:
    """Has another balancer pick only where nobody has seen the prompt's beginning, or all who have are at their bound.

    An endpoint takes a request for its prompt's sake only while that leaves it with no more than ``load_factor`` x the
    mean in flight, rounded up, in this process or in all (:class:`router.keyed.LoadBound`). Of the endpoints that
    have seen as much of a prompt, the one that saw it last goes first; one that took what another was too busy for is
    remembered beside it. No block is known without those before it: what is forgotten first is the longest prompts'
    ends.
    """

    table: HandPicker | None = None
    first = "an endpoint that has seen the prompt's beginning, below its bound; else "

    def __init__(self, inner: Balancer, policy: AffinityPolicy, counts: AffinityCounts) -> None:
        self.name = inner.name
        self.goes_by = inner.goes_by
        self._inner = inner
        self._policy = policy
        self._counts = counts
        self._known: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._candidates: Sequence[Choosable] = ()
        self._at: dict[str, Choosable] = {}
        self._untold: dict[bytes, tuple[str, str]] = {}

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Take those that may be picked."""
        self._inner.arrange(candidates, weights)
        self._candidates = candidates
        self._at = {_place(one.endpoint.id, one.endpoint.epoch): one for one in candidates}

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return the one that has seen most of the prompt and is below its bound, else what the other balancer says."""
        if key is None:
            return self._inner.pick(fit, rng, None)
        counts = self._counts
        picked, _, declined = self._find(fit, key)
        if picked is not None:
            counts.hits += 1
        else:
            if declined:
                counts.declined += 1
            else:
                counts.unseen += 1
            picked = self._inner.pick(fit, rng, None)
            if picked is None:
                return None
        endpoint = picked.endpoint
        if self._note(key, _place(endpoint.id, endpoint.epoch)) and len(self._untold) < MOST_UNTOLD:
            self._untold[key] = (endpoint.id, endpoint.epoch)
        return picked

    def _find(self, fit: Fit, key: bytes) -> tuple[Choosable | None, int, bool]:
        """Return who takes a request for its prompt's sake, how many blocks are known, and whether one was too busy."""
        known, at = self._known, self._at
        depth = self._depth(key)
        bound: LoadBound | None = None
        declined = False
        before: tuple[str, ...] = ()
        for end in range(depth, self._policy.least_blocks - 1, -1):
            holders = known[_block(key, end)]
            if holders == before:
                continue  # as for the longer beginning
            before = holders
            for place in holders:
                candidate = at.get(place)
                if candidate is None:
                    continue
                if candidate.load and bound is None:
                    bound = self._bound()
                if bound is not None and bound.reached_by(candidate):
                    declined = True
                elif fit.admits(candidate):
                    return candidate, end, declined
        return None, depth, declined

    def _bound(self) -> LoadBound:
        return LoadBound(self._candidates, self._policy.load_factor)

    def _depth(self, key: bytes) -> int:
        """Return how many of a prompt's blocks are known; fewer than count are none."""
        most = len(key) // HASH_BYTES
        depth = 0
        while depth < most and _block(key, depth + 1) in self._known:
            depth += 1
        return depth if depth >= self._policy.least_blocks else 0

    def _note(self, key: bytes, place: str) -> bool:
        """Remember who has seen a prompt; True where that is news."""
        known = self._known
        news = False
        for end in range(len(key) // HASH_BYTES, 0, -1):  # so that the beginning is forgotten last
            block = _block(key, end)
            holders = known.get(block, ())
            if holders[:1] != (place,):
                news = True
                holders = (place, *(other for other in holders if other != place))[:HOLDERS]
            known[block] = holders
            known.move_to_end(block)
        while len(known) > self._policy.remembered:
            known.popitem(last=False)
        return news

    def take_untold(self) -> tuple[Seen, ...]:
        """Return what siblings have not heard of yet."""
        if not self._untold:
            return ()
        out = tuple((key, id_, epoch) for key, (id_, epoch) in self._untold.items())
        self._untold.clear()
        return out

    def beside(self, inner: Balancer) -> Affinity:
        """Return one for another choice among the same endpoints, that knows and notes the same."""
        other = Affinity(inner, self._policy, self._counts)
        other._known, other._untold = self._known, self._untold
        return other

    def learn(self, seen: Iterable[Seen]) -> None:
        """Take what a sibling process sent where. Blocks that this process would not make are passed over."""
        most = self._policy.blocks * HASH_BYTES
        for key, id_, epoch in seen:
            if len(key) <= most and not len(key) % HASH_BYTES:
                self._note(key, _place(id_, epoch))

    # --- for explanations ------------------------------------------------------------------------------------------

    def weighs(self, key: bytes | None) -> bool:
        """Return whether the other balancer goes by weights."""
        return self._inner.weighs(None)

    def twin(self) -> Balancer:
        """Return one that knows the same and notes nothing: only ``pick`` does."""
        twin = Affinity(self._inner.twin(), self._policy, AffinityCounts())
        twin._known = self._known
        return twin

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return the one that would be picked."""
        if key is None:
            return self._inner.sample(fit, rng, None)
        picked, matched, _ = self._find(fit, key)
        if picked is None:
            return self._inner.sample(fit, rng, None)
        total = len(key) // HASH_BYTES
        why = f"it has seen {matched} of {total} blocks of the prompt; {self._bound().told(picked)}"
        return Sample((picked,), picked, why)

    def shares(self, key: bytes | None) -> list[float]:
        """Return 1 for the one that the prompt leads to; else what the other balancer says."""
        if key is not None:
            picked, _, _ = self._find(Anyone(), key)
            if picked is not None:
                return [float(candidate is picked) for candidate in self._candidates]
        return self._inner.shares(None)

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return how much of the prompt each has seen, what is in flight there, and how much may be."""
        inner = self._inner.measures(None)
        if key is None or not self._candidates:
            return inner
        bound = self._bound()
        out: list[tuple[Measure, ...]] = []
        depth = self._depth(key)
        for candidate, others in zip(self._candidates, inner, strict=True):
            place = _place(candidate.endpoint.id, candidate.endpoint.epoch)
            seen = next((end for end in range(depth, 0, -1) if place in self._known[_block(key, end)]), 0)
            own: tuple[Measure, ...] = (("prefix", "blocks", float(seen)), *bound.measures(candidate))
            out.append((*own, *(one for one in others if one[0] != "in_flight")))
        return out


def _block(key: bytes, end: int) -> bytes:
    return key[(end - 1) * HASH_BYTES : end * HASH_BYTES]


def _place(id_: str, epoch: str) -> str:
    """Return what tells a process from its successor under the same id, which has seen nothing."""
    return f"{id_}\0{epoch}"
