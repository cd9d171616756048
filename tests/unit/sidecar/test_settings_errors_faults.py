"""What is said of faults in a configuration that make no sense."""

from __future__ import annotations

import pytest

from tests.support.settings_texts import GOOD, refused


@pytest.mark.parametrize(
    ("faults", "lines"),
    [
        (
            "{rules: [{kind: delay}]}",
            ["w.yaml:4:18: faults.rules[0].delay_ms: null: must be given: delay needs it"],
        ),
        (
            "{rules: [{kind: abort, for_s: 3601}]}",
            ["w.yaml:4:39: faults.rules[0].for_s: 3601: must be at most 3600"],
        ),
        (
            "{rules: [{kind: abort, piece_bytes: 3}]}",
            [
                "w.yaml:4:45: faults.rules[0].piece_bytes: 3: must be left out: abort does not go by it, slicing would",
            ],
        ),
        (
            "{most: 1, rules: [{kind: abort, id: a}, {kind: abort, id: a}]}",
            [
                "w.yaml:4:26: faults.rules: a list: must be at most faults.most (1) faults",
                "w.yaml:4:26: faults.rules: a list: must have different ids",
            ],
        ),
        (
            "{most: 0, headers: trusted}",
            ['w.yaml:4:28: faults.headers: "trusted": must be nobody where faults.most is 0: no fault may be in force'],
        ),
    ],
)
def test_error_text(faults: str, lines: list[str]) -> None:
    assert refused(GOOD + f"faults: {faults}\n") == lines
