"""Put the demo model into a model repository: the file type classifier that the ``magika`` wheel ships (Apache-2.0).

Only the files are wanted, not the package, which would pull in a second copy of the runtime: the wheel is downloaded by
pip against the hashes of requirements/demo-model.lock, and three files are written from it. A fourth, source.txt, says
where they come from and what they are: only a directory that is still as that file says is ever replaced or removed.
Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "demo-model.lock"
NAME, VERSION = "magika", "1"
WARMUP = {"batch-1": 1, "batch-8": 8}
SOURCE = "source.txt"
INPUT_NAME, INPUT_LENGTH = "bytes", 2048


class FetchError(Exception):
    """The model could not be fetched; the text says why and what would help."""


def main() -> int:
    """Make sure that the model is there; return the exit status."""
    parser = argparse.ArgumentParser(description="Put the demo model into a model repository.")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="the repository (default: models/)")
    parser.add_argument("--remove", action="store_true", help="remove the model instead, if it is as it was put there")
    options = parser.parse_args()
    try:
        if options.remove:
            remove(options.models)
        else:
            fetch(options.models)
    except FetchError as error:
        print(f"fetch_demo_model: {error}", file=sys.stderr)
        return 1
    return 0


def download(lock: Path, directory: Path) -> Path:
    """Download the one wheel that ``lock`` pins into ``directory`` and return its path.

    Raises:
        FetchError: pip could not.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(directory), "--requirement", str(lock)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"pip could not download it (no network, or no wheel for this machine?):\n{done.stderr}")
    return wheels[0]


def fetch(repository: Path, lock: Path = LOCK, download: Callable[[Path, Path], Path] = download) -> Path:
    """Return the directory of the model's version in ``repository``, made now if it is not there as ``lock`` says.

    It appears whole or not at all: it is put together beside its place and renamed. A model of that name that is not
    ours, or was changed, is left as it is.

    Raises:
        FetchError: the wheel could not be downloaded, or is not laid out as expected.
    """
    pin = lock.read_text(encoding="utf-8").split()[0]
    target = repository / NAME / VERSION
    if _source(target)[:1] == [pin]:
        return target
    if _stands_for_somebody(target):
        return target
    print(f"fetching the demo model from {pin} (16 MB, Apache-2.0)", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        made = Path(scratch) / VERSION
        made.mkdir()
        _unpack(download(lock, Path(scratch)), made)
        (made / SOURCE).write_text("\n".join([pin, *_contents(made)]) + "\n", encoding="utf-8")
        made.chmod(0o755)
        if target.exists():
            shutil.move(target, Path(scratch) / "old")
        made.rename(target)
    return target


def remove(repository: Path) -> None:
    """Remove what :func:`fetch` put into ``repository``, and the directories that are empty then."""
    target = repository / NAME / VERSION
    if not _stands_for_somebody(target) and target.is_dir():
        shutil.rmtree(target)
    for directory in (target.parent, repository):
        with contextlib.suppress(OSError):  # not there, or other models are in it
            directory.rmdir()


def _stands_for_somebody(target: Path) -> bool:
    """Tell whether something is at ``target`` that is not, or not any more, as we put it there; says so if it is."""
    if not (target.is_symlink() or target.exists()):
        return False
    if target.is_dir() and not target.is_symlink() and _source(target)[1:] == _contents(target) != []:
        return False
    print(f"{target} is not, or not any more, as this tool puts it there: left as it is", file=sys.stderr)
    return True


def _source(directory: Path) -> list[str]:
    """Return the lines of the directory's source.txt: the pin, then each file's hash and name."""
    try:
        return (directory / SOURCE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _contents(directory: Path) -> list[str]:
    """Return what source.txt says of the files beside it. Whatever is no regular file makes a difference too."""
    lines = []
    for path in sorted(directory.iterdir()):
        if path.name != SOURCE:
            regular = path.is_file() and not path.is_symlink()
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest() if regular else '-'}  {path.name}")
    return lines


def _unpack(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        models = [name for name in archive.namelist() if name.endswith("/model.onnx")]
        if len(models) != 1:
            raise FetchError(f"{wheel.name}: holds {len(models)} files model.onnx, expected one")
        folder = models[0].rpartition("/")[0]
        try:
            config = json.loads(archive.read(f"{folder}/config.min.json"))
            labels, length = config["target_labels_space"], config["beg_size"] + config["end_size"]
        except (KeyError, TypeError, ValueError) as error:
            raise FetchError(f"{wheel.name}: {folder}/config.min.json is not as expected: {error!r}") from error
        if length != INPUT_LENGTH:
            raise FetchError(f"{wheel.name}: its input is {length} long, expected {INPUT_LENGTH}")
        with archive.open(models[0]) as packed, (directory / "model.onnx").open("wb") as out:
            shutil.copyfileobj(packed, out)
    (directory / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    shapes = "".join(
        f"  - {{name: {name}, shapes: {{{INPUT_NAME}: [{batch}, {length}]}}}}\n" for name, batch in WARMUP.items()
    )
    (directory / "model.yaml").write_text(f"labels: labels.txt\nwarmup:\n{shapes}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
