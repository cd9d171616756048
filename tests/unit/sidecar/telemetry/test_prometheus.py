from __future__ import annotations

import re
import tracemalloc
from math import inf, nan
from pathlib import Path

import pytest

from router.outcomes import Outcome
from sidecar.telemetry.families import FAMILIES
from sidecar.telemetry.prometheus import LINES, Exposition, Family, Kind, number

REQUESTS = Family("requests_total", Kind.COUNTER, "How many.\nSecond line.", ("model", "outcome"))
DURATION = Family("duration_seconds", Kind.HISTOGRAM, "How long.", ("model",))
UP = Family("up", Kind.GAUGE, "Whether.")
DOCUMENT = Path(__file__).parents[4] / "docs" / "observability.md"


def test_families_come_in_order_with_help_and_type_and_only_where_they_have_samples() -> None:
    out = Exposition((UP, REQUESTS, DURATION))
    out.add(REQUESTS, 3, "m", "ok")
    out.add(REQUESTS, 1, "m", "busy")
    out.add(UP, True)
    assert b"".join(out.pieces()).decode() == (
        "# HELP up Whether.\n# TYPE up gauge\nup 1\n"
        "# HELP requests_total How many.\\nSecond line.\n# TYPE requests_total counter\n"
        'requests_total{model="m",outcome="ok"} 3\nrequests_total{model="m",outcome="busy"} 1\n'
    )


def test_many_samples_come_in_the_order_they_were_added_and_wait_in_a_fraction_of_their_size() -> None:
    out = Exposition((UP, REQUESTS, DURATION))
    tracemalloc.start()
    try:
        for number_ in range(20_000):
            out.add(REQUESTS, number_, f"model-{number_ % 20}", f"endpoint-of-some-length-{number_}")
            if number_ % 100 == 0:
                out.add_histogram(DURATION, (0.1, 1.0), (1, 2, 3), 4, f"m{number_}")
        waiting = tracemalloc.get_traced_memory()[1]
        sizes = [len(piece) for piece in out.pieces()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 1_500_000
    assert max(sizes) < 128 * 1024
    assert waiting < 600_000
    assert peak < 800_000


@pytest.mark.parametrize("samples", [1, LINES - 1, LINES, LINES + 1, 3 * LINES])
def test_no_sample_is_lost_between_pieces(samples: int) -> None:
    out = Exposition((REQUESTS, UP))
    for number_ in range(samples):
        out.add(REQUESTS, number_, "m", "ok") if number_ % 2 else out.add_labelled(REQUESTS, number_, "a")
        out.add(UP, 1)
    lines = b"".join(out.pieces()).decode().splitlines()
    assert [int(line.rpartition(" ")[2]) for line in lines[2 : 2 + samples]] == list(range(samples))
    assert lines[2 + samples] == "# HELP up Whether."
    assert lines[4 + samples :] == ["up 1"] * samples


def test_label_values_are_escaped() -> None:
    out = Exposition((REQUESTS,))
    out.add(REQUESTS, 1, 'a"b\\c\nd', "ok")
    assert 'requests_total{model="a\\"b\\\\c\\nd",outcome="ok"} 1' in b"".join(out.pieces()).decode().splitlines()


def test_histogram_buckets_are_cumulative_and_end_in_infinity() -> None:
    out = Exposition((DURATION,))
    out.add_histogram(DURATION, (0.1, 1.0), (2, 0, 3), 4.25, "m")
    assert b"".join(out.pieces()).decode().splitlines()[2:] == [
        'duration_seconds_bucket{model="m",le="0.1"} 2',
        'duration_seconds_bucket{model="m",le="1"} 2',
        'duration_seconds_bucket{model="m",le="+Inf"} 5',
        'duration_seconds_sum{model="m"} 4.25',
        'duration_seconds_count{model="m"} 5',
    ]


def test_the_number_of_labels_must_fit() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Exposition((REQUESTS,)).add(REQUESTS, 1, "m")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (1.0, "1"), (0.25, "0.25"), (1e-06, "1e-06"), (inf, "+Inf"), (-inf, "-Inf"), (nan, "NaN")],
)
def test_numbers_are_spelled_as_the_format_wants(value: float, text: str) -> None:
    assert number(value) == text


def test_names_and_labels_keep_to_the_conventions() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert re.fullmatch(r"warmroute_[a-z_]+", family.name)
        assert family.name.endswith("_total") is (family.kind is Kind.COUNTER), family.name
        assert family.help.endswith(".")


def test_the_documentation_lists_exactly_the_metrics_there_are() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(warmroute_[a-z_]+)` \| (\w+) \|([^|]*)\| (.*) \|$", text, re.MULTILINE)
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), help_.replace("`", ""))
        for name, kind, labels, help_ in rows
        if not name.startswith("warmroute_worker_")  # a process of its own; tests/unit/worker/test_metrics.py
    }
    assert documented == {family.name: (family.kind.value, family.labels, family.help) for family in FAMILIES}


def test_the_alert_on_failed_requests_names_every_outcome_that_is_one() -> None:
    (pattern,) = re.findall(r'requests_total\{outcome=~"([^"]+)"\}', DOCUMENT.read_text(encoding="utf-8"))
    others = {  # fine, the caller's own doing, meant, or alerted on by themselves
        *("ok", "upstream_4xx", "bad_request", "target_too_long", "head_too_large", "body_too_large"),
        *("expectation_failed", "not_implemented", "http_version", "client_timeout", "client_abort", "no_route"),
        *("draining", "drain_cut", "fault", "tunnel_idle", "deadline_exceeded", "over_share"),
        *("degraded_cache", "degraded_static"),
    }
    assert {outcome.value for outcome in Outcome if not re.fullmatch(pattern, outcome.value)} == others
