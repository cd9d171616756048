from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.zygote import ZygoteError, preload
from worker.zygote_client import ForkedWorker, NoZygoteError, _split, main
from worker.zygote_wire import (
    HEAD,
    MAGIC,
    MAX_REQUEST_BYTES,
    Request,
    WireError,
    code_mark,
    decode,
    encode,
    expected_bytes,
)

ROOT = Path(__file__).parents[3]


def fields(request: Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in Request.__slots__}


def test_a_request_arrives_as_it_was_sent() -> None:
    request = Request(
        "/x 1", "/a b", 0o22, (0, 3), 5, ((7, 1024, -1),), ("--model", "", "é=1"), (("A", "1=2"), ("B", ""))
    )
    data = encode(request)
    assert expected_bytes(data) == len(data)
    assert fields(decode(data)) == fields(request)
    assert fields(decode(encode(Request("c", "/", 0, (), 0, (), (), ())))) == fields(
        Request("c", "/", 0, (), 0, (), (), ())
    )


def test_what_is_no_request() -> None:
    with pytest.raises(WireError, match=r"^not a request to a zygote of this version$"):
        expected_bytes(b"GET / HTTP")
    with pytest.raises(WireError, match=r"^4194305 bytes of arguments and environment; at most 4194304$"):
        expected_bytes(HEAD.pack(MAGIC, MAX_REQUEST_BYTES + 1, 0))
    with pytest.raises(WireError, match=r"^a request that cannot be read$"):
        decode(HEAD.pack(MAGIC, 4, 0) + b"a\0b\0")


def test_the_mark_changes_with_the_program(tmp_path: Path) -> None:
    for name in ("worker/engines", "worker/__pycache__", "router"):
        (tmp_path / name).mkdir(parents=True)
    files = [
        tmp_path / name for name in ("worker/a.py", "worker/engines/b.py", "router/c.py", "worker/__pycache__/d.py")
    ]
    for moment, file in enumerate(files, 1):
        file.touch()
        os.utime(file, ns=(0, moment * 10**9))
    assert code_mark(str(tmp_path)) == f"{tmp_path} 3000000000", "what the interpreter caches is not the program"
    os.utime(files[1], ns=(0, 7 * 10**9))
    assert code_mark(str(tmp_path)) == f"{tmp_path} 7000000000"
    assert code_mark().startswith(f"{ROOT} ")


def test_the_flag_is_taken_out_wherever_it_stands() -> None:
    assert _split(["--model", "m", "--zygote", "/z", "--queue", "1"]) == ("/z", ("--model", "m", "--queue", "1"))
    assert _split(["--zygote=/z", "--model", "m"]) == ("/z", ("--model", "m"))
    assert _split(["--zygote"]) == (None, ())
    assert _split(["--model", "m"]) == (None, ())


def test_a_flag_without_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--zygote"]) == 2
    assert capsys.readouterr().err == "warmroute worker: error: --zygote: expected the path of a zygote's socket\n"


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoZygoteError, match=f"^{tmp_path}/none: .*No such file or directory$"):
        ForkedWorker(str(tmp_path / "none"), ())


def test_a_module_that_cannot_be_imported() -> None:
    with pytest.raises(ZygoteError, match=r"^no_such_module: No module named 'no_such_module'$"):
        preload(("no_such_module",))


def test_what_starts_a_thread_is_not_preloaded(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    code = "from worker.zygote import preload; preload(('threaded',))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ZygoteError: importing has started 1 threads, which a fork would lose: a defect" in done.stderr


def test_a_client_imports_next_to_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import worker.zygote_client;"
        "print(len(set(sys.modules) - before), sorted(set(sys.modules) & {'asyncio', 'dataclasses', 'numpy', 'json'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    count, _, heavy = done.stdout.partition(" ")
    assert heavy.strip() == "[]"
    assert int(count) < 40
