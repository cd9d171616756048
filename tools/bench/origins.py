"""The origins, each on two ports for a choice: one that answers at once, one that streams events, one for gRPC."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tools.bench.asks import COMPLETION, INFER, LARGE, STREAM, Ask
from tools.bench.processes import free_port, program, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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

LARGE_BYTES = 64 << 10
EVENTS_PER_S = 500.0
"""Events of 50 bytes that the streaming origin writes a second, on each stream."""


WIRE = (sys.executable, "-m", "tools.bench.grpc.wire")

Kind = Literal["answers", "streams", "grpc"]


@dataclass(frozen=True)
class Origin:
    """A running origin, and what it does with a request."""

    ports: tuple[int, int]
    kind: Kind

    @property
    def scheme(self) -> str:
        """What an endpoint's URL begins with."""
        return "grpc" if self.kind == "grpc" else "http"

    def ready(self, port: int) -> str:
        """Return why nothing comes from this origin on ``port``, its own or a proxy's; empty where it answers."""
        if self.kind == "grpc":
            argv = [*WIRE, "load", str(port), "0.1"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
            return done.stderr[-300:].strip() if done.returncode else ""
        asks = (STREAM,) if self.kind == "streams" else (INFER, COMPLETION)
        seen = ""
        for ask in asks:  # routers for language models pass only their own paths
            seen = self._asked(port, ask)
            if not seen:
                break
        return seen

    def _asked(self, port: int, ask: Ask) -> str:
        streams = self.kind == "streams"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            path = f"{ask.path}?events=1" if streams else ask.path
            connection.request(ask.method, path, ask.body or None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            right = body.startswith(b"data: ") if streams else body == ANSWER.encode()
            return "" if response.status == 200 and right else f"status {response.status}: {body[:200]!r}"
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            connection.close()


@contextmanager
def answering(directory: Path, core: int) -> Iterator[Origin]:
    """Run the origin that answers at once."""
    ports = (free_port(), free_port())
    listens = "\n".join(f"        listen 127.0.0.1:{port} backlog=4096;" for port in ports)
    own = directory / "origin"
    config = nginx_config(
        own,
        f"""
    server {{
{listens}
        default_type application/json;
        client_body_buffer_size 64k;
        add_header X-Request-Id $http_x_request_id;  # so that no two answers' heads are the same either
        add_header X-Nonce $http_x_nonce;  # left out where the request has none
        location = {LARGE.path} {{ alias {own}/large; sendfile on; open_file_cache max=4; }}
        location / {{ return 200 '{ANSWER}'; }}
    }}""",
        keep_alive_s=3600,  # a pooled connection must not end because others are being measured
    )
    (own / "large").write_bytes(b"0123456789abcdef" * (LARGE_BYTES // 16))
    origin = Origin(ports, "answers")
    with running("origin", nginx_argv(config), ports[0], core, directory, origin.ready):
        yield origin


@contextmanager
def streaming(directory: Path, core: int, paced: Path) -> Iterator[Origin]:
    """Run the origin of event streams; ``paced`` is the built paced.c."""
    ports = (free_port(), free_port())
    origin = Origin(ports, "streams")
    argv = [str(paced), "origin", str(EVENTS_PER_S), *map(str, ports)]
    with running("stream-origin", argv, ports[0], core, directory, origin.ready):
        yield origin


@contextmanager
def calling(directory: Path, core: int) -> Iterator[Origin]:
    """Run the origin of unary gRPC calls."""
    ports = (free_port(), free_port())
    origin = Origin(ports, "grpc")
    with running("grpc-origin", [*WIRE, "origin", *map(str, ports)], ports[0], core, directory, origin.ready):
        yield origin


def nginx_config(directory: Path, inside: str, keep_alive_s: int = 75) -> Path:
    """Write an nginx configuration with ``inside`` in its http block, everything under ``directory``; one worker."""
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
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout {keep_alive_s}s;
    tcp_nodelay on;
{temporary}
{inside}
}}
"""
    )
    return path


def nginx_argv(config: Path) -> list[str]:
    """Return the command line that runs nginx in the foreground."""
    return [program("nginx", "nginx"), "-e", str(config.parent / "error.log"), "-c", str(config)]
