from __future__ import annotations

import pytest

from router.model import State
from sidecar.upstreams.adapters import Answer, HttpReadiness


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_success_is_warm(status: int) -> None:
    signal = HttpReadiness().read(Answer(status))
    assert (signal.state, signal.reason) == (State.WARM, "")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "not ready (HTTP 400)"),  # Triton
        (503, "not ready (HTTP 503)"),  # everybody else
        (429, "not ready (HTTP 429)"),
        (500, "not ready (HTTP 500)"),
        (404, "check probe.path"),
        (405, "check probe.path"),
        (401, "does not let us ask"),
        (302, "a redirect is no answer"),
    ],
)
def test_every_other_status_is_not_ready_and_says_why(status: int, says: str) -> None:
    signal = HttpReadiness().read(Answer(status))
    assert signal.state is State.LOADING
    assert says in signal.reason


def test_no_answer_is_not_ready() -> None:
    signal = HttpReadiness().read(Answer(None, "refused"))
    assert (signal.state, signal.reason) == (State.LOADING, "no answer: refused")
