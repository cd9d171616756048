"""Access logs: in the combined or the common format, which nginx, Apache, HAProxy and Envoy can write, in the formats
of Envoy's and HAProxy's own, or in JSON.

What they lack is made up, and said: where moments are whole seconds, the requests of one second are spread evenly over
it; there are no bodies, so requests that need one are left out, or get one from a template.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from sidecar.traffic.requests import Timed, check
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.json_logs import Entry, entry_of, moment_of
from sidecar.traffic.traces.recorded import trace_of
from sidecar.traffic.traces.tokens import JSON_TYPE
from sidecar.traffic.traces.trace import MAX_REQUESTS, MAX_SPAN_S, Trace, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.traffic.traces.templates import BodyTemplate

_TIME: Final = r"\[(?P<time>[^\]]{1,64})\]"
_REQUEST: Final = r'"(?P<request>(?:[^"\\]|\\.)*)"'
_AGENT: Final = r'"(?P<agent>(?:[^"\\]|\\.)*)"'
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_HAPROXY: Final = re.compile(  # its `option httplog`, with whatever syslog puts before it
    rf"(?:.{{0,512}}? )?\S+:\d+ {_TIME} \S+ \S+/\S+ -?\d+(?:/[+-]?\d+){{4}} (?P<status>-1|\d{{3}}) \+?\d+"
    rf" \S+ \S+ \S{{4}} \d+(?:/\+?\d+){{4}} \d+/\d+ (?P<referer>)(?P<agent>)[^\"]*{_REQUEST}"
)
_FORMS: Final = (
    re.compile(  # the combined format, the common one without its last two
        rf"\S+ \S+ [^\[]*{_TIME} {_REQUEST} (?P<status>\d{{3}}) (?:\d+|-)"
        rf'(?: "(?P<referer>(?:[^"\\]|\\.)*)" {_AGENT})?'
    ),
    re.compile(  # Envoy's default, and Istio's, which has three more behind the flags
        rf"{_TIME} {_REQUEST} (?P<status>\d{{1,3}}) \S+(?P<referer>)"
        rf"(?:(?: \S+ \S+ {_TEXT})?(?: (?:\d+|-)){{4}} {_TEXT} {_AGENT})?"
    ),
    _HAPROXY,
)
_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})
CLIENT_CLOSED: Final = 499
"""What nginx logs where the caller hung up."""


def looks_like(line: str) -> bool:
    """Return whether this is a line of such a log."""
    return _matched(line) is not None or (line.startswith("{") and entry_of(line) is not None)


def read(
    name: str, lines: Iterable[str], template: BodyTemplate | None, model: str, headers: Sequence[tuple[str, str]]
) -> Trace:
    """Read a log. Lines that are no requests (scanners leave such) are left out and counted.

    Raises:
        TraceError: not a line of it can be sent.
    """
    if template is not None:
        tokens = sorted(template.needs & {"prompt", "context_tokens", "generated_tokens"})
        if tokens:
            raise TraceError(f"{name}: an access log has no ${tokens[0]} for the template")
        if "model" in template.needs and not model:
            raise TraceError(f"{name}: the template needs a model and an access log names none: give --model")
    left_out: Counter[str] = Counter()
    first_s: float | None = None
    by_second: dict[float, list[Timed]] = {}
    for number, line in enumerate(lines, 1):
        if number > MAX_REQUESTS:
            raise TraceError(f"{name}:{number}: more than {MAX_REQUESTS} requests; cut the file into several")
        found = _entry(line)
        request = None if found is None else _request(found, headers)
        if found is not None and first_s is None:
            first_s = found.at_s
        if found is not None and abs(found.at_s - (first_s or 0.0)) > MAX_SPAN_S:
            raise TraceError(
                f"{name}:{number}: its moment is {abs(found.at_s - (first_s or 0.0)) / 86_400:,.0f} days from the first"
                " one's; take the line out, or cut the file into several"
            )
        if request is None or check(request):
            left_out["unreadable"] += bool(line.strip())
        elif request.method not in _BODIES:
            by_second.setdefault(request.at_s, []).append(request)
        elif template is None:
            left_out["without a body (--body-template gives them one)"] += 1
        else:
            body = template.fill({"number": number, "model": model})
            own = [header for header in request.headers if header[0].lower() != "content-type"]
            fields = request.headers if len(own) < len(request.headers) else (*JSON_TYPE, *request.headers)
            by_second.setdefault(request.at_s, []).append(
                Timed(request.at_s, request.method, request.target, fields, body, recorded=request.recorded)
            )
    if not by_second:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it is empty"
        raise TraceError(f"{name}: no request in it can be sent: {why}")
    timed = []
    whole = all(at_s.is_integer() for at_s in by_second)
    for at_s, requests in by_second.items():
        for place, one in enumerate(requests):
            spread = at_s + (place + 0.5) / len(requests) if whole else at_s
            timed.append(Timed(spread, one.method, one.target, one.headers, one.body, recorded=one.recorded))
    return trace_of("access log", timed, left_out)


def _entry(line: str) -> Entry | None:
    if line.startswith("{"):
        return entry_of(line)
    found = _matched(line)
    if found is None:
        return None
    method, _, rest = found["request"].partition(" ")
    target, _, version = rest.rpartition(" ")
    if found.re is _HAPROXY and not target.startswith("/"):  # a request over HTTP/2, with its scheme and authority
        target = "/" + target.partition("://")[2].partition("/")[2]
    at_s = moment_of(found["time"])
    if at_s is None or not version.startswith("HTTP/"):
        return None
    return Entry(at_s, method, target, max(0, int(found["status"])), found["agent"] or "", found["referer"] or "")


def _matched(line: str) -> re.Match[str] | None:
    return next((found for form in _FORMS if (found := form.match(line)) is not None), None)


def _request(found: Entry, headers: Sequence[tuple[str, str]]) -> Timed:
    given = {name.lower() for name, _ in headers}
    own = [("Referer", found.referer), ("User-Agent", found.agent)]
    fields = [(name, value) for name, value in own if value and value != "-" and name.lower() not in given]
    return Timed(
        found.at_s,
        found.method,
        found.target,
        (*fields, *headers),
        recorded=None if found.status is None else _ended(found.status),
    )


def _ended(status: int) -> Ended:
    if status == CLIENT_CLOSED:
        return Ended.HUNG_UP
    if status == 0:  # as Envoy says it of a connection that ended before an answer; HAProxy says -1
        return Ended.CUT
    return Ended.STATUS_5XX if status >= 500 else Ended.STATUS_4XX if status >= 400 else Ended.OK
