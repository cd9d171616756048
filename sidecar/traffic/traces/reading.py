"""Files of traces: which kind one is, by what it begins with."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from sidecar.traffic.traces import logs, mooncake, recorded, tokens
from sidecar.traffic.traces.templates import DEFAULT, BodyTemplate
from sidecar.traffic.traces.trace import MAX_REQUESTS, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from sidecar.traffic.requests import Timed
    from sidecar.traffic.traces.trace import Trace

MAX_LINE_BYTES: Final = 128 << 20
MAX_TEXT_LINE_BYTES: Final = 1 << 20
"""Where lines hold no bodies."""
MAX_FILE_BYTES: Final = 4 << 30
"""Unpacked."""
MAX_LINES: Final = 2 * MAX_REQUESTS
"""Empty ones too."""
TARGET: Final = "/v1/completions"
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Filling:
    """What requests get that a trace does not have. ``headers`` stand instead of the trace's own of those names."""

    template: BodyTemplate | None = None
    target: str = TARGET
    model: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def read_trace(path: Path, filling: Filling) -> Trace:
    """Read a trace of any kind, also one that gzip packed.

    Raises:
        TraceError: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if packed:
                with gzip.open(file) as unpacked:
                    return _read(str(path), unpacked, filling)  # type: ignore[arg-type]  # a reader of bytes all the same
            return _read(str(path), file, filling)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = "; is the file whole?" if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile) else ""
        raise TraceError(f"{path}: {reason}{remedy}") from None


def _read(name: str, file: BinaryIO, filling: Filling) -> Trace:
    lines = _Lines(name, file)
    first = next(lines, b"")
    if first.startswith(_UTF_16):
        raise TraceError(f"{name}:1: is UTF-16; convert it, as with: iconv -f UTF-16 -t UTF-8")
    text = first.decode("utf-8", "replace").removeprefix("\ufeff")
    if f'"{recorded.KEY}"' in text and text.lstrip().startswith("{"):
        trace = recorded.read(name, chain([first], lines))
        return _with_headers(trace, filling.headers) if filling.headers else trace
    lines.most = MAX_TEXT_LINE_BYTES
    if len(first) <= MAX_TEXT_LINE_BYTES:
        template = filling.template or BodyTemplate(DEFAULT)
        if tokens.columns_of(text) is not None:
            texts = chain([text], _texts(name, lines))
            return tokens.read(name, texts, template, filling.target, filling.model, filling.headers)
        if mooncake.looks_like(text):
            everything = chain([text.encode()], lines)
            return mooncake.read(name, everything, template, filling.target, filling.model, filling.headers)
        if logs.looks_like(text):
            texts = chain([text], (line.decode("utf-8", "replace") for line in lines))
            return logs.read(name, texts, filling.template, filling.model, filling.headers)
    raise TraceError(
        f"{name}:1: no trace that is known: neither what warmroute record writes, nor an access log (the combined or"
        " common format, Envoy's default, HAProxy's option httplog, or JSON lines), nor a CSV of Azure's LLM inference"
        " traces or BurstGPT, nor Mooncake's JSON lines"
    )


def _texts(name: str, lines: _Lines) -> Iterator[str]:
    for line in lines:
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{name}:{lines.number}: is no UTF-8 from byte {error.start} on; convert the file, or take the line out"
            ) from None


class _Lines:
    """The lines of a file, in bounds: what gzip packed may be much more than it looks."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self.most = MAX_LINE_BYTES
        """How long a line may be."""
        self.number = 0
        self._bytes = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> bytes:
        line = self._file.readline(self.most + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._bytes += len(line)
        where = f"{self._name}:{self.number}"
        if len(line) > self.most:
            raise TraceError(f"{where}: a line of more than {self.most} bytes; take it out")
        if self._bytes > MAX_FILE_BYTES:
            raise TraceError(f"{where}: more than {MAX_FILE_BYTES} bytes up to here; cut the file into several")
        if self.number > MAX_LINES:
            raise TraceError(f"{where}: more than {MAX_LINES} lines; cut the file into several")
        return line


def _with_headers(trace: Trace, headers: tuple[tuple[str, str], ...]) -> Trace:
    given = {name.lower() for name, _ in headers}

    def with_them(request: Timed) -> Timed:
        own = tuple(header for header in request.headers if header[0].lower() not in given)
        return replace(request, headers=own + headers, then=tuple(with_them(one) for one in request.then))

    return replace(trace, make=lambda: (with_them(request) for request in trace.make()))
