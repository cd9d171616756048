"""Calls that block, beside the loop. Asyncio's own threads are waited for at a program's end, these are not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Begin a call in a thread of its own, and return its future; who gives that up leaves the call to its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # where nobody waits, nobody is told

    def returned(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def raised(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    def work() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, it is for who waits
                loop.call_soon_threadsafe(raised, error)
            else:
                loop.call_soon_threadsafe(returned, result)

    Thread(target=work, daemon=True).start()
    return future
