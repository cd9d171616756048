"""Loading what is good: values, the order of flags, environment and file, warnings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from router.policy import BalancerName, FreshnessPolicy, KeyPolicy, ScoringPolicy
from sidecar.config.load import Loaded, load, load_settings, parse_settings
from sidecar.config.overrides import EVERY, Override
from sidecar.config.problems import SettingsError
from sidecar.settings import Limits, LogFormat, Model, Probe, Settings, model_policies, router_policies
from tests.support.settings_texts import refused

BASE = """\
version: 1
listeners:
  - {address: "127.0.0.1:8080"}
  - {address: "[::1]:8081", name: six, default_model: b}
models:
  - {name: a, endpoints: ["http://127.0.0.1:9001"]}
  - {name: b, endpoints: ["http://[::1]:9002/"], idempotent: true}
"""


def parsed(text: str, **environ: str) -> Settings:
    return parse_settings(text.encode(), "w.yaml", environ).settings


def test_values_and_defaults(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.encode())  # Windows editors put a byte order mark in front
    settings = load_settings(path, {})
    assert [listener.address for listener in settings.listeners] == ["127.0.0.1:8080", "[::1]:8081"]
    assert settings.listeners[1].default_model == "b"
    assert settings.models[1] == Model(name="b", endpoints=("http://[::1]:9002/",), idempotent=True)
    assert settings.policies.freshness == FreshnessPolicy()
    assert settings.limits == type(settings.limits)()


def test_settings_survive_their_own_json() -> None:
    settings = parsed(BASE)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_scalars_are_yaml_1_2() -> None:
    settings = parsed(
        BASE + "logging: {format: text}\ntimeouts: {connect_s: 2, drain_s: 1.5e1}\nlimits: {fields: 0x20}\n"
    )
    assert settings.logging.format is LogFormat.TEXT
    assert (settings.timeouts.connect_s, settings.timeouts.drain_s) == (2.0, 15.0)
    assert isinstance(settings.timeouts.connect_s, float)
    assert settings.limits.fields == 32
    named = parsed(BASE + "endpoints: [{url: 'http://w:1', models: [a], name: on}]\n")
    assert named.endpoints[0].name == "on"  # true in YAML 1.1
    assert refused(BASE.replace('["http://127.0.0.1:9001"]', "[8:30]")) == [
        'w.yaml:6:27: models[0].endpoints[0]: "8:30": must be http://HOST:PORT; did you mean http://8:30?'
    ]


def test_anchors_share_values() -> None:
    settings = parsed(
        BASE.replace("idempotent: true", "idempotent: true, probe: &probe {path: /ready, interval_s: 2}")
        + "endpoints: [{url: 'http://w:1', models: [a], probe: *probe}]\n"
    )
    assert settings.models[1].probe == settings.endpoints[0].probe == Probe(path="/ready", interval_s=2.0)


def test_environment_goes_over_the_file() -> None:
    settings = parsed(
        BASE,
        WARMROUTE__LISTENERS__0__PROCESSES="4",
        WARMROUTE__MODELS__2__NAME="c",
        WARMROUTE__MODELS__2__ENDPOINTS='["http://w:1", "http://w:2"]',
        WARMROUTE__MODELS__1__ENDPOINTS__1="http://w:3",
        WARMROUTE__POLICIES__FRESHNESS__TTL_S="9",
        WARMROUTE__Logging__Level="debug",
        WARMROUTE_ADMIN="http://elsewhere:1",
        WARMROUTE__STATE__NAMESPACE="prod",
    )
    assert [listener.processes for listener in settings.listeners] == [4, 2]
    assert settings.models[2] == Model(name="c", endpoints=("http://w:1", "http://w:2"))
    assert settings.models[1].endpoints == ("http://[::1]:9002/", "http://w:3")
    assert settings.policies.freshness.ttl_s == 9.0
    assert settings.logging.level.value == "debug"
    assert settings.state.namespace == "prod"


def test_a_variable_can_hold_a_section_and_another_one_of_its_fields() -> None:
    settings = parsed(BASE, WARMROUTE__ADMIN__SOCKET="run/admin.sock", WARMROUTE__ADMIN="{address: null}")
    assert (settings.admin.address, settings.admin.socket) == (None, "run/admin.sock")


def test_list_items_are_taken_in_order_of_their_numbers() -> None:
    names = {f"WARMROUTE__MODELS__{index}__NAME": f"m{index}" for index in range(2, 12)}
    urls = {f"WARMROUTE__MODELS__{index}__ENDPOINTS": "['http://w:1']" for index in range(2, 12)}
    assert [model.name for model in parsed(BASE, **names, **urls).models[2:]] == [f"m{index}" for index in range(2, 12)]


ENVIRONMENT: list[tuple[str, str, str]] = [
    ("WARMROUTE__LISTENERS__0__PROCESSES", "x", 'listeners[0].processes: "x": must be a whole number'),
    ("WARMROUTE__LIMITS__HEAD", "1", '"1": no such field; did you mean WARMROUTE__LIMITS__HEAD_BYTES?'),
    ("WARMROUTE__LIMIT__HEAD_BYTES", "1", '"1": no such field; did you mean WARMROUTE__LIMITS__HEAD_BYTES?'),
    ("WARMROUTE__HEAD_BYTES", "1", '"1": no such field; did you mean WARMROUTE__LIMITS__HEAD_BYTES?'),
    (
        "WARMROUTE__LISTENERS__ADDRESS",
        "a:1",
        '"a:1": no such field; "listeners" is a list: WARMROUTE__LISTENERS__0 is its first item',
    ),
    (
        "WARMROUTE__VERSION__MAJOR",
        "1",
        '"1": no such field; "version" is a single value: did you mean WARMROUTE__VERSION?',
    ),
    (
        "WARMROUTE__LOGGING__QZX",
        "1",
        '"1": no such field; known here: WARMROUTE__LOGGING__FORMAT, WARMROUTE__LOGGING__LEVEL',
    ),
    ("WARMROUTE__MODELS__5__NAME", "z", 'models[5].name: "z": the list has 2 so far: the next item is number 2'),
    (
        "WARMROUTE__STATE__URL",
        "redis://u:hunter2@h:1/x",
        'state.url: "redis://***@h:1/x": must end in the number of a database, for example redis://h/0',
    ),
    ("WARMROUTE__STATE__PASSWORD", "hunter2", "***: no such field; did you mean WARMROUTE__STATE__PASSWORD_FILE?"),
    (
        "WARMROUTE__ADMIN",
        "[",
        (
            "\"[\": not valid YAML: while parsing a flow node expected the node content, but found '<stream end>': "
            "close each [ and { that was opened"
        ),
    ),
    (
        "WARMROUTE__LIMITS",
        "{fields: 8, fields: 9}",
        "fields: 9: given twice, twice in one value: remove one",
    ),
    (
        "WARMROUTE__LIMITS",
        "7",
        (f"limits: 7: must be a mapping with some of: {', '.join(Limits.__struct_fields__)}"),
    ),
]


@pytest.mark.parametrize(("name", "value", "text"), ENVIRONMENT, ids=[f"{row[0]}={row[1]}" for row in ENVIRONMENT])
def test_errors_name_the_variable(name: str, value: str, text: str) -> None:
    assert refused(BASE, **{name: value}) == [f"environment variable {name}: {text}"]


def test_a_variable_below_something_else_than_a_mapping() -> None:
    assert refused(BASE + "limits: 3\nendpoints: {}\n", WARMROUTE__LIMITS__FIELDS="9", WARMROUTE__ENDPOINTS__0="x") == [
        (
            'environment variable WARMROUTE__ENDPOINTS__0: endpoints[0]: "x": '
            "has no place: w.yaml:9:12 has an empty mapping where a list belongs"
        ),
        (
            'environment variable WARMROUTE__LIMITS__FIELDS: limits.fields: "9": '
            "has no place: w.yaml:8:9 has 3 where a mapping belongs"
        ),
        (f"w.yaml:8:9: limits: 3: must be a mapping with some of: {', '.join(Limits.__struct_fields__)}"),
        "w.yaml:9:12: endpoints: an empty mapping: must be a list: start each item with a hyphen, or write [a, b]",
    ]


def test_flags_go_over_the_environment() -> None:
    overrides = [
        Override(("logging", "format"), "text", "--log-format"),
        Override(("listeners", EVERY, "processes"), 1, "--processes"),
    ]
    environ = {"WARMROUTE__LOGGING__FORMAT": "json", "WARMROUTE__LISTENERS__0__PROCESSES": "7"}
    settings = parse_settings(BASE.encode(), "w.yaml", environ, overrides).settings
    assert settings.logging.format is LogFormat.TEXT
    assert [listener.processes for listener in settings.listeners] == [1, 1]


def test_errors_name_the_flag() -> None:
    overrides = [
        Override(("listeners",), [{"address": "nowhere"}], "--listen"),
        Override(("listeners", EVERY, "processes"), 1, "--processes"),
        Override(("models",), [{"name": "default", "endpoints": ["ftp://w"]}], "--to"),
    ]
    with pytest.raises(SettingsError) as caught:
        load(None, {}, overrides)
    assert [str(problem) for problem in caught.value.problems] == [
        '--listen: listeners[0].address: "nowhere": must be HOST:PORT, for example 127.0.0.1:8080',
        (
            '--to: models[0].endpoints[0]: "ftp://w": must start with http(s):// or grpc(s)://, '
            "or be unix:/PATH or grpc+unix:/PATH"
        ),
    ]
    misplaced = [Override(("version", "major"), 1, "--major"), Override(("models",), [], "--models")]
    with pytest.raises(SettingsError) as caught:
        load(None, {"WARMROUTE__LISTENERS": "[{address: 'h:1'}]"}, misplaced)
    assert [str(problem) for problem in caught.value.problems] == [
        "--major: version.major: 1: has no place: command line has 1 where a mapping belongs"
    ]


def test_without_a_file_the_environment_is_enough() -> None:
    environ = {
        "WARMROUTE__LISTENERS__0__ADDRESS": "127.0.0.1:0",
        "WARMROUTE__MODELS": "[{name: m, endpoints: ['http://w:1']}]",
    }
    assert load_settings(None, environ).models[0].endpoints == ("http://w:1",)


def warnings_of(text: str) -> list[str]:
    return [str(warning) for warning in parse_settings(text.encode(), "w.yaml").warnings]


def test_good_settings_have_no_warnings() -> None:
    assert parse_settings(BASE.encode(), "w.yaml") == Loaded(parsed(BASE), ())


def test_warnings(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o644)
    assert warnings_of(BASE + f"admin: {{address: '0.0.0.0:9901', token_file: {token}}}\n") == [
        (
            'w.yaml:8:18: admin.address: "0.0.0.0:9901": '
            "is not loopback: everyone who can reach it can read routes and settings"
        ),
        f'w.yaml:8:46: admin.token_file: "{token}": every user of this machine can read it: chmod 600 {token}',
    ]
    token.chmod(0o600)
    assert warnings_of(BASE + f"admin: {{token_file: {token}}}\n") == []
    assert warnings_of(BASE + "  - {name: c, probe: {}}\nstate: {url: 'unix:///run/state.sock'}\n") == [
        "w.yaml:8:22: models[2].probe: an empty mapping: has no effect: the model has no static endpoints"
    ]


def test_keys_that_no_grpc_call_can_have_are_warned_of() -> None:
    text = """\
version: 1
listeners: [{address: "127.0.0.1:0"}, {address: "127.0.0.1:0", protocol: grpc}]
models:
  - {name: a, shards: {mode: keyed, count: 2}, key: {json: t.id}, endpoints: ["grpc://w:1"]}
  - {name: b, shards: {mode: keyed, count: 2}, key: {last_segment: true}}
  - {name: c, shards: {mode: keyed, count: 2}, key: {json: t.id}, endpoints: ["http://w:4"]}
  - {name: d, shards: {mode: keyed, count: 2}, key: {header: x-t}, endpoints: ["grpc://w:5"]}
  - {name: e, balancer: keyed, key: {json: t.id}, endpoints: ["grpc://w:6"]}
endpoints: [{url: "http://w:2", models: ["b#0", "b#1"]}, {url: "grpc://w:3", models: ["b#0", "b#1"]}]
"""
    why = (
        "is for HTTP alone: every gRPC call of this model is INVALID_ARGUMENT, as its key can be in metadata only "
        "(key: {header: ...}), or in ModelInfer's message (key: {json: id} or {json: parameters.NAME}), and "
        "without one nobody knows its shard"
    )
    assert warnings_of(text) == [
        f'w.yaml:4:60: models[0].key.json: "t.id": {why}',
        f"w.yaml:5:68: models[1].key.last_segment: true: {why}",
    ]
    assert warnings_of(text.replace(", protocol: grpc", "")) == []
    assert len(warnings_of(text.replace("key: {json: t.id}", "key: {json: parameters.t}"))) == 1
    assert len(warnings_of(text + 'state: {url: "redis://r"}\n')) == 3, "workers of any kind may register"


def test_warnings_of_times_and_hedges_that_change_nothing() -> None:
    text = """\
version: 1
listeners: [{address: "127.0.0.1:0"}]
timeouts: {try_s: 5, total_s: 5}
models:
  - {name: a, endpoints: ["http://w:1"], idempotent: true, hedge: true, timeouts: {try_s: 4}}
  - {name: b, endpoints: ["http://w:1", "http://w:2"], idempotent: true, hedge: true, timeouts: {total_s: 3}}
  - {name: c, endpoints: ["http://w:1"], timeouts: {try_s: 9, total_s: 9.5}}
  - {name: d, endpoints: ["grpc://w:4", "grpc+unix:/run/w"], idempotent: true, hedge: true, timeouts: {try_s: 1}}
  - {name: e, endpoints: ["grpc://w:4", "http://w:5"], idempotent: true, hedge: true, timeouts: {try_s: 1}}
"""
    assert warnings_of(text) == [
        "w.yaml:3:19: timeouts.try_s: 5: has no effect: total_s (5.0) ends first",
        "w.yaml:5:67: models[0].hedge: true: has no effect: the model has one endpoint, and nobody else to ask",
        "w.yaml:6:107: models[1].timeouts.total_s: 3: try_s (5.0) has no effect: total_s (3.0) ends first",
        "w.yaml:8:87: models[3].hedge: true: has no effect: the model has grpc endpoints only, and they are not hedged",
    ]


@pytest.mark.parametrize("limit", ["requests_per_endpoint", "connections_per_endpoint"])
def test_a_hedge_needs_a_second_place(limit: str) -> None:
    text = """\
version: 1
listeners: [{address: "127.0.0.1:0"}]
models: [{name: a, endpoints: ["http://w:1", "http://w:2"], idempotent: true, hedge: true}]
limits: """
    assert warnings_of(text + f"{{{limit}: 2}}\n") == []
    assert warnings_of(text + f"{{{limit}: 1}}\n") == [
        (
            "w.yaml:3:86: models[0].hedge: true: has no effect: a hedge leaves an endpoint's last place to others, "
            f"and limits.{limit} is 1"
        )
    ]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://user:p%40ss@store:6379/3",
        "rediss://[::1]:6380/0",
        "unix:///run/redis.sock",
        "unix://user:secret@/run/redis.sock",
    ],
)
def test_state_urls(url: str) -> None:
    text = f"version: 1\nlisteners: [{{address: 'h:1'}}]\nstate: {{url: '{url}'}}\n"
    assert parsed(text).state.url == url


def test_model_names_may_hold_everything_that_urls_do() -> None:
    assert refused(BASE.replace("name: a", 'name: "a\\n"')) == [
        'w.yaml:6:12: models[0].name: "a\\n": must not hold control characters or halves of surrogate pairs'
    ]
    assert parsed(BASE.replace("name: a", "name: Meta.Llama_3:8b-x")).models[0].name == "Meta.Llama_3:8b-x"


@pytest.mark.parametrize("name", ["WARMROUTE_LIMITS__HEAD_BYTES", "WARMROUTE_LIMITS_HEAD_BYTES"])
def test_one_underscore_too_few_is_told(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(BASE, **{name: "2048"})
    assert str(caught.value) == (
        f'environment variable {name}: "2048": has no effect; did you mean WARMROUTE__LIMITS__HEAD_BYTES?'
    )
    parsed(BASE, WARMROUTE_ADMIN="http://127.0.0.1:1", WARMROUTE_COMPILE="1", WARMROUTE_ROLE="x")


def test_balancers_and_their_keys_reach_the_router() -> None:
    text = """\
version: 1
listeners: [{address: "127.0.0.1:1"}]
models:
  - {name: a, endpoints: ["http://w:1"]}
  - {name: b, endpoints: ["http://w:1"], balancer: least_request}
  - {name: c, endpoints: ["http://w:1"], balancer: keyed, key: {header: X-Session, load_factor: 2}}
  - {name: d, endpoints: ["http://w:1"], balancer: keyed, key: {last_segment: true}}
policies: {scoring: {queue_depth: 0.1, cpu_load: 0.2}}
"""
    settings = parse_settings(text.encode(), "w.yaml").settings
    assert [(model.balancer, model.key) for model in model_policies(settings)] == [
        (BalancerName.WARM, None),
        (BalancerName.LEAST_REQUEST, None),
        (BalancerName.KEYED, KeyPolicy(header="X-Session", load_factor=2.0)),
        (BalancerName.KEYED, KeyPolicy(last_segment=True)),
    ]
    assert router_policies(settings).scoring == ScoringPolicy(queue_depth=0.1, cpu_load=0.2)
