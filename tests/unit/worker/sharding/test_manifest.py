"""Splits as manifest.json describes them: all parts together are the whole, and what does not fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tensors import arrays, write_onnx, write_safetensors
from worker.bench.synthetic import write_model
from worker.sharding import ShardError, onnx_file, safetensors
from worker.sharding.manifest import (
    Manifest,
    all_bytes,
    make_manifest,
    read_manifest,
    shard_bytes,
    tensors_of,
    write_manifest,
)
from worker.sharding.reading import ShardWeights, read_shard
from worker.sharding.rules import Rule, split_for
from worker.sharding.tensors import TensorInfo, bytes_of

READERS = (("*.safetensors", safetensors.read_tensors), ("*.onnx", onnx_file.read_tensors))


def split(directory: Path, shards: int = 4, *rules: Rule) -> Manifest:
    manifest = make_manifest(directory, tensors_of(directory, READERS), shards, rules)
    write_manifest(manifest, directory)
    assert read_manifest(directory) == manifest
    return manifest


def joined(manifest: Manifest, held: list[ShardWeights]) -> dict[str, np.ndarray[Any, Any]]:
    """Return what the shards make together: joined along the dimension they are split on, the padding cropped."""
    whole = {}
    for tensor in manifest.tensors:
        parts = [weights.arrays[tensor.name] for weights in held]
        if tensor.dim is None:
            assert all((part == parts[0]).all() for part in parts)
            whole[tensor.name] = parts[0]
        else:
            pieces = [np.split(part, tensor.parts, axis=tensor.dim) for part in parts]
            each, padded = tensor.shape[tensor.dim] // tensor.parts, 0
            cropped = []
            for of_one in zip(*pieces, strict=True):  # a part of the tensor, from all shards
                everything = np.concatenate(of_one, axis=tensor.dim)
                padded += everything.shape[tensor.dim]
                kept, padding = np.split(everything, [each], axis=tensor.dim)
                assert not padding.any()
                cropped.append(kept)
            assert padded == tensor.padded
            whole[tensor.name] = np.concatenate(cropped, axis=tensor.dim)
    return whole


@pytest.mark.parametrize("kind", ["safetensors", "safetensors, odd offsets", "onnx", "onnx beside"])
def test_all_shards_together_are_the_whole(tmp_path: Path, kind: str) -> None:
    wanted = arrays()
    if kind.startswith("safetensors"):
        write_safetensors(tmp_path / "model.safetensors", wanted, 8 if kind == "safetensors" else 1)
    else:
        write_onnx(tmp_path / "model.onnx", wanted, "model.data" if kind == "onnx beside" else None)
    manifest = split(tmp_path)
    assert [tensor.dim for tensor in manifest.tensors] == [0, 0, 1, 0, None]
    held = [read_shard(tmp_path, manifest, shard) for shard in range(4)]
    assert held[0].arrays["h.0.attn.q_proj.weight"].shape == (16, 32)
    assert held[0].arrays["h.0.mlp.up_proj.weight"].shape == (32, 23)
    for name, array in joined(manifest, held).items():
        assert (array == wanted[name]).all(), name
    assert len({weights.content_hash for weights in held}) == 4
    for weights in held:
        weights.close()


@given(st.integers(2, 9), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40))
def test_parts_cover_a_dimension_once(shards: int, times: int, rows: int, columns: int) -> None:
    for name, shape, dim in (
        ("q_proj.weight", (shards * times, columns), 0),
        ("up_proj.weight", (rows, columns), 1),
        ("up_proj.bias", (columns,), 0),
    ):
        found = split_for(TensorInfo(name, "F16", shape, Path("f"), 0, bytes_of("F16", shape)), shards)
        assert found.dim == dim
        assert found.padded % shards == 0
        assert 0 <= found.padded - shape[dim] < shards
        parts = [found.part(shard, shards) for shard in range(shards)]
        assert [index for begin, end in parts for index in range(begin, end)] == list(range(shape[dim]))


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("model.layers.3.self_attn.q_proj.weight", 0),
        ("encoder.layer.0.attention.self.query.weight", 0),
        ("decoder.block.0.layer.0.SelfAttention.q.weight", 0),
        ("model.layers.0.attn.q_proj.MatMul.weight", 0),
        ("/model/layers.0/self_attn/q_proj/MatMul_weight", 0),
        ("model.layers.3.self_attn.q_proj.weight_quantized", 0),
        ("transformer.h.0.attn.c_proj.weight", 1),
        ("transformer.h.0.mlp.c_proj.weight", 0),
        ("gpt_neox.layers.0.attention.query_key_value.weight", 0),
        ("model.layers.3.mlp.up_proj.weight", 1),
        ("model.layers.3.mlp.gate_proj.weight", 1),
        ("bert.encoder.layer.0.intermediate.dense.weight", 1),
        ("transformer.h.0.mlp.c_fc.weight", 1),
        ("model.layers.3.mlp.down_proj.weight", 0),
        ("bert.encoder.layer.0.output.dense.weight", 0),
        ("model.layers.3.self_attn.o_proj.weight", 1),
        ("bert.encoder.layer.0.attention.output.dense.weight", 1),
        ("model.embed_tokens.weight", 0),
        ("lm_head.weight", 0),
        ("model.position_embeddings", None),
        ("model.layers.3.input_layernorm.weight", None),
        ("monkey.weight", None),
        ("setup_projection.weight", None),
        ("model.layers.3.self_attn.q_norm.weight", None),
        ("model.layers.3.self_attn.k_norm.weight", None),
        ("model.layers.3.self_attn.q_a_proj.weight", None),
        ("model.layers.3.self_attn.q_a_layernorm.weight", None),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", None),
        ("model.layers.3.self_attn.q_proj.lora_A.weight", None),
        ("model.layers.3.self_attn.query.norm.weight", None),
        ("model.layers.3.mlp.gate.weight", None),
        ("model.layers.3.block_sparse_moe.gate.weight", None),
        ("model.layers.3.mlp.shared_expert_gate.weight", None),
        ("model.layers.3.mlp.experts.0.gate_proj.weight", 1),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", 1),
        ("text_model.embeddings.position_embedding.weight", None),
        ("transformer.embedding.position_embeddings.weight", None),
        ("transformer.embedding.word_embeddings.weight", 0),
        ("decoder.up.0.weight", None),
        ("backbone.layers.0.mixer.in_proj.weight", None),
    ],
)
def test_layers_are_known_by_their_names(name: str, dim: int | None) -> None:
    assert split_for(TensorInfo(name, "F32", (8, 8), Path("f"), 0, 256), 4).dim == dim


def test_a_norm_of_a_head_is_whole_for_any_number_of_shards() -> None:
    assert split_for(TensorInfo("h.0.self_attn.q_norm.weight", "F32", (16,), Path("f"), 0, 64), 64).dim is None


@pytest.mark.parametrize(
    ("name", "shape", "dim", "parts"),
    [
        ("h.0.attn.qkv.weight", (192, 64), 0, 3),
        ("h.0.self_attn.in_proj_weight", (192, 64), 0, 3),
        ("h.0.self_attn.in_proj_bias", (192,), 0, 3),
        ("h.0.attn.Wqkv.weight", (192, 64), 0, 3),
        ("h.0.attn.c_attn.weight", (64, 192), 1, 3),
        ("h.0.attn.c_attn.bias", (192,), 0, 3),
        ("h.0.mlp.gate_up_proj.weight", (64, 60), 1, 2),  # halves of 30, which 4 shards do not divide
        ("h.0.mlp.gate_up_proj.bias", (60,), 0, 2),
    ],
)
def test_each_of_what_lies_in_one_tensor_is_split(
    tmp_path: Path, name: str, shape: tuple[int, ...], dim: int, parts: int
) -> None:
    wanted = {name: np.random.default_rng(1).random(shape, np.float32)}
    write_safetensors(tmp_path / "model.safetensors", wanted)
    manifest = split(tmp_path)
    assert [(tensor.dim, tensor.parts) for tensor in manifest.tensors] == [(dim, parts)]
    held = [read_shard(tmp_path, manifest, shard) for shard in range(4)]
    assert (joined(manifest, held)[name] == wanted[name]).all()
    for shard, weights in enumerate(held):
        pieces = np.split(weights.arrays[name], parts, axis=dim)
        for piece, part in zip(pieces, np.split(wanted[name], parts, axis=dim), strict=True):
            width = piece.shape[dim]
            mine = np.take(part, range(shard * width, min((shard + 1) * width, part.shape[dim])), axis=dim)
            assert (np.take(piece, range(mine.shape[dim]), axis=dim) == mine).all()


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        (
            "h.qkv_proj.weight",
            (96, 64),
            r"query, key and value in one, and \[96, 64\] does not tell where each ends, as no",
        ),
        ("h.qkv_proj.bias", (64,), r"query, key and value in one, and \[64\] does not tell"),
        ("h.qkv_proj.weight", (18, 6), r"6 output channels of each of 3 parts .dimension 0. are not divisible by 4"),
        ("h.gate_up_proj.weight", (8, 7), r"7 .dimension 1. is not 2 equal parts; store them apart, or keep it whole"),
    ],
)
def test_what_cannot_be_split_in_its_parts_is_refused_with_the_layer(
    name: str, shape: tuple[int, ...], text: str
) -> None:
    tensor = TensorInfo(name, "F32", shape, Path("f"), 0, bytes_of("F32", shape))
    with pytest.raises(ShardError, match=f"^layer '{name}': (has )?{text}"):
        split_for(tensor, 4)
    assert split_for(tensor, 4, [Rule("proj", None)]).dim is None
    assert split_for(tensor, 4, [Rule("proj", 0, pad=True, parts=1)]).parts == 1


def test_a_bias_that_is_added_to_the_sum_is_whole() -> None:
    for name, dim in (("h.mlp.down_proj.bias", None), ("h.attn.o_proj.bias", None), ("h.attn.q_proj.bias", 0)):
        assert split_for(TensorInfo(name, "F32", (8,), Path("f"), 0, 32), 4).dim == dim


@pytest.mark.parametrize("shards", [2, 4])
def test_no_shard_of_a_transformer_reads_more_than_its_part_and_a_tenth(tmp_path: Path, shards: int) -> None:
    write_model(tmp_path, 2 << 20)
    manifest = split(tmp_path, shards)
    for shard in range(shards):
        assert shard_bytes(manifest, shard) <= (1 / shards + 0.10) * all_bytes(manifest)
        assert read_shard(tmp_path, manifest, shard).bytes >= shard_bytes(manifest, shard)


def test_rules_of_ones_own_come_first() -> None:
    tensor = TensorInfo("h.q_proj.weight", "F32", (6, 8), Path("f"), 0, 192)
    assert split_for(tensor, 4, [Rule("q_proj", None)]).dim is None
    assert split_for(tensor, 4, [Rule("q_proj", 1)]).dim == 1
    assert split_for(tensor, 4, [Rule("q_proj", 0, True)]).padded == 8
    with pytest.raises(ShardError, match=r"rules: match: '[(]': missing"):
        split_for(tensor, 4, [Rule("(", 0)])


@pytest.mark.parametrize("pad", [1, 8])
def test_scalars_are_read(tmp_path: Path, pad: int) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"scale": np.array(0.5, np.float32)}, pad)
    (scale,) = read_shard(tmp_path, split(tmp_path, 2), 1).arrays.values()
    assert (scale.shape, float(scale)) == ((), 0.5)


def test_output_channels_that_do_not_divide_are_refused_with_the_layer(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", arrays(heads=66))
    with pytest.raises(ShardError, match=r"layer 'h.0.attn.q_proj.weight': 66 output channels .* 4 shards; take a"):
        split(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_a_shard_with_nothing_but_padding_reads_nothing(tmp_path: Path) -> None:
    wanted = {"up_proj.weight": np.arange(10, dtype=np.float32).reshape(2, 5)}
    write_safetensors(tmp_path / "model.safetensors", wanted)
    manifest = split(tmp_path, 4)
    assert [shard_bytes(manifest, shard) for shard in range(4)] == [16, 16, 8, 0]
    held = [read_shard(tmp_path, manifest, shard) for shard in range(4)]
    assert (joined(manifest, held)["up_proj.weight"] == wanted["up_proj.weight"]).all()


def test_several_files_are_one_model_and_a_name_stands_once(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-1.safetensors", {"a": np.zeros(4, np.float32)})
    write_safetensors(tmp_path / "model-2.safetensors", {"b": np.ones(4, np.float32)})
    assert all_bytes(split(tmp_path, 2)) == 32
    write_safetensors(tmp_path / "model-3.safetensors", {"a": np.ones(4, np.float32)})
    with pytest.raises(ShardError, match=r"model-3.safetensors: tensor 'a' stands in another file, too"):
        tensors_of(tmp_path, READERS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardError, match=r"no weights: [*].safetensors or [*].onnx is needed"):
        tensors_of(tmp_path / "empty", READERS)


def test_a_changed_slice_is_refused_and_other_shards_go_on(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"q_proj.weight": np.ones((4, 4), np.float32)})
    manifest = split(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"tensor 'q_proj.weight': its bytes have the hash .*: the file was changed"):
        read_shard(tmp_path, manifest, 1)
    assert read_shard(tmp_path, manifest, 0).bytes == 32


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_shard_that_is_refused_has_nothing_mapped_however_long_its_error_is_kept(tmp_path: Path) -> None:
    path, maps = tmp_path / "model.safetensors", Path("/proc/self/maps")
    write_safetensors(path, {name: np.ones((4, 4), np.float32) for name in ("k_proj.weight", "q_proj.weight")})
    manifest = split(tmp_path, 2)
    held = read_shard(tmp_path, manifest, 1)
    assert str(path) in maps.read_text()
    held.close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError) as kept:
        read_shard(tmp_path, manifest, 1)
    assert kept.value.__traceback__ is not None, "it has what it went through"
    assert str(path) not in maps.read_text()


def test_a_cut_or_missing_file_and_a_shard_that_is_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, arrays())
    manifest = split(tmp_path)
    with pytest.raises(ShardError, match=r"shard 4: .* has 0 to 3"):
        read_shard(tmp_path, manifest, 4)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ShardError, match=r"ends at byte \d+ of model.safetensors, which has \d+: it was cut"):
        read_manifest(tmp_path)
    with pytest.raises(ShardError, match=r"the file ends before byte|the file ends at byte"):
        read_shard(tmp_path, manifest, 3)
    path.unlink()
    with pytest.raises(ShardError, match="No such file"):
        read_shard(tmp_path, manifest, 0)
    with pytest.raises(ShardError, match="No such file"):
        read_manifest(tmp_path)


class LeftError(Exception):
    pass


def test_reading_can_be_given_up_and_tells_its_progress(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", arrays())
    manifest = split(tmp_path)
    told: list[tuple[int, int]] = []
    read_shard(tmp_path, manifest, 1, read=lambda *step: told.append(step))
    total = shard_bytes(manifest, 1)
    assert (told[0], told[-1]) == ((0, total), (total, total))

    def give_up() -> None:
        raise LeftError

    with pytest.raises(LeftError):
        read_shard(tmp_path, manifest, 1, go_on=give_up)


SLICE = {"file": "w", "offset": 0, "bytes": 16, "dtype": "F32", "shape": [4], "hash": "0" * 32}


@pytest.mark.parametrize(
    ("slices", "text"),
    [
        ([{**SLICE, "shard": 0}], "tensor 't': slices of 1 shards, not of 2"),
        ([{**SLICE, "file": "../w"}], "file '../w': must be a path within the version's directory"),
        ([{**SLICE, "file": "gone"}], "gone: No such file"),
        ([{**SLICE, "offset": 8}], "ends at byte 24 of w, which has 16: it was cut"),
        ([{**SLICE, "dtype": "F7"}], "dtype 'F7': known: BOOL"),
        ([{**SLICE, "shape": [3]}], r"16 bytes in 1 rows do not fit F32 \[3\]"),
        ([{**SLICE, "rows": 2, "stride": 4}], "16 bytes in 2 rows do not fit"),
        ([{**SLICE, "rows": 0}], "Expected `int` >= 1"),
        ([{**SLICE, "hash": "no"}], "matching regex"),
        ([{**SLICE, "more": 1}], "unknown field `more`"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, slices: list[dict[str, Any]], text: str) -> None:
    (tmp_path / "w").write_bytes(bytes(16))
    tensor = {"name": "t", "dtype": "F32", "shape": [4], "slices": slices}
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode({"version": 1, "shards": 2, "tensors": [tensor]}))
    with pytest.raises(ShardError, match=f"manifest.json: .*{text}"):
        read_manifest(tmp_path)


def test_another_version_of_the_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 2, "shards": 2, "tensors": []}')
    with pytest.raises(ShardError, match="version 2: this is for version 1"):
        read_manifest(tmp_path)


READ_ONE = """
import sys
from pathlib import Path
from worker.sharding.manifest import read_manifest
from worker.sharding.reading import read_shard

def peak_kib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

directory = Path(sys.argv[1])
manifest = read_manifest(directory)
before = peak_kib()
held = read_shard(directory, manifest, 1)
print((peak_kib() - before) * 1024, held.bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("layer", ["q_proj", "up_proj"])
def test_the_peak_memory_of_one_shard_is_its_part(tmp_path: Path, layer: str) -> None:
    whole = {f"h.{number}.{layer}.weight": np.ones((1024, 2048), np.float32) for number in range(4)}  # 32 MiB
    write_safetensors(tmp_path / "model.safetensors", whole)
    manifest = split(tmp_path, 4)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    took, held = map(int, done.stdout.split())
    assert held == all_bytes(manifest) // 4
    assert took <= (1 / 4 + 0.10) * all_bytes(manifest)


CUT_WHILE_READ = """
import os, sys
from pathlib import Path
from worker.sharding import ShardError
from worker.sharding.manifest import read_manifest
from worker.sharding.reading import read_shard

path = Path(sys.argv[1]) / "model.safetensors"
try:
    read_shard(path.parent, read_manifest(path.parent), 1, read=lambda *_: os.truncate(path, 4096))
except ShardError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS")
def test_a_file_that_is_cut_while_it_is_hashed_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    length = 4 << 30  # takes no room, and to hash its half takes a while
    head = json.dumps({"q_proj.weight": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + length)
    half = {"file": path.name, "bytes": length // 2, "dtype": "U8", "shape": [length // 2], "hash": "0" * 32}
    slices = [{**half, "shard": shard, "offset": 8 + len(head) + shard * length // 2} for shard in range(2)]
    tensor = {"name": "q_proj.weight", "dtype": "U8", "shape": [length], "dim": 0, "padded": length, "slices": slices}
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "shards": 2, "tensors": [tensor]}))
    done = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_READ, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.safetensors: tensor 'q_proj.weight': the file ends at byte" in done.stdout
