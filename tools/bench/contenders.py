"""Who is measured: how each is set up, started, and asked for its version."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from sidecar.cli.client import Admin
from sidecar.cli.outcome import CliError
from tools import compiled
from tools.bench import proxies
from tools.bench.processes import HERE, BenchError, Contender, Missing, free_port, output, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.bench.origins import Origin

OURS = "warmroute"
COMPILED = "warmroute-compiled"
DIRECT = "direct"
"""No proxy: the load talks to the origin."""

AGAIN, FAULT, NO_FAULT = f"{OURS}-again", f"{OURS}-fault", f"{OURS}-no-fault-now"
"""The interpreted build once more: as it is, with a fault in force of another model, with one that was removed."""
FLOOR = "uvloop-floor"
ROUTERS_ENVIRONMENT = compiled.ROOT / ".venv-bench"


def _warmroute(directory: Path, port: int, origin: Origin, state: str) -> list[str]:
    return _sidecar(OURS, Path(sys.executable).parent, "make venv", directory, port, origin, state)


def _compiled(directory: Path, port: int, origin: Origin, state: str) -> list[str]:
    return _sidecar(COMPILED, compiled.ENVIRONMENT / "bin", "make compiled", directory, port, origin, state)


def _sidecar(name: str, bin_: Path, remedy: str, directory: Path, port: int, origin: Origin, state: str) -> list[str]:
    """Set one sidecar up, the same whatever its build.

    Raises:
        Missing: the environment holds no warmroute.
        BenchError: it holds the other build.
    """
    command = bin_ / "warmroute"
    if not command.exists():
        raise Missing(f"{bin_.parent.name} has no warmroute: {remedy}")
    is_compiled = "(compiled)" in output([str(command), "version"])
    if is_compiled != (name == COMPILED):
        raise BenchError(f"{command} is {'' if is_compiled else 'not '}the compiled build: {remedy}")
    own = directory / f"{name}-{port}"
    own.mkdir()
    config = {
        "version": 1,
        "listeners": [{"address": f"127.0.0.1:{port}", "processes": 1, "protocol": origin.scheme}],
        "admin": {"address": f"127.0.0.1:{free_port()}", "socket": str(own / "admin.sock")},
        "state": {"url": state, "namespace": own.name},
        "models": [
            {
                "name": "bench",
                "default": True,
                "idempotent": True,  # so that request bodies are kept for a retry, which is part of the work
                "endpoints": [f"{origin.scheme}://127.0.0.1:{number}" for number in origin.ports],
            }
        ],
        "timeouts": {"drain_s": 2} | ({} if origin.kind == "streams" else {"total_s": 30}),
    }
    path = own / "warmroute.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return [str(command), "sidecar", "--config", str(path)]


def _once_more(name: str) -> Callable[[Path, int, Origin, str], list[str]]:
    def argv(directory: Path, port: int, origin: Origin, state: str) -> list[str]:
        return _sidecar(name, Path(sys.executable).parent, "make venv", directory, port, origin, state)

    return argv


def _python(script: str) -> Callable[[Path, int, Origin, str], list[str]]:
    def argv(_directory: Path, port: int, origin: Origin, _state: str) -> list[str]:
        return [sys.executable, str(HERE / script), str(port), *map(str, origin.ports)]

    return argv


def _grpc(module: str) -> Callable[[Path, int, Origin, str], list[str]]:
    def argv(_directory: Path, port: int, origin: Origin, _state: str) -> list[str]:
        workers = (f"127.0.0.1:{number}" for number in origin.ports)
        return [sys.executable, "-m", f"tools.bench.grpc.{module}", str(port), *workers]

    return argv


def _router(module: str) -> Callable[[Path, int, Origin, str], list[str]]:
    def argv(_directory: Path, port: int, origin: Origin, _state: str) -> list[str]:
        if not any(ROUTERS_ENVIRONMENT.glob(f"lib/python*/site-packages/{module}")):
            raise Missing(f"{module} is not in {ROUTERS_ENVIRONMENT.name}: make bench installs it where it can")
        return [
            *(str(ROUTERS_ENVIRONMENT / "bin" / "python"), "-m", f"{module}.launch_router"),
            *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
            # the cheapest of their policies; their own default hashes each prompt into a tree
            *("--policy", "round_robin", "--log-level", "error", "--max-concurrent-requests", "8192"),
            *("--worker-urls", *(f"http://127.0.0.1:{number}" for number in origin.ports)),
        ]

    return argv


def _plain(
    setup: Callable[[Path, int, Origin], list[str]],
) -> Callable[[Path, int, Origin, str], list[str]]:
    return lambda directory, port, origin, _state: setup(directory, port, origin)


_SETUPS: dict[str, Callable[[Path, int, Origin, str], list[str]]] = {
    "nginx": _plain(proxies.nginx),
    "haproxy": _plain(proxies.haproxy),
    "envoy": _plain(proxies.envoy),
    "vllm-router": _router("vllm_router"),
    "sglang-router": _router("sglang_router"),
    "aiohttp": _python("aiohttp_proxy.py"),
    FLOOR: _python("uvloop_floor.py"),
    "grpc.aio": _grpc("aio_proxy"),
    "h2-relay": _grpc("h2_relay"),
    OURS: _warmroute,
    COMPILED: _compiled,
    **{name: _once_more(name) for name in (AGAIN, FAULT, NO_FAULT)},
}
NAMES = tuple(_SETUPS)


@contextmanager
def contender(name: str, directory: Path, core: int, origin: Origin, state: str = "none") -> Iterator[Contender]:
    """Run the named proxy in front of ``origin`` on ``core``; ``state`` is the URL of warmroute's shared state.

    Raises:
        Missing: this machine lacks it.
        BenchError: it does not answer.
    """
    if name == DIRECT:
        yield Contender(DIRECT, origin.ports[0], 0, "")
        return
    port = free_port()
    own = Path(mkdtemp(dir=directory))  # its port may have been another's before
    argv = _SETUPS[name](own, port, origin, state)
    with running(name, argv, port, core, own, origin.ready, version_of(name, argv)) as proxy:
        if name in (FAULT, NO_FAULT):
            _fault(Path(argv[-1]).with_name("admin.sock"), lasts=name == FAULT)
        yield proxy


def _fault(socket: Path, *, lasts: bool) -> None:
    """Put a fault in force in a sidecar that strikes none of its requests; end it again unless it ``lasts``.

    Raises:
        BenchError: it is refused.
    """
    admin = Admin(admin=f"unix:{socket}")
    try:
        admin.change("POST", "/faults", {"kind": "abort", "id": "elsewhere", "model": "another", "for_s": 3600})
        if not lasts:
            admin.change("DELETE", "/faults/elsewhere")
    except CliError as error:
        raise BenchError(f"{socket}: {error}") from None


def version_of(name: str, argv: list[str]) -> str:
    """Return the version of a contender, by what the program ``argv[0]`` says; empty where it does not."""
    package = {"aiohttp": "aiohttp", FLOOR: "uvloop", "grpc.aio": "grpcio", "h2-relay": "h2"}.get(name)
    if package is not None:
        said = output([sys.executable, "-c", f"from importlib.metadata import version; print(version('{package}'))"])
    elif name.endswith("-router"):
        said = output([argv[0], "-c", f"from importlib.metadata import version; print(version('{name}'))"])
    else:
        said = output([argv[0], {"nginx": "-v", "haproxy": "-v", "envoy": "--version"}.get(name, "version")])
    found = re.search(r"(?:/|version |^| )(\d+\.\d+(?:\.\d+)*)(?=[/\s+-]|$)", said)
    return found[1] if found else ""
