"""The table of what one worker holds: models by name, each with its versions, the newest first.

Everything that answers requests asks here, and nowhere else, which replica a request is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.model import State
from router.wire import MAX_RECORD_BYTES, replica_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.model import Replica
    from worker.replica import HeldReplica

_SHOWN_NAME, _SHOWN_VERSION = 128, 32
_SURELY_FIT = 8
"""So many replicas fit into a record, whatever is said of them: 64 shape classes, a reason of 500 characters."""
_RECORD_REST_BYTES = 8 << 10
"""What a record holds beside its replicas."""


class UnknownModelError(Exception):
    """The worker has no such model or version; the text is the protocol's error message."""


class Models:
    """The replicas that a worker holds. Used on the event loop only."""

    def __init__(self, replicas: Iterable[HeldReplica] = ()) -> None:
        self._models: dict[str, tuple[HeldReplica, ...]] = {}
        self.refused: dict[str, str] = {}
        """What in the repository cannot be read, by model, and why."""
        self.on_wanted: Callable[[HeldReplica], None] = _nobody
        """Called where a request came for a replica that rests until one does."""
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
            if name in self.refused:
                raise UnknownModelError(f"model {name!r} is not served here: {self.refused[name]}")
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

    def wanted(self, name: str, version: str | None = None, *, background: bool = False) -> HeldReplica:
        """Return what :meth:`find` does, for a request that is to be answered: what rests is called for it.

        A ``background`` request calls nobody: it is no reason to load what nobody else asks for.

        That is the replica itself or, where no ``version`` is named, the newest, while an older one answers.

        Raises:
            UnknownModelError: the worker has no such model or version.
        """
        replica = self.find(name, version)
        if not background and (replica.state is not State.WARM or version is None):
            meant = replica if version is not None else self._models[name][0]
            if meant.can_be_wanted:
                self.on_wanted(meant)
        return replica

    def reports(self) -> list[Replica]:
        """Return what there is to say of each, as much as one record holds; what is cold is left out first."""
        told = [replica.report() for replica in self]
        if len(told) <= _SURELY_FIT:
            return told
        room = MAX_RECORD_BYTES - _RECORD_REST_BYTES
        kept: list[Replica] = []
        for one in sorted(told, key=lambda one: one.state is State.COLD):
            room -= replica_bytes(one)
            if room < 0:
                break
            kept.append(one)
        return kept

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


def _nobody(_: HeldReplica) -> None:
    """Whatever rests goes on resting."""
