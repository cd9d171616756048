"""What a worker's model repository holds, looked at again and again; what is wrong there is told once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from worker.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from worker.control import Source
    from worker.log import EventLog
    from worker.models import Models
    from worker.store import ModelFiles

_NEVER = object()


class Looks:
    """Looks at a repository in a thread, and remembers what it saw. Used on the event loop only."""

    def __init__(self, source: Source, models: Models, log: EventLog) -> None:
        """``models`` is told of what cannot be read."""
        self._source = source
        self._models = models
        self._log = log
        self._seen: dict[str, object] = {}
        self._unreadable = ""

    @property
    def root(self) -> object:
        """What the repository is called."""
        return self._source.root

    async def names(self) -> list[str]:
        """Return the names of the models that there are.

        Raises:
            StoreError: the repository as a whole cannot be looked at.
        """
        return await asyncio.to_thread(self._source.listed)

    async def listed(self) -> list[str] | None:
        """Return the names of the models that there are, or None where none can be had, which is told once."""
        try:
            listed = await self.names()
        except StoreError as error:
            if self._unreadable != str(error):
                self._log.warning("repository.unreadable", error=str(error))
            self._unreadable = str(error)
            return None
        self._unreadable = ""
        return listed

    async def model(self, name: str) -> list[ModelFiles]:
        """Look at one model; what is wrong with it is told once, and in the index for as long as it lasts.

        Raises:
            StoreError: something is.
        """
        try:
            chosen = await asyncio.to_thread(self._source.choose, name)
        except StoreError as error:
            if self._models.refused.get(name) != str(error):
                self._log.error("model.refused", model=name, reason=str(error))
            self._models.refused[name] = str(error)
            self._note_unread(name, str(error))
            raise
        self._models.refused.pop(name, None)
        self._note_unread(name, "")
        return chosen

    async def still(self, name: str) -> list[ModelFiles] | None:
        """Look at one model; None where it cannot be read, or is not what it was at the last look."""
        try:
            chosen = await self.model(name)
        except StoreError:
            return None
        before, self._seen[name] = self._seen.get(name, _NEVER), content(chosen)
        return chosen if before == self._seen[name] else None

    def forget(self, name: str) -> None:
        """Remember nothing of a model: it is gone, or was never there."""
        self._seen.pop(name, None)

    def _note_unread(self, name: str, why: str) -> None:
        for replica in self._models.of(name):
            replica.note_unread(why)


def content(chosen: Iterable[ModelFiles]) -> object:
    """Return what is equal as long as nothing is to be done about a model's chosen versions."""
    return [
        (files.version, files.signature, files.config_revision, files.lazy, files.idle_unload_s) for files in chosen
    ]
