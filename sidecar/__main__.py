"""The composition root of each of a sidecar's processes: ``python -P -m sidecar ROLE ...``.

Not for people: ``warmroute`` is the command. A role gets all it needs through descriptors and arguments, reads no
configuration, and imports its own part only.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.settings import Settings

ROLES = ("control", "data", "supervise", "janitor", "faults")
_USAGE = f"usage: python -P -m sidecar {{{','.join(ROLES)}}} --plan-fd N\n(started by warmroute, not by hand)\n"


def main(arguments: list[str]) -> int:
    """Run the role that the supervisor (or ``warmroute up``) asked for; return the exit code."""
    if len(arguments) != 3 or arguments[0] not in ROLES or arguments[1] != "--plan-fd" or not arguments[2].isdigit():
        sys.stderr.write(_USAGE)
        return 2
    role, fd = arguments[0], int(arguments[2])
    if role == "janitor":
        from sidecar.up.janitor import run_janitor

        return run_janitor(fd)
    if role == "faults":
        from sidecar.faults.processes.keeping import run_keeper

        return run_keeper(fd)
    return _run_planned(role, fd)


def _run_planned(role: str, fd: int) -> int:
    gc.disable()  # what imports make lasts: to look through it while they run is a tenth of a start
    from sidecar import boot

    file = boot.PlanFile(fd)
    plan = file.read()
    if role == "supervise" and isinstance(plan, boot.SupervisorPlan):
        file.close()
        from sidecar import start

        gc.enable()
        return start.run(plan.settings, notify_socket=plan.notify_socket, parent_pid=plan.parent_pid)

    for theirs in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):  # the supervisor's to act on
        signal.signal(theirs, signal.SIG_IGN)
    boot.die_with_parent(plan.parent_pid)
    if role == "control" and isinstance(plan, boot.ControlPlan):
        _setup_logging(plan.settings, "control")
        from sidecar.control import run_control

        gc.enable()
        return run_control(plan, file)
    if role == "data" and isinstance(plan, boot.DataPlan):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the control process's alone
        _setup_logging(plan.settings, f"data-{plan.index}")
        from sidecar.data import run_data

        gc.enable()
        return run_data(plan, file)
    sys.stderr.write(f"the plan is a {type(plan).__name__}, not one of role {role}\n")
    return 2


def _setup_logging(settings: Settings, process: str) -> None:
    from sidecar.telemetry.logs import setup_logging

    setup_logging(settings.logging.format.value, settings.logging.level.value, process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
