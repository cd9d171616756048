"""Which model a request asks for: path, model header, the body of an OpenAI request, defaults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.model import EndpointRecord, EndpointSeen, Replica
from router.policy import ModelPolicy
from sidecar.http1.forwarding import ListenerRules
from sidecar.settings import Limits, ModelTimeouts, Timeouts
from tests.support.data_path import DataPath, Origin, Refusing, echo, on_data_path, silent
from tests.support.wires import CHUNKED, Message, OriginConnection, chunk, chunked, post, request

JSON = b"Content-Type: application/json"
CHAT = b"/v1/chat/completions"
TWO = (ModelPolicy("a"), ModelPolicy("b", idempotent=True))
DEFAULT_A = (ModelPolicy("a", default=True), ModelPolicy("b"))


def place(path: DataPath, *models: tuple[str, ...]) -> None:
    """Have each origin hold models of its own."""
    for index, held in enumerate(models):
        now = path.plane.clock()
        replicas = tuple(Replica(model, version) for model, _, version in (one.partition("@") for one in held))
        record = EndpointRecord(f"o{index}", path.origins[index].address, replicas=replicas, static=True)
        path.cluster.apply(EndpointSeen(record, now), now)


def chat(model: str | None, content: str = "hello", **more: Any) -> bytes:
    """Return a body as the official clients write it: the messages first."""
    members = {"messages": [{"role": "user", "content": content}], "stream": False}
    return json.dumps(members | ({} if model is None else {"model": model}) | more).encode()


async def taking(origin: OriginConnection) -> None:
    """Take what comes, and say nothing."""
    while data := await origin.reader.read(65536):
        origin.requests.append(Message(b"", [], data))


def taken(origin: Origin) -> int:
    return sum(len(message.body) for message in origin.requests)


def error(got: Message) -> dict[str, Any]:
    assert got.value(b"content-type") == b"application/json"
    found: dict[str, Any] = json.loads(got.body)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def bodies(path: DataPath) -> list[list[bytes]]:
    return [[message.body for message in origin.requests] for origin in path.origins]


@on_data_path(echo, echo, models=TWO, replicas=())
async def test_the_body_names_the_model(path: DataPath) -> None:
    place(path, ("a",), ("b",))
    client = await path.connect()
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    for number in range(30):
        model = "ab"[number % 2]
        for body, fields in (
            (chat(model, "x" * number), (JSON,)),
            (chat(model, "é\n" * number), (b"content-type: application/json; charset=utf-8",)),
        ):
            sent[model].append(body)
            got = await client.ask(post(body, *fields, b"X-Request-Id: %d" % number, target=CHAT))
            assert (got.status, got.body) == (200, body)
    assert bodies(path) == [sent["a"], sent["b"]]
    assert path.outcomes == {"ok": 60}
    assert {name for name, _ in path.plane.page.models()} == {"_none", "a", "b"}


@pytest.mark.parametrize("target", [b"/v1/embeddings?x=1", b"/openai/v1/chat/completions", b"/v1/anything/else"])
def test_every_path_of_the_surface_counts(target: bytes) -> None:
    @on_data_path(echo, echo, models=TWO, replicas=())
    async def scenario(path: DataPath) -> None:
        place(path, ("a",), ("b",))
        client = await path.connect()
        assert (await client.ask(post(chat("b"), JSON, target=target))).status == 200
        assert [len(one) for one in bodies(path)] == [0, 1]

    scenario()


@on_data_path(echo, echo, models=TWO, replicas=())
async def test_a_long_body_in_pieces_arrives_as_it_was_sent(path: DataPath) -> None:
    place(path, ("a",), ("b",))
    client = await path.connect()
    for form in ("length", "chunks"):
        body = chat("b", "x\n" * 700_000)
        whole = post(body, JSON, target=CHAT)
        if form == "chunks":
            pieces = [body[i : i + 30_000] for i in range(0, len(body), 30_000)]
            whole = request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(*pieces)
        for begin in range(0, len(whole), 100_000):
            await client.send(whole[begin : begin + 100_000])
            await asyncio.sleep(0)
        got = await client.answer()
        assert got.status == 200
        assert path.origins[1].requests[-1].body == body
    assert path.outcomes == {"ok": 2}


@pytest.mark.parametrize("form", ["length", "chunks"])
def test_the_request_goes_on_as_soon_as_the_model_is_known(form: str) -> None:
    @on_data_path(echo, taking, models=TWO, replicas=())
    async def scenario(path: DataPath) -> None:
        place(path, ("a",), ("b",))
        client = await path.connect()
        body = b'{"stream":true,"model":"b","messages":["' + b"x" * 200_000
        head = post(b"", JSON, b"Content-Length: 900000", target=CHAT)
        if form == "chunks":
            head = request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED)
            body = chunk(body)
        for piece in (head, body[:20], body[20:35], body[35:]):
            await client.send(piece)
        await path.until(lambda: taken(path.origins[1]) > 200_000, "the beginning of the body at the worker")

    scenario()


@on_data_path(echo, echo, models=TWO, replicas=(), rules=ListenerRules(model_header="X-Model"))
async def test_path_then_header_then_body(path: DataPath) -> None:
    place(path, ("a", "b@1"), ("b@2",))
    client = await path.connect()
    for target, fields, origin in (
        (b"/v2/models/a/infer", (b"X-Model: b@2",), 0),
        (CHAT, (b"X-Model: b@2", JSON), 1),
        (CHAT, (b"x-model:a ", JSON), 0),
        (b"/any", (b"X-MODEL: b@2",), 1),
        (b"/any", (b"X-Model: a", b"warmroute-model: b@2"), 0),
        (CHAT, (JSON,), 1),
        (CHAT, (JSON, b"X-Model:"), 1),
    ):
        before = len(path.origins[origin].requests)
        assert (await client.ask(post(chat("b@2"), *fields, target=target))).status == 200
        assert len(path.origins[origin].requests) == before + 1, (target, fields)
    assert path.origins[0].requests[1].value(b"x-model") == b"a"
    got = await client.ask(request(b"GET /any HTTP/1.1", b"X-Model: b@3"))
    assert (got.status, b"model 'b' version '3' is not known" in got.body) == (404, True)
    got = await client.ask(request(b"GET /any HTTP/1.1", b"X-Model: a", b"x-model: b"))
    assert (got.status, b"x-model more than once" in got.body) == (400, True)


@on_data_path(echo, models=TWO, replicas=(Replica("a"),), rules=ListenerRules(model_header=None))
async def test_no_header_names_a_model_where_it_is_turned_off(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(request(b"GET /any HTTP/1.1", b"warmroute-model: a"))).status == 404


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_what_is_not_known_is_said_as_openai_says_it(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(chat("c"), JSON, target=CHAT))
    assert got.status == 404
    assert error(got) == {
        "message": "no model matches this request: model 'c' is not known",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }
    nameless = (
        post(chat(None), JSON, target=CHAT),
        post(b"not json", JSON, target=CHAT),
        post(b'["a"]', JSON, target=CHAT),
        post(b'{"model":5}', JSON, target=CHAT),
        post(chat("a"), b"Content-Type: text/plain", target=CHAT),
        post(chat("a"), target=CHAT),
        post(chat("a"), JSON, JSON, target=CHAT),
        post(chat("a"), JSON, b"Content-Encoding: gzip", target=CHAT),
        post(b'--b\r\n\r\n{"model":"a"}\r\n--b--', b"Content-Type: multipart/form-data; boundary=b", target=CHAT),
        request(b"POST %s HTTP/1.1" % CHAT, JSON),
        request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(b"{}"),
        request(b"GET %s HTTP/1.1" % CHAT, JSON),
    )
    for sent in nameless:
        got = await client.ask(sent)
        found = error(got)
        assert (got.status, found["code"]) == (404, "no_route"), sent
        assert 'name one in the field "model" of a JSON body' in found["message"]
    assert not path.origin.requests
    assert path.outcomes == {"no_route": 1 + len(nameless)}


@pytest.mark.parametrize(
    ("models", "rules"),
    [(DEFAULT_A, ListenerRules()), (TWO, ListenerRules("a"))],
    ids=["the default", "the listener's"],
)
def test_what_names_nothing_goes_to_the_default(models: tuple[ModelPolicy, ...], rules: ListenerRules) -> None:
    @on_data_path(echo, echo, models=models, replicas=(), rules=rules)
    async def scenario(path: DataPath) -> None:
        place(path, ("a",), ("b",))
        client = await path.connect()
        for sent in (
            post(chat(None), JSON, target=CHAT),
            post(b"not json", JSON, target=CHAT),
            request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(b"{", b"}"),
            request(b"GET /v1/models HTTP/1.1"),
        ):
            assert (await client.ask(sent)).status == 200
        assert (await client.ask(post(chat("b"), JSON, target=CHAT))).status == 200
        assert [len(one) for one in bodies(path)] == [4, 1]
        got = await client.ask(post(chat("c"), JSON, target=CHAT))
        assert got.status == (200 if rules.default_model is None else 404)

    scenario()


@on_data_path(taking, models=(ModelPolicy("a", default=True),), replicas=(Replica("a"),))
async def test_where_one_model_takes_all_the_body_is_not_looked_at(path: DataPath) -> None:
    client = await path.connect()
    await client.send(post(b"", JSON, b"Content-Length: 900000", target=CHAT) + b'{"messages":[')
    await path.until(lambda: taken(path.origin) > 0, "the request at the worker")


@pytest.mark.parametrize("form", ["length", "chunks"])
def test_a_model_that_does_not_come_is_not_waited_for_for_ever(form: str) -> None:
    @on_data_path(echo, models=TWO, replicas=(Replica("a"),), limits=Limits(model_prefix_bytes=2000))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        body = chat("a", "x" * 3000)
        sent = post(body, JSON, target=CHAT)
        if form == "chunks":
            sent = request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(body)
        await client.send(sent[:1500])
        await asyncio.sleep(0.01)
        await client.send(sent[1500:2900])
        got = await client.answer()
        assert (got.status, error(got)["code"]) == (413, "body_too_large")
        assert 'no "model" in the first 2000 bytes (limits.model_prefix_bytes)' in error(got)["message"]
        assert await client.rest() == b""
        assert not path.origin.requests

    scenario()


@pytest.mark.parametrize("named", ["@1", "@", "@a", "@@"])
@pytest.mark.parametrize("rules", [ListenerRules(), ListenerRules("a")], ids=["no default", "a default"])
def test_a_name_that_is_nothing_but_a_version_is_not_known(named: str, rules: ListenerRules) -> None:
    @on_data_path(echo, models=TWO, replicas=(Replica("a"),), rules=rules)
    async def scenario(path: DataPath) -> None:
        body = chat(named)
        pieces = request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(body[:9], body[9:])
        for sent in (
            [post(body, JSON, target=CHAT)],
            [post(body, JSON, target=CHAT)[:-20], body[-20:]],
            [pieces],
            [request(b"GET /any HTTP/1.1", b"warmroute-model: " + named.encode())],
        ):
            client = await path.connect()
            for piece in sent:
                await client.send(piece)
                await asyncio.sleep(0)
            got = await client.answer()
            assert (got.status, b"model ''" in got.body) == (404, True), sent
            assert sent[0].startswith(b"GET") or error(got)["code"] == "model_not_found"
        assert not path.origin.requests
        assert path.outcomes == {"no_route": 4}

    scenario()


@pytest.mark.parametrize("bad", [b"0x5\r\nhello\r\n", b"5 \r\nhello\r\n", b"5\r\nhelloworld"])
@pytest.mark.parametrize("begin", [b"", chunk(b'{"x":"'), chunk(b'{"model":"a"')], ids=["at once", "waiting", "named"])
def test_bad_framing_of_a_body_that_is_looked_at_is_refused(bad: bytes, begin: bytes) -> None:
    @on_data_path(taking, models=TWO, replicas=(Replica("a"),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        await client.send(request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + begin)
        await asyncio.sleep(0.01)
        await client.send(bad)
        got = await client.answer()
        assert (got.status, error(got)["code"]) == (400, "bad_request")
        assert await client.rest() == b""

    scenario()


@on_data_path(echo, echo, models=DEFAULT_A, replicas=())
async def test_what_decides_is_what_the_worker_hears_of_the_body(path: DataPath) -> None:
    place(path, ("a",), ("b",))
    client = await path.connect()
    body = chat("b")
    for fields, origin in (
        ([JSON, b"Content-Encoding: identity"], 1),
        ([JSON, b"Content-Encoding:\tidentity "], 1),
        ([JSON, b"Content-Encoding: identity", b"Content-Encoding: gzip"], 0),
        ([JSON, b"Content-Encoding: identity, gzip"], 0),
        ([JSON, b"Content-Encoding: identity2"], 0),
        ([JSON, b"Content-Encoding: gzip", b"Connection: content-encoding"], 1),
        ([JSON, b"Connection: content-type"], 0),
        ([JSON, JSON], 0),
    ):
        before = len(path.origins[origin].requests)
        assert (await client.ask(post(body, *fields, target=CHAT))).status == 200
        assert [got.body for got in path.origins[origin].requests[before:]] == [body], fields


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_a_byte_order_mark_is_passed_over_and_on(path: DataPath) -> None:
    client = await path.connect()
    body = b"\xef\xbb\xbf" + chat("a")
    sent = post(body, JSON, target=CHAT)
    begin = len(sent) - len(body)
    for cut in (begin, begin + 1, begin + 2, begin + 3, len(sent)):
        await client.send(sent[:cut])
        await asyncio.sleep(0.005)
        await client.send(sent[cut:])
        got = await client.answer()
        assert (got.status, got.body) == (200, body)


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_members_beyond_those_that_are_read_as_they_come(path: DataPath) -> None:
    many = b"".join(b'"m%d":[],' % number for number in range(500))
    for begin, end, status, text in (
        (b"{", b'"model":"a"}', 200, b""),
        (b'{"model":"a",', b'"model":"a"}', 200, b""),
        (b'{"model":"a",', b'"model":"b"}', 400, b"two values"),
        (b'{"model":"a",', b'"x":NaN}', 400, b"over 128 members, and no plain JSON behind them"),
        (b"{", b'"x":NaN}', 400, b"over 128 members, and no plain JSON behind them"),
        (b'{"model":"a",', b'"x":"' + b"x" * (1 << 20) + b'"}', 413, b"over 128 members, and over 1048576 bytes"),
        (b"{", b'"x":"' + b"x" * (1 << 20) + b'"}', 413, b"over 128 members, and over 1048576 bytes"),
    ):
        for form in ("length", "chunks"):
            client = await path.connect()
            body = begin + many + end
            sent = post(body, JSON, target=CHAT)
            if form == "chunks":
                sent = request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED) + chunked(body[:700], body[700:])
            await client.send(sent[:500])
            await asyncio.sleep(0)
            await client.send(sent[500:])
            got = await client.answer()
            assert (got.status, text in got.body) == (status, True), (begin, end[:20], form, got)
    assert [len(message.body) > 4000 for message in path.origin.requests] == [True] * 4


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_two_models_in_one_body_are_refused(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b'{"model":"a","model":"a"}', JSON, target=CHAT))
    assert got.status == 200
    got = await client.ask(post(b'{"model":"a","x":[1],"model":"b"}', JSON, target=CHAT))
    assert (got.status, error(got)["code"]) == (400, "bad_request")
    assert await client.rest() == b""


@on_data_path(taking, models=TWO, replicas=(Replica("a"),))
async def test_a_second_model_that_comes_late_is_refused_all_the_same(path: DataPath) -> None:
    client = await path.connect()
    body = b'{"model":"a","x":[1,2],"model":"b"}'
    sent = post(body, JSON, target=CHAT)
    await client.send(sent[:-20])
    await path.until(lambda: taken(path.origin) > 0, "the request at the worker")
    await client.send(sent[-20:])
    got = await client.answer()
    assert (got.status, b'the body names two values for \\"model\\"' in got.body) == (400, True)
    assert await client.rest() == b""
    await path.until(lambda: path.origin.ended, "the worker's connection is cut")
    assert path.results == {"cancelled": 1}


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_who_waits_to_be_told_to_go_on_is_told(path: DataPath) -> None:
    client = await path.connect()
    body = chat("a")
    sent = post(body, JSON, b"Expect: 100-continue", target=CHAT)
    await client.send(sent[: -len(body)])
    interim = await client.head()
    assert interim.start == b"HTTP/1.1 100 Continue"
    await client.send(body)
    got = await client.answer()
    assert (got.status, got.body) == (200, body)
    assert path.origin.requests[0].values(b"expect") == []


@on_data_path(echo, models=TWO, replicas=(Replica("a"),), timeouts=Timeouts(client_body_idle_s=0.05))
async def test_a_body_that_stands_still_is_given_up(path: DataPath) -> None:
    client = await path.connect()
    await client.send(post(chat("a"), JSON, target=CHAT)[:-30])
    assert (await client.answer()).status == 408
    assert path.outcomes == {"client_timeout": 1}


@on_data_path(echo, models=TWO, replicas=(Replica("a"),))
async def test_a_caller_who_leaves_before_it_named_its_model(path: DataPath) -> None:
    client = await path.connect()
    await client.send(post(chat("a"), JSON, target=CHAT)[:-30])
    await path.until(lambda: any(one.busy for one in path.plane.connections), "the request")
    client.close()
    await path.until(lambda: path.outcomes == {"client_abort": 1}, "its end")


@pytest.mark.parametrize("size", [10, 300_000])
def test_what_was_kept_back_can_be_sent_again(size: int) -> None:
    @on_data_path(Refusing, echo, models=TWO, replicas=(Replica("a"),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        body = chat("a", "x" * size)
        sent = post(body, JSON, target=CHAT)
        for begin in range(0, len(sent), 50_000):
            await client.send(sent[begin : begin + 50_000])
            await asyncio.sleep(0)
        got = await client.answer()
        assert (got.status, got.body) == (200, body)
        assert path.results == {"connect_refused": 1, "success": 1}
        assert path.origins[1].requests[0].value(b"warmroute-attempt") == b"2"

    scenario()


@on_data_path(
    silent,
    models=TWO,
    replicas=(Replica("a"),),
    model_timeouts=ModelTimeouts(total_s=0.05),
)
async def test_the_times_of_the_named_model_hold(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(chat("a"), JSON, target=CHAT))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"deadline_exceeded")


@on_data_path(echo, echo, models=TWO, replicas=())
async def test_pipelined_requests_go_each_its_own_way(path: DataPath) -> None:
    place(path, ("a",), ("b",))
    client = await path.connect()
    await client.send(
        post(chat("a"), JSON, target=CHAT)
        + post(chat("b"), JSON, target=CHAT)
        + request(b"POST %s HTTP/1.1" % CHAT, JSON, CHUNKED)
        + chunked(chat("b"))
        + request(b"GET /v1/models HTTP/1.1")
    )
    assert [(await client.answer()).status for _ in range(4)] == [200] * 4
    assert [len(one) for one in bodies(path)] == [1, 2]


@on_data_path(echo, models=TWO, replicas=(Replica("a"), Replica("new", "7")))
async def test_the_models_are_listed_where_no_default_takes_that_path(path: DataPath) -> None:
    client = await path.connect()
    for base in (b"/v1", b"/openai/v1"):
        got = await client.ask(request(b"GET %s/models?x HTTP/1.1" % base))
        found = json.loads(got.body)
        assert (got.status, found["object"]) == (200, "list")
        assert [one["id"] for one in found["data"]] == ["a", "b", "new"]
        got = await client.ask(request(b"GET %s/models/b HTTP/1.1" % base))
        assert json.loads(got.body) == {"id": "b", "object": "model", "created": 0, "owned_by": "warmroute"}
        got = await client.ask(request(b"GET %s/models/c%%2Fd HTTP/1.1" % base))
        assert (got.status, error(got)["code"]) == (404, "model_not_found")
        assert "'c/d'" in error(got)["message"]
    head = await client.ask(request(b"HEAD /v1/models HTTP/1.1"), b"HEAD")
    assert (head.status, head.body) == (200, b"")
    place(path, ("a", "b", "newer"))
    names = [one["id"] for one in json.loads((await client.ask(request(b"GET /v1/models HTTP/1.1"))).body)["data"]]
    assert names == ["a", "b", "new", "newer"]
    assert not path.origin.requests
