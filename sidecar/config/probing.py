"""What a schema cannot say of probes: which fields go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from router.model import HTTP
from router.urls import protocol_of
from sidecar.config.problems import Path
from sidecar.settings import Probe, ProbeKind

_ANYTHING: Final = "*"
_OTHER_PORTS: Final = {ProbeKind.TRITON: 8002, ProbeKind.MLSERVER: 8082}


def examine_probe(
    path: Path, probe: Probe, urls: Sequence[str], models: Sequence[str]
) -> Iterator[tuple[Path, str, bool]]:
    """Yield (path, remedy, whether it is a warning) for what makes no sense in the probe at ``path``.

    ``urls`` are the endpoints that it asks, ``models`` the names that it asks them about.
    """
    kind = probe.kind
    if probe.expect is not None and kind is not ProbeKind.HTTP:
        yield (*path, "expect"), f"goes with kind http alone: {kind} has a reading of its own", False
    elif probe.expect is not None and probe.expect.status is None and probe.expect.body_contains is None:
        yield (*path, "expect"), "has no effect: set status or body_contains", True
    if probe.served_as not in (None, _ANYTHING) and len(models) > 1:
        yield (*path, "served_as"), f'is one name for {len(models)} models: leave it out, or say "*"', False
    if kind is ProbeKind.HTTP:
        for name in ("served_as", "metrics_path", "metrics_port"):
            if getattr(probe, name) is not None:
                yield (*path, name), "has no effect: a probe of kind http asks one path; set probe.kind", True
    elif urls and all(protocol_of(url) != HTTP for url in urls):
        yield (*path, "kind"), "has no effect: gRPC endpoints are asked by grpc.health.v1", True
    elif probe.load and (port := probe.metrics_port or _OTHER_PORTS.get(kind)):
        for url in urls:
            if url.startswith("unix:"):
                remedy = f"the metrics page is on port {port}, which {url} has not: set load: false"
                yield path, remedy, True
    if probe.orca is not None:
        for url in urls:
            if url.startswith("unix:") and probe.orca.port is not None:
                yield (*path, "orca", "port"), f"{url} has no other port: leave it out of the models with this", False
            elif protocol_of(url) == HTTP and probe.orca.port is None:
                yield (*path, "orca"), f"{url} speaks HTTP/1.1: set orca.port to that of its gRPC server", False
                break
