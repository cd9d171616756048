"""Generate the Python code of ``proto/**/*.proto`` beside the definitions; ``--check`` says whether it is fresh."""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent / "proto"
KINDS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(out: Path) -> list[Path]:
    """Write the generated modules under ``out``; returns their paths relative to it. Raises SystemExit on bad input."""
    sources = sorted(ROOT.rglob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *map(str, sources),
        ]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}")
    stems = [source.relative_to(ROOT).with_suffix("") for source in sources]
    return [stem.with_name(stem.name + kind) for stem in stems for kind in KINDS]


def stale() -> list[str]:
    """Return what in the tree differs from what the definitions generate now, or is there without a definition."""
    with tempfile.TemporaryDirectory() as directory:
        made = generate(Path(directory))
        findings = [
            f"{name}: differs from its definition"
            for name in made
            if not (ROOT / name).is_file() or (ROOT / name).read_bytes() != (Path(directory) / name).read_bytes()
        ]
    known = {ROOT / name for name in made}
    findings += [
        f"{path.relative_to(ROOT)}: has no definition"
        for path in ROOT.rglob("*_pb2*")
        if path.suffix in {".py", ".pyi"} and path not in known
    ]
    return findings


def main(argv: list[str]) -> int:
    """Generate, or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the tree is not fresh")
    if not parser.parse_args(argv).check:
        generate(ROOT)
        return 0
    findings = stale()
    for finding in findings:
        sys.stderr.write(f"{finding}; run python tools/gen_proto.py\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
