from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.up.announce import Places, WorkerPlace, tries, write_request
from sidecar.up.sample import magika_features, sample_request

MAGIKA: dict[str, Any] = {
    "name": "magika",
    "inputs": [{"name": "bytes", "datatype": "INT32", "shape": [-1, 2048]}],
    "outputs": [{"name": "target_label", "datatype": "FP32", "shape": [-1, 214]}],
}
JSON = "-H 'content-type: application/json'"
PLACES = Places(
    listen="127.0.0.1:8080",
    admin="127.0.0.1:9901",
    admin_socket="/run/admin.sock",
    redis_socket="/run/state.sock",
    run_dir="/run",
    request="/run/request.json",
    workers=(WorkerPlace("worker-1", 7, "http://127.0.0.1:9001"),),
    sidecar_pid=1,
    control_pid=2,
    data_pids=(3, 4),
    redis_pid=5,
    janitor_pid=6,
)


def test_a_short_file_is_padded_in_the_middle() -> None:
    features = magika_features(b"  hello\n\n")
    assert len(features) == 2048
    assert bytes(features[:7]) == b"hello\n\n"  # the begin keeps what follows
    assert set(features[7:1024]) == {256}
    assert set(features[1024:-7]) == {256}
    assert bytes(features[-7:]) == b"  hello"  # the end keeps what precedes


def test_a_long_file_gives_its_first_and_last_kilobyte_of_content() -> None:
    content = b"\n" * 100 + bytes(range(33, 127)) * 100 + b" " * 50
    features = magika_features(content)
    assert bytes(features[:1024]) == content.strip()[:1024]
    assert bytes(features[1024:]) == content.strip()[-1024:]


def test_an_empty_file_is_all_padding() -> None:
    assert set(magika_features(b"")) == {256}


def test_whitespace_is_looked_through_for_four_kilobytes_only() -> None:
    assert magika_features(b" " * 4096 + b"x")[:1024] == [256] * 1024


def test_the_demo_model_is_asked_for_classes_of_a_real_file(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_bytes(b"# warmroute\n")
    request = sample_request(MAGIKA, file)
    (tensor,) = request["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("bytes", "INT32", [1, 2048])
    assert bytes(tensor["data"][:11]) == b"# warmroute"
    assert request["outputs"] == [{"name": "target_label", "parameters": {"classification": 3}}]


@pytest.mark.parametrize(
    ("datatype", "shape", "zeros"),
    [("FP32", [-1, 2, 3], [0] * 6), ("BYTES", [2], ["", ""]), ("BOOL", [-1], [False]), ("INT64", [], [0])],
)
def test_other_models_get_zeros_of_their_shape(datatype: str, shape: list[int], zeros: list[object]) -> None:
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": datatype, "shape": shape}]}
    (tensor,) = sample_request(metadata, Path("unused"))["inputs"]
    assert tensor["data"] == zeros
    assert tensor["shape"] == [max(size, 1) for size in shape]


def test_a_model_of_the_same_name_with_another_input_is_not_taken_for_the_demo_model() -> None:
    metadata = MAGIKA | {"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [-1, 4]}]}
    assert sample_request(metadata, Path("unused"))["inputs"][0]["data"] == [0] * 4


def test_what_to_try_is_three_lines_that_can_be_pasted() -> None:
    lines = list(tries(PLACES, MAGIKA, Path("/here/README.md")))
    assert lines == [
        (
            "what kind of file is README.md?",
            f"curl -sw '\\n' http://127.0.0.1:8080/v2/models/magika/infer {JSON} -d @/run/request.json",
        ),
        (
            "where requests go: the weights, and why",
            "curl -s http://127.0.0.1:9901/routes | python3 -m json.tool",
        ),
        ("is it ready?", r"curl -sw '\n' http://127.0.0.1:9901/readyz"),
    ]


def test_the_request_file_is_the_request(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"x")
    write_request(tmp_path / "request.json", MAGIKA, file)
    assert json.loads((tmp_path / "request.json").read_bytes()) == sample_request(MAGIKA, file)
