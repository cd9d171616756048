"""What connections share: what a target means, identifiers, what is counted where, the sweep."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from router.cluster import Cluster
from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointRecord,
    EndpointSeen,
    Event,
    GoneReason,
    Replica,
)
from router.outcomes import OUTCOME_INDEX, AttemptResult, Outcome
from router.policy import ModelPolicy, Policies
from router.routes import Attempt
from sidecar.http1.plane import Plane
from sidecar.settings import Limits, ModelTimeouts, Timeouts
from sidecar.telemetry.page import (
    BUCKETS_S,
    ENDPOINT_EJECTIONS,
    ENDPOINT_HISTOGRAM,
    ENDPOINT_IN_FLIGHT,
    MODEL_OUTCOMES,
    Page,
    Scalar,
)
from tests.support.pages import begun_page

MODELS = (ModelPolicy("m"), ModelPolicy("fallback", default=True))


class Bench:
    def __init__(self, page: Page, models: tuple[ModelPolicy, ...] = MODELS) -> None:
        self.now = 10.0
        self.page = page
        self.shared: list[Event] = []
        self.cluster = Cluster(Policies(), models, self.now)
        self.plane = Plane(
            cluster=self.cluster,
            page=page,
            loop=None,  # type: ignore[arg-type]
            clock=lambda: self.now,
            rng=random.Random(1),
            limits=Limits(),
            timeouts=Timeouts(),
            share=self.shared.extend,
        )

    def see(self, id: str, *models: str) -> None:  # noqa: A002
        replicas = tuple(Replica(model) for model in models)
        record = EndpointRecord(id, "http://a.test:1", replicas=replicas, static=True)
        self.cluster.apply(EndpointSeen(record, self.now), self.now)

    def attempt(self, model: str) -> Attempt:
        route = self.cluster.route(model)
        assert route is not None
        chosen = self.cluster.choose(route, self.now, lambda: 0.0)
        assert isinstance(chosen, Attempt)
        self.plane.upstream(chosen.endpoint)
        return chosen

    def scalar(self, member: Scalar) -> int:
        return int(self.page.words[Page.scalar(member)])


@pytest.fixture
def page() -> Iterator[Page]:
    with begun_page() as made:
        yield made


@pytest.fixture
def bench(page: Page) -> Bench:
    return Bench(page)


@pytest.mark.parametrize(
    ("target", "default_model", "model"),
    [
        (b"/v2/models/m/infer", None, "m"),
        (b"/v2/models/m/infer?model=fallback", None, "m"),
        (b"/v2/models/unknown/infer", None, "fallback"),
        (b"/v2/models/m/versions/7/infer", None, None),  # known, but not in that version: nobody's guess
        (b"/anything", None, "fallback"),
        (b"/anything", "m", "m"),
        (b"/v2/models/fallback/infer", "m", "fallback"),
    ],
)
def test_what_a_target_means(bench: Bench, target: bytes, default_model: str | None, model: str | None) -> None:
    route = bench.plane.resolve(target, default_model).route
    assert (route.model if route else None) == model


@pytest.mark.parametrize(
    ("target", "asked", "model"),
    [
        (b"/anything", b"m", "m"),
        (b"/v1/chat/completions", b"m", "m"),
        (b"/v1/chat/completions", b"unknown", "fallback"),
        (b"/v1/chat/completions", b"m@7", None),
        (b"/v1/chat/completions", b"\xff", "fallback"),
        (b"/v2/models/fallback/infer", b"m", "fallback"),
        (b"/v2", b"m", "m"),
    ],
)
def test_what_is_asked_for_counts_where_the_path_names_nothing(
    bench: Bench, target: bytes, asked: bytes, model: str | None
) -> None:
    found = bench.plane.resolve(target, None, asked)
    assert (found.route.model if found.route else None) == model
    assert found.otherwise is None


def test_a_body_is_looked_at_where_it_could_matter(bench: Bench) -> None:
    for target, matters in ((b"/v1/chat/completions", True), (b"/v2/models/m/infer", False), (b"/any", False)):
        found = bench.plane.resolve(target, None)
        assert (found.otherwise is not None) is matters
        assert (found.route is None) is matters
        meant = found.otherwise or found
        assert meant.route is not None


def test_what_a_target_meant_is_remembered_until_the_routes_change(bench: Bench) -> None:
    first = bench.plane.resolve(b"/v2/models/new/infer", None)
    assert bench.plane.resolve(b"/v2/models/new/infer?q", None) is first
    bench.see("e", "new")
    again = bench.plane.resolve(b"/v2/models/new/infer", None)
    assert again.route is not None
    assert again.route.model == "new"


def test_callers_cannot_fill_the_memory_withtargets(bench: Bench) -> None:
    for number in range(5000):
        bench.plane.resolve(b"/%d" % number, None)
    assert len(bench.plane.targets._known) <= 4096
    long = b"/" + b"a" * 300
    assert bench.plane.resolve(long, None) is not bench.plane.resolve(long, None)


def test_identifiers_are_well_formed_and_never_repeat(bench: Bench) -> None:
    ids = {bench.plane.new_request_id() for _ in range(100)}
    traces = {bench.plane.new_trace() for _ in range(100)}
    assert len(ids) == len(traces) == 100
    assert all(re.fullmatch(rb"[0-9a-f]{16}-[0-9a-f]{8}", one) for one in ids)
    trace = rb"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-00\r\n"
    assert all(re.fullmatch(trace, one) for one in traces)


@pytest.mark.parametrize("usual", [True, False])
def test_an_answer_is_counted_once_for_its_model_and_once_for_its_endpoint(bench: Bench, usual: bool) -> None:
    bench.see("e", "m")
    attempt = bench.attempt("m")
    row = bench.page.model_row("m")
    bench.now += 0.004
    if usual:
        bench.plane.answered(attempt, row, bench.now)
        bench.plane.settle(bench.now)
    else:
        bench.plane.attempt_ended(attempt, AttemptResult.SUCCESS, bench.now)
        bench.plane.request_ended(row, Outcome.OK, 0.004)
    words = bench.page.words
    step = BUCKETS_S.index(0.005)
    assert words[row + OUTCOME_INDEX[Outcome.OK]] == words[row + MODEL_OUTCOMES + step] == 1
    assert words[row + MODEL_OUTCOMES + len(BUCKETS_S) + 1] == pytest.approx(4000, abs=1)
    row = bench.page.endpoint_row("e")
    assert words[row] == words[row + ENDPOINT_HISTOGRAM + step] == 1
    assert words[row + ENDPOINT_HISTOGRAM + len(BUCKETS_S) + 1] == pytest.approx(4000, abs=1)
    assert attempt.endpoint.in_flight == 0


def test_an_ejection_is_counted_and_shared(bench: Bench) -> None:
    bench.see("e", "m")
    bench.plane.attempt_ended(bench.attempt("m"), AttemptResult.CONNECT_REFUSED, bench.now)
    (event,) = bench.shared
    assert isinstance(event, EndpointEjected)
    assert event.cause is EjectCause.QUARANTINE
    assert bench.page.words[bench.page.endpoint_row("e") + ENDPOINT_EJECTIONS] == 1


def test_flush_writes_the_gauges(bench: Bench) -> None:
    bench.see("e", "m")
    bench.attempt("m")
    bench.plane.received_bytes = 7
    bench.cluster.endpoints["e"].shell.sent_bytes = 9
    for _ in range(2):  # the second time adds nothing
        bench.plane.flush(bench.now)
    assert bench.scalar(Scalar.RECEIVED_BYTES) == 7
    assert bench.scalar(Scalar.SENT_BYTES) == 9
    assert bench.page.words[bench.page.endpoint_row("e") + ENDPOINT_IN_FLIGHT] == 1


def test_an_endpoint_that_left_loses_its_series_and_its_bytes_are_kept(bench: Bench) -> None:
    bench.see("e", "m")
    attempt = bench.attempt("m")
    pool = attempt.endpoint.shell
    pool.sent_bytes = 5
    bench.cluster.apply(EndpointGone("e", GoneReason.EXPIRED, bench.now), bench.now)
    assert bench.plane.bury() == ["e"]
    assert bench.plane.bury() == []
    assert pool.closed
    assert bench.scalar(Scalar.SENT_BYTES) == 5
    bench.see("other", "m")
    bench.attempt("m")  # takes the free row
    bench.plane.attempt_ended(attempt, AttemptResult.RESET, bench.now)
    counted = {key: sum(bench.page.words[row : row + len(AttemptResult)]) for key, row in bench.page.endpoints()}
    assert counted == {"other": 0, "_other": 1}


def test_an_attempt_of_an_endpoint_s_earlier_life_never_counts_for_another(bench: Bench) -> None:
    for epoch in ("one", "two"):
        record = EndpointRecord("e", "http://a.test:1", epoch=epoch, replicas=(Replica("m"),), static=True)
        bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)
        if epoch == "one":
            attempt = bench.attempt("m")
    bench.plane.bury()
    bench.attempt("m")
    bench.cluster.apply(EndpointGone("e", GoneReason.EXPIRED, bench.now), bench.now)
    bench.plane.bury()
    bench.see("other", "m")
    bench.attempt("m")  # takes the free row
    bench.plane.attempt_ended(attempt, AttemptResult.RESET, bench.now)
    counted = {key: sum(bench.page.words[row : row + len(AttemptResult)]) for key, row in bench.page.endpoints()}
    assert counted == {"other": 0, "_other": 1}


class Recorder:
    """Stands in for a connection in the sweep."""

    def __init__(self, deadline: float, *, active: bool = False, renews: float = 0.0, breaks: bool = False) -> None:
        self.deadline = deadline
        self.active = active
        self.renews = renews
        self.breaks = breaks
        self.seen: list[str] = []
        self.retired: list[tuple[float, float]] = []

    def refresh(self, now: float) -> None:
        self.active = False
        self.seen.append("refresh")
        if self.renews:
            self.deadline = now + self.renews

    def expired(self, now: float) -> None:
        self.seen.append("expired")
        if self.breaks:
            raise RuntimeError

    def crashed(self, error: Exception) -> None:
        self.seen.append(type(error).__name__)

    def retire(self, now: float, idle_s: float) -> None:
        self.retired.append((now, idle_s))


@pytest.mark.interpreted_only(reason="a double in a place that only takes the native class")
@pytest.mark.parametrize(
    ("connection", "seen"),
    [
        (Recorder(20.0), []),
        (Recorder(10.0), ["expired"]),
        (Recorder(10.0, active=True, renews=5.0), ["refresh"]),  # an idle time begins anew
        (Recorder(10.0, active=True), ["refresh", "expired"]),  # a total time does not
        (Recorder(10.0, breaks=True), ["expired", "RuntimeError"]),
    ],
)
def test_the_sweep_looks_at_each_deadline(bench: Bench, connection: Recorder, seen: list[str]) -> None:
    bystander = Recorder(10.0)
    bench.plane.connections = {connection, bystander}  # type: ignore[arg-type]
    bench.plane.sweep(bench.now)
    assert connection.seen == seen
    assert bystander.seen == ["expired"]


@pytest.mark.interpreted_only(reason="a double in a place that only takes the native class")
def test_a_drain_lets_every_connection_end_within_its_idle_time(bench: Bench) -> None:
    idle = Recorder(99.0)
    bench.plane.configure(Limits(), Timeouts(drain_idle_s=3))
    bench.plane.connections = {idle}  # type: ignore[arg-type]
    bench.plane.drain(bench.now)
    assert idle.retired == [(bench.now, 3)]


def test_a_drain_is_told_once_to_who_wants_to_know(bench: Bench) -> None:
    calls: list[str] = []
    bench.plane.on_drain.append(lambda: calls.append("drain"))
    bench.plane.leave()
    assert (bench.plane.leaving, bench.plane.draining, calls) == (True, False, [])
    assert bench.scalar(Scalar.DRAINING_NOW) == 1
    bench.plane.drain(bench.now)
    assert (bench.plane.draining, calls) == (True, ["drain"])


def test_a_new_configuration_reaches_what_is_shared_and_the_pools_that_are_there(bench: Bench) -> None:
    bench.see("a", "m")
    pool = bench.attempt("m").endpoint.shell
    limits = Limits(body_bytes=7, replay_bytes=3, head_bytes=2048, target_bytes=100)
    own = ModelTimeouts(response_head_s=5)
    bench.plane.configure(limits, Timeouts(keep_alive_s=9, response_head_s=8), {"n": own})
    plane = bench.plane
    assert (plane.body_bytes, plane.replay_bytes, plane.keep_alive_s) == (7, 3, 9)
    assert (plane.limits, pool.max_head_bytes) == (limits, 2048)
    bench.see("b", "n")
    assert bench.attempt("n").endpoint.shell.max_head_bytes == 2048
    times = [plane.resolve(b"/v2/models/%s/infer" % name, None).times for name in (b"m", b"n")]
    assert [one.response_head_s for one in times] == [8, 5]


def test_the_last_one_out_of_a_drain_is_reported(bench: Bench) -> None:
    calls: list[int] = []
    bench.plane.drained = lambda: calls.append(1)
    bench.plane.sweep(bench.now)
    assert calls == []
    bench.plane.drain(bench.now)
    bench.plane.sweep(bench.now)
    assert calls == [1]


def test_background_attempts_are_counted_apart_and_nowhere_else(page: Page) -> None:
    bench = Bench(page)
    bench.see("e", "m")
    bench.plane.upstream(bench.cluster.endpoints["e"])
    route = bench.cluster.route("m")
    assert route is not None
    attempt = bench.cluster.begin_background(route.candidates[0], route, bench.now)
    assert attempt is not None
    before = bytes(page.words)
    bench.plane.attempt_ended(attempt, AttemptResult.SERVER_ERROR, bench.now + 1.0)
    assert bench.scalar(Scalar.BACKGROUND_TOTAL) == 1
    page.words[Page.scalar(Scalar.BACKGROUND_TOTAL)] = 0
    assert bytes(page.words) == before
    assert attempt.endpoint.in_flight == 0
