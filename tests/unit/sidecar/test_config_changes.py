"""What a new configuration changes in a running sidecar, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sidecar.config.changes import ABSENT, merge, revision, would_break
from sidecar.config.reference import fields
from sidecar.settings import Reload, Settings

BASE: dict[str, Any] = {
    "version": 1,
    "listeners": [{"address": "127.0.0.1:1", "name": "a"}, {"address": "127.0.0.1:2"}],
    "models": [{"name": "m", "endpoints": ["http://h:1"]}, {"name": "n", "endpoints": ["http://h:2"]}],
    "endpoints": [{"url": "http://h:3", "models": ["m"]}],
}


def settings(**parts: Any) -> Settings:
    return msgspec.convert({**BASE, **parts}, Settings)


def listed(changes: tuple[object, ...]) -> list[str]:
    return [str(change) for change in changes]


@pytest.mark.parametrize(
    ("parts", "applied", "restart"),
    [
        ({}, [], []),
        ({"timeouts": {"drain_s": 5.0}}, ["timeouts.drain_s: 30.0 -> 5.0"], []),
        ({"limits": {"connections": 9}}, ["limits.connections: 4096 -> 9"], []),
        ({"policies": {"breaker": {"open_s": 3.0}}}, ["policies.breaker.open_s: 60.0 -> 3.0"], []),
        (
            {"state": {"url": "redis://u:secret@h:1", "namespace": "x"}},
            [],
            ['state.url: "none" -> "redis://***@h:1"', 'state.namespace: "default" -> "x"'],
        ),
        ({"admin": {"token_file": "/t"}}, ['admin.token_file: null -> "/t"'], []),
        ({"logging": {"level": "debug"}}, [], ['logging.level: "info" -> "debug"']),
        (
            {"models": [BASE["models"][1], {"name": "m", "endpoints": ["http://h:1", "http://h:9"]}]},
            ['models[m].endpoints: ["http://h:1"] -> ["http://h:1", "http://h:9"]'],
            [],
        ),
        (
            {"models": [BASE["models"][0], {"name": "o"}]},
            [f"models[n]: there -> {ABSENT}", f"models[o]: {ABSENT} -> there"],
            [],
        ),
        (
            {"models": [{**BASE["models"][0], "probe": {"path": "/p"}}, BASE["models"][1]]},
            ["models[m].probe: null -> there"],
            [],
        ),
        (
            {"models": [{**BASE["models"][0], "balancer": "keyed", "key": {"header": "x-key"}}, BASE["models"][1]]},
            ['models[m].balancer: "warm" -> "keyed"', "models[m].key: null -> there"],
            [],
        ),
        (
            {"policies": {"scoring": {"cpu_load": 0.1, "coefficients": {"mine": 0.5, "yours": 1}}}},
            [
                "policies.scoring.cpu_load: 0.0 -> 0.1",
                "policies.scoring.coefficients: {} -> {mine: 0.5, yours: 1.0}",
            ],
            [],
        ),
        (
            {"endpoints": [{"url": "http://h:3", "models": ["m@2"], "name": "e"}]},
            ['endpoints[http://h:3].models: ["m"] -> ["m@2"]', 'endpoints[http://h:3].name: "" -> "e"'],
            [],
        ),
        (
            {"listeners": [{"address": "127.0.0.1:2", "default_model": "m", "backlog": 5}, {"address": "127.0.0.1:3"}]},
            ['listeners[127.0.0.1:2].default_model: null -> "m"'],
            [
                f"listeners[127.0.0.1:1]: there -> {ABSENT}",
                f"listeners[127.0.0.1:3]: {ABSENT} -> there",
                "listeners[127.0.0.1:2].backlog: 4096 -> 5",
            ],
        ),
    ],
)
def test_each_class_of_field_goes_its_way(parts: dict[str, Any], applied: list[str], restart: list[str]) -> None:
    running, wanted = settings(), settings(**parts)
    merged = merge(running, wanted)
    assert (listed(merged.applied), listed(merged.restart)) == (applied, restart)
    if not restart:
        assert merged.settings == wanted
        assert merge(merged.settings, wanted).applied == ()
    if not applied:
        assert merged.settings == running
    assert listed(merge(merged.settings, wanted).restart) == restart


def test_listeners_stay_those_that_run_in_their_order_with_what_is_live_in_them() -> None:
    merged = merge(settings(), settings(listeners=[{"address": "127.0.0.1:2", "default_model": "m"}]))
    assert [(one.address, one.default_model) for one in merged.settings.listeners] == [
        ("127.0.0.1:1", None),
        ("127.0.0.1:2", "m"),
    ]


def test_the_same_configuration_has_the_same_revision_and_another_has_another() -> None:
    assert revision(settings()) == revision(settings())
    assert revision(settings()) != revision(settings(timeouts={"drain_s": 5.0}))
    assert revision(settings()).isalnum()


def test_every_field_says_when_it_takes_effect() -> None:
    for field in fields():
        if not field.section:
            assert field.reload in {one.value for one in Reload}, field.path


HTTP, GRPC = "127.0.0.1:1", "127.0.0.1:2"
STORE = {"url": "redis://h:1"}
NO_ENDPOINT = (
    "models[m].name: has no endpoint and never will: give it endpoints or dns, or set state.url for workers to come"
)


def two(**parts: Any) -> dict[str, Any]:
    """A configuration with two listeners that speak HTTP, and two models."""
    return {
        "listeners": [{"address": HTTP, "default_model": "m"}, {"address": GRPC, "default_model": "n"}],
        "endpoints": [],
        **parts,
    }


M, N = BASE["models"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (  # nothing of it can be taken over, or all of it
            two(),
            two(state=STORE),
            [],
        ),
        (two(), two(models=[M, {**N, "endpoints": ["http://h:7"]}]), []),
        (  # one does not touch the other
            two(),
            two(models=[M, {**N, "endpoints": ["http://h:7"]}], logging={"level": "debug"}),
            [],
        ),
        (
            two(),
            two(models=[{"name": "m"}, N], state=STORE),
            [NO_ENDPOINT],
        ),
        (
            two(state=STORE),
            two(models=[{"name": "m"}, N], state={"url": "redis://h:2", "namespace": "x"}),
            ["models[m].endpoints: none would be left until a restart puts state.url, state.namespace in force"],
        ),
        (two(state=STORE), two(models=[{"name": "m"}, N], state=STORE, logging={"level": "debug"}), []),
        (
            two(),
            two(
                listeners=[{"address": HTTP, "default_model": "m"}, {"address": GRPC, "protocol": "grpc"}],
                models=[M, {"name": "n", "endpoints": ["grpc://h:9"]}],
            ),
            [f"models[n].endpoints: none would be left that speaks http, as listeners[{GRPC}] does until a restart"],
        ),
        (  # what is taken out behind a listener that stays as it is, is meant to be
            two(),
            two(models=[{"name": "m", "endpoints": ["grpc://h:9"]}, N], logging={"level": "debug"}),
            [],
        ),
        (
            two(),
            two(listeners=[{"address": HTTP, "default_model": "m"}], models=[M]),
            [f"listeners[{GRPC}].default_model: no such model; declared are: m"],
        ),
        (  # an API that must not be open to everybody without a token is not, not even until the restart
            two(admin={"address": "0.0.0.0:9", "token_file": "/t"}),
            two(admin={"address": "127.0.0.1:9"}),
            ["admin.address: must be a loopback address (127.0.0.1 or [::1]), or admin.token_file must be set"],
        ),
    ],
)
def test_what_would_be_wrong_with_half_of_a_change(
    before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    running, wanted = settings(**before), settings(**after)
    assert list(would_break(running, wanted, merge(running, wanted))) == expected
