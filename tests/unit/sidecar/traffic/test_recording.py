"""What a tap hears of a connection, in whatever pieces it comes, and what is kept out of a trace."""

from __future__ import annotations

import base64
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.recording import writing
from sidecar.traffic.recording.noting import MAX_REDACTED_BYTES, Terms, Told
from sidecar.traffic.recording.redaction import Redaction, RedactionError, path_of
from sidecar.traffic.recording.tap import Tap
from sidecar.traffic.recording.writing import TraceFile
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.reading import Filling, read_trace
from sidecar.traffic.traces.recorded import Opening, Recorded

ASKED = (
    b"POST /a?x=1 HTTP/1.1\r\nHost: h\r\nX-Request-Id: id-1\r\nA: 1\r\nCookie: c\r\nContent-Length: 3\r\n\r\none"
    b"\r\nPUT /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n"
    b"GET /c HTTP/1.1\r\nHost: h\r\n\r\n"
)
ANSWERED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n!\r\n0\r\n\r\n"
    b"HTTP/1.1 404 Not Found\r\n\r\nuntil the end"
)


def tapped(**more: Any) -> tuple[Tap, Terms, list[Recorded]]:
    taken: list[Recorded] = []
    terms = Terms(lambda: 0.5, lambda told: taken.append(told.recorded()), **more)
    return Tap(terms), terms, taken


def told(one: Recorded, **more: Any) -> Told:
    return Told(
        **{"body": b"", "body_bytes": 0, "no_body": "", "after_s": (), "redaction": Redaction(), "bare": one, **more}
    )


def request(target: str, *fields: str, body: bytes = b"") -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"POST {target} HTTP/1.1\r\nHost: h\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@given(st.lists(st.integers(1, 300)), st.lists(st.integers(1, 300)))
def test_pieces_change_nothing(asked_cuts: list[int], answered_cuts: list[int]) -> None:
    tap, terms, taken = tapped()
    for data, cuts, to in ((ASKED, asked_cuts, tap.from_caller), (ANSWERED, answered_cuts, tap.from_server)):
        places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for begin, end in pairwise(places):
            to(data[begin:end], 1.0)
    tap.server_left(2.0)
    assert [(one.method, one.target, one.body, one.ended, one.status, one.answer_bytes) for one in taken] == [
        ("POST", "/a?x=1", "one", Ended.OK, 200, 2),
        ("PUT", "/b", "two", Ended.STATUS_5XX, 503, 1),
        ("GET", "/c", "", Ended.STATUS_4XX, 404, 13),
    ]
    assert (taken[0].headers, taken[0].request_id) == ((("A", "1"),), "id-1")
    assert (terms.requests, terms.unreadable, terms.held_bytes) == (3, 0, 0)


def test_moments() -> None:
    tap, _, taken = tapped()
    tap.from_caller(request("/a")[:10], 1.0)
    tap.from_caller(request("/a")[10:], 1.25)
    tap.from_server(OK[:5], 2.0)
    tap.from_server(OK[5:], 3.0)
    assert [(one.at_s, one.first_byte_s, one.took_s) for one in taken] == [(1.0, 1.0, 2.0)]


@pytest.mark.parametrize(("caller_left", "ended", "hung_up_s"), [(True, Ended.HUNG_UP, 0.5), (False, Ended.CUT, None)])
def test_an_answer_that_does_not_come_whole(caller_left: bool, ended: Ended, hung_up_s: float | None) -> None:
    tap, _, taken = tapped()
    tap.from_caller(request("/a", body=b"b"), 1.0)
    tap.from_server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", 1.2)
    if caller_left:
        tap.caller_left(1.5)
    tap.server_left(2.0)
    assert [(one.ended, one.hung_up_s, one.status, one.answer_bytes) for one in taken] == [(ended, hung_up_s, 200, 2)]


def test_a_caller_that_sends_nothing_more_may_still_be_answered() -> None:
    tap, _, taken = tapped()
    tap.from_caller(request("/a"), 1.0)
    tap.caller_left(1.0)
    tap.from_server(OK, 1.5)
    tap.server_left(1.5)
    assert [one.ended for one in taken] == [Ended.OK]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"\x16\x03\x01\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70_000, b""),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        (request("/a") + b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: h\r\n\r\nzz\r\n", b""),
        (b"", OK),
    ],
)
def test_what_cannot_be_read_is_not_recorded(asked: bytes, answered: bytes) -> None:
    tap, terms, taken = tapped()
    tap.from_caller(asked, 1.0)
    tap.from_server(answered, 1.0)
    assert tap.deaf
    tap.from_caller(request("/later"), 2.0)
    tap.from_server(OK, 2.0)
    tap.server_left(2.0)
    assert (taken, terms.unreadable, terms.held_bytes) == ([], 1, 0)


def test_an_id_that_the_sidecar_gave_is_in_its_answer() -> None:
    tap, _, taken = tapped()
    tap.from_caller(request("/a") + request("/b", "X-Request-Id: own"), 1.0)
    tap.from_server(OK.replace(b"\r\n\r\n", b"\r\nx-request-id: given\r\n\r\n") * 2, 2.0)
    assert [one.request_id for one in taken] == ["given", "own"]


def test_who_answered_is_told_and_kept_answers_are_nobody_s() -> None:
    tap, _, taken = tapped()
    tap.from_caller(request("/a") * 2, 1.0)
    signed = OK.replace(b"\r\n\r\n", b"\r\nWarmroute-Worker: w1\r\n\r\n")
    tap.from_server(signed + signed.replace(b"\r\n\r\n", b"\r\nwarmroute-degraded: cache\r\n\r\n"), 2.0)
    assert [one.worker for one in taken] == ["w1", ""]


def test_limits_of_bodies() -> None:
    tap, terms, taken = tapped(max_body_bytes=4)
    tap.from_caller(request("/a", body=b"four") + request("/b", body=b"fiver"), 1.0)
    tap.from_caller(request("/c", body=b"abc")[:-1], 1.0)
    tap.from_server(OK * 3, 2.0)
    tap.from_caller(b"c", 3.0)
    assert [(one.body, one.body_bytes, one.no_body) for one in taken] == [
        ("four", 4, ""),
        ("", 5, "over 4 bytes"),
        ("", 2, "not sent whole"),
    ]
    assert (terms.held_bytes, tap.under_way) == (0, False)


def test_sampling_leaves_out_requests_or_whole_flows() -> None:
    tap, terms, taken = tapped(sample=0.4)  # 0.5 is drawn
    tap.from_caller(request("/a"), 1.0)
    tap.from_server(OK, 1.0)
    assert (taken, terms.requests, terms.passed_over) == ([], 1, 1)
    tap, terms, taken = tapped(sample=0.4, flow_header="x-session")
    for number in range(200):
        tap.from_caller(request("/a", f"X-Session: {number % 50}"), float(number))
        tap.from_server(OK, number + 0.5)
    flows = {one.flow for one in taken}
    assert len(taken) == 4 * len(flows)
    assert 8 < len(flows) < 32


def test_flows_chain_what_does_not_overlap() -> None:
    terms = tapped(flow_header="x-session")[1]
    taken: list[Recorded] = []
    session = "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln"  # which elsewhere would leave its header out
    terms.take = lambda told: taken.append(told.recorded())
    one, two = Tap(terms), Tap(terms)
    one.from_caller(request("/1", f"X-Session: {session}"), 1.0)
    two.from_caller(request("/beside", f"x-session: {session}"), 1.5)
    two.from_server(OK, 2.0)
    one.from_server(OK, 3.0)
    two.from_caller(request("/2", f"X-SESSION:  {session} "), 3.25)
    two.from_server(OK, 4.0)
    one.from_caller(request("/other"), 5.0)
    one.from_server(OK, 5.0)
    found = {record.target: (record.flow, record.think_s) for record in taken}
    flow = found["/1"][0]
    assert flow.startswith("1-")
    assert [value for record in taken for _, value in record.headers] == [flow, flow, flow]  # and not what it was
    assert found == {"/1": (flow, None), "/beside": ("", None), "/2": (flow, 0.25), "/other": ("", None)}


def test_secrets_stay_out_by_their_names() -> None:
    redaction = Redaction(frozenset({"x-user"}), frozenset({"who"}), kept=frozenset({"x-token-count"}))
    lines = ["Authorization: a", "X-Api-Key: b", "Set-Cookie: c", "X-User: d", "X-Token-Count: 5", "Accept:  */* "]
    assert redaction.of_headers(lines) == (("X-Token-Count", "5"), ("Accept", "*/*"))
    assert redaction.of_headers(["Host: h", "Connection: close", "Content-Length: 1", "x-request-id: i"]) == ()
    assert redaction.of_target("/a?key=1&Who=2&access_token=3&q=4&flag") == "/a?key=x&Who=x&access_token=x&q=4&flag"
    assert redaction.words == ("header x-user", "query who")
    assert redaction.of_target("/a?%6bey=1&wh%6F=2&q=%20") == "/a?%6bey=x&wh%6F=x&q=%20"
    assert redaction.of_target("/a?b=1;token=2&to=https%3A%2F%2Fu:p%40h&c=%3Fsig%3D1") == "/a?b=1;token=x&to=x&c=x"
    assert redaction.of_target("/to/https://u:p@h/b?c=d=e&f=50%") == "/to/https://h/b?c=d=e&f=50%"
    assert redaction.of_target("http://user:pass@host/a?b=1") == "/a?b=1"
    assert redaction.of_target("http://user:pass@host") == "/"
    assert redaction.of_target("*") == "*"


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("Referer: https://u:p@h/p?session=1&q=2#frag", "https://h/p?x"),
        ("Referer: https://h/cb#access_token=1", "https://h/cb#x"),
        ("Referer: https://h/p", "https://h/p"),
        ("X-Original-URI: /a?signed=1", "/a?x"),
        ("X-Callback: https://h/cb?t=1", "https://h/cb?x"),
        ("X-Callback: see https://u:p@ss@h/cb?a=1&token=2", "see https://h/cb?a=1&token=x"),
        ("X-Next: /cb?a=1&sig=2;b=3", "/cb?a=1&sig=x;b=3"),
        ("X-Next: https%3A%2F%2Fh%2Fcb%3Ftoken%3D1", "x"),
        ("X-Next: a%20b", "a%20b"),
        ("Link: <https://h/a?api_key=1>; rel=a", "<https://h/a?api_key=x>; rel=a"),
        ("Baggage: user=1,session_token=2, c=3", "user=1,session_token=x, c=3"),
        ('X-Info: a="b c", password="d e"', 'a="b c", password=x'),
        ("X-Back: to=%2Fcb%253Ftoken%253D1", "to=x"),
        ("X-Deep: to=%252525252541", "to=x"),
        ("Content-Type: multipart/form-data; boundary=a=b", "multipart/form-data; boundary=a=b"),
        ("X-Auth: Bearer abcdefgh1234", None),
        ("X-Forwarded-Auth: Digest username=a, response=b", None),
        ("X-Who: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", None),
        ("X-Plan: Basic plan", "Basic plan"),
        ("Ocp-Apim-Subscription-Key: 5", None),
        ("x-functions-key: 5", None),
        ("X-Auth-Key: 5", None),
        ("X-Access-Key: 5", None),
        ("X-Auth: 5", None),
        ("DPoP: 5", None),
        ("X-Affinity-Key: 5", "5"),
        ("X-Next: /cb?AWSAccessKeyId=5", "/cb?AWSAccessKeyId=x"),
    ],
)
def test_secrets_in_the_values_of_headers_stay_out(line: str, written: str | None) -> None:
    name, _, _ = line.partition(":")
    found = dict(Redaction().of_headers([line]))
    assert found == ({} if written is None else {name: written})
    assert Redaction(kept=frozenset({name.lower()})).of_headers([line]) == ((name, line.partition(": ")[2]),)


def test_a_form_is_masked_as_a_query_is() -> None:
    form = (("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),)
    body = b"grant_type=password&password=s%C3%A9cret&q=\xff"
    made = told(Recorded(at_s=0.0, headers=form), body=body, body_bytes=len(body)).recorded()
    assert base64.b64decode(made.body_base64) == b"grant_type=password&password=x&q=\xff"
    other = told(Recorded(at_s=0.0), body=body[:-1], body_bytes=len(body) - 1).recorded()
    assert other.body == body[:-1].decode()


def test_fields_are_masked_and_keep_their_size() -> None:
    body = {"messages": [{"role": "user", "content": "hëllo"}, {"content": ["a", {"b": 5}]}], "n": 7, "stream": True}
    paths = tuple(path_of(text) for text in ("messages.*.content", "n", "stream", "missing.*", "messages.1.role"))
    masked = Redaction(fields=paths).of_body(json.dumps(body).encode())
    assert masked is not None
    assert json.loads(masked) == {
        "messages": [{"role": "user", "content": "xxxxx"}, {"content": ["x", {"b": 0}]}],
        "n": 0,
        "stream": True,
    }


def test_bodies_stay_as_they_are_where_nothing_is_masked() -> None:
    body = b'{"a":  1}'
    assert Redaction(fields=(("b",),)).of_body(body) == body
    assert Redaction().of_body(b"\xff") == b"\xff"
    for unsure in (
        b"\xff",
        b"{",
        b"[" * 100_000,
        b'{"b": 1, "b": 2}',
        b'{"a": {"b": 1}, "a": 2}',
        b'{"b": 1, "c": "\\ud800"}',
    ):
        assert Redaction(fields=(("b",),)).of_body(unsure) is None


def test_a_body_that_is_not_json_is_not_kept_where_fields_are_to_be_masked() -> None:
    tap, _, taken = tapped(redaction=Redaction(fields=(("a",),)))
    tap.from_caller(request("/a", body=b"a=secret") + request("/b", body=b'{"a": "secret"}'), 1.0)
    tap.from_server(OK * 2, 2.0)
    assert [(one.body, one.no_body) for one in taken] == [
        ("", "fields are to be redacted, and it is not JSON"),
        ('{"a":"xxxxxx"}', ""),
    ]


@pytest.mark.parametrize("text", ["", "a..b", "*", "*.*", ".a"])
def test_paths_are_checked(text: str) -> None:
    with pytest.raises(RedactionError, match="is no path of fields such as"):
        path_of(text)


def test_a_file_is_new_and_one_s_own_and_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, lambda: Opening(1), 400)
    for number in range(20):
        file.take(told(Recorded(at_s=float(number), target=f"/{number}")))
    file.close()
    assert 0 < file.lines < 20
    assert file.lines + file.lost == 20
    assert "may have 400" in file.why
    assert path.stat().st_size <= 400
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_trace(path, Filling()).requests == file.lines
    with pytest.raises(FileExistsError):
        TraceFile(path, lambda: Opening(1), 400)


def test_a_file_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, lambda: Opening(1), 400, rotate=True)
    for number in range(20):
        file.take(told(Recorded(at_s=float(number), target=f"/{number}")))
    file.take(told(Recorded(at_s=20.0, target="/" + 500 * "x")))
    file.close()
    assert (file.lines, file.lost) == (20, 1)
    assert "a file may have 400" in file.why
    before = list(read_trace(tmp_path / "trace.jsonl.1", Filling()).make())
    assert before
    assert all(one.stat().st_size <= 400 for one in tmp_path.iterdir())
    assert {one.name for one in tmp_path.iterdir()} == {"trace.jsonl", "trace.jsonl.1"}


def test_a_disk_that_hangs_costs_lines_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = told(Recorded(at_s=0.0))
    monkeypatch.setattr(writing, "MAX_WAITING_BYTES", 10 * one.size)
    hangs = threading.Event()
    opened = iter([True])

    def opening() -> Opening:
        if not next(opened, False):
            hangs.wait(30)
        return Opening(1)

    file = TraceFile(tmp_path / "trace.jsonl", opening, 400, rotate=True)
    for _ in range(100):  # the second file is not there until all of them were taken
        file.take(one)
    assert file.lost >= 100 - 10 - 400 // len('{"at_s":0.0}')
    hangs.set()
    file.close()
    assert file.lines + file.lost == 100
    assert file.why == ""


def test_a_defect_in_what_is_said_costs_its_line(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace.jsonl", lambda: Opening(1), 1 << 20)
    file.take(told(Recorded(at_s=0.0), redaction=None))
    file.take(told(Recorded(at_s=1.0)))
    file.close()
    assert (file.lines, file.lost) == (1, 1)
    assert file.why.startswith("a defect of this command: AttributeError")


def test_fields_of_long_bodies_are_not_looked_for() -> None:
    fields = Redaction(fields=(("a",),))
    body = b" " * (MAX_REDACTED_BYTES + 1)
    long = told(Recorded(at_s=0.0), body=body, body_bytes=len(body), redaction=fields).recorded()
    assert (long.body, long.body_bytes) == ("", len(body))
    assert long.no_body == "fields are to be redacted, and it is over 1048576 bytes"
    assert told(Recorded(at_s=0.0), body=body).recorded().body == body.decode()
