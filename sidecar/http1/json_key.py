"""What a request is picked by that stands in its JSON body: a key at a path of names, or the beginning of its prompt.

msgspec reads the body in one step and keeps nothing of it but that value. Of a name that comes twice the last one
counts, as for most that read JSON. What is no JSON, or has something else at the path, has no key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from router.affinity import blocks_of

if TYPE_CHECKING:
    from router.policy import AffinityPolicy

MAX_DEPTH: Final = 8
MAX_PATH: Final = 256
_QUOTE: Final = 0x22
_MARK: Final = b"\xef\xbb\xbf"
_NUMBER: Final = frozenset(b"-0123456789")
_TEXT: Final = msgspec.json.Decoder(str)


_NAMES: Final = ("messages", "prompt", "input")
"""Where the bodies of OpenAI's interface have a prompt, the first of them that is there; all else is passed over."""
_PROMPTS: Final[msgspec.json.Decoder[object]] = msgspec.json.Decoder(
    msgspec.defstruct("Prompts", [(name, msgspec.Raw, msgspec.field(default=msgspec.Raw())) for name in _NAMES])
)


class PromptKey:
    """The blocks of a prompt's beginning (``router.affinity``): of ``messages``, ``prompt`` or ``input``, as written.

    Two bodies share a beginning where their bytes do: what a client's JSON looks like is a part of it.
    """

    __slots__ = ("_policy",)

    def __init__(self, policy: AffinityPolicy) -> None:
        self._policy = policy

    def of(self, body: bytes) -> bytes | None:
        """Return the blocks of a whole body's prompt, None where it has none, or a short one."""
        try:
            found = _PROMPTS.decode(body.removeprefix(_MARK))
        except (msgspec.DecodeError, RecursionError):
            return None
        for name in _NAMES:
            prompt = bytes(getattr(found, name))
            if prompt:
                return blocks_of(prompt.removeprefix(b'"'), self._policy)
        return None


class JsonPathError(ValueError):
    """A path that names no field of a body; the text says what would."""


@lru_cache(maxsize=64)
def _decoder_of(path: str) -> msgspec.json.Decoder[object]:
    """Return what reads the value at a path. Making one takes as long as a request, and each fallback asks for one."""
    kind: type = msgspec.Raw
    for name in reversed(path.split(".")):
        default = msgspec.Raw() if kind is msgspec.Raw else None
        kind = msgspec.defstruct("Level", [("value", kind, msgspec.field(default=default, name=name))])
    return msgspec.json.Decoder(kind)


class JsonKey:
    """Where bodies have their key. ``path`` is names with dots between them, outermost first.

    Raises:
        JsonPathError: ``path`` has empty or too many names.
    """

    __slots__ = ("_decoder", "_depth")

    def __init__(self, path: str) -> None:
        names = path.split(".")
        if not all(names) or len(names) > MAX_DEPTH or len(path) > MAX_PATH:
            raise JsonPathError(f"must be names with dots between them, at most {MAX_DEPTH}, for example user.id")
        self._depth = len(names)
        self._decoder = _decoder_of(path)

    def of(self, body: bytes) -> bytes | None:
        """Return the key of a whole body, None where it has none: a text's UTF-8, or a number as it is written."""
        try:
            value: object = self._decoder.decode(body.removeprefix(_MARK))
        except (msgspec.DecodeError, RecursionError):
            return None
        for _ in range(self._depth):
            value = getattr(value, "value", None)
        if not isinstance(value, msgspec.Raw):
            return None
        raw = bytes(value)
        if raw[:1] != b'"':
            return raw if raw and raw[0] in _NUMBER else None
        try:
            return _TEXT.decode(raw).encode() or None
        except msgspec.DecodeError:
            return None
