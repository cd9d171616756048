from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router.urls import MASK
from sidecar.telemetry.logs import MAX_VALUE_CHARS, Throttle, get_log, setup_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("warmroute").setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_names_time_level_process_component_event_and_fields(stream: io.StringIO) -> None:
    setup_logging("json", "info", "data-0", stream)
    get_log("data").info("listener.open", address="127.0.0.1:8080", backlog=4096)
    (line,) = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "process": "data-0",
        "component": "data",
        "event": "listener.open",
        "address": "127.0.0.1:8080",
        "backlog": 4096,
    }


def test_below_the_level_nothing_is_written(stream: io.StringIO) -> None:
    setup_logging("json", "warning", "control", stream)
    log = get_log("store")
    log.debug("a")
    log.info("b")
    log.warning("c")
    assert [line["event"] for line in lines(stream)] == ["c"]


def test_text_line_is_readable_and_keeps_to_one_line(stream: io.StringIO) -> None:
    setup_logging("text", "info", "control", stream)
    get_log("store").warning("store.bad_record", id="w1", detail="two\nlines and spaces", count=3)
    (line,) = stream.getvalue().splitlines()
    assert line.endswith('warning control    store.bad_record id=w1 detail="two\\nlines and spaces" count=3')


@pytest.mark.parametrize("name", ["password", "token", "Authorization", "client_secret"])
def test_fields_named_like_a_secret_are_masked(stream: io.StringIO, name: str) -> None:
    setup_logging("json", "info", "control", stream)
    get_log("x").info("e", **{name: "hunter2"})
    (line,) = lines(stream)
    assert line[name] == MASK


def test_credentials_in_urls_are_masked_wherever_they_stand(stream: io.StringIO) -> None:
    setup_logging("json", "info", "control", stream)
    nested = {"urls": ["rediss://:hunter2@h", "redis://:hunter2@X@h"], "text": "at redis://h?password=hunter2 now"}
    get_log("x").info("e", url="redis://u:hunter2@h:1/0", nested=nested, token_file="run/t")
    assert "hunter2" not in stream.getvalue()
    (line,) = lines(stream)
    assert line["url"] == f"redis://{MASK}@h:1/0"
    assert line["token_file"] == "run/t"
    assert line["nested"]["text"] == "at redis://h now"


def test_an_exception_comes_with_its_traceback_and_without_credentials(stream: io.StringIO) -> None:
    setup_logging("json", "info", "control", stream)
    try:
        raise ValueError("redis://u:hunter2@h")
    except ValueError:
        get_log("x").error("e", exc_info=True)
    (line,) = lines(stream)
    assert "ValueError" in line["exception"]
    assert "hunter2" not in line["exception"]


def test_long_values_are_cut_and_reserved_names_keep_their_meaning(stream: io.StringIO) -> None:
    setup_logging("json", "info", "control", stream)
    get_log("x").info("e", text="x" * 10_000, level="mine")
    (line,) = lines(stream)
    assert len(line["text"]) == MAX_VALUE_CHARS + 1
    assert (line["level"], line["level_"]) == ("info", "mine")


def test_other_libraries_lines_take_the_same_shape(stream: io.StringIO) -> None:
    setup_logging("json", "info", "control", stream)
    logging.getLogger("aiohttp.access").warning("GET %s", "/")
    (line,) = lines(stream)
    assert (line["component"], line["event"], line["message"]) == ("aiohttp.access", "library.message", "GET /")


def test_throttle_lets_one_through_per_interval_and_counts_the_rest() -> None:
    throttle = Throttle(10.0)
    assert throttle.admit(100.0) == 0
    assert throttle.admit(101.0) is None
    assert throttle.admit(109.9) is None
    assert throttle.admit(110.0) == 2
    assert throttle.admit(121.0) == 0


def test_every_event_that_is_documented_is_logged() -> None:
    text = (ROOT / "docs" / "observability.md").read_text().partition("| event | component | when |")[2]
    rows = re.findall(r"^\| (`[a-z_]+\..*?`) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(documented) > 80
    sources = [*(ROOT / "sidecar").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]
    written = {name for path in sources for name in re.findall(r'"([a-z_]+\.[a-z_]+)"', path.read_text())}
    assert documented - written == set()
