from __future__ import annotations

import io
import json
from datetime import UTC, datetime

from worker.log import EventLog

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_json_is_one_object_a_line() -> None:
    out = io.StringIO()
    log = EventLog(out, clock=lambda: AT)
    log.info("a.b", n=1, text="x\ny")
    log.error("c")
    first, second = out.getvalue().splitlines()
    assert json.loads(first) == {
        "ts": "2026-01-02T03:04:05.678Z",
        "level": "info",
        "event": "a.b",
        "n": 1,
        "text": "x\ny",
    }
    assert json.loads(second)["level"] == "error"


def test_text_is_for_people() -> None:
    out = io.StringIO()
    EventLog(out, json=False, clock=lambda: AT).warning("a.b", n=1)
    assert out.getvalue() == "03:04:05 warning a.b n=1\n"


def test_a_reader_that_is_gone_stops_nothing() -> None:
    out = io.StringIO()
    log = EventLog(out)
    out.close()
    log.info("a")
    assert out.closed
