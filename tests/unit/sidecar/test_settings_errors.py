"""Malformed configurations and the exact text of each error: place, field, value and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.model import EndpointRecord, EndpointSeen, Replica
from router.urls import masked_url
from sidecar.channel import encode
from sidecar.config.document import MAX_BYTES
from sidecar.config.load import load_settings, parse_settings
from sidecar.config.problems import SettingsError
from sidecar.discovery.planned import static_endpoints
from sidecar.upstreams.adapters import ANY_CLASS, REASON_BYTES

GOOD = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
models: [{name: magika, endpoints: ["http://127.0.0.1:9001"]}]
"""

SHARDED = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
models:
  - {name: t, shards: {mode: tensor, count: 4}}
  - {name: k, shards: {mode: keyed, count: 3}, key: {header: x-key}}
  - {name: r, endpoints: ["http://w:1"]}
"""

MULTIPLYING = f"a: &a [{', '.join('1' * 10)}]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{before}'] * 10)}]\n" for before, this in ("ab", "bc", "cd", "de")
)

# (what is wrong, file content, every line of the error)
MALFORMED: list[tuple[str, str | bytes, list[str]]] = [
    (
        "a number out of range",
        "version: 1\nlisteners:\n  - address: 127.0.0.1:8080\n    processes: 0\n",
        ["w.yaml:4:16: listeners[0].processes: 0: must be at least 1"],
    ),
    (
        "everything at once: nothing hides the next error",
        (
            "version: 2\nlisteners: []\nlimits:\n  head_bytes: yes\n  fields: 3.5\n"
            "timeouts: {connect_s: .nan, drain_s: -1, keep_alive_s: 0, stream_idle_s: 1e9}\nadmin:\nstate: 7\n"
            "models: {a: 1}\nendpoints:\n"
        ),
        [
            "w.yaml:1:10: version: 2: must be 1",
            "w.yaml:2:12: listeners: an empty list: must hold at least one item",
            'w.yaml:4:15: limits.head_bytes: "yes": must be a whole number',
            "w.yaml:5:11: limits.fields: 3.5: must be a whole number",
            "w.yaml:6:23: timeouts.connect_s: .nan: must be a finite number",
            "w.yaml:6:38: timeouts.drain_s: -1: must be at least 0",
            "w.yaml:6:56: timeouts.keep_alive_s: 0: must be greater than 0",
            "w.yaml:6:74: timeouts.stream_idle_s: 1e9: must be at most 86400",
            "w.yaml:7:7: admin: null: must be a mapping of fields; leave it out for its defaults",
            (
                "w.yaml:8:8: state: 7: must be a mapping with some of: url, namespace, password_file, share_latencies, "
                "share_breakers, tls"
            ),
            "w.yaml:9:9: models: a mapping: must be a list: start each item with a hyphen, or write [a, b]",
            "w.yaml:10:11: endpoints: null: must be a list; leave the field out for its default",
        ],
    ),
    (
        "unknown fields and values",
        (
            "version: 1\nlistener: []\nlisteners:\n  - {address: '127.0.0.1:8080', proceses: 2, zzz: 1}\n"
            "logging: {formt: xml, format: jsn}\n"
        ),
        [
            'w.yaml:2:1: listener: an empty list: unknown field; did you mean "listeners"?',
            'w.yaml:4:33: listeners[0].proceses: 2: unknown field; did you mean "processes"?',
            (
                "w.yaml:4:46: listeners[0].zzz: 1: unknown field; known here: "
                "address, name, protocol, processes, backlog, fastopen_queue, unix_mode, tls, default_model, "
                "trusted_networks, model_header"
            ),
            'w.yaml:5:11: logging.formt: "xml": unknown field; did you mean "format"?',
            'w.yaml:5:31: logging.format: "jsn": must be one of: json, text; did you mean "json"?',
        ],
    ),
    (
        "hedging where it must not be, and times that are none",
        (
            GOOD.replace("name: magika,", "name: magika, hedge: true, timeouts: {total_s: 0, try_s: 1e9, idle_s: 1},")
            + "timeouts: {total_s: null, try_s: -1}\n"
        ),
        [
            "w.yaml:3:58: models[0].timeouts.total_s: 0: must be greater than 0",
            "w.yaml:3:68: models[0].timeouts.try_s: 1e9: must be at most 86400",
            'w.yaml:3:73: models[0].timeouts.idle_s: 1: unknown field; did you mean "stream_idle_s"?',
            "w.yaml:4:34: timeouts.try_s: -1: must be greater than 0",
        ],
    ),
    (
        "hedging needs what it is made of",
        GOOD.replace("name: magika,", "name: magika, hedge: true,") + "policies: {retry: {attempts: 0}}\n",
        [
            "w.yaml:3:32: models[0].hedge: true: needs idempotent: true, as a hedged request may be executed twice",
            ("w.yaml:3:32: models[0].hedge: true: needs policies.retry.attempts of at least 1: a hedge is one of them"),
        ],
    ),
    (
        "missing fields",
        "models:\n  - idempotent: 1\n",
        [
            'w.yaml:1:1: version: missing: add "version" (schema version, always 1)',
            'w.yaml:1:1: listeners: missing: add "listeners" (where to accept)',
            'w.yaml:2:5: models[0].name: missing: add "name" (name as in /v2/models/NAME)',
            "w.yaml:2:17: models[0].idempotent: 1: must be true or false",
        ],
    ),
    (
        "text of the wrong form",
        (
            "version: 1\nlisteners: [{address: 8080, name: \"a\\nb\"}]\nmodels: [{name: 'a b', probe: {path: ready}}]\n"
            "state: {namespace: ''}\n"
        ),
        [
            "w.yaml:2:23: listeners[0].address: 8080: must be text: put it in quotes",
            'w.yaml:2:35: listeners[0].name: "a\\nb": must not hold control characters or halves of surrogate pairs',
            (
                'w.yaml:3:17: models[0].name: "a b": '
                "must be 1 to 128 letters, digits, dots, underscores, colons or hyphens"
            ),
            (
                'w.yaml:3:38: models[0].probe.path: "ready": '
                "must be a path that starts with / and holds neither spaces nor control characters"
            ),
            'w.yaml:4:20: state.namespace: "": must be 1 to 64 letters, digits, dots, underscores or hyphens',
        ],
    ),
    (
        "names that are not fit for labels",
        GOOD.replace('8080"', "8080\", name: 'a b'")
        + "endpoints: [{url: 'http://h:1', models: [magika], name: 'h:1'}]\n",
        [
            (
                'w.yaml:2:47: listeners[0].name: "a b": '
                "must be at most 128 letters, digits, dots, underscores or hyphens"
            ),
            (
                'w.yaml:4:57: endpoints[0].name: "h:1": '
                "must be at most 128 letters, digits, dots, underscores or hyphens"
            ),
        ],
    ),
    (
        "an empty file",
        "",
        [
            (
                'w.yaml:1:1: null: the file is empty; a configuration starts with "version: 1" '
                "and names at least one listener"
            )
        ],
    ),
    (
        "keys given twice",
        GOOD + "version: 1\nlimits: {fields: 9, fields: 10}\n",
        [
            "w.yaml:4:1: version: 1: given twice, first on line 1: remove one",
            "w.yaml:5:21: limits.fields: 10: given twice, first on line 5: remove one",
        ],
    ),
    (
        "not YAML",
        "version: 1\nlisteners: [{address: '127.0.0.1:8080'}\nadmin: {}\n",
        [
            (
                'w.yaml:3:1: "admin: {}": not valid YAML: '
                "while parsing a flow sequence expected ',' or ']', but got '<scalar>'"
            )
        ],
    ),
    (
        "a tab",
        "version: 1\n\tlisteners: 1\n",
        [
            (
                'w.yaml:2:1: "listeners: 1": not valid YAML: '
                "while scanning for the next token found character '\\t' that cannot start any token"
            )
        ],
    ),
    ("not UTF-8", b"version: 1\nname: caf\xe9\n", ["w.yaml:2:10: byte 0xe9: save the file as UTF-8"]),
    (
        "a control character",
        "version: \x01\n",
        ["w.yaml:1:10: character U+0001: not allowed in YAML: remove or escape it"],
    ),
    ("too long", b"#" * (MAX_BYTES + 1), ["w.yaml: more than 1048576 bytes: split or shorten the file"]),
    (
        "tags",
        "version: !!int 1\n",
        ["w.yaml:1:10: version: !!int: tags are not supported: write the value without one"],
    ),
    (
        "merge keys",
        "admin: &a {socket: s}\nstate:\n  <<: *a\n",
        ["w.yaml:3:3: state: <<: merge keys are not supported: write the fields out"],
    ),
    (
        "an alias without its anchor",
        "admin: *nothing\n",
        ["w.yaml:1:8: admin: *nothing: no such anchor before this line: define it or write it out"],
    ),
    (
        "an alias of what it stands in",
        "models: &m [*m]\n",
        ["w.yaml:1:13: models[0]: *m: no such anchor before this line: define it or write it out"],
    ),
    (
        "aliases that multiply",
        MULTIPLYING,
        ["w.yaml:5:24: e[4]: more than 50000 values, aliases expanded: shorten the file"],
    ),
    (
        "nested without end",
        "models: " + "[" * 5000,
        ["w.yaml:1:24: models" + "[0]" * 15 + ": nested deeper than 16 levels: no field of the schema is"],
    ),
    (
        "two documents",
        GOOD + "---\n" + GOOD,
        ["w.yaml:4:1: a second document: a file holds one document: remove what follows ---"],
    ),
    ("a key that is no name", "1: 2\n", ["w.yaml:1:1: 1: not a field name: field names are plain text"]),
    ("a collection as a key", "? [a]\n: 1\n", ["w.yaml:1:3: a collection as a key: field names are plain text"]),
    (
        "policies that contradict themselves",
        GOOD + "policies:\n  freshness: {ttl_s: 1}\n  scoring: {warmth: 0, speed: 0, free_memory: 0}\n"
        "  retry: {attempts: 9, budget_ratio: 2, backoffmin: 1}\n  quarantine: {base_s: 60}\n",
        [
            "w.yaml:5:22: policies.freshness.ttl_s: 1: must be greater than full_s (2.0)",
            "w.yaml:6:12: policies.scoring: sum of all coefficients = 0: must be greater than 0",
            "w.yaml:7:21: policies.retry.attempts: 9: must lie between 0 and 5",
            "w.yaml:7:38: policies.retry.budget_ratio: 2: a ratio lies between 0 and 1",
            'w.yaml:7:41: policies.retry.backoffmin: 1: unknown field; did you mean "backoff_min_ms"?',
            "w.yaml:8:15: policies.quarantine: max_s = 30.0: must be at least base_s (60)",
        ],
    ),
    (
        "coefficients of scorers",
        GOOD
        + "policies:\n  scoring: {speed: -1, queue_depth: .nan, coefficients: {speed: 1, own: -2, cpu: x, 1: 2}}\n",
        ["w.yaml:5:85: policies.scoring.coefficients: 1: not a field name: field names are plain text"],
    ),
    (
        "coefficients that make no sense",
        GOOD + "policies:\n  scoring: {speed: -1, cpu_load: -2, coefficients: {speed: 1, own: -2, other: -3}}\n",
        [
            "w.yaml:5:20: policies.scoring.speed: -1: a coefficient is 0 or more",
            "w.yaml:5:34: policies.scoring.cpu_load: -2: a coefficient is 0 or more",
            "w.yaml:5:60: policies.scoring.coefficients.speed: 1: is a field of its own: set scoring.speed",
            "w.yaml:5:68: policies.scoring.coefficients.own: -2: a coefficient is 0 or more",
            "w.yaml:5:79: policies.scoring.coefficients.other: -3: a coefficient is 0 or more",
        ],
    ),
    (
        "coefficients that are none",
        GOOD + "policies:\n  scoring: {coefficients: {own: x, other: .nan}}\n",
        [
            'w.yaml:5:33: policies.scoring.coefficients.own: "x": must be a number',
            "w.yaml:5:43: policies.scoring.coefficients.other: .nan: must be a finite number",
        ],
    ),
    (
        "coefficients that are no mapping",
        GOOD + "policies:\n  scoring: {coefficients: [own]}\n",
        [
            (
                "w.yaml:5:27: policies.scoring.coefficients: a list: must be a mapping of names to values; "
                "leave the field out for its default"
            ),
        ],
    ),
    (
        "coefficients of scorers that there are not",
        GOOD + "policies:\n  scoring: {coefficients: {queue_depht: 1, mine: 2}}\n",
        [
            'w.yaml:5:41: policies.scoring.coefficients.queue_depht: 1: no such scorer; did you mean "queue_depth"?',
            (
                "w.yaml:5:50: policies.scoring.coefficients.mine: 2: no such scorer; "
                "there are: cpu_load, free_memory, queue_depth, speed, warmth"
            ),
        ],
    ),
    (
        "a balancer that there is not",
        GOOD[:-3] + ", balancer: leastrequest}]\n",
        [
            (
                'w.yaml:3:73: models[0].balancer: "leastrequest": must be one of: warm, round_robin, random, '
                'least_request, two_choice, peak_ewma, keyed; did you mean "least_request"?'
            ),
        ],
    ),
    (
        "keyed without a key",
        GOOD[:-3] + ", balancer: keyed}]\n",
        [
            'w.yaml:3:73: models[0].balancer: "keyed": keyed needs a key: set key, for example {header: x-session-id}',
        ],
    ),
    (
        "a key without keyed, that is nowhere",
        GOOD[:-3] + ", key: {}}]\n",
        [
            (
                "w.yaml:3:68: models[0].key: an empty mapping: "
                "has no use unless balancer or shards.mode is keyed: set one, or leave this out"
            ),
            (
                "w.yaml:3:68: models[0].key: an empty mapping: "
                "must say where the key is: either header, or json, or last_segment: true"
            ),
        ],
    ),
    (
        "a key in two places, and a load below the mean",
        GOOD[:-3] + ", balancer: keyed, key: {header: x-key, last_segment: true, load_factor: 0.5}}]\n",
        ["w.yaml:3:134: models[0].key.load_factor: 0.5: must be at least 1"],
    ),
    (
        "a key in two places",
        GOOD[:-3] + ", balancer: keyed, key: {header: x-key, last_segment: true}}]\n",
        [
            (
                "w.yaml:3:85: models[0].key: a mapping: "
                "must say where the key is: either header, or json, or last_segment: true"
            ),
        ],
    ),
    (
        "affinity beside keys, of more blocks than there are",
        GOOD[:-3] + ", balancer: keyed, key: {header: x-key}, affinity: {blocks: 2, least_blocks: 3}}]\n",
        [
            (
                "w.yaml:3:112: models[0].affinity: a mapping: "
                "keyed says where a request goes already: choose another balancer, or leave this out"
            ),
            "w.yaml:3:138: models[0].affinity.least_blocks: 3: must be between 1 and blocks (2)",
        ],
    ),
    (
        "a key at no path",
        GOOD[:-3] + ", balancer: keyed, key: {json: user..id}}]\n",
        [
            (
                'w.yaml:3:92: models[0].key.json: "user..id": '
                "must be names with dots between them, at most 8, for example user.id"
            ),
        ],
    ),
    (
        "keyed shards without a key",
        GOOD[:-3] + ", shards: {mode: keyed, count: 2}}]\n",
        [
            (
                'w.yaml:3:78: models[0].shards.mode: "keyed": '
                "keyed needs a key: set key, for example {header: x-session-id}"
            ),
        ],
    ),
    (
        "one keyed shard",
        GOOD[:-3] + ", shards: {mode: keyed}, key: {header: x-key}}]\n",
        ["w.yaml:3:71: models[0].shards.count: 1: must be between 2 and 256 where mode is keyed"],
    ),
    (
        "a shard of so many as workers say",
        GOOD[:-3] + ', shards: {mode: tensor}}]\nendpoints: [{url: "http://w:1", models: ["magika#1"]}]\n',
        ['w.yaml:4:42: endpoints[0].models[0]: "magika#1": of how many is not said: set shards.count at magika'],
    ),
    (
        "shards of what is not split",
        GOOD[:-3] + ", shards: {count: 3}}]\n",
        ["w.yaml:3:79: models[0].shards.count: 3: must be 1 where mode is replicated"],
    ),
    (
        "a model in parts that one endpoint should load",
        GOOD[:-3] + ", on_no_candidate: lazy, shards: {mode: tensor, count: 2}}]\n",
        [
            (
                'w.yaml:3:80: models[0].on_no_candidate: "lazy": '
                "lazy has one endpoint load all of a model, and this one is split: choose wait or fail"
            ),
        ],
    ),
    (
        "an entry that is no shard",
        GOOD[:-3] + ", shards: {mode: tensor, count: 4, entry: 4}}]\n",
        ["w.yaml:3:103: models[0].shards.entry: 4: must be the number of a shard, 0 to 3"],
    ),
    (
        "shards that nobody holds",
        SHARDED + 'endpoints: [{url: "http://w:1", models: ["t@1#0", "t@2", "k#2"]}]\n',
        [
            (
                "w.yaml:4:23: models[0].shards: a mapping: "
                "no endpoint holds t@1#1 and 2 more, and none ever will: list it under endpoints"
            ),
            (
                "w.yaml:5:23: models[1].shards: a mapping: "
                "no endpoint holds k#0 and 1 more, and none ever will: list it under endpoints"
            ),
        ],
    ),
    (
        "shards that there are not, and a group of nothing",
        SHARDED + 'endpoints: [{url: "http://w:1", group: g, models: ["t", "k", "k#3", "r#0", "k#x"]}]\n',
        [
            (
                'w.yaml:7:40: endpoints[0].group: "g": '
                "has no use: the endpoint holds no shard of a model whose shards.mode is tensor"
            ),
            'w.yaml:7:62: endpoints[0].models[2]: "k#3": k has the shards 0 to 2',
            ('w.yaml:7:69: endpoints[0].models[3]: "r#0": r is not split: set shards at the model, or leave #0 out'),
            'w.yaml:7:76: endpoints[0].models[4]: "k#x": must be NAME or NAME@VERSION, perhaps with #SHARD',
        ],
    ),
    (
        "a shard of what is held whole",
        SHARDED + 'endpoints: [{url: "http://w:1", models: [t, k, "k#1"]}]\n',
        [
            (
                'w.yaml:7:48: endpoints[0].models[2]: "k#1": '
                "the endpoint holds all of k by another entry: keep one of the two"
            ),
        ],
    ),
    (
        "a priority in no field",
        GOOD + 'policies: {admission: {priority: {header: "x y"}}}\n',
        [
            (
                'w.yaml:4:43: policies.admission.priority.header: "x y": must be a field name: '
                "1 to 64 letters, digits or hyphens"
            )
        ],
    ),
    (
        "a tenant in a field that says nothing of who asks",
        GOOD + "policies: {admission: {tenant: {header: Traceparent}}}\n",
        [
            (
                'w.yaml:4:41: policies.admission.tenant.header: "Traceparent": says nothing of who asks: '
                "choose another field, for example x-priority"
            )
        ],
    ),
    (
        "anybody's priority in a field that is taken from strangers",
        GOOD + "policies: {admission: {trust: anybody, priority: {classes: {a: 1}}}}\n",
        [
            (
                'w.yaml:4:50: policies.admission.priority.header: "warmroute-priority": is taken out of what '
                "strangers send: choose another field, for example x-priority"
            )
        ],
    ),
    (
        "a class with the name of those without",
        GOOD + "policies: {admission: {priority: {classes: {Default: 1}}}}\n",
        [
            (
                "w.yaml:4:54: policies.admission.priority.classes.Default: 1: is the class of requests that name none, "
                "of rank 0: choose another name"
            )
        ],
    ),
    (
        "a class that is no name",
        GOOD + 'policies: {admission: {priority: {classes: {"a b": 1}}}}\n',
        [
            (
                "w.yaml:4:52: policies.admission.priority.classes.a b: 1: must be 1 to 64 letters, digits, dots, "
                "underscores or hyphens"
            )
        ],
    ),
    (
        "more classes than there may be",
        GOOD + "policies: {admission: {priority: {classes: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1}}}}\n",
        ["w.yaml:4:44: policies.admission.priority.classes: a mapping: 8 classes, at most 7"],
    ),
    (
        "a rank out of bounds",
        GOOD + "policies: {admission: {priority: {classes: {a: 1001}}}}\n",
        ["w.yaml:4:48: policies.admission.priority.classes.a: 1001: must be at most 1000"],
    ),
    (
        "less of a model than there are processes",
        GOOD.replace('8080"}', '8080", processes: 4}')[:-3] + ", admission: {requests: 3}}]\n",
        [
            (
                "w.yaml:3:85: models[0].admission.requests: 3: must be at least 4, the number of data processes: "
                "each has a part of it"
            )
        ],
    ),
    (
        "a lazy model that nobody can be asked to load",
        GOOD.replace("http://127.0.0.1:9001", "grpc://127.0.0.1:9001")[:-3] + ", on_no_candidate: lazy}]\n",
        [
            (
                'w.yaml:2:13: listeners[0].protocol: "http": no endpoint speaks it: give a model endpoints that start '
                "with http://"
            ),
            (
                'w.yaml:3:80: models[0].on_no_candidate: "lazy": lazy asks endpoints to load over HTTP, and this model '
                "has none: give it one, or use wait"
            ),
        ],
    ),
    (
        "a least limit over the largest",
        GOOD + "policies: {concurrency: {min: 20, max: 10}}\n",
        ["w.yaml:4:31: policies.concurrency.min: 20: must lie between 1 and max (10)"],
    ),
    (
        "a key in no field",
        GOOD[:-3] + ', balancer: keyed, key: {header: "x key"}}]\n',
        ['w.yaml:3:94: models[0].key.header: "x key": must be a field name: 1 to 64 letters, digits or hyphens'],
    ),
    *(
        (
            f"a key in a field that says nothing of who asks: {name}",
            GOOD[:-3] + f", balancer: keyed, key: {{header: {name}}}}}]\n",
            [
                (
                    f'w.yaml:3:94: models[0].key.header: "{name}": says nothing of who asks: choose another field, '
                    "for example x-session-id"
                ),
            ],
        )
        for name in ("X-Request-Id", "Content-Length", "X-Forwarded-For", "Warmroute-Attempt", "Grpc-Timeout")
    ),
    (
        "passwords are not repeated",
        (
            "version: 1\nlisteners: [{address: '127.0.0.1:1'}]\n"
            "state: {url: 'redis://user:hunter2@store:70000', password: hunter2}\nadmin: 'redis://u:hunter2@h'\n"
        ),
        [
            'w.yaml:3:50: state.password: ***: unknown field; did you mean "password_file"?',
            'w.yaml:4:8: admin: "redis://***@h": must be a mapping with some of: socket, address, token_file',
        ],
    ),
    (
        "nor where they stop being YAML",
        "version: 1\npassword: 'hunter2\n",
        ["w.yaml:3:1: not valid YAML: while scanning a quoted scalar found unexpected end of stream"],
    ),
]


@pytest.mark.parametrize(("content", "lines"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_error_text(content: str | bytes, lines: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(content if isinstance(content, bytes) else content.encode(), "w.yaml")
    assert str(caught.value).split("\n") == lines


SENSELESS: list[tuple[str, str, list[str]]] = [
    (
        "fields that cannot name a model",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:1", model_header: Host}\n'
            '  - {address: "127.0.0.1:2", model_header: X-Forwarded-Model}\n'
            '  - {address: "127.0.0.1:3", model_header: "x model"}\n  - {address: "127.0.0.1:4", model_header: ""}\n'
            '  - {address: "127.0.0.1:5", model_header: null}\n  - {address: "127.0.0.1:6", model_header: X-Model}\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:3:44: listeners[0].model_header: "Host": '
                "has a meaning of its own: choose another field, for example x-model"
            ),
            (
                'w.yaml:4:44: listeners[1].model_header: "X-Forwarded-Model": '
                "has a meaning of its own: choose another field, for example x-model"
            ),
            (
                'w.yaml:5:44: listeners[2].model_header: "x model": '
                "must be a field name: 1 to 64 letters, digits or hyphens; null turns it off"
            ),
            (
                'w.yaml:6:44: listeners[3].model_header: "": '
                "must be a field name: 1 to 64 letters, digits or hyphens; null turns it off"
            ),
        ],
    ),
    (
        "whom a listener trusts",
        (
            'version: 1\nlisteners:\n  - address: "127.0.0.1:8080"\n'
            '    trusted_networks: [10.0.0.0/8, "fd00::/8", 10.1.2.3, unix, 10.1.2.3/8, proxy.local, "/run/x", ""]\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:4:64: listeners[0].trusted_networks[4]: "10.1.2.3/8": '
                "must end where its prefix does: write 10.0.0.0/8 for the network, or the address alone"
            ),
            (
                'w.yaml:4:76: listeners[0].trusted_networks[5]: "proxy.local": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
            (
                'w.yaml:4:89: listeners[0].trusted_networks[6]: "/run/x": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
            (
                'w.yaml:4:99: listeners[0].trusted_networks[7]: "": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
        ],
    ),
    (
        "listeners and endpoints of different protocols",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:1"}\n  - {address: "127.0.0.1:2", protocol: grpc}\n'
            'models: [{name: m, endpoints: ["grpc://w:9001"], probe: {}}]\n'
            'endpoints: [{url: "grpcs://w:9002", models: [m], probe: {}}, {url: "grpc+unix:w", models: [m]}]\n'
        ),
        [
            (
                'w.yaml:3:5: listeners[0].protocol: "http": no endpoint speaks it: '
                "give a model endpoints that start with http://"
            ),
            (
                'w.yaml:6:68: endpoints[1].url: "grpc+unix:w": must be unix: and the absolute path of a socket, '
                "for example unix:/run/app/http.sock"
            ),
        ],
    ),
    (
        "listeners",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:8080", name: a}\n'
            '  - {address: "127.0.0.1:08080", name: a, default_model: magik}\n  - {address: "::1:8080"}\n'
            '  - {address: "localhost"}\n  - {address: "h:70000"}\n  - {address: "127.0.0.1:0"}\n'
            '  - {address: "127.0.0.1:0"}\n  - {address: "300.0.0.1:1"}\n  - {address: "[zz]:1"}\n'
            '  - {address: "a b:1"}\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:4:15: listeners[1].address: "127.0.0.1:08080": already the address of listeners[0]: '
                "give each its own, or use processes for more of them"
            ),
            'w.yaml:4:40: listeners[1].name: "a": already the name of listeners[0]: give each its own',
            'w.yaml:4:58: listeners[1].default_model: "magik": no such model; did you mean "magika"?',
            (
                'w.yaml:5:15: listeners[2].address: "::1:8080": '
                "must have its IPv6 address in brackets, for example [::1]:8080"
            ),
            'w.yaml:6:15: listeners[3].address: "localhost": must be HOST:PORT, for example 127.0.0.1:8080',
            'w.yaml:7:15: listeners[4].address: "h:70000": must end in a port between 0 and 65535',
            (
                'w.yaml:10:15: listeners[7].address: "300.0.0.1:1": '
                "must hold an IPv4 address of four numbers up to 255, or a host name"
            ),
            (
                'w.yaml:11:15: listeners[8].address: "[zz]:1": '
                "must hold an IPv6 address between [ and ], for example [::1]:8080"
            ),
            'w.yaml:12:15: listeners[9].address: "a b:1": must be HOST:PORT with an IP address or a host name',
        ],
    ),
    (
        "models",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\nmodels:\n  - {name: a, default: true, endpoints: ["http://a:1"]}\n'
            "  - name: a\n    default: true\n    endpoints:\n      - https://w\n      - w:9001\n      - http://w\n"
            "      - http://w:1/v2\n      - http://w:2\n      - http://w:2/\n      - ftp://w:1\n      - http://u:pw@w:1\n"
            "      - http://w:0\n      - ''\n  - {name: b}\n"
        ),
        [
            'w.yaml:5:11: models[1].name: "a": already the name of models[0]: declare each model once',
            "w.yaml:6:14: models[1].default: true: models[0] is the default already: keep one of them",
            'w.yaml:8:9: models[1].endpoints[0]: "https://w": must be https://HOST:PORT, for example https://127.0.0.1:9001',
            'w.yaml:9:9: models[1].endpoints[1]: "w:9001": must be http://HOST:PORT; did you mean http://w:9001?',
            'w.yaml:10:9: models[1].endpoints[2]: "http://w": must be http://HOST:PORT, for example http://127.0.0.1:9001',
            (
                'w.yaml:11:9: models[1].endpoints[3]: "http://w:1/v2": '
                "must end after the port: requests keep their own path; write http://w:1"
            ),
            'w.yaml:13:9: models[1].endpoints[5]: "http://w:2/": the same as endpoints[4]: name each once',
            (
                'w.yaml:14:9: models[1].endpoints[6]: "ftp://w:1": '
                "must start with http(s):// or grpc(s)://, or be unix:/PATH or grpc+unix:/PATH"
            ),
            'w.yaml:15:9: models[1].endpoints[7]: "http://***@w:1": must not hold a user or password',
            'w.yaml:16:9: models[1].endpoints[8]: "http://w:0": must have a port between 1 and 65535',
            'w.yaml:17:9: models[1].endpoints[9]: "": must be http://HOST:PORT, for example http://127.0.0.1:9001',
            (
                'w.yaml:18:12: models[2].name: "b": has no endpoint and never will: '
                "give it endpoints or dns, or set state.url for workers to come"
            ),
        ],
    ),
    (
        "names to look up",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\n'
            'models: [{name: d, dns: {name: "a b", port: 0, type: mx}}]\n'
        ),
        [
            (
                'w.yaml:3:32: models[0].dns.name: "a b": must be a DNS name: labels of letters, digits, hyphens and '
                "underscores"
            ),
            "w.yaml:3:45: models[0].dns.port: 0: must be at least 1",
            'w.yaml:3:54: models[0].dns.type: "mx": must be one of: a, srv',
        ],
    ),
    (
        "what is looked up",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\n'
            "models:\n"
            "  - {name: a, dns: {name: workers.test}}\n"
            "  - {name: b, dns: {name: _h._tcp.w.test, type: srv, port: 1}}\n"
            "  - {name: c, dns: {name: w.test, port: 1, scheme: https}}\n"
            'dns: {servers: ["10.0.0.1:53", "fd00::1", "[fd00::1]:53", dns.test, "10.0.0.1:0"]}\n'
        ),
        [
            (
                "w.yaml:4:20: models[0].dns: a mapping: needs the port of the endpoints: set port, or type: srv, whose "
                "records have it"
            ),
            "w.yaml:5:60: models[1].dns.port: 1: has no use with type srv, whose records have the port: leave it out",
            (
                'w.yaml:6:52: models[2].dns.scheme: "https": needs upstream_tls.server_name: endpoints are addresses, '
                "and certificates are for names"
            ),
            'w.yaml:7:59: dns.servers[3]: "dns.test": must be IP or IP:PORT, for example 10.0.0.10:53 or [fd00::a]:53',
            (
                'w.yaml:7:69: dns.servers[4]: "10.0.0.1:0": must be IP or IP:PORT, for example 10.0.0.10:53 or '
                "[fd00::a]:53"
            ),
        ],
    ),
    (
        "endpoints",
        GOOD + "endpoints:\n  - {url: 'http://a:2', models: []}\n"
        "  - {url: 'http://a:2/', models: [magica, x@, magika@1, magika@1, '']}\n"
        "  - {url: 'http://a:3', name: e, models: [magika]}\n  - {url: 'http://a:4', name: e, models: [zebra]}\n",
        [
            "w.yaml:5:33: endpoints[0].models: an empty list: must hold at least one model, NAME or NAME@VERSION",
            'w.yaml:6:11: endpoints[1].url: "http://a:2/": already the URL of endpoints[0]: list its models there',
            'w.yaml:6:35: endpoints[1].models[0]: "magica": no such model; did you mean "magika"?',
            'w.yaml:6:43: endpoints[1].models[1]: "x@": must be NAME or NAME@VERSION, perhaps with #SHARD',
            'w.yaml:6:57: endpoints[1].models[3]: "magika@1": the same as models[2]: name each once',
            'w.yaml:6:67: endpoints[1].models[4]: "": must be NAME or NAME@VERSION, perhaps with #SHARD',
            'w.yaml:8:31: endpoints[3].name: "e": already the name of endpoints[2]: give each its own',
            'w.yaml:8:43: endpoints[3].models[0]: "zebra": no such model; declared are: magika',
        ],
    ),
    (
        "admin open to everyone",
        GOOD + "admin: {address: '0.0.0.0:9901'}\n",
        [
            (
                'w.yaml:4:18: admin.address: "0.0.0.0:9901": '
                "must be a loopback address (127.0.0.1 or [::1]), or admin.token_file must be set"
            )
        ],
    ),
    (
        "no admin at all",
        GOOD + "admin: {address: null}\n",
        [
            (
                "w.yaml:4:8: admin: a mapping: must have a socket (--admin-socket) or an address: "
                "there would be no way to see or steer the sidecar"
            )
        ],
    ),
    (
        "admin on a listener's address, and a path too long for a socket",
        GOOD + f"admin: {{address: '127.0.0.1:8080', socket: {'s' * 108}}}\n",
        [
            (
                'w.yaml:4:18: admin.address: "127.0.0.1:8080": '
                "already the address of listeners[0]: give the admin API its own port"
            ),
            (
                f'w.yaml:4:44: admin.socket: "{"s" * 108}": '
                "must be at most 107 bytes: the kernel takes no longer socket path"
            ),
        ],
    ),
    (
        "two schemes at one place",
        (
            "version: 1\nlisteners: [{address: '127.0.0.1:0'}]\nmodels:\n"
            "  - {name: a, endpoints: ['http://w:1', 'https://w:1', 'https://w:2']}\n"
            "  - {name: b, endpoints: ['https://w:1', 'http://w:2/']}\n"
            "endpoints: [{url: 'http://w:2', name: two, models: [a]}]\n"
        ),
        [
            (
                'w.yaml:4:41: models[0].endpoints[1]: "https://w:1": has the same HOST:PORT as http://w:1: '
                "list one of them under endpoints, with a name of its own"
            ),
            (
                'w.yaml:5:27: models[1].endpoints[0]: "https://w:1": has the same HOST:PORT as http://w:1: '
                "list one of them under endpoints, with a name of its own"
            ),
        ],
    ),
    (
        "Unix sockets that are none",
        (
            "version: 1\nlisteners:\n  - {address: 'unix:run/a.sock'}\n  - {address: 'unix:/run/a.sock'}\n"
            "  - {address: 'unix:/run/a.sock'}\n"
            f"models: [{{name: m, endpoints: ['unix:', 'unix:/run/w.sock', 'unix:/{'s' * 107}']}}]\n"
        ),
        [
            (
                'w.yaml:3:15: listeners[0].address: "unix:run/a.sock": '
                "must be unix: and the absolute path of a socket, for example unix:/run/app/http.sock"
            ),
            (
                'w.yaml:5:15: listeners[2].address: "unix:/run/a.sock": already the address of listeners[1]: '
                "give each its own, or use processes for more of them"
            ),
            (
                'w.yaml:6:32: models[0].endpoints[0]: "unix:": '
                "must be unix: and the absolute path of a socket, for example unix:/run/app/http.sock"
            ),
            (
                f'w.yaml:6:61: models[0].endpoints[2]: "unix:/{"s" * 107}": '
                "must be at most 107 bytes: the kernel takes no longer socket path"
            ),
        ],
    ),
    (
        "a limit that another excludes, at its default",
        GOOD + "limits: {head_bytes: 1024}\n",
        ["w.yaml:4:9: limits.target_bytes: 16384: must be at most limits.head_bytes (1024): the target is in the head"],
    ),
    (
        "work refused before room is made",
        GOOD + "overload: {soft_ratio: 0.9, hard_ratio: 0.8}\n",
        [
            (
                "w.yaml:4:24: overload.soft_ratio: 0.9: must be below overload.hard_ratio (0.8): room is made before "
                "work is refused"
            )
        ],
    ),
    (
        "nothing to route to",
        'version: 1\nlisteners: [{address: "127.0.0.1:0", default_model: m}]\n',
        [
            (
                "w.yaml:1:1: models: an empty list: "
                "must name a model with endpoints, or state.url must name a store that knows workers"
            ),
            'w.yaml:2:53: listeners[0].default_model: "m": no such model: declare it under models',
        ],
    ),
    (
        "files that are not there",
        GOOD + "admin: {token_file: /nonexistent/token}\n",
        [
            (
                'w.yaml:4:21: admin.token_file: "/nonexistent/token": '
                "cannot be read (No such file or directory): name a file that this user can read"
            )
        ],
    ),
    (
        "TLS without rediss, a key without its certificate, a password without a store",
        GOOD + "state:\n  password_file: /dev/null\n  tls: {key_file: /dev/null}\n",
        [
            'w.yaml:5:18: state.password_file: "/dev/null": has no use without a store: set state.url',
            'w.yaml:5:18: state.password_file: "/dev/null": is not a regular file: name one',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": TLS needs state.url to start with rediss://',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": needs its certificate: set state.tls.cert_file',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": is not a regular file: name one',
        ],
    ),
]


@pytest.mark.parametrize(("content", "lines"), [row[1:] for row in SENSELESS], ids=[row[0] for row in SENSELESS])
def test_senseless_text(content: str, lines: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(content.encode(), "w.yaml")
    assert str(caught.value).split("\n") == lines


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("sentinel://a:1", "sentinel:// is not supported yet: use redis:// or rediss:// with one server's address"),
        ("cluster://a:1", "cluster:// is not supported yet: use redis:// or rediss:// with one server's address"),
        ("memcached://a:1", "must start with redis://, rediss:// or unix://, or be none"),
        ("localhost:6379", "must start with redis://, rediss:// or unix://, or be none"),
        ("unix://", "must name a socket, for example unix:///run/redis/redis.sock"),
        ("unix://run/s.sock", "must hold an absolute path, after three slashes: unix:///run/redis/redis.sock"),
        ("unix://u:p@run/s.sock", "must hold an absolute path, after three slashes: unix:///run/redis/redis.sock"),
        ("redis://", "must name a server, for example redis://127.0.0.1:6379"),
        ("redis://h:x", "must be redis://HOST:PORT/DATABASE, the port between 1 and 65535"),
        ("rediss://h:0", "must have a port between 1 and 65535"),
        ("redis://a b@h:1", "must hold no spaces: write what is in a user or password as %20"),
        ("redis://h:1/main", "must end in the number of a database, for example redis://h/0"),
    ],
)
def test_state_url(url: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{GOOD}state: {{url: '{url}'}}\n".encode(), "w.yaml")
    assert str(caught.value) == f'w.yaml:4:14: state.url: "{masked_url(url)}": {remedy}'


@pytest.mark.parametrize("name", ["password", "username", "ssl_password", "Password"])
@pytest.mark.parametrize("place", ["redis://h:1/0", "unix:///run/s.sock"])
def test_credentials_in_the_query_of_the_state_url(place: str, name: str) -> None:
    scheme = place.partition(":")[0]
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{GOOD}state: {{url: '{place}?db=1&{name}=hunter2'}}\n".encode(), "w.yaml")
    remedy = f"must not hold {name} after a ?: write {scheme}://USER:PASSWORD@…, or password_file"
    assert str(caught.value) == f'w.yaml:4:14: state.url: "{place}": {remedy}'


def test_password_in_two_places(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    text = f"{GOOD}state:\n  url: redis://user:hunter2@h:1\n  password_file: {secret}\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    remedy = "the password stands in state.url too: keep one of the two"
    assert str(caught.value) == f'w.yaml:6:18: state.password_file: "{secret}": {remedy}'


def test_a_password_file_that_is_not_utf8(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(b"caf\xe9\n")
    secret.chmod(0o600)
    text = f"{GOOD}state:\n  url: redis://user@h:1\n  password_file: {secret}\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    remedy = "byte 4 of it is not UTF-8: save the file as UTF-8"
    assert str(caught.value) == f'w.yaml:6:18: state.password_file: "{secret}": {remedy}'


@pytest.mark.parametrize("probe", ["null", "{}"])
def test_more_models_than_one_endpoint_can_tell_of(probe: str) -> None:
    names = [f"model-{number:04d}" for number in range(1000)]
    models = ", ".join(f"{{name: {name}}}" for name in names)
    endpoint = f"{{url: 'http://127.0.0.1:1', models: [{', '.join(names)}], probe: {probe}}}"
    head = "version: 1\nlisteners: [{address: 'h:1'}]\nstate: {url: 'redis://h:1'}\n"
    text = f"{head}models: [{models}]\nendpoints: [{endpoint}]\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (problem,) = caught.value.problems
    most = int(problem.path.removeprefix("endpoints[0].models[").removesuffix("]"))
    assert f"no more than the {most} models before this one" in problem.remedy
    fits = parse_settings(text.replace(f"[{', '.join(names)}]", f"[{', '.join(names[:most])}]").encode(), "w.yaml")
    (planned,) = static_endpoints(fits.settings)
    found = {} if probe == "null" else {"reason": "x" * REASON_BYTES, "warmth": ((ANY_CLASS, 1.0),)}
    replicas = tuple(Replica(one.model, one.version, **found) for one in planned.replicas)  # type: ignore[arg-type]
    assert encode(EndpointSeen(EndpointRecord(planned.id, planned.address, replicas=replicas, static=True), 0.1))


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
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (found,) = caught.value.problems
    assert str(found).partition(" endpoints[0].")[2] == problem


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
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (found,) = caught.value.problems
    assert str(found).partition(" models[0].warmup.")[2] == problem


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
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (found,) = caught.value.problems
    assert str(found).partition(" models[0].warmup.")[2] == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (classed("{header: x, classes: []}"), "classes: an empty list: must hold at least one item"),
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
            classed("{header: x, classes: [{name: batch1}]}", of("name: batch-1")),
            'classes[0].name: "batch1": no warm-up request proves it; did you mean "batch-1"?',
        ),
    ],
)
def test_shape_classes_that_make_no_sense(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (found,) = caught.value.problems
    assert str(found).partition(" models[0].shapes.")[2] == problem


def test_warm_ups_of_endpoints_that_speak_different_protocols() -> None:
    text = warmed(of("name: a"), urls="'http://w:1', 'grpc://w:2'")
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.replace("protocol: grpc", "protocol: http").encode(), "w.yaml")
    said = [str(one) for one in caught.value.problems]
    remedy = "cannot prove both HTTP/1.1 and gRPC endpoints: leave out one of the two kinds"
    assert f"w.yaml:4:64: models[0].warmup: a mapping: {remedy}" in said


def test_shape_classes_that_say_nothing() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(classed("{classes: [{name: a}]}").encode(), "w.yaml")
    remedy = "says nothing of any request: set header, or the max_body_bytes of classes"
    assert str(caught.value) == f"w.yaml:4:50: models[0].shapes: a mapping: {remedy}"


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


def test_empty_token_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    token.chmod(0o600)
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"{GOOD}admin: {{token_file: {token}}}\n".encode(), "w.yaml")
    remedy = "is empty: put the content in it, or leave the field out"
    assert str(caught.value) == f'w.yaml:4:21: admin.token_file: "{token}": {remedy}'


def test_errors_are_bounded_in_number_and_length() -> None:
    keys = [f"k{index}{'x' * 1000}: {'y' * 1000}" for index in range(150)]
    with pytest.raises(SettingsError) as caught:
        parse_settings("\n".join([GOOD.rstrip(), *keys]).encode(), "w.yaml")
    lines = str(caught.value).split("\n")
    assert len(caught.value.problems) == 150
    assert (len(lines), lines[-1]) == (101, "and 50 more")
    assert lines[0].startswith(f'w.yaml:4:1: k0{"x" * 118}…: "{"y" * 120}…": unknown field; known here: version, ')


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)  # nobody will ever write to it
    for path, reason in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (fifo, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
    ):
        with pytest.raises(SettingsError) as caught:
            load_settings(path, {})
        assert str(caught.value) == f"{path}: {reason}: name a configuration file that exists and can be read"
