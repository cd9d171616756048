from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import EngineError
from worker.engines.registry import EngineKind, EngineSettings, find_kind, make_engine

MODULE = """
from worker.engines.deterministic import DeterministicEngine
from worker.engines.registry import EngineKind

KIND = EngineKind("another_package", None, factory="made")
WRONG = 7


def made(settings):
    return DeterministicEngine(settings.load_s, settings.service_s)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with engines, as pip would have installed it."""
    (tmp_path / "another_package.py").write_text(MODULE)
    about = tmp_path / "another_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: another-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[warmroute.engines]\n"
        "another = another_package:KIND\n"
        "wrong = another_package:WRONG\n"
        "broken = another_package:NONE\n"
        "onnxruntime = another_package:KIND\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "another_package", raising=False)


@pytest.mark.usefixtures("package")
def test_another_package_brings_an_engine() -> None:
    kind = find_kind("another")
    assert (kind.module, kind.file_name, kind.factory) == ("another_package", None, "made")
    assert type(make_engine("another", EngineSettings(ReadableLog()))).__name__ == "DeterministicEngine"
    assert find_kind("onnxruntime").module == "worker.engines.onnx_runtime", "a built-in one cannot be taken over"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "none",
            "engine 'none': there is none; known: onnxruntime, deterministic, torchscript, torchexport, another, ",
        ),
        ("wrong", "engine 'wrong': another_package:WRONG is no worker.engines.registry.EngineKind"),
        ("broken", "engine 'broken': another_package:NONE: AttributeError: module 'another_package' has no"),
    ],
)
def test_what_cannot_be_had(name: str, error: str) -> None:
    with pytest.raises(EngineError) as caught:
        find_kind(name)
    assert str(caught.value).startswith(error)


def test_what_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = EngineKind("no_such_module", "model.x", extra="warmroute[x]")
    monkeypatch.setitem(__import__("worker.engines.registry").engines.registry.ENGINES, "x", kind)
    with pytest.raises(EngineError) as caught:
        make_engine("x", EngineSettings(ReadableLog()))
    assert str(caught.value) == "engine 'x': No module named 'no_such_module'; install warmroute[x]"
