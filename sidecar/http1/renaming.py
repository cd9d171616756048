"""A request as another model is asked: its path, its model field, its JSON body. Every function is pure.

What a worker reads must name the model that it has: the V2 path does, a field of the head may, and the body of an
OpenAI request does. Nothing else of a request changes; a body that does has its framing corrected (RFC 9112 6.2).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from router.matching import Surface

_V2: Final = b"/v2/models/"
_VERSIONS: Final = b"versions/"
_CONTENT_TYPE: Final = re.compile(rb"\r\ncontent-type:[ \t]*([^\r]*)", re.IGNORECASE)
_JSON: Final = re.compile(rb"application/(?:[a-z0-9!#$&^_.-]+\+)?json[ \t]*(?:;|\Z)", re.IGNORECASE)
_ENCODED: Final = re.compile(rb"\r\ncontent-encoding:[ \t]*+(?!identity[ \t]*+\r)", re.IGNORECASE)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MARK: Final = b"\xef\xbb\xbf"
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"expect")


class Renamed:
    """A request as it goes to another model: its head, and its body where that had to change (else None)."""

    __slots__ = ("body", "head")

    def __init__(self, head: bytes, body: bytes | None) -> None:
        self.head: Final = head
        self.body: Final = body


def is_json(forward: bytes) -> bool:
    """Return whether a body is JSON that can be read as it comes, as its worker will hear of it."""
    kinds = _CONTENT_TYPE.findall(forward)
    return len(kinds) == 1 and _JSON.match(kinds[0]) is not None and _ENCODED.search(forward) is None


def renamed(
    head: bytes, surface: Surface, body: bytes | None, name: str, version: str, model_field: bytes = b""
) -> Renamed | None:
    """Return a request as another model is asked, None where that cannot be.

    Args:
        head: as it would be sent, with its empty line.
        surface: what its path belongs to.
        body: all of it without framing; None where it is not here, then what it says stays.
        name: the other model's.
        version: "" for any.
        model_field: what begins the line of a head that names a model; nothing where none may.
    """
    line, _, rest = head.partition(b"\r\n")
    method, target, protocol = line.split(b" ", 2)
    entry = (f"{name}@{version}" if version else name).encode()
    if model_field:
        rest = _with_field(rest, model_field[2:], entry)
    if surface is Surface.V2:
        target = renamed_path(target, name.encode(), version.encode())
    changed: bytes | None = None
    if surface is Surface.OPENAI and method == b"POST":
        if body is None or not is_json(b"\r\n" + rest):
            return None
        changed = renamed_body(body, entry.decode())
        if changed is None:
            return None
        if changed is body:
            changed = None
        else:
            rest = _reframed(rest, len(changed))
    return Renamed(b"%s %s %s\r\n%s" % (method, target, protocol, rest), changed)


def reframed(head: bytes, size: int) -> bytes:
    """Return a head whose body is so long, whatever it said of that before."""
    line, _, rest = head.partition(b"\r\n")
    return line + b"\r\n" + _reframed(rest, size)


def renamed_path(target: bytes, name: bytes, version: bytes) -> bytes:
    """Return a V2 target for another model; the version of the path is replaced, put in or taken out."""
    if not target.startswith(_V2):
        return target
    path, query, search = target.partition(b"?")
    _, slash, rest = path[len(_V2) :].partition(b"/")
    if rest.startswith(_VERSIONS):
        _, slash, rest = rest[len(_VERSIONS) :].partition(b"/")
    return b"".join((_V2, name, b"/versions/" + version if version else b"", slash, rest, query, search))


def renamed_body(body: bytes, model: str) -> bytes | None:
    """Return a JSON body with another ``model``; itself where it names none, None where it is no JSON object.

    The other members stay byte for byte, in their order; of members with one name the last one counts, as for most.
    """
    try:
        members = _MEMBERS.decode(body.removeprefix(_MARK))
    except (msgspec.DecodeError, RecursionError):
        return None
    if "model" not in members:
        return body
    members["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)


def _with_field(rest: bytes, field: bytes, value: bytes) -> bytes:
    lines = rest.split(b"\r\n")
    return b"\r\n".join([field + b" " + value if line.lower().startswith(field) else line for line in lines])


def _reframed(rest: bytes, size: int) -> bytes:
    lines = [line for line in rest.split(b"\r\n") if line.partition(b":")[0].lower() not in _FRAMING]
    return b"Content-Length: %d\r\n" % size + b"\r\n".join(lines)
