"""``warmroute worker --zygote PATH ...``: a worker that a zygote forks, and this process as its stand-in.

It stays as long as the worker lives, hands on the signals that it gets, and ends as the worker ended, with its exit
code or by the same signal. Where it dies itself, the worker gets SIGTERM and drains. Where there is no zygote, or one
that does not answer or has another program in memory, it becomes a worker without one, and says so.

It must be quick: it imports nothing but a few modules of the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from worker.standard_streams import open_closed
from worker.zygote_wire import Request, WireError, code_mark, encode

ANSWER_S = 5.0
"""How long a zygote may take to answer before a worker is started without it."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_USAGE = 2
_PR_SET_PDEATHSIG = 1


class NoZygoteError(Exception):
    """No worker came of it; the text says why."""


class ForkedWorker:
    """A worker that a zygote has forked for this process. It drains when this object is closed or this process ends."""

    def __init__(self, path: str, arguments: tuple[str, ...], descriptors: tuple[int, int, int] = (0, 1, 2)) -> None:
        """Have a worker started, with this process's environment, directory, limits, and the given descriptors.

        Raises:
            NoZygoteError: there is no zygote at ``path``, or it refused, with the reason.
        """
        reading, self._lifeline = os.pipe()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lines = b""
        try:
            self._connection.settimeout(ANSWER_S)
            self._connection.connect(path)
            data = encode(_request(arguments))
            sent = socket.send_fds(self._connection, [data], [*descriptors, reading])
            self._connection.sendall(data[sent:])
            self.pid, self._pidfd = self._started()
        except (OSError, WireError) as error:
            self.close()
            raise NoZygoteError(f"{path}: {error}") from error
        finally:
            os.close(reading)
        self._connection.settimeout(None)

    def _started(self) -> tuple[int, int]:
        data, descriptors, _, _ = socket.recv_fds(self._connection, 1024, 1)
        word, _, rest = data.decode(errors="replace").partition("\n")[0].partition(" ")
        if word == "started" and descriptors:
            return int(rest), descriptors[0]
        raise WireError(rest if word == "refused" else "it ended before it had started a worker")

    def send(self, number: int) -> None:
        """Send the worker a signal; nothing happens where it has ended."""
        try:  # contextlib would have to be imported
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def wait(self) -> tuple[str, int]:
        """Wait for its end; returns ``("exited", CODE)``, ``("killed", SIGNAL)``, or ``("lost", 1)``.

        Lost: the zygote, which alone can know, ended before it.
        """
        while b"\n" not in self._lines:
            data = self._connection.recv(1024)
            if not data:
                select.select([self._pidfd], [], [])  # the worker lives on, and ends some day
                return "lost", 1
            self._lines += data
        word, _, number = self._lines.decode().partition("\n")[0].partition(" ")
        return word, int(number)

    def close(self) -> None:
        """Let go of the worker; one that still runs drains."""
        os.close(self._lifeline)
        self._connection.close()


def _request(arguments: tuple[str, ...]) -> Request:
    import resource

    umask = os.umask(0o077)
    os.umask(umask)
    kinds = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
    return Request(
        code_mark(),
        os.getcwd(),  # noqa: PTH109 - pathlib takes long to import
        umask,
        tuple(sorted(os.sched_getaffinity(0))),
        os.getpriority(os.PRIO_PROCESS, 0),
        tuple((kind, *resource.getrlimit(kind)) for kind in kinds),
        arguments,
        tuple(os.environ.items()),
    )


def main(argv: list[str]) -> int:
    """Start a worker through a zygote and stand in for it; returns its exit code."""
    open_closed()
    path, arguments = _split(argv)
    if path is None:
        sys.stderr.write("warmroute worker: error: --zygote: expected the path of a zygote's socket\n")
        return _USAGE
    parent_pid = _value(arguments, "--parent-pid")
    if parent_pid is not None and parent_pid.isdecimal() and not _die_with_parent(int(parent_pid)):
        return 0
    # What comes before the worker is there is kept for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        worker = ForkedWorker(path, arguments)
    except NoZygoteError as error:
        _say_unavailable(str(error), text=_value(arguments, "--log-format") == "text")
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "worker", *arguments])  # noqa: S606
    for one in _FORWARDED:
        signal.signal(one, lambda number, _: worker.send(number))
    if parent_pid is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    how, number = worker.wait()
    if how == "killed":
        _die_by(number)
    return number


def _split(argv: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Take ``--zygote PATH`` out of the arguments."""
    for place, argument in enumerate(argv):
        if argument == "--zygote":
            if place + 1 == len(argv):
                return None, ()
            return argv[place + 1], (*argv[:place], *argv[place + 2 :])
        if argument.startswith("--zygote="):
            return argument.partition("=")[2] or None, (*argv[:place], *argv[place + 1 :])
    return None, ()


def _value(arguments: tuple[str, ...], flag: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _die_with_parent(parent_pid: int) -> bool:
    """Ask the kernel for SIGTERM when the parent ends (prctl(2)); False where it has ended already."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent_pid


def _say_unavailable(reason: str, *, text: bool) -> None:
    from worker.log import EventLog

    EventLog(sys.stderr, json=not text).warning("zygote.unavailable", reason=reason)


def _die_by(number: int) -> None:
    """End as the worker did, for whoever waits for this process; a core file would be the wrong program's."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
