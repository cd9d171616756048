"""Prefix affinity on real sockets: whose prompt leads where, in any body; what processes tell each other."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from router.affinity import blocks_of
from router.model import PrefixesSeen, Replica, SnapshotEnded
from router.policy import AffinityPolicy, KeyPolicy, ModelPolicy, ShardMode, ShardPolicy
from sidecar.telemetry.page import Scalar
from tests.support.control_process import ControlProcess
from tests.support.data_path import DataPath, echo, hold, on_data_path
from tests.support.wires import CHUNKED, chunked, post, request

POLICY = AffinityPolicy(block_bytes=64, blocks=8, least_blocks=2, body_bytes=8192)
MODEL = ModelPolicy("m", default=True, affinity=POLICY)
SPLIT = ModelPolicy(
    "m", default=True, affinity=POLICY, shards=ShardPolicy(ShardMode.KEYED, 2), key=KeyPolicy(header="x-user")
)


def chat(who: int, turns: int) -> bytes:
    """Return the body of a conversation's next request: all of it so far, as clients of OpenAI's interface send it."""
    said = [{"role": "system", "content": f"{who:04} " * 40}]
    for turn in range(turns):
        said += [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": f"answer {turn}"}]
    return json.dumps({"model": "m", "temperature": turns, "messages": said}).encode()


def served(path: DataPath) -> list[int]:
    return [len(origin.requests) for origin in path.origins]


async def where(path: DataPath, data: bytes) -> int:
    """Return which endpoint answers a request, on a connection of its own."""
    before = served(path)
    client = await path.connect()
    assert (await client.ask(data)).status == 200
    client.close()
    return [now > old for now, old in zip(served(path), before, strict=True)].index(True)


def totals(path: DataPath) -> list[int]:
    path.plane.flush(path.plane.clock())
    members = (Scalar.AFFINITY_HITS_TOTAL, Scalar.AFFINITY_DECLINED_TOTAL, Scalar.AFFINITY_UNSEEN_TOTAL)
    return [path.scalar(member) for member in members]


@on_data_path(echo, echo, echo, echo, models=(MODEL,))
async def test_a_conversation_stays_where_it_began(path: DataPath) -> None:
    target = b"/v1/chat/completions"
    field = b"Content-Type: application/json"
    for who in range(6):
        first = await where(path, post(chat(who, 0), field, target=target))
        for turns in range(1, 4):
            assert await where(path, post(chat(who, turns), field, target=target)) == first
    assert totals(path) == [18, 0, 6]


@on_data_path(echo, echo, echo, echo, models=(MODEL,))
async def test_prompts_of_all_kinds_in_any_framing(path: DataPath) -> None:
    text = "a text that many requests begin with, which is long enough to be remembered; " * 4
    for name in ("prompt", "input"):
        body = json.dumps({"max_tokens": 7, name: name + text}).encode()
        first = await where(path, post(body))
        parts = chunked(*(body[at : at + 100] for at in range(0, len(body), 100)))
        assert await where(path, request(b"POST / HTTP/1.1", CHUNKED) + parts) == first
    assert totals(path) == [2, 0, 2]
    for body in (b"", b"{}", b"not JSON", b'{"prompt": "short"}', b'{"prompt": "%s"}' % (b"x" * 9000)):
        await where(path, post(body))
    assert totals(path) == [2, 0, 2]


@on_data_path(echo, echo, echo, echo, models=(SPLIT,))
async def test_affinity_keeps_to_the_shard_of_a_key(path: DataPath) -> None:
    for index in range(4):
        hold(path, index, Replica("m", shard=index % 2, shard_count=2))
    for user in range(6):
        field = b"X-User: %d" % user
        first = await where(path, post(chat(user, 0), field))
        for turns in range(1, 4):
            assert await where(path, post(chat(user, turns), field)) == first
    assert totals(path) == [18, 0, 6]


def test_what_one_process_sent_where_its_siblings_hear_and_the_control_process_explains(tmp_path: Path) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in (9001, 9002)]
    affinity = {"block_bytes": 8, "blocks": 8, "least_blocks": 2}
    with ControlProcess(tmp_path, models=[{"name": "m", "endpoints": urls, "affinity": affinity}]) as control:
        for index in (0, 1):
            control.hello(index)
            control.receive(index, lambda got: any(isinstance(one, SnapshotEnded) for one in got), "a snapshot")
        prompt = "a beginning that was sent to the second one"
        blocks = blocks_of(prompt.encode(), AffinityPolicy(8, 8, 2))
        assert blocks is not None
        news = PrefixesSeen("m", "", "http", None, ((blocks, "127.0.0.1:9002", ""),))
        assert control.data[0].send(news)
        got = control.receive(1, lambda got: any(isinstance(one, PrefixesSeen) for one in got), "the news")
        assert [one for one in got if isinstance(one, PrefixesSeen)] == [news]
        found = control.ask(f"/routes/explain?model=m&key={quote(prompt)}").json
        assert found["law"].startswith("an endpoint that has seen the prompt's beginning, below its bound; else ")
        assert found["draw"]["winner"] == "127.0.0.1:9002"
        assert found["draw"]["why"].startswith("it has seen 5 of 5 blocks of the prompt; 1 in flight with this one")
        (terms,) = [row["terms"] for row in found["rows"] if row["endpoint"] == "127.0.0.1:9002"]
        assert next(term["raw"] for term in terms if term["name"] == "prefix") == 5
        other = control.ask("/routes/explain?model=m&key=another").json
        assert [row["share"] for row in other["rows"]] == [0.5, 0.5]
