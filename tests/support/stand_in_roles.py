"""A sidecar whose children are stand-ins, to test the supervisor alone. Run as a script, in a process of its own.

``supervise SETTINGS_JSON`` runs the real supervisor over the roles below. What the stand-ins do follows from the model
names in the settings: ``data-fails`` (dies on start), ``data-hangs`` (ignores SIGTERM), ``control-fails``,
``control-leaves`` (at the first SIGTERM, as it comes when the supervisor is killed).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from types import FrameType

import msgspec

from sidecar import boot
from sidecar.settings import Settings


def supervise(settings: Settings, notify_socket: str) -> int:
    from sidecar import start, supervisor  # the other roles begin without all this
    from sidecar.sdnotify import Notify
    from sidecar.signals import Signals
    from sidecar.sockets import open_admin, open_listeners
    from sidecar.telemetry.logs import setup_logging

    faults = {model.name for model in settings.models}

    def stand_in_command(role: str, plan_fd: int) -> tuple[str, ...]:
        if f"{role}-fails" in faults:  # soon enough to have failed on start, however busy this machine is
            return (sys.executable, "-I", "-S", "-c", "raise SystemExit(3)")
        return (sys.executable, "-P", __file__, role, str(plan_fd))

    setup_logging("json", "debug", "supervisor")
    with Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)) as signals:
        listeners, admin = open_listeners(settings.listeners), open_admin(settings.admin)
        notify = Notify(notify_socket)
        config = start.configuration(settings, None)
        return supervisor.Supervisor(config, listeners, admin, signals, notify=notify, command=stand_in_command).run()


def control(plan: boot.ControlPlan, faults: set[str]) -> int:
    signal.signal(signal.SIGTERM, _leave if "control-leaves" in faults else signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _leave)
    admin = socket.socket(fileno=plan.admin_fds[0])
    admin.setblocking(True)
    while True:
        connection, _ = admin.accept()
        with connection:
            connection.sendall(json.dumps({"pid": os.getpid(), "id": plan.sidecar_id}).encode())


def data(plan: boot.DataPlan, faults: set[str]) -> int:
    """Answer each connection with our pid at once, then echo what comes until it ends; drain on SIGTERM."""
    wake_read, wake_write = os.pipe()
    if "data-hangs" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: (os.write(wake_write, b"x"), None)[1])
    listeners = {item.fd: socket.socket(fileno=item.fd) for item in plan.listeners}
    connections: dict[int, socket.socket] = {}
    while listeners or connections:
        readable, _, _ = select.select([wake_read, *listeners, *connections], [], [])
        for fd in readable:
            if fd == wake_read:
                for sock in listeners.values():
                    sock.close()
                listeners.clear()
                os.read(wake_read, 16)
            elif fd in listeners:
                connection, _ = listeners[fd].accept()
                connection.sendall(str(os.getpid()).encode() + b"\n")
                connections[connection.fileno()] = connection
            elif fd in connections:
                received = connections[fd].recv(4096)
                if received:
                    connections[fd].sendall(received)
                else:
                    connections.pop(fd).close()
    return 0


def _leave(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    role, value, *rest = arguments
    if role == "supervise":
        return supervise(msgspec.json.decode(value, type=Settings), rest[0] if rest else "")
    plan = boot.PlanFile(int(value)).read()
    assert isinstance(plan, boot.ControlPlan | boot.DataPlan)
    faults = {model.name for model in plan.settings.models}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a stand-in that ignores SIGTERM must not outlive its test
    boot.die_with_parent(plan.parent_pid, signal.SIGTERM if "control-leaves" in faults else signal.SIGKILL)
    return control(plan, faults) if isinstance(plan, boot.ControlPlan) else data(plan, faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
