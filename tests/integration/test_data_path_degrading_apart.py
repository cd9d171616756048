"""The degradation ladder on real sockets: what moves nobody else down or up, and what is never answered from below."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from router.ladder import LadderStep
from router.model import Replica
from router.policy import LadderPolicy, RetryPolicy
from sidecar.settings import Cache, CachedMethod, FallbackOn, Model, ModelTimeouts
from sidecar.settings.ladder import USUAL_FALLBACK_ON
from tests.support.data_path import DataPath, Refusing, echo, on_data_path, resets, says, silent
from tests.support.degrading import (
    HELD,
    IDEMPOTENT,
    INFER,
    MODELS,
    QUICK,
    SLOW,
    STATIC,
    infer,
    step,
)
from tests.support.wires import OriginConnection, answer, post, request

# --- what moves nothing for others ------------------------------------------------------------------------------------


def fell(path: DataPath, *steps: LadderStep) -> None:
    """Have the requests that name no version begin further down."""
    assert path.plane.ladders is not None
    for one in steps:
        path.plane.ladders.by_model["m"].failed("m", one, time.monotonic(), "test", certain=True)


def test_a_dead_version_degrades_its_own_requests_only() -> None:
    @on_data_path(
        echo,
        Refusing,
        models=MODELS,
        held=((Replica("m", "1"),), (Replica("m", "2"),)),
        ladders=(Model(name="m", static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(4):
            told = await client.ask(post(b"x", target=b"/v2/models/m/versions/2/infer"))
            assert told.value(b"warmroute-degraded") == b"static"
            told = await client.ask(post(b"x", target=b"/v2/models/m/versions/1/infer"))
            assert (told.status, told.body) == (200, b"x")
            assert (await infer(client, b"y")).body == b"y"
        assert path.plane.ladders is not None
        model = path.plane.ladders.by_model["m"]
        assert [model.degraded(place) for place in ("m@2", "m@1", "m")] == [True, False, False]
        assert step(path) is LadderStep.STATIC  # the lowest is what is shown

    scenario()


def test_a_request_that_cannot_fall_back_takes_the_fallback_from_nobody_else() -> None:
    @on_data_path(
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        chat, kind = b"/v1/chat/completions", b"Content-Type: application/json"
        long = b'{"model":"m","pad":"' + b"x" * (1 << 20) + b'"}'
        for _ in range(4):
            told = await client.ask(post(b'{"model":"m"}', kind, target=chat))
            assert told.value(b"warmroute-degraded") == b"fallback"
            other = await path.connect()
            assert (await other.ask(post(long, kind, target=chat))).value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.FALLBACK

    scenario()


def test_a_trial_that_may_not_be_repeated_takes_nothing_from_the_fallback_and_is_told_as_it_failed() -> None:
    policies = replace(QUICK, ladder=LadderPolicy(hold_s=0.0, trial_s=60.0))

    @on_data_path(
        resets, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),), policies=policies
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA)
        client = await path.connect()
        trial = await infer(client)
        assert (trial.status, trial.values(b"retry-after")) == (502, [])
        for _ in range(3):
            assert (await infer(client)).value(b"warmroute-degraded") == b"fallback"
        assert step(path) is LadderStep.FALLBACK
        assert path.outcomes == {"upstream_reset": 1, "ok": 3}

    scenario()


def test_a_callers_own_time_and_a_workers_errors_degrade_nobody_else() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX, FallbackOn.UPSTREAM_BUSY, FallbackOn.DEADLINE_EXCEEDED)

    async def script(origin: OriginConnection) -> None:
        while True:
            asked = await origin.request()
            if asked.body == b"slow":
                await asyncio.sleep(0.05)
            status = {b"fail": b"500 No", b"busy": b"429 Later"}.get(asked.body, b"200 OK")
            await origin.send(answer(b"a", status=status))

    @on_data_path(
        script, models=MODELS, ladders=(Model(name="m", static_answer=STATIC, fallback_on=on),), policies=SLOW
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for body in (b"slow", b"fail", b"busy"):
            for _ in range(4):
                told = await infer(client, body, b"x-request-timeout-ms: 20")
                assert told.value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.REPLICA
        assert (await infer(client)).body == b"a"

    scenario()


def test_a_model_comes_back_though_no_request_can_use_its_fallback() -> None:
    @on_data_path(
        echo,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=QUICK,
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA, LadderStep.FALLBACK)
        await asyncio.sleep(0.03)
        long = b'{"model":"m","pad":"' + b"x" * (1 << 20) + b'"}'
        for _ in range(8):
            client = await path.connect()
            told = await client.ask(post(long, b"Content-Type: application/json", target=b"/v1/chat/completions"))
            assert (told.status, told.values(b"warmroute-degraded")) == (200, [])
        assert step(path) is LadderStep.REPLICA

    scenario()


def test_a_limit_that_is_configured_is_the_models_failure() -> None:
    @on_data_path(
        silent,
        models=MODELS,
        model_timeouts=ModelTimeouts(total_s=0.02),
        ladders=(Model(name="m", static_answer=STATIC, fallback_on=(FallbackOn.DEADLINE_EXCEEDED,)),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(3):
            assert (await infer(client)).value(b"warmroute-degraded") == b"static"
        assert step(path) is LadderStep.STATIC

    scenario()


def test_a_request_whose_time_is_over_and_that_nobody_answers_is_told_so() -> None:
    ladder = Model(name="m", cache=Cache(), fallback_on=(FallbackOn.DEADLINE_EXCEEDED,))

    @on_data_path(silent, models=MODELS, ladders=(ladder,))
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect(), b"{}", b"x-request-timeout-ms: 20")
        assert told.status == 504
        assert path.outcomes == {"deadline_exceeded": 1}

    scenario()


def test_a_workers_error_that_was_set_aside_for_a_fallback_that_failed_is_502() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX)

    @on_data_path(
        says(answer(b"why", status=b"500 No")),
        Refusing,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), fallback_on=on),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.values(b"retry-after")) == (502, [])
        assert path.outcomes == {"upstream_5xx": 1}

    scenario()


@pytest.mark.parametrize("what", [b"", b"/ready", b"/config"])
def test_questions_about_a_model_are_never_answered_from_below(what: bytes) -> None:
    ladder = Model(name="m", fallback=("b",), cache=Cache(methods=tuple(CachedMethod), deterministic=True))

    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(ladder,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await infer(client)).value(b"warmroute-degraded") == b"fallback"
        told = await client.ask(request(b"GET /v2/models/m%s HTTP/1.1" % what))
        assert told.status == 503
        assert not told.values(b"warmroute-degraded")
        assert len(path.origins[1].requests) == 1

    scenario()


@pytest.mark.parametrize(
    "target", [b"/v2/models/m/trace/setting", b"/v2/repository/models/m/unload", b"/sleep?level=2", b"/flush_cache"]
)
def test_what_sets_a_model_up_is_done_to_no_other_and_never_said_to_be_done(target: bytes) -> None:
    ladder = Model(name="m", fallback=("b",), cache=Cache(deterministic=True), static_answer=STATIC)

    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(ladder,), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        assert (await infer(client)).value(b"warmroute-degraded") == b"fallback"
        told = await client.ask(post(b"{}", b"Warmroute-Model: m", target=target))
        assert told.status == 503
        assert not told.values(b"warmroute-degraded")
        assert len(path.origins[1].requests) == 1

    scenario()


@pytest.mark.parametrize("asked", [request(b"GET /v2/models/m HTTP/1.1"), post(b"bad", target=INFER)])
def test_metadata_and_errors_are_no_proof_that_a_model_answers(asked: bytes) -> None:
    script = says(answer(b"no", status=b"404 None"))

    @on_data_path(script, models=MODELS, ladders=(Model(name="m", static_answer=STATIC),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        assert path.plane.ladders is not None
        model = path.plane.ladders.by_model["m"]
        for _ in range(2):
            model.failed("m", LadderStep.REPLICA, time.monotonic(), "upstream_reset")
            assert (await (await path.connect()).ask(asked)).status == 404
        model.failed("m", LadderStep.REPLICA, time.monotonic(), "upstream_reset")
        assert step(path) is LadderStep.STATIC

    scenario()


def test_a_request_without_a_kept_answer_goes_to_the_fallback_above() -> None:
    @on_data_path(
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        fell(path, LadderStep.REPLICA, LadderStep.FALLBACK)
        client = await path.connect()
        for number in range(4):
            told = await infer(client, b"%d" % number)
            assert told.value(b"warmroute-degraded") == b"fallback"
        assert step(path) is LadderStep.CACHE  # the hold is not over
        assert path.origins[0].requests == []

    scenario()


def test_no_retry_is_waited_for_where_nobody_else_is_there() -> None:
    policies = replace(SLOW, retry=RetryPolicy(attempts=2, backoff_min_ms=2000, backoff_max_ms=2000))

    ladders = (Model(name="m", static_answer=STATIC),)

    @on_data_path(Refusing, Refusing, models=IDEMPOTENT, ladders=ladders, policies=policies)
    async def scenario(path: DataPath) -> None:
        began = time.perf_counter()
        assert (await infer(await path.connect())).value(b"warmroute-degraded") == b"static"
        assert time.perf_counter() - began < 1.0

    scenario()
