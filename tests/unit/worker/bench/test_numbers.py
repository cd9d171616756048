"""Numbers that make no sense to a bench: each is told with its flag, its value and what was expected."""

from __future__ import annotations

import pytest

from worker.bench.__main__ import main

COLDSTART = ("coldstart", "m/1")
UPDATES = ("updates", "m/1")
MODEL = ("model", "m/1", "--size", "1MB")
WHOLE = ("nan", "inf", "-1", "1.5", "9" * 30, "")
NUMBERS = ("nan", "inf", "-inf", "-1", "1e99", "x", "")


@pytest.mark.parametrize(
    ("command", "flag", "bounds"),
    [
        (COLDSTART, "--rounds", "1 to 10000"),
        (COLDSTART, "--warm-ups", "0 to 10000"),
        (COLDSTART, "--threads", "1 to 1024"),
        (UPDATES, "--rounds", "1 to 10000"),
        (UPDATES, "--threads", "1 to 1024"),
        (("execution",), "--rounds", "1 to 1000"),
        (("execution",), "--threads", "1 to 1024"),
        (("queues",), "--queue", "0 to 1048576"),
        (("queues",), "--requests", "1000 to 10000000"),
        (("queues",), "--seed", "0 to 281474976710656"),
        (MODEL, "--seed", "0 to 281474976710656"),
        (MODEL, "--levels", "0 to 16777216"),
    ],
)
@pytest.mark.parametrize("text", WHOLE)
def test_a_whole_number(
    command: tuple[str, ...], flag: str, bounds: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(command, flag, text, capsys) == f"argument {flag}: '{text}': expected a whole number from {bounds}"


@pytest.mark.parametrize(
    ("command", "flag", "bounds"),
    [
        (COLDSTART, "--steady-s", "0 to 3600"),
        (UPDATES, "--span-s", "0.01 to 3600"),
        (("execution",), "--round-s", "0.01 to 3600"),
        (("queues",), "--load", "0.01 to 10"),
    ],
)
@pytest.mark.parametrize("text", NUMBERS)
def test_a_number(
    command: tuple[str, ...], flag: str, bounds: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(command, flag, text, capsys) == f"argument {flag}: '{text}': expected a number from {bounds}"


@pytest.mark.parametrize("text", ["", "nan", "-1MB", "1e9", "9" * 400, "1TB"])
def test_a_size(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"argument --size: '{text[:80]}': expected a size such as 335MB, 1.9GB or 4MiB"
    assert refused(("model", "m/1"), "--size", text, capsys) == said


def test_a_shape_of_more_values_than_a_request_holds(capsys: pytest.CaptureFixture[str]) -> None:
    said = "argument --shape: 'x=4096x4097': expected at most 16777216 values"
    assert refused(COLDSTART, "--shape", "x=4096x4097", capsys) == said


def refused(command: tuple[str, ...], flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, f"{flag}={text}"])
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]
