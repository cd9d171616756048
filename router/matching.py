"""What a request target says: the model it names, which surface errors speak, and whether it is inference."""

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

_V2_INFERS: Final = frozenset({b"infer", b"generate", b"generate_stream"})
_V2_WORDS: Final = frozenset(
    {b"models", b"repository", b"health", b"logging", b"trace", b"systemsharedmemory", b"cudasharedmemory"}
)
_OPENAI_INFERS: Final = frozenset(
    {
        b"chat/completions",
        b"completions",
        b"responses",
        b"messages",
        b"embeddings",
        b"moderations",
        b"rerank",
        b"score",
        b"classify",
        b"pooling",
        b"audio/speech",
        b"audio/transcriptions",
        b"audio/translations",
        b"images/generations",
        b"images/edits",
        b"images/variations",
    }
)
_V1_VERBS: Final = (b":predict", b":classify", b":regress", b":explain")
SERVICE: Final = b"/inference.GRPCInferenceService/"
"""KServe's service over gRPC: how the paths of its methods begin."""

_CALLS_ABOUT: Final = (SERVICE, b"/grpc.health.", b"/grpc.reflection.")
INFER_CALLS: Final = frozenset({SERVICE + b"ModelInfer", SERVICE + b"ModelStreamInfer"})
"""Methods whose messages are ModelInferRequests."""


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


def is_inference(method: bytes, target: bytes) -> bool:
    """Return whether a request asks a model for an answer, so that another version may be asked the same.

    Nothing but POST does. Of the Open Inference Protocol's paths (also behind a prefix) those do that infer or
    generate, not those of the repository, of settings, shared memory or health; of ``/v1`` and ``/openai/v1`` those in
    a list. What a path of neither means is not known here: a POST to it does.
    """
    if method != b"POST":
        return False
    path = (target if target.startswith(b"/") else _path_of(target)).partition(b"?")[0].partition(b"#")[0]
    surface = _surface(path).surface
    if surface is Surface.OPENAI:
        rest = path[path.find(b"/v1") + 4 :]
        return rest in _OPENAI_INFERS or (rest.startswith(b"models/") and rest.endswith(_V1_VERBS))
    if surface is Surface.V2:
        return _infers_v2(path[len(b"/v2/") :].split(b"/"))
    if b"%" in path:
        path = unquote_to_bytes(path)
    _, found, rest = path.partition(b"/v2/")
    words = rest.split(b"/")
    return not found or words[0] not in _V2_WORDS or _infers_v2(words)


def is_inference_call(path: bytes) -> bool:
    """Return whether a gRPC method asks a model for an answer.

    Of KServe's service ModelInfer and ModelStreamInfer do, and nothing of health and reflection; any other method does.
    """
    return path in INFER_CALLS or not path.startswith(_CALLS_ABOUT)


def _infers_v2(words: list[bytes]) -> bool:
    """Return whether this, behind ``/v2/``, is ``models/NAME[/versions/V]/infer`` or a twin of it."""
    if words[0] != b"models" or words[-1] not in _V2_INFERS:
        return False
    return len(words) == 3 or (len(words) == 5 and words[2] == b"versions")


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
