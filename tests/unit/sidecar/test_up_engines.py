"""Which engines may be named: the sidecar knows their names, and imports nothing of the worker's."""

from __future__ import annotations

from sidecar.up.engines import BUILT_IN, GROUP, unknown_engine
from worker.engines import registry


def test_they_are_those_of_the_worker() -> None:
    assert (tuple(registry.ENGINES), registry.GROUP) == (BUILT_IN, GROUP)
    assert [unknown_engine(name) for name in BUILT_IN] == [""] * len(BUILT_IN)


def test_one_that_there_is_not_is_told_with_what_was_meant_or_what_there_is() -> None:
    assert unknown_engine("onnx") == 'no engine has this name; did you mean "onnxruntime"?'
    assert unknown_engine("x").startswith("no engine has this name; there are: onnxruntime, deterministic, torch")
