"""The balancer that goes by a request's key: one endpoint for each, as long as that has no more than its share."""

from __future__ import annotations

from hashlib import blake2b
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from router.balancing import BaseBalancer, Warm, load_of
from router.fits import Anyone
from router.pickers import HandPicker, mixed
from router.policy import BalancerName
from router.protocols import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router.protocols import Balancer, Choosable, Fit, Measure, PickerFactory, Rng

FIRST_PLACES: Final = 4
"""How many endpoints are remembered for a key, in its order, before more are asked for."""

KEPT_PLACES: Final = 65536
"""For all keys of a route together; then all are forgotten."""

_PERSON: Final = b"warmroute"


class LoadBound:
    """How much one of a route's candidates may have in flight and still take a request for its key's sake.

    That is the mean of the candidates, with one more request, x ``load_factor``, rounded up: of what is in flight in
    this process (``own``), and of what is in flight in all processes of the sidecar (``whole``). Who is below either
    has room. What siblings have is told up to a second late, and may be over long since: their numbers give room to
    what is many here and few among all, and never take away what this process alone shows to be free.
    """

    __slots__ = ("own", "whole")

    def __init__(self, candidates: Sequence[Choosable], load_factor: float) -> None:
        count = len(candidates)
        self.own = ceil(load_factor * (sum([candidate.load for candidate in candidates]) + 1) / count)
        self.whole = ceil(load_factor * (sum([load_of(candidate) for candidate in candidates]) + 1) / count)

    def reached_by(self, candidate: Choosable) -> bool:
        """Return whether one more would be more than the bound: both for this process and for all."""
        return candidate.load >= self.own and load_of(candidate) >= self.whole

    def told(self, candidate: Choosable) -> str:
        """Return what the bound says of one that has room, or that is taken though nobody has."""
        load, most, whose = load_of(candidate), self.whole, ""
        if load >= most and candidate.load < self.own:
            load, most, whose = floor(candidate.load), self.own, " of the process that decides"
        return f"{load + 1} in flight{whose} with this one, at most {most}"

    def measures(self, candidate: Choosable) -> tuple[Measure, ...]:
        """Return what explanations show of it."""
        return (
            ("in_flight", "requests", float(load_of(candidate))),
            ("bound", "requests", float(self.whole)),
            ("own_in_flight", "requests", float(candidate.load)),
            ("own_bound", "requests", float(self.own)),
        )


class Keyed(BaseBalancer):
    """The endpoint that a request's key prefers, unless that has more than its share in flight: then the next one.

    Preference is by rendezvous: each key ranks all endpoints by a hash of both, so one that leaves takes only its own
    keys with it, and one that joins gets only those that prefer it. Thaler and Ravishankar, "Using name-based mappings
    to increase hit rates", IEEE/ACM ToN 6(1), 1998. The bound is that of Mirrokni, Thorup and Zadimoghaddam,
    "Consistent hashing with bounded loads", SODA 2018 (arXiv 1608.01350, 2016): the mean in flight, with this one, x
    ``load_factor``, rounded up (:class:`LoadBound`). A request without a key is picked for as by ``warm``.
    """

    name = BalancerName.KEYED.value
    goes_by = "the first endpoint of those that the key ranks that is below its bound"

    def __init__(self, load_factor: float, picker: PickerFactory = HandPicker) -> None:
        super().__init__()
        self._load_factor = load_factor
        self._picker = picker
        self._without_key = Warm(picker)
        self._ids: list[str] = []
        self._seeds: list[int] = []
        self._known: dict[int, list[int]] = {}
        self._kept = 0

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Take those that may be picked; what keys prefer is forgotten where others may than before."""
        self._candidates = candidates
        self._without_key.arrange(candidates, weights)
        ids = [candidate.endpoint.id for candidate in candidates]
        if ids != self._ids:
            self._ids = ids
            self._seeds = [hash_of(id_.encode()) for id_ in ids]
            self._known.clear()
            self._kept = 0

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return the first of those that the key prefers that has room; the first at all where none has."""
        if key is None:
            return self._without_key.pick(fit, rng, None)
        candidates = self._candidates
        bound: LoadBound | None = None
        otherwise: Choosable | None = None
        for index in self._ranked(key):
            candidate = candidates[index]
            if candidate.load and bound is None:
                bound = self._bound()
            if bound is not None and bound.reached_by(candidate):
                if otherwise is None and fit.admits(candidate):
                    otherwise = candidate
            elif fit.admits(candidate):
                return candidate
        return otherwise

    def _bound(self) -> LoadBound:
        return LoadBound(self._candidates, self._load_factor)

    def _ranked(self, key: bytes) -> Iterator[int]:
        """Yield indices of candidates in the order of the key's preference."""
        of_key = hash_of(key)
        known = self._known.get(of_key)
        if known is None:
            known = self._keep(of_key, self._rank(of_key)[:FIRST_PLACES])
        yield from known
        first = len(known)
        if first < len(self._seeds):  # so the key is a hot one, or many are out
            yield from self._keep(of_key, self._rank(of_key))[first:]

    def _keep(self, of_key: int, order: list[int]) -> list[int]:
        self._kept += len(order)
        if self._kept > KEPT_PLACES:
            self._known.clear()
            self._kept = len(order)
        self._known[of_key] = order
        return order

    def _rank(self, of_key: int) -> list[int]:
        scores = [mixed(of_key ^ seed) for seed in self._seeds]
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)

    def weighs(self, key: bytes | None) -> bool:
        """Return whether there is no key."""
        return key is None

    def twin(self) -> Balancer:
        """Return one that ranks alike."""
        twin = Keyed(self._load_factor, self._picker)
        twin._without_key = self._without_key.twin()
        return twin

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return the first that has room."""
        if key is None:
            return self._without_key.sample(fit, rng, None)
        picked = self.pick(fit, rng, key)
        if picked is None:
            return None
        rank = [self._candidates[index] for index in self._ranked(key)].index(picked) + 1
        why = f"number {rank} of those that the key ranks; {self._bound().told(picked)}"
        return Sample((picked,), picked, why)

    def shares(self, key: bytes | None) -> list[float]:
        """Return 1 for the one that the key leads to; without a key, what ``warm`` says."""
        if key is None:
            return self._without_key.shares(None)
        picked = self.pick(Anyone(), _unused, key)
        return [float(candidate is picked) for candidate in self._candidates]

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return each one's rank, what is in flight there, and how much may be, here and in all."""
        if key is None or not self._candidates:
            return super().measures(key)
        rank = {index: place for place, index in enumerate(self._ranked(key), 1)}
        bound = self._bound()
        return [
            (("rank", "place", float(rank[index])), *bound.measures(candidate))
            for index, candidate in enumerate(self._candidates)
        ]


def hash_of(data: bytes) -> int:
    """Return 64 bits that say which ``data`` it is: the same in every process, on every machine, in every version."""
    return int.from_bytes(blake2b(data, digest_size=8, person=_PERSON).digest(), "little")


def _unused() -> float:
    return 0.0
