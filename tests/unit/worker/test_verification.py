from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from worker.engines import Cancellation, GivenUpError
from worker.stages import Stage, Stages
from worker.store import ModelFiles
from worker.verification import VerificationError, verify

CONTENT = b"weights"
GOOD = hashlib.sha256(CONTENT).hexdigest()
WRONG = "0" * 64


def version(directory: Path, sums: str | bytes | None = None, **sha256: str) -> ModelFiles:
    (directory / "model.onnx").write_bytes(CONTENT)
    (directory / "sub").mkdir()
    (directory / "sub" / "part").write_bytes(CONTENT)
    if sums is not None:
        (directory / "SHA256SUMS").write_bytes(sums if isinstance(sums, bytes) else sums.encode())
    said = {name.replace("__", "/"): digest for name, digest in sha256.items()}
    return ModelFiles("m", "1", directory, directory / "model.onnx", sha256=said)


@pytest.mark.parametrize(
    ("sums", "sha256"),
    [
        (None, {}),
        (f"{GOOD}  model.onnx\n{GOOD} *sub/part\n", {}),
        (f"# of yesterday\n\n{GOOD}  ./model.onnx\n", {"sub__part": GOOD}),
    ],
)
def test_files_that_are_what_was_said_pass(tmp_path: Path, sums: str | None, sha256: dict[str, str]) -> None:
    verify(version(tmp_path, sums, **sha256), Cancellation(), Stages())


def test_only_what_was_said_takes_time(tmp_path: Path) -> None:
    stages = Stages()
    verify(version(tmp_path), Cancellation(), stages)
    assert stages.seconds() == {}
    (tmp_path / "SHA256SUMS").write_text(f"{GOOD}  model.onnx\n")
    verify(ModelFiles("m", "1", tmp_path), Cancellation(), stages)
    assert stages.seconds()[Stage.CHECKSUM] > 0


def test_a_version_without_a_directory_has_nothing_to_verify() -> None:
    verify(ModelFiles("m", "1"), Cancellation(), Stages())


@pytest.mark.parametrize(
    ("sums", "sha256", "error"),
    [
        (
            f"{WRONG}  model.onnx\n",
            {},
            (
                f"{{d}}/model.onnx: its SHA-256 is {GOOD}, and {{d}}/SHA256SUMS says {WRONG}; "
                "bring the file again, or correct what is said of it"
            ),
        ),
        (
            f"{GOOD}  sub/part\n",
            {"sub__part": WRONG},
            (
                f"{{d}}/sub/part: its SHA-256 is {GOOD}, and {{d}}/model.yaml says {WRONG}; "
                "bring the file again, or correct what is said of it"
            ),
        ),
        (
            f"{GOOD}  gone\n",
            {},
            "{d}/gone: No such file or directory; {d}/SHA256SUMS has a SHA-256 for it",
        ),
        ("model.onnx\n", {}, "{d}/SHA256SUMS: line 1: 'model.onnx': expected SHA-256, two spaces, name"),
        (
            f"\n{GOOD}  ../x\n",
            {},
            "{d}/SHA256SUMS: line 2: '../x': name a file of this version, relative to its directory",
        ),
        (
            f"{GOOD}  /etc/passwd\n",
            {},
            "{d}/SHA256SUMS: line 1: '/etc/passwd': name a file of this version, relative to its directory",
        ),
    ],
)
def test_what_is_wrong_is_named_with_who_says_so(tmp_path: Path, sums: str, sha256: dict[str, str], error: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(version(tmp_path, sums, **sha256), Cancellation(), Stages())
    assert str(caught.value) == error.format(d=tmp_path)


def test_sums_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="SHA256SUMS: not UTF-8"):
        verify(version(tmp_path, b"\xff\xfe"), Cancellation(), Stages())


def test_it_can_be_given_up(tmp_path: Path) -> None:
    files = version(tmp_path, f"{GOOD}  model.onnx\n")
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        verify(files, cancellation, Stages())
