"""Where a sidecar accepts, and how it speaks to callers, operators and workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from sidecar.http1.forwarding import MODEL_HEADER
from sidecar.settings.base import LABEL, Base, Reload, doc


class Protocol(StrEnum):
    """What is spoken on a listener."""

    HTTP = "http"
    GRPC = "grpc"


class ClientAuth(StrEnum):
    """Whether callers must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class TlsVersion(StrEnum):
    """The least version of TLS that is spoken."""

    V1_2 = "1.2"
    V1_3 = "1.3"


class ListenerTls(Base, frozen=True):
    """TLS on a listener. Files are followed: a changed one is used by the next handshake, within a second."""

    cert_file: Annotated[str, doc(Reload.NEW, "certificate with what leads to its CA, PEM", "path")]
    key_file: Annotated[str, doc(Reload.NEW, "its private key, PEM, without a password", "path")]
    ca_file: Annotated[str | None, doc(Reload.NEW, "CAs that callers' certificates must lead to, PEM", "path")] = None
    client_auth: Annotated[
        ClientAuth, doc(Reload.NEW, "none: callers are not asked; optional: what they show must be good; required")
    ] = ClientAuth.NONE
    allowed_names: Annotated[
        tuple[str, ...],
        doc(
            Reload.NEW,
            "callers let in, by subjectAltName: SPIFFE ids (a final /* for all below it), DNS names (*.example.org for "
            "one label); empty: all with a good certificate",
            "names",
        ),
    ] = ()
    min_version: Annotated[TlsVersion, doc(Reload.NEW, 'least version, "1.2" or "1.3" (in quotes)')] = TlsVersion.V1_2


class Listener(Base, frozen=True):
    """A socket that the sidecar accepts on."""

    address: Annotated[str, doc(Reload.RESTART, "where to accept, HOST:PORT or unix:/PATH", "address")]
    name: Annotated[str, doc(Reload.RESTART, "label in metrics and logs; the address where empty", form=LABEL)] = ""
    protocol: Annotated[
        Protocol, doc(Reload.RESTART, "http: HTTP/1.1; grpc: gRPC over HTTP/2, to grpc:// endpoints")
    ] = Protocol.HTTP
    processes: Annotated[
        int, doc(Reload.RESTART, "data processes, each with a socket of its own", "processes", ge=1, le=64)
    ] = 2
    backlog: Annotated[
        int,
        doc(
            Reload.RESTART,
            "accept queue; the kernel caps it at net.core.somaxconn",
            "connections",
            ge=1,
            le=65535,
        ),
    ] = 4096
    fastopen_queue: Annotated[
        int, doc(Reload.RESTART, "TCP_FASTOPEN queue; 0 turns it off", "connections", ge=0, le=65535)
    ] = 256
    unix_mode: Annotated[
        str,
        doc(
            Reload.RESTART,
            "mode of the socket's file, where the address is a unix:/PATH",
            form=(r"^0[0-7]{3}\Z", 'an octal mode in quotes, such as "0660"'),
        ),
    ] = "0660"
    tls: Annotated[ListenerTls | None, doc(Reload.RESTART, "null: plain")] = None
    default_model: Annotated[str | None, doc(Reload.LIVE, "model for requests that name none")] = None
    trusted_networks: Annotated[
        tuple[str, ...],
        doc(
            Reload.NEW,
            "whose forwarding and warmroute-* fields are believed: networks as 10.0.0.0/8, or unix for Unix sockets",
            "networks",
        ),
    ] = ()
    model_header: Annotated[
        str | None,
        doc(
            Reload.NEW,
            "field that names a model, NAME or NAME@VERSION, where the path does not; null: none does",
            "field name",
        ),
    ] = MODEL_HEADER


class Admin(Base, frozen=True):
    """The admin API: reads are open on loopback, writes need the socket or the token."""

    socket: Annotated[str | None, doc(Reload.RESTART, "Unix socket, mode 0600", "path")] = None
    address: Annotated[
        str | None,
        doc(Reload.RESTART, "loopback HOST:PORT for reads, or with a token for writes", "HOST:PORT"),
    ] = "127.0.0.1:9901"
    token_file: Annotated[
        str | None, doc(Reload.LIVE, "file whose content is the bearer token for writes over TCP", "path")
    ] = None


class UpstreamTls(Base, frozen=True):
    """TLS to workers (https://). Their certificates are always verified; files are followed as a listener's are."""

    ca_file: Annotated[str | None, doc(Reload.NEW, "CAs, PEM; the system's where null", "path")] = None
    cert_file: Annotated[str | None, doc(Reload.NEW, "certificate that workers are shown, PEM", "path")] = None
    key_file: Annotated[str | None, doc(Reload.NEW, "its private key, PEM, without a password", "path")] = None
    server_name: Annotated[
        str | None, doc(Reload.NEW, "name asked for and verified; the endpoint's HOST where null", "name")
    ] = None
    allowed_names: Annotated[
        tuple[str, ...],
        doc(
            Reload.NEW,
            "names that a worker's certificate must hold one of, instead of the one asked for; forms as for listeners",
            "names",
        ),
    ] = ()
    min_version: Annotated[TlsVersion, doc(Reload.NEW, 'least version, "1.2" or "1.3" (in quotes)')] = TlsVersion.V1_2
