"""The supervisor: makes what must outlive any child, starts the children, and ends them in the right order.

It owns the listening sockets, the channels, the metrics pages and the children's plans, and does nothing else, so that
it has no reason to fail. One control process and N data processes inherit those descriptors; a child that dies is
started again with the very same ones. Small and synchronous on purpose: no event loop, no HTTP, no Redis.
docs/operations.md tells the signals and what a drain does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from enum import Enum
from math import inf
from signal import Signals as Sig
from typing import TYPE_CHECKING

from sidecar.children import Child, Exit, RestartPolicy
from sidecar.estate import Estate
from sidecar.handover import READY_S, Gate, Offer, Sockets, upgrade_command
from sidecar.sdnotify import Notify
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from sidecar.configuration import Configuration
    from sidecar.handover import Inheritance
    from sidecar.signals import Signals
    from sidecar.sockets import OpenAdmin, OpenListener

EXIT_OK = 0
EXIT_FAILED = 1

MAX_FAILED_STARTS = 5
"""A sidecar whose data processes (or whose control process, never yet up) fail this often on start gives up."""
CONTROL_POLICY = RestartPolicy(max_s=1.0)  # back within 2 s, always
DATA_POLICY = RestartPolicy()
READY_LOOK_S = 0.05
"""How often a successor looks whether all its processes accept."""
GATE_AGAIN_S = 1.0
KILL_AFTER_DRAIN_S = 2.0
CUT_SHORT_S = 1.0
CONTROL_STOP_S = 5.0
_WAIT_S = 60.0

log = get_log("supervisor")


class Phase(Enum):
    """Where the supervisor's life stands; it only ever goes forward."""

    RUNNING = "running"
    DRAINING = "draining"  # data processes finish what runs
    STOPPING = "stopping"  # they are gone; the control process leaves last
    DONE = "done"


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
        inheritance: Inheritance | None = None,
        relaunch: Sequence[str] = (),
    ) -> None:
        """``inheritance`` is what another supervisor hands over, ``relaunch`` the command that started this one."""
        self._config = config
        self._signals = signals
        self._notify = notify or Notify("")
        self._clock = clock
        self._command = command
        self._relaunch = relaunch
        self._inheritance = inheritance
        self._estate = Estate(
            config,
            listeners,
            admin,
            memory=inheritance.memory if inheritance is not None else b"",
            succeeds=inheritance is not None,
        )
        self._gate = Gate([listener.address for listener in listeners], self._offer, self._why_not_now)
        self._gate_due = inf  # when to try again to open it
        self._successor: subprocess.Popen[bytes] | None = None
        self._ready_by = inf
        self.control, self.data = self._make_children()
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._told_to_stop = False
        self._cut_short = False
        self._exit = EXIT_OK

    def run(self) -> int:
        """Start the children and look after them until told to stop; return the exit code."""
        try:
            self._config.announce()
            if self._inheritance is None:  # else once the sockets are as they are configured here
                self._announce()
            for child in (self.control, *self.data):
                self._start(child)
            if self._inheritance is None:
                self._begin_to_serve()
            else:
                self._ready_by = self._clock() + READY_S
            while self._phase is not Phase.DONE:
                for signum in self._signals.wait(self._until_due(), self._readers()):
                    self._on_signal(signum)
                self._reap()
                self._talk(self._clock())
                self._advance(self._clock())
            log.info("sidecar.stopped", code=self._exit)
            return self._exit
        finally:
            self._release()

    def _make_children(self) -> tuple[Child, tuple[Child, ...]]:
        fd, fds = self._estate.plan_control()
        control = Child("control", self._command("control", fd), pass_fds=fds, policy=CONTROL_POLICY)
        data = []
        for index in range(self._estate.processes):
            fd, fds = self._estate.plan_data(index)
            data.append(Child(f"data-{index}", self._command("data", fd), pass_fds=fds, policy=DATA_POLICY))
        return control, tuple(data)

    def _announce(self) -> None:
        for opened in self._estate.listeners:
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
        for address in self._estate.admin.addresses:
            log.info("admin.open", address=address)

    def _release(self) -> None:
        for child in (self.control, *self.data):  # only an error leaves one
            child.send(Sig.SIGKILL)
        self._gate.close()
        if self._inheritance is not None:
            if not self._inheritance.yielded:
                self._estate.leave_files(self._inheritance.taken)
            self._inheritance.close()
        self._estate.release()

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
            elif ended.code == 0 or child is self.control or ended.signal == "SIGTERM":  # ours: it had only just begun
                log.info("process.exited", **fields)
            else:
                log.warning("process.exited", **fields)
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

    # --- upgrade ------------------------------------------------------------------------------------------------

    def _inheritance_is_mine(self) -> bool:
        return self._inheritance is None or self._inheritance.yielded

    def _begin_to_serve(self) -> None:
        """Nobody else serves on these sockets (any more): say so, and wait for a successor."""
        self._gate_due = inf if self._gate.open() else self._clock() + GATE_AGAIN_S
        main = f"MAINPID={os.getpid()}\n" if self._inheritance is not None else ""
        self._notify(f"{main}READY=1\nSTATUS=serving")

    def _readers(self) -> list[socket.socket]:
        inheritance = self._inheritance.readers if self._inheritance is not None else []
        return [*self._gate.readers, *inheritance]

    def _talk(self, now: float) -> None:
        """Hear what the one before says, and the one after."""
        if self._inheritance is not None and self._inheritance.readers:
            self._inherit(self._inheritance, now)
        ready = self._gate.step(now)
        if ready is not None and self._phase is Phase.RUNNING:
            self._hand_over(set(ready.taken))
        if self._successor is not None and self._successor.poll() is not None:
            pid, code = self._successor.pid, self._successor.returncode
            self._successor = None
            if self._phase is Phase.RUNNING:  # perhaps before it ever came to the gate
                log.error("upgrade.failed", pid=pid, code=code, why="it ended; see its lines", effect="none")

    def _inherit(self, inheritance: Inheritance, now: float) -> None:
        """Take over once every process accepts; leave where that does not come to be in time."""
        inheritance.step()
        if inheritance.refused:
            if self._phase is Phase.RUNNING:
                self._give_in(f"process {inheritance.pid} says: {inheritance.refused}")
        elif inheritance.yielded:
            if self._phase is not Phase.RUNNING:  # told to go meanwhile: there is nobody left to serve
                return
            log.info("upgrade.done", predecessor=inheritance.pid)
            self._estate.take_over()
            self._announce()
            self._begin_to_serve()
        elif self._phase is Phase.RUNNING and not inheritance.said_ready:
            if self._estate.all_accept():
                inheritance.ready()
            elif now >= self._ready_by:
                self._give_in(f"not every process accepts connections within {READY_S:g} s")

    def _give_in(self, why: str) -> None:
        log.error("upgrade.failed", why=why, effect="the sidecar before this one goes on")
        self._exit = EXIT_FAILED
        self._estate.handed_over = True  # in a sense: another serves on the same sockets
        self._estate.rewrite_plans()
        self._drain("the upgrade failed", 0.0)

    def _why_not_now(self) -> str:
        """Return why no successor may take over now; empty where one may."""
        if self._phase is not Phase.RUNNING:
            return "the sidecar is draining"
        if not self._relaunch:
            return "this sidecar belongs to the program that started it (warmroute up), which alone can start another"
        return "" if self._inheritance_is_mine() else "the sidecar is itself still taking over"

    def _offer(self) -> Offer:
        found = [
            (
                Sockets(False, one.asked, one.address, one.granted.backlog_asked),
                tuple({sock.fileno(): None for sock in one.sockets}),
            )
            for one in self._estate.listeners
        ]
        admin = self._estate.admin
        found += [
            (Sockets(True, asked, address), (sock.fileno(),))
            for sock, address, asked in zip(admin.sockets, admin.addresses, admin.asked, strict=True)
        ]
        return Offer(tuple(found), self._estate.memory_fd)

    def _upgrade(self) -> None:
        """Start a successor with the command that started this one."""
        why = self._why_not_now()
        if not why and os.getpid() == 1:
            why = "it is process 1, with which its container ends: replace the container"
        if not why and (self._successor is not None or self._gate.pid):
            why = "another process takes over already"
        if why:
            log.warning("upgrade.refused", why=why)
            return
        command = upgrade_command(sys.executable, self._relaunch, self._estate.listeners[0].address)
        try:
            self._successor = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            log.error("upgrade.failed", why=str(error), effect="this one goes on")
            return
        log.info("upgrade.started", pid=self._successor.pid)

    def _hand_over(self, taken: set[str]) -> None:
        """The successor's processes accept on the same sockets: leave everything to it, and drain."""
        log.info("upgrade.yielding", pid=self._gate.pid)
        self._notify(f"MAINPID={self._gate.pid}")
        self._estate.leave_files(taken)
        self._estate.handed_over = True
        self._estate.rewrite_plans()
        self._drain("handed over", 0.0)
        self._gate.yielded()

    # --- phases -------------------------------------------------------------------------------------------------

    def _until_due(self) -> float:
        watch = self._config.watch
        due = [self._deadline, *(child.restart_at for child in (self.control, *self.data) if child.restart_at)]
        if self._phase is Phase.RUNNING:
            due += [self._gate.due, self._gate_due]
            if watch is not None:
                due.append(watch.due)
            if self._inheritance is not None and not self._inheritance.yielded:
                due.append(self._clock() + READY_LOOK_S)
        return min(_WAIT_S, min(due) - self._clock())

    def _on_signal(self, signum: Sig) -> None:
        if signum is Sig.SIGHUP:
            self._reload("SIGHUP")
        elif signum is Sig.SIGUSR2:
            self._upgrade()
        elif signum in (Sig.SIGTERM, Sig.SIGINT):
            if self._phase is Phase.RUNNING:
                self._told_to_stop = True
                self._gate.refuse("the sidecar was told to stop")
                self._drain(signum.name)
            elif not self._told_to_stop:  # it drains already, since a successor serves
                self._told_to_stop = True
                log.info("sidecar.draining_already", signal=signum.name)
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
        if self._inheritance_is_mine():
            self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._config.reload(self._clock())
        self._estate.rewrite_plans()
        if self._inheritance_is_mine():
            self._notify("READY=1\nSTATUS=serving")

    def _drain(self, why: str, wait_s: float | None = None) -> None:
        """Have the processes end. ``wait_s`` stands for ``timeouts.drain_wait_s`` where nobody needs to notice."""
        timeouts = self._config.settings.timeouts
        wait_s = timeouts.drain_wait_s if wait_s is None else wait_s
        log.info("sidecar.draining", why=why, drain_wait_s=wait_s, drain_s=timeouts.drain_s)
        self._phase = Phase.DRAINING
        self._deadline = self._clock() + wait_s + timeouts.drain_s + KILL_AFTER_DRAIN_S
        self._estate.close_listeners()  # the data processes' copies are the last ones then
        if not self._estate.handed_over and self._inheritance_is_mine():
            self._notify("STOPPING=1\nSTATUS=draining")
        for child in (self.control, *self.data):
            child.restart_at = None
            child.send(Sig.SIGTERM)

    def _advance(self, now: float) -> None:
        if self._phase is Phase.RUNNING:
            if now >= self._gate_due:
                self._gate_due = inf if self._gate.open() else now + GATE_AGAIN_S
            if self._config.watch is not None and self._config.watch.changed(now):
                self._reload("the file changed")
            for child in (self.control, *self.data):
                if child.restart_at is not None and child.restart_at <= now:
                    self._start(child)
            who = self._hopeless()
            if who:
                log.error("sidecar.giving_up", who=who, failed_starts=MAX_FAILED_STARTS, see="their lines above")
                self._exit = EXIT_FAILED
                self._drain("giving up")
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
