from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime
from types import SimpleNamespace

from tests.support.worker_parts import ReadableLog
from worker.log import EVERY_S, MAX_LOGGERS, EventLog, LibraryLog, Unraisable

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


def test_what_is_no_utf8_is_escaped_and_nothing_is_lost() -> None:
    for json_lines in (True, False):
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        EventLog(out, json=json_lines, clock=lambda: AT).warning("a.b", file="caf\udce9", more=[{"n\udce9": "é"}])
        out.seek(0)
        line = out.read()
        assert "caf\\udce9" in (json.loads(line)["file"] if json_lines else line)
        assert json_lines is False or json.loads(line)["more"] == [{"n\\udce9": "é"}]


def test_a_reader_that_is_gone_stops_nothing() -> None:
    out = io.StringIO()
    log = EventLog(out)
    out.close()
    log.info("a")
    assert out.closed


def complaint(name: str, text: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    raised = None if error is None else (type(error), error, None)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, text, arguments, raised)


def test_what_libraries_log_is_an_event_and_no_more_than_one_in_a_while() -> None:
    log, now = ReadableLog(), [100.0]
    libraries = LibraryLog(log, lambda: now[0])
    libraries.handle(complaint("a.server", "of %s", "w\nx", error=ValueError("two\nlines")))
    for _ in range(3):
        libraries.handle(complaint("a.server", "again"))
    libraries.handle(complaint("b", "two %s", 1, 2))
    now[0] += EVERY_S
    libraries.handle(complaint("a.server", "later"))
    told = [{name: row[name] for name in row if name not in ("ts", "event", "level")} for row in log.events()]
    assert told == [
        {"logger": "a.server", "message": "of w x", "error": "ValueError: two lines"},
        {"logger": "b", "message": "two %s"},
        {"logger": "a.server", "message": "later", "dropped": 3},
    ]
    assert {row["event"] for row in log.events()} == {"library.log"}


def test_the_loggers_of_libraries_are_bounded() -> None:
    log = ReadableLog()
    libraries = LibraryLog(log, lambda: 0.0)
    for number in range(MAX_LOGGERS + 10):
        libraries.handle(complaint(f"n{number}", "x"))
    assert len(log.events()) == MAX_LOGGERS + 1
    assert log.events()[-1]["logger"] == "others"


def test_what_can_be_raised_nowhere_is_an_event_and_no_memory_is_none() -> None:
    log, logger = ReadableLog(), logging.getLogger("python")
    libraries, unraisable = LibraryLog(log), Unraisable()
    logger.addHandler(libraries)
    try:
        for error in (MemoryError(), OSError("odd")):
            told = SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=None, err_msg=None, object=None)
            unraisable.hook(told)
        assert log.events("library.log") == []
        unraisable.look()
    finally:
        logger.removeHandler(libraries)
    (event,) = log.events("library.log")
    assert (event["message"], event["error"]) == ("an error that could be raised nowhere", "OSError: odd")
