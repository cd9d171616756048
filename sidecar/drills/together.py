"""Several drills at once, each a process of its own, so that none takes part in what another measures."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.children import signal_name
from sidecar.heeding import hand_over, heed

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping, Sequence

_LINE_BYTES = 1 << 20
"""Longest line that a drill may tell."""


@dataclass(frozen=True, slots=True)
class Apart:
    """One drill that runs in a process of its own: what its lines begin with, and the arguments of ``drill run``."""

    name: str
    arguments: tuple[str, ...]


def run_together(
    parts: Sequence[Apart],
    jobs: int,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    complain: Callable[[str], None],
) -> list[int | None]:
    """Run ``parts`` in their order, ``jobs`` at a time; return the exit code of each, None of one that never began.

    What they write goes line by line to ``tell``, from their standard error to ``complain``, with their name in front.
    SIGINT, SIGTERM and SIGHUP are passed on, and no other begins then; with this process they end as by SIGTERM. Once
    all have ended they do nothing any more.
    """
    return asyncio.run(_Together(jobs, environ, tell, complain).run(parts))


class _Together:
    def __init__(
        self, jobs: int, environ: Mapping[str, str], tell: Callable[[str], None], complain: Callable[[str], None]
    ) -> None:
        self._jobs = jobs
        self._environ = environ
        self._tell = tell
        self._complain = complain
        self._running: dict[int, Process] = {}
        self._stopped: signal.Signals | None = None

    async def run(self, parts: Sequence[Apart]) -> list[int | None]:
        loop = asyncio.get_running_loop()
        codes: list[int | None] = [None] * len(parts)
        width = max(len(part.name) for part in parts)
        left = iter(enumerate(parts))

        async def take() -> None:
            for number, part in left:
                if self._stopped is not None:
                    return
                codes[number] = await self._one(part, f"{part.name:<{width}} | ")

        heed(loop, self._told_to_stop)
        try:
            await asyncio.gather(*(take() for _ in range(min(self._jobs, len(parts)))))
        finally:
            hand_over(loop, signal.SIG_IGN)
        return codes

    def _told_to_stop(self, signum: signal.Signals) -> None:
        self._stopped = signum
        for process in self._running.values():
            process.send_signal(signum)

    async def _one(self, part: Apart, prefix: str) -> int:
        """Run one to its end; return its exit code, that of a shell where a signal ended it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sidecar.cli.main", "drill", "run"),
            *(*part.arguments, "--parent-pid", str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environ,
            limit=_LINE_BYTES,
            process_group=0,  # Ctrl-C in a terminal reaches this process alone, which passes it on once
        )
        self._running[process.pid] = process
        try:
            if self._stopped is not None:  # told while it was being started
                process.send_signal(self._stopped)
            assert process.stdout is not None  # noqa: S101  both are pipes
            assert process.stderr is not None  # noqa: S101
            await asyncio.gather(
                _pass_on(process.stdout, prefix, self._tell), _pass_on(process.stderr, prefix, self._complain)
            )
            code = await process.wait()
        finally:
            del self._running[process.pid]
        if code < 0:
            self._complain(f"{prefix}ended by {signal_name(-code)}")
        return code if code >= 0 else 128 - code


async def _pass_on(stream: asyncio.StreamReader, prefix: str, tell: Callable[[str], None]) -> None:
    async for line in stream:
        tell(f"{prefix}{line.decode('utf-8', 'replace').rstrip()}".rstrip())
