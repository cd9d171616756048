"""Malformed configurations and the exact text of each error: place, field, value and remedy.

This module has what is wrong with a file and its fields as such; others have what it says of routing, of addresses and
of probes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.config.document import MAX_BYTES
from sidecar.config.load import load_settings, parse_settings
from sidecar.config.problems import SettingsError
from tests.support.settings_texts import GOOD, refused

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
                "while parsing a flow sequence expected ',' or ']', but got '<scalar>': "
                "close each [ with a ], with commas between the items"
            )
        ],
    ),
    (
        "a tab",
        "version: 1\n\tlisteners: 1\n",
        [
            (
                'w.yaml:2:1: "listeners: 1": not valid YAML: '
                "while scanning for the next token found character '\\t' that cannot start any token: "
                "indent with spaces, not tabs"
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
        ["w.yaml:3:1: not valid YAML: while scanning a quoted scalar found unexpected end of stream: close the quote"],
    ),
]


@pytest.mark.parametrize(("content", "lines"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_error_text(content: str | bytes, lines: list[str]) -> None:
    assert refused(content) == lines


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
