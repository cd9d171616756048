"""Load reports: what they say in each form, and from when on rates are known."""

from __future__ import annotations

import base64

import pytest
from warmroute_pb.v1 import beside_pb2 as beside

from sidecar.upstreams import orca
from worker.execution import Executor
from worker.load_report import Load, LoadProbe, report_header, report_message
from worker.memory import Memory

LOAD = Load(0.25, 0.5, 12.0, 0.5, 3, 1.5)


class FixedMemory:
    def __init__(self, memory: Memory | None) -> None:
        self.memory = memory

    def read(self) -> Memory | None:
        return self.memory


@pytest.mark.parametrize("form", ["text", "JSON", "bin"])
def test_every_form_says_the_same_and_a_sidecar_reads_it(form: str) -> None:
    header = report_header(LOAD, form)
    assert header is not None
    name, value = header
    report = orca.parse(value.encode(), binary=name.endswith("-bin"))
    assert report.scalars == {"cpu_utilization": 0.25, "mem_utilization": 0.5, "rps_fractional": 12.0, "eps": 0.5}
    assert report.maps["named_metrics"] == {"queue_depth": 3.0, "queue_time_ms": 1.5}
    seen = report.load()
    assert (seen.utilization, seen.queue_depth, seen.free_memory_ratio) == (0.25, 3, 0.5)


def test_what_is_not_known_is_not_said() -> None:
    quiet = Load(None, None, None, None, 0, None)
    assert report_header(quiet, "text") == ("endpoint-load-metrics", "TEXT named_metrics.queue_depth=0")
    message = beside.OrcaLoadReport.FromString(report_message(quiet))
    assert (message.cpu_utilization, dict(message.named_metrics)) == (0.0, {"queue_depth": 0.0})
    assert base64.b64encode(report_message(quiet)).decode() == (report_header(quiet, "bin") or ("", ""))[1]


def test_a_form_that_nobody_knows() -> None:
    assert report_header(LOAD, "xml") is None


def test_a_load_stands_for_a_moment_and_rates_for_a_second() -> None:
    now, served = [0.0], [(0, 0)]
    memory = FixedMemory(Memory(25, 100))
    executor = Executor(1, 1)
    probe = LoadProbe(executor, memory, lambda: 0.5, lambda: served[0], lambda: now[0])
    first = probe.read()
    assert first == Load(0.5, 0.75, None, None, 0, None)
    memory.memory = None
    now[0] = 0.1
    assert probe.read() is first
    now[0] = 2.0
    served[0] = (6, 4)
    assert probe.read() == Load(0.5, None, 5.0, 2.0, 0, None)
    now[0] = 2.5
    served[0] = (100, 4)
    assert probe.read().rps_fractional == 5.0, "of a second at least"
    executor.close()
