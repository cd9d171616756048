"""Errors in probes, warm-ups and shape classes, and the exact text of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.load import parse_settings
from sidecar.config.problems import SettingsError
from tests.support.settings_texts import refused


def probed(probe: str, *, urls: str = "'http://w:1'", models: str = "m") -> str:
    """Return settings with one endpoint's probe, on line 5."""
    names = ", ".join(f"{{name: {name}}}" for name in models.split(", "))
    head = f"version: 1\nlisteners: [{{address: 'h:1'}}]\nmodels: [{names}]\nendpoints:\n"
    return f"{head}  - {{url: {urls}, models: [{models}], probe: {probe}}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            probed("{kind: tgi}"),
            'probe.kind: "tgi": must be one of: http, auto, triton, vllm, sglang, kserve, mlserver, nim',
        ),
        (
            probed("{kind: vllm, expect: {status: 200}}"),
            "probe.expect: a mapping: goes with kind http alone: vllm has a reading of its own",
        ),
        (
            probed("{kind: vllm, served_as: x}", models="m, n"),
            'probe.served_as: "x": is one name for 2 models: leave it out, or say "*"',
        ),
        (
            probed("{orca: {}}"),
            "probe.orca: an empty mapping: http://w:1 speaks HTTP/1.1: set orca.port to that of its gRPC server",
        ),
        (
            probed("{orca: {port: 1}}", urls="'unix:/w'"),
            "probe.orca.port: 1: unix:/w has no other port: leave it out of the models with this",
        ),
        (probed("{orca: {port: 1, interval_s: 0}}"), "probe.orca.interval_s: 0: must be at least 0.1"),
        (probed("{expect: {status: 99}}"), "probe.expect.status: 99: must be at least 100"),
        (probed("{kind: triton, metrics_port: 65536}"), "probe.metrics_port: 65536: must be at most 65535"),
        (
            probed("{kind: triton, metrics_path: metrics}"),
            (
                'probe.metrics_path: "metrics": must be a path that starts with / '
                "and holds neither spaces nor control characters"
            ),
        ),
        (probed("{kind: vllm, served_as: 'a b'}"), 'probe.served_as: "a b": must be 1 to 256 visible characters'),
    ],
)
def test_probes_that_make_no_sense(text: str, problem: str) -> None:
    (found,) = refused(text)
    assert found.partition(" endpoints[0].")[2] == problem


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (probed("{kind: triton}"), None),
        (probed("{kind: vllm}", urls="'unix:/w'"), None),
        (probed("{expect: {}}"), "probe.expect: an empty mapping: has no effect: set status or body_contains"),
        (
            probed("{metrics_port: 8002}"),
            "probe.metrics_port: 8002: has no effect: a probe of kind http asks one path; set probe.kind",
        ),
        (
            probed("{kind: triton}", urls="'grpc://w:1'").replace("'h:1'", "'h:1', protocol: grpc"),
            'probe.kind: "triton": has no effect: gRPC endpoints are asked by grpc.health.v1',
        ),
        (
            probed("{kind: triton}", urls="'unix:/w'"),
            "probe: a mapping: the metrics page is on port 8002, which unix:/w has not: set load: false",
        ),
        (probed("{kind: triton, load: false}", urls="'unix:/w'"), None),
    ],
)
def test_probes_of_which_a_part_has_no_effect(text: str, warning: str | None) -> None:
    found = parse_settings(text.encode(), "w.yaml").warnings
    assert [str(one).partition(" endpoints[0].")[2] for one in found] == ([] if warning is None else [warning])


def warmed(warmup: str, *, urls: str = "'http://w:1'") -> str:
    """Return settings with one model's warm-up, on line 4."""
    protocol = ", protocol: grpc" if "grpc:" in urls else ""
    head = f"version: 1\nlisteners: [{{address: 'h:1'{protocol}}}]\nmodels:\n"
    return f"{head}  - {{name: m, endpoints: [{urls}], warmup: {warmup}}}\n"


def of(*requests: str, more: str = "") -> str:
    """Return a warm-up of requests that each have a path."""
    return f"{{requests: [{', '.join(f'{{path: /infer, {one}}}' for one in requests)}]{more}}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (warmed("{requests: []}"), "requests: an empty list: must hold at least one item"),
        (
            warmed(of("name: 'a b'")),
            'requests[0].name: "a b": must be 1 to 64 letters, digits, dots, underscores or hyphens',
        ),
        (
            warmed(of("name: a", "name: b", "name: a")),
            'requests[2].name: "a": already the name of requests[0]: give each shape class its own',
        ),
        (
            warmed(of("name: a, method: get")),
            'requests[0].method: "get": must be an HTTP method in capitals, for example POST',
        ),
        (
            warmed(of("name: a, method: HEAD")),
            'requests[0].method: "HEAD": has no body to wait for in its answer: choose another',
        ),
        (
            warmed(of("name: a, json: {n: [1, {x: null}]}, body: x")),
            'requests[0].body: "x": json gives it a body already: keep one of the two',
        ),
        (
            warmed(of("name: a, json: [1]")),
            "requests[0].json: a list: must be a mapping of names to values; leave the field out for its default",
        ),
        (
            warmed(of("name: a, headers: {Host: w}")),
            'requests[0].headers.Host: "w": is set by warmroute itself: leave it out',
        ),
        (
            warmed(of("name: a, headers: {x y: w}")),
            'requests[0].headers.x y: "w": must be a field name: 1 to 64 letters, digits or hyphens',
        ),
        (
            warmed(of("name: a, headers: {x-y: ''}")),
            'requests[0].headers.x-y: "": must be 1 to 4096 visible characters, spaces between them',
        ),
        (warmed(of("name: a, within_s: 0")), "requests[0].within_s: 0: must be greater than 0"),
        (
            warmed(of("name: a, within_s: 5", more=", timeout_s: 5")),
            "requests[0].within_s: 5: must be below timeout_s (5), so that what is late is waited for",
        ),
        (
            warmed(of("name: batch-1", more=", required: [batch1]")),
            'required[0]: "batch1": no such request; did you mean "batch-1"?',
        ),
        (
            warmed(of("name: a", more=", required: []")),
            "required: an empty list: must name at least one shape class; to need none, leave warmup out",
        ),
        (
            warmed(of("name: a", more=", retry_s: 2, retry_max_s: 1")),
            "retry_max_s: 1: must be at least retry_s (2)",
        ),
        (
            warmed(of("name: a, body_file: /nonexistent/b.json")),
            (
                'requests[0].body_file: "/nonexistent/b.json": cannot be read (No such file or directory): '
                "name a file that this user can read"
            ),
        ),
    ],
)
def test_warm_ups_that_make_no_sense(text: str, problem: str) -> None:
    (found,) = refused(text)
    assert found.partition(" models[0].warmup.")[2] == problem


def classed(shapes: str, warmup: str = "") -> str:
    """Return settings with one model's shape classes, on line 4."""
    more = f", warmup: {warmup}" if warmup else ""
    head = "version: 1\nlisteners: [{address: 'h:1'}]\nmodels:\n"
    return f"{head}  - {{name: m, endpoints: ['http://w:1'], shapes: {shapes}{more}}}\n"


GRPC_URL = "'grpc://w:1'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            warmed(of("name: a, json: {}"), urls=GRPC_URL),
            "requests[0].json: an empty mapping: is no message of a gRPC call: put one, in bytes, into a body_file",
        ),
        (
            warmed(of("name: a, body: x"), urls=GRPC_URL),
            'requests[0].body: "x": is no message of a gRPC call: put one, in bytes, into a body_file',
        ),
        (
            warmed(of("name: a, method: PUT"), urls=GRPC_URL),
            'requests[0].method: "PUT": gRPC calls are POST: leave it out',
        ),
        (
            warmed(of("name: a, expect: {status: 200}"), urls=GRPC_URL),
            "requests[0].expect.status: 200: gRPC calls must end with OK: leave it out",
        ),
        (
            warmed(of("name: a, headers: {Content-Type: x}"), urls=GRPC_URL),
            'requests[0].headers.Content-Type: "x": is set by warmroute itself: leave it out',
        ),
    ],
)
def test_warm_ups_over_grpc_that_make_no_sense(text: str, problem: str) -> None:
    (found,) = refused(text)
    assert found.partition(" models[0].warmup.")[2] == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (classed("{header: x, classes: []}"), "classes: an empty list: must hold at least one item"),
        (
            classed(f"{{header: x, classes: [{', '.join(f'{{name: c{number}}}' for number in range(33))}]}}"),
            "classes: a list: must hold at most 32 items",
        ),
        (
            classed("{header: 'a b', classes: [{name: a}]}"),
            'header: "a b": must be a field name: 1 to 64 letters, digits or hyphens',
        ),
        (
            classed("{header: x, classes: [{name: a}, {name: a}]}"),
            'classes[1].name: "a": already the name of classes[0]: name each once',
        ),
        (
            classed("{classes: [{name: a, max_body_bytes: 9}, {name: b, max_body_bytes: 9}]}"),
            "classes[1].max_body_bytes: 9: already that of classes[0]: give each its own",
        ),
        (
            classed("{classes: [{name: a, max_batch: 9}, {name: b, max_batch: 9}]}"),
            "classes[1].max_batch: 9: already that of classes[0]: give each its own",
        ),
        (
            classed("{header: x, classes: [{name: batch1}]}", of("name: batch-1")),
            'classes[0].name: "batch1": no warm-up request proves it; did you mean "batch-1"?',
        ),
    ],
)
def test_shape_classes_that_make_no_sense(text: str, problem: str) -> None:
    (found,) = refused(text)
    assert found.partition(" models[0].shapes.")[2] == problem


def test_warm_ups_of_endpoints_that_speak_different_protocols() -> None:
    text = warmed(of("name: a"), urls="'http://w:1', 'grpc://w:2'")
    said = refused(text.replace("protocol: grpc", "protocol: http"))
    remedy = "cannot prove both HTTP/1.1 and gRPC endpoints: leave out one of the two kinds"
    assert f"w.yaml:4:64: models[0].warmup: a mapping: {remedy}" in said


def test_shape_classes_that_say_nothing() -> None:
    remedy = "says nothing of any request: set header, or the max_body_bytes or max_batch of classes"
    assert refused(classed("{classes: [{name: a}]}")) == [f"w.yaml:4:50: models[0].shapes: a mapping: {remedy}"]


def test_warm_ups_are_sent_to_static_endpoints_alone_and_their_files_are_bounded(tmp_path: Path) -> None:
    text = warmed(of("name: a"), urls="").replace("models:", "state: {url: 'redis://h:3'}\nmodels:")
    (warning,) = parse_settings(text.encode(), "w.yaml").warnings
    remedy = "has no effect: the model has no static endpoints, and workers in the store prove themselves"
    assert str(warning).endswith(f"models[0].warmup: a mapping: {remedy}")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate((8 << 20) + 1)
    with pytest.raises(SettingsError, match="is larger than 8388608 bytes: send a smaller body"):
        parse_settings(warmed(of(f"name: a, body_file: '{large}'")).encode(), "w.yaml")
