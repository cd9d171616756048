"""A drill's file that cannot be used is refused whole: each error has its line and a remedy, and nothing is touched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sidecar.drills.scenario import (
    Abort,
    Do,
    Drill,
    End,
    Expect,
    Load,
    Measure,
    Objective,
    Phase,
    Short,
    Start,
    Streams,
    Trust,
    Up,
    Wait,
    Without,
)
from tests.support.drill_files import DELAY, DRAIN, GOOD, HOLD, OUT, changed, problems, refused

STOP = "kind: stop, process: worker-2"
OBJECTIVE = "measure: error_ratio, at_most: 0, during: [calm]"
WITHOUT = "{breaker: {config: {policies: {breaker: {surge: false}}}}}"
ENDPOINTS = "there are stream-1, stream-2, stream-3, worker-1, worker-2"
STEPS = "must say exactly one of load, fault, end, do, wait, expect"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # the whole
        ("version: 1\n", "", '1:1: version: missing: add "version" (1)'),
        ("version: 1", "version: 2", "1:10: version: 2: must be 1"),
        (
            "name: one",
            "name: ../one",
            '2:7: name: "../one": must be 1 to 64 letters, digits, dots, underscores or hyphens',
        ),
        ("title: One", "title: 5", "3:8: title: 5: must be text: put it in quotes"),
        ("limit_s: 100", "limit_s: 4000", "19:10: limit_s: 4000: must be at most 3600.0"),
        ("limit_s: 100", "limit_s: 5", "19:10: limit_s: 5: is less than the 6 s that the phases may take: raise it"),
        # YAML
        ("title: One\n", "title: One\ntitle: Two\n", '4:1: title: "Two": given twice, first on line 3: remove one'),
        ("for_s: 1}", "for_s: 1, for_s: 2}", "9:35: phases[3].wait.for_s: 2: given twice, first on line 9: remove one"),
        (
            "title: One",
            "title: !!python/object:os.system x",
            "3:8: title: !!python/object:os.system: tags are not supported: write the value without one",
        ),
        ("title: One\n", "<<: {title: One}\n", "3:1: <<: merge keys are not supported: write the fields out"),
        (
            "title: One\n",
            "title: *one\n",
            "3:8: title: *one: no such anchor before this line: define it or write it out",
        ),
        (
            "fault: {id: slow,",
            "fault: [{id: slow,",
            (
                '7:82: "- {name: slow, fault: [{id: slow, kind: delay, delay_ms: 5, endpoint: worker-1}}": '
                "not valid YAML: while parsing a flow sequence expected ',' or ']', but got '}': "
                "close each [ with a ], with commas between the items"
            ),
        ),
        (
            "title: One\n",
            "\ttitle: One\n",
            (
                '3:1: "title: One": not valid YAML: while scanning for the next token found character '
                "'\\t' that cannot start any token: indent with spaces, not tabs"
            ),
        ),
        # what it starts
        (
            "{models: [{name: drill, idempotent: true}, {name: chat}]}",
            "{models: 5}",
            "4:43: config.models: 5: must be a list: start each item with a hyphen, or write [a, b]",
        ),
        (
            "workers: 2",
            "workers: 2, engine: --help",
            (
                '4:34: start.up.engine: "--help": '
                "must be 1 to 64 letters, digits, dots, underscores or hyphens, the first a letter or digit"
            ),
        ),
        (
            "workers: 2",
            "workers: 2, engine: determinstic",
            '4:34: start.up.engine: "determinstic": no engine has this name; did you mean "deterministic"?',
        ),
        (
            "workers: 2",
            "workers: 2, worker_flags: [--load-s=1, --engine, tensors]",
            (
                '4:63: start.up.worker_flags[2]: "tensors": no engine has this name; there are: '
                "onnxruntime, deterministic, torchscript, torchexport"
            ),
        ),
        (
            "{breaker: {config",
            "{breaker: {worker_flags: ['--engine=onyx'], config",
            '17:36: without.breaker.worker_flags[0]: "--engine=onyx": no engine has this name',
        ),
        (
            "workers: 2",
            'workers: 2, models: ["--help"]',
            (
                '4:35: start.up.models[0]: "--help": '
                "must be 1 to 64 letters, digits, dots, underscores or hyphens, the first a letter or digit"
            ),
        ),
        ("{up: {workers: 2", "{up: {workers: 0", "4:23: start.up.workers: 0: must be at least 1"),
        ("workers: 2", "workers: 2, models: []", "4:34: start.up.models: an empty list: must hold at least one item"),
        ("workers: 2", "workers: 2, ready_s: .nan", "4:35: start.up.ready_s: .nan: must be a finite number"),
        (
            "{name: drill, idempotent: true}",
            "{name: drill, idempotent: 7}",
            "4:70: config.models[0].idempotent: 7: must be true or false",
        ),
        (
            "streams: {model: chat}",
            "streams: {}",
            '4:103: start.streams.model: missing: add "model" (the name that requests give their model)',
        ),
        (
            "streams: {model: chat}",
            "streams: {model: talk}",
            '4:111: config.endpoints[0].models[0]: "talk": no such model; declared are: drill, chat',
        ),
        # load
        ("rate_per_s: 10", "rate_per_s: .inf", "6:67: phases[0].load.rate_per_s: .inf: must be a finite number"),
        (
            "rate_per_s: 10, ",
            "",
            '6:24: phases[0].load.rate_per_s: missing: add "rate_per_s" (requests per second)',
        ),
        (
            "rate_per_s: 10",
            'rate_per_s: 10, body: "\\0"',
            ('6:77: phases[0].load.body: "\\u0000": must not hold control characters or halves of surrogate pairs'),
        ),
        (
            "rate_per_s: 10",
            "rate_per_s: 10, spacing: random-ish",
            '6:80: phases[0].load.spacing: "random-ish": must be one of: even, random; did you mean "random"?',
        ),
        (
            "rate_per_s: 10",
            "rate_per_s: 10, method: 'GET /'",
            '6:79: phases[0].load.method: "GET /": must be a method, as POST, other than CONNECT',
        ),
        ("headers: {a: b}", "headers: {a: 5}", "6:84: phases[0].load.headers.a: 5: must be text: put it in quotes"),
        (
            "headers: {a: b}",
            "headers: {host: b}",
            '6:87: phases[0].load.headers.host: "b": the drill sets this itself: leave it out',
        ),
        (
            "path: /v2/models/drill/infer",
            "path: '/a b'",
            '6:31: phases[0].load.path: "/a b": must begin with / and hold no spaces and no #',
        ),
        (
            ', to: "https://h:1", tls: {insecure: true}',
            ", http2: true",
            (
                "6:111: phases[0].load.http2: true: a listener without TLS speaks HTTP/1.1 alone: "
                "leave it out, or add to with the https:// address of one"
            ),
        ),
        # faults of requests and of signals
        (
            "name: slow, fault: {id: slow,",
            'name: "hello world/../?x", fault: {',
            (
                '7:12: phases[1].name: "hello world/../?x": '
                "must be at most 64 letters, digits, dots, underscores or hyphens"
            ),
        ),
        (DELAY, "delay_ms: 5", '7:25: phases[1].fault.kind: missing: add "kind" (what it does, see docs/faults.md)'),
        (DELAY, "kind: delay, delay_ms: sixty", '7:59: phases[1].fault.delay_ms: "sixty": must be a number'),
        (
            DELAY,
            f"{DELAY}, status: 500",
            "7:70: phases[1].fault.status: 500: must be left out: delay does not go by it, abort would",
        ),
        (DELAY, f"{DELAY}, for_s: 4000", "7:69: phases[1].fault.for_s: 4000: must be at most 3600"),
        (DELAY, f"{DELAY}, model: dril", '7:69: phases[1].fault.model: "dril": there are chat, drill'),
        (
            "id: slow, kind",
            "id: 'a b', kind",
            '7:30: phases[1].fault.id: "a b": must be at most 64 letters, digits, dots, underscores or hyphens',
        ),
        # faults of processes
        (
            STOP,
            "kind: stop",
            '8:26: phases[2].fault.process: missing: add "process" (worker-1, redis, control or data-0)',
        ),
        (
            STOP,
            f"{STOP}, share: 0.5",
            "8:26: phases[2].fault: a mapping: stop: share does not belong to it; leave it out",
        ),
        (
            STOP,
            f"{STOP}, endpoint: worker-2",
            (
                '8:58: phases[2].fault.endpoint: "worker-2": '
                "unknown field; known here: kind, process, id, for_s, share, headroom_mb"
            ),
        ),
        (
            "fault: {kind: stop,",
            "fault: {id: slow, kind: stop,",
            '8:31: phases[2].fault.id: "slow": "slow" is in force already: end it first, or give this one another id',
        ),
        # faults at the same time, as the phases say
        (
            HOLD,
            "  - {fault: {kind: slow, process: worker-2}}\n",
            (
                '12:35: phases[6].fault.process: "worker-2": stop ("stuck") is in force there then: '
                "end it before, or wait until it has ended"
            ),
        ),
        (
            "config: {models",
            "config: {faults: {most: 0}, models",
            '7:42: phases[1].fault.kind: "delay": raise start.up.config.faults.most (0)',
        ),
        (
            HOLD,
            "".join(f"  - {{fault: {{kind: abort, id: a{number}}}}}\n" for number in range(17)),
            (
                '28:20: phases[22].fault.kind: "abort": 16 faults are in force then already: '
                "end one before, or raise start.up.config.faults.most (16)"
            ),
        ),
        (
            "short: {time_ratio: 0.5}",
            "short: {config: {faults: {most: 0}}}",
            '7:42: phases[1].fault.kind: "delay": raise start.up.config.faults.most (0)',
        ),
        (
            "config: {models",
            "ready_s: 60, config: {faults: {most: 1, rules: [{kind: abort, for_s: 121}]}, models",
            (
                '7:42: phases[1].fault.kind: "delay": 1 faults are in force then already: '
                "end one before, or raise start.up.config.faults.most (1)"
            ),
        ),
        # wait, expect, end, do
        ("wait: {for_s: 1}", "wait: 1", "9:24: phases[3].wait: 1: must be a mapping with some of: for_s"),
        ("wait: {for_s: 1}", "wait: {for_s: 0}", "9:32: phases[3].wait.for_s: 0: must be greater than 0"),
        (
            OUT,
            "endpoint: worker-1, being: away",
            (
                '10:53: phases[4].expect.being: "away": '
                "must be one of: out, picked, warm, not_warm, open, half_open, closed"
            ),
        ),
        (OUT, "endpoint: worker-7, being: out", f'10:36: phases[4].expect.endpoint: "worker-7": {ENDPOINTS}'),
        (OUT, "reason: stale", '10:34: phases[4].expect.reason: "stale": needs the endpoint that is meant: add it'),
        (OUT, "model: dril, step: cache", '10:33: phases[4].expect.model: "dril": there are chat, drill'),
        (OUT, "store: gone", '10:33: phases[4].expect.store: "gone": must be one of: live, frozen, local, uniform'),
        (
            OUT,
            'model: drill, version: "1", picked: 1',
            (
                '10:49: phases[4].expect.version: "1": needs weight_at_most or weight_at_least: '
                "only a version's weight is expected"
            ),
        ),
        (
            OUT,
            "model: drill, endpoint: worker-1, share_at_most: 0.1, share_at_least: 0.5",
            "10:96: phases[4].expect.share_at_least: 0.5: is over share_at_most (0.1): nothing can be both",
        ),
        (OUT, "ready: maybe", '10:33: phases[4].expect.ready: "maybe": must be true or false'),
        ("within_s: 5", "", '10:25: phases[4].expect.within_s: missing: add "within_s" (seconds)'),
        (
            "end: {fault: slow}",
            "end: {fault: other}",
            '11:31: phases[5].end.fault: "other": no fault of this id is in force here: there are slow, stuck',
        ),
        (DRAIN, "act: drain", '12:28: phases[6].do.act: "drain": drain needs an endpoint: add it'),
        (DRAIN, "act: promote", '12:28: phases[6].do.act: "promote": promote needs a model: add it'),
        (
            DRAIN,
            "act: split, model: drill",
            (
                "12:22: phases[6].do.split: an empty mapping: "
                'needs versions with their weights, as {"1": 95, "2": 5}: add them'
            ),
        ),
        (
            DRAIN,
            'act: split, model: drill, split: {"1": 0}',
            "12:56: phases[6].do.split: a mapping: nobody would get any: give one a weight above 0",
        ),
        (
            DRAIN,
            "act: split, model: chat, split: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}",
            "12:55: phases[6].do.split: a mapping: must name at most 8 versions",
        ),
        (
            DRAIN,
            "act: drain, endpoint: worker-1, model: drill",
            '12:62: phases[6].do.model: "drill": must be left out: drain does not go by it',
        ),
        (
            DRAIN,
            'act: reset, model: drill, version: "1"',
            '12:58: phases[6].do.version: "1": must be left out: reset does not go by it',
        ),
        (DRAIN, "act: drain, endpoint: worker-5", f'12:45: phases[6].do.endpoint: "worker-5": {ENDPOINTS}'),
        (DRAIN, "act: reset, model: dril", '12:42: phases[6].do.model: "dril": there are chat, drill'),
        (HOLD, "  - {name: hold}\n", f"12:5: phases[6]: a mapping: says nothing: {STEPS}"),
        ("name: hold,", "name: calm,", '12:12: phases[6].name: "calm": is that of phase 4, too: give each its own'),
        # objectives, aborts
        ("at_most: 0, ", "at_most: .nan, ", "14:37: objectives[0].at_most: .nan: must be a finite number"),
        (
            OBJECTIVE,
            "measure: eject_s, at_most: 1",
            '14:5: objectives[0].fault: "": which of the 2 faults is meant? name one',
        ),
        (
            "measure: p95_ms, above",
            "measure: lost, above",
            (
                '16:15: abort[0].measure: "lost": '
                "cannot be told while the drill runs: one of error_ratio, p50_ms, p95_ms, p99_ms"
            ),
        ),
        (
            "measure: p95_ms, above: 500",
            "measure: error_ratio, above: 5",
            "16:35: abort[0].above: 5: is a share, and none is above it: from 0 to less than 1",
        ),
        # variants
        (
            "{breaker: {config",
            "{'a/b': {config",
            "17:18: without.a/b: a mapping: its name must have 1 to 64 letters, digits, dots, underscores or hyphens",
        ),
        (
            WITHOUT,
            "{breaker: {}}",
            "17:20: without.breaker: an empty mapping: changes nothing: add config, worker_flags or skip",
        ),
        ("surge: false", "surge: 9", "17:58: config.policies.breaker.surge: 9: must be true or false"),
        ("time_ratio: 0.5", "wait_ratio: 0", "18:21: short.wait_ratio: 0: must be greater than 0"),
        (
            "time_ratio: 0.5",
            "config: {policies: {breaker: {window: 3}}}",
            '18:39: config.policies.breaker.window: 3: unknown field; did you mean "window_s"?',
        ),
    ],
)
def test_each_error_has_its_line_and_a_remedy(old: str, new: str, said: str) -> None:
    assert any(problem.startswith(f"d.yaml:{said}") for problem in problems(changed(old, new)))


PLACES: dict[type[msgspec.Struct], tuple[str, str]] = {
    Drill: ("version: 1\n", "NEW\nversion: 1\n"),
    Start: ("{up: {workers", "{NEW, up: {workers"),
    Up: ("{workers: 2,", "{NEW, workers: 2,"),
    Streams: ("{model: chat}", "{NEW, model: chat}"),
    Phase: ("{name: hold, ", "{NEW, name: hold, "),
    Load: ("load: {path", "load: {NEW, path"),
    Trust: ("{insecure", "{NEW, insecure"),
    Wait: ("wait: {for_s", "wait: {NEW, for_s"),
    Expect: ("{endpoint: worker-1, being", "{NEW, endpoint: worker-1, being"),
    End: ("end: {fault", "end: {NEW, fault"),
    Do: ("do: {act", "do: {NEW, act"),
    Objective: ("{measure: error_ratio", "{NEW, measure: error_ratio"),
    Abort: ("{measure: p95_ms", "{NEW, measure: p95_ms"),
    Without: ("{breaker: {config", "{breaker: {NEW, config"),
    Short: ("short: {time", "short: {NEW, time"),
}
"""Where in ``GOOD`` each part of the schema stands."""


def fields() -> Iterator[tuple[type[msgspec.Struct], str]]:
    for part in PLACES:
        for field in msgspec.structs.fields(part):
            yield part, field.name


@pytest.mark.parametrize(("part", "field"), list(fields()))
def test_a_value_of_another_form_is_refused_where_it_stands(part: type[msgspec.Struct], field: str) -> None:
    """For every field that there is: of no field a list of lists is a value. Of two of one name the first counts."""
    old, new = PLACES[part]
    text = changed(old, new.replace("NEW", f"{field}: [[{{}}]]"))
    line = text[: text.index(f"{field}: [[{{}}]]")].count("\n") + 1
    found = problems(text)
    said = re.compile(rf"d\.yaml:{line}:\d+: [\w.\[\]]*\b{field}(\[0\])?: a list: must ")
    assert any(said.match(one) for one in found), found


@pytest.mark.parametrize("part", PLACES, ids=lambda part: part.__name__)
def test_no_part_takes_a_field_that_it_does_not_know(part: type[msgspec.Struct]) -> None:
    old, new = PLACES[part]
    found = problems(changed(old, new.replace("NEW", "unknown_to_it: 1")))
    assert any("unknown_to_it: 1: unknown field; known here: " in one for one in found), found


@pytest.mark.parametrize("measure", Measure)
def test_each_measure_needs_a_bound(measure: Measure) -> None:
    found = problems(changed(OBJECTIVE, f"measure: {measure}, fault: slow"))
    assert "d.yaml:14:5: objectives[0]: a mapping: sets no bound: add at_most or at_least" in found


def test_what_is_no_text_file(tmp_path: Path) -> None:
    remedy = "name a drill that exists and can be read"
    assert refused(tmp_path) == f"FILE: Is a directory: {remedy}"
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)  # nobody writes into it: to wait for that would be to wait for ever
    assert refused(fifo) == f"FILE: is not a regular file: {remedy}"
    assert refused(Path("/dev/zero")) == f"FILE: is not a regular file: {remedy}"
    assert refused(tmp_path / "a\0b").endswith(f"a\\x00b: embedded null byte: {remedy}")


def test_what_is_too_long_or_no_utf_8_or_empty(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_bytes(b"# " + b"x" * (1 << 20))
    assert refused(file) == "FILE: more than 1048576 bytes: split or shorten the file"
    file.write_bytes(b"version: 1\nname: \xff\n")
    assert refused(file) == "FILE:2:7: byte 0xff: save the file as UTF-8"
    file.write_bytes(b"")
    assert refused(file).startswith('FILE:1:1: null: the file is empty; a drill starts with "version: 1", a name')
    file.write_bytes(GOOD.encode("utf-16"))
    assert "save the file as UTF-8" in refused(file)


def test_aliases_and_depth_are_bounded() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True))
    assert problems(bomb)[-1].endswith("more than 50000 values, aliases expanded: shorten the file")
    assert problems(f"a: {'[' * 40}{']' * 40}\n")[-1].endswith(
        "nested deeper than 16 levels: no field of the schema is"
    )
    chain = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}}}\n" for n in range(1, 200))
    text = changed("{breaker: {surge: false}}", "*a199").replace("version: 1\n", f"version: 1\n{chain}", 1)
    assert all(one.startswith("d.yaml:") for one in problems(text))
