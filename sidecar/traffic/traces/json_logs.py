"""Access logs in JSON lines: by the names that nginx, Envoy, Caddy, Traefik and others give to what is needed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

MOMENTS: Final = (
    "time_iso8601",
    "time_local",
    "msec",
    "start_time",
    "StartUTC",
    "@timestamp",
    "timestamp",
    "time",
    "ts",
)
METHODS: Final = ("request_method", "RequestMethod", "method")
TARGETS: Final = ("request_uri", "RequestPath", "uri", "path", "target")
STATUSES: Final = ("status", "response_code", "DownstreamStatus")
AGENTS: Final = ("http_user_agent", "user_agent")
REFERERS: Final = ("http_referer", "http_referrer", "referer")
LOCAL: Final = "%d/%b/%Y:%H:%M:%S %z"
"""How the common format writes a moment."""
ACCEPTED: Final = "%d/%b/%Y:%H:%M:%S.%f"
"""How HAProxy does, by the clock on its wall."""
_MILLISECONDS: Final = 1e11
"""Numbers from here on are milliseconds: as seconds they would be of the year 5138."""
_DECODE: Final = msgspec.json.Decoder(dict[str, Any])


class Entry(NamedTuple):
    """What is needed of a line. ``at_s``: seconds of 1970; ``status`` is 0 where there was no answer, None where
    nothing is said of it."""

    at_s: float
    method: str
    target: str
    status: int | None
    agent: str
    referer: str


def entry_of(line: str) -> Entry | None:
    """Return what a line says; None where it is no object that tells of a request."""
    try:
        said = _DECODE.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    method, target = _text(said, METHODS), _text(said, TARGETS)
    request = said.get("request")
    if isinstance(request, dict):  # Caddy
        method, target = _text(request, METHODS), _text(request, TARGETS)
    elif isinstance(request, str) and request.count(" ") >= 2:  # nginx: the request line
        method, _, rest = request.partition(" ")
        target = rest.rpartition(" ")[0]
    at_s = moment_of(next((said[name] for name in MOMENTS if said.get(name) is not None), None))
    if at_s is None or not method or not target:
        return None
    status = str(next((said[name] for name in STATUSES if name in said), ""))
    known = status.isascii() and status.isdecimal() and len(status) <= 3
    return Entry(at_s, method, target, int(status) if known else None, _text(said, AGENTS), _text(said, REFERERS))


def moment_of(value: object) -> float | None:
    """Return seconds of 1970: of a number, of RFC 3339, or as the common format has it; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        number = number / 1000 if number >= _MILLISECONDS else number
        return number if 0 <= number < _MILLISECONDS else None
    for parse in (datetime.fromisoformat, _local, _accepted):
        try:
            date = parse(text)
        except ValueError:
            continue
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None


def _local(text: str) -> datetime:
    return datetime.strptime(text, LOCAL)  # noqa: DTZ007 (the format has a zone)


def _accepted(text: str) -> datetime:
    return datetime.strptime(text, ACCEPTED)  # noqa: DTZ007 (the format has no zone)


def _text(said: dict[str, Any], names: tuple[str, ...]) -> str:
    found = next((said[name] for name in names if said.get(name)), "")
    return found if isinstance(found, str) else ""
