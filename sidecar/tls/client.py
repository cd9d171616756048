"""TLS to workers: who they must be, and connections to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sidecar.telemetry.logs import Throttle, get_log
from sidecar.telemetry.page import Scalar
from sidecar.tls.material import Follower, Terms, plain
from sidecar.tls.names import PeerNames, names_shown
from sidecar.tls.transport import PREFIX, RefusedError, TlsTransport

if TYPE_CHECKING:
    from sidecar.settings import UpstreamTls
    from sidecar.telemetry.page import Page
    from sidecar.tls.server import Audit
    from sidecar.upstreams.names import Connect

UPSTREAM: Final = "upstream"
"""What the certificate that workers are shown is called in logs and metrics."""

FAILURE_LINE_S: Final = 10.0
"""A handshake that failed is a line in the log at most this often; ``held_back`` counts those between."""

_log = get_log("tls")

Application = TypeVar("Application", bound=asyncio.Protocol)


class TlsError(OSError):
    """No session with a worker; the text says why."""


class UpstreamGate:
    """The TLS that one data process speaks to workers with, for one protocol (``alpn``)."""

    def __init__(
        self,
        tls: UpstreamTls,
        alpn: tuple[str, ...],
        *,
        loop: asyncio.AbstractEventLoop,
        page: Page,
        audit: Audit,
    ) -> None:
        self.follower = Follower(UPSTREAM, tls, alpn)
        self._loop = loop
        self._page = page
        self._audit = audit
        self._throttle = Throttle(FAILURE_LINE_S)

    def configure(self, tls: UpstreamTls) -> None:
        """Go by this from the next connection on."""
        self.follower = self.follower.changed_to(tls)

    async def connect(
        self,
        endpoint: str,
        application: Callable[[], Application],
        host: str,
        port: int,
        connect: Connect | None = None,
    ) -> Application:
        """Return the protocol of a new connection to a worker whose certificate is good. Time is the caller's to bound.

        ``connect`` makes the connection below it, where that is not the loop's to do.

        Raises:
            TlsError: there is no session with it, or it is another one.
            OSError: there is no connection to it.
            ValueError: ``host`` is no name that can be asked for.
        """
        follower = self.follower
        if follower.terms is None:  # nothing needed it before
            change = await asyncio.to_thread(follower.look)
            if change is not None:
                follower.take(change)
        terms = follower.terms
        if terms is None:
            raise TlsError(f"{PREFIX}{follower.error}")
        opening = _Opening(self, terms, endpoint, application, self._loop.create_future())
        name = terms.server_name or host
        _, session = await (connect or self._loop.create_connection)(
            lambda: TlsTransport(
                self._loop, terms.context, opening, timeout_s=None, server_name=name, server_side=False
            ),
            host,
            port,
        )
        try:
            protocol: Application = await opening.done
        except BaseException:
            session.abort()
            if opening.done.done() and not opening.done.cancelled():
                opening.done.exception()  # nobody will ask for it
            raise
        return protocol

    def refused(self, endpoint: str, names: PeerNames, why: str) -> None:
        """Tell of a worker that is not who it should be."""
        self._page.words[self._page.scalar(Scalar.TLS_PEERS_REJECTED_TOTAL)] += 1
        self._audit.rejected(why, names, endpoint=endpoint)

    def failed(self, endpoint: str, why: str) -> None:
        """Count a handshake that came to nothing, and say why: a request that was tried elsewhere does not."""
        self._page.words[self._page.scalar(Scalar.TLS_UPSTREAM_FAILED_TOTAL)] += 1
        held_back = self._throttle.admit(self._loop.time())
        if held_back is not None:
            _log.warning("tls.upstream_failed", endpoint=endpoint, why=why, held_back=held_back)


class _Opening(Generic[Application]):
    """One session in the making: its owner, what it goes by, and the future that its maker waits for."""

    def __init__(
        self,
        gate: UpstreamGate,
        terms: Terms,
        endpoint: str,
        application: Callable[[], Application],
        done: asyncio.Future[Application],
    ) -> None:
        self._gate = gate
        self._terms = terms
        self._endpoint = endpoint
        self._application = application
        self.done = done

    def established(self, session: TlsTransport) -> asyncio.Protocol | None:
        """Compare names, where there is a list of them."""
        if self.done.done():  # whoever wanted it has gone
            return None
        allowed = self._terms.allowed
        if allowed.entries:
            names = names_shown(session.object.getpeercert)
            why = allowed.refusal(names)
            if why:
                self._gate.refused(self._endpoint, names, why)
                shown = ", ".join(names.all[:4]) or "none"
                self._fail(f"{why} by upstream_tls.allowed_names: {shown}")
                return None
        application = self._application()
        self.done.set_result(application)
        return application

    def failed(self, session: TlsTransport, error: Exception) -> None:
        """There is no session."""
        if not self.done.done():
            self._fail(plain(error))

    def refused(self, error: RefusedError) -> None:
        """The worker ended the session for our certificate; whoever got the connection hears of its end."""
        self._gate.failed(self._endpoint, str(error).removeprefix(PREFIX))

    def _fail(self, why: str) -> None:
        self._gate.failed(self._endpoint, why)
        self.done.set_exception(TlsError(PREFIX + why))
