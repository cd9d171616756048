"""One trace of callers and the logs of any number of workers, joined: files as they are, or as they grow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from sidecar.traffic.attribution.files import CallerLines, WorkerLines, as_they_became_known, read
from sidecar.traffic.attribution.following import Source
from sidecar.traffic.attribution.joining import Half, Join, Side
from sidecar.traffic.attribution.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sidecar.traffic.attribution.files import Lines

AT_ONCE: Final = 5000
"""Halves that are offered before somebody else has a turn."""


class Attribution:
    """Reads, joins and adds up. ``key`` says in which row a worker's half is; the rest is :class:`Join`'s."""

    def __init__(
        self,
        callers: Path,
        workers: Sequence[Path],
        key: Callable[[Half], str],
        clock_s: float,
        wait_s: float,
        deadline_s: float,
        max_waiting: int,
    ) -> None:
        self.tally = Tally(key)
        self.join = Join(
            self.tally.take, self.tally.other, self.tally.lone, clock_s, wait_s, deadline_s, max_waiting=max_waiting
        )
        self._callers = CallerLines()
        self._workers = [WorkerLines() for _ in workers]
        self._files: list[tuple[Path, Lines]] = [(callers, self._callers), *zip(workers, self._workers, strict=True)]
        self._sources: list[Source] = []
        self.before = 0
        """Workers' halves from before the callers' trace began: of these nobody can tell."""

    def whole(self) -> None:
        """Take the files as they are.

        Raises:
            TraceError: one cannot be read, or is none.
        """
        halves: list[Half] = []
        for path, lines in self._files:
            halves += read(path, lines)
        for now_s, half in as_they_became_known(halves):
            self._offer(half, now_s)
        self.join.close()

    def step(self, now_s: float, *, last: bool = False) -> bool:
        """Take what has come to the files by now, monotonic seconds; return whether there may be more at once.

        Of what several files have, what was over first comes first. ``last``: whoever writes them is not waited for.

        Raises:
            TraceError: one cannot be read, or is none.
        """
        self._sources = self._sources or [Source(path, lines) for path, lines in self._files]
        read_s = math.inf if last else now_s
        ready = [source for source in self._sources if source.fill(read_s)]
        offered = 0
        while ready and offered < AT_ONCE:
            source = min(ready, key=lambda one: one.heads[0].ended_s)
            self._offer(source.heads.popleft(), now_s)
            offered += 1
            if not source.fill(read_s):
                ready.remove(source)
        self.join.advance(now_s)
        return bool(ready)

    def close(self) -> None:
        """No more comes."""
        for source in self._sources:
            source.close()
        self.join.close()

    def _offer(self, half: Half, now_s: float) -> None:
        since_s = self._callers.since_s
        if half.side is Side.WORKER and since_s is not None and half.ended_s < since_s - self.join.clock_s:
            self.before += 1
        else:
            self.join.offer(half, now_s)

    def report(self) -> dict[str, Any]:
        """Return everything that is known by now."""
        join = self.join
        return {
            "offered": join.offered,
            "joined": join.joined,
            "late": join.late,
            "attempts": join.attempts,
            "waiting": join.waiting,
            "orphans": {f"{side}: {why}": count for (side, why), count in sorted(join.orphans.items())},
            "repeated": {side.value: count for side, count in sorted(join.repeated.items())},
            "before": self.before,
            "lost": sum(lines.lost for lines in self._workers),
            "unreadable": {
                str(source.path): {"lines": source.unreadable, "first": source.first_unreadable}
                for source in self._sources
                if source.unreadable
            },
            "missing": [str(source.path) for source in self._sources if source.missing],
            "sampled_ratio": self._callers.sampled_ratio,
            "clocks": {
                who: {"count": one.count, "least_s": round(one.least_s, 6), "most_s": round(one.most_s, 6)}
                for who, one in sorted(self.tally.apart.items())
            },
            "rows": {name: row.figures() for name, row in sorted(self.tally.rows.items())},
        }
