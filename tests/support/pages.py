"""A page of metrics, as a data process has one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar.telemetry.page import Page, create

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def begun_page(now: float = 0.0) -> Iterator[Page]:
    """Make one that counts for this process from ``now`` on; it is unmapped at the end."""
    fd = create("test")
    page = Page(fd)
    page.begin(os.getpid(), now)
    try:
        yield page
    finally:
        page.close()
        os.close(fd)
