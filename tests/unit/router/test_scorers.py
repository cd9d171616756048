from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import scorers
from router.filters import default_filters
from router.lasting import lasting_at
from router.model import EndpointRecord, Replica, State, StoreMode
from router.outcomes import Reason
from router.policy import FreshnessPolicy, Policies, PolicyError, RampPolicy, ScoringPolicy, WarmthPolicy
from router.routes import freshness_at, ramp_at, weigh
from router.scorers import default_scorers
from router.scorers.cpu_load import CpuLoad
from router.scorers.free_memory import FreeMemory
from router.scorers.queue_depth import QueueDepth
from router.scorers.speed import Speed
from router.scorers.warmth import Warmth
from sidecar.config.load import parse_settings
from sidecar.config.problems import SettingsError
from sidecar.settings import router_policies
from tests.support.fleet import GIB, Driven, record

POLICIES = Policies()
FILTERS = default_filters(POLICIES.freshness.ttl_s)


class View:
    """The one double of the Candidate protocol: a record and numbers."""

    def __init__(self, of: EndpointRecord, **fields: object) -> None:
        self.record = of
        self.replica = of.replicas[0]
        self.age_s = 0.0
        self.warm_for_s = 1e6
        self.p95_ms: float | None = None
        self.broke_at = float("-inf")
        self.lasting = 1.0
        self.held = self.quarantined = self.breaker_open = self.busy = False
        self.lacks: tuple[str, ...] = ()
        self.entry = True
        self.inconsistent = self.outlier = False
        for name, value in fields.items():
            setattr(self, name, value)


def reason(view: View) -> Reason | None:
    return next((found for each in FILTERS if (found := each(view, StoreMode.LIVE)) is not None), None)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(record("e")), None),
        (View(record("e", state=State.COLD)), Reason.NOT_WARM),
        (View(record("e", state=State.LOADING)), Reason.NOT_WARM),
        (View(record("e", state=State.WARMING)), Reason.NOT_WARM),
        (View(record("e", state=State.FAILED)), Reason.NOT_WARM),
        (View(record("e"), broke_at=9.0), None),
        (View(record("e", replicas=(Replica("m", proven_at=9.5),)), broke_at=9.0), None),
        (View(record("e", replicas=(Replica("m", proven_at=9.0),)), broke_at=9.5, quarantined=True), Reason.UNPROVEN),
        (View(record("e", state=State.DRAINING)), Reason.DRAINING),
        (View(record("e", draining=True)), Reason.DRAINING),
        (View(record("e"), held=True), Reason.HELD),
        (View(record("e"), age_s=4.999), None),
        (View(record("e"), age_s=5.0), Reason.STALE),
        (View(record("e"), breaker_open=True), Reason.BREAKER_OPEN),
        (View(record("e"), quarantined=True), Reason.QUARANTINED),
        (View(record("e"), quarantined=True, breaker_open=True), Reason.BREAKER_OPEN),
        (View(record("e"), busy=True), Reason.BUSY),
        (View(record("e"), busy=True, quarantined=True), Reason.QUARANTINED),
        (View(record("e"), lacks=("shard 1: nobody holds it",), age_s=9.0), Reason.GROUP_INCOMPLETE),
        (View(record("e"), entry=False, busy=True), Reason.NOT_ENTRY),
        (View(record("e"), entry=False, quarantined=True), Reason.QUARANTINED),
        (View(record("e", state=State.COLD, draining=True), held=True, age_s=9.0, quarantined=True), Reason.NOT_WARM),
    ],
)
def test_filters(view: View, expected: Reason | None) -> None:
    assert reason(view) is expected


def test_filters_have_names_of_their_own() -> None:
    assert len({each.name for each in FILTERS}) == len(FILTERS)


def test_warmth_is_the_mean_over_shape_classes() -> None:
    replica = Replica("m", "1", warmth=(("1x3", 1.0), ("8x3", 0.5)))
    views = [View(record("a", replicas=(replica,))), View(record("b", warmth=None))]
    assert Warmth()(views) == [0.75, None]


def test_free_memory_is_a_ratio_and_unknown_without_a_total() -> None:
    records = [record("a", free=4 * GIB), record("b", free=None), record("c", total=None), record("d", total=0)]
    views = [View(each) for each in [*records, record("e", free=99 * GIB)]]
    assert FreeMemory()(views) == [0.25, None, None, None, 1.0]
    assert [FreeMemory().raw(view) for view in views[:2]] == [4 * GIB, None]


def test_a_worker_that_names_no_bytes_is_known_by_the_free_share_of_its_cache() -> None:
    caches = [replace(record("a", free=None), free_memory_ratio=ratio) for ratio in (0.0, 0.6)]
    both = replace(record("c", free=4 * GIB), free_memory_ratio=0.9)
    assert FreeMemory()([View(each) for each in [*caches, both]]) == [0.0, 0.6, 0.25]


@pytest.mark.parametrize(
    ("p95", "expected"),
    [
        ([None, None], [None, None]),
        ([10.0, 20.0, 40.0], [1.0, 1 / 3, 0.0]),
        ([10.0, None, 40.0], [1.0, None, 0.0]),
        ([10.0, 11.9], [0.5, 0.5]),
        ([10.0, 12.1], [1.0, 0.0]),
        ([10.0, None], [0.5, None]),
    ],
)
def test_speed(p95: list[float | None], expected: list[float | None]) -> None:
    scores = Speed(1.2)([View(record("e"), p95_ms=value) for value in p95])
    assert scores == pytest.approx(expected)


def queued(p95_ms: float | None, queue_time_ms: float | None) -> View:
    return View(replace(record("a"), queue_time_ms=queue_time_ms), p95_ms=p95_ms)


def test_a_queue_is_no_slowness() -> None:
    speed = Speed(1.2)
    assert speed([queued(30.0, 20.0), queued(10.0, None)]) == [0.5, 0.5]
    assert speed([queued(30.0, None), queued(10.0, None)]) == [0.0, 1.0]
    assert speed.raw(queued(30.0, 20.0)) == 10.0
    assert speed.raw(queued(30.0, 1e9)) == pytest.approx(3.0), "no number makes it faster than ten times"
    assert speed.raw(queued(None, 20.0)) is None


def test_speed_without_any_spread_asked_for_stays_finite() -> None:
    assert Speed(1.0)([View(record("e"), p95_ms=5.0) for _ in range(3)]) == [0.5] * 3


@pytest.mark.parametrize(("age_s", "expected"), [(0, 1), (2, 1), (3.5, 0.5), (5, 0), (99, 0)])
def test_freshness(age_s: float, expected: float) -> None:
    assert freshness_at(age_s, FreshnessPolicy()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("warm_for_s", "proven", "expected"),
    [(0, False, 0.1), (5, False, 0.55), (0, True, 0.5), (5, True, 0.75), (10, False, 1), (99, True, 1)],
)
def test_ramp(warm_for_s: float, proven: bool, expected: float) -> None:
    assert ramp_at(warm_for_s, RampPolicy(), proven=proven) == pytest.approx(expected)
    assert ramp_at(warm_for_s, RampPolicy(duration_s=0), proven=proven) == 1
    assert ramp_at(0, RampPolicy(start_ratio=0.7), proven=proven) == 0.7, "proof makes nobody's share smaller"


def weights(views: list[View], mode: StoreMode = StoreMode.LIVE, policies: Policies = POLICIES) -> list[float]:
    return weigh(views, default_scorers(policies.scoring), policies, mode).weights


def test_the_weight_is_the_law() -> None:
    views = [
        View(record("a", warmth=0.8, free=8 * GIB), p95_ms=10.0, age_s=3.5),
        View(record("b", warmth=0.4, free=4 * GIB), p95_ms=40.0, warm_for_s=5.0),
    ]
    expected = [0.5 * (0.4 * 0.8 + 0.35 * 0.5 + 0.25 * 1), 0.55 * (0.4 * 0.4 + 0.35 * 0.25)]
    assert weights(views) == pytest.approx(expected)


def test_what_is_unknown_takes_the_median_of_the_known() -> None:
    known = [View(record(id_, warmth=warmth)) for id_, warmth in (("a", 0.2), ("b", 0.6), ("c", 1.0))]
    unknown = View(record("d", warmth=None))
    out = weights([*known, unknown])
    assert out[3] == pytest.approx(out[1])


def test_what_is_unknown_for_all_is_neutral() -> None:
    views = [View(record(id_, warmth=None, free=None)) for id_ in "ab"]
    assert weights(views) == pytest.approx([0.5, 0.5])


def test_every_candidate_keeps_the_exploration_floor() -> None:
    views = [View(record("a")), View(record("b", warmth=0.0, free=0), p95_ms=9.0), View(record("c"), p95_ms=1.0)]
    weighing = weigh(views, default_scorers(POLICIES.scoring), POLICIES, StoreMode.LIVE)
    assert weighing.weights[1] == weighing.floor > 0
    raw = [weighing.weights[0], 0.0, weighing.weights[2]]
    assert weighing.floor == pytest.approx(0.02 * sum(raw) / 3)


def test_nobody_weighs_nothing() -> None:
    assert weights([]) == []


def test_with_the_store_long_gone_only_own_observations_count() -> None:
    views = [View(record("a", warmth=0.0, free=0), p95_ms=1.0), View(record("b"), p95_ms=2.0)]
    assert weights(views, StoreMode.LOCAL)[0] == 0.25
    assert weights(views, StoreMode.UNIFORM) == [1.0, 1.0]


def test_coefficients_are_configuration() -> None:
    policies = Policies(scoring=ScoringPolicy(warmth=0, free_memory=1, speed=0, exploration_floor_ratio=0))
    assert weights([View(record("a", free=4 * GIB)), View(record("b", free=0))], policies=policies) == [0.25, 0.0]


def test_a_queue_lowers_the_score_and_none_is_best() -> None:
    views = [View(replace(record("e"), queue_depth=depth)) for depth in (0, 1, 3, 99, None)]
    assert QueueDepth()(views) == pytest.approx([1.0, 0.5, 0.25, 0.01, None])
    assert [QueueDepth().raw(view) for view in views] == [0, 1, 3, 99, None]


def test_load_lowers_the_score() -> None:
    views = [View(replace(record("e"), cpu_load=load)) for load in (0.0, 0.25, 1.0, None)]
    assert CpuLoad()(views) == [1.0, 0.75, 0.0, None]
    assert [CpuLoad().raw(view) for view in views] == [0.0, 0.25, 1.0, None]


def waiting(number: int | None) -> View:
    return View(replace(record("e"), queue_depth=number))


def loaded(number: int | None) -> View:
    return View(replace(record("e"), cpu_load=None if number is None else number / (1 << 62)))


@pytest.mark.parametrize("view", [waiting, loaded])
@given(values=st.lists(st.integers(0, 1 << 62) | st.none(), min_size=1, max_size=8), at=st.integers(0, 7))
def test_more_waiting_or_more_load_never_raises_a_weight(
    view: Callable[[int | None], View], values: list[int | None], at: int
) -> None:
    policies = Policies(scoring=ScoringPolicy(queue_depth=0.5, cpu_load=0.5, exploration_floor_ratio=0))

    def weigh_with(numbers: list[int | None]) -> list[float]:
        return weights([view(one) for one in numbers], policies=policies)

    at %= len(values)
    one = values[at]
    if one is None:
        return
    better = [*values[:at], one // 2, *values[at + 1 :]]
    assert weigh_with(better)[at] >= weigh_with(values)[at]


def test_what_is_off_is_not_even_asked() -> None:
    assert [scorer.name for scorer, _ in default_scorers(ScoringPolicy())] == ["warmth", "free_memory", "speed"]
    policy = ScoringPolicy(speed=0, cpu_load=0.1, queue_depth=0.2)
    assert [(scorer.name, coefficient) for scorer, coefficient in default_scorers(policy)] == [
        ("warmth", 0.4),
        ("free_memory", 0.35),
        ("queue_depth", 0.2),
        ("cpu_load", 0.1),
    ]


def test_a_scorer_that_there_is_not_is_named() -> None:
    with pytest.raises(PolicyError) as caught:
        default_scorers(ScoringPolicy(coefficients={"mine": 1.0}))
    assert str(caught.value) == (
        "scoring.coefficients.mine: 1.0: no such scorer; there are cpu_load, free_memory, queue_depth, speed, warmth"
    )


@pytest.fixture
def own_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the file of docs/extending.md into the package of scorers, and say where it is."""
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page[page.index("## Scorer") : page.index("## Balancer")], re.DOTALL)
    path = tmp_path / "idleness.py"
    path.write_text(code)
    monkeypatch.setattr(scorers, "__path__", [*scorers.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield path
    sys.modules.pop("router.scorers.idleness", None)


TEXT = (
    "version: 1\nlisteners: [{address: '127.0.0.1:1'}]\nmodels: [{name: m, endpoints: ['http://w:1']}]\n"
    "policies: {scoring: {coefficients: {idleness: 0.2}}}\n"
)


def test_a_scorer_is_one_file_and_one_line_of_configuration(own_scorer: Path) -> None:
    policies = router_policies(parse_settings(TEXT.encode(), "w.yaml").settings)
    driven = Driven(policies=policies)
    driven.seen(*(replace(record(id_), idle_for_s=idle) for id_, idle in (("a", 30.0), ("b", None), ("c", 600.0))))
    rows = driven.cluster.explain(driven.route(), driven.now, driven.rng).rows
    terms = {row.endpoint: row.terms[-1] for row in rows}
    assert {id_: (term.name, term.unit, term.raw, term.score, term.unknown) for id_, term in terms.items()} == {
        "a": ("idleness", "s", 30.0, 0.5, False),
        "b": ("idleness", "s", None, 0.75, True),
        "c": ("idleness", "s", 600.0, 1.0, False),
    }
    assert terms["a"].contribution == pytest.approx(0.1)
    shares = driven.shares()
    assert shares["a"] < shares["b"] < shares["c"]
    variables = {"WARMROUTE__POLICIES__SCORING__COEFFICIENTS__IDLENESS": "0.25"}
    loaded = parse_settings(TEXT.encode(), "w.yaml", variables).settings
    assert loaded.policies.scoring.coefficients == {"idleness": 0.25}


def test_a_scorer_that_cannot_be_made_is_refused_with_the_configuration(own_scorer: Path) -> None:
    own_scorer.write_text("import nothing_of_that_name\n")
    with pytest.raises(SettingsError) as caught:
        parse_settings(TEXT.encode(), "w.yaml")
    assert str(caught.value) == (
        "w.yaml:4:36: policies.scoring.coefficients: a mapping: a scorer cannot be made: "
        "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    )


def test_warmth_counts_by_what_idleness_left_of_it() -> None:
    scorer = {each.name: each for each, _ in default_scorers(ScoringPolicy())}["warmth"]
    half = record("e", replicas=(Replica("m", warmth=(("a", 1.0), ("b", 0.0))),))
    assert scorer([View(half), View(half, lasting=0.5), View(record("e", warmth=None), lasting=0.5)]) == [
        0.5,
        0.25,
        None,
    ]


@pytest.mark.parametrize(("idle_s", "left"), [(0.0, 1.0), (60.0, 1.0), (90.0, 0.75), (120.0, 0.5), (1e9, 0.5)])
def test_warmth_decays_linearly_to_its_floor(idle_s: float, left: float) -> None:
    assert lasting_at(idle_s, WarmthPolicy(idle_after_s=60.0, decay_s=60.0, floor=0.5)) == pytest.approx(left)
    assert lasting_at(idle_s, WarmthPolicy()) == 1.0, "not unless it is configured"
