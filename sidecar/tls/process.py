"""All TLS of one data process: the gates of its listeners, those to workers, and a look at their files each second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Page, Scalar
from sidecar.tls.client import UpstreamGate
from sidecar.tls.material import HTTP1, HTTP2
from sidecar.tls.server import Audit, ListenerGate

if TYPE_CHECKING:
    from sidecar.settings import Settings
    from sidecar.tls.material import Change, Follower

_log = get_log("tls")


class ProcessTls:
    """Made once by a data process. Without a listener that has ``tls`` and without https endpoints it does nothing."""

    def __init__(
        self, settings: Settings, *, loop: asyncio.AbstractEventLoop, page: Page, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._page = page
        self._audit = Audit(clock)
        self._gates: dict[int, ListenerGate] = {}  # by the listener's index, which no reload changes
        self._upstreams: dict[tuple[str, ...], UpstreamGate] = {}
        self._looking: asyncio.Future[list[tuple[Follower, Change]]] | None = None

    def configure(self, settings: Settings) -> None:
        """Go by this from the next connection on; whether a listener speaks TLS at all stays what it was."""
        self._settings = settings
        for index, gate in self._gates.items():
            tls = settings.listeners[index].tls
            if tls is not None:
                gate.configure(tls, settings.timeouts.handshake_s)
        for upstream in self._upstreams.values():
            upstream.configure(settings.upstream_tls)

    @property
    def handshakes(self) -> int:
        """Handshakes with callers that are under way."""
        return sum(gate.handshakes for gate in self._gates.values())

    def guard(
        self, index: int, name: str, alpn: tuple[str, ...], application: Callable[[], asyncio.Protocol]
    ) -> Callable[[], asyncio.Protocol]:
        """Return what a listener's server makes protocols with: ``application`` itself where there is no TLS."""
        tls = self._settings.listeners[index].tls
        if tls is None:
            return application
        gate = ListenerGate(
            name,
            tls,
            alpn,
            application,
            loop=self._loop,
            page=self._page,
            audit=self._audit,
            room=self._room,
            handshake_s=self._settings.timeouts.handshake_s,
        )
        self._begin(gate.follower)
        self._gates[index] = gate
        return gate.enter

    def upstream(self, alpn: tuple[str, ...]) -> UpstreamGate:
        """Return the gate to workers that speak ``alpn``; its files are read at its first use."""
        gate = self._upstreams.get(alpn)
        if gate is None:
            gate = self._upstreams[alpn] = UpstreamGate(
                self._settings.upstream_tls, alpn, loop=self._loop, page=self._page, audit=self._audit
            )
        return gate

    def prepare(self) -> None:
        """Read the files for workers now where configured endpoints need them, so that no request waits for that."""
        settings = self._settings
        urls = [url for model in settings.models for url in model.urls] + [one.url for one in settings.endpoints]
        for scheme, alpn in (("https://", HTTP1), ("grpcs://", HTTP2)):
            if any(url.startswith(scheme) for url in urls):
                self._begin(self.upstream(alpn).follower)

    def _begin(self, follower: Follower) -> None:
        change = follower.look()
        if change is not None:
            follower.take(change)
            if change.terms is None:  # it was good when the sidecar started, so it is being changed right now
                _log.error("tls.unusable", of=follower.name, why=change.error, remedy="put good files there")

    def tick(self, now: float) -> None:
        """Look after files and gauges; called once a second."""
        self._audit.flush(now)
        followers = [gate.follower for gate in self._gates.values()]
        followers += [gate.follower for gate in self._upstreams.values() if gate.follower.terms is not None]
        if followers and self._looking is None:
            self._looking = self._loop.run_in_executor(None, _look, followers)  # a mount may hang
            self._looking.add_done_callback(self._looked)

    def flush(self) -> None:
        """Write the gauge."""
        self._page.words[self._page.scalar(Scalar.TLS_HANDSHAKES_NOW)] = self.handshakes

    def _looked(self, found: asyncio.Future[list[tuple[Follower, Change]]]) -> None:
        self._looking = None
        if found.cancelled():
            return
        for follower, change in found.result():
            follower.take(change)
            good = change.terms is not None
            self._page.words[
                self._page.scalar(Scalar.TLS_RELOADS_TOTAL if good else Scalar.TLS_RELOADS_FAILED_TOTAL)
            ] += 1
            if good:
                _log.info("tls.reloaded", of=follower.name)
            else:
                _log.warning(
                    "tls.reload_failed", of=follower.name, why=change.error, effect="the last good ones stay in use"
                )

    def _room(self) -> bool:
        return self.handshakes < self._settings.limits.handshakes


def _look(followers: Sequence[Follower]) -> list[tuple[Follower, Change]]:
    return [(follower, change) for follower in followers if (change := follower.look()) is not None]
