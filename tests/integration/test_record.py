"""``warmroute record`` in front of an origin: bytes pass as they are, and what they were is in the file."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.cli.main import main
from sidecar.traffic.recording.listener import Recorder
from sidecar.traffic.recording.noting import Terms, Told
from sidecar.traffic.samples import Ended
from tests.support.http_origin import Echo, HttpOrigin
from tests.support.loops import in_loop, until
from tests.support.scripted_origin import CLOSE, ScriptedOrigin, scripted_origin, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.traffic.traces.recorded import Recorded

SECRET = b"POST /echo?key=k HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer s3cret\r\nX-Session: one\r\n"
SECRET += b"Content-Length: %d\r\n\r\n%b"


@contextmanager
def recording(
    to: str, out: Path, *more: str, file_limit: int = resource.RLIM_INFINITY
) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """Run the command; yields its process and where it accepts."""
    argv = [sys.executable, "-m", "sidecar.cli.main", "record", "--listen", "127.0.0.1:0", "--to", to]
    process = subprocess.Popen(
        [*argv, "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY)),
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("recording what passes 127.0.0.1:"), said
        yield process, ("127.0.0.1", int(said.partition(";")[0].rpartition(":")[2]))
    finally:
        process.kill()
        process.communicate()


def ask(place: tuple[str, int], body: bytes) -> None:
    """Send a body on a connection of its own, and get it back."""
    answer = b""
    with socket.create_connection(place, 10) as connection:
        connection.sendall(SECRET % (len(body), body))
        while not answer.endswith(b"\r\n\r\n" + body):
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)[0]


def test_what_is_recorded_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.jsonl"
    body = b'{"messages": [{"content": "private"}]}'
    with HttpOrigin(Echo) as origin:
        with recording(origin.url, out, "--redact-field", "messages.*.content", "--flow-header", "X-Session") as (
            process,
            place,
        ):
            for _ in range(2):
                ask(place, body)
            text = ended(process)
            assert process.returncode == 0
        assert text == f"{out}: 2 requests\n"
        assert main(["replay", str(out), "--to", origin.url, "--json", "--speed", "100"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["trace"]["requests"], report["ends"]) == (2, {"ok": 2})
    written = out.read_text()
    assert "private" not in written
    assert "s3cret" not in written
    opening, first, second = map(json.loads, written.splitlines())
    assert (opening["sampled_ratio"], opening["redacted"]) == (1.0, ["field messages.*.content"])
    assert (first["target"], first["headers"]) == ("/echo?key=x", [["X-Session", first["flow"]]])
    assert json.loads(first["body"]) == {"messages": [{"content": "xxxxxxx"}]}
    assert (first["status"], first["ended"], first["answer_bytes"]) == (200, "ok", len(body))
    assert (second["flow"], second["think_s"] >= 0) == (first["flow"], True)


def test_a_full_disk_loses_lines_and_no_traffic(tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    with HttpOrigin(Echo) as origin, recording(origin.url, out, file_limit=1000) as (process, place):
        for number in range(40):
            ask(place, b"%d" % number)
        size = out.stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ask(place, b"there is room again")
        text = ended(process)
        assert process.returncode == 1
    assert "requests lost: cannot be written: File too large" in text
    assert size <= 1000
    opening, *requests = map(json.loads, out.read_text().splitlines())  # of what was lost there is no part of a line
    assert opening["warmroute_trace"] == 1
    assert requests[-1]["body"] == "there is room again"
    assert text.startswith(f"{out}: {len(requests)} requests\n{41 - len(requests)} requests lost")


@in_loop
async def test_a_defect_of_the_listening_breaks_no_traffic() -> None:
    def broken(_: Told) -> None:
        raise RuntimeError("a defect")

    terms = Terms(lambda: 0.5, broken)
    async with scripted_origin({"/": [whole(b"one")]}) as origin:
        recorder = Recorder(origin.url, terms, lambda: 0.0)
        host, port = await recorder.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await reader.readuntil(b"one")).startswith(b"HTTP/1.1 200 OK")
        assert (recorder.defects, recorder.defect, terms.unreadable) == (1, "RuntimeError: a defect", 1)
        writer.close()
        await recorder.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--listen", "nowhere"], "--listen: 'nowhere': must be HOST:PORT"),
        (["--to", "ftp://h:1"], "--to: address 'ftp://h:1': must be http://HOST:PORT, https://HOST:PORT, "),
        (["--listen-key-file", "/nowhere"], "--listen-key-file: needs --listen-cert-file"),
        (["--listen-cert-file", "/nowhere"], "--listen-cert-file: /nowhere: No such file or directory"),
        (["--to", "grpcs://h:1", "--ca-file", "/nowhere"], "--ca-file: /nowhere: No such file or directory"),
        (["--key-file", "/nowhere"], "--key-file: is for https:// and grpcs://, which http://127.0.0.1:1 is not"),
        (["--to", "https://h:1", "--key-file", "/nowhere"], "--key-file: needs --cert-file"),
        (["--redact-field", "*"], "--redact-field: '*' is no path of fields such as messages.*.content"),
        (["--redact-header", "X-User:"], "--redact-header: 'X-User:' is no name of a header, as X-User is"),
        (["--redact-header", ""], "--redact-header: '' is no name of a header"),
        (["--redact-query", "user="], "--redact-query: 'user=' is no name of a query parameter, as user is"),
        (["--flow-header", "X-Session: 1"], "--flow-header: 'X-Session: 1' is no name of a header"),
        (["--out", "/nowhere/at/all"], "--out: /nowhere/at/all: No such file or directory"),
        (["--out", os.devnull], f"--out: {os.devnull}: is there already; name a new file"),
    ],
)
def test_wrong_use_listens_nowhere(
    tmp_path: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"--listen": "127.0.0.1:0", "--to": "http://127.0.0.1:1", "--out": str(tmp_path / "new")}
    good |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert main(["record", *(word for pair in good.items() for word in pair)]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_whoever_is_impatient_loses_no_line(signum: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    with HttpOrigin(Echo) as origin, recording(origin.url, out) as (process, place):
        ask(place, b"one")
        assert process.stdout is not None
        process.send_signal(signum)
        said = process.stdout.readline()  # the summary: no signal is heeded any more
        while process.poll() is None:
            process.send_signal(signum)
        assert process.returncode == 0
    assert said == f"{out}: 1 requests\n"
    assert len(out.read_text().splitlines()) == 2


def test_a_place_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--listen", place, "--to", "http://127.0.0.1:1", "--out", str(tmp_path / "new")]
        assert main(["record", *arguments]) == 2
    assert f"--listen: {place}: " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


class Rig:
    """A recorder on the test's loop."""

    def __init__(self, to: str, **more: Any) -> None:
        self.taken: list[Recorded] = []
        self.terms = Terms(lambda: 0.0, lambda told: self.taken.append(told.recorded()))
        self.recorder = Recorder(to, self.terms, asyncio.get_running_loop().time, **more)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.place)

    async def __aenter__(self) -> Rig:
        self.place = await self.recorder.listen("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.recorder.close(0.0)


BIG = b"b" * 5_000_000
ANSWERS = {
    "/big": [whole(BIG)],
    "/close": [b"HTTP/1.1 200 OK\r\n\r\n", BIG, CLOSE],
    "/cut": [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", CLOSE],
    "/ok": [whole(b"ok")],
}


def get(path: str) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path.encode()


@in_loop
async def test_large_answers_pass_whole_to_slow_readers() -> None:
    async with scripted_origin(ANSWERS) as origin, Rig(origin.url) as rig:
        reader, writer = await rig.connect()
        writer.write(get("/big") + get("/close"))
        writer.write_eof()  # a caller that asks nothing more still gets its answers
        pieces = []
        while piece := await reader.read(50_000):
            pieces.append(piece)
            await asyncio.sleep(0)
        assert b"".join(pieces) == whole(BIG) + b"HTTP/1.1 200 OK\r\n\r\n" + BIG
        writer.close()
        await until(lambda: rig.recorder.open == 0, "the connection is over")
        assert [(one.target, one.ended, one.answer_bytes) for one in rig.taken] == [
            ("/big", Ended.OK, len(BIG)),
            ("/close", Ended.OK, len(BIG)),
        ]


@in_loop
async def test_who_ended_it() -> None:
    async with scripted_origin(ANSWERS) as origin, Rig(origin.url) as rig:
        reader, writer = await rig.connect()
        writer.write(get("/cut"))
        assert (await reader.read()).endswith(b"half")
        writer.close()
        await until(lambda: rig.taken, "the cut is recorded")
        _, writer = await rig.connect()
        writer.write(get("/gated"))
        await until(lambda: len(origin.heads) == 2, "it is under way")
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()  # with a reset: a caller that is gone, not one that asks nothing more
        await until(lambda: rig.recorder.open == 0, "the connection is over")
    assert [(one.target, one.ended) for one in rig.taken] == [("/cut", Ended.CUT), ("/gated", Ended.HUNG_UP)]


@in_loop
async def test_nobody_there_and_too_many() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with Rig(f"http://127.0.0.1:{nobody.getsockname()[1]}") as rig:
            reader, writer = await rig.connect()
            assert await reader.read() == b""
            writer.close()
            assert rig.recorder.unreachable == 1
    origin: ScriptedOrigin
    async with scripted_origin(ANSWERS) as origin, Rig(origin.url, max_connections=1) as rig:
        kept, first = await rig.connect()
        first.write(get("/ok"))
        await kept.readuntil(b"ok")
        refused, second = await rig.connect()
        assert await refused.read() == b""
        assert rig.recorder.refused == 1
        for one in (first, second):
            one.close()


@in_loop
async def test_what_is_under_way_may_end() -> None:
    async with scripted_origin(ANSWERS) as origin, Rig(origin.url) as rig:
        reader, writer = await rig.connect()
        writer.write(get("/gated"))
        await until(lambda: origin.heads, "it is under way")
        closing = asyncio.create_task(rig.recorder.close(30.0))
        origin.gate.set()
        assert (await reader.readuntil(b"late")).startswith(b"HTTP/1.1 200")
        await closing
        writer.close()
    assert [one.ended for one in rig.taken] == [Ended.OK]
