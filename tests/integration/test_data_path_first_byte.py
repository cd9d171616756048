"""Until when an attempt is measured: the first byte of a stream says how fast a worker is, the end how much it said."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from router.policy import LatencyOf, LatencyPolicy, ModelPolicy
from sidecar.telemetry.page import BUCKETS_S, ENDPOINT_HISTOGRAM, FIRST_BYTE_SUM, MODEL_FIRST_BYTE
from tests.support.data_path import POLICIES, DataPath, on_data_path
from tests.support.wires import CHUNKED, OriginConnection, answer, chunk, request

STREAM_S = 0.3
EVENTS = b"Content-Type: text/event-stream"
OTHER = b"Content-Type: application/x-ndjson"
EACH = len(BUCKETS_S) + 1


def first_bytes(path: DataPath) -> tuple[int, float]:
    """Return how many first bytes were counted, and their sum in seconds."""
    words = path.plane.words
    row = path.plane.page.model_row("m")
    counted = sum(words[row + MODEL_FIRST_BYTE : row + MODEL_FIRST_BYTE + EACH].tolist())
    return counted, words[row + FIRST_BYTE_SUM] / 1e6


def durations_s(path: DataPath) -> float:
    """Return the sum of all attempts' whole durations, seconds."""
    path.plane.settle(path.plane.clock())
    return float(path.plane.words[path.pool().row + ENDPOINT_HISTOGRAM + EACH] / 1e6)


def latency_ms(path: DataPath) -> float:
    (endpoint,) = path.cluster.endpoints.values()
    (candidate,) = endpoint.candidates.values()
    return candidate.latency.ewma_ms


@pytest.mark.parametrize(
    ("of", "kind", "first"),
    [
        (LatencyOf.AUTO, EVENTS, True),
        (LatencyOf.AUTO, b"content-encoding: gzip\r\n" + EVENTS + b"; charset=utf-8", True),
        (LatencyOf.AUTO, OTHER, False),
        (LatencyOf.TOTAL, EVENTS, False),
        (LatencyOf.FIRST_BYTE, OTHER, True),
    ],
)
def test_of_an_answer_in_pieces(of: LatencyOf, kind: bytes, *, first: bool) -> None:
    async def streams(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            await origin.send(b"\r\n".join([b"HTTP/1.1 200 OK", kind, CHUNKED, b"", b""]) + chunk(b"data: 1\n\n"))
            await asyncio.sleep(STREAM_S)
            await origin.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    @on_data_path(streams, models=(ModelPolicy("m", default=True, latency=of),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(2):
            await client.ask(request())
        ms = latency_ms(path)
        assert ms < STREAM_S * 500 if first else ms > STREAM_S * 900
        count, sum_s = first_bytes(path)
        assert count == 2
        assert sum_s < STREAM_S
        assert durations_s(path) > 1.9 * STREAM_S
        assert path.in_flight == 0

    scenario()


@pytest.mark.parametrize("of", list(LatencyOf))
def test_an_answer_in_one_piece_is_measured_to_its_end_and_its_first_byte_is_no_other(of: LatencyOf) -> None:
    async def slow(origin: OriginConnection) -> None:
        await origin.request()
        await asyncio.sleep(STREAM_S)
        await origin.send(answer(b"x", EVENTS))

    @on_data_path(slow, models=(ModelPolicy("m", default=True, latency=of),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.ask(request())
        assert latency_ms(path) > STREAM_S * 900
        assert first_bytes(path) == (0, 0)

    scenario()


def test_a_stream_does_not_stand_for_the_whole_answer_behind_it() -> None:
    async def stream_then_whole(origin: OriginConnection) -> None:
        await origin.request()
        await origin.send(b"\r\n".join([b"HTTP/1.1 200 OK", EVENTS, CHUNKED, b"", b""]) + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.02)
        await origin.send(b"0\r\n\r\n")
        await origin.request()
        await asyncio.sleep(STREAM_S)
        await origin.send(answer(b"x", EVENTS))

    last_alone = replace(POLICIES, latency=LatencyPolicy(ewma_decay_s=STREAM_S / 10))

    @on_data_path(stream_then_whole, models=(ModelPolicy("m", default=True),), policies=last_alone)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.ask(request())
        await client.ask(request())
        assert latency_ms(path) > STREAM_S * 100  # the mean of both, of which the first took next to nothing
        assert first_bytes(path)[0] == 1

    scenario()
