"""What commands that send traffic share: options, files read into traces, progress, and an end on Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from sidecar.cli.outcome import EXIT_REFUSED, CliError
from sidecar.traffic.addresses import Speech, destination
from sidecar.traffic.requests import Timed, check
from sidecar.traffic.samples import Ended
from sidecar.traffic.sender import MAX_CONNECTIONS, TIMEOUT_S, Sender
from sidecar.traffic.traces.reading import TARGET, Filling, read_trace
from sidecar.traffic.traces.templates import BodyTemplate, TemplateError
from sidecar.traffic.traces.trace import Trace, TraceError
from sidecar.traffic.trusting import TrustError, client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sidecar.traffic.samples import Sample

Json = Annotated[bool, Parameter(name="--json", help="Print the figures as JSON.", show_default=False)]

_TERMINAL_S: Final = 0.5
_LOG_S: Final = 10.0
"""How often progress is shown, on a terminal and elsewhere."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Sending:
    """Options about what is sent and how."""

    speed: Annotated[float, Parameter(help="2 sends twice as fast as the trace.", validator=Number(gt=0, lte=1000))] = (
        1.0
    )
    limit: Annotated[int, Parameter(help="Send this many requests at most; 0: all.", validator=Number(gte=0))] = 0
    for_s: Annotated[
        float, Parameter(help="Send what falls into the first seconds, after --speed; 0: all.", validator=Number(gte=0))
    ] = 0.0
    header: Annotated[
        tuple[str, ...],
        Parameter(show_default=False, help='Send "NAME: VALUE", in place of the trace\'s own; may be repeated.'),
    ] = ()
    body_template: Annotated[
        Path | None, Parameter(help="File with the body of requests whose trace has none (docs/replay.md).")
    ] = None
    target: Annotated[str, Parameter(help="Where requests of an LLM trace go.")] = TARGET
    model: Annotated[str, Parameter(help="The template's $model, in place of the trace's.", show_default=False)] = ""
    max_connections: Annotated[
        int, Parameter(help="Connections at once; who finds none free waits.", validator=Number(gte=1, lte=20_000))
    ] = MAX_CONNECTIONS
    timeout_s: Annotated[
        float, Parameter(help="Seconds from its moment until a request is given up.", validator=Number(gt=0, lte=3600))
    ] = TIMEOUT_S
    http2: Annotated[
        bool, Parameter(help="Speak HTTP/2, with prior knowledge or as https:// agrees on.", negative="")
    ] = False
    ca_file: Annotated[
        Path | None, Parameter(help="Over TLS: certificates to trust; without it the system's.", show_default=False)
    ] = None
    cert_file: Annotated[
        Path | None, Parameter(help="Over TLS: our own certificate, for who asks.", show_default=False)
    ] = None
    key_file: Annotated[Path | None, Parameter(help="Its key, where it is in another file.", show_default=False)] = None
    insecure: Annotated[bool, Parameter(help="Over TLS: believe any certificate.", negative="")] = False

    def read(self, file: Path, *addresses: str) -> Trace:
        """Read a trace, and leave out what cannot be sent to ``addresses``.

        :raises CliError: it is none, or an option does not fit it.
        """
        files = {"--ca-file": self.ca_file, "--cert-file": self.cert_file, "--key-file": self.key_file}
        needs_tls({**files, "--insecure": self.insecure or None}, addresses)
        template = None
        try:
            if self.body_template is not None:
                template = BodyTemplate(self.body_template.read_text(encoding="utf-8"))
            trace = read_trace(file, Filling(template, self.target, self.model, self._headers()))
            for calls in {address.startswith("grpc") for address in addresses}:
                trace = trace.only(calls=calls)
        except TraceError as error:
            raise CliError(str(error), EXIT_REFUSED) from None
        except TemplateError as error:
            raise CliError(f"--body-template: {self.body_template}: {error}", EXIT_REFUSED) from None
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"--body-template: {self.body_template}: {error}", EXIT_REFUSED) from None
        if not trace.requests:
            why = "; ".join(f"{count} {reason}" for reason, count in trace.left_out.items())
            raise CliError(f"{file}: nothing in it can be sent{': ' + why if why else ''}", EXIT_REFUSED)
        return trace

    def requests(self, trace: Trace) -> Iterator[Timed]:
        """Make what is to be sent of a trace."""
        for number, request in enumerate(trace.at(self.speed), 1):
            if (self.limit and number > self.limit) or (self.for_s and request.at_s >= self.for_s):
                return
            yield request

    def sender(self, address: str, take: Callable[[Sample], None], flag: str, prefix: str = "") -> Sender:
        """Return who sends to an address, which ``flag`` named.

        :raises CliError: it is none.
        """
        try:
            to = destination(address, http2=self.http2)
            return Sender(
                address,
                take,
                max_connections=self.max_connections,
                timeout_s=self.timeout_s,
                prefix=prefix,
                tls=self._tls(to.speech) if to.secure else None,
                http2=self.http2,
            )
        except ValueError as error:
            raise CliError(f"{flag}: {error}", EXIT_REFUSED) from None

    def _tls(self, speech: Speech) -> ssl.SSLContext:
        try:
            return client_context([speech.alpn], self.ca_file, self.cert_file, self.key_file, insecure=self.insecure)
        except TrustError as error:
            raise CliError(f"--{error.option}: {error}", EXIT_REFUSED) from None

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers = []
        for text in self.header:
            name, colon, value = text.partition(":")
            headers.append((name.strip(), value.strip()))
            wrong = check(Timed(0.0, headers=(headers[-1],)))
            if not colon or wrong:
                raise CliError(f"--header {text!r}: must be NAME: VALUE{'; ' + wrong if wrong else ''}", EXIT_REFUSED)
        return tuple(headers)


def needs_tls(given: Mapping[str, object], addresses: Sequence[str]) -> None:
    """Refuse options for TLS, those that are not None, where it is spoken with none of ``addresses``.

    :raises CliError: there is one.
    """
    for flag, value in given.items():
        if value is not None and not any(address.startswith(("https://", "grpcs://")) for address in addresses):
            raise CliError(f"{flag}: is for https:// and grpcs://, which {addresses[0]} is not", EXIT_REFUSED)


def unconnected(reasons: Mapping[str, str], address: str) -> Iterator[str]:
    """Yield why some requests found no connection at an address, by how they ended, and what to do about it."""
    for end, reason in reasons.items():
        remedy = ""
        if end == Ended.TLS_FAILED:
            remedy = "; --ca-file FILE says whose certificates count, --cert-file FILE shows ours"
        elif end == Ended.NO_HTTP2:
            remedy = "; gRPC needs HTTP/2: name another" if address.startswith("grpc") else "; leave out --http2"
        yield f"{end}: {reason}{remedy}"


async def watched(work: Callable[[], asyncio.Future[None]], stop: Callable[[], None], line: Callable[[], str]) -> bool:
    """Do work while ``line`` is shown on standard error; return False where Ctrl-C ended it.

    The first Ctrl-C calls ``stop``, the second ends the work at once.
    """
    loop = asyncio.get_running_loop()
    interrupts = 0
    task = asyncio.ensure_future(work())

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            stop()
        else:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    showing = asyncio.create_task(_show(line), name="progress")
    try:
        with suppress(asyncio.CancelledError):
            await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        showing.cancel()
    return not interrupts


async def _show(line: Callable[[], str]) -> None:
    terminal = sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(_TERMINAL_S if terminal else _LOG_S)
            sys.stderr.write(f"\r\x1b[K{line()}" if terminal else f"{line()}\n")
            sys.stderr.flush()
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
