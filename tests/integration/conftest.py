"""What modules here share: a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running store of the test's own, empty."""
    one = RedisServer(tmp_path)
    one.start()
    try:
        yield one
    finally:
        one.stop()
