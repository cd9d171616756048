"""When certificates end: read by the control process and the command line alone, which have an X.509 parser.

The control process looks at the same files as the data processes, and takes a changed set where they would: so what it
shows is what is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.telemetry.logs import get_log
from sidecar.tls.client import UPSTREAM
from sidecar.tls.material import MAX_FILE_BYTES, MaterialError, check_files

if TYPE_CHECKING:
    from sidecar.settings import ListenerTls, Settings, UpstreamTls

DAY_S: Final = 86400.0
WARN_DAYS: Final = (30, 7, 1)
LOOK_S: Final = 1.0

_log = get_log("tls")


@dataclass(frozen=True, slots=True)
class Ending:
    """When what stands in one file ends (``not_after``, Unix seconds): of a CA bundle, the first of its CAs to end."""

    of: str  # the listener's name, or UPSTREAM
    kind: str  # certificate, ca
    file: str
    not_after: float


@dataclass(frozen=True, slots=True)
class Place:
    """One part of the configuration that names certificates."""

    of: str
    tls: ListenerTls | UpstreamTls


def places(settings: Settings) -> tuple[Place, ...]:
    """Return every part of ``settings`` that names certificates for the data path."""
    found = [Place(one.name or one.address, one.tls) for one in settings.listeners if one.tls is not None]
    return (*found, Place(UPSTREAM, settings.upstream_tls))


def endings(place: Place) -> tuple[Ending, ...]:
    """Read when the certificates of one place end.

    Raises:
        MaterialError: they could not be used as they are.
    """
    check_files(place.tls)
    kinds = (("certificate", "cert_file", place.tls.cert_file), ("ca", "ca_file", place.tls.ca_file))
    return tuple(
        Ending(place.of, kind, file, _first_end(field, file)) for kind, field, file in kinds if file is not None
    )


def _first_end(field: str, file: str) -> float:
    from cryptography import x509  # large: only where there are certificates to read

    try:
        with Path(file).open("rb") as opened:
            certificates = x509.load_pem_x509_certificates(opened.read(MAX_FILE_BYTES))
    except (OSError, ValueError) as error:
        raise MaterialError(field, f"{file}: {error}") from None
    return min(one.not_valid_after_utc.timestamp() for one in certificates)


def expired(settings: Settings, now: float) -> Iterator[tuple[Ending, float]]:
    """Yield what has ended or ends within the first of WARN_DAYS, with the days left (``now``: Unix seconds)."""
    for place in places(settings):
        try:
            found = endings(place)
        except MaterialError:  # changed just now: it was good a moment ago
            continue
        for ending in found:
            days = (ending.not_after - now) / DAY_S
            if days <= WARN_DAYS[0]:
                yield ending, days


class Calendar:
    """Warns once at each of WARN_DAYS, and once when it is over, per file and end."""

    def __init__(self) -> None:
        self._warned: dict[tuple[str, str], tuple[float, int]] = {}

    def due(self, ending: Ending, now: float) -> bool:
        """Return whether ``ending`` has come a step nearer than when it was last asked about."""
        left = (ending.not_after - now) / DAY_S
        step = sum(left <= days for days in (*WARN_DAYS, 0))
        key = (ending.of, ending.kind)
        before = self._warned.get(key)
        self._warned[key] = (ending.not_after, step)
        return step > (before[1] if before is not None and before[0] == ending.not_after else 0)


class ExpiryWatch:
    """Follows the files of all places. ``clock`` gives Unix seconds."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._places = places(settings)
        self._clock = clock
        self._calendar = Calendar()
        self._found: dict[str, tuple[Ending, ...]] = {}

    @property
    def endings(self) -> tuple[Ending, ...]:
        """What was last found good of each place."""
        return tuple(ending for found in self._found.values() for ending in found)

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            with_files = [place for place in self._places if place.tls.cert_file or place.tls.ca_file]
            if with_files:
                self.take(await asyncio.to_thread(_look, with_files))
            await asyncio.sleep(LOOK_S)

    def configure(self, settings: Settings) -> None:
        """Follow what ``settings`` name from now on."""
        self._places = places(settings)
        named = {place.of for place in self._places if place.tls.cert_file or place.tls.ca_file}
        self._found = {of: found for of, found in self._found.items() if of in named}

    def take(self, found: dict[str, tuple[Ending, ...]]) -> None:
        """Go by what was found, and warn of what is due."""
        self._found |= found
        now = self._clock()
        for ending in self.endings:
            if self._calendar.due(ending, now):
                days = round((ending.not_after - now) / DAY_S, 1)
                say = _log.warning if days > 0 else _log.error
                event = "tls.certificate_ends" if days > 0 else "tls.certificate_ended"
                say(event, of=ending.of, kind=ending.kind, file=ending.file, days_left=days)


def _look(with_files: Sequence[Place]) -> dict[str, tuple[Ending, ...]]:
    found = {}
    for place in with_files:
        try:
            found[place.of] = endings(place)
        except MaterialError:  # the data processes say so, and keep what they have, as we do
            continue
    return found
