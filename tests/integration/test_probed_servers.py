"""A control process and HTTP servers that answer as Triton, vLLM, SGLang, KServe, MLServer and NIM do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router.model import EndpointRecord, EndpointSeen, LoadReport, PeerObserved, State
from tests.support.control_process import ControlProcess
from tests.support.fleet import observation
from tests.support.http_origin import Handler, HttpOrigin
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODELS = '{"object":"list","data":[{"id":"m","object":"model","owned_by":"%s"}]}'
Said = tuple[int, str]
WITHIN_S = 10.0


class Server(HttpOrigin):
    """A real HTTP server whose answers a test sets by path; a page that hangs is ``None``."""

    def __init__(self, **answers: Said | None) -> None:
        self.answers: dict[str, Said | None] = {f"/{path.replace('__', '/')}": said for path, said in answers.items()}
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()
        server = self

        class Answers(Handler):
            def get(self) -> None:
                server.asked[self.path] += 1
                said = server.answers.get(self.path, (404, "Not Found"))
                if said is None:
                    server.released.wait(20)
                    said = (200, "")
                status, text = said
                self.answer(text.encode(), status)

        super().__init__(Answers)

    def stop(self) -> None:
        self.released.set()
        super().stop()


def triton() -> Server:
    page = """\
nv_inference_exec_count{model="m",version="1"} 5
nv_inference_pending_request_count{model="m",version="1"} 2
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 16000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 4000
"""
    return Server(v2=(200, '{"name":"triton"}'), v2__models__m__ready=(400, ""), metrics=(200, page))


def vllm() -> Server:
    page = """\
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 0.0
"""
    return Server(health=(503, ""), metrics=(200, page), v1__models=(200, MODELS % "vllm"))


def sglang() -> Server:
    page = 'sglang:num_queue_reqs{model_name="m"} 1.0\nsglang:token_usage{model_name="m"} 0.5\n'
    return Server(health=(503, ""), metrics=(200, page), v1__models=(200, MODELS % "sglang"))


def nim() -> Server:
    page = 'num_requests_waiting{model_name="m"} 7.0\ngpu_cache_usage_perc{model_name="m"} 0.125\n'
    ready = '{"object":"health.response","message":"not yet"}'
    return Server(v1__health__ready=(503, ready), v1__metrics=(200, page), v1__models=(200, MODELS % "system"))


def kserve() -> Server:
    page = 'request_predict_seconds_count{model_name="m"} 2.0\n'
    return Server(v2=(200, '{"name":"kserve"}'), v2__models__m__ready=(503, '{"error":"x"}'), metrics=(200, page))


def mlserver() -> Server:
    page = 'model_infer_request_success_total{model="m",version="1"} 2.0\n'
    return Server(v2=(200, '{"name":"mlserver"}'), v2__models__m__ready=(400, '{"error":"x"}'), metrics=(200, page))


def http() -> Server:
    return Server(v2__health__ready=(503, ""))


def records(got: list[object]) -> list[EndpointRecord]:
    return [message.record for message in got if isinstance(message, EndpointSeen)]


def last(control: ControlProcess, done: Callable[[EndpointRecord], bool], what: str) -> EndpointRecord:
    """Read what the control process says until one record is as wanted."""
    got = control.receive(0, lambda got: any(map(done, records(got))), what)
    return next(filter(done, records(got)))


def is_warm(record: EndpointRecord) -> bool:
    return record.replicas[0].state is State.WARM


READY = {
    "http": ("/v2/health/ready", 0, None, (None, None), None, None),
    "triton": ("/v2/models/m/ready", 5, 2, (12000, 16000), None, 1.0),
    "vllm": ("/health", 0, 3, (None, None), 0.75, 0.0),
    "sglang": ("/health", 0, 1, (None, None), 0.5, None),
    "nim": ("/v1/health/ready", 0, 7, (None, None), 0.875, None),
    "kserve": ("/v2/models/m/ready", 2, None, (None, None), None, 1.0),
    "mlserver": ("/v2/models/m/ready", 2, None, (None, None), None, 1.0),
}


@pytest.mark.parametrize("kind", list(READY))
def test_what_a_server_says_stands_in_its_record(kind: str, tmp_path: Path) -> None:
    path, _, queue, memory, ratio, warmth = READY[kind]
    with globals()[kind]() as server:
        probe = {"kind": kind, "interval_s": 0.05, "metrics_port": server.port}
        models = [{"name": "m", "endpoints": [server.url], "probe": probe}]
        with ControlProcess(tmp_path, models=models) as control:
            said = server.answers[path]
            found = last(control, lambda record: record.replicas[0].state is State.LOADING, "not ready")
            assert found.replicas[0].reason == f"not ready (HTTP {said[0]})"
            server.answers[path] = (200, "")
            found = last(control, is_warm, "ready")
            assert found.queue_depth == queue
            assert (found.free_memory_bytes, found.total_memory_bytes) == memory
            assert found.free_memory_ratio == ratio
            assert dict(found.replicas[0].warmth) == ({} if warmth is None else {"any": warmth})
            server.answers[path] = (200, '{"ready": false}')
            found = last(control, lambda record: record.replicas[0].state is State.LOADING, "its body says not ready")
            assert found.replicas[0].reason == 'not ready (HTTP 200 with "ready": false)'


def metric(control: ControlProcess, name: str) -> float:
    (line,) = (line for line in control.ask("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def test_what_probing_costs_and_what_is_refused_are_metrics_and_nothing_refused_changes_a_weight(
    tmp_path: Path,
) -> None:
    with vllm() as server, vllm() as other:
        for one in (server, other):
            one.answers["/health"] = (200, "")
        probe = {"kind": "vllm", "interval_s": 0.05}
        models = [{"name": "m", "endpoints": [server.url, other.url], "probe": probe}]
        with ControlProcess(tmp_path, models=models) as control:
            last(control, lambda record: record.id.endswith(str(server.port)) and is_warm(record), "ready")

            def candidates() -> dict[str, Any]:
                explained = control.ask("/routes/explain?model=m").json
                return {row["endpoint"]: row for row in explained["rows"]}

            until(
                lambda: all(row["reason"] is None for row in candidates().values()) and len(candidates()) == 2,
                "both told",
                WITHIN_S,
            )

            def free(name: str) -> dict[str, Any]:
                return next(t for t in candidates()[f"127.0.0.1:{server.port}"]["terms"] if t["name"] == name)

            assert free("free_memory")["score"] == 0.75
            server.answers["/metrics"] = (200, "vllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc NaN\n")
            until(lambda: 'source="probe",reason="nan"} 0' not in control.ask("/metrics").text, "refused", WITHIN_S)
            until(lambda: free("free_memory")["unknown"], "unknown", WITHIN_S)
            assert free("free_memory")["score"] == 0.75, "the median of those that are known"
            text = control.ask("/metrics").text
            assert 'warmroute_signals_refused_total{source="probe",reason="negative"}' in text
            assert metric(control, "warmroute_probe_questions_total") > 8
            assert metric(control, "warmroute_probe_bytes_total") > 500
            assert metric(control, "warmroute_probe_seconds_total") > 0


def test_a_load_report_that_a_data_process_saw_stands_over_what_probes_found(tmp_path: Path) -> None:
    with vllm() as server:
        server.answers["/health"] = (200, "")
        probe = {"kind": "vllm", "interval_s": 0.05}
        models = [{"name": "m", "endpoints": [server.url], "probe": probe, "load_reports": True}]
        with ControlProcess(tmp_path, models=models, policies={"freshness": {"full_s": 1.0, "ttl_s": 2.0}}) as control:
            last(control, is_warm, "ready")
            observed = replace(
                observation(f"127.0.0.1:{server.port}", 0, successes=1, version=""), report=LoadReport(0.5, 9, 0.125)
            )
            control.hello()
            assert control.data[0].send(PeerObserved(0, (observed,), time.monotonic()))

            def shown() -> dict[str, Any]:
                (row,) = control.ask("/endpoints").json["endpoints"]
                return {name: row[name] for name in ("queue_depth", "cpu_load", "free_memory_ratio")}

            until(
                lambda: shown() == {"queue_depth": 9, "cpu_load": 0.5, "free_memory_ratio": 0.125},
                "what was observed",
                WITHIN_S,
            )
            until(
                lambda: shown() == {"queue_depth": 3, "cpu_load": None, "free_memory_ratio": 0.75},
                "what probes found",
                WITHIN_S,
            )


def test_sleep_names_and_a_page_that_hangs(tmp_path: Path) -> None:
    with vllm() as server:
        server.answers |= {"/health": (200, ""), "/is_sleeping": (200, '{"is_sleeping":true}')}
        probe = {"kind": "vllm", "interval_s": 0.05, "timeout_s": 0.3}
        models = [{"name": name, "endpoints": [server.url], "probe": probe} for name in ("m", "other")]
        with ControlProcess(tmp_path, models=models) as control:
            last(control, lambda record: record.replicas[0].state is State.COLD and record.queue_depth == 3, "asleep")
            server.answers |= {"/is_sleeping": (200, '{"is_sleeping":false}'), "/metrics": None}
            found = last(control, is_warm, "awake, whatever its metrics page does")
            assert found.replicas[1].reason == "it serves m, not other; check probe.served_as"
            server.answers["/v1/models"] = (200, '{"data":[{"id":"m"},{"id":"other"}]}')
            last(control, lambda record: is_warm(record) and record.replicas[1].state is State.WARM, "the other, too")
            named, probed = server.asked["/v1/models"], server.asked["/health"]
            until(lambda: server.asked["/health"] > probed + 5, "probes", WITHIN_S)
            assert server.asked["/v1/models"] < named + 3, "names that are known are asked seldom"


def test_auto_recognises_each_and_asks_it_in_its_own_way(tmp_path: Path) -> None:
    kinds = {"triton": triton(), "vllm": vllm(), "sglang": sglang(), "nim": nim(), "kserve": kserve()}
    for kind, server in kinds.items():
        server.answers[READY[kind][0]] = (200, '{"object":"health.response"}')
    probe = {"kind": "auto", "interval_s": 0.05, "load": False}
    models = [{"name": "m", "endpoints": [server.url for server in kinds.values()], "probe": probe}]
    with contextlib.ExitStack() as started:
        for server in kinds.values():
            started.enter_context(server)
        control = started.enter_context(ControlProcess(tmp_path, models=models))
        warm: set[str] = set()

        def all_warm(got: list[object]) -> bool:
            warm.update(record.id for record in records(got) if is_warm(record))
            return len(warm) == len(kinds)

        control.receive(0, all_warm, "all warm")
        told = {event["id"]: event["kind"] for event in control.events() if event["event"] == "probe.recognised"}
        assert told == {f"127.0.0.1:{server.port}": kind for kind, server in kinds.items()}
