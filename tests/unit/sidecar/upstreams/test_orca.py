from __future__ import annotations

import base64
import contextlib
import json
import struct
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import LoadReport
from sidecar.upstreams.metrics_page import INFINITE, NAN, NEGATIVE, NOT_A_NUMBER
from sidecar.upstreams.orca import (
    BINARY_FIELD,
    DUPLICATE,
    MALFORMED,
    MAX_BYTES,
    MAX_ENTRIES,
    OVER_LIMIT,
    REASONS,
    REPORT_FIELD,
    ReportError,
    parse,
    parse_fields,
    parse_message,
    with_zeros,
)


def double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def framed(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def entry(number: int, key: str, value: float) -> bytes:
    return framed(number, framed(1, key.encode()) + double(2, value))


def b64(raw: bytes) -> bytes:
    return base64.b64encode(raw)


FULL = double(1, 0.5) + double(2, 0.25) + b"\x18\x07" + entry(8, "num_requests_waiting", 3) + double(9, 0.75)


@pytest.mark.parametrize(
    ("value", "load"),
    [
        (b"TEXT cpu_utilization=0.3", LoadReport(0.3)),
        (b"TEXT cpu_utilization=0.3,mem_utilization=0.9", LoadReport(0.3, None, 1 - 0.9)),
        (b"text cpu_utilization:0.3", LoadReport(0.3)),
        (b"TEXT application_utilization=0.8,cpu_utilization=0.3", LoadReport(0.8)),
        (b"TEXT application_utilization=0,cpu_utilization=0.3", LoadReport(0.3)),
        (b"TEXT cpu_utilization=7.5", LoadReport(1.0)),
        (b"TEXT mem_utilization=1.5", LoadReport(None, None, 0.0)),
        (
            b"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=4,",
            LoadReport(None, 4, 0.75),
        ),
        (b"named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=2", LoadReport(None, 2, 0.5)),
        (
            b"TEXT named_metrics.kv_cache_utilization=0.5,named_metrics.max_token_capacity=9e9",
            LoadReport(None, None, 0.5),
        ),
        (b"TEXT named_metrics.num_requests_waiting=1e300", LoadReport(None, 1 << 53)),
        (b"TEXT some_other=1,rps_fractional=20,utilization.disk=0.5", LoadReport()),
        (b'JSON {"cpu_utilization": 0.3, "named_metrics": {"num_requests_waiting": 2}}', LoadReport(0.3, 2)),
        (b'JSON {"cpuUtilization": "0.3", "namedMetrics": {"num_queue_reqs": 2}}', LoadReport(0.3, 2)),
        (
            b'{"application_utilization": 1, "note": "x", "list": ["-1"], "more": {"a": "-1", "b": {"c": 1}}}',
            LoadReport(1.0),
        ),
        (b"BIN " + b64(FULL), LoadReport(0.75, 3, 0.75)),
        (b"BIN " + b64(FULL).rstrip(b"="), LoadReport(0.75, 3, 0.75)),
        (b"bin " + base64.urlsafe_b64encode(double(1, 0.3)), LoadReport(0.3)),
        (b"BIN " + b64(double(1, 0.3) + double(1, 0.4)), LoadReport(0.4)),  # the last counts, as protobuf has it
        (b"BIN " + b64(entry(8, "queue_depth", 1) + entry(8, "queue_depth", 2)), LoadReport(None, 2)),
        (b"BIN " + b64(framed(8, framed(1, b"queue_depth") + double(2, 1) + double(2, 2))), LoadReport(None, 2)),
        (b"BIN " + b64(double(1, 0.3) + b"\x7d\0\0\0\0" + framed(14, b"new")), LoadReport(0.3)),
    ],
)
def test_reports_are_read_in_every_form(value: bytes, load: LoadReport) -> None:
    assert parse(value).load() == load


def test_a_binary_report_has_a_field_of_its_own() -> None:
    assert parse_fields([(BINARY_FIELD, b64(FULL))]) == LoadReport(0.75, 3, 0.75)
    assert parse_fields([(REPORT_FIELD, b"TEXT cpu_utilization=0.5")]) == LoadReport(0.5)


MANY = b",".join(b"k%d=1" % index for index in range(MAX_ENTRIES + 1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"TEXT cpu_utilization=NaN", NAN),
        (b"TEXT cpu_utilization=0.1,mem_utilization=nan", NAN),
        (b"TEXT cpu_utilization=inf", INFINITE),
        (b"TEXT cpu_utilization=1e999", INFINITE),
        (b"TEXT cpu_utilization=-0.1", NEGATIVE),
        (b"TEXT some_other=-1", NEGATIVE),
        (b"TEXT cpu_utilization=x", NOT_A_NUMBER),
        (b"TEXT cpu_utilization=", NOT_A_NUMBER),
        (b"TEXT cpu_utilization=0.1,cpu_utilization=0.2", DUPLICATE),
        (b"TEXT named_metrics.a=0.1,named_metrics.a=0.1", DUPLICATE),
        (b"TEXT =1", MALFORMED),
        (b"TEXT named_metrics.=1", MALFORMED),
        (b"TEXT cpu_utilization", MALFORMED),
        (b"TEXT", MALFORMED),
        (b"", MALFORMED),
        (b"TEXT ,,", MALFORMED),
        (b"TEXT \xff=1", MALFORMED),
        (b"XML <cpu/>", MALFORMED),
        (b"TEXT " + MANY, OVER_LIMIT),
        (b"TEXT " + b"k" * 200 + b"=1", OVER_LIMIT),
        (b"TEXT " + b"named_metrics." + b"k" * 200 + b"=1", OVER_LIMIT),
        (b"x" * (MAX_BYTES + 1), OVER_LIMIT),
        (b'JSON {"cpu_utilization": NaN}', NAN),
        (b'JSON {"cpu_utilization": "NaN"}', NAN),
        (b'JSON {"cpu_utilization": Infinity}', INFINITE),
        (b'JSON {"cpu_utilization": -Infinity}', INFINITE),
        (b'JSON {"cpu_utilization": 1e999}', INFINITE),
        (b'JSON {"cpu_utilization": 1' + b"0" * 400 + b"}", INFINITE),
        (b'JSON {"named_metrics": {"a": -1}}', NEGATIVE),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": -1}}', NEGATIVE),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": {"b": [-0.5]}}}', NEGATIVE),
        (b'JSON {"cpu_utilization": 0.5, "list": [-1]}', NEGATIVE),
        (b'JSON {"cpu_utilization": 0.5, "some_other": -1}', NEGATIVE),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": 1e999}}', INFINITE),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": -Infinity}}', INFINITE),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": NaN}}', NAN),
        (b'JSON {"cpu_utilization": 0.5, "more": {"a": 1, "a": 1}}', DUPLICATE),
        (b'JSON {"cpu_utilization": 0.5, "named_metrics": {"a": 1}, "namedMetrics": {"a": 1}}', DUPLICATE),
        (b'JSON {"some_other": true}', NOT_A_NUMBER),
        (b'JSON {"cpu_utilization": true}', NOT_A_NUMBER),
        (b'JSON {"cpu_utilization": null}', NOT_A_NUMBER),
        (b'JSON {"cpu_utilization": [1]}', NOT_A_NUMBER),
        (b'JSON {"cpu_utilization": 0.1, "cpu_utilization": 0.2}', DUPLICATE),
        (b'JSON {"cpu_utilization": 0.1, "cpuUtilization": 0.2}', DUPLICATE),
        (b'JSON {"named_metrics": {"": 1}}', MALFORMED),
        (b'JSON {"": 1}', MALFORMED),
        (b"JSON {", MALFORMED),
        (b"JSON 3", MALFORMED),
        (b"JSON {}", MALFORMED),
        (b"JSON " + b"[" * 3000, MALFORMED),
        (b"BIN !!!!", MALFORMED),
        (b"BIN A", MALFORMED),
        (b"BIN ", MALFORMED),
        (b"BIN " + b64(double(1, nan)), NAN),
        (b"BIN " + b64(double(9, inf)), INFINITE),
        (b"BIN " + b64(double(7, -1.0)), NEGATIVE),
        (b"BIN " + b64(entry(8, "a", -1.0)), NEGATIVE),
        (b"BIN " + b64(double(1, -0.1) + double(1, 0.4)), NEGATIVE),  # of two that no reader would take
        (b"BIN " + b64(entry(8, "a", nan) + entry(8, "a", 2.0)), NAN),
        (b"BIN " + b64(double(1, 0.5) * (MAX_ENTRIES + 1)), OVER_LIMIT),
        (b"BIN " + b64(entry(8, "", 1.0)), MALFORMED),
        (b"BIN " + b64(double(1, 0.5)[:-1]), MALFORMED),
        (b"BIN " + b64(b"\x0b" + double(1, 0.5)), MALFORMED),
        (b"BIN " + b64(b"\x80" * 12), MALFORMED),
        (b"BIN " + b64(b"\x42\x7f"), MALFORMED),
        (b"BIN " + b64(framed(8, framed(1, b"\xff"))), MALFORMED),
        (b"BIN " + b64(b"".join(entry(8, f"k{index}", 1.0) for index in range(MAX_ENTRIES + 1))), OVER_LIMIT),
    ],
)
def test_what_makes_no_sense_is_refused_whole_with_its_reason(value: bytes, reason: str) -> None:
    with pytest.raises(ReportError) as caught:
        parse(value)
    assert caught.value.reason == reason
    assert reason in REASONS


def test_more_than_one_report_is_none() -> None:
    one = (REPORT_FIELD, b"TEXT cpu_utilization=0.5")
    with pytest.raises(ReportError) as caught:
        parse_fields([one, (BINARY_FIELD, b64(FULL))])
    assert caught.value.reason == DUPLICATE


@given(st.binary(max_size=200), st.sampled_from([b"", b"TEXT ", b"JSON ", b"BIN "]), st.booleans())
def test_no_bytes_raise_anything_else_and_no_load_leaves_its_bounds(noise: bytes, form: bytes, binary: bool) -> None:
    for value in (form + noise, form + b64(noise), form + b'{"cpu_utilization":' + noise + b"}"):
        with contextlib.suppress(ReportError):
            check(parse(value, binary=binary).load())


def check(load: LoadReport) -> None:
    assert load.utilization is None or 0 <= load.utilization <= 1
    assert load.free_memory_ratio is None or 0 <= load.free_memory_ratio <= 1
    assert load.queue_depth is None or 0 <= load.queue_depth <= 1 << 53


NAMES = st.sampled_from(["cpu_utilization", "mem_utilization", "application_utilization", "eps", "x"])
NUMBERS = {1: "cpu_utilization", 2: "mem_utilization", 9: "application_utilization", 7: "eps"}


@given(
    st.dictionaries(NAMES, st.floats(0, 1e6)),
    st.dictionaries(st.sampled_from(["num_requests_waiting", "y"]), st.floats(0, 1e6)),
)
def test_all_forms_of_one_report_say_the_same(scalars: dict[str, float], named: dict[str, float]) -> None:
    scalars = {name: value for name, value in scalars.items() if name in NUMBERS.values()}
    if not scalars and not named:
        return
    text = [f"{name}={value!r}" for name, value in scalars.items()]
    text += [f"named_metrics.{name}={value!r}" for name, value in named.items()]
    raw = b"".join(double(number, scalars[name]) for number, name in NUMBERS.items() if name in scalars)
    raw += b"".join(entry(8, name, value) for name, value in named.items())
    loads = [
        parse(b"TEXT " + ",".join(text).encode()).load(),
        parse(b"JSON " + json.dumps({**scalars, "named_metrics": named}).encode()).load(),
        parse(b"BIN " + b64(raw)).load(),
        parse(b64(raw), binary=True).load(),
    ]
    assert loads == [loads[0]] * 4
    check(loads[0])


@given(st.floats(), st.sampled_from([1, 2, 6, 7, 9]))
def test_a_double_that_is_no_use_refuses_the_report(value: float, number: int) -> None:
    raw = b"BIN " + b64(double(1, 0.5) + entry(8, "z", 1.0) + double(number, value))
    if value >= 0 and value != inf:
        check(parse(raw).load())
    else:
        with pytest.raises(ReportError):
            parse(raw)


def test_what_a_stream_tells_no_more_is_zero() -> None:
    told: set[str] = set()
    memory = double(2, 0.75)
    loads = [with_zeros(parse_message(raw), told).load() for raw in (memory, b"", double(1, 0.5), memory)]
    assert loads == [
        LoadReport(free_memory_ratio=0.25),
        LoadReport(0.0, free_memory_ratio=1.0),
        LoadReport(0.5, free_memory_ratio=1.0),
        LoadReport(0.0, free_memory_ratio=0.25),
    ]
