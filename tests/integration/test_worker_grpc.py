"""The worker's gRPC surface as a process: methods, statuses, health, deadlines, load reports, drains, a sidecar."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from warmroute_pb.v1 import beside_pb2 as beside
from warmroute_pb.v1 import open_inference_pb2 as oip
from warmroute_pb.v1 import open_inference_pb2_grpc as stubs

from tests.support.control_process import ControlProcess
from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess, echo_body

SERVICE = "/inference.GRPCInferenceService/"
LIMIT = 100_000


class GrpcWorker:
    """A worker with gRPC, and a channel to it."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        process.listening()
        self.address = str(process.event("worker.listening")["grpc"]).removeprefix("grpc://")
        self.port = int(self.address.rpartition(":")[2])
        self.channel = grpc.insecure_channel(self.address, options=(("grpc.use_local_subchannel_pool", 1),))
        self.stub = stubs.GRPCInferenceServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def health(self, service: str = "") -> int:
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check", None, beside.HealthCheckResponse.FromString)
        return int(check(beside.HealthCheckRequest(service=service).SerializeToString(), timeout=10).status)

    def watch(self, service: str = "") -> Any:
        method = self.channel.unary_stream("/grpc.health.v1.Health/Watch", None, beside.HealthCheckResponse.FromString)
        return method(beside.HealthCheckRequest(service=service).SerializeToString(), timeout=20)


@contextmanager
def grpc_worker(*flags: str) -> Iterator[GrpcWorker]:
    with WorkerProcess("--engine", "deterministic", "--grpc-listen", "127.0.0.1:0", *flags) as process:
        worker = GrpcWorker(process)
        try:
            yield worker
        finally:
            worker.channel.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[GrpcWorker]:
    """One worker for what leaves no trace: model ``m``, one thread, a queue of one, a body limit of 100,000 bytes."""
    flags = ("--model", "m", "--id", "w1", "--concurrency", "1", "--queue", "1", "--body-limit-bytes", str(LIMIT))
    with grpc_worker(*flags) as worker:
        worker.process.warm("m")
        yield worker


def infer(model: str = "m", version: str = "", values: tuple[float, ...] = (1.0,), **parameters: float) -> Any:
    request = oip.ModelInferRequest(model_name=model, model_version=version, id="7")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
    for name, value in parameters.items():
        request.parameters[name].double_param = value
    return request


def failure(call: Any, *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=10, **options)
    error: Any = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata())


def test_an_inference_and_what_the_server_says_of_itself_and_of_its_model(shared: GrpcWorker) -> None:
    stub = shared.stub
    answer = stub.ModelInfer(infer(values=(1.0, 2.5)))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "7")
    assert list(answer.raw_output_contents) == [struct.pack("<2f", 1, 2.5)]
    assert stub.ServerLive(oip.ServerLiveRequest()).live
    assert stub.ServerReady(oip.ServerReadyRequest()).ready
    assert stub.ModelReady(oip.ModelReadyRequest(name="m", version="1")).ready
    said = stub.ServerMetadata(oip.ServerMetadataRequest())
    assert (said.name, said.version, list(said.extensions)) == tuple(shared.process.ask("/v2")[1].values())
    known = stub.ModelMetadata(oip.ModelMetadataRequest(name="m"))
    assert (known.name, list(known.versions), known.platform) == ("m", ["1"], "warmroute_deterministic")
    assert [(one.name, one.datatype, list(one.shape)) for one in known.inputs] == [("INPUT0", "FP32", [-1, -1])]
    config = stub.ModelConfig(oip.ModelConfigRequest(name="m")).config
    assert (config.name, config.max_batch_size, list(config.version_policy.specific.versions)) == ("m", 0, [1])
    assert (config.input[0].data_type, list(config.input[0].dims)) == (oip.TYPE_FP32, [-1, -1])


def test_statistics_are_those_of_http(shared: GrpcWorker) -> None:
    shared.stub.ModelInfer(infer())
    (stats,) = shared.stub.ModelStatistics(oip.ModelStatisticsRequest(name="m")).model_stats
    (same,) = shared.process.ask("/v2/models/m/stats")[1]["model_stats"]
    assert stats.inference_count == same["inference_count"] > 0
    assert stats.inference_stats.success.ns == same["inference_stats"]["success"]["ns"] > 0
    assert stats.batch_stats[0].compute_infer.count == same["batch_stats"][0]["compute_infer"]["count"]
    assert len(shared.stub.ModelStatistics(oip.ModelStatisticsRequest()).model_stats) == 1


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        ("ModelInfer", infer("x"), "NOT_FOUND", "model 'x' is not served here; served: m"),
        ("ModelInfer", infer(version="9"), "NOT_FOUND", "model 'm': version '9' is not served here; served: 1"),
        ("ModelReady", oip.ModelReadyRequest(name="x"), "NOT_FOUND", "model 'x' is not served here; served: m"),
        ("ModelMetadata", oip.ModelMetadataRequest(name="x"), "NOT_FOUND", "model 'x' is not served here; served: m"),
        ("ModelConfig", oip.ModelConfigRequest(name="x"), "NOT_FOUND", "model 'x' is not served here; served: m"),
        (
            "ModelStatistics",
            oip.ModelStatisticsRequest(name="x"),
            "NOT_FOUND",
            "model 'x' is not served here; served: m",
        ),
        (
            "ModelInfer",
            oip.ModelInferRequest(model_name="m"),
            "INVALID_ARGUMENT",
            "input 'INPUT0': missing; expected FP32 [-1, -1]",
        ),
        (
            "ModelInfer",
            infer(service_ms=-1),
            "INVALID_ARGUMENT",
            "model 'm': parameter 'service_ms': -1.0: expected a number from 0 to 600000",
        ),
    ],
)
def test_statuses(shared: GrpcWorker, method: str, request_: Message, code: str, text: str) -> None:
    status, said, trailers = failure(getattr(shared.stub, method), request_)
    assert (status.name, said) == (code, text)
    assert trailers == {"warmroute-worker": "w1"}


def test_a_message_over_the_limit_and_one_that_is_none(shared: GrpcWorker) -> None:
    status, _, trailers = failure(shared.stub.ModelInfer, infer(values=(0.0,) * (LIMIT // 4 + 1)))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailers == {}, "docs/surfaces.md says so: the library ends it"
    status, text, _ = failure(shared.channel.unary_unary(SERVICE + "ModelInfer"), b"\xff")
    assert (status, text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "inference request: the message is no ModelInferRequest",
    )
    for path in (SERVICE + "ModelMetadata", SERVICE + "RepositoryIndex", "/grpc.health.v1.Health/Check"):
        status, text, trailers = failure(shared.channel.unary_unary(path), b"\xff")
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith("the message is no "), text
        assert trailers == ({} if "Health" in path else {"warmroute-worker": "w1"})
    reports = shared.channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")
    assert failure(lambda *given, **options: list(reports(*given, **options)), b"\xff")[0].name == "INVALID_ARGUMENT"
    status, _, trailers = failure(shared.channel.unary_unary(SERVICE + "TraceSetting"), b"")
    assert (status, trailers) == (grpc.StatusCode.UNIMPLEMENTED, {})
    large = infer(values=(1.0,) * 20_000)  # read in a thread
    assert len(shared.stub.ModelInfer(large).raw_output_contents[0]) == 80_000


def test_a_full_queue_is_unavailable_with_a_time_to_come_back_and_shared_with_http(shared: GrpcWorker) -> None:
    running_ = [shared.stub.ModelInfer.future(infer(service_ms=60_000)) for _ in range(2)]
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 2, "both are there")
    status, text, trailers = failure(shared.stub.ModelInfer, infer())
    assert (status, text) == (grpc.StatusCode.UNAVAILABLE, "the worker's queue is full (1 requests wait)")
    assert trailers["grpc-retry-pushback-ms"] == "1000"
    assert shared.process.ask("/v2/models/m/infer", echo_body())[0] == 503
    for call in running_:
        call.cancel()
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 0, "their places are free")


def test_deadlines_and_cancellations_reach_the_run(shared: GrpcWorker) -> None:
    def cancelled() -> int:
        return int(shared.process.ask("/stats")[1]["models"]["m"]["cancelled"])

    before = cancelled()
    with pytest.raises(grpc.RpcError) as caught:
        shared.stub.ModelInfer(infer(service_ms=20_000), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: cancelled() == before + 1, "the run with the deadline ends")
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 0, "its place is free")  # or it is taken for the next
    call = shared.stub.ModelInfer.future(infer(service_ms=20_000))
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 1, "it runs")
    call.cancel()
    until(lambda: cancelled() == before + 2, "the run that was given up ends")
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 0, "its place is free")


def test_a_time_that_only_the_worker_is_told_is_kept(shared: GrpcWorker) -> None:
    request = infer(service_ms=20_000)
    request.parameters["timeout"].int64_param = 100_000  # microseconds
    code, text, trailers = failure(shared.stub.ModelInfer, request)
    assert (code, text) == (grpc.StatusCode.DEADLINE_EXCEEDED, "model 'm': its time was over while it ran")
    assert trailers["warmroute-worker"] == "w1"
    until(lambda: shared.process.ask("/stats")[1]["in_flight"] == 0, "its place is free")
    over = (("x-request-timeout-ms", "0"),)
    code, text, trailers = failure(shared.stub.ModelInfer, infer(), metadata=over)
    assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "model 'm': its time was over before it could begin")
    assert trailers["grpc-retry-pushback-ms"] == "1000"


def raw_call(port: int, path: str, body: bytes, *more: tuple[str, str]) -> dict[str, str]:
    """Make one call and return its trailers: gRPC's own client keeps load reports to itself."""
    core = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    core.initiate_connection()
    head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "w"), ("te", "trailers")]
    core.send_headers(1, [*head, ("content-type", "application/grpc"), *more])
    core.send_data(1, b"\0" + struct.pack(">I", len(body)) + body, end_stream=True)
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        while True:
            sock.sendall(core.data_to_send())
            for event in core.receive_data(sock.recv(65536)):
                if isinstance(event, h2.events.TrailersReceived):
                    return {str(name): str(value) for name, value in event.headers or ()}


def test_load_reports_in_trailers_and_headers_are_opt_in(shared: GrpcWorker) -> None:
    body = infer().SerializeToString()
    plain = raw_call(shared.port, SERVICE + "ModelInfer", body)
    assert "endpoint-load-metrics-bin" not in plain
    asked = raw_call(shared.port, SERVICE + "ModelInfer", body, ("endpoint-load-metrics-format", "bin"))
    assert asked["endpoint-load-metrics-bin"]
    assert asked["warmroute-worker"] == "w1"


def test_load_reports_out_of_band_reach_a_sidecar(shared: GrpcWorker, tmp_path: Path) -> None:
    stream = shared.channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", None, beside.OrcaLoadReport.FromString
    )
    request = beside.OrcaLoadReportRequest(report_interval=Duration(nanos=1))
    reports = stream(request.SerializeToString(), timeout=20)
    first, second = next(reports), next(reports)
    reports.cancel()
    assert "queue_depth" in first.named_metrics
    assert 0 < second.mem_utilization < 1
    probe = {"kind": "http", "orca": {"port": shared.port, "interval_s": 0.5}}
    models = [{"name": "m", "endpoints": [shared.process.address], "probe": probe}]
    with ControlProcess(tmp_path, models=models) as control:

        def told() -> bool:
            (row,) = control.ask("/endpoints").json["endpoints"]
            return row["cpu_load"] is not None and row["queue_depth"] == 0

        until(told, "the load that it streams")
        assert "warmroute_load_streams 1" in control.ask("/metrics").text


def test_a_stream_is_answered_in_order_and_outlives_what_fails(shared: GrpcWorker) -> None:
    wrong = infer()
    wrong.ClearField("raw_input_contents")
    wrong.id = "8"
    answers = list(shared.stub.ModelStreamInfer(iter([infer(), wrong, infer("x"), infer()]), timeout=10))
    assert [answer.infer_response.id for answer in answers] == ["7", "8", "7", "7"]
    assert [answer.error_message for answer in answers] == [
        "",
        "input 'INPUT0': shape [1, 1] takes 1 elements, contents.fp32_contents has 0",
        "model 'x' is not served here; served: m",
        "",
    ]
    assert answers[3].infer_response.raw_output_contents == [struct.pack("<f", 1)]
    parameters = [answer.infer_response.parameters for answer in answers]
    assert [list(given) for given in parameters] == [["triton_final_response"]] * 4
    assert all(given["triton_final_response"].bool_param for given in parameters), "each is its request's last one"


def test_an_empty_last_answer_may_be_asked_for_and_is_not_needed(shared: GrpcWorker) -> None:
    wanting, wrong = infer(), infer()
    wanting.parameters["triton_enable_empty_final_response"].bool_param = True
    wrong.parameters["triton_enable_empty_final_response"].string_param = "yes"
    answers = list(shared.stub.ModelStreamInfer(iter([wanting, wrong]), timeout=10))
    assert [answer.error_message for answer in answers] == [
        "",
        "inference request: parameter 'triton_enable_empty_final_response' is 'yes', expected true or false",
    ]
    assert answers[0].infer_response.parameters["triton_final_response"].bool_param
    assert list(shared.stub.ModelInfer(wanting, timeout=10).parameters) == [], "not in a stream"


def test_a_stream_ends_with_the_worker_after_its_last_answer() -> None:
    with grpc_worker("--model", "m", "--settle-s", "0.1", "--drain-s", "10") as worker:
        worker.process.warm("m")
        ask = threading.Event()

        def requests() -> Iterator[Any]:
            yield infer(service_ms=4000)
            ask.wait(20)

        answers = worker.stub.ModelStreamInfer(requests(), timeout=20)
        until(lambda: worker.process.ask("/stats")[1]["in_flight"] == 1, "it runs")
        worker.process.terminate()
        assert next(answers).infer_response.id == "7"
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the worker is draining"
        ask.set()
        assert worker.process.wait() == 0
        assert worker.process.text == []


def test_load_reports_in_answers_reach_a_sidecar_that_asks_for_them(shared: GrpcWorker, tmp_path: Path) -> None:
    models = [{"name": "m", "endpoints": [shared.process.address], "load_reports": True}]
    with running(tmp_path, settings={"models": models}, processes=1) as sidecar:
        connection = http.client.HTTPConnection(sidecar.listen, timeout=10)

        def told() -> bool:
            connection.request("POST", "/v2/models/m/infer", json.dumps(echo_body()))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            assert answer.headers["endpoint-load-metrics"] is None, "this caller did not ask for it"
            return sidecar.metric("warmroute_load_reports_total") > 0

        until(told, "the load that came with an answer")
        connection.close()


def test_health_follows_each_model_from_cold_to_draining() -> None:
    serving, not_serving, unknown = 1, 2, 3
    with grpc_worker("--model", "m", "--load-s", "5", "--settle-s", "0.2") as worker:
        watches = {name: worker.watch(name) for name in ("", "m", "m@1")}
        told = {name: [next(watch).status] for name, watch in watches.items()}
        assert next(worker.watch("x")).status == unknown
        status, _, _ = failure(worker.channel.unary_unary("/grpc.health.v1.Health/Check"), b"\x0a\x01x")
        assert status is grpc.StatusCode.NOT_FOUND
        assert worker.health() == not_serving
        status, text, _ = failure(worker.stub.ModelInfer, infer())
        assert status is grpc.StatusCode.UNAVAILABLE
        assert text.startswith("model 'm' is not ready")
        assert not worker.stub.ModelReady(oip.ModelReadyRequest(name="m")).ready
        worker.process.warm("m")
        until(lambda: worker.health() == serving, "ready")
        assert worker.health("inference.GRPCInferenceService") == worker.health("m") == serving
        for name, watch in watches.items():
            told[name].append(next(watch).status)
        worker.process.terminate()
        for name, watch in watches.items():
            told[name] += [answer.status for answer in watch]  # until the worker ends them
        assert told == {name: [not_serving, serving, not_serving] for name in watches}
        assert worker.process.wait() == 0
    assert worker.process.text == [], "nothing on standard error but events"


def test_draining_answers_what_runs_and_what_still_comes() -> None:
    with grpc_worker("--model", "m", "--settle-s", "4", "--drain-s", "20") as worker:
        worker.process.warm("m")
        slow = [worker.stub.ModelInfer.future(infer(service_ms=6000)) for _ in range(4)]
        until(lambda: worker.process.ask("/stats")[1]["in_flight"] == 4, "all run")
        worker.process.terminate()
        worker.process.event("worker.draining")
        assert [worker.stub.ModelInfer(infer()).id for _ in range(10)] == ["7"] * 10
        assert [call.result(30).id for call in slow] == ["7"] * 4
        assert worker.process.wait() == 0


def test_what_does_not_end_in_time_is_unavailable() -> None:
    with grpc_worker("--model", "m", "--settle-s", "0", "--drain-s", "0.3") as worker:
        worker.process.warm("m")
        slow = worker.stub.ModelInfer.future(infer(service_ms=60_000))
        until(lambda: worker.process.ask("/stats")[1]["in_flight"] == 1, "it runs")
        worker.process.terminate()
        error = slow.exception(10)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "model 'm': the worker stopped before this was done"
        assert worker.process.wait() == 0


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with WorkerProcess("--engine", "deterministic", "--model", "m", "--grpc-listen", address) as worker:
            failed = worker.event("worker.failed")
            assert failed["error"] == f"--grpc-listen {address}: the address cannot be had"
            assert worker.wait() == 2


def test_a_sidecar_finds_workers_by_their_records_and_loses_no_call_when_one_drains(
    server: RedisServer, tmp_path: Path
) -> None:
    settings = {
        "state": {"url": server.url, "namespace": "t"},
        "listeners": [{"address": "127.0.0.1:0"}, {"address": "127.0.0.1:0", "protocol": "grpc"}],
        "models": [{"name": "m"}],
    }
    flags = ("--model", "m", "--state", server.url, "--namespace", "t", "--settle-s", "1.5")
    with (
        grpc_worker(*flags, "--id", "a") as first,
        grpc_worker(*flags, "--id", "b") as second,
        running(tmp_path, settings=settings, processes=1) as sidecar,
    ):
        first.process.warm("m")
        second.process.warm("m")
        listen = sidecar.process.events("listener.open")[1]["address"]
        with grpc.insecure_channel(listen) as channel:
            call = stubs.GRPCInferenceServiceStub(channel).ModelInfer  # type: ignore[no-untyped-call]

            def answered() -> set[str]:
                seen = set()
                for _ in range(8):
                    try:
                        _, done = call.with_call(infer(), timeout=10)
                    except grpc.RpcError:
                        return set()
                    seen.add(dict(done.trailing_metadata())["warmroute-worker"])
                return seen

            until(lambda: answered() == {"a", "b"}, "calls reach both")
            failures: list[Any] = []
            stop = threading.Event()

            def ask() -> None:
                while not stop.is_set():
                    try:
                        call(infer(service_ms=20), timeout=10)
                    except grpc.RpcError as error:
                        failures.append(error)

            callers = [threading.Thread(target=ask) for _ in range(4)]
            for caller in callers:
                caller.start()
            time.sleep(0.2)
            first.process.terminate()
            assert first.process.wait() == 0
            time.sleep(0.2)
            stop.set()
            for caller in callers:
                caller.join(15)
            assert failures == []
            assert answered() == {"b"}


def test_the_repository_is_that_of_http() -> None:
    with grpc_worker("--model", "m", "--model-control", "explicit", "--id", "w1") as worker:
        stub = worker.stub

        def index() -> list[tuple[str, str]]:
            return [(row.name, row.state) for row in stub.RepositoryIndex(oip.RepositoryIndexRequest()).models]

        assert index() == [("m", "UNAVAILABLE")]
        assert list(stub.RepositoryIndex(oip.RepositoryIndexRequest(ready=True)).models) == []
        stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="m"), timeout=10)
        assert index() == [("m", "READY")]
        assert stub.ModelInfer(infer()).id == "7"
        refused = oip.RepositoryModelLoadRequest(model_name="m")
        refused.parameters["config"].string_param = "{}"
        status, text, _ = failure(stub.RepositoryModelLoad, refused)
        assert (status, text[:20]) == (grpc.StatusCode.INVALID_ARGUMENT, "parameter 'config': ")
        status, _, _ = failure(stub.RepositoryModelLoad, oip.RepositoryModelLoadRequest(model_name="x"))
        assert status is grpc.StatusCode.NOT_FOUND
        stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name="m"), timeout=10)
        assert index() == [("m", "UNAVAILABLE")]
