"""The janitor that cleans up after ``warmroute up``, on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sidecar.up.janitor import Janitor, identity
from tests.support.sidecars import gone, until

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = """
import json, os, subprocess, sys, time
from pathlib import Path
from sidecar.up.janitor import Janitor, identity
directory, ready = Path(sys.argv[1]), Path(sys.argv[2])
janitor = Janitor(float(sys.argv[3]))
janitor.tree(directory)
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[4]], stdout=subprocess.PIPE)
child.stdout.readline()
janitor.process(child.pid)
part = ready.with_suffix(".part")
part.write_text(json.dumps({"janitor": janitor.pid, "child": child.pid}))
janitor.file(ready, identity(part))
part.replace(ready)
time.sleep(60)
"""


def stubborn() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_a_killed_parent_s_processes_and_files_are_removed(tmp_path: Path) -> None:
    directory, ready = tmp_path / "run", tmp_path / "ready.json"
    (directory / "log").mkdir(parents=True)
    (directory / "log" / "worker.log").write_text("words")
    parent = subprocess.Popen([sys.executable, "-P", "-c", PARENT, str(directory), str(ready), "0.3", STUBBORN])
    try:
        until(lambda: ready.exists() and ready.read_text(), "the parent is up")
        pids = json.loads(ready.read_text())
        os.kill(pids["janitor"], signal.SIGINT)  # what a terminal or an impatient user may send it changes nothing
        os.kill(pids["janitor"], signal.SIGTERM)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: gone(pids["child"]), "the child is killed")
    until(lambda: gone(pids["janitor"]), "the janitor has left")
    assert list(tmp_path.iterdir()) == []


def test_processes_get_their_time_to_leave(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    janitor = Janitor(patience_s=20.0)
    janitor.tree(directory)
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.5)"])
    janitor.process(child.pid)
    janitor.finish()
    assert child.wait() == 0
    assert not directory.exists()


def test_a_process_that_is_gone_already_costs_no_time() -> None:
    began = time.monotonic()
    janitor = Janitor(patience_s=3600.0)
    with stubborn() as process:
        janitor.process(process.pid)
        process.kill()
    janitor.process(process.pid)  # gone: nothing to note
    janitor.finish()
    assert gone(janitor.pid)
    assert time.monotonic() - began < 60.0, "it waited for a process that had left"


def test_only_what_it_was_given_is_removed_and_as_what_it_was_given(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    for directory in (kept, tree):
        directory.mkdir()
        (directory / "content").write_text("of a user")
    link = tmp_path / "link"
    link.symlink_to(kept)
    replaced, edited, ours = (tmp_path / name for name in ("replaced", "edited", "ours"))
    janitor = Janitor(patience_s=0.0)
    for path in (replaced, edited, ours):
        path.write_text("ours")
        janitor.file(path, identity(path))
    (tmp_path / "other").write_text("another program's")
    (tmp_path / "other").replace(replaced)
    edited.write_text("a user's")
    os.utime(edited, ns=(0, 0))
    janitor.file(kept, identity(kept))  # a directory is no file, whatever it was called
    janitor.tree(link)
    janitor.tree(tree)
    janitor.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited", "kept", "link", "replaced"]
    assert (kept / "content").read_text() == "of a user"


def test_who_is_not_named_is_left_alone() -> None:
    janitor = Janitor(patience_s=0.0)
    with stubborn() as named, stubborn() as other:
        try:
            janitor.process(named.pid)
            janitor.finish()
            assert named.wait(10) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()


def test_a_janitor_that_was_killed_does_not_hurt_its_parent(tmp_path: Path) -> None:
    janitor = Janitor(patience_s=0.0)
    os.kill(janitor.pid, signal.SIGKILL)
    until(lambda: gone(janitor.pid), "the janitor is dead")
    janitor.tree(tmp_path)
    janitor.finish()
    assert tmp_path.exists()
