"""What makes no sense in which versions of a model take requests: splits, their keys, mirrors, rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from router.policy import MAX_SHARES
from router.versions import newest
from sidecar.config.choosing import check_key_field
from sidecar.config.problems import Path
from sidecar.settings import Model, Rollout, Settings, Versions
from sidecar.settings.versions import RULES

Found = tuple[Path, str, bool]
"""Path, remedy, and whether it is legal all the same."""


def versioning(settings: Settings) -> Iterator[Found]:
    """Yield everything that makes no sense, or has no effect."""
    for index, model in enumerate(settings.models):
        path: Path = ("models", index, "versions")
        versions = model.versions
        if versions.serve not in RULES and versions.serve.lower() in RULES:
            yield (
                (*path, "serve"),
                f"is taken as the name of a version: the rule is written {versions.serve.lower()}",
                True,
            )
        yield from _split(path, versions)
        if versions.key is not None:
            if versions.serve != "split":
                yield (
                    (*path, "key"),
                    f"has an effect in a split only, and serve is {versions.serve}: one by command goes by it, too",
                    True,
                )
            for remedy in check_key_field(versions.key.header):
                yield (*path, "key", "header"), remedy, False
        if versions.rollout is not None:
            yield from _rollout((*path, "rollout"), versions, versions.rollout)
        yield from _mirror((*path, "mirror"), model)


def _split(path: Path, versions: Versions) -> Iterator[Found]:
    split = versions.split
    if versions.serve != "split":
        if split:
            yield (*path, "split"), f"has no effect while serve is {versions.serve}: set serve: split", True
        return
    place = (*path, "split")
    if not split:
        yield (
            (*path, "serve"),
            'needs split: set split, for example [{version: "1", weight: 95}]',
            False,
        )
    elif len(split) > MAX_SHARES:
        yield place, f"must name at most {MAX_SHARES} versions", False
    elif not any(share.weight for share in split):
        yield place, "must give at least one version a weight over 0", False
    first: dict[str, int] = {}
    for number, share in enumerate(split):
        if first.setdefault(share.version, number) != number:
            yield (
                (*place, number, "version"),
                f"already the version of split[{first[share.version]}]: name each once",
                False,
            )


def _rollout(path: Path, versions: Versions, rollout: Rollout) -> Iterator[Found]:
    steps = rollout.steps
    rising = all(low < high for low, high in pairwise(steps))
    if not 2 <= len(steps) <= 16 or not rising or steps[-1] != 100:
        yield (*path, "steps"), "must rise to 100, in 2 to 16 steps, for example [5, 25, 50, 100]", False
    if versions.serve != "split":
        yield path, f"needs serve: split; serve is {versions.serve}", False
        return
    names = [share.version for share in versions.split]
    if rollout.version and rollout.version not in names:
        yield (*path, "version"), f"must be one of the split: {', '.join(names)}", False
    new = rollout.version or newest(names)
    if not any(share.weight for share in versions.split if share.version != new):
        yield path, f"needs another version than {new} with a weight over 0: there is nothing to compare it with", False


def _mirror(path: Path, model: Model) -> Iterator[Found]:
    mirror = model.versions.mirror
    if mirror is None:
        return
    versions = model.versions
    taking = {versions.serve}
    if versions.serve == "split":
        taking = {share.version for share in versions.split if share.weight}
    if taking == {mirror.version}:
        yield (
            (*path, "version"),
            "takes all requests that name no version already: name another, or drop it",
            False,
        )
