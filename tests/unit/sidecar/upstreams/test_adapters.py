from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import State
from sidecar.settings import Probe, ProbeKind
from sidecar.upstreams.adapters import Answer, Held, Load, Question, Reading, Signal, SignalAdapter, readiness
from sidecar.upstreams.engine_adapters import TOO_LONG
from sidecar.upstreams.kinds import adapter_for, kind_of, kind_questions


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_success_is_warm(status: int) -> None:
    signal = readiness(Answer(status))
    assert (signal.state, signal.reason) == (State.WARM, "")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "not ready (HTTP 400)"),  # Triton
        (503, "not ready (HTTP 503)"),  # everybody else
        (429, "not ready (HTTP 429)"),
        (500, "not ready (HTTP 500)"),
        (404, "check probe.path"),
        (405, "check probe.path"),
        (401, "does not let us ask"),
        (302, "a redirect is no answer"),
    ],
)
def test_every_other_status_is_not_ready_and_says_why(status: int, says: str) -> None:
    signal = readiness(Answer(status))
    assert signal.state is State.LOADING
    assert says in signal.reason


def test_no_answer_is_not_ready() -> None:
    signal = readiness(Answer(None, "refused"))
    assert (signal.state, signal.reason) == (State.LOADING, "no answer: refused")


def test_a_body_that_says_not_ready_is_believed_over_its_status() -> None:
    assert readiness(Answer(200, body=b'{"ready": false}')).state is State.LOADING
    assert readiness(Answer(200, body=b'{"name": "m", "ready": "False"}')).reason == (
        'not ready (HTTP 200 with "ready": false)'
    )
    for body in (b'{"ready": true}', b'{"live": true}', b"[]", b"ready: false", b'{"ready": null}', b"\xff"):
        assert readiness(Answer(200, body=body)).state is State.WARM, body


NOT_READY = b'{"ready": false}'
SAYS_NOT_READY = 'not ready (HTTP 200 with "ready": false)'


@pytest.mark.parametrize("kind", [kind for kind in ProbeKind if kind is not ProbeKind.AUTO])
def test_every_kind_reads_the_body_that_says_not_ready(kind: ProbeKind) -> None:
    one = adapter(kind.value, load=False)
    health, *others = one.questions(M)
    assert health.body_bytes >= len(NOT_READY)
    for body, signal in ((NOT_READY, Signal(State.LOADING, SAYS_NOT_READY)), (b'{"ready": true}', Signal(State.WARM))):
        answers = {health: Answer(200, body=body), **dict.fromkeys(others, Answer(404))}
        assert one.read(M, answers).signals["m", ""] == signal


def read(adapter: SignalAdapter, held: list[Held], **said: Answer) -> Reading:
    """Return what an adapter reads where its questions, by the end of their paths, are answered so."""
    answers = {}
    for question in adapter.questions(held):
        for end, answer in said.items():
            if question.path.endswith(end.replace("__", "/")):
                answers[question] = answer
    return adapter.read(held, answers)


M: list[Held] = [("m", "")]
OK = Answer(200)


def page(text: str) -> Answer:
    return Answer(200, body=text.encode())


def adapter(kind: str, **probe: Any) -> SignalAdapter:
    return adapter_for(ProbeKind(kind), msgspec.convert({"kind": kind, **probe}, Probe))


# --- any server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "answer", "reason"),
    [
        ({"status": 204}, Answer(204), ""),
        ({"status": 204}, Answer(200), "HTTP 200, not the 204 of probe.expect.status"),
        ({"status": 503}, Answer(503), ""),
        ({"body_contains": "ok"}, Answer(200, body=b"all ok"), ""),
        ({"body_contains": "ok"}, Answer(200, body=b"no"), "HTTP 200, but the body lacks probe.expect.body_contains"),
        ({"body_contains": "ok"}, Answer(503, body=b"ok"), "not ready (HTTP 503)"),
        ({"status": 200, "body_contains": "é"}, Answer(200, body="é".encode()), ""),
        ({"status": 200}, Answer(None, "refused"), "no answer: refused"),
        ({"status": 200}, Answer(200, body=NOT_READY), SAYS_NOT_READY),
        ({"status": 503}, Answer(503, body=NOT_READY), ""),  # over a 2xx, no more
        ({"body_contains": "ready"}, Answer(200, body=NOT_READY), SAYS_NOT_READY),
    ],
)
def test_plain_http_is_what_is_expected(expect: dict[str, Any], answer: Answer, reason: str) -> None:
    one = adapter("http", path="/up", expect=expect)
    (question,) = one.questions(M)
    assert question == Question("/up", body_bytes=65536 if "body_contains" in expect else 4096)
    signal = read(one, M, up=answer).signals["m", ""]
    assert (signal.state, signal.reason) == (State.LOADING if reason else State.WARM, reason)


# --- V2 -------------------------------------------------------------------------------------------------------------

TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 7
nv_inference_request_success{model="n",version="1"} 0
nv_inference_exec_count{model="m",version="1"} 5
nv_inference_exec_count{model="n",version="1"} 0
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 2
nv_inference_pending_request_count{model="n",version="1"} 3
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 16000000000.000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 16000000000.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 4000000000.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} NaN
"""


def test_triton_is_asked_model_by_model_and_for_its_load_on_its_metrics_port() -> None:
    held: list[Held] = [("m", ""), ("n/x", "3"), ("n", "")]
    triton = adapter("triton")
    assert [(q.path, q.port) for q in triton.questions(held)] == [
        ("/v2/models/m/ready", 0),
        ("/v2/models/n%2Fx/versions/3/ready", 0),
        ("/v2/models/n/ready", 0),
        ("/metrics", 8002),
    ]
    reading = read(triton, held, m__ready=OK, n__ready=Answer(400), metrics=page(TRITON))
    assert reading.signals == {
        ("m", ""): Signal(State.WARM, "", (("any", 1.0),)),
        ("n/x", "3"): Signal(State.LOADING, "no answer: not asked"),
        ("n", ""): Signal(State.LOADING, "not ready (HTTP 400)", (("any", 0.0),)),
    }
    assert reading.load == Load(queue_depth=5, free_memory_bytes=12000000000, total_memory_bytes=16000000000)
    assert reading.refused == {"nan": 1}, "and that card counts neither as used nor as free"


@pytest.mark.parametrize(
    ("probe", "held", "asked"),
    [
        ({"load": False}, ("m", ""), [("/v2/models/m/ready", 0)]),
        ({"load": False}, ("*", ""), [("/v2/health/ready", 0)]),
        ({"path": "/up", "metrics_path": "/x", "metrics_port": 9}, ("m", ""), [("/up", 0), ("/x", 9)]),
    ],
)
def test_what_triton_is_asked_can_be_set(probe: dict[str, Any], held: Held, asked: list[tuple[str, int]]) -> None:
    assert [(q.path, q.port) for q in adapter("triton", **probe).questions([held])] == asked


def test_used_memory_over_all_of_it_is_no_free_memory() -> None:
    text = 'nv_gpu_memory_total_bytes{g="a"} 10\nnv_gpu_memory_used_bytes{g="a"} 11\n'
    load = read(adapter("triton"), M, metrics=page(text)).load
    assert load == Load(free_memory_bytes=0, total_memory_bytes=10)


@pytest.mark.parametrize(
    ("metrics", "load"),
    [
        (Answer(404), Load()),
        (Answer(200, body=b"<html>nothing here"), Load()),
        (Answer(None, "refused"), None),
        (page("nv_inference_pending_request_count -1\n"), Load()),
        (page("nv_inference_pending_request_count +Inf\n"), Load()),
        (page("nv_inference_pending_request_count 1e300\n"), Load(queue_depth=1 << 53)),
    ],
)
def test_what_is_no_use_is_not_known(metrics: Answer, load: Load | None) -> None:
    reading = read(adapter("triton"), M, ready=OK, metrics=metrics)
    assert reading.load == load
    assert reading.signals["m", ""] == Signal(State.WARM)


def test_mlserver_answers_400_and_counts_good_runs_on_a_port_of_its_own() -> None:
    mlserver = adapter("mlserver")
    assert [(q.path, q.port) for q in mlserver.questions([("m", "v1")])] == [
        ("/v2/models/m/versions/v1/ready", 0),
        ("/metrics", 8082),
    ]
    runs = page('model_infer_request_success_total{model="m",version="v1"} 1.0\n')
    reading = read(mlserver, [("m", "v1"), ("m", "v2")], v1__ready=Answer(400), v2__ready=OK, metrics=runs)
    assert reading.signals["m", "v1"] == Signal(State.LOADING, "not ready (HTTP 400)", (("any", 1.0),))
    assert reading.signals["m", "v2"] == Signal(State.WARM), "nothing is known of its runs"


def test_kserve_answers_503_knows_no_versions_in_paths_and_tells_of_unknown_models() -> None:
    kserve = adapter("kserve")
    held: list[Held] = [("m", "3")]
    assert [(q.path, q.port) for q in kserve.questions(held)] == [("/v2/models/m/ready", 0), ("/metrics", 0)]
    runs = page('request_predict_seconds_count{model_name="m"} 4\n')
    assert read(kserve, held, ready=OK, metrics=runs).signals["m", "3"] == Signal(State.WARM, "", (("any", 1.0),))
    for answer, reason in (
        (Answer(503), "not ready (HTTP 503)"),
        (Answer(404), "HTTP 404: the server does not know a model named m"),
        (Answer(200, body=b'{"name":"m","ready":false}'), 'not ready (HTTP 200 with "ready": false)'),
    ):
        assert read(kserve, held, ready=answer).signals["m", "3"].reason == reason


# --- engines --------------------------------------------------------------------------------------------------------

VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 128.0
vllm:generation_tokens_total{engine="1",model_name="m"} 0.0
"""
SERVES = page('{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"},{"id":"lora","object":"model"}]}')
AWAKE, ASLEEP = page('{"is_sleeping": false}'), page('{"is_sleeping": true}')


def test_vllm_tells_health_sleep_names_queue_and_cache() -> None:
    vllm = adapter("vllm")
    assert [(q.path, q.every_s) for q in vllm.questions(M)] == [
        ("/health", 0.0),
        ("/is_sleeping", 0.0),
        ("/v1/models", 10.0),
        ("/metrics", 0.0),
    ]
    reading = read(vllm, [("m", ""), ("lora", "")], health=OK, is_sleeping=AWAKE, v1__models=SERVES, metrics=page(VLLM))
    proven = Signal(State.WARM, "", (("any", 1.0),))
    assert reading.signals == {("m", ""): proven, ("lora", ""): proven}
    assert reading.load == Load(queue_depth=5, free_memory_ratio=0.625)


def test_an_engine_of_which_one_rank_tells_no_number_says_nothing_of_that() -> None:
    text = VLLM.replace("} 3.0", "} NaN").replace("} 0.25", "} -1")
    reading = read(adapter("vllm"), M, health=OK, metrics=page(text))
    assert reading.load == Load(), "the other rank's queue of 2 would be less than there is"
    assert reading.refused == {"nan": 1, "negative": 1}
    assert reading.signals["m", ""].warmth == (("any", 1.0),)


SLEEP_STATE = 'vllm:engine_sleep_state{sleep_state="awake"} %d\nvllm:engine_sleep_state{sleep_state="discard_all"} %d\n'


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ({"health": OK}, State.WARM, ""),
        ({"health": Answer(503)}, State.LOADING, "not ready (HTTP 503)"),
        ({"health": Answer(503), "is_sleeping": ASLEEP}, State.LOADING, "not ready (HTTP 503)"),
        ({"health": OK, "is_sleeping": ASLEEP}, State.COLD, "it sleeps; POST /wake_up wakes it"),
        ({"health": OK, "metrics": page(SLEEP_STATE % (0, 1))}, State.COLD, "it sleeps; POST /wake_up wakes it"),
        ({"health": OK, "metrics": page(SLEEP_STATE % (1, 0))}, State.WARM, ""),
        ({"health": OK, "is_sleeping": Answer(404)}, State.WARM, ""),  # not in development mode
        ({"health": OK, "is_sleeping": page('{"is_sleeping": 1}')}, State.WARM, ""),
        ({"health": OK, "v1__models": Answer(401)}, State.WARM, ""),  # it wants a key, and so do callers
        ({"health": OK, "v1__models": page('{"data": 3}')}, State.WARM, ""),
        ({"health": OK, "v1__models": page("[" * 100000)}, State.WARM, ""),
        (
            {"health": OK, "v1__models": page('{"data": [{"id": "a"}, {}, 4, {"id": 5}, {"id": "b"}]}')},
            State.LOADING,
            "it serves a, b, not m; check probe.served_as",
        ),
        ({"health": OK, "v1__models": Answer(200, body=b'{"data": [', cut=True)}, State.LOADING, TOO_LONG),
        ({"health": OK, "v1__models": Answer(401, body=b"x", cut=True)}, State.WARM, ""),
        (
            {"health": OK, "v1__models": page('{"data": []}')},
            State.LOADING,
            "it serves no model, not m; check probe.served_as",
        ),
    ],
)
def test_vllm_is_warm_where_it_is_healthy_awake_and_serves_the_model(
    said: dict[str, Answer], state: State, reason: str
) -> None:
    signal = read(adapter("vllm"), M, **said).signals["m", ""]
    assert (signal.state, signal.reason) == (state, reason)


def test_a_healthy_engine_that_answered_nothing_yet_has_proven_nothing() -> None:
    fresh = page('vllm:generation_tokens_total{engine="0"} 0.0\n')
    assert read(adapter("vllm"), M, health=OK, metrics=fresh).signals["m", ""].warmth == (("any", 0.0),)
    assert read(adapter("vllm"), M, health=OK).signals["m", ""].warmth == ()


@pytest.mark.parametrize("listed", [SERVES, Answer(200, body=b'{"data": [', cut=True)])
def test_what_an_engine_serves_under_any_name_will_do(listed: Answer) -> None:
    assert read(adapter("vllm"), [("*", "")], health=OK, v1__models=listed).signals["*", ""].state is State.WARM


def test_a_list_of_a_thousand_adapters_is_read_and_what_it_lacks_is_not_ready() -> None:
    entries = [{"id": f"lora-{number}", "root": "x" * 60, "permission": [{"id": "y" * 300}]} for number in range(1000)]
    vllm, listed = adapter("vllm"), page(json.dumps({"data": entries}))
    question = next(one for one in vllm.questions(M) if one.path == "/v1/models")
    assert len(listed.body) < question.body_bytes
    found = read(vllm, [("m", ""), ("lora-999", "")], health=OK, v1__models=listed).signals
    assert found["m", ""].reason == "it serves lora-0, lora-1, lora-2 and 997 more, not m; check probe.served_as"
    assert found["lora-999", ""].state is State.WARM
    assert read(vllm, M, health=OK, v1__models=SERVES).signals["m", ""].state is State.WARM  # another answer since


def test_older_names_are_known_too() -> None:
    assert read(adapter("vllm"), M, metrics=page("vllm:gpu_cache_usage_perc 0.75\n")).load == Load(
        free_memory_ratio=0.25
    )
    assert read(adapter("vllm"), M, metrics=page("vllm:kv_cache_usage_perc 1.5\n")).load == Load(free_memory_ratio=0.0)


def test_sglang_and_nim_under_their_own_names() -> None:
    sglang = adapter("sglang")
    assert [q.path for q in sglang.questions(M)] == ["/health", "/is_sleeping", "/v1/models", "/metrics"]
    text = 'sglang:num_queue_reqs{tp_rank="0"} 6\nsglang:num_queue_reqs{tp_rank="1"} 6\nsglang:token_usage 0.28\n'
    assert read(sglang, M, metrics=page(text)).load == Load(queue_depth=6, free_memory_ratio=0.72)
    nim = adapter("nim")
    assert [q.path for q in nim.questions(M)] == ["/v1/health/ready", "/v1/models", "/v1/metrics"]
    text = 'num_requests_waiting{model_name="m"} 1\ngpu_cache_usage_perc{model_name="m"} 0.5\n'
    reading = read(nim, M, ready=OK, v1__models=SERVES, v1__metrics=page(text + "generation_tokens_total 9\n"))
    assert reading.load == Load(queue_depth=1, free_memory_ratio=0.5)
    assert reading.signals["m", ""] == Signal(State.WARM, "", (("any", 1.0),))


# --- which kind it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"v2": page('{"name": "triton", "version": "2.49"}')}, "triton"),
        ({"v2": page('{"name": "mlserver"}')}, "mlserver"),
        ({"v2": page('{"name": "KServe-python"}')}, "kserve"),
        ({"v2": page('{"name": "warmroute"}'), "v2__health__ready": OK}, "http"),
        ({"v2": page('{"name": "warmroute-worker"}'), "v2__health__ready": OK}, "kserve"),
        ({"v2": Answer(404), "v1__models": SERVES}, "vllm"),
        ({"v1__models": page('{"data": [{"id": "m", "owned_by": "sglang"}]}')}, "sglang"),
        ({"v1__health__ready": page('{"object": "health.response"}'), "v1__models": SERVES}, "nim"),
        ({"v1__models": page('{"data": [{"id": "m", "owned_by": "me"}]}')}, None),
        ({"v1__models": page('{"data": [4]}'), "v2": page("[]")}, None),
        ({"v2__health__ready": Answer(503)}, None),
        ({"v2__health__ready": OK, "v1__models": Answer(200, body=b'{"data": [', cut=True)}, None),
        ({}, None),
    ],
)
def test_a_server_is_recognised_by_what_it_says(said: dict[str, Answer], kind: str | None) -> None:
    probe = Probe(kind=ProbeKind.AUTO)
    answers = {
        question: answer
        for question in kind_questions(probe)
        for path, answer in said.items()
        if question.path == "/" + path.replace("__", "/")
    }
    assert kind_of(probe, answers) == (None if kind is None else ProbeKind(kind))


# --- whatever it says ------------------------------------------------------------------------------------------------

JUNK = st.binary(max_size=80) | st.sampled_from(
    [b'{"ready": [], "data": [{"id": "\\ud800"}], "is_sleeping": {}, "name": 3}', b'{"data": {"id": 1}}', b"[" * 70]
)
ANSWERS = st.builds(Answer, st.none() | st.integers(100, 599), st.text(max_size=5), JUNK, st.booleans())
NUMBER = st.sampled_from(["NaN", "-1", "+Inf", "1e400", "0", "2.5", "1e300", "x"])


@given(kind=st.sampled_from([kind.value for kind in ProbeKind if kind is not ProbeKind.AUTO]), data=st.data())
def test_no_answer_raises_and_no_figure_leaves_its_bounds(kind: str, data: st.DataObject) -> None:
    one = adapter(kind)
    held: list[Held] = [("m", ""), ("n", "2"), ("*", "")]
    answers = {question: data.draw(ANSWERS) for question in one.questions(held)}
    for question in answers:
        if "metrics" in question.path and data.draw(st.booleans()):
            names = sorted(getattr(one, "_names"))  # noqa: B009  what this adapter looks for
            lines = [f'{name}{{model="m"}} {data.draw(NUMBER)}' for name in names]
            answers[question] = Answer(200, body="\n".join([*lines, ""]).encode())
    reading = one.read(held, answers)
    assert set(reading.signals) == set(held)
    for signal in reading.signals.values():
        assert all(0 <= ratio <= 1 for _, ratio in signal.warmth)
    load = reading.load or Load()
    assert load.queue_depth is None or 0 <= load.queue_depth <= 1 << 53
    assert load.free_memory_ratio is None or 0 <= load.free_memory_ratio <= 1
    if load.total_memory_bytes is not None:
        assert load.free_memory_bytes is not None
        assert 0 <= load.free_memory_bytes <= load.total_memory_bytes
    kind_of(Probe(kind=ProbeKind.AUTO), {question: data.draw(ANSWERS) for question in kind_questions(Probe())})
