"""Whatever is nearly HTTP, in whatever pieces: nobody reads otherwise what passed, and nothing ends falsely.

``make fuzz`` runs the same for as long as one likes; what it finds becomes a case of the conformance tests' own corpus.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.telemetry.page import Page
from tests.fuzz import run
from tests.support.pages import begun_page

FUZZ = settings(max_examples=250, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 1 << 48)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with begun_page() as made:
        yield made


@FUZZ
@given(seed=SEEDS)
def test_requests_have_one_reading(page: Page, seed: int) -> None:
    run.requests(page, random.Random(seed))


@FUZZ
@given(seed=SEEDS)
def test_responses_have_one_reading(page: Page, seed: int) -> None:
    run.responses(page, random.Random(seed))
