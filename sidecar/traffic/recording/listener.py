"""A listener in front of a sidecar, or of anything else that speaks HTTP or gRPC: bytes pass through as they are.

Where callers speak TLS it ends here; towards the server it may begin anew, with what the caller agreed on (ALPN).
Callers are offered what the server takes, which is asked before anybody is accepted.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sidecar.traffic.addresses import Speech, destination
from sidecar.traffic.recording.either import EitherTap
from sidecar.traffic.trusting import accepted, is_alpn_refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.traffic.recording.noting import Terms

MAX_CONNECTIONS: Final = 1024
CONNECT_S: Final = 5.0
FLUSH_S: Final = 30.0
DRAIN_S: Final = 10.0
LEARN_S: Final = 1.0
"""How often a server is asked what it speaks that could not be asked before."""
_PIECE_BYTES: Final = 65536


class Recorder:
    """Relays connections to one address; ``now`` gives the trace's seconds.

    More than ``max_connections`` at once are closed, and counted as ``refused``. ``callers_tls``: callers speak TLS;
    what they are offered is set here where the server speaks TLS too. ``tls`` gives the context towards a server that
    does, for what is spoken there (ALPN).
    """

    def __init__(
        self,
        address: str,
        terms: Terms,
        now: Callable[[], float],
        *,
        max_connections: int = MAX_CONNECTIONS,
        callers_tls: ssl.SSLContext | None = None,
        tls: Callable[[str], ssl.SSLContext] | None = None,
    ) -> None:
        """``address``: see ``sidecar.traffic.addresses.destination``.

        Raises:
            ValueError: it is none, or it needs ``tls``.
        """
        self._to = destination(address)
        if self._to.secure and tls is None:
            raise ValueError(f"address {address!r}: there is nothing here that says whom to trust over TLS")
        self._callers_tls = callers_tls
        self._tls = tls
        self._terms = terms
        self._now = now
        self._max = max_connections
        self._server: asyncio.Server | None = None
        self._taps: dict[asyncio.Task[None], EitherTap] = {}
        self._learning: asyncio.Task[None] | None = None
        self.untold = ""
        """Why it is not known what the server speaks; callers over TLS are offered HTTP/1.1 until it is."""
        self.refused = 0
        self.unreachable = 0
        """Connections that were closed because nobody took them at the address."""
        self.defects = 0
        """Connections that were listened to no more because of a defect here; the last one was ``defect``."""
        self.defect = ""

    @property
    def open(self) -> int:
        """Connections there are."""
        return len(self._taps)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept connections; return the address and port, which the kernel chose where ``port`` is 0."""
        if self._callers_tls is not None and self._to.secure and self._to.speech is Speech.HTTP1:
            await self._learn(self._callers_tls)
        self._server = await asyncio.start_server(self._accept, host, port, backlog=1024, ssl=self._callers_tls)
        name: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return name

    async def _learn(self, callers_tls: ssl.SSLContext) -> None:
        """Ask the server what it speaks, and offer that to callers. Where it cannot be asked now, go on in a while."""
        offered: list[str] = []
        try:
            async with asyncio.timeout(CONNECT_S):
                offered = await accepted(self._to.name, self._to.port, self._context)
            untold = "" if offered else "it takes neither h2 nor http/1.1 (ALPN)"
        except OSError as error:  # a TimeoutError is one
            untold = str(error) or f"no answer in {CONNECT_S:g} s"
        callers_tls.set_alpn_protocols(offered or [Speech.HTTP1.alpn])
        self.untold = untold
        if untold:
            self._learn_again(callers_tls, LEARN_S)

    def _learn_again(self, callers_tls: ssl.SSLContext, in_s: float) -> None:
        async def later() -> None:
            await asyncio.sleep(in_s)
            self._learning = None
            await self._learn(callers_tls)

        if self._learning is None:
            self._learning = asyncio.create_task(later(), name="learn-alpn")

    def _context(self, alpn: str) -> ssl.SSLContext:
        assert self._tls is not None  # noqa: S101 (for the type checker: a secure address has one)
        return self._tls(alpn)

    async def close(self, within_s: float = DRAIN_S) -> None:
        """Accept no more, let requests under way end within a time, and close."""
        if self._server is not None:
            self._server.close()
        if self._learning is not None:
            self._learning.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(tap.under_way for tap in self._taps.values()):  # noqa: ASYNC110 (taps know no loop)
                    await asyncio.sleep(0.05)
        tasks = list(self._taps)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._taps) >= self._max:
            self.refused += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker)
        tap = self._taps[task] = EitherTap(self._terms)
        both: tuple[asyncio.StreamWriter, ...] = (writer,)
        try:
            answers, upstream = await self._connect(writer)
            both = (writer, upstream)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, upstream, tap, tap.from_caller, tap.caller_left, tap.server_left))
                ways.create_task(self._carry(answers, writer, tap, tap.from_server, tap.server_left, tap.caller_left))
            await self._flush(both)
        except* (OSError, TimeoutError):  # one side is gone, so the other one is closed
            self.unreachable += len(both) == 1
        except* asyncio.CancelledError:  # by close, which waits for it
            pass
        finally:
            self._taps.pop(task, None)
            self._listen(tap, tap.server_left)
            for one in both:
                one.transport.abort()

    async def _connect(self, caller: asyncio.StreamWriter) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_S):
            if self._to.socket is not None:
                return await asyncio.open_unix_connection(self._to.socket)
            if not self._to.secure:
                return await asyncio.open_connection(self._to.name, self._to.port)
            alpn = _agreed(caller) or self._to.speech.alpn
            try:
                both = await asyncio.open_connection(self._to.name, self._to.port, ssl=self._context(alpn))
            except ssl.SSLError as error:
                if is_alpn_refusal(error):
                    self._changed()
                raise
            if alpn == Speech.HTTP2.alpn and self._to.speech is Speech.HTTP1 and _agreed(both[1]) != alpn:
                both[1].transport.abort()
                self._changed()
                raise ConnectionRefusedError(f"it did not choose {alpn} (ALPN)")
            return both

    def _changed(self) -> None:
        """The server takes no longer what it took: it is another one since it was asked."""
        if self._callers_tls is not None and self._to.speech is Speech.HTTP1:
            self._learn_again(self._callers_tls, 0.0)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tap: EitherTap,
        heard: Callable[[bytes, float], None],
        left: Callable[[float], None],
        other_left: Callable[[float], None],
    ) -> None:
        """Carry one way. ``left``: who is read from has ended; ``other_left``: who is written to has gone."""
        while True:
            try:
                piece = await reader.read(_PIECE_BYTES)
            except OSError:
                self._listen(tap, left)
                raise
            if not piece:
                break
            self._listen(tap, heard, piece)
            try:
                writer.write(piece)
                await writer.drain()
            except OSError:
                self._listen(tap, other_left)
                raise
        self._listen(tap, left)
        if writer.can_write_eof():
            with suppress(OSError):
                writer.write_eof()
        else:  # TLS ends both ways at once
            writer.close()

    def _listen(self, tap: EitherTap, heard: Callable[..., None], *what: bytes) -> None:
        """Have the tap hear of something. A defect of it ends the listening, and not what is carried."""
        try:
            heard(*what, self._now())
        except Exception as error:  # noqa: BLE001 (whatever it is)
            self.defects += 1
            self.defect = f"{type(error).__name__}: {error}"
            tap.give_up()

    @staticmethod
    async def _flush(writers: tuple[asyncio.StreamWriter, ...]) -> None:
        """Both sides have ended; let what was written to them arrive."""
        async with asyncio.timeout(FLUSH_S):
            for writer in writers:
                writer.close()
            for writer in writers:
                await writer.wait_closed()


def _agreed(writer: asyncio.StreamWriter) -> str | None:
    """Return what was agreed on over TLS (ALPN); None where there is no TLS, or no agreement."""
    tls = writer.get_extra_info("ssl_object")
    return None if tls is None else tls.selected_alpn_protocol()
