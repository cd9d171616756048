"""Addresses and URLs as they stand in a configuration."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import parse_qsl, urlsplit

from router.urls import MAX_UNIX_PATH_BYTES

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?\Z"
)
_PORT = re.compile(r"[0-9]{1,5}\Z")


class AddressError(ValueError):
    """A text that is no address; the message says what would be."""


def split_address(text: str) -> tuple[str, int]:
    """Return host (an IPv6 one without its brackets) and port of ``HOST:PORT``; port 0 lets the kernel choose.

    :raises AddressError: it is not of that form.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or not host:
        raise AddressError("must be HOST:PORT, for example 127.0.0.1:8080")
    port = _port(port_text)
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), port
        except ValueError:
            raise AddressError("must hold an IPv6 address between [ and ], for example [::1]:8080") from None
    if ":" in host:
        raise AddressError("must have its IPv6 address in brackets, for example [::1]:8080")
    return _host(host), port


UNIX = "unix:"
"""What the address of a Unix socket starts with: ``unix:/PATH``."""


def unix_path(text: str) -> str | None:
    """Return the path of ``unix:/PATH``, or None where ``text`` is no address of a Unix socket."""
    return text.removeprefix(UNIX) if text.startswith(UNIX) else None


def check_listen_address(text: str) -> None:
    """Check ``HOST:PORT`` or ``unix:/PATH``.

    :raises AddressError: it is neither.
    """
    path = unix_path(text)
    if path is None:
        split_address(text)
    else:
        _check_unix_address(path)


def _check_unix_address(path: str) -> None:
    if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
        raise AddressError("must be unix: and the absolute path of a socket, for example unix:/run/app/http.sock")
    if not path.isprintable():
        raise AddressError("must hold no control characters in its path")
    check_unix_path(path)


def server_place(text: str) -> tuple[str, int]:
    """Return address and port of a name server, port 0 where none stands there: IP, IP:PORT, [IPv6] or [IPv6]:PORT.

    :raises AddressError: it is none of these.
    """
    host, port = text, 0
    if text.count(":") == 1 or "]:" in text:
        try:
            host, port = split_address(text)
        except AddressError:
            port = 0
        if not port:
            raise AddressError(_NAME_SERVER)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        raise AddressError(_NAME_SERVER) from None


_NAME_SERVER = "must be IP or IP:PORT, for example 10.0.0.10:53 or [fd00::a]:53"


def check_server_name(text: str) -> None:
    """Check a name that a server's certificate can be asked for: a host name or an IP address.

    :raises AddressError: it is neither.
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if re.fullmatch(r"[0-9.]+", text) or not _HOST_NAME.match(text) or text.endswith("."):
            raise AddressError("must be a host name or an IP address, without a port") from None


def check_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the network that ``text`` names: ``10.0.0.0/8``, ``fd00::/8``, or one address.

    :raises AddressError: it is none.
    """
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        whole = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise AddressError("must be a network, for example 10.0.0.0/8, an address, or unix") from None
    raise AddressError(f"must end where its prefix does: write {whole} for the network, or the address alone")


def check_endpoint_url(text: str) -> str:
    """Check an endpoint's URL and return it without a final slash.

    It is ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:/PATH``; for gRPC ``grpc://HOST:PORT``,
    ``grpcs://HOST:PORT`` or ``grpc+unix:/PATH``.

    :raises AddressError: it is not of that form.
    """
    path_of_socket = unix_path(text.removeprefix("grpc+"))
    if path_of_socket is not None:
        _check_unix_address(path_of_socket)
        return text
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise AddressError(f"must be http://HOST:PORT; did you mean http://{text}?" if text else _ENDPOINT_FORM)
    if scheme not in {"http", "https", "grpc", "grpcs"}:
        raise AddressError("must start with http(s):// or grpc(s)://, or be unix:/PATH or grpc+unix:/PATH")
    if "@" in rest:
        raise AddressError("must not hold a user or password")
    authority, slash, path = rest.partition("/")
    if path or "?" in rest or "#" in rest:
        raise AddressError(f"must end after the port: requests keep their own path; write {scheme}://{authority}")
    try:
        _, port = split_address(authority)
    except AddressError as error:
        form = f"must be {scheme}://HOST:PORT, for example {scheme}://127.0.0.1:9001"
        raise AddressError(form if ":" not in authority else str(error)) from None
    if port == 0:
        raise AddressError("must have a port between 1 and 65535")
    return text.removesuffix("/") if slash else text


_ENDPOINT_FORM = "must be http://HOST:PORT, for example http://127.0.0.1:9001"


def check_state_url(text: str) -> str:
    """Check the state store's URL and return its scheme in lower case (``none`` stands for itself).

    :raises AddressError: the scheme is unknown or not supported yet, or the rest does not fit it.
    """
    if text == "none":
        return "none"
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in {"redis", "rediss", "unix", "sentinel", "cluster"}:
        raise AddressError("must start with redis://, rediss:// or unix://, or be none")
    if scheme in {"sentinel", "cluster"}:
        raise AddressError(f"{scheme}:// is not supported yet: use redis:// or rediss:// with one server's address")
    if any(one.isspace() or not one.isprintable() for one in text):
        raise AddressError("must hold no spaces: write what is in a user or password as %20")
    for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if "user" in name.lower() or "pass" in name.lower():
            raise AddressError(f"must not hold {name} after a ?: write {scheme}://USER:PASSWORD@…, or password_file")
    if scheme == "unix":
        path = rest.rpartition("@")[2].partition("?")[0]
        if not path or path == "/":
            raise AddressError("must name a socket, for example unix:///run/redis/redis.sock")
        if not path.startswith("/"):  # clients take what stands before the first slash for a host, and pass it over
            raise AddressError("must hold an absolute path, after three slashes: unix:///run/redis/redis.sock")
        check_unix_path(path)
        return scheme
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AddressError(f"must be {scheme}://HOST:PORT/DATABASE, the port between 1 and 65535") from None
    if not host:
        raise AddressError(f"must name a server, for example {scheme}://127.0.0.1:6379")
    if port == 0:
        raise AddressError("must have a port between 1 and 65535")
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise AddressError(f"must end in the number of a database, for example {scheme}://{host}/0")
    return scheme


def check_unix_path(path: str) -> None:
    """Check that a Unix socket can have this path.

    :raises AddressError: it is empty or too long.
    """
    if not path:
        raise AddressError("must be the path of a Unix socket")
    if not fits_unix_socket(path):
        raise AddressError(f"must be at most {MAX_UNIX_PATH_BYTES} bytes: the kernel takes no longer socket path")


def fits_unix_socket(path: str | os.PathLike[str]) -> bool:
    """Say whether the kernel takes ``path`` for a Unix socket: it may not be longer than MAX_UNIX_PATH_BYTES."""
    return len(os.fsencode(path)) <= MAX_UNIX_PATH_BYTES


def _host(host: str) -> str:
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise AddressError("must hold an IPv4 address of four numbers up to 255, or a host name") from None
    if not _HOST_NAME.match(host):
        raise AddressError("must be HOST:PORT with an IP address or a host name")
    return host


def _port(text: str) -> int:
    if not _PORT.match(text) or int(text) > 65535:
        raise AddressError("must end in a port between 0 and 65535")
    return int(text)
