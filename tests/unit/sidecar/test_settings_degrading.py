"""Ladders in configuration: what makes no sense, with its exact text, and bodies that stand in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.load import parse_settings
from sidecar.config.problems import SettingsError
from sidecar.settings import FallbackOn
from tests.support.settings_texts import refused

HEAD = 'version: 1\nlisteners: [{address: "127.0.0.1:8080"}]\nmodels:\n'
TWO = '  - {name: b, endpoints: ["http://127.0.0.1:9002"]}\n'


def model(text: str) -> str:
    return HEAD + f'  - {{endpoints: ["http://127.0.0.1:9001"], name: m, {text}}}\n' + TWO


MALFORMED: list[tuple[str, list[str]]] = [
    ("fallback: [m]", ['fallback[0]: "m": is the model itself: name another model, or a version of it: m@VERSION']),
    ("fallback: [bb]", ['fallback[0]: "bb": no such model; did you mean "b"?']),
    ("fallback: [b, b]", ['fallback[1]: "b": is named before: name each once']),
    ('fallback: ["b@"]', ['fallback[0]: "b@": must be NAME or NAME@VERSION']),
    (f"fallback: [{', '.join(f'b@{n}' for n in range(9))}]", ["fallback: a list: must name at most 8"]),
    (
        "fallback_on: []",
        ["fallback_on: an empty list: must name at least one end of a request, for example no_candidate"],
    ),
    ("fallback_on: [overloaded, overloaded]", ['fallback_on[1]: "overloaded": is named before: name each once']),
    ("cache: {statuses: [200, 404]}", ["cache.statuses[1]: 404: is an error: set errors: true, or leave it out"]),
    ("cache: {statuses: [204]}", ["cache.statuses[0]: 204: is no whole answer: leave it out"]),
    ("cache: {methods: []}", ["cache.methods: an empty list: must name at least one, or be left out"]),
    ("cache: {paths: []}", ["cache.paths: an empty list: must name a path, for example */infer"]),
    (
        'cache: {deterministic: true, paths: ["/x"]}',
        ["cache.paths: a list: has no say while deterministic is true: leave one of the two out"],
    ),
    (
        "cache: {paths: [x]}",
        ['cache.paths[0]: "x": must start with / or *, and hold neither spaces nor control characters'],
    ),
    (
        "cache: {key_headers: ['a b']}",
        ['cache.key_headers[0]: "a b": must be a field name: 1 to 64 letters, digits or hyphens'],
    ),
    ("cache: {bytes: 2048}", ["cache.bytes: 2048: must be at least max_entry_bytes and 512 more (262656)"]),
    (
        "cache: {credential_headers: ['x key']}",
        ['cache.credential_headers[0]: "x key": must be a field name: 1 to 64 letters, digits or hyphens'],
    ),
    (
        "cache: {credential_headers: [x-key], tenant_header: x-tenant}",
        ["cache.credential_headers: a list: has no say beside tenant_header, which is what tells callers apart"],
    ),
    (
        "cache: {credentials: true, tenant_header: x-tenant}",
        ["cache.credentials: true: has no say beside tenant_header, which is what tells callers apart"],
    ),
    (
        "cache: {shared: true, tenant_header: x-tenant}",
        ["cache.shared: true: has no say beside tenant_header, which is what tells callers apart"],
    ),
    (
        "static_answer: {status: 204}",
        ["static_answer.status: 204: has no body and no type: choose another, for example 200"],
    ),
    (
        "static_answer: {headers: {Content-Length: '1'}}",
        ['static_answer.headers.Content-Length: "1": is written by the sidecar itself: leave it out'],
    ),
    (
        "static_answer: {headers: {'a b': x}}",
        ['static_answer.headers.a b: "x": must be a field name: 1 to 64 letters, digits or hyphens'],
    ),
    (
        'static_answer: {headers: {a: "\u00e9"}}',
        ['static_answer.headers.a: "\u00e9": must be at most 1024 printable ASCII characters'],
    ),
    (
        'static_answer: {headers: {a: "x\\r\\ny: z"}}',
        ['static_answer.headers.a: "x\\r\\ny: z": must not hold control characters or halves of surrogate pairs'],
    ),
]


@pytest.mark.parametrize(("text", "errors"), MALFORMED, ids=[text for text, _ in MALFORMED])
def test_what_makes_no_sense_is_refused(text: str, errors: list[str]) -> None:
    assert [line.partition(": models[0].")[2] for line in refused(model(text))] == errors


TENANTS = "policies: {admission: {tenant: {header: x-tenant}}}\n"


def test_a_cache_that_nobody_could_be_answered_from_is_refused() -> None:
    (line,) = refused(model("cache: {}") + TENANTS)
    assert line.partition(": models[0].")[2] == (
        "cache: an empty mapping: would keep nothing: it goes by policies.admission.tenant, and nobody is believed: "
        "set listeners[].trusted_networks, policies.admission.trust: anybody, tenant_header, or shared: true"
    )


@pytest.mark.parametrize("cache", ["{shared: true}", "{tenant_header: x-org}"])
def test_one_that_says_itself_whose_its_answers_are_is_not(cache: str) -> None:
    parse_settings((model(f"cache: {cache}") + TENANTS).encode(), "w.yaml")


def test_circles_are_refused_with_the_way_round() -> None:
    text = HEAD + "".join(
        f'  - {{name: {name}, endpoints: ["http://127.0.0.1:{9001 + number}"], fallback: [{to}]}}\n'
        for number, (name, to) in enumerate([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])
    )
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    assert [problem.remedy for problem in caught.value.problems] == [
        f"falls back in a circle ({way}): the load of one outage would go round; leave one out"
        for way in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")
    ]


def test_a_version_of_the_model_itself_is_no_circle() -> None:
    settings = parse_settings(model('fallback: ["m@1", b]').encode(), "w.yaml").settings
    assert settings.models[0].fallback == ("m@1", "b")
    assert FallbackOn.UPSTREAM_5XX not in settings.models[0].fallback_on


@pytest.mark.parametrize("name", ["cache: {}", "static_answer: {}"])
def test_a_model_over_grpc_alone_has_a_fallback_at_most(name: str) -> None:
    text = model(name).replace("http://127.0.0.1:9001", "grpc://127.0.0.1:9001")
    with pytest.raises(SettingsError, match="has no effect: the model has grpc endpoints only, and gRPC calls have a"):
        parse_settings(text.encode(), "w.yaml")


def test_a_model_over_grpc_may_fall_back_to_another_over_grpc() -> None:
    text = model("fallback: [b]").replace("http://", "grpc://").replace('8080"', '8080", protocol: grpc')
    assert parse_settings(text.encode(), "w.yaml").settings.models[0].fallback == ("b",)


def test_a_cache_in_a_store_needs_one() -> None:
    with pytest.raises(SettingsError, match=r"cache\.redis: an empty mapping: needs a store: set state\.url, or leave"):
        parse_settings(model("cache: {redis: {}}").encode(), "w.yaml")


def test_a_fallback_of_another_protocol_is_refused() -> None:
    text = model("fallback: [b]").replace("http://127.0.0.1:9002", "grpc://127.0.0.1:9002")
    with pytest.raises(SettingsError, match="speaks another protocol"):
        parse_settings(text.encode(), "w.yaml")


def test_the_body_of_a_static_answer_may_stand_in_a_file(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_bytes("é\r\n".encode())
    text = model(f"static_answer: {{body_file: {body}}}").encode()
    answer = parse_settings(text, "w.yaml").settings.models[0].static_answer
    assert answer is not None
    assert answer.body == "é\r\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read"), (b"\xff", "is not UTF-8"), (b"x" * 65537, "has 65537 bytes, at most 65536")],
)
def test_files_that_cannot_be_a_body_are_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    body = tmp_path / "body"
    if content is not None:
        body.write_bytes(content)
    with pytest.raises(SettingsError, match=why):
        parse_settings(model(f"static_answer: {{body_file: {body}}}").encode(), "w.yaml")


def test_a_body_and_a_file_are_one_too_many(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_text("x")
    with pytest.raises(SettingsError, match="body is set too: keep one of the two"):
        parse_settings(model(f"static_answer: {{body: y, body_file: {body}}}").encode(), "w.yaml")
