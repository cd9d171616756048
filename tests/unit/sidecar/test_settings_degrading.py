"""Ladders in configuration: what makes no sense, with its exact text, and bodies that stand in files."""

from __future__ import annotations

from base64 import b64decode
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


GRPC_ONLY = "has no effect: the model has grpc endpoints only: set call, which is what their calls are answered"


def over_grpc(text: str) -> str:
    return model(text).replace("http://127.0.0.1:9001", "grpc://127.0.0.1:9001")


def test_a_model_over_grpc_alone_may_keep_answers_and_needs_a_static_one_for_calls() -> None:
    (line,) = refused(over_grpc("static_answer: {body: x}"))
    assert line.endswith(GRPC_ONLY)
    (line,) = refused(over_grpc("cache: {calls: []}"))
    assert line.endswith(
        "must name a method, for example /inference.GRPCInferenceService/ModelInfer: the model has grpc endpoints only"
    )
    text = over_grpc("cache: {}, static_answer: {call: {json: {model_name: m}}}")
    (found, _) = parse_settings(text.encode(), "w.yaml").settings.models
    assert found.cache is not None
    assert found.static_answer is not None
    assert found.static_answer.call is not None
    assert found.static_answer.call.json is None
    assert b64decode(found.static_answer.call.message or "") == b"\x0a\x01m"


CALLS: list[tuple[str, str]] = [
    ("{}", ": an empty mapping: must have the message in one form: json, message or message_file"),
    (
        "{json: {}, message: ''}",
        ": a mapping: must have the message in one form: json, message or message_file",
    ),
    (
        "{message: '', method: ModelInfer}",
        (
            '.method: "ModelInfer": must be /PACKAGE.SERVICE/METHOD, for example '
            "/inference.GRPCInferenceService/ModelInfer"
        ),
    ),
    (
        "{json: {}, method: /a.B/C}",
        (
            ".json: an empty mapping: is for ModelInfer alone: give the bytes of this method's message, in message or "
            "message_file"
        ),
    ),
    ("{message: QQ}", '.message: "QQ": is not base64 (Incorrect padding): encode the message\'s bytes'),
    (
        "{message: '', metadata: {A: b}}",
        (
            '.metadata.A: "b": must be 1 to 64 lower-case letters, digits, dots, hyphens or underscores, and not end '
            "in -bin"
        ),
    ),
    (
        "{message: '', metadata: {grpc-status: '1'}}",
        '.metadata.grpc-status: "1": is written by the sidecar itself: leave it out',
    ),
    (
        "{message: '', metadata: {a: ' b'}}",
        '.metadata.a: " b": must be 1 to 1024 visible characters, blanks between them',
    ),
]


@pytest.mark.parametrize(("call", "error"), CALLS, ids=[call for call, _ in CALLS])
def test_declared_messages_that_make_no_sense_are_refused(call: str, error: str) -> None:
    (line,) = refused(over_grpc(f"static_answer: {{call: {call}}}"))
    assert line.partition(": models[0].static_answer.call")[2] == error


@pytest.mark.parametrize(
    "call", ["{json: {model_nam: m}}", "{json: {outputs: 3}}", "{message: Cg==}"], ids=["field", "type", "bytes"]
)
def test_what_is_no_answer_of_model_infer_is_refused(call: str) -> None:
    (line,) = refused(over_grpc(f"static_answer: {{call: {call}}}"))
    assert "is no ModelInferResponse: " in line


def test_the_message_of_a_call_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.bin"
    file.write_bytes(b"\x0a\x01m")
    text = over_grpc(f"static_answer: {{call: {{message_file: {file}, method: /a.B/C}}}}")
    call = parse_settings(text.encode(), "w.yaml").settings.models[0].static_answer.call  # type: ignore[union-attr]
    assert call is not None
    assert (b64decode(call.message or ""), call.message_file) == (b"\x0a\x01m", None)
    file.write_bytes(bytes(65537))
    (line,) = refused(text)
    assert line.endswith("has over 65536 bytes: declare a shorter answer")
    (line,) = refused(text.replace("answer.bin", "nowhere"))
    assert "static_answer.call.message_file" in line
    assert "cannot be read" in line


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (
            "[x]",
            'calls[0]: "x": must be /PACKAGE.SERVICE/METHOD, for example /inference.GRPCInferenceService/ModelInfer',
        ),
        ("[/a.B/C, /a.B/C]", 'calls[1]: "/a.B/C": is named before: name each once'),
    ],
)
def test_methods_whose_answers_are_kept(calls: str, error: str) -> None:
    (line,) = refused(over_grpc(f"cache: {{calls: {calls}}}"))
    assert line.endswith(error)


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
