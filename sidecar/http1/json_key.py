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
"""Where the bodies of OpenAI's interface have a prompt, the first of them that is there."""
_TENSORS: Final = "inputs"
"""Where those of the V2 protocol have all that is asked."""
_INPUTS: Final[msgspec.json.Decoder[list[dict[str, msgspec.Raw]]]] = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


@lru_cache(maxsize=64)
def _prompts_of(tensor: str) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return what reads where a prompt may be: ``f0``, ``f1``, … with the inputs of the V2 protocol behind them all."""
    names = [name for name in dict.fromkeys((*_NAMES, tensor)) if name != _TENSORS]
    fields = [
        (f"f{at}", msgspec.Raw, msgspec.field(default=msgspec.Raw(), name=name))
        for at, name in enumerate((*names, _TENSORS))
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Prompts", fields))


class PromptKey:
    """The blocks of a prompt's beginning (``router.affinity``), as written: all else in a body is passed over.

    It is ``messages``, ``prompt``, ``input``, or what is called as the policy's input is (Triton's ``generate``), else
    the data of the input of that name (the V2 protocol). Two bodies share a beginning where their bytes do: what a
    client's JSON looks like is a part of it.
    """

    __slots__ = ("_decoder", "_policy")

    def __init__(self, policy: AffinityPolicy) -> None:
        self._policy = policy
        self._decoder = _prompts_of(policy.input)

    def of(self, body: bytes) -> bytes | None:
        """Return the blocks of a whole body's prompt, None where it has none, or a short one."""
        try:
            found = msgspec.structs.astuple(self._decoder.decode(body.removeprefix(_MARK)))
            for text in found[:-1]:
                prompt = bytes(text)
                if prompt:
                    return blocks_of(prompt.removeprefix(b'"'), self._policy)
            prompt = self._of_tensors(bytes(found[-1]))
        except (msgspec.DecodeError, RecursionError):
            return None
        return blocks_of(prompt.removeprefix(b'"'), self._policy) if prompt else None

    def _of_tensors(self, inputs: bytes) -> bytes:
        for tensor in _INPUTS.decode(inputs) if inputs else ():
            if _TEXT.decode(tensor.get("name", b'""')) == self._policy.input:
                data = bytes(tensor.get("data", b"")).lstrip(b"[ \t\r\n")
                return data if _TEXT.decode(tensor.get("datatype", b'""')) == "BYTES" else b""
        return b""


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
