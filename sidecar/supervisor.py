"""The supervisor: makes what must outlive any child, starts the children, and ends them in the right order.

It owns the listening sockets, the channels, the metrics pages and the children's plans, and does nothing else, so that
it has no reason to fail. One control process and N data processes inherit those descriptors; a child that dies is
started again with the very same ones. Small and synchronous on purpose: no event loop, no HTTP, no Redis.
docs/operations.md tells the signals and what a drain does.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from dataclasses import dataclass
from enum import Enum
from signal import Signals as Sig
from typing import TYPE_CHECKING

from sidecar import boot, channel
from sidecar.children import Child, Exit, RestartPolicy
from sidecar.configuration import Configuration
from sidecar.signals import Signals
from sidecar.sockets import BindError, OpenAdmin, OpenListener, open_admin, open_listeners
from sidecar.telemetry import page
from sidecar.telemetry.logs import get_log, setup_logging
from sidecar.watch import FileWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.config.load import Loaded
    from sidecar.settings import Settings

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2

MAX_FAILED_STARTS = 5
"""A sidecar whose data processes (or whose control process, never yet up) fail this often on start gives up."""
CONTROL_POLICY = RestartPolicy(max_s=1.0)  # back within 2 s, always
DATA_POLICY = RestartPolicy()
KILL_AFTER_DRAIN_S = 2.0
CUT_SHORT_S = 1.0
CONTROL_STOP_S = 2.0
_WAIT_S = 60.0

log = get_log("supervisor")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from: ``load`` reads it again, ``path`` is watched where it is not empty."""

    name: str
    load: Callable[[], Loaded]
    path: str = ""


def run(
    settings: Settings, *, source: Source | None = None, notify_socket: str = "", parent_pid: int | None = None
) -> int:
    """Run a sidecar until it is told to stop; return the exit code: 0 ended in order, 1 failed, 2 refused to start.

    ``notify_socket`` is where systemd wants to hear of the state (sd_notify(3)). With ``parent_pid`` the sidecar drains
    when that parent dies. Without a ``source`` the configuration stays what it is.
    """
    setup_logging(settings.logging.format.value, settings.logging.level.value, "supervisor")
    if parent_pid is not None:
        boot.die_with_parent(parent_pid)
    _raise_file_limit()
    with Signals((Sig.SIGTERM, Sig.SIGINT, Sig.SIGHUP, Sig.SIGCHLD)) as signals:
        try:
            listeners = open_listeners(settings.listeners)
            admin = open_admin(settings.admin)
        except BindError as error:
            sys.stderr.write(f"warmroute: {error}\n")
            return EXIT_REFUSED
        config = configuration(settings, source)
        return Supervisor(config, listeners, admin, signals, notify=Notify(notify_socket)).run()


def configuration(settings: Settings, source: Source | None) -> Configuration:
    """Return the configuration in force, and its source where there is one."""
    return Configuration(
        settings,
        source=source.name if source is not None else "warmroute up",
        load=source.load if source is not None else None,
        watch=FileWatch(source.path, time.monotonic()) if source is not None and source.path else None,
        wall=time.time,
        remedy=f"upgrade in place: kill -USR2 {os.getpid()}" if source is not None else "restart warmroute up",
    )


def _raise_file_limit() -> None:
    """Let the children open as many descriptors as the hard limit allows; the usual soft one (1,024) is for select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("limits.files", soft=soft, hard=hard, error=str(error))


class Notify:
    """Tells systemd of the state over the datagram socket that it named, where it named one (sd_notify(3))."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def __call__(self, state: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ...; a supervisor that does not listen is no reason to stop."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.sendto(state.encode(), self._address)
            except OSError as error:
                log.warning("notify.failed", error=str(error))


class Phase(Enum):
    """Where the supervisor's life stands; it only ever goes forward."""

    RUNNING = "running"
    DRAINING = "draining"  # data processes finish what runs
    STOPPING = "stopping"  # they are gone; the control process leaves last
    DONE = "done"


@dataclass(slots=True)
class _Inherited:
    """Descriptors made once, which every life of the children gets."""

    channels: tuple[tuple[socket.socket, socket.socket], ...]  # control end, data end; by data process index
    metrics_fds: tuple[int, ...]
    memory_fd: int  # the control process's, empty at first
    plan_fds: list[int]


def child_command(role: str, plan_fd: int) -> tuple[str, ...]:
    """Return the command line of one of the sidecar's processes."""
    return (sys.executable, "-P", "-m", "sidecar", role, "--plan-fd", str(plan_fd))


class Supervisor:
    """Runs one sidecar's children over opened sockets. ``command`` makes a child's command line."""

    def __init__(
        self,
        config: Configuration,
        listeners: Sequence[OpenListener],
        admin: OpenAdmin,
        signals: Signals,
        *,
        notify: Callable[[str], None] | None = None,
        command: Callable[[str, int], tuple[str, ...]] = child_command,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._admin = admin
        self._signals = signals
        self._notify = notify or Notify("")
        self._clock = clock
        self._command = command
        self._processes = max(listener.processes for listener in config.settings.listeners)
        self._sidecar_id = f"{socket.gethostname()[:64]}-{os.urandom(4).hex()}"
        self._inherited = _Inherited(
            channels=tuple(channel.pair() for _ in range(self._processes)),
            metrics_fds=tuple(page.create(f"warmroute-metrics-{index}") for index in range(self._processes)),
            memory_fd=os.memfd_create("warmroute-memory", 0),
            plan_fds=[],
        )
        self.control = self._make_control()
        self.data = tuple(self._make_data(index) for index in range(self._processes))
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._cut_short = False
        self._exit = EXIT_OK

    def run(self) -> int:
        """Start the children and look after them until told to stop; return the exit code."""
        try:
            self._config.announce()
            self._announce()
            for child in (self.control, *self.data):
                self._start(child)
            self._notify("READY=1\nSTATUS=serving")
            while self._phase is not Phase.DONE:
                for signum in self._signals.wait(self._until_due()):
                    self._on_signal(signum)
                self._reap()
                self._advance(self._clock())
            log.info("sidecar.stopped", code=self._exit)
            return self._exit
        finally:
            self._release()

    # --- what the children inherit ------------------------------------------------------------------------------

    def _make_control(self) -> Child:
        plan = self._control_plan()
        fds = (*plan.admin_fds, *plan.channel_fds, *plan.metrics_fds, self._inherited.memory_fd)
        return self._child("control", "control", plan, fds, CONTROL_POLICY)

    def _control_plan(self) -> boot.ControlPlan:
        return boot.ControlPlan(
            parent_pid=os.getpid(),
            settings=self._config.settings,
            sidecar_id=self._sidecar_id,
            admin_fds=tuple(sock.fileno() for sock in self._admin.sockets),
            admin_unix=self._admin.file is not None,
            channel_fds=tuple(control.fileno() for control, _ in self._inherited.channels),
            metrics_fds=self._inherited.metrics_fds,
            listen_addresses=tuple(listener.address for listener in self._listeners),
            memory_fd=self._inherited.memory_fd,
            config=self._config.state,
        )

    def _make_data(self, index: int) -> Child:
        plan = self._data_plan(index)
        fds = (plan.channel_fd, plan.metrics_fd, *(listener.fd for listener in plan.listeners))
        return self._child(f"data-{index}", "data", plan, fds, DATA_POLICY)

    def _data_plan(self, index: int) -> boot.DataPlan:
        return boot.DataPlan(
            index=index,
            parent_pid=os.getpid(),
            settings=self._config.settings,
            listeners=tuple(
                boot.ListenerFd(opened.index, opened.address, opened.sockets[index].fileno())
                for opened in self._listeners
                if index < len(opened.sockets)
            ),
            channel_fd=self._inherited.channels[index][1].fileno(),
            metrics_fd=self._inherited.metrics_fds[index],
            revision=self._config.state.revision,
            sequence=self._config.state.sequence,
        )

    def _child(self, name: str, role: str, plan: boot.Plan, fds: tuple[int, ...], policy: RestartPolicy) -> Child:
        plan_fd = boot.write_plan(plan)
        self._inherited.plan_fds.append(plan_fd)
        return Child(name, self._command(role, plan_fd), pass_fds=(*fds, plan_fd), policy=policy)

    def _rewrite_plans(self) -> None:
        """Tell the children, and their later lives, what is in force now. The control process's plan comes first."""
        control_fd, *data_fds = self._inherited.plan_fds
        boot.rewrite_plan(control_fd, self._control_plan())
        for index, fd in enumerate(data_fds):
            boot.rewrite_plan(fd, self._data_plan(index))

    def _announce(self) -> None:
        for opened in self._listeners:
            got = opened.granted
            note = {"remedy": got.remedy} if got.remedy else {}
            log.info(
                "listener.open",
                listener=opened.name,
                address=opened.address,
                sockets=len(opened.sockets),
                backlog=got.backlog,
                backlog_asked=got.backlog_asked,
                fastopen_queue=got.fastopen_queue,
                fastopen_asked=got.fastopen_asked,
                **note,
            )
        for address in self._admin.addresses:
            log.info("admin.open", address=address)

    def _close_listeners(self) -> None:
        for opened in self._listeners:
            opened.close()

    def _release(self) -> None:
        for child in (self.control, *self.data):  # only an error leaves one
            child.send(Sig.SIGKILL)
        self._close_listeners()
        for opened in self._listeners:
            opened.remove_socket_file()
        self._admin.remove_socket_file()
        for sock in self._admin.sockets:
            sock.close()
        for ends in self._inherited.channels:
            for end in ends:
                end.close()
        for fd in (*self._inherited.metrics_fds, self._inherited.memory_fd, *self._inherited.plan_fds):
            os.close(fd)

    # --- lives --------------------------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        now = self._clock()
        try:
            pid = child.start(now)
        except OSError as error:  # out of processes or memory: as good as a death on start
            log.error("process.start_failed", name=child.name, error=str(error))
            self._plan_restart(child, Exit(0, None, "", 0.0))
            return
        log.info("process.started", name=child.name, pid=pid, start=child.starts)

    def _reap(self) -> None:
        now = self._clock()
        for child in (self.control, *self.data):
            ended = child.reap(now)
            if ended is None:
                continue
            fields = {"name": child.name, "pid": ended.pid, "lived_s": round(ended.lived_s, 3)}
            fields |= {"signal": ended.signal} if ended.signal else {"code": ended.code}
            if self._phase is Phase.RUNNING:
                log.warning("process.exited", **fields)
                self._plan_restart(child, ended)
            elif ended.code == 0 or child is self.control:
                log.info("process.exited", **fields)
            else:
                log.warning("process.exited", **fields)
                if ended.signal != "SIGTERM":  # ours, when it had only just begun
                    self._exit = EXIT_FAILED

    def _plan_restart(self, child: Child, ended: Exit) -> None:
        delay_s = child.plan_restart(ended, self._clock())
        log.info("process.restarting", name=child.name, delay_s=delay_s)

    def _hopeless(self) -> str:
        if all(child.failed_starts >= MAX_FAILED_STARTS for child in self.data):
            return "data processes"
        if self.control.failed_starts >= MAX_FAILED_STARTS and not self.control.settled:
            return "control process"
        return ""

    # --- phases -------------------------------------------------------------------------------------------------

    def _until_due(self) -> float:
        watch = self._config.watch
        due = [self._deadline, *(child.restart_at for child in (self.control, *self.data) if child.restart_at)]
        if watch is not None and self._phase is Phase.RUNNING:
            due.append(watch.due)
        return min(_WAIT_S, min(due) - self._clock())

    def _on_signal(self, signum: Sig) -> None:
        if signum is Sig.SIGHUP:
            self._reload("SIGHUP")
        elif signum in (Sig.SIGTERM, Sig.SIGINT):
            if self._phase is Phase.RUNNING:
                self._drain(signum)
            elif not self._cut_short:
                self._cut_short = True
                self._deadline = min(self._deadline, self._clock() + CUT_SHORT_S)
                log.warning("sidecar.drain_cut_short", signal=signum.name)

    def _reload(self, why: str) -> None:
        """Look at the configuration again, and have every process take over what is new in it."""
        if self._phase is not Phase.RUNNING:
            log.warning("config.reload_refused", why="the sidecar is draining")
            return
        log.info("config.loading", why=why)
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._config.reload(self._clock())
        self._rewrite_plans()
        self._notify("READY=1\nSTATUS=serving")

    def _drain(self, signum: Sig) -> None:
        timeouts = self._config.settings.timeouts
        log.info("sidecar.draining", signal=signum.name, drain_wait_s=timeouts.drain_wait_s, drain_s=timeouts.drain_s)
        self._notify("STOPPING=1\nSTATUS=draining")
        self._phase = Phase.DRAINING
        self._deadline = self._clock() + timeouts.drain_wait_s + timeouts.drain_s + KILL_AFTER_DRAIN_S
        self._close_listeners()  # the data processes' copies are the last ones then
        for child in (self.control, *self.data):
            child.restart_at = None
            child.send(Sig.SIGTERM)

    def _advance(self, now: float) -> None:
        if self._phase is Phase.RUNNING:
            if self._config.watch is not None and self._config.watch.changed(now):
                self._reload("the file changed")
            for child in (self.control, *self.data):
                if child.restart_at is not None and child.restart_at <= now:
                    self._start(child)
            who = self._hopeless()
            if who:
                log.error("sidecar.giving_up", who=who, failed_starts=MAX_FAILED_STARTS, see="their lines above")
                self._exit = EXIT_FAILED
                self._drain(Sig.SIGTERM)
                self._deadline = min(self._deadline, now + CUT_SHORT_S)
        if self._phase is Phase.DRAINING:
            if now >= self._deadline:
                self._kill(self.data)
            if not any(child.pid for child in self.data):
                self._phase = Phase.STOPPING
                self._deadline = now + CONTROL_STOP_S
                self.control.send(Sig.SIGUSR1)  # not SIGTERM: two of those may reach it as one
        if self._phase is Phase.STOPPING:
            if now >= self._deadline:
                self._kill((self.control,))
            if self.control.pid is None:
                self._phase = Phase.DONE

    def _kill(self, children: Sequence[Child]) -> None:
        for child in children:
            if child.pid is not None:
                log.warning("process.killed", name=child.name, pid=child.pid)
                child.send(Sig.SIGKILL)
                self._exit = EXIT_FAILED  # it should have ended by itself: it cuts what runs at the end of its time
        self._deadline = self._clock() + CUT_SHORT_S  # the kernel takes a moment; SIGCHLD wakes us
