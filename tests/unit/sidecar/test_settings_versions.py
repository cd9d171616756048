"""What a configuration says of versions: how it reaches the router, and each thing that makes no sense, by its text."""

from __future__ import annotations

import pytest

from router.policy import MirrorPolicy, RolloutPolicy, ServePolicy, ServeRule, VersionShare
from sidecar.config.load import parse_settings
from sidecar.settings import model_policies
from tests.support.settings_texts import refused

SPLIT = 'serve: split, split: [{version: "1", weight: 95}, {version: "2", weight: 5}]'


def text_of(versions: str, endpoints: str = "'http://w:1'") -> bytes:
    return f"""version: 1
listeners: [{{address: 'h:1'}}, {{address: 'h:2', protocol: grpc}}]
models: [{{name: m, endpoints: [{endpoints}, 'grpc://v:1'], versions: {{{versions}}}}}, {{name: n, endpoints: ['http://n:1']}}]
""".encode()


@pytest.mark.parametrize(
    ("versions", "policy"),
    [
        ("", ServePolicy()),
        ("serve: any", ServePolicy()),
        ("serve: latest", ServePolicy(ServeRule.LATEST)),
        ("serve: v1.2-rc.1", ServePolicy(ServeRule.PINNED, version="v1.2-rc.1")),
        (
            SPLIT + ", key: {header: X-User}, mirror: {version: '3', share: 0.1}",
            ServePolicy(
                ServeRule.SPLIT,
                shares=(VersionShare("1", 95.0), VersionShare("2", 5.0)),
                header="X-User",
                mirror=MirrorPolicy("3", 0.1, 16, 30.0),
            ),
        ),
        (
            SPLIT + ", rollout: {version: '1', steps: [10, 100], interval_s: 5, max_p95_ratio: 2}",
            ServePolicy(
                ServeRule.SPLIT,
                shares=(VersionShare("1", 95.0), VersionShare("2", 5.0)),
                rollout=RolloutPolicy("1", (10.0, 100.0), 5.0, 100, 0.01, 2.0, 0.01),
            ),
        ),
    ],
)
def test_it_reaches_the_router(versions: str, policy: ServePolicy) -> None:
    loaded = parse_settings(text_of(versions), "w.yaml")
    assert not loaded.warnings
    model = model_policies(loaded.settings)[0]
    assert model.serve == policy


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        (
            "serve: split",
            'serve: "split": needs split: set split, for example [{version: "1", weight: 95}]',
        ),
        (
            "serve: split, split: [{version: '1', weight: 0}]",
            "split: a list: must give at least one version a weight over 0",
        ),
        (
            "serve: split, split: [{version: '1', weight: 1}, {version: '1', weight: 2}]",
            'split[1].version: "1": already the version of split[0]: name each once',
        ),
        ("serve: split, split: [{version: 1, weight: 1}]", "split[0].version: 1: must be text: put it in quotes"),
        ("serve: split, split: [{version: '1', weight: -1}]", "split[0].weight: -1: must be at least 0"),
        (
            "serve: split, split: [" + ", ".join(f"{{version: '{n}', weight: 1}}" for n in range(9)) + "]",
            "split: a list: must name at most 8 versions",
        ),
        ("serve: a/b", 'serve: "a/b": must be 1 to 128 characters without spaces, slashes and @'),
        (
            SPLIT + ", key: {header: 'x y'}",
            'key.header: "x y": must be a field name: 1 to 64 letters, digits or hyphens',
        ),
        (
            SPLIT + ", key: {header: x-request-id}",
            'key.header: "x-request-id": says nothing of who asks: choose another field, for example x-session-id',
        ),
        ("serve: latest, rollout: {}", "rollout: an empty mapping: needs serve: split; serve is latest"),
        (
            SPLIT + ", rollout: {steps: [5, 50]}",
            "rollout.steps: a list: must rise to 100, in 2 to 16 steps, for example [5, 25, 50, 100]",
        ),
        (
            SPLIT + ", rollout: {steps: [100]}",  # it would be promoted without a look
            "rollout.steps: a list: must rise to 100, in 2 to 16 steps, for example [5, 25, 50, 100]",
        ),
        (
            SPLIT + ", rollout: {steps: [50, 5, 100]}",
            "rollout.steps: a list: must rise to 100, in 2 to 16 steps, for example [5, 25, 50, 100]",
        ),
        (SPLIT + ", rollout: {steps: [0, 100]}", "rollout.steps[0]: 0: must be greater than 0"),
        (SPLIT + ", rollout: {version: '3'}", 'rollout.version: "3": must be one of the split: 1, 2'),
        (
            "serve: split, split: [{version: '1', weight: 0}, {version: '2', weight: 5}], rollout: {}",
            (
                "rollout: an empty mapping: needs another version than 2 with a weight over 0: "
                "there is nothing to compare it with"
            ),
        ),
        (SPLIT + ", rollout: {max_p95_ratio: 0.5}", "rollout.max_p95_ratio: 0.5: must be at least 1"),
        ("mirror: {version: '2', share: 1.5}", "mirror.share: 1.5: must be at most 1"),
        ("mirror: {version: '2', most: 0}", "mirror.most: 0: must be at least 1"),
        (
            "serve: '2', mirror: {version: '2'}",
            'mirror.version: "2": takes all requests that name no version already: name another, or drop it',
        ),
        (
            "serve: split, split: [{version: '1', weight: 0}, {version: '2', weight: 5}], mirror: {version: '2'}",
            'mirror.version: "2": takes all requests that name no version already: name another, or drop it',
        ),
        ("mirror: {share: 1}", 'mirror.version: missing: add "version" (version, as its workers report it)'),
    ],
)
def test_what_makes_no_sense(versions: str, problem: str) -> None:
    (found,) = refused(text_of(versions))
    assert found.partition(" models[0].versions.")[2] == problem


@pytest.mark.parametrize(
    ("versions", "endpoints", "warning"),
    [
        (
            "serve: latest, key: {header: x-user}",
            "'http://w:1'",
            "key: a mapping: has an effect in a split only, and serve is latest: one by command goes by it, too",
        ),
        (
            "split: [{version: '1', weight: 1}]",
            "'http://w:1'",
            "split: a list: has no effect while serve is any: set serve: split",
        ),
        (
            "serve: Latest",
            "'http://w:1'",
            'serve: "Latest": is taken as the name of a version: the rule is written latest',
        ),
    ],
)
def test_what_has_no_effect(versions: str, endpoints: str, warning: str) -> None:
    found = parse_settings(text_of(versions, endpoints), "w.yaml").warnings
    assert [str(one).partition(" models[0].versions.")[2] for one in found if ".versions." in str(one)] == [warning]
