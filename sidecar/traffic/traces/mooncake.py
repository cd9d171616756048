"""Mooncake's public LLM traces: JSON lines of moments, numbers of tokens, and which blocks prompts have in common.

``{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}``: milliseconds, and an id for
each block of 512 tokens. Prompts whose ids begin alike begin with the same words here too, so what a server keeps of
prompts is worth as much as it was.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from sidecar.traffic.traces.tokens import MAX_MOMENT_S, MAX_TOKENS, Row, in_order, trace_of_rows
from sidecar.traffic.traces.trace import MAX_REQUESTS, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sidecar.traffic.traces.templates import BodyTemplate
    from sidecar.traffic.traces.trace import Trace

MAX_BLOCKS: Final = 20_000
MAX_ALL_BLOCKS: Final = 100_000_000
"""Of one trace: they are in memory while it is replayed."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_Block = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Line(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1000 * MAX_MOMENT_S)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: Annotated[list[_Block], msgspec.Meta(max_length=MAX_BLOCKS)] = []


_DECODE: Final = msgspec.json.Decoder(_Line)


def looks_like(line: str) -> bool:
    """Return whether this is a line of such a trace."""
    return line.startswith("{") and all(f'"{name}"' in line for name in ("timestamp", "input_length", "output_length"))


def read(
    name: str,
    lines: Iterable[bytes],
    template: BodyTemplate,
    target: str,
    model: str,
    headers: Sequence[tuple[str, str]],
) -> Trace:
    """Read such a trace, which names no model.

    Raises:
        TraceError: a line is none of it, or the template needs a model and there is none.
    """
    if "model" in template.needs and not model:
        raise TraceError(f"{name}: the body needs a model and this trace names none: give --model")
    return trace_of_rows("Mooncake", in_order(name, _rows(name, lines, model)), template, target, headers)


def _rows(name: str, lines: Iterable[bytes], model: str) -> Iterator[tuple[int, Row]]:
    blocks = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number > MAX_REQUESTS:
            raise TraceError(f"{name}:{number}: more than {MAX_REQUESTS} requests; cut the file into several")
        try:
            one = _DECODE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{name}:{number}: {error}; correct it, or take the line out") from None
        blocks += len(one.hash_ids)
        if blocks > MAX_ALL_BLOCKS:
            raise TraceError(f"{name}:{number}: more than {MAX_ALL_BLOCKS} hash_ids; cut the file into several")
        yield number, Row(one.timestamp / 1000, one.input_length, one.output_length, model, array("q", one.hash_ids))
