"""A control process and real gRPC servers that stream their load reports (ORCA, OpenRcaService)."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc

from router.model import LoadReport, LoadsReported
from tests.support.control_process import ControlProcess
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self


def report(utilization: float) -> bytes:
    return b"\x49" + struct.pack("<d", utilization)  # field 9, application_utilization


class Reporter:
    """A gRPC server that streams what a test gives it; ``asked`` are the requests that came."""

    def __init__(self, *reports: bytes, service: bool = True) -> None:
        self._reports = reports
        self._ended = threading.Event()
        self.asked: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        if service:
            method = grpc.unary_stream_rpc_method_handler(self._stream)
            handler = grpc.method_handlers_generic_handler(
                "xds.service.orca.v3.OpenRcaService", {"StreamCoreMetrics": method}
            )
            self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.url = f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._server.stop(0).wait(5)

    def _stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.asked.append(request)
        yield from self._reports
        self._ended.wait(20)


def model(server: Reporter, **orca: Any) -> dict[str, Any]:
    return {"name": "m", "endpoints": [server.url], "probe": {"orca": orca}}


def said(got: list[object]) -> list[LoadReport]:
    return [one for message in got if isinstance(message, LoadsReported) for _, one in message.reports]


def test_what_is_streamed_reaches_the_data_processes_and_holds_while_the_call_stands(tmp_path: Path) -> None:
    with Reporter(report(0.25)) as server, ControlProcess(tmp_path, models=[model(server, interval_s=0.5)]) as control:
        got = control.receive(0, lambda got: len(said(got)) >= 2, "told, and told again")
        assert set(said(got)) == {LoadReport(0.25)}
        metrics = control.ask("/metrics").text
        assert "warmroute_load_streams 1" in metrics
        assert "warmroute_load_reports_streamed_total 1" in metrics
        (row,) = control.ask("/endpoints").json["endpoints"]
        assert row["cpu_load"] == 0.25
    assert server.asked == [b"\x0a\x06\x10\x80\xca\xb5\xee\x01"], "report_interval: 500,000,000 ns"


def test_many_reports_come_in_one_call_and_the_last_counts(tmp_path: Path) -> None:
    reports = [report(number / 7000) for number in range(7001)]  # more than a window's bytes
    with Reporter(*reports) as server, ControlProcess(tmp_path, models=[model(server)]) as control:
        control.receive(0, lambda got: LoadReport(1.0) in said(got), "the last one")
        assert "warmroute_load_reports_streamed_total 7001" in control.ask("/metrics").text


def test_what_is_refused_is_counted_by_its_reason_and_the_stream_goes_on(tmp_path: Path) -> None:
    bad = (report(float("nan")), report(float("inf")), report(-1.0), b"\xff")
    with Reporter(*bad, report(0.5)) as server, ControlProcess(tmp_path, models=[model(server)]) as control:
        got = control.receive(0, said, "the good one")
        assert said(got)[0] == LoadReport(0.5)
        page = control.ask("/metrics").text
        for reason, count in (("nan", 1), ("infinite", 1), ("negative", 1), ("malformed", 1)):
            assert f'warmroute_signals_refused_total{{source="stream",reason="{reason}"}} {count}' in page


def test_zeros_that_protobuf_leaves_out_are_zeros(tmp_path: Path) -> None:
    with Reporter(b"") as server, ControlProcess(tmp_path, models=[model(server)]) as control:
        got = control.receive(0, said, "a report of zeros")
        assert said(got)[0] == LoadReport(0.0)
        assert control.ask("/endpoints").json["endpoints"][0]["cpu_load"] == 0.0
        page = control.ask("/metrics").text
        assert "warmroute_load_reports_streamed_total 1" in page
        assert 'warmroute_signals_refused_total{source="stream",reason="malformed"} 0' in page


def test_a_server_without_the_service_is_left_alone_and_serves_all_the_same(tmp_path: Path) -> None:
    with Reporter(service=False) as server, ControlProcess(tmp_path, models=[model(server)]) as control:
        ended = until(lambda: [one for one in control.events() if one["event"] == "orca.stream_ended"], "tried")
        assert ended[0]["reason"] == "the server does not know OpenRcaService"
        assert "warmroute_load_streams 0" in control.ask("/metrics").text
