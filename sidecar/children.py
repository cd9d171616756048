"""Child processes that are started again when they die, each with the descriptors it had before."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At once the first time, then after ``base_s`` doubling to ``max_s``; forgotten after ``settled_s`` of life."""

    base_s: float = 0.1
    max_s: float = 5.0
    settled_s: float = 10.0
    start_s: float = 2.0  # a life shorter than this ended on start


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child's life ended. ``code`` is None where a signal ended it, ``signal`` is empty where none did."""

    pid: int
    code: int | None
    signal: str
    lived_s: float


class Backoff:
    """Counts short lives and says how long to wait before the next one."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._short = 0
        self.failed_starts = 0
        """How many lives in a row ended on start."""

    def died(self, lived_s: float) -> float:
        """Return the delay in seconds before the next start of a child that lived ``lived_s``."""
        policy = self._policy
        if lived_s >= policy.settled_s:
            self._short = 0
        self.failed_starts = self.failed_starts + 1 if lived_s < policy.start_s else 0
        delay_s = 0.0 if self._short == 0 else min(policy.base_s * 2.0 ** min(self._short - 1, 32), policy.max_s)
        self._short += 1
        return delay_s


class Child:
    """One role's process over all its lives. Times are monotonic seconds, passed in.

    It runs in a process group of its own: Ctrl-C in a terminal reaches the parent alone, which then ends its children
    in the right order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        policy: RestartPolicy | None = None,
        stderr_fd: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``stderr_fd`` takes what it writes, ``environ`` is its environment; both are inherited where None."""
        self.name = name
        self.command = tuple(command)
        self.starts = 0
        self.restart_at: float | None = None
        """When it is due to be started again; None while it runs or stays down."""
        self.settled = False
        """Whether it ever outlived its start."""
        self._policy = policy or RestartPolicy()
        self._backoff = Backoff(self._policy)
        self._pass_fds = tuple(pass_fds)
        self._stderr_fd = stderr_fd
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def failed_starts(self) -> int:
        """How many lives in a row ended on start."""
        return self._backoff.failed_starts

    def start(self, now: float) -> int:
        """Start its process and return the pid.

        Raises:
            OSError: the command cannot be executed.
        """
        assert self._process is None  # noqa: S101  one life at a time
        self.restart_at = None
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr_fd,
            stderr=self._stderr_fd,
            pass_fds=self._pass_fds,
            process_group=0,
            env=self._environ,
        )
        self._started = now
        self.starts += 1
        return self._process.pid

    def reap(self, now: float) -> Exit | None:
        """Return how its life ended if it did since last asked, else None."""
        process = self._process
        if process is None:
            return None
        code = process.poll()
        if code is None:
            self.settled = self.settled or now - self._started >= self._policy.start_s
            return None
        self._process = None
        lived_s = now - self._started
        self.settled = self.settled or lived_s >= self._policy.start_s
        return Exit(process.pid, code if code >= 0 else None, signal_name(-code) if code < 0 else "", lived_s)

    def plan_restart(self, ended: Exit, now: float) -> float:
        """Make the next life due and return the delay in seconds."""
        delay_s = self._backoff.died(ended.lived_s)
        self.restart_at = now + delay_s
        return delay_s

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(signum)


def signal_name(number: int) -> str:
    """Return a signal's name, also where this Python has none for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
