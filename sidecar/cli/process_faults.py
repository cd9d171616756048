"""``warmroute fault process``: one fault of a process or a state store, in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from sidecar.cli.outcome import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.tables import seconds
from sidecar.faults.processes import KINDS, MAX_FOR_S, FaultKeeper, ProcessFault, ProcessFaultError
from sidecar.faults.processes.fault import Reach, checked
from sidecar.faults.processes.servers import check_url

LOOK_S = 0.2
MAX_READY_FILE_BYTES = 1 << 20


class _Worker(msgspec.Struct):
    id: str
    pid: int | None


class _Ready(msgspec.Struct):
    """What is gone by of the ready file of ``warmroute up``."""

    redis_socket: str
    workers: tuple[_Worker, ...]


def process(
    kind: Annotated[
        str,
        Parameter(
            help="kill, stop, slow, out_of_memory, full_disk; store_stop, store_pause, store_restart, store_read_only, "
            "store_failover, store_refused."
        ),
    ],
    /,
    *,
    pid: Annotated[int | None, Parameter(help="The process.", validator=Number(gt=1))] = None,
    worker: Annotated[str, Parameter(help="... or a worker's id in --ready-file.", show_default=False)] = "",
    url: Annotated[
        str,
        Parameter(help="... or a state store's URL: unix:///PATH, redis://127.0.0.1:PORT.", show_default=False),
    ] = "",
    ready_file: Annotated[
        Path | None,
        Parameter(help="Of `warmroute up`; without --worker, --pid and --url its state store is meant."),
    ] = None,
    for_s: Annotated[
        float, Parameter(help="Seconds until it ends, at most 3600.", validator=Number(gt=0, lte=MAX_FOR_S))
    ] = 60.0,
    share: Annotated[
        float | None,
        Parameter(
            help="Of the time that slow lets the process run, 0.02 to 0.95; 0.25 if left out.",
            validator=Number(gte=0.02, lte=0.95),
        ),
    ] = None,
    headroom_mb: Annotated[
        float | None,
        Parameter(help="Memory that out_of_memory leaves it to ask for; 0 if left out.", validator=Number(gte=0)),
    ] = None,
) -> int:
    """Bring a fault about and stay until it ends: after --for-s, or at Ctrl-C; it ends if this is killed, too.

    Only a process that is named and yours is touched. Exit code 0: it was in force for all of its time, 130: Ctrl-C
    ended it, and it is undone.
    """
    act = KINDS.get(kind)
    if act is None:
        raise CliError(f"fault process: no kind {kind!r}; there are: {', '.join(sorted(KINDS))}", EXIT_REFUSED)
    if (pid is not None) + bool(worker) + bool(url) > 1 or not (pid or worker or url or ready_file):
        raise CliError(
            f"fault process {kind}: name one: --pid, --url, --worker with --ready-file, or --ready-file alone",
            EXIT_REFUSED,
        )
    if kind.startswith("store_") and (worker or (pid is not None and act.NEEDS is Reach.ANSWERS)):
        flag = f"--worker {worker}" if worker else f"--pid {pid}"
        raise CliError(
            f"fault process {kind}: {flag}: is asked of a store by its address: name its --url, or --ready-file alone",
            EXIT_REFUSED,
        )
    if pid is None and not url:
        pid, url = _found(kind, worker, ready_file)
    fault = ProcessFault(kind, pid=pid or 0, url=url, for_s=for_s, share=share, headroom_mb=headroom_mb)
    try:
        checked(fault, KINDS)
        if url:
            check_url(kind, url)
    except ProcessFaultError as error:
        raise CliError(str(error), EXIT_REFUSED) from error
    try:
        with FaultKeeper() as keeper:
            kept = keeper.begin(fault)
            if not act.LASTS:
                print(f"{kind}: pid {kept.memo['pid']}: done; {kept.undone}")
                return EXIT_OK
            # Noted, and not raised: an exception in the middle of a question would leave its answer for the next one.
            told = threading.Event()
            before = signal.signal(signal.SIGINT, lambda *_: told.set())
            try:
                print(f"{kind}: pid {kept.memo['pid']}: in force for {seconds(for_s)}, Ctrl-C ends it", flush=True)
                while keeper.in_force():
                    if told.wait(LOOK_S):
                        kept.end()
                        break
            finally:
                signal.signal(signal.SIGINT, before)
            print(f"{kind}: ended{' by Ctrl-C' if told.is_set() else ''}: {kept.undone}")
            return EXIT_INTERRUPTED if told.is_set() else EXIT_OK
    except ProcessFaultError as error:
        raise CliError(str(error)) from error


def _found(kind: str, worker: str, ready_file: Path | None) -> tuple[int, str]:
    """Return pid and URL of what a ready file names."""
    if ready_file is None:
        raise CliError(
            f"fault process {kind}: --worker {worker}: name the --ready-file of `warmroute up`", EXIT_REFUSED
        )
    try:
        with ready_file.open("rb") as file:
            ready = msgspec.json.decode(file.read(MAX_READY_FILE_BYTES), type=_Ready)
    except (OSError, msgspec.DecodeError) as error:
        raise CliError(f"fault process {kind}: --ready-file {ready_file}: {error}", EXIT_REFUSED) from error
    if not worker:
        if not kind.startswith("store_"):
            raise CliError(f"fault process {kind}: name one of its workers with --worker", EXIT_REFUSED)
        return 0, f"unix://{ready.redis_socket}"
    pids = {one.id: one.pid for one in ready.workers}
    if worker not in pids:
        raise CliError(
            f"fault process {kind}: no worker {worker!r} in {ready_file}; there are: {', '.join(pids)}", EXIT_REFUSED
        )
    pid = pids[worker]
    if pid is None:
        raise CliError(f"fault process {kind}: {worker} does not run now; it is being started again")
    return pid, ""
