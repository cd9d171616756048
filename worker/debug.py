"""Pages that show what a worker's process does: its tasks, its memory, where its time goes.

They are served on an address of their own (``--debug-listen``), which must be a loopback one. A sidecar on the same
host passes on what it is asked, so on the worker's own address a caller's address would say nothing of who asks. Every
page is bounded in size and time, and those that measure run one at a time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from router.urls import is_loopback_name
from worker import json_text
from worker.alarms import heap_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from aiohttp.typedefs import Handler

    from worker.alarms import Alarms

BACKLOG = 16
MOST_S = 60.0
DEFAULT_S = 5.0
DEFAULT_HZ, MOST_HZ = 100, 1000
MOST_STACKS = 10_000
MOST_DEPTH = 100
MOST_ROWS = 1000
DEFAULT_ROWS = 50
TASK_DEPTH = 8
OTHER = "(other)"


class DebugPages:
    """The pages' handlers."""

    def __init__(self, alarms: Alarms, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        self._alarms = alarms
        self._clock = clock
        self._measuring = False

    def application(self) -> web.Application:
        """Return the application that serves the pages."""
        app = web.Application(middlewares=[_same_host], client_max_size=1)
        app.router.add_get("/debug/tasks", self.tasks)
        app.router.add_get("/debug/memory", self.memory)
        app.router.add_get("/debug/profile", self.profile)
        return app

    async def tasks(self, request: web.Request) -> web.Response:
        """``GET /debug/tasks``: how many tasks there are of each kind, and where ``rows`` (50) of them wait."""
        rows = int(_number(request, "rows", DEFAULT_ROWS, 0, MOST_ROWS))
        return _json({"alarms": self._alarms.raised, **describe_tasks(asyncio.all_tasks(), rows)})

    async def memory(self, request: web.Request) -> web.Response:
        """``GET /debug/memory``: what memory there is, and of what. With ``seconds``, what is allocated meanwhile."""
        rows = int(_number(request, "rows", DEFAULT_ROWS, 0, MOST_ROWS))
        seconds = _number(request, "seconds", 0, 0, MOST_S)
        said: dict[str, Any] = {"alarms": self._alarms.raised, "heap_bytes": heap_bytes()}
        said |= await asyncio.to_thread(describe_memory, rows)
        if seconds:
            with self._alone():
                said["allocated"] = await self._allocated(seconds, rows)
        return _json(said)

    async def profile(self, request: web.Request) -> web.Response:
        """``GET /debug/profile``: stacks of all threads, sampled ``hz`` (100) times a second for ``seconds`` (5).

        One line a stack, outermost first, with how often it was seen: what flame graphs are drawn of.
        """
        seconds = _number(request, "seconds", DEFAULT_S, 0.01, MOST_S)
        hz = _number(request, "hz", DEFAULT_HZ, 1, MOST_HZ)
        end = threading.Event()
        with self._alone():
            try:
                stacks = await asyncio.to_thread(sample_stacks, seconds, hz, end, self._clock)
            finally:
                end.set()  # a caller that left ends it
        lines = (f"{stack} {count}" for stack, count in stacks.most_common())
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _allocated(self, seconds: float, rows: int) -> list[dict[str, Any]]:
        tracemalloc.start()
        try:
            await asyncio.sleep(seconds)
            snapshot = await asyncio.to_thread(tracemalloc.take_snapshot)
        finally:
            tracemalloc.stop()
        top = snapshot.statistics("lineno")[:rows]
        return [
            {
                "where": f"{row.traceback[0].filename}:{row.traceback[0].lineno}",
                "bytes": row.size,
                "blocks": row.count,
            }
            for row in top
        ]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one measurement run at a time."""
        if self._measuring:
            raise web.HTTPConflict(text="another measurement runs; one at a time\n")
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False


class DebugServer:
    """Serves the pages on a socket."""

    def __init__(self, sock: socket.socket, pages: DebugPages) -> None:
        """``sock`` is bound and does not listen yet."""
        host, port = sock.getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._sock = sock
        self._runner = web.AppRunner(
            pages.application(), handle_signals=False, handler_cancellation=True, access_log=None, shutdown_timeout=0
        )

    async def start(self) -> None:
        """Serve from now on.

        Raises:
            OSError: another process began to listen there meanwhile.
        """
        await self._runner.setup()
        await web.SockSite(self._runner, self._sock, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """End, and whatever measures with it."""
        await self._runner.cleanup()


@web.middleware
async def _same_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests under another name: a web page that has its DNS name point at 127.0.0.1 is no user."""
    said = request.headers.getall("Host", [])
    if len(said) != 1 or not is_loopback_name(said[0]):
        raise web.HTTPForbidden(text="the Host header must name a loopback address: 127.0.0.1, [::1] or localhost\n")
    return await handler(request)


def describe_tasks(tasks: set[asyncio.Task[Any]], rows: int) -> dict[str, Any]:
    """Return how many of ``tasks`` there are of each coroutine, and where the first ``rows`` of them wait."""
    kinds = Counter(_coroutine(task) for task in tasks)
    listed = sorted(tasks, key=lambda task: task.get_name())[:rows]
    return {
        "tasks": len(tasks),
        "kinds": dict(kinds.most_common(DEFAULT_ROWS)),
        "listed": [
            {
                "name": task.get_name(),
                "coroutine": _coroutine(task),
                "stack": [_place(frame) for frame in task.get_stack(limit=TASK_DEPTH)],
            }
            for task in listed
        ],
    }


def _coroutine(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


def describe_memory(rows: int) -> dict[str, Any]:
    """Return what the interpreter holds: blocks, collections, threads, and its objects by type: ``rows`` of them."""
    kinds = Counter(type(one).__qualname__ for one in gc.get_objects())
    return {
        "allocated_blocks": sys.getallocatedblocks(),
        "collections": gc.get_stats(),
        "uncollected": gc.get_count(),
        "threads": [thread.name for thread in threading.enumerate()][:MOST_ROWS],
        "objects": sum(kinds.values()),
        "kinds": dict(kinds.most_common(rows)),
    }


def sample_stacks(seconds: float, hz: float, end: threading.Event, clock: Callable[[], float]) -> Counter[str]:
    """Block for ``seconds``, or until ``end``, and count the stacks of all other threads, ``hz`` times a second."""
    counted: Counter[str] = Counter()
    names: dict[CodeType, str] = {}
    own, until = threading.get_ident(), clock() + seconds
    while not end.wait(1 / hz) and clock() < until:
        threads = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way
            if ident != own:
                stack = _stack(threads.get(ident, "?"), frame, names)
                counted[stack if stack in counted or len(counted) < MOST_STACKS else OTHER] += 1
    return counted


def _stack(thread: str, frame: FrameType | None, names: dict[CodeType, str]) -> str:
    parts: list[str] = []
    while frame is not None and len(parts) < MOST_DEPTH:
        code = frame.f_code
        name = names.get(code)
        if name is None:
            module = frame.f_globals.get("__name__", "?")
            name = names[code] = f"{module}.{code.co_qualname}".replace(";", ",").replace(" ", "_")
        parts.append(name)
        frame = frame.f_back
    parts.append(thread.replace(";", ",").replace(" ", "_"))
    return ";".join(reversed(parts))


def _number(request: web.Request, name: str, absent: float, least: float, most: float) -> float:
    text = request.query.get(name)
    if text is None:
        return absent
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise web.HTTPBadRequest(text=f"{name}={text[:32]}: expected a number from {least:g} to {most:g}\n")
    return value


def _json(value: object) -> web.Response:
    return web.Response(body=json_text.encode(value), content_type="application/json")
