"""The sums of the statistics extension."""

from __future__ import annotations

from worker.statistics import MAX_BATCH_SIZES, Statistics, Times


def test_sums() -> None:
    now = [100.0]
    told = Statistics(lambda: now[0])
    assert told.shown("m", "1")["last_inference"] == 0
    told.began()
    told.executed()
    told.succeeded(Times(0.001, 0.002, 0.003, 0.004))
    told.executed()
    told.succeeded(Times(0.001, 0.002, 0.003, 0.004), batch_size=4)
    told.failed(0.5)
    shown = told.shown("m", "1")
    compute = {
        "compute_input": {"count": 1, "ns": 2_000_000},
        "compute_infer": {"count": 1, "ns": 3_000_000},
        "compute_output": {"count": 1, "ns": 4_000_000},
    }
    assert shown == {
        "name": "m",
        "version": "1",
        "last_inference": 100_000,
        "inference_count": 2,
        "execution_count": 2,
        "inference_stats": {
            "success": {"count": 2, "ns": 20_000_000},
            "fail": {"count": 1, "ns": 500_000_000},
            "queue": {"count": 2, "ns": 2_000_000},
            "compute_input": {"count": 2, "ns": 4_000_000},
            "compute_infer": {"count": 2, "ns": 6_000_000},
            "compute_output": {"count": 2, "ns": 8_000_000},
        },
        "batch_stats": [{"batch_size": 1, **compute}, {"batch_size": 4, **compute}],
    }


def test_sizes_of_batches_are_bounded() -> None:
    told = Statistics(lambda: 0.0)
    for size in range(1, MAX_BATCH_SIZES + 3):
        told.succeeded(Times(0, 0, 0, 0), size)
    shown = told.shown("m", "1")
    assert len(shown["batch_stats"]) == MAX_BATCH_SIZES
    assert shown["inference_count"] == MAX_BATCH_SIZES + 2
