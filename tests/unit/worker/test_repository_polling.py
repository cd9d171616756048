"""What a worker holds follows its repository: by polling."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from router.model import State
from tests.support.loops import in_loop, until
from tests.support.repository_rig import Bench
from worker.control import Behaviour, Control


@in_loop
async def test_polling_follows_what_comes_changes_and_goes(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("n", "1", "n")
        await bench.look_twice()
        assert bench.answering == {"m": "one", "n": "n"}
        bench.put("m", "1", "one again")
        await bench.look_twice()
        assert bench.answering == {"m": "one again", "n": "n"}
        bench.put("m", "2", "two")
        await bench.look_twice()
        assert (bench.states, bench.answering["m"]) == ({"m@2": State.WARM, "n@1": State.WARM}, "two")
        shutil.rmtree(root / "m" / "2")
        await bench.look_twice()
        assert bench.answering["m"] == "one again"
        shutil.rmtree(root / "n")
        await bench.look_twice()
        assert list(bench.states) == ["m@1"]
        assert bench.engine.open == ["one again"]


@in_loop
async def test_what_may_be_half_there_is_left_alone_until_it_stood_still_for_two_looks(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        await bench.repository.look_again()
        for content in ("two", "three", "four"):
            bench.put("m", "1", content)
            await bench.repository.look_again()
            assert bench.answering == {"m": "one"}
        await bench.repository.look_again()
        assert bench.answering == {"m": "four"}
        assert [model.content for model in bench.engine.loaded] == ["one", "four"]


@in_loop
async def test_what_fails_is_tried_once_and_again_when_it_changed(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    bench.put("b", "1", "bad")
    async with bench.running():
        bench.put("m", "1", "bad")
        for _ in range(4):
            await bench.repository.look_again()
        assert len(bench.log.events("model.swap_failed")) == 1
        assert [event["to"] for event in bench.log.events("model.state") if event["model"] == "b"] == [
            "loading",
            "failed",
        ]
        assert bench.answering == {"m": "one"}
        bench.put("m", "1", "two")
        bench.put("b", "1", "good")
        await bench.look_twice()
        assert bench.answering == {"m": "two", "b": "good"}
        assert bench.models.find("m").reason == ""


@in_loop
async def test_a_new_version_that_fails_leaves_the_one_before(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "2", "bad")
        await bench.look_twice()
        assert (bench.states, bench.answering) == ({"m@2": State.FAILED, "m@1": State.WARM}, {"m": "one"})


@in_loop
async def test_a_description_that_cannot_be_read_changes_nothing_and_is_told_once(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        (root / "m" / "model.yaml").write_text("version: 1")
        for _ in range(3):
            await bench.repository.look_again()
        assert bench.answering == {"m": "one"}
        assert bench.models.find("m").reason.startswith("what is in the repository cannot be read: ")
        assert bench.models.find("m").report().reason == bench.models.find("m").reason[:500]
        (refused,) = bench.log.events("model.refused")
        assert refused["reason"].startswith(f"{root}/m/model.yaml: Object contains unknown field")
        (root / "m" / "model.yaml").write_text("versions: all")
        bench.put("m", "2", "two")
        await bench.look_twice()
        assert bench.engine.open == ["one", "two"]
        assert bench.models.refused == {}
        assert {replica.reason for replica in bench.models} == {""}


BREAKING = ("labels: 2026-13-45", "engine: &a {inputs: *a}", "engine: {session: {~: 1}}", "x: !!int ''")


def put_broken(bench: Bench) -> set[str]:
    """Put models that cannot be read, each in another way, and return their names."""
    for number, text in enumerate(BREAKING):
        bench.put(f"b{number}", "1", "unread")
        (bench.root / f"b{number}" / "1" / "model.yaml").write_text(text)
    bench.put("named", "1", "unread")
    Path(os.fsdecode(os.fsencode(bench.root) + b"/named/1/caf\xe9.txt")).write_text("x")
    return {*(f"b{number}" for number in range(len(BREAKING))), "named"}


@in_loop
async def test_models_that_cannot_be_read_hurt_no_other(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        broken = put_broken(bench)
        bench.put("m", "1", "two")
        await bench.look_twice()
        assert bench.answering == {"m": "two"}
        assert bench.models.refused.keys() == broken
        assert len(bench.log.events("model.refused")) == len(broken)


@in_loop
async def test_the_index_names_each_model_that_cannot_be_read(root: Path) -> None:
    bench = Bench(root, Control.EXPLICIT, startup=("m",))
    bench.put("m", "1", "one")
    async with bench.running():
        broken = put_broken(bench)
        index = await bench.repository.index()
        assert {entry.name for entry in index if entry.reason} == broken
        "".join(entry.reason for entry in index).encode()
        assert bench.answering == {"m": "one"}


@in_loop
async def test_a_repository_that_may_not_be_looked_at_is_told_of_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", _refuse)
            for _ in range(3):
                await bench.look_twice()
        (told,) = bench.log.events("repository.unreadable")
        assert told["error"] == f"{root}: Permission denied; let the worker's user read it"
        await bench.look_twice()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", _refuse)
            await bench.look_twice()
        assert len(bench.log.events("repository.unreadable")) == 2
        assert bench.answering == {"m": "one"}


def _refuse(path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@in_loop
async def test_a_model_that_never_could_be_read_is_forgotten_with_its_directory(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    (root / "broken" / "v1").mkdir(parents=True)
    async with bench.running():
        await bench.repository.look_again()
        assert list(bench.models.refused) == ["broken"]
        shutil.rmtree(root / "broken")
        await bench.look_twice()
        assert bench.models.refused == {}


@in_loop
async def test_a_directory_with_a_name_that_no_model_may_have_is_told_of_once_and_in_the_index(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.put("m", "1", "one")
    latin = os.fsdecode(b"caf\xe9")
    async with bench.running():
        for name in ("bad name", latin):
            bench.put(name, "1", "unread")
        for _ in range(3):
            await bench.repository.look_again()
        rule = "use 1 to 128 of A-Z a-z 0-9 . _ : -"
        assert {entry.name: entry.reason for entry in await bench.repository.index()} == {
            "m": "",
            "bad name": f"{root}/bad name: name 'bad name': {rule}",
            "caf\\udce9": f"{root}/caf\\udce9: name 'caf\\udce9': {rule}",
        }
        assert len(bench.log.events("model.refused")) == 2
        (root / "bad name").rename(root / "good-name")
        shutil.rmtree(root / latin)
        await bench.look_twice()
        assert bench.answering == {"m": "one", "good-name": "unread"}
        assert bench.models.refused == {}


@in_loop
async def test_a_repository_that_cannot_be_looked_at_changes_nothing(root: Path) -> None:
    bench = Bench(root / "models", Control.POLL)
    bench.put("m", "1", "one")
    async with bench.running():
        (root / "models").rename(root / "elsewhere")
        await bench.look_twice()
        assert bench.answering == {"m": "one"}
        assert "not a directory" in bench.log.events("repository.unreadable")[0]["error"]


@in_loop
async def test_polling_looks_when_its_time_has_come(root: Path) -> None:
    bench = Bench(root, Control.POLL)
    bench.repository._behaviour = Behaviour(Control.POLL, poll_s=0.01)
    bench.put("m", "1", "one")
    async with bench.running():
        bench.put("m", "1", "two")
        await until(lambda: bench.answering == {"m": "two"}, "the new content")
