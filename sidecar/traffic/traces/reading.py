"""Files of traces: which kind one is, by what it begins with."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from sidecar.traffic.traces import logs, recorded, tokens
from sidecar.traffic.traces.templates import DEFAULT, BodyTemplate
from sidecar.traffic.traces.trace import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from sidecar.traffic.requests import Timed
    from sidecar.traffic.traces.trace import Trace

MAX_LINE_BYTES: Final = 128 << 20
TARGET: Final = "/v1/completions"
_GZIP: Final = b"\x1f\x8b"


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
        raise TraceError(f"{path}: {reason}") from None


def _read(name: str, file: BinaryIO, filling: Filling) -> Trace:
    lines = _lines(name, file)
    first = next(lines, b"")
    text = first.decode("utf-8", "replace").removeprefix("\ufeff")
    everything = chain([first], lines)
    if f'"{recorded.KEY}"' in text and text.lstrip().startswith("{"):
        trace = recorded.read(name, everything)
        return _with_headers(trace, filling.headers) if filling.headers else trace
    texts = chain([text], (line.decode("utf-8", "replace") for line in lines))
    if tokens.columns_of(text) is not None:
        template = filling.template or BodyTemplate(DEFAULT)
        return tokens.read(name, texts, template, filling.target, filling.model, filling.headers)
    if logs.looks_like(text):
        return logs.read(name, texts, filling.template, filling.model, filling.headers)
    raise TraceError(
        f"{name}:1: no trace that is known: neither what warmroute record writes, nor an access log in the combined"
        " format, nor a CSV of Azure's LLM inference traces or BurstGPT"
    )


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"{name}:{number}: a line of more than {MAX_LINE_BYTES} bytes")
        yield line


def _with_headers(trace: Trace, headers: tuple[tuple[str, str], ...]) -> Trace:
    given = {name.lower() for name, _ in headers}

    def with_them(request: Timed) -> Timed:
        own = tuple(header for header in request.headers if header[0].lower() not in given)
        return replace(request, headers=own + headers, then=tuple(with_them(one) for one in request.then))

    return replace(trace, make=lambda: (with_them(request) for request in trace.make()))
