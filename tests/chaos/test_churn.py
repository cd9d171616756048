"""A short churn, in every run of the tests; ``make soak`` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.churn import churn


@pytest.mark.roomy
@pytest.mark.timeout(110)
def test_after_churn_everything_is_as_it_was() -> None:
    lines: list[str] = []
    wrong = churn(6.0, wave=4000, report=lines.append)
    assert wrong == [], "\n".join(lines)
