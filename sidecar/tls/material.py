"""Certificates, keys and CAs on disk, and the contexts made of them, made anew whenever the files change.

Files are compared by content, not by time: links that are swapped (as Kubernetes mounts secrets), copies that keep
their times and rewriting in place are all noticed. What cannot be used leaves the context that there is.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.settings import ClientAuth, TlsVersion, UpstreamTls
from sidecar.tls.names import AllowList

if TYPE_CHECKING:
    from sidecar.settings import ListenerTls

HTTP1: Final = ("http/1.1",)
HTTP2: Final = ("h2",)
"""What is agreed on in the handshake where HTTP/1.1 or HTTP/2 is spoken (ALPN, RFC 7301)."""
MAX_FILE_BYTES: Final = 4 << 20
_SOURCE_PLACE: Final = re.compile(r" ?\(_ssl\.c:\d+\)")
_VERSIONS: Final = {TlsVersion.V1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.V1_3: ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


class MaterialError(ValueError):
    """Files of which no context can be made. ``field`` is the setting that names the culprit; the text says why."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Material:
    """The files of one context, by setting. A client may have neither certificate nor CA of its own."""

    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield (setting, file) of those there are."""
        for field in ("cert_file", "key_file", "ca_file"):
            name = getattr(self, field)
            if name is not None:
                yield field, name

    def read(self) -> dict[str, bytes]:
        """Return the content by setting.

        Raises:
            MaterialError: one cannot be read, is too large, or is only half there.
        """
        return {field: _content(field, name) for field, name in self.named()}


def _content(field: str, name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise MaterialError(field, f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > MAX_FILE_BYTES:
        raise MaterialError(field, f"{name}: is larger than {MAX_FILE_BYTES} bytes")
    begun = content.count(b"-----BEGIN ")
    if not begun or begun != content.count(b"-----END "):
        raise MaterialError(field, f"{name}: is no PEM file, or only the beginning of one")
    return content


def server_context(tls: ListenerTls, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """Return a context for a listener, from its files as they are now. Ciphers are the standard library's defaults.

    Sessions are not resumed: a ticket would outlive the CA that its client was let in by.

    Raises:
        MaterialError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = _VERIFY[tls.client_auth]
    _fill(context, material_of(tls), tls.min_version, alpn)
    return context


def client_context(tls: UpstreamTls, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """Return a context for workers, from the files as they are now. The worker's certificate is always verified.

    Where there is a list of allowed names, the caller compares with that, else OpenSSL with the name asked for.

    Raises:
        MaterialError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = not tls.allowed_names
    context.verify_mode = ssl.CERT_REQUIRED
    if tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _fill(context, material_of(tls), tls.min_version, alpn)
    return context


@dataclass(frozen=True, slots=True)
class Terms:
    """One context and the rules of the same configuration: a handshake goes by one of these from beginning to end.

    Apart they are unsafe: a client's context verifies no name where there is a list to compare with, and what a list
    lets in are the names that one CA vouches for.
    """

    context: ssl.SSLContext
    allowed: AllowList
    server_name: str | None = None
    """Of workers: the name to ask for, where it is not the endpoint's own."""


def terms_of(tls: ListenerTls | UpstreamTls, alpn: tuple[str, ...]) -> Terms:
    """Return what a listener, or connections to workers, go by with their files as they are now.

    Raises:
        MaterialError: the files cannot be used.
    """
    allowed = AllowList(tls.allowed_names)
    if isinstance(tls, UpstreamTls):
        return Terms(client_context(tls, alpn), allowed, tls.server_name)
    return Terms(server_context(tls, alpn), allowed)


def check_files(tls: ListenerTls | UpstreamTls) -> None:
    """Try whether the files can be used, as they are now.

    Raises:
        MaterialError: they cannot.
    """
    side = ssl.PROTOCOL_TLS_CLIENT if isinstance(tls, UpstreamTls) else ssl.PROTOCOL_TLS_SERVER
    _fill(ssl.SSLContext(side), material_of(tls), tls.min_version, ())


def material_of(tls: ListenerTls | UpstreamTls) -> Material:
    """Return the files that settings name."""
    return Material(tls.cert_file, tls.key_file, tls.ca_file)


def _fill(context: ssl.SSLContext, files: Material, least: TlsVersion, alpn: tuple[str, ...]) -> None:
    files.read()  # for what OpenSSL does not say: which file it is, and that it is only half there
    context.minimum_version = _VERSIONS[least]
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if files.ca_file is not None:
        try:
            context.load_verify_locations(files.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise MaterialError("ca_file", f"{files.ca_file}: {plain(error)}") from None
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                text = f"{files.cert_file} and {files.key_file} do not belong together"
            else:
                text = f"{files.cert_file}, {files.key_file}: {plain(error)}"
            raise MaterialError("cert_file", text) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted: store it without a password, readable by this user alone")


def plain(error: Exception) -> str:
    """Return what OpenSSL says of an error, without where in its binding it said so."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _SOURCE_PLACE.sub("", text)


@dataclass(frozen=True, slots=True)
class Change:
    """What a look at the files found: new terms, or why there are none."""

    digest: bytes
    terms: Terms | None
    error: str


class Follower:
    """The terms of one configuration, which follow its files. ``name`` says in logs and metrics what they are for."""

    def __init__(self, name: str, tls: ListenerTls | UpstreamTls, alpn: tuple[str, ...]) -> None:
        self.name: Final = name
        self.tls: Final = tls
        self.terms: Terms | None = None
        self.error = ""  # of the files as they are, where they cannot be used
        self._alpn: Final = alpn
        self._files: Final = material_of(tls)
        self._digest = b""

    def changed_to(self, tls: ListenerTls | UpstreamTls) -> Follower:
        """Return a follower of another configuration: this one where it is the same.

        The files are read here and now: they were found good a moment ago. Where they no longer are, it goes on with
        the terms that there were, as a whole, until they are good; the next look says so.
        """
        if tls == self.tls:
            return self
        new = Follower(self.name, tls, self._alpn)
        new.terms = self.terms
        if self.terms is not None:
            change = new.look()
            if change is not None and change.terms is not None:
                new.take(change)
        return new

    def look(self) -> Change | None:
        """Return what changed, or None. Reads files and may take a while: meant for a thread; changes nothing."""
        try:
            contents = self._files.read()
        except MaterialError as error:
            return self._failure(b"", error)
        digest = hashlib.sha256(repr(sorted(contents.items())).encode()).digest()
        if digest == self._digest and self.terms is not None and not self.error:
            return None
        try:
            return Change(digest, terms_of(self.tls, self._alpn), "")
        except MaterialError as error:
            return self._failure(digest, error)

    def _failure(self, digest: bytes, error: MaterialError) -> Change | None:
        return None if str(error) == self.error and digest == self._digest else Change(digest, None, str(error))

    def take(self, change: Change) -> None:
        """Go by what :meth:`look` found: new handshakes go by the new terms, none is disturbed."""
        self._digest = change.digest
        self.error = change.error
        if change.terms is not None:
            self.terms = change.terms
