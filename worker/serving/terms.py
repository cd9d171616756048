"""What a request says of its turn and of its time, in fields of its head or in parameters, as Triton names them.

| field | parameter | means |
| --- | --- | --- |
| ``x-request-timeout-ms`` | ``timeout``, microseconds; 0: none | when nobody wants its answer any more |
| ``warmroute-queue-priority`` | ``priority``; 0: as if not said | 1, the most urgent, to 10; more counts as 10 |
| ``--tenant-header`` | | whose turn it is, in the order ``fair`` |

Where both are there, the sooner end and the parameter's priority hold.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from worker.execution.queues import DEFAULT_LEVEL, DEFAULT_TICKET, LEVELS, Ticket
from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker.engines import Parameters

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
DEADLINE_HEADER: Final = "warmroute-deadline"
"""``caller`` in a 504 that says that a request's own time was over: to a sidecar no failure of this worker's."""
PRIORITY_HEADER: Final = "warmroute-queue-priority"
BACKGROUND_HEADER: Final = "warmroute-background"
"""1 in requests that no caller waits for: warming up, keeping warm, mirrored ones."""
TENANT_HEADER: Final = "warmroute-tenant"
"""What ``--tenant-header`` is where it is not said."""
MAX_TENANT_CHARS: Final = 128
QUICK_BYTES: Final = 64 << 10
"""In JSON that is longer, parameters are first seen by the thread that executes it."""
_TIMEOUT, _PRIORITY = "timeout", "priority"
_WHOLE: Final = re.compile(r"[0-9]{1,20}")
_MOST: Final = (1 << 64) - 1
"""What a parameter counts as that is more."""


class _Parameters(msgspec.Struct, frozen=True):
    parameters: dict[str, object] | None = None


_DECODER: Final = msgspec.json.Decoder(_Parameters)


def of_head(get: Callable[[str], str | None], now: float, tenant_header: str) -> Ticket:
    """Return what the fields of a head say, which ``get`` returns by name; ``now``: monotonic seconds.

    Raises:
        RequestError: one is not as it should be.
    """
    timeout, level, tenant = get(TIMEOUT_HEADER), get(PRIORITY_HEADER), get(tenant_header)
    background = get(BACKGROUND_HEADER) == "1"
    if timeout is None and level is None and tenant is None and not background:
        return DEFAULT_TICKET
    return Ticket(
        DEFAULT_LEVEL if level is None else _level(_number(PRIORITY_HEADER, level)),
        "" if tenant is None else tenant[:MAX_TENANT_CHARS],
        None if timeout is None else now + _number(TIMEOUT_HEADER, timeout) / 1000,
        background,
    )


def _number(header: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise RequestError(f"header {header}: {text[:64]!r}: expected a whole number")
    return int(text)


def of_json(text: memoryview | bytearray) -> Mapping[str, object]:
    """Return the parameters of a request in JSON, where they are quickly found; it is checked later."""
    if len(text) > QUICK_BYTES:
        return {}
    data = text if isinstance(text, bytearray) else bytes(text)
    if b'"timeout"' not in data and b'"priority"' not in data:
        return {}
    try:
        return _DECODER.decode(data).parameters or {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def with_parameters(ticket: Ticket, parameters: Mapping[str, object], now: float) -> Ticket:
    """Return ``ticket`` with what ``parameters`` say, where the request came at ``now``.

    Raises:
        RequestError: one is not as it should be.
    """
    if _TIMEOUT not in parameters and _PRIORITY not in parameters:
        return ticket
    timeout_us, level = _whole(_TIMEOUT, parameters), _whole(_PRIORITY, parameters)
    deadline = ticket.deadline
    if timeout_us:
        ends = now + timeout_us / 1e6
        deadline = ends if deadline is None else min(deadline, ends)
    return Ticket(_level(level) if level else ticket.level, ticket.tenant, deadline, ticket.background)


def take_out(parameters: Parameters) -> None:
    """Take out of a request's ``parameters`` what is not for the engine."""
    if parameters:
        parameters.pop(_TIMEOUT, None)
        parameters.pop(_PRIORITY, None)


def _whole(name: str, parameters: Mapping[str, object]) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"inference request: parameter {name!r} is {_shown(value)}, expected a whole number")
    return min(value, _MOST)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):  # which may be nested too deep to be shown
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value)[:64]


def _level(said: int) -> int:
    return min(said, LEVELS) if said else DEFAULT_LEVEL
