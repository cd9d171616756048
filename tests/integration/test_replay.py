"""``warmroute replay`` as a command, against an origin that fails where it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sidecar.cli.main import main
from tests.support.http_origin import Handler, HttpOrigin


class Origin(Handler):
    """Answers by path: /fail is a 503."""

    seen: list[tuple[str, bytes]]
    arrived: threading.Event

    def get(self) -> None:
        self._note(b"")
        self.answer(b"", 503 if self.path.startswith("/fail") else 200)

    def post(self) -> None:
        body = self.body()
        self._note(body)
        self.answer(body, fields={"warmroute-degraded": "cache"})

    def _note(self, body: bytes) -> None:
        self.seen.append((self.path, body))
        self.arrived.set()


@pytest.fixture
def origin() -> type[Origin]:
    return type("One", (Origin,), {"seen": [], "arrived": threading.Event()})


def trace(tmp_path: Path, *records: dict[str, object]) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in ({"warmroute_trace": 1}, *records)) + "\n")
    return file


RECORDS: tuple[dict[str, object], ...] = (
    {"at_s": 10.0, "method": "POST", "target": "/a", "body": "one"},
    {"at_s": 10.2, "target": "/fail/then", "ended": "status_5xx", "status": 503},
    {"at_s": 10.4, "method": "POST", "target": "/b", "body": "two", "ended": "ok"},
    {"at_s": 10.5, "body_bytes": 5, "no_body": "over the limit"},
)


def test_a_trace_is_sent_again(tmp_path: Path, origin: type[Origin], capsys: pytest.CaptureFixture[str]) -> None:
    file, out = trace(tmp_path, *RECORDS), tmp_path / "out.jsonl"
    with HttpOrigin(origin) as there:
        code = main(["replay", str(file), "--to", there.url, "--speed", "2", "--json", "--out", str(out)])
        assert code == 0  # the only failure had been one when it was recorded
    report = json.loads(capsys.readouterr().out)
    assert sorted(origin.seen) == [("/a", b"one"), ("/b", b"two"), ("/fail/then", b"")]
    assert report["trace"]["left_out"] == {"without its body (over the limit)": 1}
    assert report["ends"] == {"ok": 2, "status_5xx": 1}
    assert (report["failures"], report["new_failures"], report["degraded"]) == (1, 0, 2)
    assert report["errors"] == {"status 503": 1}
    assert report["duration_s"] >= 0.2
    assert report["latency_ms"]["p50"] > 0
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(sample["intended_s"] for sample in samples) == [0.0, pytest.approx(0.1), pytest.approx(0.2)]


def test_new_failures_end_with_1(tmp_path: Path, origin: type[Origin], capsys: pytest.CaptureFixture[str]) -> None:
    file = trace(tmp_path, {"at_s": 0, "target": "/fail", "ended": "ok"}, {"at_s": 0, "target": "/"})
    with HttpOrigin(origin) as there:
        assert main(["replay", str(file), "--to", there.url]) == 1
        assert main(["replay", str(file), "--to", there.url, "--tolerate", "0.5"]) == 0
        assert main(["replay", str(file), "--to", there.url, "--limit", "1"]) == 1
    text = capsys.readouterr().out
    assert "2 requests: 1 ok, 1 status_5xx" in text
    assert "failed: 1 status 503; 1 of them had not failed when recorded" in text


def test_an_access_log_and_an_llm_trace(
    tmp_path: Path, origin: type[Origin], capsys: pytest.CaptureFixture[str]
) -> None:
    log, csv, template = tmp_path / "access.log", tmp_path / "azure.csv", tmp_path / "body.json"
    log.write_text('10.0.0.1 - - [30/Nov/2026:06:41:12 +0000] "GET /v1/models HTTP/1.1" 200 12 "-" "curl/8.0"\n')
    csv.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,3,10\n")
    template.write_text('{"n": $context_tokens}')
    with HttpOrigin(origin) as there:
        assert main(["replay", str(log), "--to", there.url]) == 0
        arguments = ["--to", there.url, "--body-template", str(template), "--target", "/infer"]
        assert main(["replay", str(csv), *arguments]) == 0
    assert origin.seen == [("/v1/models", b""), ("/infer", b'{"n": 3}')]
    assert "(access log, 1 requests in 0.0 s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--to", "ftp://x"], "--to: "),
        (["--header", "no colon"], "--header 'no colon': must be NAME: VALUE"),
        (["--header", "A: b\nc"], "must be NAME: VALUE; header A: its value holds a line end"),
        (["--body-template", "/nowhere"], "--body-template: /nowhere: "),
        (["--to", "https://127.0.0.1:1", "--ca-file", "/nowhere"], "--ca-file: /nowhere: No such file or directory"),
        (["--insecure"], "--insecure: is for https:// and grpcs://, which http://127.0.0.1:8080 is not"),
        (["--out", "/nowhere/at/all"], "--out: /nowhere/at/all: No such file or directory"),
    ],
)
def test_wrong_use_sends_nothing(
    tmp_path: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace(tmp_path, *RECORDS)), *arguments]) == 2
    assert error in capsys.readouterr().err


def test_a_bad_trace_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace(tmp_path, {"at_s": 0}, {"at_s": -5}))]) == 2
    assert "trace.jsonl:3: at_s: -5.0 must be from 0" in capsys.readouterr().err


def test_ctrl_c_ends_it_with_what_is_known(tmp_path: Path, origin: type[Origin]) -> None:
    file = trace(tmp_path, {"at_s": 0, "target": "/"}, {"at_s": 3600, "target": "/"})
    with HttpOrigin(origin) as there:
        argv = [sys.executable, "-m", "sidecar.cli.main", "replay", str(file), "--to", there.url]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert origin.arrived.wait(30)
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=30)[0]
    assert process.returncode == 130
    assert "1 requests: 1 ok" in text
    assert "interrupted: the rest of the trace was not sent" in text
