"""What all tests share: which of them must run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = (HERE / "bench", HERE / "conformance")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as serial what measures or drives a whole product; ``make test`` runs that after the rest, one at a time."""
    for item in items:
        if item.get_closest_marker("acceptance") or any(folder in item.path.parents for folder in ALONE):
            item.add_marker(pytest.mark.serial)
