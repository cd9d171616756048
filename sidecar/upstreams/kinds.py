"""From a kind of server to the adapter that speaks with it, and how to find out which kind a server is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.settings import PROBE_PATH, ProbeKind
from sidecar.upstreams.adapters import BODY_BYTES, NOT_ASKED, HttpReadiness, Question
from sidecar.upstreams.engine_adapters import MODELS, NIM, SGLANG, VLLM, EngineReadiness
from sidecar.upstreams.v2_adapters import KSERVE, MLSERVER, TRITON, V2Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import Answer, SignalAdapter

_V2: Final = {ProbeKind.TRITON: TRITON, ProbeKind.KSERVE: KSERVE, ProbeKind.MLSERVER: MLSERVER}
_OUR_WORKER: Final = "warmroute-worker"
"""It answers model by model as KServe's servers do."""
_ENGINES: Final = {ProbeKind.VLLM: VLLM, ProbeKind.SGLANG: SGLANG, ProbeKind.NIM: NIM}

_METADATA: Final = Question("/v2", body_bytes=BODY_BYTES)
_NIM_READY: Final = Question(NIM.ready_path)


def adapter_for(kind: ProbeKind, probe: Probe) -> SignalAdapter:
    """Return the adapter for servers of a kind; ``auto`` is none (see :func:`kind_of`) and is taken for ``http``."""
    if kind in _V2:
        return V2Readiness(_V2[kind], probe)
    if kind in _ENGINES:
        return EngineReadiness(_ENGINES[kind], probe)
    return HttpReadiness(probe.path, probe.expect)


def kind_questions(probe: Probe) -> tuple[Question, ...]:
    """Return what tells which kind a server is."""
    return (_METADATA, MODELS, _NIM_READY, Question(probe.path or PROBE_PATH))


def kind_of(probe: Probe, answers: Mapping[Question, Answer]) -> ProbeKind | None:
    """Return which kind of server answers so, None while that cannot be told.

    V2 servers name themselves in their metadata, engines in ``owned_by`` of their models, and NIM's health has a form
    of its own. One that does not say but answers the readiness path with a 2xx is taken for plain HTTP, unless it has
    a list of models that is too long to be read.
    """
    metadata = answers.get(_METADATA, NOT_ASKED).document()
    name = str(metadata.get("name", "")).lower() if isinstance(metadata, dict) else ""
    for kind in _V2:
        if kind.value in name:
            return kind
    if name == _OUR_WORKER:
        return ProbeKind.KSERVE
    health = answers.get(_NIM_READY, NOT_ASKED)
    said = health.document()
    if isinstance(said, dict) and str(said.get("object", "")).startswith("health"):
        return ProbeKind.NIM
    listed = answers.get(MODELS, NOT_ASKED)
    models = listed.document()
    entries = models.get("data") if isinstance(models, dict) else None
    owners = {
        str(entry.get("owned_by", "")).lower()
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    }
    for kind in (ProbeKind.VLLM, ProbeKind.SGLANG):
        if kind.value in owners:
            return kind
    if listed.good and listed.cut:
        return None
    return ProbeKind.HTTP if answers.get(kind_questions(probe)[3], NOT_ASKED).good else None
