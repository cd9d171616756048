"""Errors in how requests are routed: policies, balancers, keys, shards and admission, and the exact text of each."""

from __future__ import annotations

import pytest

from tests.support.settings_texts import GOOD, refused

SHARDED = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
models:
  - {name: t, shards: {mode: tensor, count: 4}}
  - {name: k, shards: {mode: keyed, count: 3}, key: {header: x-key}}
  - {name: r, endpoints: ["http://w:1"]}
"""

# (what is wrong, file content, every line of the error)
MALFORMED: list[tuple[str, str, list[str]]] = [
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
        "affinity to an input without a name",
        GOOD[:-3] + ", affinity: {input: ''}}]\n",
        ['w.yaml:3:81: models[0].affinity.input: "": must be 1 to 128 characters in one line'],
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
]


@pytest.mark.parametrize(("content", "lines"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_error_text(content: str, lines: list[str]) -> None:
    assert refused(content) == lines
