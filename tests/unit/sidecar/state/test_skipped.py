"""What the log says of records that were skipped: each reason for itself, all of them, in one line each few seconds."""

from __future__ import annotations

import pytest

from router.policy import FreshnessPolicy
from router.wire import MALFORMED, OVER_LIMIT
from sidecar.settings import StateStore
from sidecar.state.store import LOG_EVERY_S, RedisSource
from sidecar.state.view import MAX_COMPLAINTS


def test_a_line_tells_of_all_that_was_skipped_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    source = RedisSource(StateStore(), FreshnessPolicy(), clock=lambda: now, rng=lambda: 0.5)

    def skip(reason: str, *names: str) -> None:
        for name in names:
            source.view._complain(reason, name)
        source._take(())

    def said() -> list[tuple[str, int, list[str]]]:
        lines = [vars(line)["warmroute_fields"] for line in caplog.records if line.getMessage() == "store.bad_record"]
        caplog.clear()
        return [(line["reason"], line["skipped"], line["details"]) for line in lines]

    skip(MALFORMED, "a", "b")
    assert said() == [(MALFORMED, 2, ["a", "b"])]
    skip(MALFORMED, "c")
    skip(MALFORMED, "d", "d")
    skip(OVER_LIMIT, "e")
    source._check()
    assert said() == [(OVER_LIMIT, 1, ["e"])]
    now += LOG_EVERY_S
    source._check()
    assert said() == [(MALFORMED, 3, ["c", "d"])]
    now += LOG_EVERY_S
    source._check()
    assert said() == []
    skip(MALFORMED, *map(str, range(MAX_COMPLAINTS + 5)))
    assert [(count, len(details)) for _, count, details in said()] == [(MAX_COMPLAINTS + 5, MAX_COMPLAINTS)]
