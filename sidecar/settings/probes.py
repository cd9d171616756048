"""How static endpoints are probed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sidecar.settings.base import PATH_FORM, Base, Reload, ServedName, UrlPath, doc


class ProbeKind(StrEnum):
    """What a probed endpoint is, which says what it is asked (docs/signals.md)."""

    HTTP = "http"
    AUTO = "auto"
    TRITON = "triton"
    VLLM = "vllm"
    SGLANG = "sglang"
    KSERVE = "kserve"
    MLSERVER = "mlserver"
    NIM = "nim"


PROBE_PATH = "/v2/health/ready"
"""What a plain HTTP endpoint is asked where no path is given."""


class Expectation(Base, frozen=True):
    """What makes the answer to a plain HTTP probe mean ready."""

    status: Annotated[
        Annotated[int, Meta(ge=100, le=599)] | None, doc(Reload.LIVE, "this status; null: any 2xx", "status")
    ] = None
    body_contains: Annotated[
        str | None, doc(Reload.LIVE, "text that the body holds, of a probe's answer within its first 64 KiB; null: any")
    ] = None


class OrcaStream(Base, frozen=True):
    """Load reports that an endpoint streams out of band, over gRPC (ORCA's OpenRcaService)."""

    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        doc(Reload.LIVE, "port of its gRPC server; null: the endpoint's", "port"),
    ] = None
    interval_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "time between reports; servers may choose a longer one",
            "seconds",
            ge=0.1,
            le=3600,
        ),
    ] = 1.0


class Probe(Base, frozen=True):
    """An active probe of static endpoints: whether they are ready, and what they say of their load."""

    kind: Annotated[
        ProbeKind,
        doc(
            Reload.LIVE,
            "what the endpoints are; http: any server, asked one path; auto: found out from what they answer; "
            "gRPC endpoints are asked by grpc.health.v1, whatever stands here",
        ),
    ] = ProbeKind.HTTP
    path: Annotated[
        UrlPath | None,
        doc(
            Reload.LIVE,
            "path that answers 2xx when ready; null: the kind's own (http: /v2/health/ready)",
            form=PATH_FORM,
        ),
    ] = None
    expect: Annotated[Expectation | None, doc(Reload.LIVE, "with kind http: what means ready; null: any 2xx")] = None
    served_as: Annotated[
        ServedName | None,
        doc(
            Reload.LIVE,
            'the model\'s name at the server, where that is another; "*": whatever it serves, so that it is asked for '
            "itself alone",
            form=("", "1 to 256 visible characters"),
        ),
    ] = None
    load: Annotated[
        bool, doc(Reload.LIVE, "read the metrics page, too: queue, memory, and whether a run has succeeded")
    ] = True
    metrics_path: Annotated[
        UrlPath | None, doc(Reload.LIVE, "path of the metrics page; null: the kind's own", form=PATH_FORM)
    ] = None
    metrics_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        doc(Reload.LIVE, "its port; null: the kind's own (triton: 8002, mlserver: 8082), else the endpoint's", "port"),
    ] = None
    orca: Annotated[
        OrcaStream | None, doc(Reload.LIVE, "have it stream its load reports besides; null: it is not asked to")
    ] = None
    interval_s: Annotated[
        float, doc(Reload.LIVE, "time between probes, give or take a tenth", "seconds", ge=0.05, le=3600)
    ] = 1.0
    returning_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "the same at first while it loads or does not answer; then a fiftieth of the time that it has been so, "
            "up to interval_s",
            "seconds",
            ge=0.01,
            le=3600,
        ),
    ] = 0.05
    timeout_s: Annotated[float, doc(Reload.LIVE, "time for one probe, all that it asks", "seconds", gt=0, le=3600)] = (
        1.0
    )
