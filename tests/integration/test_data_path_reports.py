"""Load reports in answers: taken by the models that ask for them, kept from callers, and of no account to others."""

from __future__ import annotations

import asyncio

import pytest

from router.model import LoadReport
from router.policy import ModelPolicy
from sidecar.http1.reports import REFUSED
from sidecar.telemetry.page import Scalar
from tests.support.data_path import DataPath, on_data_path, says
from tests.support.wires import OriginConnection, answer, chunked, post

ASKING = (ModelPolicy("m", default=True, load_reports=True),)
NAMES = (b"endpoint-load-metrics", b"endpoint-load-metrics-bin")


async def reporting(origin: OriginConnection) -> None:
    """Report the number of each request in an answer that is otherwise much like the last one."""
    number = 0
    while True:
        await origin.request()
        number += 1
        report = b"Endpoint-Load-Metrics: TEXT cpu_utilization=0.%02d,named_metrics.num_requests_waiting=%d" % (
            number,
            number,
        )
        await origin.send(answer(b"x" * (number % 3), b"X-Request-Id: %d" % number, report))


@on_data_path(reporting, models=ASKING)
async def test_each_report_is_learned_however_alike_the_heads_are_and_callers_get_none(path: DataPath) -> None:
    client = await path.connect()
    endpoint = path.cluster.endpoints["o0"]
    for number in range(1, 41):  # enough for the head's shape to be learned
        got = await client.ask(post(b"y"))
        assert path.origin.requests[-1].value(b"endpoint-load-metrics-format") == b"text"
        assert endpoint.report == LoadReport(number / 100, number)
        assert (endpoint.record.cpu_load, endpoint.record.queue_depth) == (number / 100, number)
        assert got.value(b"x-request-id") == b"%d" % number
        assert not any(got.values(name) for name in NAMES)
        assert got.body == b"x" * (number % 3)
    assert path.scalar(Scalar.LOAD_REPORTS_TOTAL) == 40
    (seen,) = path.cluster.observe(asyncio.get_running_loop().time())
    assert seen.report == LoadReport(0.4, 40)


@on_data_path(reporting)
async def test_where_nobody_asks_nothing_is_read_or_changed(path: DataPath) -> None:
    client = await path.connect()
    for number in range(1, 21):
        got = await client.ask(post(b"y"))
        assert path.origin.requests[-1].values(b"endpoint-load-metrics-format") == []
        assert got.value(b"endpoint-load-metrics").startswith(b"TEXT cpu_utilization=0.%02d" % number)
    assert path.cluster.endpoints["o0"].report is None
    assert path.scalar(Scalar.LOAD_REPORTS_TOTAL) == 0


@on_data_path(reporting, models=ASKING)
async def test_a_caller_who_asks_gets_the_report_too(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"y", b"Endpoint-Load-Metrics-Format: JSON"))
    assert path.origin.requests[-1].values(b"endpoint-load-metrics-format") == [b"JSON"]
    assert got.value(b"endpoint-load-metrics").startswith(b"TEXT ")
    assert path.cluster.endpoints["o0"].report == LoadReport(0.01, 1)


@pytest.mark.parametrize(
    ("fields", "counter"),
    [
        ((b"endpoint-load-metrics: TEXT cpu_utilization=NaN",), Scalar.LOAD_REPORTS_NAN_TOTAL),
        ((b"endpoint-load-metrics: TEXT cpu_utilization=inf",), Scalar.LOAD_REPORTS_INFINITE_TOTAL),
        ((b'ENDPOINT-LOAD-METRICS: JSON {"cpu_utilization": -1}',), Scalar.LOAD_REPORTS_NEGATIVE_TOTAL),
        ((b"endpoint-load-metrics: TEXT cpu_utilization=x",), Scalar.LOAD_REPORTS_NOT_A_NUMBER_TOTAL),
        ((b"endpoint-load-metrics:",), Scalar.LOAD_REPORTS_MALFORMED_TOTAL),
        ((b"endpoint-load-metrics-bin: !",), Scalar.LOAD_REPORTS_MALFORMED_TOTAL),
        (
            (b"endpoint-load-metrics: TEXT eps=1", b"endpoint-load-metrics-bin: CQAAAAAAAOA/"),
            Scalar.LOAD_REPORTS_DUPLICATE_TOTAL,
        ),
        ((b"endpoint-load-metrics: TEXT eps=" + b"1" * 5000,), Scalar.LOAD_REPORTS_OVER_LIMIT_TOTAL),
    ],
)
def test_what_is_refused_is_counted_and_changes_nothing(fields: tuple[bytes, ...], counter: Scalar) -> None:
    @on_data_path(says(answer(b"fine", *fields)), models=ASKING)
    async def scenario(path: DataPath) -> None:
        endpoint = path.cluster.endpoints["o0"]
        before = endpoint.record
        got = await (await path.connect()).ask(post(b"y"))
        assert got.body == b"fine"
        assert not any(got.values(name) for name in NAMES)
        assert endpoint.record == before
        assert {member: path.scalar(member) for member in (*REFUSED, Scalar.LOAD_REPORTS_TOTAL)} == {
            member: int(member is counter) for member in (*REFUSED, Scalar.LOAD_REPORTS_TOTAL)
        }

    scenario()


STREAMED = b"HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.5\r\nTransfer-Encoding: chunked\r\n\r\n"


@on_data_path(says(STREAMED + chunked(b"x")), models=ASKING)
async def test_a_streamed_answer_s_report_is_taken_with_its_head(path: DataPath) -> None:
    got = await (await path.connect()).ask(post(b"y"))
    assert (got.status, got.values(b"endpoint-load-metrics")) == (200, [])
    assert path.cluster.endpoints["o0"].report == LoadReport(0.5)


@on_data_path(
    says(answer(b"full", b"endpoint-load-metrics: TEXT cpu_utilization=1", status=b"503 Service Unavailable")),
    models=ASKING,
)
async def test_an_answer_that_is_an_error_reports_as_well(path: DataPath) -> None:
    got = await (await path.connect()).ask(post(b"y"))
    assert (got.status, got.values(b"endpoint-load-metrics")) == (503, [])
    assert path.cluster.endpoints["o0"].report == LoadReport(1.0)


TRAILED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: endpoint-load-metrics\r\n\r\n"
TRAILERS = b"x-other: 1\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.25\r\n"


def trailed(trailers: bytes) -> bytes:
    return TRAILED + chunked(b"x").removesuffix(b"\r\n") + trailers + b"\r\n"


@on_data_path(says(trailed(TRAILERS)), models=ASKING)
async def test_a_report_in_trailers_is_taken_and_they_are_not_passed_on(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(2):
        got = await client.ask(post(b"y"))
        assert (got.status, got.body) == (200, b"x")
        assert path.cluster.endpoints["o0"].report == LoadReport(0.25)
    assert path.scalar(Scalar.LOAD_REPORTS_TOTAL) == 2


async def piece_by_piece(origin: OriginConnection) -> None:
    await origin.request()
    for byte in trailed(b"endpoint-load-metrics-bin: CQAAAAAAAOA/\r\n"):
        await origin.send(bytes((byte,)))


@on_data_path(piece_by_piece, models=ASKING)
async def test_trailers_may_come_in_any_pieces(path: DataPath) -> None:
    got = await (await path.connect()).ask(post(b"y"))
    assert got.body == b"x"
    assert path.scalar(Scalar.LOAD_REPORTS_TOTAL) == 1


@on_data_path(says(trailed(b"endpoint-load-metrics: TEXT cpu_utilization=-1\r\n")), models=ASKING)
async def test_what_is_refused_in_trailers_is_counted_and_changes_nothing(path: DataPath) -> None:
    before = path.cluster.endpoints["o0"].record
    got = await (await path.connect()).ask(post(b"y"))
    assert got.body == b"x"
    assert path.cluster.endpoints["o0"].record == before
    assert path.scalar(Scalar.LOAD_REPORTS_NEGATIVE_TOTAL) == 1


@on_data_path(says(trailed(TRAILERS)))
async def test_trailers_say_nothing_where_nobody_asks(path: DataPath) -> None:
    await (await path.connect()).ask(post(b"y"))
    assert path.cluster.endpoints["o0"].report is None
    assert path.scalar(Scalar.LOAD_REPORTS_TOTAL) == 0
