"""Talks to a sidecar's admin API, over TCP or its Unix socket, within bounded time."""

from __future__ import annotations

import http
import http.client
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from sidecar.cli.outcome import EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, CliError
from sidecar.cli.shapes import Refusal
from sidecar.config.addresses import AddressError, split_address

DEFAULT_ADMIN = "http://127.0.0.1:9901"
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
_SHOWN_NAMES = 20
_VARIABLE = "WARMROUTE_ADMIN"
_NAMED = f"--admin or {_VARIABLE}"

T = TypeVar("T")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the admin API."""

    status: int
    body: bytes


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Admin:
    """Where the admin API is; the options that every command about a running sidecar takes."""

    admin: Annotated[
        str,
        Parameter(env_var=_VARIABLE, help="The sidecar's admin API: http://HOST:PORT or unix:/PATH."),
    ] = DEFAULT_ADMIN
    token_file: Annotated[
        Path | None, Parameter(help="File with the token that writes over http:// need; the socket needs none.")
    ] = None

    def get(self, target: str) -> bytes:
        """Return the body of the answer to a GET.

        :raises CliError: no answer, or a refusal.
        """
        return self.ask("GET", target).body

    def change(self, method: str, target: str, content: object = None) -> bytes:
        """Ask for a change, with the token where there is one, and return the answer's body.

        :raises CliError: no answer, or a refusal.
        """
        return self.ask(method, target, content, token=self.token()).body

    def ask(
        self, method: str, target: str, content: object = None, *, token: str = "", accept_errors: bool = False
    ) -> Answer:
        """Send one request and return the answer; with ``accept_errors`` whatever its status is.

        :raises CliError: no answer within ``TIMEOUT_S`` of silence, or (without ``accept_errors``) a refusal.
        """
        headers = {"Accept": "application/json", "Connection": "close"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = None
        if content is not None:
            headers["Content-Type"] = "application/json"
            body = msgspec.json.encode(content)
        connection = self._connection()
        try:
            connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
            data = response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        if response.status >= 400 and not accept_errors:
            raise CliError(_refusal(response.status, data), EXIT_FAILED)
        return Answer(response.status, data)

    def _connection(self) -> http.client.HTTPConnection:
        scheme, separator, rest = self.admin.partition(":")
        if scheme == "unix" and separator:
            path = rest.removeprefix("//")
            if path:
                return _UnixConnection(path, TIMEOUT_S)
        elif scheme == "http" and rest.startswith("//"):
            try:
                host, port = split_address(rest[2:].rstrip("/"))
            except AddressError as error:
                raise CliError(f'{_NAMED}: "{self.admin}": {error}', EXIT_REFUSED) from None
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        raise CliError(f'{_NAMED}: "{self.admin}": must be http://HOST:PORT or unix:/PATH', EXIT_REFUSED)

    def _unreachable(self, error: Exception) -> CliError:
        if isinstance(error, TimeoutError):
            reason = f"silent for {TIMEOUT_S:g} s"
        elif isinstance(error, OSError) and error.strerror:
            reason = error.strerror.lower()
        else:
            reason = str(error) or type(error).__name__
        remedy = f"is a sidecar running there? {_NAMED} names another place"
        return CliError(f"{self.admin}: {reason}: {remedy}", EXIT_UNREACHABLE)

    def token(self) -> str:
        """Return the token for writes, empty where none was given.

        :raises CliError: its file cannot be read.
        """
        if self.token_file is None:
            return ""
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not ASCII text"
            raise CliError(f"--token-file: {self.token_file}: {reason}", EXIT_REFUSED) from None
        if not token or not token.isprintable():
            raise CliError(f"--token-file: {self.token_file}: must hold one line, the token", EXIT_REFUSED)
        return token


ADMIN = Admin()
"""The default of every command's ``admin``: WARMROUTE_ADMIN, else this machine's usual port, and no token."""


def segment(text: str) -> str:
    """Return ``text`` as one segment of a path or one value of a query."""
    return quote(text, safe="@")


def decoded(data: bytes, kind: type[T]) -> T:
    """Return an answer as ``kind``.

    :raises CliError: it has another shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        remedy = "is it a sidecar of this version?"
        raise CliError(f"the admin API answered something else than expected ({error}): {remedy}") from None


def _refusal(status: int, data: bytes) -> str:
    try:
        refusal = msgspec.json.decode(data, type=Refusal)
    except msgspec.DecodeError:
        return f"the admin API answered {status} {http.client.responses.get(status, '')}".rstrip()
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return f"{refusal.error} (here: --admin unix:PATH, or --token-file FILE)"
    return refusal.error + (f"; known here: {', '.join(refusal.known[:_SHOWN_NAMES])}" if refusal.known else "")
