"""What all tests share: which of them must run alone, which build they run on, and that properties have no deadline."""

from __future__ import annotations

import gc
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import settings

import router.cluster

# Servers of tests are forked from this process, and gRPC, where a test before loaded it, could hang the child there.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

HERE = Path(__file__).parent
ALONE = {"bench", "chaos"}
AFTERWARDS = ALONE | {"acceptance", "conformance"}
"""Where ``make test`` looks for what it runs after the rest: to collect all the others again would take longer."""

# No property here is about time: what one example takes on a busy machine fails none. Else as usual, or as in CI.
settings.register_profile("suite", settings.default, deadline=None)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compiled", action="store_true", help="the compiled build is under test (python -m tools.compiled test)"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """End at once where the build under test is not the one that was meant."""
    found = str(router.cluster.__file__)
    compiled = found.endswith(tuple(EXTENSION_SUFFIXES))
    if compiled != session.config.getoption("--compiled"):
        pytest.exit(f"router.cluster is {found}: {'' if compiled else 'not '}the compiled build", returncode=3)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as serial what measures, or drives a whole product and does not say that it may run beside others.

    ``make test`` runs that after the rest, one at a time, and before it what is marked roomy, three at a time.
    """
    for item in items:
        if item.get_closest_marker("beside"):
            continue
        roomy = bool(item.get_closest_marker("roomy"))
        if not roomy and (item.get_closest_marker("acceptance") or _folder(item.path) in ALONE):
            item.add_marker(pytest.mark.serial)
        if (roomy or item.get_closest_marker("serial")) and _folder(item.path) not in AFTERWARDS:
            raise pytest.UsageError(f"{item.nodeid} is to run after the rest, where make test looks for none such")


@cache
def _folder(path: Path) -> str:
    """Return in which folder here a module is."""
    return path.relative_to(HERE).parts[0]


def pytest_collection_finish() -> None:
    """Leave out of each full collection what lasts: nine thousand tests, a quarter of a second each time."""
    gc.collect()
    gc.freeze()
