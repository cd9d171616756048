"""The table of what one worker holds: models by name, each with its versions, the newest first.

Everything that answers requests asks here, and nowhere else, which replica a request is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from worker.replica import HeldReplica

_SHOWN_NAME, _SHOWN_VERSION = 128, 32


class UnknownModelError(Exception):
    """The worker has no such model or version; the text is the protocol's error message."""


class Models:
    """The replicas that a worker holds. Used on the event loop only."""

    def __init__(self, replicas: Iterable[HeldReplica] = ()) -> None:
        self._models: dict[str, tuple[HeldReplica, ...]] = {}
        for replica in replicas:
            self.put(replica)

    def __iter__(self) -> Iterator[HeldReplica]:
        """Every version of every model; models in the order in which they came, the newest version first."""
        for versions in tuple(self._models.values()):
            yield from versions

    @property
    def names(self) -> tuple[str, ...]:
        """The models, in the order in which they came."""
        return tuple(self._models)

    def of(self, name: str) -> tuple[HeldReplica, ...]:
        """Return the versions of one model, the newest first; none where it is not here."""
        return self._models.get(name, ())

    def find(self, name: str, version: str | None = None) -> HeldReplica:
        """Return the replica that a request for ``name`` is for.

        Without a ``version`` that is the newest that is warm; where none is, the newest that still answers (it drains),
        or else the newest, which will say why it does not.

        Raises:
            UnknownModelError: the worker has no such model or version.
        """
        versions = self._models.get(name)
        if versions is None:
            served = ", ".join(sorted(self._models)) or "none"
            raise UnknownModelError(f"model {name[:_SHOWN_NAME]!r} is not served here; served: {served}")
        if version is not None:
            for replica in versions:
                if replica.version == version:
                    return replica
            served = ", ".join(replica.version for replica in versions)
            raise UnknownModelError(
                f"model {name!r}: version {version[:_SHOWN_VERSION]!r} is not served here; served: {served}"
            )
        for replica in versions:
            if replica.state is State.WARM:
                return replica
        return next((replica for replica in versions if replica.gate.is_open), versions[0])

    def put(self, replica: HeldReplica) -> None:
        """Add a version of a model.

        Raises:
            ValueError: it is there already.
        """
        versions = self._models.get(replica.name, ())
        if any(held.version == replica.version for held in versions):
            raise ValueError(f"{replica.name}@{replica.version} is there already")
        newest_first = sorted((*versions, replica), key=lambda held: int(held.version), reverse=True)
        self._models[replica.name] = tuple(newest_first)

    def remove(self, replica: HeldReplica) -> None:
        """Take a version of a model out; the model goes with its last."""
        left = tuple(held for held in self._models.get(replica.name, ()) if held is not replica)
        if left:
            self._models[replica.name] = left
        else:
            self._models.pop(replica.name, None)
