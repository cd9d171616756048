"""The stage behind a source: what it passes on, what it sends, and who is told of what."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointRecord,
    EndpointSeen,
    GoneReason,
    Replica,
    State,
)
from sidecar.discovery.warming import WarmedSource, question_of, read_body
from sidecar.settings import BODY_FILE_BYTES, Warmup, WarmupRequest
from sidecar.upstreams.adapters import Answer, Question
from sidecar.upstreams.pace import Pace
from tests.support.loops import beside, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sidecar.discovery.source import Emit, Found

PLAN = msgspec.convert(
    {
        "requests": [
            {"name": "b1", "path": "/infer", "json": {"n": 1}, "within_s": 0.1},
            {"name": "b8", "path": "/infer", "json": {"n": 8}, "within_s": 0.1},
        ],
        "required": ["b1"],
    },
    Warmup,
)


def record(id_: str = "e", *, state: State = State.WARM, epoch: str = "a", model: str = "m") -> EndpointRecord:
    return EndpointRecord(id_, f"http://{id_}:1", epoch=epoch, replicas=(Replica(model, state=state), Replica("other")))


class Source:
    """A source that says what a test has it say."""

    name = "found"
    tried = complete = True

    async def run(self, emit: Emit) -> None:
        self.emit = emit
        await asyncio.Event().wait()


class Rig:
    """The stage with a clock and answers of the test's making."""

    def __init__(self, plans: dict[str, Warmup] | None = None, first_s: float = 2.0) -> None:
        self.now = 100.0
        self.source = Source()
        self.sent: list[tuple[str, Question]] = []
        self.replies: asyncio.Queue[tuple[Answer, float]] = asyncio.Queue()
        self.said: list[Found] = []
        self.news = asyncio.Event()
        self.stage = WarmedSource(
            self.source,
            {"m": PLAN} if plans is None else plans,
            self.answer,
            Pace(1e6),
            clock=lambda: self.now,
            rng=lambda: 0.0,
            first_s=first_s,
        )

    async def answer(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        self.sent.append((address, questions[0]))
        answer, took_s = await self.replies.get()
        self.now += took_s
        return [answer]

    def take(self, event: Found) -> None:
        self.said.append(event)
        self.news.set()

    async def reply(self, status: int | None = 200, took_s: float = 0.05) -> None:
        self.replies.put_nowait((Answer(status, "refused"), took_s))
        await turns()

    def seen(self, *records: EndpointRecord) -> None:
        for one in records:
            self.source.emit(EndpointSeen(one, self.now))

    async def waited_for(self, reason: str) -> None:
        while not self.last().reason.startswith(reason):
            self.news.clear()
            await self.news.wait()

    def last(self, id_: str = "e") -> Replica:
        for event in reversed(self.said):
            if isinstance(event, EndpointSeen) and event.record.id == id_:
                return event.record.replicas[0]
        raise AssertionError(f"nothing was said of {id_}")


@asynccontextmanager
async def rig(plans: dict[str, Warmup] | None = None, first_s: float = 2.0) -> AsyncIterator[Rig]:
    out = Rig(plans, first_s)
    async with beside(out.stage.run(out.take)):
        await turns()
        yield out


def test_what_is_ready_is_warming_until_the_required_class_is_proven() -> None:
    async def main() -> None:
        async with rig() as at:
            at.seen(record())
            assert (at.last().state, at.last().reason) == (State.WARMING, "not warmed up yet")
            await turns()
            tried = [at.stage.tried]
            await at.reply(took_s=2.0)
            late = "warm-up b1: took 2 s, more than its within_s of 0.1"
            assert at.last().reason == f"not warmed up yet: {late}"
            tried.append(at.stage.tried)
            assert tried == [False, True], "it came to something"
            assert at.stage.warming == {"m": 1}
            await at.reply()
            assert (at.last().state, at.last().warmth) == (State.WARM, (("b1", 1.0), ("b8", 0.0)))
            assert at.last().proven_at == 102.0
            await at.reply()
            assert at.last().warmth == (("b1", 1.0), ("b8", 1.0))
            assert [question.body for _, question in at.sent] == [b'{"n":1}', b'{"n":1}', b'{"n":8}']
            assert at.stage.warming == {"m": 0}
            assert at.stage.results == {("m", "b1", "late"): 1, ("m", "b1", "proven"): 1, ("m", "b8", "proven"): 1}
            assert at.stage.seconds["m", "b1"] == pytest.approx(2.05)

    asyncio.run(main())


def test_models_without_a_warm_up_and_what_is_not_ready_pass_as_they_are() -> None:
    async def main() -> None:
        async with rig() as at:
            at.seen(record(model="n"), record("f", state=State.LOADING))
            await turns()
            assert not at.sent
            assert at.last() == Replica("n")
            assert at.last("f").state is State.LOADING
            gone = EndpointGone("f", GoneReason.REMOVED, at.now)
            at.source.emit(gone)
            assert at.said[-1] is gone

    asyncio.run(main())


def test_an_ejection_makes_it_warming_at_once_and_new_proof_brings_it_back() -> None:
    async def main() -> None:
        async with rig() as at:
            at.seen(record())
            for _ in range(3):
                await at.reply()
            first = at.last()
            assert first.state is State.WARM
            at.stage.ejected(EndpointEjected("e", EjectCause.QUARANTINE, at.now + 1, 1, at.now))
            assert (at.last().state, at.last().reason) == (
                State.WARMING,
                "its connections broke; not warmed up since",
            )
            said = len(at.said)
            at.stage.ejected(EndpointEjected("e", EjectCause.QUARANTINE, at.now + 1, 1, at.now))
            at.stage.ejected(EndpointEjected("nobody", EjectCause.QUARANTINE, at.now + 1, 1, at.now))
            assert len(at.said) == said, "no news"
            at.now += 0.01
            await turns()
            await at.reply()
            assert at.last().state is State.WARM
            assert (at.last().proven_at or 0) > (first.proven_at or 0)

    asyncio.run(main())


def test_another_process_or_another_address_begins_anew_and_who_left_is_asked_nothing() -> None:
    async def main() -> None:
        async with rig() as at:
            at.seen(record())
            for _ in range(3):
                await at.reply()
            at.seen(record(epoch="b"))
            assert at.last().state is State.WARMING
            await turns()
            await at.reply()
            assert at.last().state is State.WARM
            at.seen(replace(record(epoch="b"), address="http://elsewhere:1"))
            assert at.last().state is State.WARMING
            await turns()
            assert at.sent[-1][0] == "http://elsewhere:1"
            at.source.emit(EndpointGone("e", GoneReason.REMOVED, at.now))
            sent, said = len(at.sent), len(at.said)
            await at.reply()
            await turns()
            assert (len(at.sent), len(at.said)) == (sent, said)

    asyncio.run(main())


def test_it_does_not_wait_for_ever_for_the_first_proof() -> None:
    async def main() -> None:
        async with rig(first_s=2.0) as at:
            at.seen(record())
            await turns()
            assert not at.stage.tried
            at.now += 2.0
            assert at.stage.tried

    asyncio.run(main())


def test_a_new_configuration_keeps_what_is_proven_and_lets_go_where_nothing_is_to_be() -> None:
    async def main() -> None:
        async with rig({}) as at:
            at.seen(record())
            assert at.last() == Replica("m"), "nothing to prove"
            at.stage.configure({"m": PLAN})
            serves = Replica("m", reason="serves as before; warm-up b1: to be proven", warmth=at.last().warmth)
            assert replace(at.last(), proven_at=None) == serves, "who serves goes on, and is said to"
            assert at.stage.warming == {"m": 0}
            await turns()
            for _ in range(2):
                await at.reply()
            assert at.last().state is State.WARM
            other = msgspec.convert({"requests": [{"name": "b1", "path": "/infer", "json": {"n": 1}}]}, Warmup)
            at.stage.configure({"m": other})
            assert (at.last().state, at.last().proven_at) == (State.WARM, -inf), "another request"
            at.seen(record(epoch="b"))
            assert at.last().state is State.WARMING, "another process never served"
            await turns()
            await at.reply()
            assert at.last().state is State.WARM
            at.stage.configure({})
            assert at.last() == Replica("m")

    asyncio.run(main())


def test_requests_at_once_are_as_many_as_may_be() -> None:
    async def main() -> None:
        async with rig({"m": msgspec.structs.replace(PLAN, parallel=2)}) as at:
            at.seen(record())
            await turns()
            assert len(at.sent) == 2
            assert {question.body for _, question in at.sent} == {b'{"n":1}', b'{"n":8}'}

    asyncio.run(main())


def test_keep_warm_requests_follow_idleness() -> None:
    async def main() -> None:
        async with rig({"m": msgspec.structs.replace(PLAN, keep_warm_after_s=60.0)}) as at:
            at.seen(record())
            for _ in range(2):
                await at.reply()
            assert at.last().state is State.WARM
            at.now += 61.0
            at.stage.answered_at = lambda id_: at.now if id_ == "e" else 0.0  # it has answered a request just now
            at.seen(record())
            await turns()
            assert len(at.sent) == 2
            at.stage.answered_at = lambda _: at.now - 61.0
            at.seen(record())
            await turns()
            assert len(at.sent) == 3
            began = at.now
            await at.reply()
            await at.reply()
            assert at.last().state is State.WARM
            assert (at.last().proven_at or 0) >= began

    asyncio.run(main())


def request(**parts: Any) -> WarmupRequest:
    return msgspec.convert({"name": "b1", "path": "/infer", **parts}, WarmupRequest)


def test_a_request_goes_out_as_it_is_configured_and_is_marked() -> None:
    plain = question_of(request(body="hello", headers={"X-Tenant": "a"}))
    assert (plain.method, plain.path, plain.body) == ("POST", "/infer", b"hello")
    assert plain.fields == (("X-Tenant", "a"), ("warmroute-background", "1"))
    json = question_of(request(json={"a": [1, None, "é"]}, method="PUT"))
    assert (json.method, json.body) == ("PUT", '{"a":[1,null,"é"]}'.encode())
    assert ("content-type", "application/json") in json.fields
    own = question_of(request(json={}, headers={"Content-Type": "application/x"}))
    assert [value for name, value in own.fields if name.lower() == "content-type"] == ["application/x"]
    assert question_of(request(body_file="x"), b"\x00\xff").body == b"\x00\xff"


def test_a_body_from_a_file_is_bounded_and_its_failure_names_file_and_field(tmp_path: Path) -> None:
    async def main() -> None:
        missing = str(tmp_path / "missing.bin")
        plan = msgspec.convert({"requests": [{"name": "b1", "path": "/", "body_file": missing}]}, Warmup)
        async with rig({"m": plan}) as at:
            at.seen(record())
            async with asyncio.timeout(10):
                await at.waited_for("warm-up b1")  # a thread reads the file
            assert at.last().reason == f"warm-up b1: no answer: body_file {missing}: No such file or directory"
            assert not at.sent

    asyncio.run(main())
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(BODY_FILE_BYTES + 1)
    with pytest.raises(OSError, match="more than 8388608 bytes"):
        read_body(str(large))


def test_of_a_group_the_shard_that_takes_requests_is_proven_alone() -> None:
    def member(shard: int) -> EndpointRecord:
        return EndpointRecord(f"e{shard}", f"http://e{shard}:1", replicas=(Replica("m", shard=shard, shard_count=2),))

    async def main() -> None:
        async with rig() as at:
            at.stage.configure({"m": PLAN}, {"m": 0})
            at.seen(member(0), member(1))
            await turns()
            assert (at.last("e0").state, at.last("e1").state) == (State.WARMING, State.WARM)
            assert {address for address, _ in at.sent} == {"http://e0:1"}
            await at.reply()
            assert at.last("e0").state is State.WARM

    asyncio.run(main())


def test_a_group_is_proven_again_once_a_member_that_was_out_is_back() -> None:
    def member(shard: int, group: str = "left", epoch: str = "a", state: State = State.WARM) -> EndpointRecord:
        replica = Replica("m", state=state, shard=shard, shard_count=2, group=group)
        return EndpointRecord(f"{group}{shard}", f"http://{group}{shard}:1", epoch=epoch, replicas=(replica,))

    async def main() -> None:
        out = "another shard of its group was out; not warmed up since"
        async with rig({"m": msgspec.structs.replace(PLAN, requests=PLAN.requests[:1])}) as at:
            at.stage.configure(at.stage._plans, {"m": 0})
            at.seen(member(0))
            await turns()
            assert (at.last("left0").state, at.sent) == (State.WARMING, [])  # nothing answers without the other
            at.seen(member(1), member(0, "right"), member(1, "right"))
            await turns()
            await at.reply()
            await at.reply()
            assert (at.last("left0").state, at.last("right0").state) == (State.WARM, State.WARM)
            at.seen(member(1))  # as it was
            at.said.clear()
            at.seen(member(1, state=State.LOADING))
            first = at.said[0]
            assert isinstance(first, EndpointSeen)
            assert (first.record.id, first.record.replicas[0].reason) == ("left0", out)  # before its member is told
            at.now += 1
            await turns()
            assert len(at.sent) == 2
            at.seen(member(1))
            await turns()
            assert (at.last("left0").state, at.sent[-1][0]) == (State.WARMING, "http://left0:1")
            await at.reply()
            assert at.last("left0").state is State.WARM
            at.now += 1
            at.seen(member(1, epoch="b"))
            assert (at.last("left0").state, at.last("left0").reason) == (State.WARMING, out)
            at.now += 1
            await turns()
            await at.reply()
            assert at.last("left0").state is State.WARM
            at.source.emit(EndpointGone("left1", GoneReason.DEREGISTERED, at.now))
            assert at.last("left0").state is State.WARMING
            await turns()
            assert len(at.sent) == 4
            assert "right0" not in {one.record.id for one in at.said if isinstance(one, EndpointSeen)}

    asyncio.run(main())


def test_an_endpoint_with_all_shards_is_proven_for_itself() -> None:
    def whole(id_: str) -> EndpointRecord:
        return EndpointRecord(
            id_, f"http://{id_}:1", replicas=tuple(Replica("m", shard=k, shard_count=2) for k in (0, 1))
        )

    async def main() -> None:
        async with rig({"m": msgspec.structs.replace(PLAN, requests=PLAN.requests[:1])}) as at:
            at.stage.configure(at.stage._plans, {"m": 0})
            at.seen(whole("a"))
            await turns()
            await at.reply()
            at.seen(whole("b"))
            await turns()
            assert (at.last("a").state, at.last("b").state) == (State.WARM, State.WARMING)

    asyncio.run(main())
