"""Traces of each kind read into requests, and what is said of those that cannot be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.traffic.answers import UnfilledError, filled, taken
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces import reading
from sidecar.traffic.traces.reading import Filling, read_trace
from sidecar.traffic.traces.recorded import Recorded, body_fields
from sidecar.traffic.traces.recorded import read as read_recorded
from sidecar.traffic.traces.templates import BodyTemplate, TemplateError, prompt
from sidecar.traffic.traces.trace import Trace, TraceError

OPENING = '{"warmroute_trace": 1}'
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3,8
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 02:00:01.009930+02:00,2399,6
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
45,GPT-4,3,18,21,Conversation log
5,ChatGPT,6,0,6,API log
"""
LOG = """\
10.0.0.1 - - [30/Nov/2026:06:41:12 +0000] "GET /v1/models HTTP/1.1" 200 12 "-" "curl/8.0"
10.0.0.2 - bob [30/Nov/2026:08:41:12 +0200] "POST /v2/models/m/infer HTTP/1.1" 503 0 "http://a/b" "py \\"x\\""
10.0.0.1 - - [30/Nov/2026:06:41:11 +0000] "GET /readyz HTTP/2.0" 499 0
10.0.0.3 - - [30/Nov/2026:06:41:13 +0000] "\\x16\\x03\\x01" 400 0 "-" "-"
nonsense
"""


def read(tmp_path: Path, text: str | bytes, filling: Filling | None = None) -> Trace:
    file = tmp_path / "trace"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(file, filling or Filling())


def lines(*records: dict[str, object]) -> str:
    return "\n".join([OPENING, *(json.dumps(record) for record in records)]) + "\n"


def test_recorded_requests_begin_at_zero_in_order(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        lines(
            {"at_s": 3.5, "target": "/b", "body": "é", "ended": "status_5xx", "status": 503},
            {"at_s": 3.0, "method": "POST", "target": "/a", "headers": [["A", "1"]], "body_base64": "/w=="},
            {"at_s": 3.1, "body_bytes": 99, "no_body": "over the limit"},
        ),
    )
    assert (trace.kind, trace.requests, trace.duration_s) == ("recorded", 2, 0.5)
    assert trace.left_out == {"without its body (over the limit)": 1}
    first, second = trace.make()
    assert first == Timed(0.0, "POST", "/a", (("A", "1"),), b"\xff")
    assert (second.at_s, second.body, second.recorded) == (0.5, "é".encode(), Ended.STATUS_5XX)
    assert [request.at_s for request in trace.at(2.0)] == [0.0, 0.25]


def test_flows_follow_their_first_request(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        lines(
            {"at_s": 1.0, "target": "/1", "flow": "a"},
            {"at_s": 1.5, "target": "/beside"},
            {"at_s": 1.2, "target": "/2", "flow": "a", "think_s": 0.4, "hung_up_s": 0.1},
            {"at_s": 1.9, "target": "/3", "flow": "a", "think_s": 0.0},
            {"at_s": 2.0, "target": "/overlapping", "flow": "a"},
            {"at_s": 3.0, "target": "/orphan", "flow": "b", "think_s": 0.7},
        ),
    )
    assert trace.requests == 6
    flow, beside, overlapping, orphan = trace.at(2.0)
    assert [(one.target, one.at_s, one.hang_up_s) for one in flow.then] == [("/2", 0.2, 0.1), ("/3", 0.0, None)]
    assert [one.target for one in (beside, overlapping, orphan)] == ["/beside", "/overlapping", "/orphan"]
    assert orphan.at_s == 1.0  # at its own moment: what it followed is not there


@given(st.binary(max_size=50))
def test_any_body_comes_back(body: bytes) -> None:
    line = msgspec.json.encode(Recorded(at_s=0.0, method="POST", **body_fields(body)))
    trace = read_recorded("file", [OPENING.encode(), line])
    assert [request.body for request in trace.make()] == [body]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (
            {"at_s": 0, "surprise": 1},
            "trace:2: Object contains unknown field `surprise`; correct it, or take the line out",
        ),
        ({"method": "GET"}, "trace:2: Object missing required field `at_s`"),
        ({"at_s": -1}, "trace:2: at_s: -1.0 must be from 0 to 1e9 seconds"),
        ({"at_s": 0, "think_s": 1}, "trace:2: think_s without flow: name the flow whose request before this one it"),
        ({"at_s": 0, "body": "a", "body_base64": "YQ=="}, "trace:2: both body and body_base64; keep one of them"),
        ({"at_s": 0, "body_base64": "?"}, "trace:2: body_base64: "),
        ({"at_s": 0, "target": "no slash"}, "trace:2: target 'no slash' must begin with /"),
        ({"at_s": 0, "ended": "badly"}, "trace:2: Invalid enum value 'badly' - at `$.ended`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, record: dict[str, object], error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, lines(record))
    assert error in str(caught.value)


def test_the_page_s_example_is_good(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "replay.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]
    trace = read(tmp_path, OPENING + "\n" + example)
    assert (trace.requests, [len(request.then) for request in trace.make()]) == (5, [0, 0, 1, 0])
    flow = page.partition("### Flows\n")[2].partition("```json\n")[2].partition("```")[0]
    (first,) = read(tmp_path, OPENING + "\n" + flow).make()
    values = taken(first, b'{"session": {"id": "s1"}}', 25)
    assert filled(first.then[0], values).body == b'{"in": "s1"}'


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace:1: warmroute_trace 2; this version of warmroute reads 1"):
        read(tmp_path, '{"warmroute_trace": 2}\n')


@pytest.mark.parametrize(("text", "spacing"), [(AZURE, 0.052), (AZURE_2024, 1.0)])
def test_azure(tmp_path: Path, text: str, spacing: float) -> None:
    filling = Filling(BodyTemplate('{"n": $context_tokens, "max": $generated_tokens}'), "/x", headers=(("A", "b"),))
    trace = read(tmp_path, text, filling)
    first, second = trace.make()
    assert (trace.kind, trace.requests) == ("Azure LLM inference", 2)
    assert first.at_s == 0.0
    assert second.at_s == pytest.approx(spacing, abs=1e-6)
    assert (first.method, first.target, first.headers[1]) == ("POST", "/x", ("A", "b"))
    assert json.loads(first.body)["max"] in (10, 5)


def test_burst_gpt_and_its_failures(tmp_path: Path) -> None:
    trace = read(tmp_path, gzip.compress(BURST.encode()))
    failed, good = trace.make()
    assert (failed.at_s, good.at_s, trace.duration_s) == (0.0, 40.0, 40.0)
    assert (failed.recorded, good.recorded) == (Ended.STATUS_5XX, Ended.OK)
    body = json.loads(good.body)
    assert (body["model"], body["max_tokens"], len(body["prompt"].split())) == ("GPT-4", 18, 3)
    assert json.loads(failed.body)["max_tokens"] == 1


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the body needs a model and this trace names none: give --model"):
        read(tmp_path, AZURE)
    for text in (AZURE, BURST):
        bodies = [json.loads(request.body) for request in read(tmp_path, text, Filling(model='my "own"')).make()]
        assert {body["model"] for body in bodies} == {'my "own"'}


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("soon,1,1", "timestamp 'soon' is neither seconds (up to 1e+11) nor a date; correct it, or take the line out"),
        ("NaN,1,1", "timestamp 'NaN' is neither seconds"),
        ("-inf,1,1", "timestamp '-inf' is neither seconds"),
        ("1e300,1,1", "timestamp '1e300' is neither seconds"),
        ("-61,1,1", "timestamp -61 runs back by 61 s, over 60; sort the file by it, or cut it into several"),
        ("1.7e9,1,1", "timestamp 1700000000 is over 1e+09 s after the first one; take the line out"),
        ("1," + "9" * 5000 + ",1", "contexttokens '9999999999999999999999999999999999999999' must be a whole number"),
        ("1,1," + "9" * (1 << 20), "a line of more than 1048576 bytes; take it out"),
        ("1,-1,1", "contexttokens '-1' must be a whole number from 0 to 10000000"),
        ("1,1", "generatedtokens None must be a whole number from 0 to 10000000"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n{row}\n", Filling(model="m"))
    assert f"trace:3: {error}" in str(caught.value)


def test_rows_may_be_a_little_out_of_order(tmp_path: Path) -> None:
    trace = read(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n5,1,1\n2,2,1\n", Filling(model="m"))
    assert [(one.at_s, len(json.loads(one.body)["prompt"].split())) for one in trace.make()] == [(0.0, 2), (3.0, 1)]


def test_a_row_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace:3: is no UTF-8 from byte 2 on; convert the file, or take the line"):
        read(tmp_path, BURST.encode().replace(b"5,ChatGPT", b"5,\xffGPT"))


MOONCAKE = """\
{"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 2500.0, "input_length": 600, "output_length": 0, "hash_ids": [1, 9], "more": 1}

{"timestamp": 3000, "input_length": 3, "output_length": 1}
"""


def test_mooncake_s_prompts_have_in_common_what_they_had(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE, Filling(model="m"))
    assert (trace.kind, trace.requests, trace.duration_s) == ("Mooncake", 3, 2.0)
    first, second, third = trace.make()
    prompts = [json.loads(one.body)["prompt"].split() for one in (first, second, third)]
    assert [len(words) for words in prompts] == [1030, 600, 3]
    assert prompts[0][:512] == prompts[1][:512]
    assert prompts[0][512:518] != prompts[1][512:518]
    assert (first.at_s, second.at_s, second.recorded) == (0.0, 1.5, Ended.STATUS_5XX)
    with pytest.raises(TraceError, match="the body needs a model and this trace names none: give --model"):
        read(tmp_path, MOONCAKE)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nonsense", "trace:5: JSON is malformed: invalid character (byte 4); correct it, or take the line out"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "trace:5: JSON is malformed"),
        (
            '{"timestamp": 1, "input_length": -1, "output_length": 1}',
            "trace:5: Expected `int` >= 0 - at `$.input_length`",
        ),
        ('{"timestamp": -5e5, "input_length": 1, "output_length": 1}', "trace:5: Expected `float` >= 0.0"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', ""),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
            "trace:5: Expected `int`, got `str`",
        ),
    ],
)
def test_a_bad_line_of_mooncake_s_is_named(tmp_path: Path, line: str, error: str) -> None:
    if not error:
        assert read(tmp_path, MOONCAKE + line, Filling(model="m")).requests == 4
        return
    with pytest.raises(TraceError) as caught:
        read(tmp_path, MOONCAKE + line, Filling(model="m"))
    assert error in str(caught.value)


NGINX = {
    "time_iso8601": "2026-11-30T06:41:12+00:00",
    "request": "GET /a?b=1 HTTP/1.1",
    "status": "200",
    "http_user_agent": "c",
}
ENVOY = {
    "start_time": "2026-11-30T06:41:12.250Z",
    "method": "GET",
    "path": "/e",
    "response_code": 0,
    "user_agent": None,
}
CADDY = {
    "ts": 1796020873.5,
    "request": {"method": "GET", "uri": "/c", "headers": {}},
    "status": 503,
    "msg": "handled request",
}
TRAEFIK = {"StartUTC": "2026-11-30T06:41:14Z", "RequestMethod": "POST", "RequestPath": "/t", "DownstreamStatus": 499}
MILLISECONDS = {"timestamp": 1796020874750, "request_method": "GET", "request_uri": "/m"}


def test_access_logs_in_json(tmp_path: Path) -> None:
    text = "".join(json.dumps(line) + "\n" for line in (NGINX, ENVOY, CADDY, TRAEFIK, MILLISECONDS)) + "{}\n[1]\n"
    trace = read(tmp_path, text, Filling(BodyTemplate("{}")))
    assert trace.left_out == {"unreadable": 2}
    assert [(one.at_s, one.method, one.target, one.recorded) for one in trace.make()] == [
        (0.0, "GET", "/a?b=1", Ended.OK),
        (0.25, "GET", "/e", Ended.CUT),
        (1.5, "GET", "/c", Ended.STATUS_5XX),
        (2.0, "POST", "/t", Ended.HUNG_UP),
        (2.75, "GET", "/m", None),
    ]
    assert next(trace.make()).headers == (("User-Agent", "c"),)


def test_whole_seconds_in_json_are_spread(tmp_path: Path) -> None:
    trace = read(tmp_path, 2 * (json.dumps(NGINX) + "\n"))
    assert [one.at_s for one in trace.make()] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            '10.0.0.1 - - [30/Nov/1970:06:41:12 +0000] "GET / HTTP/1.1" 200 12',
            "trace:2: its moment is 20,454 days from",
        ),
        ("10.0.0.1 - - " + "[" * (1 << 20), "trace:2: a line of more than 1048576 bytes; take it out"),
    ],
)
def test_a_bad_line_of_an_access_log_is_named(tmp_path: Path, line: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, LOG.splitlines()[0] + "\n" + line + "\n")
    assert error in str(caught.value)


def test_what_a_regular_expression_could_choke_on_is_left_out(tmp_path: Path) -> None:
    hostile = ["a b " + "[" * 500_000, 'a b [c] "' + "\\\\" * 250_000, "a " * 250_000, '{"a":' * 100_000]
    trace = read(tmp_path, LOG.splitlines()[0] + "\n" + "\n".join(hostile))
    assert (trace.requests, trace.left_out) == (1, {"unreadable": 4})


def test_what_gzip_packed_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(reading, "MAX_LINES", 1000)
    azure = AZURE.encode()
    with pytest.raises(TraceError, match=r"trace:1001: more than 1000 lines; cut the file into several"):
        read(tmp_path, gzip.compress(azure + b"\n" * 5000), Filling(model="m"))
    with pytest.raises(TraceError, match=r"trace:\d+: more than 1048576 bytes up to here; cut the file into several"):
        read(tmp_path, gzip.compress(azure + (azure.splitlines()[2].ljust(10_000) + b"\n") * 200), Filling(model="m"))
    for broken in (gzip.compress(azure)[:-9], gzip.compress(azure)[:40] + b"\0" * 40):
        with pytest.raises(TraceError, match=r"trace: .*; is the file whole\?"):
            read(tmp_path, broken, Filling(model="m"))


def test_a_flow_whose_answers_feed_what_follows(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        lines(
            {
                "at_s": 0,
                "target": "/sessions",
                "method": "POST",
                "flow": "f",
                "take": {"id": "session.id", "n": "list.1"},
            },
            {"at_s": 1, "target": "/s/${id}?a=1", "flow": "f", "think_s": 0.1, "fill": True, "body": '["${id}", ${n}]'},
            {"at_s": 2, "target": "/$${other}", "flow": "f", "think_s": 0},
        ),
    )
    (first,) = trace.make()
    second, third = first.then
    values = taken(first, b'{"session": {"id": "a/\\"b\\u00e9"}, "list": [0, 5]}', 50)
    made = filled(second, values)
    assert (made.target, json.loads(made.body)) == ("/s/a%2F%22b%C3%A9?a=1", ['a/"b\u00e9', 5])
    assert (third.target, third.fill) == ("/$${other}", False)
    for answer in (b"", b"[]", b'{"session": null}', b"[" * 100_000):
        with pytest.raises(UnfilledError, match="no answer before it in its flow had id, n"):
            filled(second, taken(first, answer, len(answer)))
    assert taken(first, b"{}", 2 << 20) == {}
    in_a_header = Timed(0.0, headers=(("A", "${x}"),), fill=True)
    assert filled(in_a_header, {"x": [1]}).headers == (("A", "[1]"),)
    with pytest.raises(UnfilledError, match="made of what an answer had: header A: its value holds a line end"):
        filled(in_a_header, {"x": "a\r\nb"})


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (
            {"flow": "f", "think_s": 0, "fill": True, "body": "${b}"},
            "trace:3: ${b}: no request before it in flow 'f' takes",
        ),
        (
            {"fill": True, "body": "${a}"},
            "trace:3: fill without think_s: only what follows in a flow can be made of an answer",
        ),
        ({"take": {"a": "b"}}, "trace:3: take without flow: nothing follows that could have it"),
        ({"flow": "f", "take": {"a b": "b"}}, "trace:3: take: 'a b': names are letters, digits and _"),
    ],
)
def test_a_flow_that_cannot_be_filled_is_named(tmp_path: Path, record: dict[str, object], error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, lines({"at_s": 0, "flow": "f", "take": {"a": "b"}}, {"at_s": 1, **record}))
    assert error in str(caught.value)


def test_access_logs(tmp_path: Path) -> None:
    trace = read(tmp_path, LOG)
    hung_up, listed = trace.make()
    assert trace.left_out == {"without a body (--body-template gives them one)": 1, "unreadable": 2}
    assert (hung_up.target, hung_up.recorded, listed.recorded) == ("/readyz", Ended.HUNG_UP, Ended.OK)
    assert listed.headers == (("User-Agent", "curl/8.0"),)
    filled = read(tmp_path, LOG, Filling(BodyTemplate('{"number": $number}')))
    assert filled.requests == 3
    assert [request.at_s for request in filled.make()] == [0.0, 0.75, 1.25]  # the two of one second, spread over it
    posted = list(filled.make())[2]
    assert (posted.method, posted.body, posted.recorded) == ("POST", b'{"number": 2}', Ended.STATUS_5XX)
    assert posted.headers[0] == ("Content-Type", "application/json")


ENVOY_LINES = """\
[2026-03-01T10:00:00.250Z] "GET /a HTTP/2" 200 - 0 226 12 11 "10.0.0.2" "curl/8.0" "cc21d9b0" "h" "10.0.0.3:80"
[2026-03-01T10:00:01.000Z] "GET /b HTTP/1.1" 0 DC 0 0 5 - "-" "py \\"x\\"" "cc21d9b1" "h" "-"
[2026-03-01T10:00:02.000Z] "GET /c HTTP/1.1" 503 UF,URX via_upstream - "-" 0 91 3 - "-" "istio" "i" "h" "[::1]:80" out
"""
HAPROXY_LINES = """\
Mar  1 10:00:00 host haproxy[14]: 10.0.0.2:33317 [01/Mar/2026:10:00:00.250] in~ m/w1 10/0/30/69/109 200 2750 - - ---- \
1/1/1/1/0 0/0 {h|curl 8} {} "GET /a HTTP/1.1"
::1:33318 [01/Mar/2026:10:00:01.000] in m/<NOSRV> 0/-1/-1/-1/+5 -1 +0 - - CQ-- 2/1/1/1/+1 0/1 "GET https://h/b HTTP/2.0"
::1:33318 [01/Mar/2026:10:00:01.000] in in/<NOSRV> -1/-1/-1/-1/0 400 0 - - PR-- 2/1/1/1/0 0/0 "<BADREQ>"
::1:33319 [01/Mar/2026:10:00:02.000] in m/w2 0/0/0/5/5 503 91 - - SC-- 2/1/1/1/3 0/0 "GET /c HTTP/1.1" 0/0/0 h/TLSv1.3
"""


@pytest.mark.parametrize(("log", "agents", "unreadable"), [(ENVOY_LINES, 3, 0), (HAPROXY_LINES, 0, 1)])
def test_access_logs_as_envoy_and_haproxy_write_them(tmp_path: Path, log: str, agents: int, unreadable: int) -> None:
    trace = read(tmp_path, log)
    requests = list(trace.make())
    assert [(one.at_s, one.target, one.recorded) for one in requests] == [
        (0.0, "/a", Ended.OK),
        (0.75, "/b", Ended.CUT),
        (1.75, "/c", Ended.STATUS_5XX),
    ]
    assert sum(bool(one.headers) for one in requests) == agents
    assert trace.left_out.get("unreadable", 0) == unreadable


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "trace:1: no trace that is known"),
        ("[tea] at ten\n", "(the combined or common format, Envoy's default, HAProxy's option httplog, or JSON lines)"),
        ("hello\n", "trace:1: no trace that is known"),
        (AZURE.encode("utf-16"), "trace:1: is UTF-16; convert it, as with: iconv -f UTF-16 -t UTF-8"),
        (b"\0" * (2 << 20), "trace:1: no trace that is known"),
        ('{"a": 1}\n', "trace:1: no trace that is known"),
        (LOG.splitlines()[1] + "\n", "no request in it can be sent: 1 without a body"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str | bytes, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text)
    assert error in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none: No such file or directory"):
        read_trace(tmp_path / "none", Filling())


def test_headers_stand_in_place_of_the_trace_s(tmp_path: Path) -> None:
    text = lines(
        {"at_s": 0, "flow": "f", "headers": [["authorization", "old"], ["A", "1"]]},
        {"at_s": 1, "flow": "f", "think_s": 1},
    )
    (flow,) = read(tmp_path, text, Filling(headers=(("Authorization", "new"),))).make()
    assert flow.headers == (("A", "1"), ("Authorization", "new"))
    assert flow.then[0].headers == (("Authorization", "new"),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a\n$surprise", "line 2: $surprise: there are $model, $prompt, $context_tokens, $generated_tokens, $number"),
        ("cost: $ 5", "line 1: a $ that begins no name; write $$ for a dollar"),
    ],
)
def test_templates_are_checked(text: str, error: str) -> None:
    with pytest.raises(TemplateError) as caught:
        BodyTemplate(text)
    assert str(caught.value) == error


def test_prompts_have_their_length_and_begin_differently() -> None:
    assert [len(prompt(tokens, 7).split()) for tokens in (0, 1, 3, 50)] == [0, 1, 3, 50]
    beginnings = {" ".join(prompt(50, number).split()[:4]) for number in range(10_000)}
    assert len(beginnings) == 10_000
    assert BodyTemplate("$$ ${number}").fill({"number": 3}) == b"$ 3"
