"""Load reports out of band: a call of ``xds.service.orca.v3.OpenRcaService/StreamCoreMetrics``, followed to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.upstreams.grpc_call import UNIMPLEMENTED, CallError, call
from sidecar.upstreams.orca import MAX_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

PATH: Final = b"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"


class NotServedError(ValueError):
    """The server does not know the service: there is no use in asking it soon again."""


def request_bytes(interval_s: float) -> bytes:
    """Return an ``OrcaLoadReportRequest`` that asks for a report so often."""
    seconds = int(interval_s)
    nanos = int((interval_s - seconds) * 1e9)
    duration = (b"\x08" + _varint(seconds) if seconds else b"") + (b"\x10" + _varint(nanos) if nanos else b"")
    return b"\x0a" + _varint(len(duration)) + duration


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


async def stream_reports(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, interval_s: float
) -> AsyncIterator[bytes]:
    """Ask for reports every ``interval_s`` and yield each as it comes, an ``OrcaLoadReport`` in bytes.

    Raises:
        NotServedError: the server does not know the service.
        ValueError: it ended the call, or answered with what is no gRPC, too large or compressed.
        EOFError: it closed the connection.
    """
    try:
        async for message in call(reader, writer, authority, PATH, request_bytes(interval_s), most=MAX_BYTES):
            yield message
    except CallError as error:
        if error.status == UNIMPLEMENTED:
            raise NotServedError("the server does not know OpenRcaService") from None
        raise
