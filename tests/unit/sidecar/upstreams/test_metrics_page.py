from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.upstreams.metrics_page import (
    INFINITE,
    MAX_VALUE,
    NAN,
    NEGATIVE,
    NOT_A_NUMBER,
    OVER_LIMIT,
    PAGE_BYTES,
    PAGE_LINES,
    SERIES,
    Series,
    mean,
    number,
    read_page,
    total,
)

NAMES = frozenset({"m:queue", "m_used"})


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m:queue 3", (), 3.0),
        ("m:queue\t3.0e0  ", (), 3.0),
        ("m:queue 3 1712345678000", (), 3.0),
        ("m:queue 3\r", (), 3.0),
        ("m:queue{} 3", (), 3.0),
        ('m:queue{a="b",c="d"} 3', (("a", "b"), ("c", "d")), 3.0),
        ('m:queue{ a = "b" , } 3', (("a", "b"),), 3.0),
        ('m:queue{a="b"}3', (("a", "b"),), 3.0),
        ('m:queue{a="}\\"\\\\ \\n{"} 3', (("a", '}"\\ \n{'),), 3.0),
        ('m:queue{a="b"} 3 # {trace_id="x"} 9', (("a", "b"),), 3.0),
        ("m:queue +3", (), 3.0),
        ("m:queue .5", (), 0.5),
        ("m:queue -0", (), 0.0),
    ],
)
def test_lines_are_read_in_every_spelling(line: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
    page = read_page(f"# HELP m:queue x\n# TYPE m:queue gauge\n{line}\n".encode(), NAMES)
    assert page.series == {"m:queue": [Series(labels, value)]}
    assert not page.refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", NAN),
        ("nan", NAN),
        ("+Inf", INFINITE),
        ("-Inf", INFINITE),
        ("1e999", INFINITE),
        ("-1", NEGATIVE),
        ("-1e-300", NEGATIVE),
        ("x", NOT_A_NUMBER),
        ("1_000", NOT_A_NUMBER),
        ("0x10", NOT_A_NUMBER),
        ("1e", NOT_A_NUMBER),
        ("1.2.3", NOT_A_NUMBER),
        ("9" * 65, NOT_A_NUMBER),
        ("\N{ARABIC-INDIC DIGIT THREE}", NOT_A_NUMBER),
    ],
)
def test_a_value_that_is_no_use_is_refused_and_counted(text: str, why: str) -> None:
    page = read_page(f"m:queue {text}\nm_used 4\n".encode(), NAMES)
    assert page.series == {"m_used": [Series((), 4.0)]}
    assert page.refused == {why: 1}


def test_of_what_is_added_up_one_value_that_was_refused_leaves_nothing() -> None:
    page = read_page(b'm:queue{engine="0"} NaN\nm:queue{engine="1"} 2\nm_used 4\n', NAMES)
    assert page.of(("m:queue", "m_used")) == [Series((("engine", "1"),), 2.0)]
    assert page.whole(("m:queue", "m_used")) == []
    assert page.whole(("other", "m_used")) == [Series((), 4.0)]


@pytest.mark.parametrize("line", ["m:queues 3", " m:queue 3", "#m:queue 3", "m:queue", 'm:queue{a="b 3', "m:queue{3"])
def test_what_is_not_a_line_of_a_name_asked_for_is_passed_over(line: str) -> None:
    page = read_page(f"{line}\nm_used 1\n".encode(), NAMES)
    assert (page.series, dict(page.refused)) == ({"m_used": [Series((), 1.0)]}, {})


def test_a_page_is_read_up_to_its_limits() -> None:
    long = read_page(b"m_used 1\n" * (SERIES + 5), NAMES)
    assert (len(long.series["m_used"]), long.refused) == (SERIES, {OVER_LIMIT: 1})
    many = read_page(b"x 1\n" * PAGE_LINES + b"m_used 1\n", NAMES)
    assert (many.series, many.refused) == ({}, {OVER_LIMIT: 1})
    large = read_page(b"m_used 1\n" + b"x" * PAGE_BYTES + b"\nm_used 2\n", NAMES)
    assert (large.series, large.refused) == ({"m_used": [Series((), 1.0)]}, {OVER_LIMIT: 1})


def test_the_sum_of_the_largest_page_is_finite() -> None:
    page = read_page(b"".join(b'm_used{a="%d"} 1.7e308\n' % one for one in range(SERIES)), NAMES)
    assert total(page.series["m_used"]) == pytest.approx(SERIES * MAX_VALUE)


def test_of_a_page_that_is_cut_its_last_line_does_not_count() -> None:
    page = read_page(b"m:queue 1\nm_used 12", NAMES, cut=True)
    assert page.series == {"m:queue": [Series((), 1.0)]}


@given(st.binary(max_size=300))
def test_nothing_that_is_no_metrics_page_raises(noise: bytes) -> None:
    page = read_page(b"m_used{" + noise + b"\nm_used " + noise, NAMES)
    assert all(0 <= one.value < inf for series in page.series.values() for one in series)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_finite_and_not_negative_or_refused(value: float) -> None:
    read, why = number(repr(value))
    if value >= 0 and value != inf:
        assert (read, why) == (value, "")
    else:
        assert (read, why) == (0.0, NAN if value != value else NEGATIVE if -inf < value < 0 else INFINITE)
    assert number(repr(nan)) == (0.0, NAN)


def series(*rows: tuple[float, dict[str, str]]) -> list[Series]:
    return [Series(tuple(labels.items()), value) for value, labels in rows]


def test_ranks_of_one_engine_count_once_and_engines_add_up() -> None:
    rows = series(
        (2, {"model_name": "m", "dp_rank": "0", "tp_rank": "0"}),
        (3, {"model_name": "m", "dp_rank": "0", "tp_rank": "1"}),
        (4, {"model_name": "m", "dp_rank": "1", "tp_rank": "0"}),
        (9, {"model_name": "m", "dp_rank": "0", "tp_rank": "0", "priority": "7"}),
    )
    assert total(rows) == 7
    assert mean(rows) == 3.5
    assert (total([]), mean([])) == (None, None)
