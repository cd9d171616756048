"""The admin API of a real control process: who may read, who may write, and what comes back."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from router.model import EndpointSeen, PeerObserved, State, StoreMode
from sidecar.channel import CacheCleared, FaultsChanged
from sidecar.telemetry.families import FAMILIES
from sidecar.telemetry.page import OVERFLOW_KEY, Scalar
from tests.support.control_process import ControlProcess
from tests.support.metrics_text import doubled
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.state_writer import StateWriter, worker_record

SETTINGS: dict[str, Any] = {
    "models": [{"name": "m", "endpoints": ["http://127.0.0.1:9001", "http://127.0.0.1:9002"], "default": True}]
}
ABORT = b'{"kind":"abort","status":503}'


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path, **SETTINGS) as one:
        yield one


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    """One for all the tests that change nothing."""
    with ControlProcess(tmp_path_factory.mktemp("unchanged"), **SETTINGS) as one:
        yield one


@contextmanager
def token_process(directory: Path) -> Iterator[tuple[ControlProcess, Path]]:
    token = directory / "token"
    token.write_text("first\n")
    with ControlProcess(directory, admin={"token_file": str(token)}, **SETTINGS) as one:
        yield one, token


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    """One for all the tests whose token is refused."""
    with token_process(tmp_path_factory.mktemp("token")) as (one, _):
        yield one


def rules(count: int) -> Callable[[list[object]], bool]:
    return lambda got: any(isinstance(message, FaultsChanged) and len(message.rules) == count for message in got)


@pytest.mark.parametrize(
    "target", ["/", "/healthz", "/metrics", "/routes", "/routes/explain?model=m", "/endpoints", "/config", "/faults"]
)
@pytest.mark.parametrize("unix", [True, False])
def test_reads_are_open_on_loopback_and_on_the_socket(unchanged: ControlProcess, target: str, unix: bool) -> None:
    answer = unchanged.ask(target, unix=unix)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"


def test_health_names_version_processes_and_mode(unchanged: ControlProcess) -> None:
    document = unchanged.ask("/healthz").json
    assert (document["status"], document["sidecar"], document["store_mode"]) == ("ok", "test-sidecar", "live")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", document["version"])
    assert [process["index"] for process in document["processes"]] == [0, 1]
    assert 0 <= document["uptime_s"] <= time.monotonic() - unchanged.started


def test_an_explanation_names_every_term_and_an_unknown_model_the_known_ones(unchanged: ControlProcess) -> None:
    document = unchanged.ask("/routes/explain?model=m").json
    assert {row["endpoint"] for row in document["rows"]} == {"127.0.0.1:9001", "127.0.0.1:9002"}
    assert [term["name"] for term in document["rows"][0]["terms"]] == ["warmth", "free_memory", "speed"]
    assert (document["balancer"], sorted(document["draw"]["drawn"])) == ("warm", ["127.0.0.1:9001", "127.0.0.1:9002"])
    unknown = unchanged.ask("/routes/explain?model=nobody@7")
    assert (unknown.status, unknown.json) == (404, {"error": "no route for 'nobody@7'", "known": ["m"]})
    assert unchanged.ask("/routes/explain").status == 400


def test_an_explanation_takes_a_key(tmp_path: Path) -> None:
    keyed = SETTINGS["models"][0] | {"balancer": "keyed", "key": {"header": "x-session"}}
    with ControlProcess(tmp_path, models=[keyed]) as control:
        winners = set()
        for number in range(12):
            document = control.ask(f"/routes/explain?model=m&key=k%20{number}").json
            terms = [term["name"] for term in document["rows"][0]["terms"]]
            assert terms == ["rank", "in_flight", "bound", "own_in_flight", "own_bound"]
            assert (document["balancer"], document["rows"][0]["share"]) == ("keyed", 1.0)
            assert document["draw"]["winner"] == document["rows"][0]["endpoint"]
            winners.add(document["draw"]["winner"])
        assert len(winners) == 2
        assert control.ask("/routes/explain?model=m").json["law"].startswith("without a key: ")
        assert control.ask("/routes").json["routes"][0]["balancer"] == "keyed"


def test_settings_are_shown_without_their_secrets(tmp_path: Path) -> None:
    state = {"url": "redis://user:hunter2@127.0.0.1:1/0", "namespace": "n"}
    with ControlProcess(tmp_path, state=state, **SETTINGS) as control:
        answer = control.ask("/config")
        assert answer.json["state"]["url"] == "redis://***@127.0.0.1:1/0"
        assert "hunter2" not in answer.text
        control.until_status("/readyz", 503)
        assert "hunter2" not in json.dumps(control.events())


def test_metrics_show_the_mode_that_each_data_process_goes_by(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **SETTINGS) as control:
        away = control.pages[1]
        away.words[away.scalar(Scalar.STORE_MODE_NOW)] = list(StoreMode).index(StoreMode.FROZEN)
        lines = control.ask("/metrics").text.splitlines()
        assert [line for line in lines if line.startswith("warmroute_process_store_mode{") and line.endswith(" 1")] == [
            'warmroute_process_store_mode{process="0",mode="live"} 1',
            'warmroute_process_store_mode{process="1",mode="frozen"} 1',
        ]


def test_unknown_paths_and_methods_answer_in_json(unchanged: ControlProcess) -> None:
    assert unchanged.ask("/nowhere").json == {"error": "no such path: /nowhere"}
    answer = unchanged.ask("/routes", method="POST", unix=True)
    assert (answer.status, answer.headers["allow"]) == (405, "GET,HEAD")
    assert answer.json == {"error": "POST is not allowed here"}


WRITES = [
    ("POST", "/endpoints/127.0.0.1:9001/drain"),
    ("POST", "/endpoints/127.0.0.1:9001/resume"),
    ("POST", "/faults"),
    ("DELETE", "/faults/x"),
    ("POST", "/drill"),
    ("DELETE", "/drill/x"),
    ("PUT", "/routes"),
    ("POST", "/nowhere"),
]


@pytest.mark.parametrize(("method", "target"), WRITES)
def test_no_write_over_tcp_without_a_token_file(unchanged: ControlProcess, method: str, target: str) -> None:
    for headers in ({}, {"Authorization": "Bearer guess"}, {"X-Http-Method-Override": "GET"}):
        answer = unchanged.ask(target, method=method, body=ABORT, headers=headers)
        assert answer.status == 403
        assert "admin.token_file" in answer.json["error"]
    assert unchanged.ask("/faults").json == {"faults": []}


@pytest.mark.parametrize(("method", "target"), WRITES)
def test_no_write_over_tcp_with_a_wrong_token(with_token: ControlProcess, method: str, target: str) -> None:
    for authorization in ("", "Bearer", "Bearer wrong", "Bearer firs", "Bearer first2", "Basic first", "first"):
        answer = with_token.ask(target, method=method, body=ABORT, headers={"Authorization": authorization})
        assert answer.status == 401, authorization
    assert with_token.ask("/faults").json == {"faults": []}


def test_the_token_lets_writes_through_and_a_new_one_counts_at_once(tmp_path: Path) -> None:
    first, second = {"Authorization": "Bearer first"}, {"Authorization": "bearer second"}
    with token_process(tmp_path) as (control, token):
        assert control.ask("/faults", method="POST", body=ABORT, headers=first).status == 201
        token.write_text("second")
        assert control.ask("/faults", method="POST", body=ABORT, headers=first).status == 401
        assert control.ask("/faults", method="POST", body=ABORT, headers=second).status == 201
        token.write_text("")
        assert control.ask("/faults", method="POST", body=ABORT, headers={"Authorization": "Bearer "}).status == 401
        token.unlink()
        assert control.ask("/faults", method="POST", body=ABORT, headers=second).status == 503


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9901", "127.0.0.1.evil.example", "", "[2001:db8::1]"])
def test_a_foreign_host_name_over_tcp_is_refused(unchanged: ControlProcess, host: str) -> None:
    assert unchanged.ask("/config", host=host).status == 403
    assert unchanged.ask("/config", host=host, unix=True).status == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9901", "127.0.0.1:9901", "[::1]:9901", "127.8.8.8"])
def test_names_of_the_loopback_are_welcome(unchanged: ControlProcess, host: str) -> None:
    assert unchanged.ask("/healthz", host=host).status == 200


def test_a_fault_is_put_in_force_listed_and_removed(control: ControlProcess) -> None:
    body = b'{"kind":"delay","delay_ms":20,"ratio":0.5,"model":"m","for_s":30,"id":"slow"}'
    made = control.ask("/faults", method="POST", body=body, unix=True)
    assert made.status == 201
    assert (made.json["left_s"], made.json["warnings"]) == (30.0, [])
    got = control.receive(0, rules(1), "the fault")
    (rule,) = next(m for m in got if isinstance(m, FaultsChanged) and m.rules).rules
    assert (rule.id, rule.kind, rule.delay_ms, rule.ratio, rule.model) == ("slow", "delay", 20.0, 0.5, "m")
    assert 25 < rule.until - time.monotonic() <= 30
    assert [fault["id"] for fault in control.ask("/faults").json["faults"]] == ["slow"]
    assert [fault["id"] for fault in control.ask("/routes/explain?model=m").json["faults"]] == ["slow"]
    elsewhere = b'{"kind":"abort","model":"other","id":"elsewhere"}'
    made = control.ask("/faults", method="POST", body=elsewhere, unix=True)
    assert (made.status, made.json["warnings"]) == (
        201,
        ['model: no model "other" is known now, so this strikes nothing until there is; known: m'],
    )
    assert [fault["id"] for fault in control.ask("/routes/explain?model=m").json["faults"]] == ["slow"]
    assert control.ask("/faults/elsewhere", method="DELETE", unix=True).status == 200
    assert "warmroute_faults_active 1" in control.ask("/metrics").text
    assert "slow" in control.ask("/").text
    assert control.ask("/faults/slow", method="DELETE", unix=True).json == {"id": "slow", "removed": True}
    control.receive(0, rules(0), "its end")
    assert control.ask("/faults/slow", method="DELETE", unix=True).status == 404


def test_what_is_kept_is_cleared_over_the_socket_alone(control: ControlProcess) -> None:
    assert control.ask("/cache").json == {"models": []}
    assert control.ask("/cache", method="DELETE").status == 403
    assert control.ask("/cache?model=nobody", method="DELETE", unix=True).status == 404
    assert control.ask("/cache", method="DELETE", unix=True).json == {"model": "", "cleared": True}
    control.receive(0, lambda got: CacheCleared("") in got, "the order")


def test_a_fault_ends_by_itself(control: ControlProcess) -> None:
    body = b'{"kind":"abort","for_s":0.3}'
    assert control.ask("/faults", method="POST", body=body, unix=True).status == 201
    control.receive(0, rules(1), "the fault")
    control.receive(0, rules(0), "its end")
    assert control.ask("/faults").json == {"faults": []}


def test_a_fault_of_signals_alters_what_is_told_and_gone_by_until_its_end(control: ControlProcess) -> None:
    def told(state: State) -> Callable[[list[object]], bool]:
        return lambda got: any(isinstance(m, EndpointSeen) and m.record.replicas[0].state is state for m in got)

    control.receive(0, told(State.WARM), "the endpoint")
    body = b'{"kind":"warmth_lost","id":"cold","for_s":60}'
    made = control.ask("/faults", method="POST", body=body, unix=True)
    assert (made.status, made.json["direction"]) == (201, "")
    control.receive(0, told(State.COLD), "warmth is lost")
    assert [fault["kind"] for fault in control.ask("/faults").json["faults"]] == ["warmth_lost"]
    assert {row["state"] for route in control.ask("/routes").json["routes"] for row in route["candidates"]} == {"cold"}
    assert control.ask("/faults/cold", method="DELETE", unix=True).status == 200
    control.receive(0, told(State.WARM), "it is back")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", 'the body is empty: send {"kind": KIND}'),
        (b"{", "the body is no JSON (Input data was truncated): send "),
        (b"[]", "an empty list: must be a mapping with some of: kind, id,"),
        (b"null", "null: a fault is an object with its kind"),
        (b"{}", 'kind: missing: add "kind" (what it does, see docs/faults.md)'),
        (b'{"kind":"explode"}', "kind: \"explode\": no fault of kind 'explode'"),
        (b'{"kind":"abort","ratio":1.5}', "ratio: 1.5: must be at most 1"),
        (b'{"kind":"abort","status":200}', "status: 200: must be at least 400"),
        (b'{"kind":"abort","for_s":3601}', "for_s: 3601: must be at most 3600"),
        (b'{"kind":"abort","for_s":0,"ratio":"x"}', 'for_s: 0: must be greater than 0; ratio: "x": must be a number'),
        (b'{"kind":"delay"}', "delay_ms: missing: must be given"),
        (b'{"kind":"clock_skew","tenant":"t"}', 'tenant: "t": must be left out'),
        (b'{"kind":"memory_pressure","free_ratio":2}', "free_ratio: 2: must be at most 1"),
        (b'{"kind":"abort","colour":"red"}', 'colour: "red": unknown field; '),
        (b'{"kind":"abort","id":"a b"}', 'id: "a b": must be at most 64 letters, digits, dots, underscores or hyphens'),
    ],
)
def test_a_malformed_fault_is_refused_with_what_is_wrong(unchanged: ControlProcess, body: bytes, says: str) -> None:
    answer = unchanged.ask("/faults", method="POST", body=body, unix=True)
    assert answer.status == 400
    assert answer.json["error"].startswith(says)


def test_one_drill_has_the_sidecar_at_a_time(control: ControlProcess) -> None:
    def take(body: bytes) -> tuple[int, Any]:
        answer = control.ask("/drill", method="POST", body=body, unix=True)
        return answer.status, answer.json

    assert control.ask("/drill").json == {"drill": None}
    status, refusal = take(b'{"id": "one", "renew": true}')
    assert (status, refusal["error"]) == (400, 'name: missing: add "name" (the drill\'s name)')
    assert take(b'{"id": "one", "name": "surge", "renew": true}')[0] == 404
    status, taken = take(b'{"id": "one", "name": "surge", "for_s": 30, "ends_in_s": 90}')
    assert (status, taken["drill"]["name"], round(taken["drill"]["left_s"])) == (201, "surge", 30)
    control.kill()
    control.start()  # it outlives the control process, as its faults do
    status, refusal = take(b'{"id": "two", "name": "other"}')
    assert status == 409
    told = r'the drill "surge" \(unix uid=\d+ pid=\d+\) has .*, for [89]\d s at most, for [23]\d s if it is not .*'
    assert re.fullmatch(told, refusal["error"])
    assert take(b'{"id": "one", "name": "surge", "for_s": 0.001, "renew": true}')[0] == 200
    until(lambda: control.ask("/drill").json["drill"] is None, "its time is over")
    assert control.ask("/faults?drill=one", method="POST", body=ABORT, unix=True).status == 201  # nobody had it since
    assert take(b'{"id": "two", "name": "other"}')[0] == 201
    assert control.ask("/faults?drill=one", method="POST", body=ABORT, unix=True).status == 409
    assert control.ask("/drill/one", method="DELETE", unix=True).status == 404
    assert control.ask("/drill/two", method="DELETE", unix=True).json == {"id": "two", "removed": True}
    assert control.ask("/drill").json == {"drill": None}


def test_bodies_and_the_number_of_faults_are_bounded(control: ControlProcess) -> None:
    assert control.ask("/faults", method="POST", body=b" " * 70_000, unix=True).status == 413
    for number in range(16):
        body = b'{"kind":"abort","id":"f%d"}' % number
        assert control.ask("/faults", method="POST", body=body, unix=True).status == 201
    assert control.ask("/faults", method="POST", body=b'{"kind":"abort","id":"f9"}', unix=True).status == 201
    assert control.ask("/faults", method="POST", body=ABORT, unix=True).status == 409


def test_an_unknown_endpoint_cannot_be_drained(unchanged: ControlProcess) -> None:
    answer = unchanged.ask("/endpoints/nobody/drain", method="POST", unix=True)
    assert (answer.status, answer.json["known"]) == (404, ["127.0.0.1:9001", "127.0.0.1:9002"])


def test_every_write_leaves_an_audit_line(control: ControlProcess) -> None:
    control.ask("/faults", method="POST", body=ABORT, headers={"Authorization": "Bearer hunter2"})
    control.ask("/endpoints/127.0.0.1:9001/drain", method="POST", unix=True)
    lines = [event for event in control.events() if event["event"] == "audit.write"]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/faults", 403),
        ("POST", "/endpoints/127.0.0.1:9001/drain", 200),
    ]
    assert lines[0]["caller"].startswith("tcp 127.0.0.1")
    assert re.fullmatch(r"unix uid=\d+ pid=\d+", lines[1]["caller"])
    assert "hunter2" not in json.dumps(control.events())


def test_metrics_sum_over_processes_and_show_only_endpoints_that_are_there(control: ControlProcess) -> None:
    for index, mapped in enumerate(control.pages):
        mapped.begin(100 + index, time.monotonic())
        mapped.words[mapped.model_row("m")] += 5
        mapped.words[mapped.endpoint_row("127.0.0.1:9001")] += 3
        mapped.words[mapped.endpoint_row("long-gone:1")] += 9
        mapped.words[mapped.endpoint_row(OVERFLOW_KEY)] += 1
        mapped.words[mapped.scalar(Scalar.RETRIES_TOTAL)] += 2
    assert control.data[0].send(PeerObserved(0, (), time.monotonic()))
    control.until_status("/readyz", 200)
    answer = control.ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert 'warmroute_requests_total{model="m",outcome="ok"} 10' in lines
    assert 'warmroute_attempts_total{endpoint="127.0.0.1:9001",result="success"} 6' in lines
    assert f'warmroute_attempts_total{{endpoint="{OVERFLOW_KEY}",result="success"}} 2' in lines
    assert "warmroute_retries_total 4" in lines
    assert 'warmroute_process_up{process="0"} 1' in lines
    assert 'warmroute_process_up{process="1"} 0' in lines
    assert "long-gone" not in answer.text
    names = {family.name for family in FAMILIES}
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} <= names


def test_the_status_page_is_one_document_that_escapes_what_others_say(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        asyncio.run(StateWriter(server.url, "t", ttl_s=60).put(worker_record("<script>alert(1)</script>")))
        state = {"url": server.url, "namespace": "t"}
        with ControlProcess(tmp_path, models=[{"name": "m"}], state=state) as control:
            control.receive(0, lambda got: any(isinstance(m, EndpointSeen) for m in got), "the endpoint")
            answer = control.ask("/")
    finally:
        server.stop()
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "&lt;script&gt;" in answer.text
    assert not re.search(r"<script|src=|href=|https?://(?!127\.)", answer.text)


# --- everything at once ----------------------------------------------------------------------------------------------

SPLIT = {"serve": "split", "split": [{"version": "1", "weight": 1}, {"version": "2", "weight": 1}], "rollout": {}}
EVERYTHING: dict[str, Any] = {
    "models": [
        {"name": "tensor", "default": True, "shards": {"mode": "tensor", "count": 2}, "versions": {"serve": "latest"}},
        {"name": "keyed", "shards": {"mode": "keyed", "count": 2}, "key": {"header": "x-key"}, "versions": SPLIT},
        {
            "name": "split",
            "versions": {**SPLIT, "mirror": {"version": "2"}},
            "cache": {},
            "fallback": ["plain"],
        },
        {"name": "plain", "affinity": {}, "on_no_candidate": "wait"},
        {
            "name": "found",
            "dns": {"name": "found.invalid", "port": 8000},
            "probe": {"kind": "triton"},
            "warmup": {"requests": [{"name": "b1", "path": "/infer"}, {"name": "b8", "path": "/infer"}]},
        },
    ],
    "endpoints": [
        {
            "url": f"{scheme}://127.0.0.1:{port + number}",
            "group": "left" if number < 2 else "right",
            "models": [
                f"tensor@{number // 2}#{number % 2}",
                f"keyed@{1 + number // 2}#{number % 2}",
                "split@1",
                "plain",
            ],
            "probe": {"kind": "vllm", "orca": {}},
        }
        for scheme, port in (("http", 9001), ("grpc", 9101))
        for number in range(4)
    ],
    "dns": {"servers": ["127.0.0.1:1"]},
}


def test_no_series_stands_on_a_page_twice(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **EVERYTHING) as control:
        text = control.ask("/metrics").text
        assert doubled(text) == []
        for state in ("complete", "incomplete"):
            assert f'warmroute_groups{{model="tensor",version="0",state="{state}"}} ' in text
        known = control.ask("/routes/explain?model=keyed%239").json["known"]
        assert len(known) == len(set(known))
        assert {"keyed#0", "keyed#1", "split@1"} <= set(known)
