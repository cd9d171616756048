"""``warmroute compare``: one trace to two targets in turn, and what differs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from sidecar.cli.outcome import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.sending import Json, Sending, unconnected, watched
from sidecar.cli.tables import show, table
from sidecar.traffic.comparing.blocks import Block, cut, order, total
from sidecar.traffic.comparing.verdicts import ERRORS, LEAST_BLOCKS, Judged, Verdict, failed_whole, judge, silent
from sidecar.traffic.processor import cpu_s, lives, tree
from sidecar.traffic.report import figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from sidecar.traffic.requests import Timed
    from sidecar.traffic.sender import Sender

ROUNDS: Final = 20
_SENDING: Final = Sending()
_NAMES: Final = ("A", "B")
_SHOWN: Final = {"ms": 2, "%": 3, "µs": 1}
"""Digits behind the point, by unit."""


def compare(
    a: Annotated[str, Parameter(help="The one target, as --to of warmroute replay.")],
    b: Annotated[str, Parameter(help="The other one.")],
    file: Annotated[Path, Parameter(help="A trace, as warmroute replay takes it.")],
    /,
    *,
    sending: Sending = _SENDING,
    rounds: Annotated[
        int,
        Parameter(
            help="Blocks that the trace is cut into, and one more that warms up.",
            validator=Number(gte=LEAST_BLOCKS, lte=1000),
        ),
    ] = ROUNDS,
    pid_a: Annotated[
        tuple[int, ...],
        Parameter(help="A process of A's, with its children: for its CPU; may be repeated.", show_default=False),
    ] = (),
    pid_b: Annotated[tuple[int, ...], Parameter(help="The same of B's.", show_default=False)] = (),
    confidence: Annotated[
        float, Parameter(help="That all of what is said holds.", validator=Number(gte=0.5, lte=0.999))
    ] = 0.95,
    as_json: Json = False,
) -> int:
    """Send one trace to two targets in turn, block by block, and say what differs and what cannot be told.

    Each block goes to both with its own spacing, first to A, the next one first to B, and so on. Ends with 1 where
    something of B is shown to be worse than A's, every request of a round failed at B alone, or one of them answered
    nothing for a whole round. It takes twice as long as the trace.
    """
    if bool(pid_a) != bool(pid_b):
        raise CliError("--pid-a and --pid-b: CPU is compared where both are given", EXIT_REFUSED)
    for flag, pids in (("--pid-a", pid_a), ("--pid-b", pid_b)):
        for pid in pids:
            if not lives(pid):
                raise CliError(f"{flag} {pid}: there is no such process", EXIT_REFUSED)
    trace = sending.read(file, a, b)
    requests = list(sending.requests(trace))
    if len(requests) < rounds + 1:
        raise CliError(f"{file}: {len(requests)} requests are too few for {rounds} rounds (--rounds)", EXIT_REFUSED)
    run = _Run(sending, (a, b), (pid_a, pid_b), list(cut(requests, len(requests), rounds + 1)))
    complete = uvloop.run(run.all())
    judged = judge(run.blocks[0], run.blocks[1], random.Random(0), confidence)  # noqa: S311 (the same for the same samples)
    targets = [
        {"to": to, **figures(total(blocks)), "silence": silent(name, blocks)}
        for name, to, blocks in zip(_NAMES, (a, b), run.blocks, strict=True)
    ]
    report = {
        "trace": {"file": str(file), "kind": trace.kind, "left_out": dict(trace.left_out)},
        "rounds": len(run.blocks[0]),
        "confidence": confidence,
        "complete": complete,
        "targets": targets,
        "judged": [_told(one) for one in judged],
        "worse": [f"{one.figure}: B is {one.verdict}" for one in judged if one.verdict is Verdict.HIGHER]
        + [told for told in (*(str(target["silence"]) for target in targets), failed_whole(*run.blocks)) if told],
    }
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(*_parts(report, judged))
    if not complete:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if report["worse"] else EXIT_OK


@dataclass
class _Run:
    """All blocks to both targets; the first one is not counted."""

    sending: Sending
    targets: tuple[str, str]
    pids: tuple[Sequence[int], Sequence[int]]
    cut: list[list[Timed]]
    blocks: tuple[list[Block], list[Block]] = field(default_factory=lambda: ([], []))
    _sender: Sender | None = None
    _stopped: bool = False
    _number: int = 0

    async def all(self) -> bool:
        """Send; return False where Ctrl-C ended it."""
        for address, flag in zip(self.targets, _NAMES, strict=True):  # wrong ones are found before anything is sent
            self.sending.sender(address, lambda _: None, flag)
        return await watched(lambda: asyncio.ensure_future(self._blocks()), self._stop, self._line)

    async def _blocks(self) -> None:
        for number, requests in enumerate(self.cut):
            self._number = number
            pair: list[Block | None] = [None, None]
            for target in order(number):
                pair[target] = await self._one(target, requests)
                if self._stopped:
                    return
            if number:
                for blocks, block in zip(self.blocks, pair, strict=True):
                    if block is not None:
                        blocks.append(block)

    async def _one(self, target: int, requests: list[Timed]) -> Block:
        block = Block()
        self._sender = self.sending.sender(self.targets[target], block.summary.add, _NAMES[target])
        before = self._cpu(target)
        await self._sender.run(requests)
        after = self._cpu(target)
        if before and after:
            block.cpu_s = sum(max(0.0, used - before.get(pid, 0.0)) for pid, used in after.items())
        block.ended = tuple(pid for pid in self.pids[target] if not lives(pid))
        return block

    def _cpu(self, target: int) -> dict[int, float]:
        return {pid: cpu_s(pid) for root in self.pids[target] for pid in tree(root)}

    def _stop(self) -> None:
        self._stopped = True
        if self._sender is not None:
            self._sender.stop()

    def _line(self) -> str:
        under_way = 0 if self._sender is None else self._sender.in_flight
        return f"round {self._number} of {len(self.cut) - 1}, {under_way:,} under way"


def _told(one: Judged) -> dict[str, Any]:
    return {
        "figure": one.figure,
        "unit": one.unit,
        "a": one.a,
        "b": one.b,
        "difference": None if one.difference is None else list(one.difference),
        "verdict": one.verdict.value,
        "why": one.why,
        "needed": one.needed,
        "of": list(one.of),
    }


def _parts(report: dict[str, Any], judged: list[Judged]) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(f"{report['trace']['file']} ({report['trace']['kind']}), {report['rounds']} rounds", style="bold")
    ]
    parts += [Text(f"left out: {count:,} {why}", style="yellow") for why, count in report["trace"]["left_out"].items()]
    for name, target in zip(_NAMES, report["targets"], strict=True):
        parts.append(Text(f"{name}: {target['to']}, {target['requests']:,} requests, {_failed(target)}"))
        why = list(unconnected(target["reasons"], target["to"]))
        parts += [Text(line, style="red") for line in why]
        if target["silence"]:
            parts.append(Text(target["silence"] + ("" if why else ": it was not there, or hung"), style="red"))
    rows = table("", "A", "B", "B less A", "", right=("A", "B", "B less A"))
    failures = [target["failures"] for target in report["targets"]]
    for one in judged:
        digits = _SHOWN[one.unit]
        a, b = ("-" if value is None else f"{value:,.{digits}f}" for value in (one.a, one.b))
        between = "-" if one.difference is None else " to ".join(f"{end:+,.{digits}f}" for end in one.difference)
        rows.add_row(f"{one.figure} {one.unit}", a, b, between, _sentence(one, failures, report["rounds"]))
    parts.append(rows)
    if any(failures):
        answered = [f"{one.of[0]:,} at A, {one.of[1]:,} at B" for one in judged if one.unit == "ms"]
        parts.append(Text(f"P50 and P99 are of requests that did not fail: {answered[0]}.", style="yellow"))
    parts.append(Text(f"All of this together holds with a confidence of {report['confidence']:.1%}."))
    for name, target in zip(_NAMES, report["targets"], strict=True):
        if target["late"]:
            parts.append(Text(f"sent late to {name}: this machine was part of its latencies", style="yellow"))
    if report["worse"]:
        parts.append(Text(f"Ends with {EXIT_FAILED}: {'; '.join(report['worse'])}", style="red"))
    if not report["complete"]:
        parts.append(Text("interrupted: rounds that were whole are counted", style="yellow"))
    return parts


def _failed(target: dict[str, Any]) -> str:
    """Say how many of a target's requests failed, and how."""
    if not target["failures"]:
        return "none failed"
    how = ", ".join(f"{count:,} {error}" for error, count in target["errors"].items())
    return f"{target['failures']:,} failed ({target['failures'] / target['requests']:.1%}): {how}"


def _sentence(one: Judged, failures: Sequence[int], rounds: int) -> str:
    if one.verdict is Verdict.UNKNOWN:
        return f"cannot be told: {one.why}"
    counts = ""
    if one.figure == ERRORS and any(failures):
        counts = f"{failures[0]:,} of {one.of[0]:,} failed at A, {failures[1]:,} of {one.of[1]:,} at B: "
    if one.verdict is not Verdict.OPEN:
        return f"{counts}B is {one.verdict.value}"
    if one.needed:
        return f"{counts}no difference shown; about {one.needed:,} requests each would show what was seen"
    if counts and one.a != one.b:  # it is not their number that is too small: they came in few of the rounds
        return f"{counts}may be chance in {rounds} rounds; more of them would tell (--rounds)"
    return f"{counts}no difference shown"
