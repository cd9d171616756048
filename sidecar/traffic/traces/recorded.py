"""warmroute's own traces: JSON lines, the first says what it is, each other one is a request.

``warmroute record`` writes them, people and programs may too. Fields: docs/replay.md.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from sidecar.traffic.answers import needs, wrong_name
from sidecar.traffic.messages import framed, split
from sidecar.traffic.requests import Timed, check
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.trace import MAX_BODY_BYTES, MAX_REQUESTS, Trace, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION: Final = 1
KEY: Final = "warmroute_trace"
"""The field of the first line by which such a trace is known; its value is the version of the format."""


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"version": KEY}):
    """The first line. ``began``: when moment 0 was, RFC 3339. The rest says what was recorded and what not."""

    version: int
    began: str = ""
    sampled_ratio: float = 1.0
    max_body_bytes: int = 0
    redacted: tuple[str, ...] = ()


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a gRPC call. ``compressed``: as its call's ``grpc-encoding`` says; ``after_s`` the call began."""

    base64: str = ""
    compressed: bool = False
    after_s: float = 0.0


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request and what became of it. Seconds count from moment 0; bodies are text, or base64 where they are none.

    ``no_body``: why a body of ``body_bytes`` is not here. ``request_id``: what it was called; it gets a new one.
    ``flow`` and ``think_s``: it begins that long after the one before it in the flow has ended; the first of a flow has
    no ``think_s``. ``take``: what its answer has for those after it, names and paths into its JSON; ``fill``: it is
    made of such, where it says ``${NAME}``. ``hung_up_s``: its caller hung up that long after sending it. ``status``,
    ``ended``, ``first_byte_s``, ``took_s``, ``answer_bytes``, ``worker``: what it was answered, and by whom.
    ``protocol``: ``h2`` or ``grpc``, empty: HTTP/1.1. A gRPC call has ``messages`` in place of a body, and was answered
    with a ``grpc_status`` and so many ``answer_messages``.
    """

    at_s: float
    protocol: Literal["", "h2", "grpc"] = ""
    method: str = "GET"
    target: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    messages: tuple[Message, ...] = ()
    body: str = ""
    body_base64: str = ""
    body_bytes: int = 0
    no_body: str = ""
    name: str = ""
    request_id: str = ""
    flow: str = ""
    think_s: float | None = None
    take: dict[str, str] = {}
    fill: bool = False
    ends_with: str = ""
    hung_up_s: float | None = None
    status: int = 0
    ended: Ended | None = None
    first_byte_s: float | None = None
    took_s: float | None = None
    answer_bytes: int = 0
    worker: str = ""
    grpc_status: int | None = None
    answer_messages: int = 0


_DECODE_OPENING: Final = msgspec.json.Decoder(Opening)
_DECODE: Final = msgspec.json.Decoder(Recorded)


def body_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a line that hold ``body``."""
    if not body:
        return {}
    try:
        return {"body": body.decode("utf-8"), "body_bytes": len(body)}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii"), "body_bytes": len(body)}


def message_fields(body: bytes, after_s: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a line that hold the messages of a gRPC call, each with the moment that it was whole.

    What is not whole at the end is left out.
    """
    messages = zip(split(body), after_s, strict=False)
    return {
        "messages": tuple(
            Message(base64.b64encode(content).decode("ascii"), compressed, round(moment, 3))
            for (compressed, content), moment in messages
        ),
        "body_bytes": len(body),
    }


def read(name: str, lines: Iterable[bytes]) -> Trace:
    """Read a trace; ``name`` is its file's, for errors.

    Raises:
        TraceError: a line is none of it.
    """
    timed: list[Timed] = []
    flows: dict[str, list[Timed]] = {}
    left_out: Counter[str] = Counter()
    bodies = 0
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if number == 1:
            opening_of(where, line)
            continue
        if not line.strip():
            continue
        if number > MAX_REQUESTS + 1:
            raise TraceError(f"{where}: more than {MAX_REQUESTS} requests; cut the file into several")
        one = _decoded(where, line, _DECODE, "correct it, or take the line out")
        if one.no_body:
            left_out[f"without its body ({one.no_body})"] += 1
            continue
        request = _request(where, one)
        bodies += len(request.body) + sum(len(data) for _, data in request.parts)
        if bodies > MAX_BODY_BYTES:
            raise TraceError(
                f"{where}: more than {MAX_BODY_BYTES} bytes of bodies up to here; cut the file into several"
            )
        if one.fill:
            _check_filled(where, one, request, flows.get(one.flow, []))
        if one.think_s is None:
            if one.flow and one.flow not in flows:
                flows[one.flow] = [request]
            else:
                timed.append(request)
        elif one.flow in flows:
            flows[one.flow].append(request)
        elif one.flow:  # its first request was left out, or not recorded
            flows[one.flow] = [replace(request, at_s=one.at_s)]
        else:
            raise TraceError(f"{where}: think_s without flow: name the flow whose request before this one it follows")
    timed += [replace(first, then=tuple(rest)) for first, *rest in flows.values()]
    return trace_of("recorded", timed, left_out)


def _check_filled(where: str, one: Recorded, request: Timed, before: list[Timed]) -> None:
    if one.think_s is None:
        raise TraceError(f"{where}: fill without think_s: only what follows in a flow can be made of an answer")
    lacking = sorted(needs(request) - {name for earlier in before for name, _ in earlier.take})
    if lacking:
        raise TraceError(
            f"{where}: ${{{lacking[0]}}}: no request before it in flow {one.flow!r} takes it; add it to the take of one"
        )


def trace_of(kind: str, timed: list[Timed], left_out: Counter[str]) -> Trace:
    """Return a trace of requests that are all there, in the order of their moments and from 0 s on."""
    timed.sort(key=lambda request: request.at_s)
    first_s = timed[0].at_s if timed else 0.0
    moved = [replace(request, at_s=request.at_s - first_s) for request in timed] if first_s else timed
    requests = sum(1 + len(request.then) for request in moved)
    return Trace(kind, requests, moved[-1].at_s if moved else 0.0, lambda: iter(moved), left_out)


def opening_of(where: str, line: bytes) -> Opening:
    """Return what a first line says.

    Raises:
        TraceError: it is none, or of another version.
    """
    opening: Opening = _decoded(where, line, _DECODE_OPENING, f'a trace begins with {{"{KEY}": {VERSION}}}')
    if opening.version != VERSION:
        raise TraceError(f"{where}: {KEY} {opening.version}; this version of warmroute reads {VERSION}")
    return opening


def _decoded(where: str, line: bytes, decoder: msgspec.json.Decoder[Any], remedy: str) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: {error}; {remedy}") from None


def _messages(where: str, messages: Sequence[Message]) -> list[tuple[float, bytes]]:
    """Return messages as they are sent, each with its moment."""
    parts: list[tuple[float, bytes]] = []
    for one in messages:
        if not (parts[-1][0] if parts else 0.0) <= one.after_s < 1e9:
            raise TraceError(
                f"{where}: messages: after_s: {one.after_s} must be from 0 to 1e9 seconds, and not before the last one"
            )
        try:
            content = base64.b64decode(one.base64, validate=True)
        except binascii.Error as error:
            raise TraceError(f"{where}: messages: base64: {error}") from None
        parts.append((one.after_s, framed(content, compressed=one.compressed)))
    return parts


def _request(where: str, one: Recorded) -> Timed:
    if one.body and one.body_base64:
        raise TraceError(f"{where}: both body and body_base64; keep one of them")
    call = one.protocol == "grpc"
    if call and (one.body or one.body_base64 or one.method not in ("GET", "POST")):
        raise TraceError(f"{where}: a gRPC call is a POST, and has messages in place of a body")
    if call and (one.take or one.fill):
        raise TraceError(f"{where}: take and fill are of JSON, which a gRPC call's messages are not; leave them out")
    if one.messages and not call:
        raise TraceError(f'{where}: messages without "protocol": "grpc"')
    try:
        body = base64.b64decode(one.body_base64, validate=True) if one.body_base64 else one.body.encode()
    except binascii.Error as error:
        raise TraceError(f"{where}: body_base64: {error}") from None
    parts = _messages(where, one.messages)
    while parts and parts[0][0] == 0:
        body += parts.pop(0)[1]
    for field, value in (("at_s", one.at_s), ("think_s", one.think_s), ("hung_up_s", one.hung_up_s)):
        if value is not None and not 0 <= value < 1e9:
            raise TraceError(f"{where}: {field}: {value} must be from 0 to 1e9 seconds")
    request = Timed(
        at_s=one.at_s if one.think_s is None else one.think_s,
        method="POST" if call else one.method,
        target=one.target,
        headers=one.headers,
        body=body,
        name=one.name,
        ends_with=one.ends_with.encode(),
        hang_up_s=one.hung_up_s,
        recorded=one.ended,
        call=call,
        parts=tuple(parts),
        take=tuple((name, tuple(path.split("."))) for name, path in one.take.items()),
        fill=one.fill,
    )
    wrong = check(request)
    if not wrong and one.take:
        unnamed = wrong_name(one.take)
        wrong = f"take: {unnamed[:80]!r}: names are letters, digits and _" if unnamed else ""
        wrong = wrong or ("take without flow: nothing follows that could have it" if not one.flow else "")
    if wrong:
        raise TraceError(f"{where}: {wrong}")
    return request
