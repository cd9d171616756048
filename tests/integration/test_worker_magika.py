"""The worker on the demo's real model, where it has been fetched (``make demo`` does, by tools/fetch_demo_model.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.worker_process import WorkerProcess

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
PADDING = 256


@pytest.mark.skipif(not (MODELS / "magika" / "1" / "model.onnx").is_file(), reason="the demo model was not fetched")
def test_it_tells_python_from_json() -> None:
    def tensor(content: bytes) -> list[int]:
        stripped = content.strip()
        begin, end = stripped[:1024], stripped[-1024:]
        padding_begin, padding_end = [PADDING] * (1024 - len(begin)), [PADDING] * (1024 - len(end))
        return [*begin, *padding_begin, *padding_end, *end]

    source = Path(__file__).read_bytes()
    table = b'{"a": [1, 2, 3], "b": {"c": "text", "d": null}}\n' * 40
    with WorkerProcess("--models", str(MODELS), "--model", "magika") as worker:
        worker.listening()
        worker.warm("magika")
        metadata = worker.ask("/v2/models/magika")[1]
        assert metadata["inputs"] == [{"name": "bytes", "datatype": "INT32", "shape": [-1, 2048]}]
        status, answer, _ = worker.ask(
            "/v2/models/magika/infer",
            {
                "inputs": [
                    {"name": "bytes", "datatype": "INT32", "shape": [2, 2048], "data": [tensor(source), tensor(table)]}
                ],
                "outputs": [{"name": "target_label", "parameters": {"classification": 1}}],
            },
        )
        assert status == 200
        (output,) = answer["outputs"]
        assert output["shape"] == [2, 1]
        assert [text.split(":")[2] for text in output["data"]] == ["python", "jsonl"]
