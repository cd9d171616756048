"""The degradation ladder on real sockets: who answers when nobody can, what that looks like, and how it comes back."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from router.ladder import LadderStep
from router.model import Replica, State
from router.policy import ModelPolicy, OnNoCandidate
from sidecar.settings import Cache, FallbackOn, Model, Wait
from sidecar.settings.ladder import USUAL_FALLBACK_ON
from sidecar.telemetry.page import LadderWord
from tests.support.data_path import EARLY_S, DataPath, Refusing, echo, on_data_path, resets, says, silent
from tests.support.degrading import (
    HELD,
    IDEMPOTENT,
    MODELS,
    QUICK,
    SLOW,
    STATIC,
    Worker,
    infer,
    refused,
    step,
    word,
)
from tests.support.wires import CHUNKED, answer, chunk, post, request

# --- another model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fallback", "target"),
    [("b", b"/v2/models/b/infer"), ("b@2", b"/v2/models/b/versions/2/infer")],
)
def test_a_request_falls_back_to_another_model(fallback: str, target: bytes) -> None:
    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=(fallback,)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(3):
            told = await infer(client, b"body")
            assert (told.status, told.body) == (200, b"body")
            assert told.value(b"warmroute-degraded") == b"fallback"
            assert told.value(b"warmroute-degraded-model") == fallback.encode()
        assert {asked.start for asked in path.origins[1].requests} == {b"POST %s HTTP/1.1" % target}
        assert path.outcomes == {"ok": 3}
        assert word(path, LadderWord.BY_FALLBACK) == 3
        assert step(path) is LadderStep.FALLBACK
        path.plane.settle(time.monotonic())
        assert sum(path.plane.words[path.plane.page.model_row("b") : path.plane.page.model_row("b") + 40]) == 0

    scenario()


def test_the_next_fallback_is_asked_where_the_first_fails_too() -> None:
    @on_data_path(
        Refusing,
        Refusing,
        echo,
        models=MODELS,
        held=HELD,
        ladders=(Model(name="m", fallback=("b", "b@2", "c")),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        told = await infer(client, b"body")
        assert told.value(b"warmroute-degraded-model") == b"c"
        (asked,) = path.origins[2].requests
        assert asked.start == b"POST /v2/models/c/infer HTTP/1.1"
        assert asked.value(b"warmroute-attempt") == b"3"

    scenario()


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_openai_body_names_the_other_model_and_its_length_is_right(framing: str) -> None:
    body = b'{"messages": [ {"a":"\\u00e9"} ],  "model": "m", "n": 1e3}'

    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        kind = b"Content-Type: application/json"
        if framing == "length":
            told = await client.ask(post(body, kind, target=b"/v1/chat/completions"))
        else:
            await client.send(request(b"POST /v1/chat/completions HTTP/1.1", kind, CHUNKED) + chunk(body[:20]))
            await asyncio.sleep(0.01)
            told = await client.ask(chunk(body[20:]) + b"0\r\n\r\n")
        assert told.value(b"warmroute-degraded") == b"fallback"
        (asked,) = path.origins[1].requests
        assert asked.body == b'{"messages":[ {"a":"\\u00e9"} ],"model":"b","n":1e3}'
        assert asked.value(b"content-length") == b"%d" % len(asked.body)
        assert not asked.values(b"transfer-encoding")

    scenario()


def test_the_field_that_names_the_model_names_the_other_one() -> None:
    @on_data_path(Refusing, echo, models=MODELS, held=HELD, ladders=(Model(name="m", fallback=("b",)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.ask(post(b"x", b"Warmroute-Model: m", target=b"/predict"))
        (asked,) = path.origins[1].requests
        assert asked.start == b"POST /predict HTTP/1.1"
        assert asked.value(b"warmroute-model") == b"b"

    scenario()


@pytest.mark.parametrize(("models", "status"), [(MODELS, 502), (IDEMPOTENT, 200)])
def test_what_may_have_begun_falls_back_only_where_twice_does_no_harm(
    models: tuple[ModelPolicy, ...], status: int
) -> None:
    @on_data_path(resets, echo, models=models, held=HELD, ladders=(Model(name="m", fallback=("b",)),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        told = await infer(client)
        assert told.status == status
        assert len(path.origins[1].requests) == (1 if status == 200 else 0)

    scenario()


def test_an_error_of_the_worker_goes_through_unless_configured_and_unless_nobody_has_better() -> None:
    on = (*USUAL_FALLBACK_ON, FallbackOn.UPSTREAM_5XX, FallbackOn.UPSTREAM_BUSY)
    broken = says(answer(b"why", status=b"500 No"))

    @on_data_path(broken, models=MODELS, ladders=(Model(name="m", static_answer=STATIC),), policies=SLOW)
    async def passes(path: DataPath) -> None:
        assert (await infer(await path.connect())).status == 500

    @on_data_path(
        broken, models=MODELS, ladders=(Model(name="m", static_answer=STATIC, fallback_on=on),), policies=SLOW
    )
    async def stands_in(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.value(b"warmroute-degraded")) == (202, b"static")
        assert path.results == {"server_error": 1}
        assert path.outcomes == {"degraded_static": 1}

    @on_data_path(broken, models=MODELS, ladders=(Model(name="m", cache=Cache(), fallback_on=on),), policies=SLOW)
    async def nothing_better(path: DataPath) -> None:
        told = await infer(await path.connect())
        assert (told.status, told.body) == (500, b"why")
        assert path.outcomes == {"upstream_5xx": 1}

    passes()
    stands_in()
    nothing_better()


# --- the last steps ---------------------------------------------------------------------------------------------------


def test_a_static_answer_is_told_where_nothing_better_is_left() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(Model(name="m", cache=Cache(), static_answer=STATIC),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for _ in range(2):
            told = await infer(client)
            assert (told.status, json.loads(told.body)) == (202, {"later": True})
            assert told.start == b"HTTP/1.1 202 Accepted"
            assert told.value(b"content-type") == b"application/json"
            assert told.value(b"x-why") == b"none left"
            assert told.value(b"warmroute-degraded") == b"static"
            assert told.value(b"x-request-id")
        assert path.outcomes == {"degraded_static": 2}

    scenario()


def test_the_last_step_is_503_within_ten_milliseconds() -> None:
    """The fastest of many, so that a busy machine does not decide: where it waited for anything, each would have."""

    @on_data_path(
        Refusing,
        Refusing,
        models=MODELS,
        held=HELD,
        policies=SLOW,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        took = []
        for _ in range(21):
            began = time.perf_counter()
            told = await infer(client)
            took.append(time.perf_counter() - began)
            assert told.status == 503
            assert int(told.value(b"retry-after")) >= 1
            assert b"no step of the ladder has an answer" in told.body
        assert min(took) < 0.010
        assert word(path, LadderWord.REFUSALS) == 21

    scenario()


def test_a_deadline_is_answered_from_below_where_that_is_configured() -> None:
    on = (FallbackOn.DEADLINE_EXCEEDED,)

    @on_data_path(
        silent,
        echo,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), static_answer=STATIC, fallback_on=on),),
    )
    async def scenario(path: DataPath) -> None:
        told = await infer(await path.connect(), b"{}", b"x-request-timeout-ms: 50")
        assert told.value(b"warmroute-degraded") == b"static"
        assert path.origins[1].requests == []

    scenario()


def test_a_model_that_waits_does_so_before_it_is_degraded_and_not_while_it_is() -> None:
    waiting = ModelPolicy("m", on_no_candidate=OnNoCandidate.WAIT)

    @on_data_path(
        echo,
        models=(waiting,),
        replicas=(Replica("m", state=State.LOADING),),
        configured=(Model(name="m", wait=Wait(max_s=0.5)),),
        ladders=(Model(name="m", static_answer=STATIC),),
        policies=SLOW,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        took = []
        for _ in range(3):
            began = time.perf_counter()
            assert (await infer(client)).value(b"warmroute-degraded") == b"static"
            took.append(time.perf_counter() - began)
        assert took[0] >= 0.5 - EARLY_S
        assert max(took[1:]) < 0.5 - EARLY_S

    scenario()


# --- back up ----------------------------------------------------------------------------------------------------------


def test_recovery_climbs_step_by_step() -> None:
    first, second = Worker(), Worker()

    @on_data_path(
        first,
        second,
        models=IDEMPOTENT,
        held=HELD,
        ladders=(Model(name="m", fallback=("b",), cache=Cache()),),
        policies=QUICK,
    )
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client)
        first.down = second.down = True
        while step(path) is not LadderStep.CACHE:
            assert (await infer(client)).value(b"warmroute-degraded") == b"cache"
        first.down = second.down = False
        await asyncio.sleep(0.06)
        seen: list[tuple[LadderStep, bytes]] = []
        while step(path) is not LadderStep.REPLICA:
            told = await infer(client)
            assert told.status == 200
            seen.append((step(path), (told.values(b"warmroute-degraded") or [b""])[0]))
            await asyncio.sleep(0.005)
        steps = [now for index, (now, _) in enumerate(seen) if not index or seen[index - 1][0] is not now]
        assert steps == [LadderStep.CACHE, LadderStep.FALLBACK, LadderStep.REPLICA]
        assert [kind for _, kind in seen[-2:]] == [b"", b""]  # the trials that brought it back

    scenario()


def test_a_replica_that_is_there_is_asked_before_anybody_is_refused() -> None:
    worker = Worker()

    @on_data_path(worker, models=MODELS, ladders=(Model(name="m", cache=Cache()),), policies=SLOW)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await infer(client, b"kept")
        worker.down = True
        while step(path) is not LadderStep.CACHE:
            assert (await infer(client, b"kept")).value(b"warmroute-degraded") == b"cache"
        worker.down = False
        await asyncio.sleep(0.06)
        assert step(path) is LadderStep.CACHE  # held for a minute
        told = await infer(client, b"new")
        assert (told.status, told.body) == (200, b"<new>")
        assert not told.values(b"warmroute-degraded")

    scenario()


def test_a_long_body_passes_as_it_comes_and_is_not_kept() -> None:
    @on_data_path(echo, models=MODELS, ladders=(Model(name="m", cache=Cache(max_entry_bytes=4 << 20)),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        body = b"x" * ((1 << 20) + 1)
        assert (await infer(client, body)).body == body
        assert refused(path) == {"BODY": 1}

    scenario()


def test_a_model_without_a_ladder_knows_nothing_of_it() -> None:
    @on_data_path(Refusing, models=MODELS, ladders=(Model(name="b", static_answer=STATIC),))
    async def scenario(path: DataPath) -> None:
        assert (await infer(await path.connect())).status == 502
        assert not path.plane.essential_only

    scenario()
