"""aiohttp's server with the protocol's form for what it answers by itself, before there is a request to route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable

    Refusal = Callable[[str, int], web.Response]

MAX_TEXT_CHARS = 256


class Runner(web.AppRunner):
    """Runs an application. What is no HTTP, or over the limits of a head, is answered by ``refusal``."""

    __slots__ = ("_refusal",)

    def __init__(self, app: web.Application, refusal: Refusal, **settings: Any) -> None:
        """``refusal`` makes the answer of a text and a status; ``settings`` are those of :class:`web.AppRunner`."""
        super().__init__(app, **settings)
        self._refusal = refusal

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, self._refusal, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    """Makes connections that ask for the form of an error."""

    def __init__(self, handler: Any, refusal: Refusal, **settings: Any) -> None:
        super().__init__(handler, **settings)
        self.refusal = refusal

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)


class Connection(web.RequestHandler):  # type: ignore[type-arg, unused-ignore]
    """One connection of a caller."""

    __slots__ = ("_discards", "_refusal")

    def __init__(self, server: _Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._refusal = server.refusal
        self._discards = False

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
        return await super().finish_response(request, resp, start_time)

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
