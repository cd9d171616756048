"""A net under the reading of requests: what breaks there is a request that nobody thought of, not the worker.

A 500 counts against the worker at every sidecar, so whoever finds such a request could take a model down with it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.engines import EngineError, told
from worker.serving.errors import OUT_OF_MEMORY, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.log import EventLog

_OURS = (RequestError, EngineError, ConnectionError)


@contextmanager
def reading(log: EventLog, path: str) -> Iterator[None]:
    """Log what is raised inside, and is no error of ours, as a defect, and make it one of the caller's.

    Raises:
        RequestError: something was; 503 where there was no memory, which is nobody's fault.
    """
    try:
        yield
    except _OURS:
        raise
    except MemoryError:
        raise RequestError(OUT_OF_MEMORY, 503, 1) from None
    except Exception as error:
        kind = type(error).__name__
        log.error("request.failed", path=path[:256], error=f"{kind}: {told(error)}"[:1024])
        raise RequestError(f"the request cannot be read ({kind})") from error
