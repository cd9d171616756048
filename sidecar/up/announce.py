"""What ``warmroute up`` says once all is warm: the addresses, what to try, and the same for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.up.sample import is_magika, sample_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One worker of a running fleet."""

    id: str
    pid: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is; the content of ``--ready-file``. Addresses are HOST:PORT, a worker's is a URL."""

    listen: str
    admin: str
    admin_socket: str
    redis_socket: str
    run_dir: str
    request: str
    workers: tuple[WorkerPlace, ...]
    sidecar_pid: int | None
    control_pid: int | None
    data_pids: tuple[int, ...]
    redis_pid: int | None
    janitor_pid: int


def tries(places: Places, metadata: Mapping[str, Any], sample_file: Path) -> Iterator[tuple[str, str]]:
    """Yield (what it shows, command line) of what to try with the model of ``metadata``."""
    model = metadata["name"]
    what = f"what kind of file is {sample_file.name}?" if is_magika(metadata) else f"one inference of {model}, of zeros"
    infer = f"curl -sw '\\n' http://{places.listen}/v2/models/{model}/infer"
    yield what, f"{infer} -H 'content-type: application/json' -d @{places.request}"
    yield "where requests go: the weights, and why", f"curl -s http://{places.admin}/routes | python3 -m json.tool"
    yield "is it ready?", f"curl -sw '\\n' http://{places.admin}/readyz"


def write_request(path: Path, metadata: Mapping[str, Any], sample_file: Path) -> None:
    """Write the body of the inference to try.

    Raises:
        OSError: ``sample_file`` cannot be read, or ``path`` not written.
    """
    path.write_bytes(msgspec.json.encode(sample_request(metadata, sample_file)))
