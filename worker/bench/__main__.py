"""``warmroute bench``: what measures starts, updates and executions."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

from worker.bench import coldstart, execution, queues, updates
from worker.bench.synthetic import MOST_LEVELS, SyntheticError, write_model
from worker.flag_types import count

_FAILED, _INTERRUPTED = 1, 130
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def main(argv: list[str]) -> int:
    """Run one command; returns 0 where it did what it should, 1 where it failed, 2 where it was used wrongly."""
    given = _parser().parse_args(argv)
    try:
        return int(given.command(given))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _end(number: int, _: object) -> None:
    """End in order, so that what was made for the bench is taken away."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute bench", description="Measure how workers start.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    model = commands.add_parser(
        "model",
        help="write a synthetic model",
        description="Write a synthetic transformer: real operators on made-up weights, the same each time.",
        allow_abbrev=False,
    )
    model.add_argument("directory", type=Path, metavar="DIR", help="a version's directory, as models/synthetic/1")
    model.add_argument("--size", type=size, required=True, metavar="SIZE", help="of its weights, as 335MB or 1.9GB")
    model.add_argument(
        "--seed", type=count(0, queues.MOST_SEED), default=0, metavar="N", help="of the weights (default: 0)"
    )
    model.add_argument(
        "--levels",
        type=count(0, MOST_LEVELS),
        default=0,
        metavar="N",
        help="round weights to N values, so that they compress (default: 0, not at all)",
    )
    model.set_defaults(command=_model)
    coldstart.add_command(commands.add_parser)
    updates.add_command(commands.add_parser)
    execution.add_command(commands.add_parser)
    queues.add_command(commands.add_parser)
    return parser


def _model(given: argparse.Namespace) -> int:
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total
        if percent // 10 != shown // 10 and sys.stderr.isatty():
            shown = percent
            sys.stderr.write(f"\r{percent:3d}% written")
            sys.stderr.flush()

    try:
        shape = write_model(given.directory, given.size, seed=given.seed, levels=given.levels, progress=progress)
    except (SyntheticError, OSError) as error:
        return complain(str(error))
    if shown >= 0:
        sys.stderr.write("\n")
    print(
        f"{given.directory}: {shape.parameters / 1e6:.1f} million parameters, {shape.layers} layers,"
        f" hidden size {shape.hidden}, vocabulary {shape.vocabulary}"
    )
    return 0


def complain(text: str) -> int:
    """Write one line of error; returns the exit code for it."""
    sys.stderr.write(f"error: {text}\n")
    return _FAILED


def size(text: str) -> int:
    """Read a size such as ``335MB``, ``1.9GB`` or ``4MiB``."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMG]i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected a size such as 335MB, 1.9GB or 4MiB")
    return round(float(found[1]) * _UNITS[(found[2] or "").upper()])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
