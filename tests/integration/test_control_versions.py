"""Steering versions at a real control process: what it takes and refuses, and what data processes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.model import SnapshotEnded, VersionsSteered, VersionSteering
from router.policy import ServeRule, VersionShare
from tests.support.control_process import ControlProcess

SETTINGS: dict[str, Any] = {
    "endpoints": [
        {"url": "http://127.0.0.1:9001", "name": "a", "models": ["m@1", "n@1"]},
        {"url": "http://127.0.0.1:9002", "name": "b", "models": ["m@2"]},
    ],
    "models": [{"name": "m", "versions": {"serve": "latest"}}, {"name": "n"}],
    "state": {"url": "none"},
}
WEIGHT = "split[0].weight: -1: must be at least 0"
PINNED = VersionSteering("m", ServeRule.PINNED, "1")


def steer(control: ControlProcess, what: str, body: bytes = b"", model: str = "m") -> tuple[int, Any]:
    answer = control.ask(f"/versions/{model}/{what}", method="POST", body=body, unix=True)
    return answer.status, answer.json


def test_what_is_steered_is_told_kept_and_shown(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **SETTINGS) as control:
        (m, n) = control.ask("/versions").json["models"]
        assert (m["model"], m["serve"], m["configured"], m["steered"], m["rollout"]) == (
            "m",
            "latest",
            "latest",
            None,
            None,
        )
        assert [(row["version"], row["share"], row["ready"]) for row in m["versions"]] == [("2", 1.0, 1), ("1", 0.0, 1)]
        assert (n["serve"], n["versions"][0]["share"]) == ("any", None)

        status, shown = steer(control, "rollback")
        assert (status, shown["serve"], shown["steered"]["why"]) == (200, "version 1", "rolled back to 1")
        for index in (0, 1):
            control.receive(index, lambda got: VersionsSteered((PINNED,)) in got, "the order")
        assert control.ask("/routes/explain?model=m").json["serve"] == "version 1"

        for what, body, model, status, text in (
            ("promote", b"", "nobody", 404, "no model 'nobody'"),
            ("promote", b'{"version": "3"}', "m", 409, "m: version '3' has no replica that may be picked"),
            ("promote", b'{"verson": "1"}', "m", 400, 'verson: "1": unknown field; did you mean "version"?'),
            ("rollback", b"", "m", 409, "m: there is nothing to go back to: name a version"),
            ("split", b"", "m", 409, "m: name 1 to 8 versions, each once"),
            (
                "split",
                b'{"split": [{"version": "1", "weight": -1}]}',
                "m",
                400,
                "split[0].weight: -1: must be at least 0",
            ),
            ("split", b'{"split": [{"version": "7", "weight": 1}]}', "m", 409, "m: no endpoint holds version '7'"),
            ("reset", b"", "n", 409, "n: goes by its configuration"),
        ):
            answer = steer(control, what, body, model)
            assert (answer[0], answer[1]["error"]) == (status, text), what
        assert control.ask("/versions?model=nobody").status == 404
        assert control.ask("/versions/m/promote", method="POST").status == 403

        control.kill()
        control.start()
        control.hello(0, "epoch-2")
        got = control.receive(0, lambda got: any(isinstance(one, SnapshotEnded) for one in got), "a snapshot")
        told = [one for one in got if isinstance(one, VersionsSteered | SnapshotEnded)]
        assert told[0] == VersionsSteered((PINNED,))  # before anything is accepted
        assert control.ask("/versions?model=m").json["models"][0]["steered"]["why"] == "rolled back to 1"

        body = b'{"split": [{"version": "1", "weight": 3}, {"version": "2", "weight": 1}]}'
        assert steer(control, "split", body)[1]["serve"] == "split: 1 0.75, 2 0.25"
        shares = (VersionShare("1", 3.0), VersionShare("2", 1.0))
        split = VersionSteering("m", ServeRule.SPLIT, shares=shares)
        control.receive(0, lambda got: VersionsSteered((split,)) in got, "the split")
        metrics = control.ask("/metrics").text
        assert 'warmroute_version_share_ratio{model="m",version="2"} 0.25' in metrics
        assert 'warmroute_version_changes_total{model="m",by="operator"} 1' in metrics
        assert steer(control, "reset")[1]["steered"] is None
        control.receive(0, lambda got: VersionsSteered(()) in got, "the end of it")
