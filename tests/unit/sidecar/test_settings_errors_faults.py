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
            f"{{rules: [{{kind: abort, model: {'m' * 257}}}]}}",
            [f'w.yaml:4:39: faults.rules[0].model: "{"m" * 120}…": must have at most 256 characters'],
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


def test_faults_are_judged_beside_what_does_not_fit_the_schema() -> None:
    rules = "[{kind: explode}, {kind: delay, delay_ms: soon, status: 503}, {kind: bandwidth}, {ratio: 2}, 7]"
    texts = refused(GOOD.replace("version: 1", "version: 2", 1) + f"faults: {{rules: {rules}, most: many}}\n")
    assert [text.partition(": ")[2].partition(":")[0] for text in texts] == [
        "version",
        "faults.rules[0].kind",
        "faults.rules[1].delay_ms",
        "faults.rules[1].status",
        "faults.rules[2].bytes_per_s",
        "faults.rules[3].kind",
        "faults.rules[3].ratio",
        "faults.rules[4]",
        "faults.most",
    ]
    assert texts[3].endswith("status: 503: must be left out: delay does not go by it, abort would")
    assert texts[4].endswith("bytes_per_s: null: must be given: bandwidth needs it")
