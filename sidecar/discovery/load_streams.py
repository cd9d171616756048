"""Load reports that endpoints stream out of band (ORCA): one call per endpoint that has it, once per sidecar."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from router.model import LoadReport, LoadsReported
from sidecar.channel import BATCH
from sidecar.telemetry.logs import get_log
from sidecar.tls.material import plain
from sidecar.upstreams.orca import ReportError, parse_message, with_zeros
from sidecar.upstreams.orca_stream import NotServedError, stream_reports
from sidecar.upstreams.probes import host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.discovery.planned import StaticEndpoint
    from sidecar.settings import OrcaStream
    from sidecar.upstreams.probes import HttpProber

AGAIN_S: Final = 1.0
AGAIN_MOST_S: Final = 60.0
"""A call that ended is made again so much later, doubling; one that is not served at most so much later, at once."""
SILENT_S: Final = 90.0
"""No report for so long, or for three times its interval, and the call is made anew."""
HOLD_S: Final = 2.0
"""While a call stands, what it reported last holds: so often it is told again."""
TOLD_S: Final = 0.1
"""Reports go on together, so often."""
BURST: Final = 64
PAUSE_S: Final = 0.025
"""After so many reports of one call it is read on so much later: a worker that streams without end takes no more than
that of the control process, and is some two seconds late, as its flow control window holds no more."""
JITTER: Final = 0.2

_log = get_log("orca")

Key = tuple[str, str, "OrcaStream"]
"""What is followed: endpoint id, address, what its probe says of the stream."""


class LoadStreams:
    """The streams of the endpoints that it was last configured with. ``tell`` takes what they report."""

    def __init__(
        self,
        endpoints: Iterable[StaticEndpoint],
        prober: HttpProber,
        tell: Callable[[LoadsReported], None],
        *,
        clock: Callable[[], float],
        rng: Callable[[], float],
    ) -> None:
        self._wanted = _wanted(endpoints)
        self._prober = prober
        self._tell = tell
        self._clock = clock
        self._rng = rng
        self._tasks: asyncio.TaskGroup | None = None
        self._followed: dict[Key, asyncio.Task[None]] = {}
        self._some = asyncio.Event()  # are followed
        self._held: dict[Key, tuple[LoadReport, float]] = {}
        self._fresh: dict[str, LoadReport] = {}
        self.open_now = 0
        """Calls that have reported and stand."""
        self.taken = 0
        self.refused: Counter[str] = Counter()
        """Reports that were no use, by reason."""

    def configure(self, endpoints: Iterable[StaticEndpoint]) -> None:
        """Follow these endpoints, and no others."""
        self._wanted = _wanted(endpoints)
        if self._tasks is not None:
            self._follow_all()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            self._follow_all()
            self._tasks.create_task(self._tell_on(), name="orca-tell")

    def _follow_all(self) -> None:
        assert self._tasks is not None  # noqa: S101
        for key in self._followed.keys() - self._wanted.keys():
            self._followed.pop(key).cancel()
        for key in self._wanted.keys() - self._followed.keys():
            self._followed[key] = self._tasks.create_task(self._follow(key), name=f"orca-{key[0]}")
        if self._followed:
            self._some.set()
        else:
            self._some.clear()

    async def _tell_on(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(TOLD_S)
            self.tell_on()

    def tell_on(self) -> None:
        """Pass on what came since, and what holds and was not told for a while."""
        now = self._clock()
        for key, (report, told_at) in self._held.items():
            if now - told_at >= HOLD_S:
                self._held[key] = report, now
                self._fresh.setdefault(key[0], report)
        reports, self._fresh = tuple(self._fresh.items()), {}
        for start in range(0, len(reports), BATCH):
            self._tell(LoadsReported(reports[start : start + BATCH], now))

    async def _follow(self, key: Key) -> None:
        wait_s = AGAIN_S
        said = ""
        while True:
            before = self.taken
            try:
                await self._call(key)
            except NotServedError as error:
                why, wait_s = str(error), AGAIN_MOST_S
            except TimeoutError:
                why = "no report in time"
            except (OSError, ValueError, EOFError) as error:
                why = plain(error)
            else:
                why = "it ended"
            if self.taken > before:
                wait_s = AGAIN_S
            if why != said:
                said = why
                _log.warning("orca.stream_ended", id=key[0], reason=why)
            await asyncio.sleep(wait_s * (1 - JITTER * self._rng()))
            wait_s = min(2 * wait_s, AGAIN_MOST_S)

    async def _call(self, key: Key) -> None:
        _, address, orca = key
        silent_s = max(SILENT_S, 3 * orca.interval_s)
        told: set[str] = set()
        writer = None
        try:
            async with asyncio.timeout(silent_s) as limit:
                reader, writer = await self._prober.connect(address, orca.port or 0, http2=True)
                left = BURST
                async for message in stream_reports(reader, writer, host_of(address), orca.interval_s):
                    limit.reschedule(asyncio.get_running_loop().time() + silent_s)
                    self._take(key, message, told)
                    left -= 1
                    if not left:
                        left = BURST
                        await asyncio.sleep(PAUSE_S)
        finally:
            if self._held.pop(key, None) is not None:
                self.open_now -= 1
            if writer is not None:
                writer.transport.abort()

    def _take(self, key: Key, message: bytes, told: set[str]) -> None:
        try:
            report = with_zeros(parse_message(message), told).load()
        except ReportError as error:
            self.refused[error.reason] += 1
            return
        self.taken += 1
        if key not in self._held:
            self.open_now += 1
            _log.info("orca.stream_open", id=key[0])
        self._held[key] = report, self._clock()
        self._fresh[key[0]] = report


def _wanted(endpoints: Iterable[StaticEndpoint]) -> dict[Key, None]:
    return {
        (endpoint.id, endpoint.address, replica.probe.orca): None
        for endpoint in endpoints
        for replica in endpoint.replicas
        if replica.probe is not None and replica.probe.orca is not None
    }
