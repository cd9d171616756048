"""Whatever makes no sense is refused with its reason, counted, and changes no weight: one table over all that comes in.

Load reports in answers, records and messages of the store, latencies of other sidecars, policies of a configuration.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.cluster import Cluster
from router.model import (
    WHOLE,
    EndpointRecord,
    EndpointSeen,
    Event,
    FleetMeasured,
    LoadReport,
    Replica,
    ReplicaKey,
    ReplicaMeasured,
    Tick,
)
from router.policy import ScoringPolicy
from router.sketches import FORM_FIELD, Heard, encode_key
from router.wire import encode_fields
from sidecar.config.load import parse_settings
from sidecar.configuration import Configuration
from sidecar.http1.plane import Plane
from sidecar.http1.reports import REFUSED, take_report
from sidecar.settings import Limits, Timeouts, model_policies, router_policies
from sidecar.state.view import StoreView
from sidecar.telemetry.page import Page, Scalar
from sidecar.upstreams.orca import REASONS
from tests.support.pages import begun_page

GOOD = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
state: {url: "unix:///run/store.sock"}
models: [{name: m, default: true}]
policies:
  scoring: {queue_depth: 0.2, cpu_load: 0.2}
"""
KEY = encode_key(ReplicaKey("a", "e1", "m", "1", WHOLE))


def record(id_: str) -> EndpointRecord:
    return EndpointRecord(
        id_,
        f"http://{id_}.test:1",
        epoch="e1",
        replicas=(Replica("m", "1", warmth=(("batch-1", 1.0),), warm_for_s=900.0),),
        free_memory_bytes=1 << 30,
        total_memory_bytes=1 << 31,
        queue_depth=3,
        cpu_load=0.5,
    )


class Sidecar:
    """Two workers, known by store, load report and others' latencies, and every way in which more of them comes in."""

    def __init__(self, page: Page) -> None:
        self.now = 10.0
        self.page = page
        self.text = GOOD
        settings = parse_settings(GOOD.encode(), "w.yaml").settings
        policies = router_policies(settings)
        assert policies.scoring != ScoringPolicy()
        self.cluster = Cluster(policies, model_policies(settings), self.now)
        self.plane = Plane(
            cluster=self.cluster,
            page=page,
            loop=None,  # type: ignore[arg-type]
            clock=lambda: self.now,
            rng=random.Random(1),
            limits=Limits(),
            timeouts=Timeouts(),
            share=lambda _: None,
        )
        self.config = Configuration(
            settings,
            source="w.yaml",
            load=lambda: parse_settings(self.text.encode(), "w.yaml"),
            watch=None,
            wall=lambda: 1000.0,
            remedy="start another",
        )
        self.view = StoreView(5.0)
        self.revision = 0
        self.view.read_begins()
        self.apply(*self.view.read_ended([2, "a", self.hash("a"), "b", self.hash("b")], self.now))
        self.heard = Heard("own", policies.latency, lambda key: self.cluster.replica(key) is not None)
        self.cluster.reported(self.cluster.endpoints["b"], LoadReport(0.9, 7, 0.1), self.now)
        measured = (ReplicaMeasured("b", "e1", "m", "1", WHOLE, 1, ((70, 9),)),)
        self.apply(FleetMeasured(measured, self.now), Tick())
        assert len({row[1] for row in self.weights()}) == 2

    def hash(self, id_: str, **changed: str) -> dict[str, str]:
        self.revision += 1
        own = {"v": "1", "epoch": "e1", "rev": str(self.revision), "crev": str(self.revision)}
        return encode_fields(record(id_)) | own | changed

    def apply(self, *events: Event) -> None:
        for event in events:
            self.cluster.apply(event, self.now)

    def weights(self) -> list[Any]:
        """Return every term of every weight."""
        route = self.cluster.route("m")
        assert route is not None
        rows = self.cluster.explain(route, self.now, lambda: 0.5).rows
        return [(row.endpoint, row.weight, row.share, row.terms, row.p95_ms, row.expected_wait_ms) for row in rows]

    # --- the ways in; each returns the reasons that it counts ---------------------------------------------------------

    def answer(self, field: bytes) -> dict[str, int]:
        take_report(self.plane, self.cluster.endpoints["a"], b"HTTP/1.1 200 OK\r\n" + field + b"\r\n")
        counted = (int(self.page.words[Page.scalar(scalar)]) for scalar in REFUSED)
        assert self.page.words[Page.scalar(Scalar.LOAD_REPORTS_TOTAL)] == 0
        return {reason: count for reason, count in zip(REASONS, counted, strict=True) if count}

    def stored(self, changed: dict[str, str]) -> dict[str, int]:
        fields = self.hash("a", **{"rev": "900", "crev": "900", **changed})
        self.view.read_begins()
        self.apply(*self.view.read_ended([901, "a", fields, "b", 2], self.now))
        return self._complaints()

    def published(self, message: str) -> dict[str, int]:
        self.apply(*self.view.message(message, self.now))
        return self._complaints()

    def _complaints(self) -> dict[str, int]:
        assert self.view.bad.total() == len(self.view.complaints)
        return {text: 1 for _, text in self.view.complaints}

    def latencies(self, rows: dict[str, str], form: str | None = None) -> dict[str, int]:
        self.heard.whole("other", {FORM_FIELD: self.heard.form if form is None else form, **rows}, self.now)
        measured = tuple(ReplicaMeasured(*key, sidecars, pairs) for key, pairs, sidecars in self.heard.changed())
        self.apply(FleetMeasured(measured, self.now))
        assert len(self.heard.complaints) == sum(self.heard.refused.values())
        return dict(self.heard.refused)

    def configured(self, policies: str) -> dict[str, int]:
        self.text = f"{GOOD.split('policies:')[0]}policies: {policies}\n"
        before = self.config.settings
        self.config.reload(self.now)
        assert self.config.settings is before
        assert self.config.state.refused == 1
        self.cluster.configure(router_policies(self.config.settings), model_policies(self.config.settings), self.now)
        return dict.fromkeys(self.config.state.problems, 1)


def delta(**changed: object) -> str:
    whole = {"v": 1, "id": "a", "epoch": "e1", "rev": 3, "kind": "set", "f": {"free": "5"}}
    return json.dumps({**whole, **changed})


ANSWERS = [
    (b"endpoint-load-metrics: TEXT cpu_utilization=nan", "nan"),
    (b"endpoint-load-metrics: TEXT cpu_utilization=inf", "infinite"),
    (b"endpoint-load-metrics: TEXT cpu_utilization=-0.1", "negative"),
    (b"endpoint-load-metrics: TEXT cpu_utilization=much", "not_a_number"),
    (b"endpoint-load-metrics: TEXT cpu_utilization=0.1,cpu_utilization=0.2", "duplicate"),
    (b'endpoint-load-metrics: JSON {"cpu_utilization": 0.1', "malformed"),
    (b'endpoint-load-metrics: JSON {"named_metrics": {"queue_depth": NaN}}', "nan"),
    (b"endpoint-load-metrics-bin: !!!", "malformed"),
    (b"endpoint-load-metrics: TEXT " + b"a" * 5000 + b"=1", "over_limit"),
    (
        b"endpoint-load-metrics: TEXT cpu_utilization=0.1\r\nendpoint-load-metrics: TEXT cpu_utilization=0.1",
        "duplicate",
    ),
]
STORED: list[tuple[dict[str, str], str]] = [
    ({"v": "2"}, "schema version 2"),
    ({"rev": "x"}, "'x'"),
    ({"free": "-1"}, "negative"),
    ({"free": "nan"}, "'nan'"),
    ({"total": str(1 << 63)}, "too large"),
    ({"queue": "1e3"}, "'1e3'"),
    ({"cpu": "1.5"}, "no load in [0, 1]"),
    ({"cpu": "nan"}, "no load in [0, 1]"),
    ({"idle": "-1"}, "not a duration"),
    ({"wait": "inf"}, "not a duration"),
    ({"replicas": "["}, "JSONDecodeError"),
    ({"replicas": '[{"m":"m","s":"hot"}]'}, "'hot'"),
    ({"replicas": '[{"m":"m","s":"warm","w":{"batch-1":2}}]'}, "not a ratio"),
    ({"replicas": '[{"m":"m","s":"warm","w":{"batch-1":NaN}}]'}, "not a duration"),
    ({"replicas": '[{"m":"m","s":"warm","k":2,"n":2}]'}, "shard 2 of 2"),
    ({"replicas": "[" * 5000}, "RecursionError"),
    ({"replicas": json.dumps([{"m": "m", "v": "9" * 4301, "s": "warm"}])}, "version of 4301 characters, at most 128"),
    ({"replicas": json.dumps([{"m": "m" * 129, "s": "warm"}])}, "model of 129 characters, at most 128"),
    ({"addr": "garbage"}, "must be HOST:PORT after http://"),
    ({"addr": ""}, "must be HOST:PORT after http://"),
    ({"addr": "ftp://127.0.0.1:1"}, "must be HOST:PORT after http://"),
    ({"addr": "http://127.0.0.1"}, "must be HOST:PORT after http://"),
    ({"addr": "http://127.0.0.1:1/v2"}, "must be HOST:PORT after http://"),
    ({"addr": "http://me:secret@127.0.0.1:1"}, "must be HOST:PORT after http://"),
    ({"addr": "http://me@127.0.0.1:1"}, "must hold the name of a host"),
    ({"addr": "http://127.0.0.1:99999"}, "must have a port between 1 and 65535"),
    ({"addr": "http://127.0.0.1:0"}, "must have a port between 1 and 65535"),
    ({"addr": "http://127.0.0.1:9001\r\nX: y"}, "holds control characters"),
    ({"addr": "http://127.0.0.999:1"}, "must hold the name of a host"),
    ({"addr": "http://[::g]:1"}, "must be HOST:PORT after http://"),
    ({"addr": "unix:relative.sock"}, "must be HOST:PORT after http://"),
    ({"addr": "unix:/" + "s" * 107}, "of at most 107 bytes"),
    ({"proto": "xyz"}, "proto: 'xyz', but at http://a.test:1 it is 'http'"),
    ({"proto": "grpc"}, "proto: 'grpc', but at http://a.test:1 it is 'http'"),
    ({"addr": "grpc://a.test:1"}, "proto: 'http', but at grpc://a.test:1 it is 'grpc'"),
    ({"free": str(1 << 50), "total": "1"}, "is more than total, 1"),
    ({"free": str((1 << 31) + 1)}, "is more than total, 2147483648"),
    ({"free": "5", "total": "0"}, "free: 5 is more than total, 0"),
    ({"draining": "yes"}, "draining: 'yes' is neither '0' nor '1'"),
    ({"draining": ""}, "draining: '' is neither '0' nor '1'"),
    ({"replicas": '[{"m":"m","v":"1","s":"warm"},{"m":"m","v":"1","s":"cold"}]'}, "stands there twice"),
    ({"replicas": '[{"m":"m","v":"1","s":"warm","k":false,"n":true}]'}, "False is no whole number"),
    ({"replicas": '[{"m":"m","v":"1","s":"warm","g":1.9}]'}, "1.9 is no whole number"),
    ({"replicas": '[{"m":"m","v":"1","s":"warm","n":"1"}]'}, "'1' is no whole number"),
    ({"free": "1_000"}, "'1_000' is no whole number"),
    ({"free": "٣"}, "'٣' is no whole number"),
    ({"free": " 5 "}, "' 5 ' is no whole number"),
    ({"queue": "+3"}, "'+3' is no whole number"),
    ({"cpu": "1_0e-2"}, "no load in [0, 1]"),
    ({"cpu": "-0"}, "no load in [0, 1]"),
    ({"idle": "1_0"}, "not a duration"),
    ({"wait": "٣"}, "not a duration"),
    ({"replicas": json.dumps([{"m": f"{n:0100}", "s": "warm"} for n in range(500)])}, "a record of up to"),
]
PUBLISHED = [
    ("{", "JSONDecodeError"),
    ("[]", "TypeError"),
    (delta(v=2), "schema version 2"),
    (delta(kind="move"), "kind 'move'"),
    (delta(rev=-1), "negative"),
    (delta(f={"free": 5}), "5 is not text"),
    (delta(f=[1]), "kind 'set'"),
    (delta(id="a" * 129), "129 characters"),
    (delta(f={"free": "-1"}), "negative"),
    (delta(f={"cpu": "2"}), "no load in [0, 1]"),
]
LATENCIES: list[tuple[dict[str, str], str | None, str]] = [
    ({KEY: "10:5"}, "1 0.01 60.0", "form"),
    ({KEY: "10:5"}, "1 0.05 30.0", "form"),
    ({KEY: "10:nan"}, None, "malformed"),
    ({KEY: "10:-5"}, None, "malformed"),
    ({KEY: "10:5,-3:1"}, None, "malformed"),
    ({KEY: "999:5"}, None, "over_limit"),
    ({KEY: "10:0"}, None, "over_limit"),
    ({KEY: f"10:{1 << 40}"}, None, "over_limit"),
    ({KEY: "10:1200000,1:1"}, None, "over_limit"),
    ({KEY: ",".join(["1:1"] * 65)}, None, "over_limit"),
    ({"a": "10:5"}, None, "malformed"),
    ({KEY.replace('"m"', "7"): "10:5"}, None, "malformed"),
]
POLICIES = [
    ("{scoring: {warmth: .nan}}", "must be a finite number"),
    ("{scoring: {speed: -1}}", "a coefficient is 0 or more"),
    ("{scoring: {warmth: 0, free_memory: 0, speed: 0}}", "must be greater than 0"),
    ("{scoring: {coefficients: {queue_depht: 1}}}", "no such scorer"),
    ("{freshness: {ttl_s: 1}}", "must be greater than full_s"),
    ("{latency: {relative_error: 0.9}}", "must lie between 0.001 and 0.5"),
    ("{latency: {window_s: -1}}", "window_s"),
    ("{ramp: {start_ratio: 2}}", "start_ratio"),
    ("7", "must be a mapping"),
]

Way = Callable[[Sidecar], dict[str, int]]
TABLE: list[tuple[str, Way, str]] = [
    *((f"answer {at}", lambda one, field=field: one.answer(field), why) for at, (field, why) in enumerate(ANSWERS)),
    *((f"stored {at}", lambda one, of=of: one.stored(of), why) for at, (of, why) in enumerate(STORED)),
    *((f"published {at}", lambda one, of=of: one.published(of), why) for at, (of, why) in enumerate(PUBLISHED)),
    *(
        (f"latencies {at}", lambda one, rows=rows, form=form: one.latencies(rows, form), why)
        for at, (rows, form, why) in enumerate(LATENCIES)
    ),
    *((f"policy {at}", lambda one, of=of: one.configured(of), why) for at, (of, why) in enumerate(POLICIES)),
]


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with begun_page() as page:
        yield Sidecar(page)


@pytest.mark.parametrize(("way", "why"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_it_is_refused_counted_and_changes_no_weight(sidecar: Sidecar, way: Way, why: str) -> None:
    before = sidecar.weights()
    counted = way(sidecar)
    assert sum(counted.values()) == 1, counted
    assert why in next(iter(counted))
    sidecar.apply(Tick())
    assert sidecar.weights() == before


def test_what_makes_sense_changes_weights_on_each_of_these_ways(sidecar: Sidecar) -> None:
    def changes(act: Callable[[], object]) -> bool:
        before = sidecar.weights()
        act()
        sidecar.now += 1.0
        sidecar.apply(Tick(), EndpointSeen(sidecar.cluster.endpoints["b"].record, sidecar.now))
        return [row[1] for row in sidecar.weights()] != [row[1] for row in before]

    assert changes(lambda: sidecar.apply(*sidecar.view.message(delta(), sidecar.now)))
    assert changes(lambda: sidecar.latencies({KEY: "10:5"}))
    assert changes(lambda: take_report(sidecar.plane, sidecar.cluster.endpoints["a"], ANSWER_THAT_IS_GOOD))


ANSWER_THAT_IS_GOOD = b"HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.1\r\n"
