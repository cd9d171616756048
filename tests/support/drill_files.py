"""A drill's file with a bit of everything, changed and read in unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.problems import SettingsError
from sidecar.drills.reading import load_drill, parse_drill

GOOD = """\
version: 1
name: one
title: One
start: {up: {workers: 2, config: {models: [{name: drill, idempotent: true}, {name: chat}]}}, streams: {model: chat}}
phases:
  - {name: load, load: {path: /v2/models/drill/infer, rate_per_s: 10, headers: {a: b}, TLS}}
  - {name: slow, fault: {id: slow, kind: delay, delay_ms: 5, endpoint: worker-1}}
  - {name: stuck, fault: {kind: stop, process: worker-2, for_s: 9}}
  - {name: calm, wait: {for_s: 1}}
  - {name: out, expect: {endpoint: worker-1, being: out, within_s: 5}}
  - {name: over, end: {fault: slow}}
  - {name: hold, do: {act: drain, endpoint: worker-1}}
objectives:
  - {measure: error_ratio, at_most: 0, during: [calm]}
abort:
  - {measure: p95_ms, above: 500}
without: {breaker: {config: {policies: {breaker: {surge: false}}}}}
short: {time_ratio: 0.5}
limit_s: 100
""".replace("TLS", 'ends_with: "}", to: "https://h:1", tls: {insecure: true}')
DELAY = "kind: delay, delay_ms: 5"
OUT = "endpoint: worker-1, being: out"
DRAIN = "act: drain, endpoint: worker-1"
STORE_FAULTS = ("failover", "pause", "read_only", "refused", "restart", "stop")
HOLD = "  - {name: hold, do: {act: drain, endpoint: worker-1}}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse_drill(text.encode(), "d.yaml")
    return [str(problem) for problem in caught.value.problems]


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def refused(path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        load_drill(path)
    return str(caught.value).replace(str(path), "FILE")
