from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.up.announce import Places, WorkerPlace
from sidecar.up.janitor import Identity
from sidecar.up.ready_file import ReadyFile, ReadyFileError

PLACES = Places("a:1", "a:2", "s", "r", "d", "q", (WorkerPlace("worker-1", 7, "u"),), 1, 2, (3, 4), 4, 5)


class Noted:
    """Stands in for the janitor: what it was told, and whether the file was under its name by then."""

    def __init__(self) -> None:
        self.files: list[tuple[Path, bool]] = []

    def file(self, path: Path, known: Identity) -> None:
        self.files.append((path, path.exists()))


def write(path: Path) -> tuple[ReadyFile, Noted]:
    file, noted = ReadyFile(path), Noted()
    file.check()
    file.write(PLACES, noted)  # type: ignore[arg-type]  # a double
    return file, noted


def test_the_janitor_knows_before_the_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    file, noted = write(path)
    (part, _), last = noted.files
    assert last == (path, False)
    assert part.parent == tmp_path
    content = json.loads(path.read_bytes())
    assert content["workers"] == [{"id": "worker-1", "pid": 7, "address": "u"}]
    assert content["data_pids"] == [3, 4]
    assert list(tmp_path.iterdir()) == [path]
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_before_is_replaced_only_by_writing(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("of before")
    ReadyFile(path).remove()
    assert path.read_text() == "of before"
    file, _ = write(path)
    assert json.loads(path.read_bytes())["listen"] == "a:1"
    file.remove()
    assert not path.exists()


def test_what_somebody_else_put_there_since_stays(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    file, _ = write(path)
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "theirs").replace(path)
    file.remove()
    assert path.read_text() == "theirs"


def test_other_processes_are_written_where_the_file_still_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    file, noted = write(path)
    other = replace(PLACES, redis_pid=9)
    file.write_again(other, noted)  # type: ignore[arg-type]  # a double
    assert json.loads(path.read_bytes())["redis_pid"] == 9
    path.unlink()
    file.write_again(PLACES, noted)  # type: ignore[arg-type]
    assert not path.exists()
    path.write_text("somebody else's")
    file.write_again(PLACES, noted)  # type: ignore[arg-type]
    assert path.read_text() == "somebody else's"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("directory", "is a directory"),
        ("link", "exists and is not a regular file"),
        ("dangling", "exists and is not a regular file"),
        ("absent/ready.json", "its directory does not exist"),
        ("file/ready.json", "Not a directory"),
    ],
)
def test_other_places_are_refused_and_left_as_they_are(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ReadyFileError) as caught:
        ReadyFile(tmp_path / name).check()
    assert str(caught.value) == (
        f"--ready-file {tmp_path / name}: {why}; name a file that warmroute may write and remove"
    )
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.mkdir()  # since it was checked
    with pytest.raises(ReadyFileError, match="Is a directory"):
        ReadyFile(path).write(PLACES, Noted())  # type: ignore[arg-type]  # a double
    assert list(tmp_path.iterdir()) == [path]
