from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from router.model import EndpointSeen, State
from sidecar.discovery.source import Found
from sidecar.discovery.static import NOT_PROBED_YET, StaticSource, static_endpoints
from sidecar.settings import Settings
from sidecar.upstreams.adapters import Answer, HttpReadiness

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


def test_a_unix_socket_s_endpoint_is_named_by_its_address() -> None:
    (found,) = static_endpoints(settings(models=[{"name": "a", "endpoints": ["unix:/run/w.sock"]}]))
    assert (found.id, found.address) == ("unix:/run/w.sock", "unix:/run/w.sock")


class Scripted:
    """Answers probes from a list, one a turn, and ends the source when it is spent."""

    def __init__(self, *statuses: int | None) -> None:
        self._left = list(statuses)
        self.asked: list[tuple[str, str, float]] = []
        self.spent = asyncio.Event()

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        self.asked.append((address, path, timeout_s))
        if not self._left:
            self.spent.set()
            await asyncio.Event().wait()
        return Answer(self._left.pop(0), "refused")


def play(parts: dict[str, Any], *statuses: int | None) -> tuple[list[EndpointSeen], Scripted, StaticSource]:
    async def main() -> tuple[list[EndpointSeen], Scripted, StaticSource]:
        ask = Scripted(*statuses)
        events: list[Found] = []
        source = StaticSource(static_endpoints(settings(**parts)), ask, HttpReadiness(), clock=lambda: 5.0)
        assert (source.tried, source.complete) == (False, False)
        task = asyncio.create_task(source.run(events.append))
        await asyncio.wait_for(ask.spent.wait() if statuses else asyncio.sleep(0), 5)
        await asyncio.sleep(0)
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
