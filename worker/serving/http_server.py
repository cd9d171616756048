"""aiohttp's server with the protocol's form for what it answers by itself, before there is a request to route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from worker.serving.unread import left_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from worker.serving.unread import Unread

    Refusal = Callable[[str, int], web.Response]

MAX_TEXT_CHARS = 256
APART_FROM_BYTES = 64 << 10
"""A body as large is written apart from its head, which the library would make one of with a copy."""


class Runner(web.AppRunner):
    """Runs an application. What is no HTTP, or over the limits of a head, is answered by ``refusal``."""

    __slots__ = ("_refusal", "_unread")

    def __init__(self, app: web.Application, refusal: Refusal, unread: Unread, **settings: Any) -> None:
        """``refusal`` makes the answer of a text and a status; ``settings`` are those of :class:`web.AppRunner`.

        ``unread`` counts answers until they are taken.
        """
        super().__init__(app, **settings)
        self._refusal = refusal
        self._unread = unread

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler, self._refusal, self._unread, request_factory=made.request_factory, **self._kwargs
        )


class _Server(web.Server):
    """Makes connections that ask for the form of an error."""

    def __init__(self, handler: Any, refusal: Refusal, unread: Unread, **settings: Any) -> None:
        super().__init__(handler, **settings)
        self.refusal = refusal
        self.unread = unread

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)


class Connection(web.RequestHandler):  # type: ignore[type-arg, unused-ignore]
    """One connection of a caller."""

    __slots__ = ("_discards", "_refusal", "_unread")

    def __init__(self, server: _Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._refusal = server.refusal
        self._unread = server.unread
        self._discards = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have an answer count as written once the kernel has all of it."""
        super().connection_made(transport)
        if self.transport is not None:
            self.transport.set_write_buffer_limits(0)

    async def _drain_helper(self) -> None:
        """Wait until the kernel has what was written, for as long as the caller goes on taking it."""
        transport = self.transport
        if transport is None or not self._paused:
            await super()._drain_helper()
            return
        with self._unread.watch(lambda: left_of(transport), transport.abort):
            await super()._drain_helper()

    def discard(self) -> None:
        """Throw away what is still to come, unread: decompressing a body that is refused costs as if it were wanted.

        The connection ends with the answer, when the caller has gone or the server has waited long enough for it.
        """
        self._discards = True
        self.close()

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is thrown away."""
        if not self._discards:
            super().data_received(data)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what went wrong, unless it is a body's fault: whoever sent it was told, and no operator can mend it."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError | web.RequestPayloadError):
            super().log_exception(*args, **kw)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; what the library refuses before a handler is asked (an expectation) gets an error's form."""
        if isinstance(resp, web.HTTPException):
            text = resp.text or resp.reason
            if resp.status == web.HTTPExpectationFailed.status_code:
                wish = request.headers.get("Expect", "")[:MAX_TEXT_CHARS]
                text = f"Expect: {wish!r}: expected 100-continue; leave it away and send the body"
            resp = self._refusal(text[:MAX_TEXT_CHARS], resp.status)
            resp.force_close()  # nobody knows whether the body comes
        if not isinstance(resp, web.Response) or not isinstance(resp.body, bytes | bytearray):
            return await super().finish_response(request, resp, start_time)
        size = len(resp.body)
        with self._unread.hold(size):
            if size >= APART_FROM_BYTES:
                try:
                    writer = await resp.prepare(request)
                    if writer is not None:
                        writer.send_headers()
                except ConnectionError:
                    return resp, True
            done = await super().finish_response(request, resp, start_time)
            resp.body = None  # the library has the answer until the connection's next one
            return done

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read, or what a handler did not answer; closes the connection."""
        if status >= 500:
            self.logger.error("a request was not answered", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        text = " ".join((message or "").split())[:MAX_TEXT_CHARS]
        answer = self._refusal(text or "an error inside the worker", status)
        answer.force_close()
        return answer
