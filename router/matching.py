"""From a request target to the model it names: the Open Inference Protocol's paths, and which surface errors speak."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes


class Surface(StrEnum):
    """Whose error bodies a caller understands."""

    V2 = "v2"  # Open Inference Protocol: /v2
    OPENAI = "openai"  # /v1 and /openai/v1
    PLAIN = "plain"  # anything else


class Match(NamedTuple):
    """What a target names. ``model`` is empty where it names none, ``version`` where it names no version."""

    surface: Surface
    model: str
    version: str


_V2: Final = Match(Surface.V2, "", "")
_OPENAI: Final = Match(Surface.OPENAI, "", "")
_PLAIN: Final = Match(Surface.PLAIN, "", "")
_MODELS: Final = b"/v2/models/"
_VERSIONS: Final = b"versions/"
_ENDS: Final = (b"", b"/", b"?", b"#")


def match(target: bytes | str) -> Match:
    """Read a request target: ``/v2/models/NAME[/versions/V][/...]``, in origin or absolute form.

    Names are percent-decoded once, as UTF-8; a name that is not UTF-8 gets replacement characters, so it matches no
    model. A body that names the model (OpenAI) is not looked at here.
    """
    raw = target if isinstance(target, bytes) else target.encode("utf-8", "surrogateescape")
    if not raw.startswith(b"/"):
        raw = _path_of(raw)
    if not raw.startswith(_MODELS):
        return _surface(raw)
    begin = len(_MODELS)
    query = raw.find(b"?")
    path = raw if query < 0 else raw[:query]
    end = path.find(b"/", begin)
    if end < 0:
        return Match(Surface.V2, _name(path[begin:]), "")
    name = _name(path[begin:end])
    if not name or not path.startswith(_VERSIONS, end + 1):
        return Match(Surface.V2, name, "")
    begin = end + 1 + len(_VERSIONS)
    end = path.find(b"/", begin)
    return Match(Surface.V2, name, _name(path[begin:] if end < 0 else path[begin:end]))


def _surface(raw: bytes) -> Match:
    if raw.startswith(b"/v2") and raw[3:4] in _ENDS:
        return _V2
    if raw.startswith(b"/v1") and raw[3:4] in _ENDS:
        return _OPENAI
    if raw.startswith(b"/openai/v1") and raw[10:11] in _ENDS:
        return _OPENAI
    return _PLAIN


def _path_of(raw: bytes) -> bytes:
    """Return the path of an absolute-form target; ``*`` and an authority alone have none."""
    scheme = raw.find(b"://")
    if scheme < 0:
        return b""
    slash = raw.find(b"/", scheme + 3)
    return b"" if slash < 0 else raw[slash:]


def _name(raw: bytes) -> str:
    return (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8", "replace")
