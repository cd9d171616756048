from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.flags import make_parser
from worker.options import parse
from worker.state_address import StateAddress
from worker.store import Versions

DOC = Path(__file__).parents[3] / "docs" / "worker.md"


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("latest", Versions(1)),
        ("latest:3", Versions(3)),
        ("all", Versions(0)),
        ("1", Versions(named=("1",))),
        ("3,1,3", Versions(named=("3", "1"))),
    ],
)
def test_versions(text: str, versions: Versions) -> None:
    assert parse(["--models", "m", "--versions", text]).versions == versions


def test_defaults() -> None:
    options = parse(["--models", "m"])
    assert options.versions == Versions(1)
    assert (options.host, options.port, options.state, options.engine) == ("127.0.0.1", 0, None, "onnxruntime")
    assert re.fullmatch(r"worker-[0-9a-f]{8}", options.id)
    assert options.json_log
    assert (options.threads, options.concurrency, options.queue) == (1, None, 64)


def test_everything(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    options = parse(
        [
            *("--models", "m", "--model", "a", "--model", "b", "--listen", "[::1]:9001", "--id", "w1"),
            *("--state", "redis://h:1/0", "--state-password-file", str(secret), "--namespace", "n"),
            *("--engine", "deterministic", "--load-s", "1.5", "--service-ms", "20", "--threads", "2"),
            *("--concurrency", "3", "--queue", "0", "--drain-s", "9", "--settle-s", "0", "--parent-pid", "7"),
            *("--log-format", "text", "--advertise", "http://10.0.0.1:9001/", "--body-limit-bytes", "1000"),
            *("--grpc-listen", "0.0.0.0:9101", "--grpc-advertise", "grpc://10.0.0.1:9101", "--load-reports", "always"),
            *("--debug-listen", "[::1]:9201"),
        ]
    )
    assert options.model == ("a", "b")
    assert (options.grpc_listen, options.grpc_advertise) == (("0.0.0.0", 9101), "grpc://10.0.0.1:9101")
    assert (options.load_reports, options.debug_listen) == ("always", ("::1", 9201))
    assert (options.host, options.port) == ("::1", 9001)
    assert options.state == StateAddress("redis://h:1/0", "s3cret")
    assert (options.load_s, options.service_s) == (1.5, 0.02)
    assert options.advertise == "http://10.0.0.1:9001"
    assert (options.concurrency, options.queue, options.parent_pid) == (3, 0, 7)


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--listen", "9001"], "argument --listen: '9001': expected HOST:PORT, such as 127.0.0.1:9001 or [::1]:9001"),
        (
            ["--listen", "a:70000"],
            "argument --listen: 'a:70000': expected HOST:PORT, such as 127.0.0.1:9001 or [::1]:9001",
        ),
        (["--state", "http://x"], "argument --state: expected redis://, rediss:// or unix:///PATH, or none"),
        (["--state", "unix://run/s"], "argument --state: expected redis://, rediss:// or unix:///PATH, or none"),
        (["--model", ".."], "argument --model: '..': use 1 to 128 of A-Z a-z 0-9 . _ : -"),
        *(
            (
                ["--versions", text],
                (
                    f"argument --versions: '{text}': expected latest, latest:N, all, or numbers such as 1,3; "
                    "at most 64 versions"
                ),
            )
            for text in ("", "latest:0", "latest:65", "latest:", "v1", "1,", "01")
        ),
        (["--id", "a b"], "argument --id: 'a b': use 1 to 128 of A-Z a-z 0-9 . _ : -"),
        (["--namespace", "a:b"], "argument --namespace: 'a:b': use 1 to 64 of A-Z a-z 0-9 . _ -"),
        *(
            (["--pool", text], f"argument --pool: '{text}': expected MIN..MAX, as 4..16; from 1 to 1024")
            for text in ("4", "4..", "4..4", "0..4", "4..1025")
        ),
        (
            ["--pool", "4..8", "--concurrency", "2"],
            "--pool and --concurrency exclude each other; give one of them",
        ),
        (["--queue", "many"], "argument --queue: 'many': expected a whole number from 0 to 1048576"),
        (
            ["--tenant-header", "a b"],
            "argument --tenant-header: 'a b': expected the name of a field, such as warmroute-tenant",
        ),
        *(
            (
                ["--tenant-weight", text],
                f"argument --tenant-weight: '{text}': expected TENANT=W, the weight from 0.001 to 1000, as gold=4",
            )
            for text in ("gold", "=4", "gold=0", "gold=nan", "gold=1001")
        ),
        (["--threads", "0"], "argument --threads: '0': expected a whole number from 1 to 1024"),
        *(
            ([flag, text], f"argument {flag}: '{text}': expected a number {bounds}")
            for flag, bounds in (
                ("--drain-s", "from 0 to 86400000"),
                ("--service-ms", "from 0 to 86400000"),
                ("--poll-s", "from 0.1 to 86400000"),
                ("--memory-mark", "above 0, up to 1"),
            )
            for text in ("nan", "inf", "1e99", "x")
        ),
        (["--drain-s=-1"], "argument --drain-s: '-1': expected a number from 0 to 86400000"),
        (["--memory-mark", "0"], "argument --memory-mark: '0': expected a number above 0, up to 1"),
        (["--advertise", "http://x:70000"], "argument --advertise: 'http://x:70000': expected http://HOST:PORT"),
        (["--advertise", "https://x"], "argument --advertise: 'https://x': expected http://HOST:PORT"),
        (
            ["--grpc-listen", "9001"],
            "argument --grpc-listen: '9001': expected HOST:PORT, such as 127.0.0.1:9001 or [::1]:9001",
        ),
        (
            ["--debug-listen", "0.0.0.0:1"],
            "argument --debug-listen: '0.0.0.0:1': the pages ask for no password; use a loopback address",
        ),
        (["--grpc-advertise", "http://x:1"], "argument --grpc-advertise: 'http://x:1': expected grpc://HOST:PORT"),
        (
            ["--grpc-listen", "0.0.0.0:1", "--state", "redis://h"],
            "--grpc-listen 0.0.0.0: every address of the host; say with --grpc-advertise URL which others should use",
        ),
        (
            ["--grpc-listen", "127.0.0.1:1", "--state", "redis://h", "--id", "x" * 124],
            "--id: 124 characters, with --grpc-listen at most 123",
        ),
        (["--state-ca-file", "/nonexistent"], "--state-ca-file /nonexistent: no such file"),
        (
            ["--state-password-file", "/nonexistent"],
            "--state-password-file /nonexistent: [Errno 2] No such file or directory: '/nonexistent'",
        ),
        (
            ["--listen", "0.0.0.0:1"],
            "--listen 0.0.0.0: every address of the host; say with --advertise URL which one others should use",
        ),
    ],
)
def test_wrong_flags_end_with_2_and_their_name(capsys: pytest.CaptureFixture[str], argv: list[str], error: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--state", "redis://h", *argv])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"warmroute worker: error: {error}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:pw@h:6379/0", "redis://***@h:6379/0"),
        ("redis://h:6379/0?password=pw", "redis://h:6379/0"),
        ("unix://:pw@/run/s.sock", "unix://***@/run/s.sock"),
        ("unix:///run/s.sock", "unix:///run/s.sock"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    assert StateAddress(url).shown == shown


def test_every_flag_is_documented() -> None:
    flags = {flag for action in make_parser()._actions for flag in action.option_strings if flag.startswith("--")}
    documented = set(re.findall(r"^\| `(--[a-z-]+)", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == flags - {"--help"}


def test_how_many_may_wait_follows_the_pool() -> None:
    assert (parse([]).queue, parse(["--queue", "7"]).queue, parse(["--queue", "pool"]).queue) == (64, 7, None)
    options = parse(["--pool", "4..16"])
    assert (options.pool, options.concurrency, options.queue) == ((4, 16), None, 1000)
    assert parse(["--pool", "4..16", "--queue", "pool"]).queue is None


def test_who_is_next_and_whose_turn_it_is() -> None:
    assert (parse([]).order, parse([]).tenant_header, parse([]).tenant_weights) == ("fifo", "warmroute-tenant", {})
    options = parse(["--queue-order", "fair", "--tenant-header", "x-team", "--tenant-weight", "a=b=2.5"])
    assert (options.order, options.tenant_header, options.tenant_weights) == ("fair", "x-team", {"a=b": 2.5})
