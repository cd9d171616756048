from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from router.model import WHOLE, EndpointGone, EndpointSeen, Replica, State
from sidecar.discovery.planned import NOT_PROBED_YET, first_record, held, static_endpoints
from sidecar.discovery.source import Found
from sidecar.discovery.static import FIRST_PROBES_S, SUCCESSOR_PROBES_S, StaticSource
from sidecar.settings import Settings
from sidecar.upstreams.adapters import Answer, Question
from tests.support.loops import turns

ONE, TWO = "http://127.0.0.1:9001", "http://127.0.0.1:9002"


def settings(**parts: Any) -> Settings:
    return msgspec.convert({"version": 1, "listeners": [{"address": "127.0.0.1:0"}], **parts}, Settings)


def test_every_place_that_names_a_url_adds_to_one_endpoint() -> None:
    found = static_endpoints(
        settings(
            models=[
                {"name": "a", "endpoints": [ONE, TWO + "/"]},
                {"name": "b", "endpoints": [ONE], "probe": {"path": "/b"}},
                {"name": "c"},
            ],
            endpoints=[{"url": TWO, "name": "two", "models": ["c@3", "a"], "probe": {"path": "/two"}}],
        )
    )
    by_id = {endpoint.id: endpoint for endpoint in found}
    assert set(by_id) == {"two", "127.0.0.1:9001"}
    assert by_id["127.0.0.1:9001"].address == ONE
    held = [(r.model, r.version, r.probe.path if r.probe else None) for r in by_id["127.0.0.1:9001"].replicas]
    assert held == [("a", "", None), ("b", "", "/b")]
    held = [(r.model, r.version, r.probe.path if r.probe else None) for r in by_id["two"].replicas]
    assert held == [("c", "3", "/two"), ("a", "", "/two")], "the endpoint's own probe counts"


def test_a_shard_is_named_behind_its_model_and_without_one_all_is_held() -> None:
    found = static_endpoints(
        settings(
            models=[{"name": "t", "shards": {"mode": "tensor", "count": 4}, "endpoints": [TWO]}],
            endpoints=[{"url": ONE, "group": "g", "models": ["t@1#3", "t@2#0", "t@3"]}],
        )
    )
    assert [first_record(each).replicas for each in found] == [
        (
            Replica("t", "1", shard=3, shard_count=4, group="g"),
            Replica("t", "2", shard=0, shard_count=4, group="g"),
            Replica("t", "3"),
        ),
        (Replica("t"),),
    ]


def test_one_probe_speaks_for_all_shards_at_an_endpoint() -> None:
    parts = {
        "models": [{"name": "t", "shards": {"mode": "tensor", "count": 2}}],
        "endpoints": [
            {"url": ONE, "models": ["t#0", "t#1"], "probe": {"path": "/r", "interval_s": 0.05, "timeout_s": 0.25}}
        ],
    }
    events, _, _ = play(parts, 200)
    assert [replica.state for replica in events[-1].record.replicas] == [State.WARM, State.WARM]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("a", ("a", "", WHOLE)),
        ("a@1", ("a", "1", WHOLE)),
        ("a#0", ("a", "", 0)),
        ("a@1.2#12", ("a", "1.2", 12)),
        ("", None),
        ("a@", None),
        ("@1", None),
        ("a#", None),
        ("a#-1", None),
        ("a#1000", None),
        ("a#1#2", None),
        ("a#1@2", None),
        ("a@1@2", None),
    ],
)
def test_what_an_endpoint_is_said_to_hold(entry: str, said: tuple[str, str, int] | None) -> None:
    assert held(entry) == said


def test_a_unix_socket_s_endpoint_is_named_by_its_address() -> None:
    (found,) = static_endpoints(settings(models=[{"name": "a", "endpoints": ["unix:/run/w.sock"]}]))
    assert (found.id, found.address) == ("unix:/run/w.sock", "unix:/run/w.sock")


def test_a_url_says_what_its_endpoint_speaks() -> None:
    urls = ["http://w:1", "grpc://w:1", "grpcs://w:2", "grpc+unix:/run/w.sock"]
    source = StaticSource(
        static_endpoints(settings(models=[{"name": "a", "endpoints": urls}])),
        ask=Scripted(),
        clock=lambda: 0.0,
    )
    assert {record.id: record.protocol for record in source._records.values()} == {
        "w:1": "http",
        "grpc://w:1": "grpc",
        "w:2": "grpc",
        "grpc+unix:/run/w.sock": "grpc",
    }


class Scripted:
    """Answers probes from a list, one a turn, and ends the source when it is spent."""

    def __init__(self, *statuses: int | None) -> None:
        self._left = list(statuses)
        self.asked: list[tuple[str, str, float]] = []
        self.spent = asyncio.Event()

    async def __call__(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        self.asked += [(address, question.path, timeout_s) for question in questions]
        if not self._left:
            self.spent.set()
            await asyncio.Event().wait()
        return [Answer(self._left.pop(0), "refused")]


def play(parts: dict[str, Any], *statuses: int | None) -> tuple[list[EndpointSeen], Scripted, StaticSource]:
    async def main() -> tuple[list[EndpointSeen], Scripted, StaticSource]:
        ask = Scripted(*statuses)
        events: list[Found] = []
        source = StaticSource(static_endpoints(settings(**parts)), ask, clock=lambda: 5.0)
        assert (source.tried, source.complete) == (False, False)
        task = asyncio.create_task(source.run(events.append))
        await asyncio.wait_for(ask.spent.wait() if statuses else turns(1), 5)
        await turns(1)
        assert not task.done()
        assert (source.tried, source.complete) == (True, True)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [event for event in events if isinstance(event, EndpointSeen)], ask, source

    return asyncio.run(main())


def test_without_a_probe_an_endpoint_is_warm_at_once_and_for_good() -> None:
    (event,), ask, _ = play({"models": [{"name": "a", "endpoints": [ONE]}]})
    assert event.at == 5.0
    assert (event.record.static, event.record.replicas[0].state) == (True, State.WARM)
    assert ask.asked == []


def test_with_a_probe_it_is_cold_until_a_good_one_and_only_changes_are_told() -> None:
    probe = {"path": "/ready", "interval_s": 0.05, "timeout_s": 0.25}
    parts = {"models": [{"name": "a", "endpoints": [ONE], "probe": probe}]}
    events, ask, source = play(parts, 503, 503, 200, 200, None)
    told = [(event.record.replicas[0].state, event.record.replicas[0].reason) for event in events]
    assert told == [
        (State.COLD, NOT_PROBED_YET),
        (State.LOADING, "not ready (HTTP 503)"),
        (State.WARM, ""),
        (State.LOADING, "no answer: refused"),
    ]
    assert ask.asked[0] == (ONE, "/ready", 0.25)
    assert source.failures == {"127.0.0.1:9001": 3}


def test_one_that_is_loading_or_away_is_asked_again_long_before_others_would_be() -> None:
    probe = {"path": "/ready", "interval_s": 3000, "returning_s": 0.01}
    events, ask, _ = play({"models": [{"name": "a", "endpoints": [ONE], "probe": probe}]}, 503, None)
    assert [event.record.replicas[0].reason for event in events[1:]] == ["not ready (HTTP 503)", "no answer: refused"]
    assert len(ask.asked) == 3


def test_a_probe_speaks_only_for_the_models_it_belongs_to() -> None:
    parts = {
        "models": [
            {"name": "a", "endpoints": [ONE]},
            {"name": "b", "endpoints": [ONE], "probe": {"path": "/b", "interval_s": 0.05}},
        ]
    }
    events, _, _ = play(parts, 503)
    states = [{r.model: r.state for r in event.record.replicas} for event in events]
    assert states == [{"a": State.WARM, "b": State.COLD}, {"a": State.WARM, "b": State.LOADING}]


class Probed:
    """Answers each probed address from a dictionary that the test changes, and counts how often each was asked."""

    def __init__(self, **statuses: int) -> None:
        self.statuses = statuses
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        self.asked += [(address, question.path) for question in questions]
        await turns(1)
        return [Answer(self.statuses.get(question.path.strip("/"), 200), "") for question in questions]


def reconfigure(first: dict[str, Any], *others: dict[str, Any], **statuses: int) -> tuple[list[list[Found]], Probed]:
    """Return what is emitted at first and after each further configuration."""

    async def main() -> list[list[Found]]:
        told: list[list[Found]] = [[]]
        source = StaticSource(static_endpoints(settings(**first)), ask, clock=lambda: 5.0)
        task = asyncio.create_task(source.run(lambda event: told[-1].append(event)))
        await turns()
        for other in others:
            told.append([])
            source.configure(static_endpoints(settings(**other)))
            await turns()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    ask = Probed(**statuses)
    return asyncio.run(main()), ask


def summed_up(events: list[Found]) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for event in events:
        if isinstance(event, EndpointSeen):
            out.append((event.record.id, {r.model: r.state.value for r in event.record.replicas}))
        elif isinstance(event, EndpointGone):
            out.append((event.id, event.reason.value))
    return out


def test_a_new_configuration_says_what_is_new_and_what_is_gone_and_nothing_of_the_rest() -> None:
    told, _ = reconfigure(
        {"models": [{"name": "a", "endpoints": [ONE, TWO]}]},
        {"models": [{"name": "a", "endpoints": [TWO, "http://127.0.0.1:9003"]}]},
        {"models": [{"name": "a", "endpoints": [TWO]}, {"name": "b", "endpoints": [TWO]}]},
    )
    assert summed_up(told[1]) == [("127.0.0.1:9003", {"a": "warm"}), ("127.0.0.1:9001", "removed")]
    assert summed_up(told[2]) == [
        ("127.0.0.1:9002", {"a": "warm", "b": "warm"}),
        ("127.0.0.1:9003", "removed"),
    ]


def test_what_probes_found_holds_over_a_new_configuration() -> None:
    probe = {"path": "/p", "interval_s": 3000}
    told, ask = reconfigure(
        {"models": [{"name": "a", "endpoints": [ONE], "probe": probe}]},
        {"models": [{"name": "a", "endpoints": [ONE, TWO], "probe": probe, "idempotent": True}]},
        {"models": [{"name": "a", "endpoints": [ONE, TWO], "probe": {**probe, "path": "/q"}}]},
        {"models": [{"name": "a", "endpoints": [ONE, TWO]}]},
        q=503,
    )
    assert summed_up(told[0]) == [("127.0.0.1:9001", {"a": "cold"}), ("127.0.0.1:9001", {"a": "warm"})]
    assert summed_up(told[1]) == [("127.0.0.1:9002", {"a": "cold"}), ("127.0.0.1:9002", {"a": "warm"})]
    assert ask.asked == [(ONE, "/p"), (TWO, "/p"), (ONE, "/q"), (TWO, "/q")], "probes that stay go on at their pace"
    assert summed_up(told[2]) == [("127.0.0.1:9001", {"a": "loading"}), ("127.0.0.1:9002", {"a": "loading"})]
    assert summed_up(told[3]) == [("127.0.0.1:9001", {"a": "warm"}), ("127.0.0.1:9002", {"a": "warm"})]


def test_another_address_under_the_same_name_is_another_endpoint() -> None:
    probe = {"path": "/p", "interval_s": 3000}
    models = [{"name": "a"}]
    told, ask = reconfigure(
        {"models": models, "endpoints": [{"url": ONE, "name": "e", "models": ["a"], "probe": probe}]},
        {"models": models, "endpoints": [{"url": TWO, "name": "e", "models": ["a"], "probe": probe}]},
    )
    assert summed_up(told[1]) == [("e", {"a": "cold"}), ("e", {"a": "warm"})]
    assert ask.asked == [(ONE, "/p"), (TWO, "/p")]


@pytest.mark.parametrize("first_s", [FIRST_PROBES_S, SUCCESSOR_PROBES_S])
def test_first_probes_are_part_of_the_first_attempt_but_for_a_while_only(first_s: float) -> None:
    async def main() -> None:
        now = [5.0]
        ask = Scripted()
        parts = {"models": [{"name": "a", "endpoints": [ONE], "probe": {"path": "/p"}}]}
        source = StaticSource(static_endpoints(settings(**parts)), ask, clock=lambda: now[0], first_s=first_s)
        task = asyncio.create_task(source.run(lambda event: None))
        await turns()
        now[0] += first_s - 0.1
        assert (source.tried, source.complete) == (False, True)
        now[0] += 0.2
        assert source.tried
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


class Engine:
    """Answers as vLLM does, with a queue that grows by one at each look."""

    def __init__(self) -> None:
        self.rounds = 0

    async def __call__(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        self.rounds += 1
        await turns(1)
        said = {
            "/health": Answer(200),
            "/metrics": Answer(200, body=b"vllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc NaN\n" % self.rounds),
        }
        return [said.get(question.path, Answer(404)) for question in questions]


def test_what_a_probe_says_of_the_load_stands_in_the_record_as_long_as_the_probe_does() -> None:
    probe = {"kind": "vllm", "interval_s": 3000}
    first = {"models": [{"name": "a", "endpoints": [ONE], "probe": probe}]}
    more = {"models": [{"name": "a", "endpoints": [ONE], "probe": probe}, {"name": "b", "endpoints": [ONE]}]}
    none = {"models": [{"name": "a", "endpoints": [ONE]}]}

    async def main() -> None:
        told: list[Found] = []
        source = StaticSource(static_endpoints(settings(**first)), Engine(), clock=lambda: 5.0)
        task = asyncio.create_task(source.run(told.append))
        for other in (more, none):
            await turns()
            source.configure(static_endpoints(settings(**other)))
        await turns()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        records = [event.record for event in told if isinstance(event, EndpointSeen)]
        assert [(record.queue_depth, [r.state.value for r in record.replicas]) for record in records] == [
            (None, ["cold"]),
            (1, ["warm"]),
            (1, ["warm", "warm"]),
            (None, ["warm"]),
        ]
        assert source.refused == {"nan": 1}

    asyncio.run(main())


def test_probes_come_no_faster_than_the_rate_allows() -> None:
    async def main() -> int:
        urls = [f"http://127.0.0.1:{port}" for port in range(9001, 9011)]
        parts = {"models": [{"name": "a", "endpoints": urls, "probe": {"path": "/p", "interval_s": 3000}}]}
        ask = Probed()
        source = StaticSource(static_endpoints(settings(**parts)), ask, clock=lambda: 5.0, probes_per_s=4.0)
        task = asyncio.create_task(source.run(lambda event: None))
        await turns(50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert source.pace.late == 5
        return len(ask.asked)

    assert asyncio.run(main()) == 5


def test_of_a_group_only_the_endpoint_that_takes_requests_waits_for_warm_up_requests() -> None:
    warmup = {"requests": [{"name": "b1", "path": "/infer", "json": {}, "within_s": 1}]}
    shards = {"mode": "tensor", "count": 2, "entry": 1}
    models = [{"name": "t", "shards": shards, "warmup": warmup}]
    endpoints = [{"url": ONE, "models": ["t#0"]}, {"url": TWO, "models": ["t#1"]}]
    found = static_endpoints(settings(models=models, endpoints=endpoints))
    assert [first_record(each).replicas[0].state for each in found] == [State.WARM, State.WARMING]
