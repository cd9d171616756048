"""Versions of a model: their order, which of them takes a request that names none, and who gets which share of a split.

Versions are text to whoever names them, and compared as what they look like (:func:`version_key`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final

from router.policy import ServeRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from router.policy import ServePolicy, VersionShare

Number = tuple[int, str]
"""A number as it is written, however long: its digits without zeros in front, behind how many they are."""
VersionKey = tuple[int, tuple[Number, ...], int, tuple[tuple[int, int, str], ...], str]
"""What versions are ordered by: the kind, the release's numbers, 1 for a release and 0 before it, what stands behind
the numbers, and the text itself, so that two different texts are never equal."""

UNNAMED: Final = 0
TEXT: Final = 1
NUMBERED: Final = 2
"""Kinds of versions, in order: none at all (a static endpoint without versions), a name, numbers."""

_NUMBERED: Final = re.compile(
    r"[vV]?([0-9]+(?:\.[0-9]+)*)(?:-([0-9A-Za-z.-]+)|([A-Za-z][0-9A-Za-z.-]*))?(?:\+[0-9A-Za-z.-]*)?"
)
_ZERO: Final[Number] = (0, "")
_PIECES: Final = re.compile(r"[0-9]+|[^0-9]+")
_BITS: Final = 53
_PERSON: Final = b"wr-version"


@lru_cache(maxsize=1024)
def version_key(version: str) -> VersionKey:
    """Return what ``version`` is ordered by: any two versions have an order, and only equal texts are equal.

    Numbers and semantic versions (``7``, ``v1.10``, ``2.0.0-rc.1+cuda12``) order as semver.org 2.0.0 says (clause 11)
    with as many numbers as there are: 9 before 10, pre-releases before their release, 1 like 1.0. A ``v`` in front and
    what stands behind a ``+`` decide only where everything else is equal. Names come before all of them, in order of
    their text, in which numbers count as such (r9 before r10). No version at all comes first.
    """
    if not version:
        return UNNAMED, (), 0, (), ""
    found = _NUMBERED.fullmatch(version)
    if found is None:
        return TEXT, (), 0, tuple(_piece(piece) for piece in _PIECES.findall(version)), version
    numbers = [_number(digits) for digits in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == _ZERO:
        numbers.pop()
    behind: str | None = found[2] or found[3]
    if behind is None:
        return NUMBERED, tuple(numbers), 1, (), version
    return NUMBERED, tuple(numbers), 0, tuple(_piece(piece) for piece in behind.split(".")), version


def _piece(piece: str) -> tuple[int, int, str]:
    """Order numbers before text, and as numbers."""
    return (0, *_number(piece)) if piece.isascii() and piece.isdigit() else (1, 0, piece)


def _number(digits: str) -> Number:
    """Order digits as the number they spell. ``int`` would refuse some thousands of them, and take long before."""
    significant = digits.lstrip("0")
    return len(significant), significant


def newest(versions: Iterable[str]) -> str | None:
    """Return the newest of ``versions``, None where there is none."""
    return max(versions, key=version_key, default=None)


# --- requests that name no version ------------------------------------------------------------------------------


def is_taken(policy: ServePolicy, version: str) -> bool:
    """Return whether a version may take requests that name none, now or later, by the model's rule."""
    if policy.rule is ServeRule.PINNED:
        return version == policy.version
    if policy.rule is ServeRule.SPLIT:
        return any(share.version == version and share.weight > 0 for share in policy.shares)
    return True


def served_version(policy: ServePolicy, pickable: Sequence[Collection[str]], shard: int = 0) -> str | None:
    """Return the one version that takes the requests of a shard under ``latest``; None where there is none.

    ``pickable`` are the versions with a replica that may be picked, shard by shard (all of them in one where the model
    is not split). It is the newest that every shard has; where there is none such, at each shard the one that most of
    them have, the oldest of those: it is the likelier one to have been whole.
    """
    if policy.rule is not ServeRule.LATEST:
        return None
    whole = whole_versions(pickable)
    if whole:
        return newest(whole)
    spread = {version: sum(version in each for each in pickable) for version in pickable[shard]}
    most = max(spread.values(), default=0)
    return min((version for version, shards in spread.items() if shards == most), key=version_key, default=None)


def whole_versions(by_shard: Sequence[Collection[str]]) -> frozenset[str]:
    """Return the versions that every shard has."""
    return frozenset(by_shard[0]).intersection(*by_shard[1:])


def is_left_out(policy: ServePolicy, version: str, served: str | None, *, ejected: bool) -> bool:
    """Return whether the rule leaves out a version whose replica would be picked, or is merely ``ejected``.

    ``served`` is what :func:`served_version` says. Under ``latest`` no other version takes requests; one that is newer,
    but ejected, is still probed, since it is what would serve (say so only where every shard of it could).
    """
    if policy.rule is not ServeRule.LATEST or served is None:
        return not is_taken(policy, version)
    if version == served:
        return False
    return not (ejected and version_key(version) > version_key(served))


def versions_asked(
    policy: ServePolicy | None, version: str, warm: Collection[str], last: str | None
) -> tuple[str, ...]:
    """Return whose kept answers stand for a version that would be asked now, the likeliest first.

    That need not be one that answered before: who goes back from a version must not hear of it again.

    Args:
        policy: the model's rule for requests that name none, None where all versions take them.
        version: the one that the request names, or was given.
        warm: those that somebody has ready, whether or not it may be picked just now.
        last: the one that answered such a request last, None where that is not known.
    """
    if version:
        return (version,)
    rule = ServeRule.ANY if policy is None else policy.rule
    if policy is not None and rule is ServeRule.PINNED:
        return (policy.version,)
    if policy is not None and rule is ServeRule.SPLIT:
        shares = sorted(policy.shares, key=lambda share: -share.weight)
        return tuple([share.version for share in shares if share.weight > 0])
    known = sorted(warm, key=version_key, reverse=True)
    if last is not None and (last in warm or not warm):
        known = [last, *[one for one in known if one != last]]
    return tuple(known[:1] if rule is ServeRule.LATEST else known)


# --- splits -----------------------------------------------------------------------------------------------------


def share_by_key(shares: Sequence[VersionShare], key: bytes) -> int:
    """Return the index of the version that a key belongs to; -1 where no share has a weight.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, SPAA 2005): each version draws ``-ln(u)/weight`` with a
    ``u`` in (0, 1) that is a hash of key and version, and the least wins. So every process of every sidecar agrees;
    a version gets its share of all keys; where one's weight grows beside the others' (or where another is left out),
    keys move to it from the others (from that one to all others) and no others move.
    """
    best, least = -1, 0.0
    for index, share in enumerate(shares):
        if share.weight <= 0:
            continue
        digest = blake2b(share.version.encode() + b"\0" + key, digest_size=8, person=_PERSON).digest()
        unit = ((int.from_bytes(digest, "big") >> (64 - _BITS)) + 0.5) / (1 << _BITS)
        cost = -log(unit) / share.weight
        if best < 0 or cost < least:
            best, least = index, cost
    return best


def fullest(shares: Sequence[VersionShare], spread: Mapping[str, int]) -> str:
    """Return the version of a split that takes all requests where none of them has all shards; "" where none has any.

    ``spread`` is how many shards have somebody of a version: that with the most takes them, the heaviest of those.
    """
    had = [share for share in shares if share.weight > 0 and spread.get(share.version)]
    return max(had, key=lambda share: (spread[share.version], share.weight)).version if had else ""


def share_at_random(shares: Sequence[VersionShare], unit: float) -> int:
    """Return the index of the version that ``unit``, in [0, 1), falls to; -1 where no share has a weight."""
    position = unit * sum(share.weight for share in shares)
    last = -1
    for index, share in enumerate(shares):
        if share.weight > 0:
            last = index
            position -= share.weight
            if position < 0:
                break
    return last
