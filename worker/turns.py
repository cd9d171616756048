"""Turns to preload, over all workers of one machine: so many loads at once, more for instances that are better placed.

An *instance* is one worker, or several that were given one name. Each says how busy its processors are, how much memory
is free and how much it has to load; from that follows how many of the machine's loads it may have at once. All of it is
in files below shared memory, each held by a lock that the kernel lets go with its process: nobody has to clean up after
one that was killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from worker import json_text
from worker.loading.private import PrivateDirectory, UntrustedError, own_root

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from pathlib import Path

    from worker.log import EventLog

MOST_LOADS: Final = 8
WAIT_S: Final = 3.0
"""How long a preload waits for its turn; after that the model is loaded by its first request."""
TURN_S: Final = 3.0
"""How long a turn lasts; a preload that takes longer goes on without it, and brings in no more than it must."""
LOOK_S: Final = 0.05
CPU, MEMORY, SIZE = 0.40, 0.35, 0.25
UNKNOWN: Final = 0.5
_STATE = re.compile(r"preload:([A-Za-z0-9._:-]{1,128}):state\.[0-9]{1,10}")
_MOST_BYTES = 4096
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker is placed: busy processors and free memory as ratios, None where unknown; bytes it has to load."""

    cpu_load: Ratio | None = None
    free_memory: Ratio | None = None
    bytes_to_load: Annotated[int, msgspec.Meta(ge=0)] = 0


def weights(standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return each instance's part of the machine's loads, in [0, 1]; together they are 1.

    0.40 x idle processors + 0.35 x free memory + 0.25 x size to load (of the largest), over the sum of all. What is
    unknown counts as half.
    """
    largest = max((one.bytes_to_load for one in standings.values()), default=0)
    scores = {
        name: CPU * (UNKNOWN if one.cpu_load is None else 1 - one.cpu_load)
        + MEMORY * (UNKNOWN if one.free_memory is None else one.free_memory)
        + SIZE * (one.bytes_to_load / largest if largest else UNKNOWN)
        for name, one in standings.items()
    }
    total = sum(scores.values())
    return {name: score / total if total > 0 else 1 / len(scores) for name, score in scores.items()}


def allowances(standings: Mapping[str, Standing], most: int = MOST_LOADS) -> dict[str, int]:
    """Return how many loads each instance may have at once: its weight's part of ``most``, rounded down, and one."""
    return {name: max(1, floor(most * weight + 1e-9)) for name, weight in weights(standings).items()}


def merged(told: Iterable[tuple[str, Standing]]) -> dict[str, Standing]:
    """Return the standing of each instance of what its workers told: their mean load and memory, the sum of bytes."""
    by_name: dict[str, list[Standing]] = {}
    for name, one in told:
        by_name.setdefault(name, []).append(one)

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    return {
        name: Standing(
            cpu_load=mean([one.cpu_load for one in all_]),
            free_memory=mean([one.free_memory for one in all_]),
            bytes_to_load=sum(one.bytes_to_load for one in all_),
        )
        for name, all_ in by_name.items()
    }


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """``most`` loads at once on this machine (0: nobody waits for a turn); ``instance``: whose.

    ``turn_s``: how long a turn lasts; 0: as long as the load.
    """

    most: int = 0
    instance: str = ""
    wait_s: float = WAIT_S
    turn_s: float = TURN_S


class Turns:
    """Waits for turns. Used on the event loop; what it does with files is short."""

    def __init__(
        self,
        options: TurnOptions,
        place: Path,
        namespace: str,
        standing: Callable[[], Standing],
        log: EventLog,
        clock: Callable[[], float],
    ) -> None:
        """``place``: shared memory. ``standing`` says how this worker is placed now."""
        self._options = options
        self._path = own_root(place) / f"preload.{namespace}"
        self._standing = standing
        self._log = log
        self._clock = clock
        self._broken = False
        self._users = 0
        self._state = -1
        """Says how this worker is placed, as long as one of its models waits for a turn or has one."""

    @property
    def turn_s(self) -> float | None:
        """How long a turn should last; None: as long as the load. Whoever has one sees to it."""
        return self._options.turn_s or None

    @asynccontextmanager
    async def turn(self, given_up: Callable[[], bool]) -> AsyncIterator[bool]:
        """Have a turn until the end of the ``with`` block; False where none came in time, or it was given up.

        Where the files cannot be used, everybody has a turn, which is told once.
        """
        if not self._options.most or self._broken:
            yield True
            return
        held: list[int] = []
        self._users += 1
        try:
            try:
                got = await self._wait(held, given_up)
            except OSError as error:
                self._broken = got = True
                self._log.warning("preload.turns_off", error=str(error))
            yield got
        finally:
            for descriptor in held:
                os.close(descriptor)  # and with it the lock
            self._users -= 1
            if not self._users and self._state >= 0:
                os.close(self._state)
                self._state = -1

    async def _wait(self, held: list[int], given_up: Callable[[], bool]) -> bool:
        until = self._clock() + self._options.wait_s
        with PrivateDirectory(self._path) as directory:
            mine = f"preload:{self._options.instance}:state.{os.getpid()}"
            if self._state < 0:
                state = _locked(directory, mine)
                if state is None:
                    raise UntrustedError(f"{self._path / mine}: somebody holds it")
                self._state = state
            while not given_up():
                os.ftruncate(self._state, 0)
                os.pwrite(self._state, json_text.encode(self._standing()), 0)
                if self._take(directory, held):
                    return True
                if self._clock() >= until:
                    return False
                await asyncio.sleep(LOOK_S)
        return False

    def _take(self, directory: PrivateDirectory, held: list[int]) -> bool:
        """Take a place of this instance and one of the machine, where both have one that is free."""
        allowed = allowances(self._standings(directory), self._options.most).get(self._options.instance, 1)
        own = self._free(directory, f"preload:{self._options.instance}:load", allowed)
        if own is None:
            return False
        of_all = self._free(directory, "slot", self._options.most)
        if of_all is None:
            os.close(own)
            return False
        held += [own, of_all]
        return True

    @staticmethod
    def _free(directory: PrivateDirectory, kind: str, count: int) -> int | None:
        for number in range(count):
            descriptor = _locked(directory, f"{kind}.{number}")
            if descriptor is not None:
                return descriptor
        return None

    def _standings(self, directory: PrivateDirectory) -> dict[str, Standing]:
        """Return how all instances are placed that have something to load now; files of dead ones are removed."""
        told: list[tuple[str, Standing]] = []
        for name in os.listdir(directory.descriptor):  # noqa: PTH208 - by its descriptor, whatever is there by now
            found = _STATE.fullmatch(name)
            if found is None:
                continue
            if not name.endswith(f".{os.getpid()}"):
                dead = _locked(directory, name, make=False)
                if dead is not None:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory.descriptor)
                    os.close(dead)
                    continue
            content = directory.read(name, _MOST_BYTES)
            with suppress(msgspec.MsgspecError):
                told.append((found[1], json_text.decode(content or b"", Standing)))
        return merged(told)


def _locked(directory: PrivateDirectory, name: str, *, make: bool = True) -> int | None:
    """Open a file and lock it; None where somebody else holds it, or it is not there and shall not be made."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=directory.descriptor)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
