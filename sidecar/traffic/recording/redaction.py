"""What of a request is not written down. Pure; where it cannot be sure, it keeps nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

from sidecar.traffic.requests import NOT_SENT, REQUEST_ID, TOKEN

SECRET_WORDS: Final = (
    "access-key",
    "access_key",
    "accesskey",
    "api-key",
    "api_key",
    "apikey",
    "auth-key",
    "auth_key",
    "authorization",
    "cookie",
    "credential",
    "functions-key",
    "jwt",
    "passwd",
    "password",
    "secret",
    "signature",
    "subscription-key",
    "token",
)
"""A header or query parameter whose name holds one of these is a secret, unless its name is kept."""
SECRET_HEADERS: Final = frozenset({"auth", "dpop", "x-auth"})
"""Headers that are secrets by their whole name."""
SECRET_NAMES: Final = frozenset({"auth", "key", "pass", "pwd", "sig"})
"""Query parameters that are secrets by their whole name."""
URL_HEADERS: Final = frozenset(
    {
        "content-location",
        "destination",
        "location",
        "referer",
        "referrer",
        "x-envoy-original-path",
        "x-forwarded-uri",
        "x-original-uri",
        "x-original-url",
        "x-rewrite-url",
    }
)
"""Headers that hold a URL of someone else's, whose query is none of this request's: nothing of it is written."""
FORM: Final = "application/x-www-form-urlencoded"
MASK: Final = "x"
MOST_LAYERS: Final = 3
"""A value that is percent-encoded more often than that is masked unread."""
_USER: Final = re.compile(r"(?<=://)[^/?#\s]*@")
"""User and password in a URL (RFC 3986 3.2.1); an @ further behind in an authority is the password's."""
_PAIR: Final = re.compile(r'(?<![\w.~%+\[\]-])([\w.~%+\[\]-]+)=("[^"]*"|[^&;,\s"<>#]*)')
"""``NAME=VALUE``, as in queries, parameters of fields, and lists of them. It begins where a name does: linear time."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CREDENTIAL: Final = re.compile(
    r"^(?:basic|bearer|negotiate)\s+[\w+/=.~-]{8,}$|^(?:digest|aws4-hmac-sha256)\s[^=]+=|(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.",
    re.IGNORECASE,
)
"""What stands in an Authorization field (RFC 7617, 6750, 4559, 7616), or a signed token (RFC 7515), in any field."""
_PARAMETER: Final = frozenset("?&;=#")
"""What ends the name of a query parameter, or its query."""
_ANY: Final = "*"


class RedactionError(ValueError):
    """A path of fields that is none, or a name that no header or query parameter has."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Names are in lower case. ``fields`` are paths into JSON bodies, each a tuple of keys, indices or ``*``."""

    headers: frozenset[str] = frozenset()
    queries: frozenset[str] = frozenset()
    fields: tuple[tuple[str, ...], ...] = ()
    kept: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """Return what is redacted, for the first line of a trace."""
        by_name = [f"header {name}" for name in sorted(self.headers)] + [
            f"query {name}" for name in sorted(self.queries)
        ]
        return (*by_name, *(f"field {'.'.join(path)}" for path in self.fields))

    def secret(self, name: str, named: frozenset[str]) -> bool:
        """Return whether a header's or query parameter's value stays out."""
        name = name.lower()
        if name in self.kept:
            return False
        return name in named or any(word in name for word in SECRET_WORDS)

    def _secret_header(self, name: str) -> bool:
        """Return whether a header's value stays out, by its name."""
        return self.secret(name, self.headers) or name.lower() in SECRET_HEADERS - self.kept

    def _secret_parameter(self, name: str) -> bool:
        """Return whether a parameter's value stays out, by its name as it came, percent-encoded."""
        plain = unquote_plus(name)
        return self.secret(plain, self.queries) or plain.lower() in SECRET_NAMES - self.kept

    def _hides(self, text: str) -> bool:
        """Return whether a secret parameter, or a password, may stand in a value, under layers of percent-encoding."""
        for _ in range(MOST_LAYERS):
            if _USER.search(text) or any(self._secret_parameter(name) for name, _ in _PAIR.findall(text)):
                return True
            plain = unquote_plus(text)
            if plain == text:
                return False
            text = plain
        return True

    def of_headers(self, lines: list[str]) -> tuple[tuple[str, str], ...]:
        """Return the fields of a head's lines that are written: no secrets, and nothing that is made anew each time."""
        found = []
        for line in lines:
            name, _, value = line.partition(":")
            lowered, value = name.lower(), value.strip()
            if lowered in NOT_SENT or lowered in ("host", REQUEST_ID, "traceparent") or self._secret_header(name):
                continue
            if lowered not in self.kept:
                if _CREDENTIAL.search(value):
                    continue
                value = self._of_value(lowered, value)
            found.append((name, value))
        return tuple(found)

    def _of_value(self, name: str, value: str) -> str:
        """Return a header's value without what secrets there are in a URL, or in parameters."""
        if name in URL_HEADERS or _URL.match(value):
            for mark in "?#":
                before, found, _ = value.partition(mark)
                value = f"{before}{found}{MASK}" if found else value
        value = _USER.sub("", value)
        if "=" not in value and "%" not in value:
            return value
        if "=" not in value:
            return MASK if self._hides(value) else value
        return _PAIR.sub(lambda pair: f"{pair[1]}={MASK}" if self._masks(pair[1], pair[2]) else pair[0], value)

    def _masks(self, name: str, value: str) -> bool:
        return self._secret_parameter(name) or self._hides(value)

    def of_query(self, query: str) -> str:
        """Return a query, or a form's body, with the values of secret parameters masked, and of those that hide one."""
        parts = re.split("([&;])", query)
        for index, part in enumerate(parts):
            name, equals, value = part.partition("=")
            if equals and self._masks(name, value):
                parts[index] = f"{name}={MASK}"
        return "".join(parts)

    def of_target(self, target: str) -> str:
        """Return a target without scheme and authority; the values of secret query parameters are masked."""
        path, mark, query = target.partition("?")
        if not path.startswith(("/", "*")):  # absolute form, as for a proxy; a user and password may be in it
            path = "/" + path.partition("://")[2].partition("/")[2]
        return f"{_USER.sub('', path)}{mark}{self.of_query(query)}"

    def of_body(self, body: bytes) -> bytes | None:
        """Return a body with its fields masked; None where it is not JSON, so that nobody knows where they are."""
        if not self.fields or not body:
            return body
        try:
            content = json.loads(body, object_pairs_hook=_object)
            changed = [_mask_at(content, path) for path in self.fields]  # each of them, also after one that changed it
            return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() if any(changed) else body
        except (ValueError, RecursionError):  # also half of a surrogate pair, which no UTF-8 can hold
            return None


def path_of(text: str) -> tuple[str, ...]:
    """Return the path that ``messages.*.content`` or the like names: keys, indices, and ``*`` for any of them.

    Raises:
        RedactionError: a part of it is empty, or it would mask everything.
    """
    parts = tuple(text.split("."))
    if not all(parts) or parts == (_ANY,) * len(parts):
        raise RedactionError(f"{text!r} is no path of fields such as messages.*.content")
    return parts


def header_of(name: str) -> str:
    """Return a header's name as it is compared.

    Raises:
        RedactionError: no header is called so (RFC 9110 5.6.2): it would be written as if it had not been named.
    """
    if not TOKEN.fullmatch(name):
        raise RedactionError(f"{name!r} is no name of a header, as X-User is")
    return name.lower()


def parameter_of(name: str) -> str:
    """Return a query parameter's name as it is compared, which is not percent-encoded.

    Raises:
        RedactionError: no parameter is called so.
    """
    if not name or not _PARAMETER.isdisjoint(name):
        raise RedactionError(f"{name!r} is no name of a query parameter, as user is")
    return name.lower()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members; of one that has a name twice nobody knows which of them counts."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name twice")
    return made


def _mask_at(content: Any, path: tuple[str, ...]) -> bool:
    part, *rest = path
    keys: list[Any]
    if isinstance(content, dict):
        keys = list(content) if part == _ANY else [part] if part in content else []
    elif isinstance(content, list):
        keys = list(range(len(content))) if part == _ANY else [int(part)] if part.isdigit() else []
        keys = [key for key in keys if key < len(content)]
    else:
        return False
    if rest:
        changed = [_mask_at(content[key], tuple(rest)) for key in keys]  # each of them, not up to the first
        return any(changed)
    for key in keys:
        content[key] = _masked(content[key])
    return bool(keys)


def _masked(value: Any) -> Any:
    """Return something of the same form and size: it still costs what it cost."""
    if isinstance(value, str):
        return MASK * len(value)
    if isinstance(value, dict):
        return {key: _masked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return value if value is None or isinstance(value, bool) else 0
