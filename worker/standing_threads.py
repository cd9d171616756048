"""Threads that are there before they are needed: with memory out none could be started, and trying could hang."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

THREADS_MOST = 32


def standing_threads() -> ThreadPoolExecutor:
    """Return the pool for ``asyncio.to_thread``, as large as the library would let it become, with all its threads.

    The library starts each on the event loop when it is wanted, and waits for its first word, which a thread that found
    no memory never says.
    """
    threads = min(THREADS_MOST, (os.cpu_count() or 1) + 4)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="asyncio")
    there = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(there.wait)
    there.wait()
    return pool
