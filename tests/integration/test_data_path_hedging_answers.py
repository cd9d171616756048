"""Answers of one try that win nothing while the other is under way, and what is passed on where both are such."""

from __future__ import annotations

import time

import pytest

from sidecar.http1.recognise import Recogniser
from sidecar.settings import Recognise, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import DataPath, Full, silent
from tests.support.fleet import only
from tests.support.hedging import (
    after,
    answered,
    both_asked,
    hedged,
    hedges,
)
from tests.support.held_origin import Held, held
from tests.support.wires import CHUNKED, Client, answer, chunked, post

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy"

TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nbusy"

BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nbusy"

IN_CHUNKS = b"HTTP/1.1 502 Bad Gateway\r\n" + CHUNKED + b"\r\n\r\n" + chunked(b"bu", b"sy")

UNREADY = answer(b"Model m is not ready yet.", status=b"400 Bad Request")

TO_ITS_END = b"HTTP/1.1 500 Internal Server Error\r\n\r\nbusy"

ASIDE = [
    pytest.param((BUSY,), "busy", True, id="503 with Retry-After"),
    pytest.param((TOO_MANY,), "busy", True, id="429"),
    pytest.param((BROKEN,), "server_error", True, id="500"),
    pytest.param((BROKEN[:-2], b"sy"), "server_error", False, id="in two pieces"),
    pytest.param((IN_CHUNKS,), "server_error", False, id="in chunks"),
    pytest.param((TO_ITS_END,), "server_error", False, id="to its end"),
    pytest.param((UNREADY,), "not_ready", True, id="a model that is not ready"),
    pytest.param((UNREADY[:-2], UNREADY[-2:]), "not_ready", True, id="the same in two pieces"),
]


@pytest.mark.parametrize(("pieces", "result", "kept"), ASIDE)
def test_a_hedge_that_answers_badly_leaves_the_first_try_alone(
    pieces: tuple[bytes, ...], result: str, kept: bool
) -> None:
    @hedged(Held(answer(b"first")), after(0.0, *pieces))
    async def scenario(path: DataPath, client: Client) -> None:
        if result == "not_ready":
            path.plane.recogniser = Recogniser(Recognise())
        await client.send(post(b"hello"))
        got = await answered(path, client, result)
        assert (got.status, got.body) == (200, b"first")
        assert path.results == {result: 1, "success": 1}
        assert path.outcomes == {"ok": 1}
        assert hedges(path) == (1, 0, 0)
        assert path.scalar(Scalar.RETRIES_TOTAL) == 0
        assert path.pool(1).pooled == len(path.pool(1).open_connections) == kept
        other = path.cluster.endpoints["o1"]
        assert only(other).untold.failures == (result == "server_error")
        assert (other.busy_until > time.monotonic()) is (result == "busy")
        if pieces == (BUSY,):
            assert 5.0 < other.busy_until - time.monotonic() <= 7.0

    scenario()


@pytest.mark.parametrize(("pieces", "result", "kept"), ASIDE)
def test_a_first_try_that_answers_badly_leaves_the_hedge_alone(
    pieces: tuple[bytes, ...], result: str, kept: bool
) -> None:
    """The hedge is the retry then."""

    @hedged(Held(*pieces), Held(answer(b"late")))
    async def scenario(path: DataPath, client: Client) -> None:
        if result == "not_ready":
            path.plane.recogniser = Recogniser(Recognise())
        await both_asked(path, client)
        held(path).allowed.release()
        got = await answered(path, client, result, 1)
        assert (got.status, got.body) == (200, b"late")
        assert path.results == {result: 1, "success": 1}
        assert path.outcomes == {"ok": 1}
        assert hedges(path) == (1, 0, 0)
        assert path.scalar(Scalar.RETRIES_TOTAL) == 0
        assert path.pool(0).pooled == len(path.pool(0).open_connections) == kept
        assert len(path.origins[1].requests) == 1
        assert path.in_flight == 0

    scenario()


@hedged(Held(BUSY), after(0.0, BROKEN))
async def test_the_last_answer_is_passed_on_whatever_it_says(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    got = await answered(path, client, "server_error")
    assert (got.status, got.value(b"Retry-After"), got.body) == (503, b"7", b"busy")
    assert path.results == {"server_error": 1, "busy": 1}
    assert path.outcomes == {"upstream_busy": 1}
    assert hedges(path) == (1, 0, 0)


@hedged(Held(BUSY), Held(BROKEN))
async def test_so_is_that_of_the_hedge(path: DataPath, client: Client) -> None:
    await both_asked(path, client)
    held(path).allowed.release()
    got = await answered(path, client, "busy", 1)
    assert (got.status, got.body) == (500, b"busy")
    assert path.results == {"server_error": 1, "busy": 1}
    assert path.outcomes == {"upstream_5xx": 1}
    assert hedges(path) == (1, 0, 0)


@hedged(silent, after(0.0, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
async def test_what_the_caller_did_wrong_is_an_answer(path: DataPath, client: Client) -> None:
    assert (await client.ask(post(b"hello"))).status == 404
    assert path.results == {"outrun": 1, "client_error": 1}
    assert hedges(path) == (1, 1, 0)


@hedged(Held(BROKEN), Full, timeouts=Timeouts(connect_s=1.0))
async def test_a_hedge_that_is_connecting_takes_over_from_a_bad_answer(path: DataPath, client: Client) -> None:
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    held(path).allowed.release()
    got = await client.answer()
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"connect_timeout")
    assert path.results == {"server_error": 1, "connect_timeout": 1}
    assert path.outcomes == {"connect_timeout": 1}
