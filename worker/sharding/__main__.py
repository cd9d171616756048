"""``python -m worker.sharding``: split a model over several workers; ``warmroute models`` hands over to it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from worker.engines import Cancellation
from worker.flag_types import number
from worker.loading import LoadError, StrategyName
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import MAX_THREADS, ModelLoader
from worker.loading.settings import SHARED_MEMORY
from worker.loading.sums import compare_aside, make_sums, read_sums, write_sums
from worker.loading.version_files import SUMS, version_files
from worker.log import EventLog
from worker.memory import HostMemory
from worker.sharding import ShardError, onnx_file, safetensors
from worker.sharding.choosing import Cost, choose_shards, pareto, shards_for, table
from worker.sharding.manifest import all_bytes, make_manifest, shard_bytes, tensors_of, write_manifest
from worker.sharding.rules import Rule
from worker.stages import Stages
from worker.store import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.sharding.manifest import Manifest

_READERS = (("*.safetensors", safetensors.read_tensors), ("*.onnx", onnx_file.read_tensors))
_COST = re.compile(r"([0-9]{1,9}):([0-9]{1,9}(?:\.[0-9]{1,9})?):([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
MOST_RULES_BYTES = 1 << 20
MOST_FLOPS = 1e24
MOST_RTT_MS = 60_000.0


class _Rules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    rules: tuple[Rule, ...]


def main(argv: list[str]) -> int:
    """Run a command; returns 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="warmroute models",
        description="Split models over workers, read them ahead, and write down what they hash to.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shard = commands.add_parser("shard", help="write manifest.json: what each shard of a model reads")
    shard.add_argument("model", help="NAME, NAME@VERSION, or the directory of a version")
    shard.add_argument(
        "--models", type=Path, default=Path("models"), metavar="DIR", help="the model repository (models)"
    )
    shard.add_argument(
        "--rules", type=Path, metavar="FILE", help="YAML with rules of your own: which tensors are split"
    )
    count = shard.add_mutually_exclusive_group(required=True)
    count.add_argument("--shards", type=int, metavar="N", help="how many")
    _add_choice(shard, count)
    shard.set_defaults(run=_shard)
    choose = commands.add_parser("choose-shards", help="recommend a number of shards, and print the table")
    _add_choice(choose, choose.add_mutually_exclusive_group(required=True))
    choose.set_defaults(run=_choose)
    prefetch = commands.add_parser("prefetch", help="read versions into the page cache, and remember what they hash to")
    prefetch.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="a version's directory")
    prefetch.add_argument(
        "--shm-dir", type=Path, default=SHARED_MEMORY, metavar="DIR", help="where hashes are remembered (/dev/shm)"
    )
    prefetch.set_defaults(run=_prefetch)
    sums = commands.add_parser(
        "sums",
        help="write SHA256SUMS, which a worker holds a version's files to; where it is there, hold them to it",
    )
    sums.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="a version's directory")
    sums.add_argument("--replace", action="store_true", help="write it anew where it is there")
    sums.set_defaults(run=_sums)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except (ShardError, LoadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _prefetch(arguments: argparse.Namespace) -> None:
    hashes = HashCache(arguments.shm_dir, EventLog(sys.stderr, json=False))
    loader = ModelLoader(StrategyName.PREFETCH, hashes, HostMemory().read, MAX_THREADS)
    for directory in arguments.directories:
        _check_version(directory)
        began = time.perf_counter()
        files = ModelFiles(directory.name, "1", directory)
        loaded = loader.load(files, lambda *_: None, Cancellation(), Stages())
        took_s = time.perf_counter() - began
        print(f"{directory}: {loaded.bytes_total} bytes in {took_s:.2f} s, content hash {loaded.content_hash}")


def _sums(arguments: argparse.Namespace) -> None:
    shown = sys.stderr.isatty()

    def told(done: int, of: int) -> None:
        if shown:
            print(f"\r{done:,} of {of:,} bytes", end="" if done < of else "\n", file=sys.stderr, flush=True)

    for directory in arguments.directories:
        _check_version(directory)
        files = version_files(directory)
        if not files:
            raise ShardError(f"{directory}: holds no files; name a version's directory, such as models/magika/1")
        path = directory / SUMS
        said = {} if arguments.replace or not path.exists() else read_sums(directory, {})
        found = make_sums(files, MAX_THREADS, told)
        size_bytes = sum(file.size_bytes for file in files)
        if not said:
            write_sums(directory, found)
            print(f"{path}: {len(found)} files, {size_bytes:,} bytes")
            continue
        for file in files:
            if file.name not in said:
                raise ShardError(f"{file.path}: {path} has no line for it; add one, or write it anew with --replace")
            said[file.name].compare(file.path, found[file.name])
        for name in sorted(said.keys() - found.keys()):
            compare_aside(directory / name, said[name])  # such as model.yaml, which is no content
        print(f"{path}: {len(said)} files, all as it says")


def _add_choice(parser: argparse.ArgumentParser, group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument(
        "--flops", type=number(0, MOST_FLOPS, above=True), metavar="N", help="operations of one request, with --rtt-ms"
    )
    group.add_argument(
        "--cost",
        action="append",
        type=_cost,
        metavar="SHARDS:COMMUNICATION_MS:COMPUTE_MS",
        help="what was measured with so many shards; may be repeated",
    )
    parser.add_argument(
        "--rtt-ms",
        type=number(0, MOST_RTT_MS, above=True),
        default=0.5,
        metavar="MS",
        help="round trip between shards (0.5)",
    )


def _cost(text: str) -> Cost:
    found = _COST.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: must be like 16:24.7:13.5, of at most nine digits each")
    return Cost(int(found[1]), float(found[2]), float(found[3]))


def _chosen(arguments: argparse.Namespace) -> int:
    if arguments.cost:
        print(table(pareto(arguments.cost)))
        return choose_shards(arguments.cost)
    return shards_for(arguments.flops, arguments.rtt_ms)


def _choose(arguments: argparse.Namespace) -> None:
    print(f"recommended: {_chosen(arguments)} shards")


def _shard(arguments: argparse.Namespace) -> None:
    directory = _directory(arguments.model, arguments.models)
    shards = _chosen(arguments) if arguments.shards is None else arguments.shards
    rules = () if arguments.rules is None else _rules(arguments.rules)
    shown = sys.stderr.isatty()

    def told(name: str, done: int, of: int) -> None:
        if shown:
            print(f"\r{done}/{of} {name[:80]:<80}", end="" if done < of else "\n", file=sys.stderr, flush=True)

    manifest = make_manifest(directory, tensors_of(directory, _READERS), shards, rules, told)
    path = write_manifest(manifest, directory)
    print(_summary(manifest))
    print(f"written: {path}")


def _summary(manifest: Manifest) -> str:
    split = sum(tensor.dim is not None for tensor in manifest.tensors)
    whole = all_bytes(manifest)
    largest = max(shard_bytes(manifest, shard) for shard in range(manifest.shards))
    return (
        f"{manifest.shards} shards of {len(manifest.tensors)} tensors, {split} of them split; "
        f"the largest shard reads {largest:,} of {whole:,} bytes ({largest / max(1, whole):.1%})"
    )


def _directory(model: str, root: Path) -> Path:
    given = Path(model)
    if given.is_dir():
        _check_version(given)
        return given
    name, _, version = model.partition("@")
    where = root / name
    if not where.is_dir():
        raise ShardError(f"{where}: no such model; name one of {root}, or the directory of a version")
    versions = sorted((int(path.name) for path in where.iterdir() if _VERSION.fullmatch(path.name)), reverse=True)
    if version and (not version.isdecimal() or int(version) not in versions):
        raise ShardError(f"{where}: no version {version}; there are {', '.join(map(str, versions)) or 'none'}")
    if not versions:
        raise ShardError(f"{where}: holds no version; add {where}/1/ with the weights in it")
    return where / (version or str(versions[0]))


def _check_version(directory: Path) -> None:
    """Refuse a directory that holds versions, or models with versions, as if it were a version itself.

    Raises:
        ShardError: it does; the text names one to take instead.
    """
    for pattern, what in (("*/", "a model's directory"), ("*/*/", "a model repository")):
        found = sorted(path for path in directory.glob(pattern) if _VERSION.fullmatch(path.name))
        if found:
            raise ShardError(f"{directory}: is {what}, not a version's directory; name one, such as {found[-1]}")


def _rules(path: Path) -> Sequence[Rule]:
    import yaml  # only here: it takes a while

    try:
        if path.stat().st_size > MOST_RULES_BYTES:
            raise ShardError(f"{path}: over {MOST_RULES_BYTES} bytes")
        return msgspec.convert(yaml.safe_load(path.read_bytes()), _Rules).rules
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ShardError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
