"""Churn against a real sidecar: everything that callers and workers can do to a connection, again and again.

``python -m tests.chaos.churn --seconds 600`` (``make soak``) prints how it goes, and a verdict. After a first round,
which fills what is filled once, the sidecar comes to rest and its figures are taken; after the last one they must be
the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from tests.chaos import grpc_callers
from tests.support.product import Sidecar, running
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until

ORIGIN = Path(__file__).with_name("origin.py")
GRPC_ORIGIN = Path(__file__).with_name("grpc_origin.py")
WAVE = 4000
ACTORS = 40
GRPC_ACTORS = 8
STEP_S = 5.0
WAVE_S = 20.0
REST_S = 30.0
GROWTH_BYTES = 8 << 20
"""How much more resident memory a process may have at the end than after the first round."""
SETTINGS = {
    "timeouts": {"upstream_keep_alive_s": 1.0, "keep_alive_s": 5.0, "client_head_s": 2.0, "client_body_idle_s": 2.0},
    "limits": {"rate_grace_s": 1.0, "read_grace_s": 1.0},
    "policies": {"quarantine": {"base_s": 0.1, "max_s": 0.5}},
}

REQUEST = b"GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Figures:
    """What must be the same again. ``memory``: resident bytes, by process."""

    counts: dict[str, int]
    admin_fds: dict[str, int]
    memory: dict[str, int]

    def against(self, start: Figures) -> list[str]:
        """Return what is not as it was at the start."""
        found = [
            f"{name}: {start.counts[name]} at the start, {count} now"
            for name, count in self.counts.items()
            if count != start.counts[name]
        ]
        for name, now in self.admin_fds.items():
            if now > start.admin_fds[name] + 2:  # the admin API's callers come and go
                found.append(f"descriptors of {name}: {start.admin_fds[name]} at the start, {now} now")
        for name, now in self.memory.items():
            if now - start.memory[name] > GROWTH_BYTES:
                found.append(f"memory of {name}: {start.memory[name] >> 10} KiB at the start, {now >> 10} KiB now")
        return found

    def __str__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        fds = " ".join(f"{name}_fds={count}" for name, count in self.admin_fds.items())
        memory = " ".join(f"{name}={size / 1e6:.1f}MB" for name, size in self.memory.items())
        return f"{counts} {fds} {memory}"


def figures(sidecar: Sidecar) -> Figures:
    """Read what the sidecar says of itself, and what the kernel says of its processes."""
    _, body = sidecar.read("/metrics")
    sums: Counter[str] = Counter()
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            sums[name.partition("{")[0].removeprefix("warmroute_")] += int(float(value))
    counted = (
        "connections", "requests_in_flight", "attempts_in_flight", "upstream_connections", "upstream_connections_idle",
        "process_tasks", "process_open_fds", "process_restarts_total", "endpoints",
    )  # fmt: skip
    counts = {name: sums[name] for name in counted}
    pids = {"control": sidecar.process.child("control"), "data-0": sidecar.process.child("data-0")}
    fds = {"control": len(list(Path(f"/proc/{pids['control']}/fd").iterdir()))}
    memory = {name: _resident_bytes(pid) for name, pid in pids.items()}
    return Figures(counts, fds, memory)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


# --- callers --------------------------------------------------------------------------------------------------------


class Caller:
    """One connection, with nothing between it and the kernel."""

    def __init__(self, address: tuple[str, int], *, receive_bytes: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self.sock = socket.socket()
        self.sock.setblocking(False)
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)

    async def connect(self) -> None:
        await self._loop.sock_connect(self.sock, self._address)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def read(self, most: int = 65536) -> bytes:
        return await self._loop.sock_recv(self.sock, most)

    async def read_all(self, size: int) -> None:
        """Read until so many bytes came, or the end."""
        while size > 0 and (data := await self.read()):
            size -= len(data)

    def end(self, *, reset: bool) -> None:
        with suppress(OSError):
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()


Act = Callable[[Caller, random.Random], Awaitable[None]]


async def asks(caller: Caller, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        await caller.send(REQUEST % rng.choice((b"/ok", b"/ok", b"/slow", b"/close", b"/nothing")))
        if not await caller.read():
            return


async def posts(caller: Caller, rng: random.Random) -> None:
    body = bytes(rng.randint(1, 300_000))
    await caller.send(POST % (b"/echo", len(body)) + body)
    await caller.read_all(len(body))


async def posts_chunks(caller: Caller, rng: random.Random) -> None:
    await caller.send(b"POST /echo HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(rng.randint(1, 20)):
        size = rng.randint(1, 5000)
        await caller.send(b"%x\r\n%s\r\n" % (size, bytes(size)))
    await caller.send(b"0\r\n\r\n")
    await caller.read()


async def says_nothing(caller: Caller, rng: random.Random) -> None:
    await asyncio.sleep(rng.random())


async def says_half_a_head(caller: Caller, rng: random.Random) -> None:
    await caller.send((REQUEST % b"/ok")[: rng.randint(1, 30)])
    await asyncio.sleep(rng.random())


async def says_half_a_body(caller: Caller, rng: random.Random) -> None:
    await caller.send(POST % (rng.choice((b"/echo", b"/deaf")), 500_000) + bytes(rng.randint(0, 200_000)))
    await asyncio.sleep(rng.random())


async def says_nonsense(caller: Caller, rng: random.Random) -> None:
    await caller.send(rng.randbytes(rng.randint(1, 2000)))
    await caller.read()


async def leaves_before_the_answer(caller: Caller, rng: random.Random) -> None:
    await caller.send(REQUEST % b"/slow")
    await asyncio.sleep(rng.random() * 0.3)


async def leaves_inside_the_answer(caller: Caller, rng: random.Random) -> None:
    await caller.send(REQUEST % rng.choice((b"/events", b"/large")))
    for _ in range(rng.randint(1, 3)):
        await caller.read()


async def shuts_its_side(caller: Caller, rng: random.Random) -> None:
    await caller.send(REQUEST % rng.choice((b"/ok", b"/slow", b"/events")))
    caller.sock.shutdown(socket.SHUT_WR)
    await caller.read_all(1 << 20)


async def reads_to_the_end(caller: Caller, rng: random.Random) -> None:
    await caller.send(REQUEST % rng.choice((b"/events", b"/large", b"/cut", b"/reset")))
    await caller.read_all(4 << 20)


async def reads_slowly(caller: Caller, rng: random.Random) -> None:
    await caller.send(REQUEST % b"/large")
    for _ in range(rng.randint(1, 8)):
        await caller.read(2000)
        await asyncio.sleep(0.2)


async def pipelines(caller: Caller, rng: random.Random) -> None:
    await caller.send((REQUEST % b"/ok") * rng.randint(2, 200))
    for _ in range(rng.randint(0, 5)):
        await caller.read()


async def tunnels(caller: Caller, rng: random.Random) -> None:
    await caller.send(b"GET /tunnel HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
    for _ in range(rng.randint(0, 5)):
        await caller.read()
        await caller.send(bytes(rng.randint(1, 100_000)))


async def uploads_to_the_deaf(caller: Caller, rng: random.Random) -> None:
    await caller.send(POST % (b"/deaf", 8 << 20) + bytes(8 << 20))


ACTS: tuple[Act, ...] = (
    asks, asks, asks, posts, posts_chunks, says_nothing, says_half_a_head, says_half_a_body, says_nonsense,
    leaves_before_the_answer, leaves_inside_the_answer, shuts_its_side, reads_to_the_end, reads_slowly, pipelines,
    tunnels, uploads_to_the_deaf,
)  # fmt: skip


class Churn:
    """What goes on for as long as it is let."""

    def __init__(self, address: tuple[str, int], grpc: tuple[str, int], seed: int) -> None:
        self._address = address
        self._grpc = grpc
        self._seed = seed
        self.acts = 0
        self.asked = 0  # in waves; and answered, while all the connections stood
        self.answered = 0

    async def run(self, seconds: float, *, wave: int) -> None:
        """Let all callers loose for that time; open ``wave`` connections at once in its middle."""
        until_s = time.monotonic() + seconds
        actors = []
        for number in range(ACTORS + GRPC_ACTORS):
            address, acts = (self._address, ACTS) if number < ACTORS else (self._grpc, grpc_callers.ACTS)
            actors.append(self._act_on(until_s, random.Random(self._seed), address, acts))
            self._seed += 1
        await asyncio.gather(*actors, self._wave(seconds / 3, wave))

    async def _act_on(
        self, until_s: float, rng: random.Random, address: tuple[str, int], acts: tuple[Act, ...]
    ) -> None:
        while time.monotonic() < until_s:
            act = rng.choice(acts)
            caller = Caller(address, receive_bytes=4096 if act is reads_slowly else 0)
            with suppress(OSError, TimeoutError, *grpc_callers.ERRORS):
                async with asyncio.timeout(STEP_S):
                    await caller.connect()
                    await act(caller, rng)
            caller.end(reset=rng.random() < 0.5)
            self.acts += 1

    async def _wave(self, after_s: float, count: int) -> None:
        await asyncio.sleep(after_s)
        callers = [Caller(self._address) for _ in range(count)]

        async def ask(caller: Caller) -> None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(WAVE_S):
                    await caller.connect()
                    await caller.send(REQUEST % b"/ok")
                    answered = await caller.read() != b""
                    self.answered += answered

        for start in range(0, count, 200):
            await asyncio.gather(*(ask(caller) for caller in callers[start : start + 200]))
        for number, caller in enumerate(callers):
            caller.end(reset=number % 2 == 0)
        self.asked += count


# --- the whole ------------------------------------------------------------------------------------------------------


class Workers:
    """Two workers for HTTP and two for gRPC, of which one is killed and started again every second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ports = [free_port() for _ in range(4)]
        self.kills = 0
        self._stack = ExitStack()
        self._running = [self._start(port) for port in self.ports]
        for port in self.ports:
            until(partial(_listens, port), "the worker listens")

    def _start(self, port: int) -> Process:
        origin = ORIGIN if port in self.ports[:2] else GRPC_ORIGIN
        command = [sys.executable, str(origin), str(port)]
        return self._stack.enter_context(Process(command, self._directory / "origin.log"))

    async def kill_on(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            which = self.kills % 4
            self._running[which].send(signal.SIGKILL)
            self._running[which].wait()
            self.kills += 1
            await asyncio.sleep(0.2)
            self._running[which] = self._start(self.ports[which])

    def close(self) -> None:
        self._stack.close()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def at_rest(sidecar: Sidecar, report: Callable[[str], None]) -> Figures:
    """Wait until nothing is under way, and return the figures. (They are written once a second, descriptors twice.)"""
    gone = ("connections", "requests_in_flight", "attempts_in_flight", "upstream_connections")

    def rest() -> bool:
        return not any(figures(sidecar).counts[name] for name in gone)

    try:
        until(rest, "at rest", REST_S)
    except AssertionError:
        report(f"not at rest in {REST_S} s")  # the comparison says what is left
    time.sleep(1.5)
    return figures(sidecar)


def churn(seconds: float, *, wave: int = WAVE, report: Callable[[str], None] = print) -> list[str]:
    """Run it; return what is wrong afterwards, nothing where all is as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = Workers(directory)
        stack.callback(workers.close)
        endpoints = [
            f"{'http' if index < 2 else 'grpc'}://127.0.0.1:{port}" for index, port in enumerate(workers.ports)
        ]
        models = [{"name": "default", "default": True, "endpoints": endpoints, "idempotent": True, "hedge": True}]
        grpc = free_port()
        listeners = [
            {"address": "127.0.0.1:0", "processes": 1},
            {"address": f"127.0.0.1:{grpc}", "processes": 1, "protocol": "grpc"},
        ]
        settings = SETTINGS | {"models": models, "listeners": listeners}
        sidecar = stack.enter_context(running(directory, settings=settings, processes=1))
        host, _, port = sidecar.listen.rpartition(":")
        seed = int.from_bytes(os.urandom(4))
        report(f"seed {seed}, {seconds:.0f} s, {ACTORS + GRPC_ACTORS} callers at once, waves of {wave} connections")
        made = Churn((host, int(port)), ("127.0.0.1", grpc), seed)
        first = min(60.0, seconds / 2)
        _run(made, workers, first, wave)
        start = at_rest(sidecar, report)
        report(f"start  {start}")
        left = seconds - first
        while left > 0:
            sidecar.process.send(signal.SIGHUP)  # a reload under load loses nothing either
            _run(made, workers, min(left, 60.0), wave)
            left -= 60.0
            report(
                f"{seconds - max(left, 0):5.0f} s {figures(sidecar)} acts={made.acts} kills={workers.kills} "
                f"answered={made.answered}/{made.asked}"
            )
        end = at_rest(sidecar, report)
        report(f"end    {end}")
        lost = made.asked - made.answered
        few = [f"{lost} of {made.asked} connections of waves got no answer"] if lost > 0.02 * made.asked else []
        return [*end.against(start), *few, *_faults(sidecar)]


def _run(made: Churn, workers: Workers, seconds: float, wave: int) -> None:
    async def run() -> None:
        killing = asyncio.create_task(workers.kill_on())
        await made.run(seconds, wave=wave)
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _faults(sidecar: Sidecar) -> list[str]:
    """Return what went wrong inside the sidecar, or does not work any more."""
    found = [f"a line of level error: {line[:3000]}" for line in sidecar.process.text().splitlines() if _is_error(line)]
    if sidecar.metric("warmroute_requests_total", outcome="internal"):
        found.append("requests ended as internal")

    def served() -> bool:
        with socket.create_connection((sidecar.listen.rpartition(":")[0], int(sidecar.listen.rpartition(":")[2]))) as s:
            s.sendall(REQUEST % b"/ok")
            return s.recv(100).startswith(b"HTTP/1.1 200 ")

    until(served, "a plain request is answered")
    return found


def _is_error(line: str) -> bool:
    return '"level":"error"' in line or "Traceback" in line


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--wave", type=int, default=WAVE, help="connections opened at once, once a minute")
    options = parser.parse_args()
    began = time.monotonic()
    wrong = churn(options.seconds, wave=options.wave, report=lambda line: print(line, flush=True))
    for line in wrong:
        print(f"WRONG  {line}")
    print(f"{'FAIL' if wrong else 'PASS'} after {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
