"""What is asked next of a probed endpoint, and what is remembered of its answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.model import EndpointRecord, State
from sidecar.discovery.probing import ABSENT_S, HOLD_S, NOT_KNOWN, Probing, Round, merged, worth_telling
from sidecar.settings import Probe, ProbeKind
from sidecar.upstreams.adapters import Answer, Held, Load

M: list[Held] = [("m", "")]
OK, GONE, ABSENT = Answer(200), Answer(None, "refused"), Answer(404)


def probing(**probe: Any) -> Probing:
    return Probing(msgspec.convert(probe, Probe))


def turn(probing: Probing, now: float, /, *held: Held, **said: Answer) -> tuple[list[str], Round]:
    """Ask what is due, answer each path so, and return what was asked and what came of it."""
    asked_of = list(held or M)
    questions = probing.questions(asked_of, now)
    answers = {question: said.get(question.path.strip("/").replace("/", "_"), ABSENT) for question in questions}
    return [question.path for question in questions], probing.take(asked_of, answers, now)


def page(text: str) -> Answer:
    return Answer(200, body=text.encode())


VLLM = {"health": OK, "metrics": page("vllm:num_requests_waiting 2\n"), "v1_models": page('{"data":[{"id":"m"}]}')}


def test_each_question_is_asked_as_often_as_it_is_worth() -> None:
    one = probing(kind="vllm")
    assert turn(one, 0.0, **VLLM)[0] == ["/health", "/is_sleeping", "/v1/models", "/metrics"]
    asked, found = turn(one, 1.0, **VLLM)
    assert asked == ["/health", "/metrics"], "names stand for a while, and a path that is not there stays away"
    assert found.signals["m", ""].state is State.WARM
    assert found.load == Load(queue_depth=2)
    assert turn(one, 11.0, **VLLM)[0] == ["/health", "/v1/models", "/metrics"]
    assert "/is_sleeping" in turn(one, ABSENT_S, **VLLM)[0]


def test_a_name_that_is_waited_for_is_looked_for_at_each_interval() -> None:
    one = probing(kind="vllm", interval_s=2)
    without = {**VLLM, "v1_models": page('{"data":[{"id":"other"}]}')}
    assert turn(one, 0.0, **without)[1].signals["m", ""].state is State.LOADING
    assert "/v1/models" not in turn(one, 1.9, **VLLM)[0], "it hurries for less"
    asked, found = turn(one, 2.0, **VLLM)
    assert "/v1/models" in asked
    assert found.signals["m", ""].state is State.WARM
    assert "/v1/models" not in turn(one, 11.9, **VLLM)[0]


def test_a_model_s_readiness_is_asked_each_time_even_where_the_server_does_not_know_it_yet() -> None:
    one = probing(kind="triton", load=False)
    held: list[Held] = [("a", ""), ("b", "")]
    for now in (0.0, 1.0):
        assert turn(one, now, *held)[0] == ["/v2/models/a/ready", "/v2/models/b/ready"]


def test_what_was_remembered_does_not_outlive_the_server() -> None:
    one = probing(kind="vllm")
    turn(one, 0.0, **VLLM)
    asked, found = turn(one, 1.0, health=GONE, metrics=GONE)
    assert asked == ["/health", "/metrics"]
    assert found.signals["m", ""].reason == "no answer: refused"
    assert turn(one, 2.0, **VLLM)[0] == ["/health", "/is_sleeping", "/v1/models", "/metrics"]


def test_the_last_load_stands_for_a_while_where_the_page_does_not_come() -> None:
    one = probing(kind="vllm")
    turn(one, 0.0, **VLLM)
    slow = {**VLLM, "metrics": GONE}
    assert turn(one, 1.0, **slow)[1].load == Load(queue_depth=2)
    found = turn(one, HOLD_S + 0.1, **slow)[1]
    assert found.load == Load()
    assert found.signals["m", ""].state is State.WARM
    assert turn(one, 6.0, **{**VLLM, "metrics": ABSENT})[1].load == Load(), "it says that it does not tell"


def test_refused_values_are_counted_once_each_time_they_come() -> None:
    one = probing(kind="vllm")
    bad = {**VLLM, "metrics": page("vllm:num_requests_waiting NaN\n")}
    assert [turn(one, now, **bad)[1].refused for now in (0.0, 1.0)] == [{"nan": 1}, {"nan": 1}]


def test_a_server_is_asked_by_the_names_that_it_knows() -> None:
    one = probing(kind="kserve", served_as="other", load=False)
    asked, found = turn(one, 0.0, ("m", "2"), v2_models_other_ready=OK)
    assert asked == ["/v2/models/other/ready"]
    assert found.signals["m", "2"].state is State.WARM
    every = probing(kind="triton", served_as="*", load=False)
    assert turn(every, 0.0, ("m", "2"), ("n", ""))[0] == ["/v2/health/ready"]


def test_auto_finds_out_once_which_kind_it_is_and_again_when_it_has_been_away() -> None:
    one = probing(kind="auto")
    asked, found = turn(one, 0.0)
    assert asked == ["/v2", "/v1/models", "/v1/health/ready", "/v2/health/ready"]
    assert (found.kind, found.signals["m", ""].reason) == (None, NOT_KNOWN)
    assert len(turn(one, 1.0, v2=GONE)[0]) == 4, "all are asked again: it may be starting"
    triton = {"v2": page('{"name":"triton"}'), "v2_models_m_ready": OK}
    found = turn(one, 2.0, **triton)[1]
    assert (found.kind, found.signals) == (ProbeKind.TRITON, {}), "and at once what such a server is asked"
    asked, found = turn(one, 2.0, **triton)
    assert asked == ["/v2/models/m/ready", "/metrics"]
    assert found.signals["m", ""].state is State.WARM
    found = turn(one, 3.0, v2_models_m_ready=GONE, metrics=GONE)[1]
    assert (found.kind, found.signals["m", ""].reason) == (None, "no answer: refused")
    turn(one, 4.0, v2=page('{"name":"mlserver"}'))
    assert turn(one, 4.0, v2_models_m_ready=Answer(400))[1].kind is ProbeKind.MLSERVER


def test_over_grpc_health_is_all_that_is_asked() -> None:
    one = Probing(Probe(kind=ProbeKind.TRITON), grpc=True)
    asked, found = turn(one, 0.0, v2_health_ready=OK)
    assert len(asked) == 1
    assert found.signals["m", ""].state is State.WARM


def test_of_several_probes_of_one_endpoint_each_figure_is_the_first_known() -> None:
    assert merged([Load(), Load(queue_depth=0), Load(queue_depth=5, free_memory_ratio=0.5)]) == Load(
        queue_depth=0, free_memory_ratio=0.5
    )
    assert merged([Load(None, 1, 2), Load(None, 3, 4)]) == Load(None, 1, 2)
    assert merged([]) == Load()


@pytest.mark.parametrize(
    ("after", "worth"),
    [
        ({}, False),
        ({"queue_depth": 3}, True),
        ({"queue_depth": None}, True),
        ({"free_memory_bytes": 505}, False),
        ({"free_memory_bytes": 510}, True),
        ({"total_memory_bytes": 1001}, True),
        ({"free_memory_ratio": 0.495}, False),
        ({"free_memory_ratio": 0.48}, True),
        ({"free_memory_ratio": None}, True),
    ],
)
def test_a_hair_s_breadth_is_not_told(after: dict[str, Any], worth: bool) -> None:
    before = {"queue_depth": 2, "free_memory_bytes": 500, "total_memory_bytes": 1000, "free_memory_ratio": 0.5}
    record = EndpointRecord("a", "http://a:1", **before)  # type: ignore[arg-type]
    assert worth_telling(record, Load(**{**before, **after})) is worth


def test_the_last_of_memory_is_told() -> None:
    assert worth_telling(Load(None, None, None, 0.005), Load(None, None, None, 0.0))


def test_the_queue_time_is_the_mean_of_the_last_minute_of_what_servers_add_up() -> None:
    one = probing(kind="vllm")

    def at(now: float, sum_s: float, count: int) -> float | None:
        text = f"vllm:request_queue_time_seconds_sum {sum_s}\nvllm:request_queue_time_seconds_count {count}\n"
        return turn(one, now, **{**VLLM, "metrics": page(text)})[1].load.queue_time_ms

    assert at(0.0, 100.0, 1000) is None, "what was before is not of the last minute"
    assert at(1.0, 100.5, 1010) == pytest.approx(50.0)
    assert at(2.0, 100.5, 1010) == pytest.approx(50.0)
    assert at(30.0, 101.5, 1020) == pytest.approx(75.0)
    assert at(200.0, 101.5, 1020) is None, "nobody waited, nobody was served"
    assert at(201.0, 0.1, 1) is None, "it was started again"
    assert at(202.0, 0.4, 3) == pytest.approx(150.0)


def test_triton_adds_queue_times_up_in_microseconds_over_all_models() -> None:
    one = probing(kind="triton")

    def at(now: float, us: int, requests: int) -> float | None:
        text = "".join(
            f'nv_inference_queue_duration_us{{model="{name}"}} {us}\n'
            f'nv_inference_request_success{{model="{name}"}} {requests}\n'
            for name in "mn"
        )
        return turn(one, now, v2_models_m_ready=OK, metrics=page(text))[1].load.queue_time_ms

    assert at(0.0, 0, 0) is None
    assert at(1.0, 40_000, 4) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        (None, None, False),
        (None, 0.0, True),
        (10.0, 10.5, False),
        (10.0, 12.0, True),
        (0.0, 0.0, False),
        (5.0, 0.0, True),
    ],
)
def test_a_queue_time_that_moved_by_a_tenth_is_told(before: float | None, after: float | None, worth: bool) -> None:
    assert worth_telling(Load(queue_time_ms=before), Load(queue_time_ms=after)) is worth


def test_what_is_on_its_way_back_is_asked_soon_and_the_seldomer_the_longer_it_takes() -> None:
    one = probing(kind="triton", load=False, interval_s=2, returning_s=0.05)
    held: list[Held] = [("a", ""), ("b", "")]

    def due(now: float, a: Answer, b: Answer, *, hurry: bool = True) -> float:
        turn(one, now, *held, v2_models_a_ready=a, v2_models_b_ready=b)
        return one.next_s(now, hurry=hurry)

    assert due(0.0, OK, OK) == 2
    assert due(10.0, OK, ABSENT) == 0.05
    assert due(12.5, OK, ABSENT) == 0.05
    assert due(20.0, OK, GONE) == pytest.approx(0.2)
    assert due(30.0, OK, GONE, hurry=False) == 2
    assert due(200.0, OK, GONE) == 2, "no seldomer than others"
    assert due(201.0, GONE, GONE) == 0.05, "another one is away since then"
    assert due(251.0, OK, GONE) == pytest.approx(1.0)
    assert due(252.0, OK, OK) == 2


def test_what_somebody_let_go_cold_is_asked_as_seldom_as_what_is_ready() -> None:
    one = probing(kind="vllm")
    asleep = {**VLLM, "is_sleeping": page('{"is_sleeping": true}')}
    assert turn(one, 0.0, **asleep)[1].signals["m", ""].state is State.COLD
    assert one.next_s(0.0, hurry=True) == 1


def test_a_server_that_was_recognised_has_not_come_back_by_that() -> None:
    one = probing(kind="auto")
    turn(one, 0.0, **dict.fromkeys(("v2", "v1_models", "v1_health_ready"), GONE))
    assert one.next_s(5.0, hurry=True) == pytest.approx(0.1)
    _, found = turn(one, 5.0, v2=page('{"name":"triton"}'))
    assert (found.kind, found.signals) == (ProbeKind.TRITON, {})
    assert turn(one, 5.0)[1].signals["m", ""].state is State.LOADING
    assert one.next_s(5.0, hurry=True) == pytest.approx(0.1)
