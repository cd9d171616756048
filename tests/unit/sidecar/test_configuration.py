"""A reload: taken whole, or refused whole with every reason, and what is known of it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.config.load import Loaded, load
from sidecar.configuration import Configuration

GOOD = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
models: [{name: m, endpoints: ["http://h:1"], default: true}]
"""


def made(path: Path, load_: Callable[[], Loaded] | None = None) -> tuple[Configuration, list[float]]:
    wall = [1000.0]
    loaded = load(path, {})
    config = Configuration(
        loaded.settings,
        source=str(path),
        load=load_ or (lambda: load(path, {})),
        watch=None,
        wall=lambda: wall[0],
        remedy="start another",
    )
    return config, wall


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    return path


def test_a_good_one_takes_the_place_of_the_one_before(path: Path) -> None:
    config, wall = made(path)
    first = config.state
    path.write_text(GOOD + "timeouts: {drain_s: 5}\nlogging: {level: debug}\n")
    wall[0] = 1001.0
    config.reload(7.0)
    assert config.settings.timeouts.drain_s == 5
    assert config.settings.logging.level == "info"  # a running process cannot take it over
    state = config.state
    assert (state.sequence, state.taken, state.loaded_at, state.asked_at) == (1, 1, 1001.0, 7.0)
    assert state.revision != first.revision
    assert [str(change) for change in state.applied] == ["timeouts.drain_s: 30.0 -> 5.0"]
    assert [change.path for change in state.needs_restart] == ["logging.level"]
    config.reload(8.0)
    assert (config.state.unchanged, config.state.sequence, config.state.asked_at) == (1, 1, 8.0)
    assert [change.path for change in config.state.needs_restart] == ["logging.level"]


def test_a_bad_one_changes_nothing_and_says_where_and_since_when(path: Path) -> None:
    config, wall = made(path)
    before = config.settings, config.state.revision
    path.write_text(GOOD.replace("m,", "m, idempotent: perhaps,") + "timeouts: {drain_s: -1}\n")
    for moment in (1002.0, 1005.0):
        wall[0] = moment
        config.reload(moment)
    assert (config.settings, config.state.revision) == before
    state = config.state
    assert (state.bad_since, state.refused, state.sequence) == (1002.0, 2, 0)
    assert [problem.partition(": ")[0] for problem in state.problems] == [f"{path}:3:32", f"{path}:4:21"]
    assert "drain_s" in state.problems[1]
    path.write_text(GOOD)
    config.reload(9.0)
    assert (config.state.bad_since, config.state.problems, config.state.unchanged) == (None, (), 1)


def test_a_good_one_of_which_half_would_break_something_waits_whole(path: Path) -> None:
    config, _ = made(path)
    before = config.settings, config.state.revision
    path.write_text(
        GOOD.replace(', endpoints: ["http://h:1"]', "") + 'state: {url: "redis://h:1"}\ntimeouts: {drain_s: 5}\n'
    )
    for moment in (1.0, 2.0):
        config.reload(moment)
    state = config.state
    assert (config.settings, state.revision) == before
    assert (state.withheld, state.taken, state.sequence, state.bad_since) == (2, 0, 0, None)
    assert {change.path for change in state.needs_restart} == {"state.url", "models[m].endpoints", "timeouts.drain_s"}
    (problem,) = state.would_break
    assert problem.startswith("models[m].name: has no endpoint")
    path.write_text(GOOD)
    config.reload(3.0)
    assert (config.state.unchanged, config.state.needs_restart, config.state.would_break) == (1, (), ())


def test_a_file_that_is_gone_is_a_bad_one(path: Path) -> None:
    config, _ = made(path)
    path.unlink()
    config.reload(1.0)
    assert config.state.bad_since == 1000.0


def test_whatever_a_reader_stumbles_over_the_one_before_stays(path: Path) -> None:
    def stumbles() -> Loaded:
        raise MemoryError("no more")

    config, _ = made(path, stumbles)
    config.reload(1.0)
    assert config.state.problems == (f"{path}: MemoryError: no more",)


def test_without_a_source_nothing_happens(path: Path) -> None:
    config = Configuration(
        load(path, {}).settings, source="somebody", load=None, watch=None, wall=lambda: 0.0, remedy="ask them"
    )
    before = config.state
    config.reload(1.0)
    assert config.state is before
    assert not before.reloadable
