"""``warmroute record``: a listener in front of a sidecar that writes down what passes."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.sending import needs_tls
from sidecar.config.addresses import AddressError, split_address
from sidecar.heeding import hand_over, heed
from sidecar.traffic.addresses import destination
from sidecar.traffic.recording.listener import MAX_CONNECTIONS, Recorder
from sidecar.traffic.recording.noting import Terms
from sidecar.traffic.recording.redaction import Redaction, RedactionError, header_of, parameter_of, path_of
from sidecar.traffic.recording.writing import TraceFile
from sidecar.traffic.traces.recorded import VERSION, Opening
from sidecar.traffic.trusting import TrustError, client_context, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from sidecar.traffic.addresses import Destination

T = TypeVar("T")

MAX_BODY_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 1 << 30
_ENDS: Final = (signal.SIGINT, signal.SIGTERM)
SWITCH_S: Final = 0.0005
"""How long the thread that writes may keep the interpreter from what passes, but for one call into C."""


def record(
    *,
    listen: Annotated[str, Parameter(help="Where to accept, HOST:PORT; port 0 takes a free one.")],
    to: Annotated[
        str, Parameter(help="Where bytes go: http://, https://, grpc:// or grpcs://HOST:PORT, or unix:/PATH.")
    ],
    out: Annotated[Path, Parameter(help="A new file for the trace.")],
    sample: Annotated[
        float, Parameter(help="Share of the requests, or flows, that are recorded.", validator=Number(gt=0, lte=1))
    ] = 1.0,
    flow_header: Annotated[
        str, Parameter(help="Requests with the same value of this header are one caller's.", show_default=False)
    ] = "",
    redact_header: Annotated[
        tuple[str, ...], Parameter(help="Leave this header out too; may be repeated.", show_default=False)
    ] = (),
    redact_query: Annotated[
        tuple[str, ...], Parameter(help="Mask this query parameter too; may be repeated.", show_default=False)
    ] = (),
    redact_field: Annotated[
        tuple[str, ...],
        Parameter(help="Mask these fields of JSON bodies: messages.*.content; may be repeated.", show_default=False),
    ] = (),
    keep_name: Annotated[
        tuple[str, ...],
        Parameter(help="Keep this header or query parameter, whose name looks like a secret's.", show_default=False),
    ] = (),
    max_body_bytes: Annotated[
        int, Parameter(help="Longer bodies are not kept.", validator=Number(gte=0, lte=64 << 20))
    ] = MAX_BODY_BYTES,
    max_file_bytes: Annotated[
        int, Parameter(help="Nothing is recorded beyond this.", validator=Number(gte=4096, lte=1 << 40))
    ] = MAX_FILE_BYTES,
    rotate: Annotated[
        bool, Parameter(help="Go on in a new file then; the one before becomes FILE.1.", negative="")
    ] = False,
    max_connections: Annotated[
        int, Parameter(help="Connections at once; more are closed.", validator=Number(gte=1, lte=20_000))
    ] = MAX_CONNECTIONS,
    listen_cert_file: Annotated[
        Path | None, Parameter(help="Callers speak TLS, and this is our certificate.", show_default=False)
    ] = None,
    listen_key_file: Annotated[
        Path | None, Parameter(help="Its key, where it is in another file.", show_default=False)
    ] = None,
    ca_file: Annotated[
        Path | None, Parameter(help="Of a --to over TLS: certificates to trust; else the system's.", show_default=False)
    ] = None,
    cert_file: Annotated[
        Path | None, Parameter(help="Of a --to over TLS: our own certificate, for who asks.", show_default=False)
    ] = None,
    key_file: Annotated[
        Path | None, Parameter(help="Its key, where it is in another file.", show_default=False)
    ] = None,
    insecure: Annotated[bool, Parameter(help="Of a --to over TLS: believe any certificate.", negative="")] = False,
) -> int:
    """Pass HTTP and gRPC through to a sidecar as they are, and write down the requests, until Ctrl-C.

    Headers and query parameters whose names look like secrets (authorization, cookie, token, key, ...) are never
    written. The file is readable by its owner alone. A slow or full disk loses lines, and holds no traffic up.
    """
    try:
        host, port = split_address(listen)
    except AddressError as error:
        raise CliError(f"--listen: {listen!r}: {error}", EXIT_REFUSED) from None
    redaction = Redaction(
        frozenset(_each("--redact-header", header_of, redact_header)),
        frozenset(_each("--redact-query", parameter_of, redact_query)),
        tuple(_each("--redact-field", path_of, redact_field)),
        frozenset(name.lower() for name in keep_name),
    )
    flow_headers = _each("--flow-header", header_of, (flow_header,) if flow_header else ())
    began = time.monotonic()

    def opening() -> Opening:  # of each file by the clock of its time, which may have been set since
        moment_0 = datetime.now(UTC) - timedelta(seconds=time.monotonic() - began)
        return Opening(VERSION, moment_0.isoformat(), sample, max_body_bytes, redaction.words)

    terms = Terms(
        random.SystemRandom().random,
        lambda one: file.take(one),
        sample,
        max_body_bytes,
        redaction,
        "".join(flow_headers),
        secrets.token_bytes(16),
    )

    @cache
    def client(alpn: str) -> ssl.SSLContext:
        return client_context([alpn], ca_file, cert_file, key_file, insecure=insecure)

    try:
        where = destination(to)
        files = {"--ca-file": ca_file, "--cert-file": cert_file, "--key-file": key_file}
        needs_tls({**files, "--insecure": insecure or None}, (to,))
        if where.secure:
            client(where.speech.alpn)
        recorder = Recorder(
            to,
            terms,
            lambda: time.monotonic() - began,
            max_connections=max_connections,
            callers_tls=_callers_tls(where, listen_cert_file, listen_key_file),
            tls=client,
        )
    except TrustError as error:
        raise CliError(f"--{error.option}: {error}", EXIT_REFUSED) from None
    except ValueError as error:
        raise CliError(f"--to: {error}", EXIT_REFUSED) from None
    try:
        file = TraceFile(out, opening, max_file_bytes, rotate=rotate)
    except FileExistsError:
        raise CliError(f"--out: {out}: is there already; name a new file", EXIT_REFUSED) from None
    except OSError as error:
        raise CliError(f"--out: {out}: {error.strerror}", EXIT_REFUSED) from None
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        uvloop.run(_run(recorder, to, host, port, lambda: _say(terms, file)))
    except OSError as error:
        raise CliError(f"--listen: {listen}: {error.strerror}", EXIT_REFUSED) from None
    finally:
        sys.setswitchinterval(interval_s)
        file.close()
        if not file.lines:
            out.unlink(missing_ok=True)
    print(f"{out}: {file.lines:,} requests" if file.lines else f"{out}: nothing was recorded, so there is no file")
    for count, what in (
        (terms.passed_over, "requests that --sample left out"),
        (file.lost, f"requests lost: {file.why or 'the disk was too slow'}"),
        (terms.unreadable, "connections that are no HTTP, or became something else; they passed unrecorded"),
        (recorder.defects, f"connections that a defect of this command left unrecorded: {recorder.defect}"),
        (recorder.unreachable, f"connections closed because nobody took them at {to}"),
        (recorder.refused, "connections closed for --max-connections"),
    ):
        if count:
            print(f"{count:,} {what}")
    return EXIT_FAILED if file.lost else EXIT_OK


def _callers_tls(to: Destination, cert_file: Path | None, key_file: Path | None) -> ssl.SSLContext | None:
    """Return how callers are spoken to over TLS; None where they speak none.

    They are offered what the server takes: one that speaks TLS is asked first, another may know HTTP/1.1 alone.

    :raises TrustError: a file cannot be used.
    """
    if cert_file is None:
        if key_file is not None:
            raise CliError("--listen-key-file: needs --listen-cert-file", EXIT_REFUSED)
        return None
    return server_context([to.speech.alpn], cert_file, key_file)


async def _run(recorder: Recorder, to: str, host: str, port: int, said: Callable[[], str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    heed(loop, lambda _: stop.set(), _ENDS)
    await _pass_on(recorder, to, host, port, stop, said)
    hand_over(loop, signal.SIG_IGN, _ENDS)  # lines that wait for the disk are yet to be written


async def _pass_on(
    recorder: Recorder, to: str, host: str, port: int, stop: asyncio.Event, said: Callable[[], str]
) -> None:
    name, number = await recorder.listen(host, port)
    shown = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
    sys.stderr.write(f"recording what passes {shown}; Ctrl-C ends it\n")
    if recorder.untold:
        until = f"callers are offered HTTP/1.1 alone until {to} says what it speaks"
        sys.stderr.write(f"{until}: {recorder.untold}\n")
    sys.stderr.flush()
    while not stop.is_set():
        try:
            async with asyncio.timeout(None if not sys.stderr.isatty() else 1.0):
                await stop.wait()
        except TimeoutError:
            sys.stderr.write(f"\r\x1b[K{recorder.open} connections, {said()}")
            sys.stderr.flush()
    await recorder.close()


def _say(terms: Terms, file: TraceFile) -> str:
    return f"{terms.requests:,} requests, {file.lines:,} recorded" + (f", {file.lost:,} lost" if file.lost else "")


def _each(option: str, read: Callable[[str], T], given: tuple[str, ...]) -> list[T]:
    """Read what an option was given; what could never match would be written as if nobody had named it."""
    try:
        return [read(text) for text in given]
    except RedactionError as error:
        raise CliError(f"{option}: {error}", EXIT_REFUSED) from None
