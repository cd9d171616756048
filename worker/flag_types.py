"""What the values of a worker's flags look like: each returns the value, or says what was expected (argparse).

Raises ``argparse.ArgumentTypeError`` where the text is no such value.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from router.urls import check_address
from worker.control import LEAST_POLL_S
from worker.execution.queues import MAX_WEIGHT
from worker.serving.terms import MAX_TENANT_CHARS, TENANT_HEADER
from worker.state_address import SCHEMES
from worker.store import MAX_VERSIONS, NAME, VERSION, Versions

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_THREADS = 1024
MAX_SECONDS = 86_400_000
"""The largest number of seconds, or of milliseconds: a thousand days, or one."""
_FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def name(text: str) -> str:
    """Return the name of a model."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return text


def startup(text: str) -> str:
    """Return the name of a model, or ``*`` for all."""
    return text if text == "*" else name(text)


def pause(text: str) -> float:
    """Return seconds between two looks at a repository."""
    return number(LEAST_POLL_S, MAX_SECONDS)(text)


def versions(text: str) -> Versions:
    """Return which versions of a model are served."""
    if text in ("latest", "all"):
        return Versions(1 if text == "latest" else 0)
    kind, _, count = text.partition(":")
    if kind == "latest" and re.fullmatch("[1-9][0-9]?", count) and int(count) <= MAX_VERSIONS:
        return Versions(int(count))
    named = tuple(dict.fromkeys(text.split(",")))
    if len(named) <= MAX_VERSIONS and all(VERSION.fullmatch(version) for version in named):
        return Versions(named=named)
    raise argparse.ArgumentTypeError(
        f"{text!r}: expected latest, latest:N, all, or numbers such as 1,3; at most {MAX_VERSIONS} versions"
    )


def id_(text: str) -> str:
    """Return the id of a worker or of an instance."""
    if not _ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return text


def namespace(text: str) -> str:
    """Return the name of a namespace, or of a group."""
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 64 of A-Z a-z 0-9 . _ -")
    return text


def listen(text: str) -> tuple[str, int]:
    """Return a host and a port."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9001 or [::1]:9001")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_here(text: str) -> tuple[str, int]:
    """Return a host of the loopback network and a port."""
    host, port = listen(text)
    if not (host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host)):
        raise argparse.ArgumentTypeError(f"{text!r}: the pages ask for no password; use a loopback address")
    return host, port


def ratio(text: str) -> float:
    """Return a part, above 0 and up to 1."""
    return number(0, 1, above=True)(text)


def advertised(text: str, scheme: str = "http") -> str:
    """Return the URL of a worker."""
    address = text.removesuffix("/")
    try:
        check_address(address)
    except ValueError:
        address = ""
    if not address.startswith(f"{scheme}://"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {scheme}://HOST:PORT")
    return address


def state(text: str) -> str:
    """Return the URL of a shared state, or ``none``."""
    parts = urlsplit(text)
    place = parts.netloc.rpartition("@")[
        2
    ]  # of a socket none: clients would pass over the first part of a relative path
    if text != "none" and (parts.scheme not in SCHEMES or (parts.scheme == "unix" and place)):
        raise argparse.ArgumentTypeError("expected redis://, rediss:// or unix:///PATH, or none")
    return text


def pool(text: str) -> tuple[int, int]:
    """Return the least and the most threads of a pool."""
    found = re.fullmatch(r"([0-9]{1,4})\.\.([0-9]{1,4})", text)
    least, most = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= least < most <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected MIN..MAX, as 4..16; from 1 to {MAX_THREADS}")
    return least, most


def queue(text: str) -> int | str:
    """Return how many may wait, or ``pool``."""
    return text if text == "pool" else count(0, 1 << 20)(text)


def header(text: str) -> str:
    """Return the name of a field."""
    if not _FIELD.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the name of a field, such as {TENANT_HEADER}")
    return text


def weight(text: str) -> tuple[str, float]:
    """Return a tenant and its weight."""
    tenant, equals, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not equals or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT or not 1 <= len(tenant) <= MAX_TENANT_CHARS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected TENANT=W, the weight from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}, as gold=4"
        )
    return tenant, weight


def count(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number between two bounds, both included."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected a whole number from {least} to {most}")
        return int(text)

    return read


def number(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """Return what reads a number between two bounds, both included, but ``least`` where it is to be ``above`` it.

    What is not a number (``nan``), or is none that ends (``inf``), lies between no two.
    """
    expected = f"above {least:.15g}, up to {most:.15g}" if above else f"from {least:.15g} to {most:.15g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or (above and value == least):
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected a number {expected}")
        return value

    return read


def seconds(text: str) -> float:
    """Return a number of seconds, or of milliseconds, from 0."""
    return number(0, MAX_SECONDS)(text)
