"""The configuration schema: what a user may set, with each field's default, unit and reload class."""

from sidecar.settings.admission import MOST_CLASSES, Admission, ModelAdmission, Priority, Tenant, Trust, Wait
from sidecar.settings.affinity import Affinity
from sidecar.settings.base import LABEL, Base, Reload, doc
from sidecar.settings.bounds import Limits, Overload, Timeouts
from sidecar.settings.dns import Dns, DnsServers, DnsType
from sidecar.settings.faults import Fault, FaultDirection, Faults, HeaderTrust
from sidecar.settings.groups import Shards
from sidecar.settings.ladder import MODEL_INFER, Cache, CachedMethod, FallbackOn, SharedCache, StaticAnswer, StaticCall
from sidecar.settings.models import Endpoint, Key, Model, ModelTimeouts
from sidecar.settings.probes import PROBE_PATH, Expectation, OrcaStream, Probe, ProbeKind
from sidecar.settings.recognise import GRPC_STATUSES, Means, Recognise, RecogniseRule
from sidecar.settings.sockets import Admin, ClientAuth, Listener, ListenerTls, Protocol, TlsVersion, UpstreamTls
from sidecar.settings.store import StateStore, StateTls
from sidecar.settings.versions import Mirror, Rollout, Split, StickyKey, Versions, serve_policy
from sidecar.settings.warmups import BODY_FILE_BYTES, ShapeClass, Shapes, Warmup, WarmupRequest
from sidecar.settings.whole import LogFormat, Logging, LogLevel, Policy, Settings, model_policies, router_policies

__all__ = [
    "MODEL_INFER",
    "Admin",
    "Admission",
    "Affinity",
    "BODY_FILE_BYTES",
    "Base",
    "Cache",
    "CachedMethod",
    "ClientAuth",
    "Dns",
    "DnsServers",
    "DnsType",
    "Endpoint",
    "Expectation",
    "FallbackOn",
    "Fault",
    "FaultDirection",
    "Faults",
    "HeaderTrust",
    "Key",
    "LABEL",
    "Limits",
    "Listener",
    "ListenerTls",
    "LogFormat",
    "LogLevel",
    "Logging",
    "Mirror",
    "Model",
    "MOST_CLASSES",
    "ModelAdmission",
    "ModelTimeouts",
    "Overload",
    "OrcaStream",
    "PROBE_PATH",
    "Policy",
    "Priority",
    "Probe",
    "ProbeKind",
    "Protocol",
    "Reload",
    "Rollout",
    "Settings",
    "ShapeClass",
    "Shapes",
    "Shards",
    "SharedCache",
    "Split",
    "StateStore",
    "StaticAnswer",
    "StaticCall",
    "StateTls",
    "StickyKey",
    "Tenant",
    "Timeouts",
    "TlsVersion",
    "Trust",
    "UpstreamTls",
    "GRPC_STATUSES",
    "Means",
    "Recognise",
    "RecogniseRule",
    "Warmup",
    "WarmupRequest",
    "Versions",
    "Wait",
    "doc",
    "model_policies",
    "router_policies",
    "serve_policy",
]
