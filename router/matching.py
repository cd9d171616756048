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

_V2_INFERS: Final = frozenset({b"infer", b"infer_stream", b"generate", b"generate_stream"})
_OFTEN: Final = _V2_INFERS | {b"completions", b"embeddings"}
"""How nearly all paths of inference end, and none else that there is."""
_V2_RERANK: Final = [b"rerank"]
"""vLLM's own, which names its model in the body."""
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
_ENGINES_OWN: Final = frozenset(
    {
        b"abort_request",
        b"abort_requests",
        b"clear_hicache_storage_backend",
        b"close_session",
        b"collective_rpc",
        b"configure_logging",
        b"continue_generation",
        b"destroy_weights_update_group",
        b"dump_expert_distribution_record",
        b"finish_weight_update",
        b"flush_cache",
        b"freeze_gc",
        b"init_weight_transfer_engine",
        b"init_weights_send_group_for_remote_instance",
        b"init_weights_update_group",
        b"load_lora_adapter",
        b"load_lora_adapter_from_tensors",
        b"open_session",
        b"pause",
        b"pause_generation",
        b"release_memory_occupation",
        b"reset_encoder_cache",
        b"reset_mm_cache",
        b"reset_prefix_cache",
        b"resume",
        b"resume_memory_occupation",
        b"scale_elastic_ep",
        b"send_weights_to_remote_instance",
        b"set_internal_state",
        b"sleep",
        b"slow_down",
        b"start_expert_distribution_record",
        b"start_profile",
        b"start_weight_update",
        b"stop_expert_distribution_record",
        b"stop_profile",
        b"unload_lora_adapter",
        b"update_weight_version",
        b"update_weights",
        b"update_weights_from_disk",
        b"update_weights_from_distributed",
        b"update_weights_from_ipc",
        b"update_weights_from_tensor",
        b"wake_up",
    }
)
"""How paths end by which vLLM and SGLang are put to sleep, woken, paused, loaded, emptied, profiled or set up."""
SERVICE: Final = b"/inference.GRPCInferenceService/"
"""KServe's service over gRPC: how the paths of its methods begin."""

_CALLS_ABOUT: Final = (
    SERVICE,
    b"/grpc.health.",
    b"/grpc.reflection.",
    b"/inference.model_repository.",  # MLServer
    b"/tensorflow.serving.ModelService/",
    b"/org.pytorch.serve.grpc.management.",
)
_ENGINES_CALLS: Final = (b"/vllm.grpc.engine.VllmEngine/", b"/sglang.grpc.scheduler.SglangScheduler/")
_ENGINES_INFER: Final = (b"/Generate", b"/Embed")
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
    a list. What a path of neither means is not known here: a POST to it does, unless it ends as those by which vLLM
    and SGLang are set up.
    """
    if method != b"POST":
        return False
    path = _bare(target)
    infers = _infers(path)
    return _surface(path).surface is not Surface.OPENAI if infers is None else infers


def asks_otherwise(target: bytes) -> bool:
    """Return whether a request, whatever its method, surely asks for something else than a model's answer.

    It asks about a model or a server, or sets one up: no other model may do that in its place, and nobody may say that
    it was done. Those are all of the Open Inference Protocol's paths that do not infer, and those by which vLLM and
    SGLang are set up.
    """
    if b"?" not in target and target[target.rfind(b"/") + 1 :] in _OFTEN:
        return False
    return _infers(_bare(target)) is False


def is_inference_call(path: bytes) -> bool:
    """Return whether a gRPC method asks a model for an answer.

    Of KServe's service ModelInfer and ModelStreamInfer do, of vLLM's and SGLang's Generate and Embed, and nothing of
    health, reflection, and the services by which MLServer, TensorFlow Serving and TorchServe load models; any other
    method does.
    """
    if path in INFER_CALLS:
        return True
    if path.startswith(_ENGINES_CALLS):
        return path.endswith(_ENGINES_INFER)
    return not path.startswith(_CALLS_ABOUT)


def _bare(target: bytes) -> bytes:
    """Return the path of a target without its query."""
    return (target if target.startswith(b"/") else _path_of(target)).partition(b"?")[0].partition(b"#")[0]


def _infers(path: bytes) -> bool | None:
    """Return whether a path asks a model for an answer, None where its meaning is not known here."""
    surface = _surface(path).surface
    if surface is Surface.V2:
        return _infers_v2(path[len(b"/v2/") :].split(b"/"))
    if b"%" in path:
        path = unquote_to_bytes(path)
    if path.rpartition(b"/")[2] in _ENGINES_OWN:
        return False
    if surface is Surface.OPENAI:
        rest = path[path.find(b"/v1") + 4 :]
        return rest in _OPENAI_INFERS or (rest.startswith(b"models/") and rest.endswith(_V1_VERBS)) or None
    _, found, rest = path.partition(b"/v2/")
    words = rest.split(b"/")
    return _infers_v2(words) if found and words[0] in _V2_WORDS else None


def _infers_v2(words: list[bytes]) -> bool:
    """Return whether this, behind ``/v2/``, is ``models/NAME[/versions/V]/infer`` or a twin of it."""
    if words == _V2_RERANK:
        return True
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
