"""Endpoints that a name in the DNS stands for, and who is asked."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sidecar.settings.base import Base, Reload, doc


class DnsType(StrEnum):
    """What is asked of a name: its addresses, or what its SRV records list."""

    A = "a"
    SRV = "srv"


class Scheme(StrEnum):
    """What the endpoints speak."""

    HTTP = "http"
    HTTPS = "https"
    GRPC = "grpc"
    GRPCS = "grpcs"


_NAME_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
DNS_NAME = (
    rf"^(?=.{{1,253}}\Z){_NAME_LABEL}(?:\.{_NAME_LABEL})*\.?\Z",
    "a DNS name: labels of letters, digits, hyphens and underscores",
)


class Dns(Base, frozen=True):
    """The endpoints of a model that a name stands for (docs/discovery.md)."""

    name: Annotated[str, doc(Reload.LIVE, "the name that is looked up", form=DNS_NAME)]
    type: Annotated[
        DnsType, doc(Reload.LIVE, "a: its addresses (A and AAAA), with the port below; srv: what its SRV records list")
    ] = DnsType.A
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        doc(Reload.LIVE, "port of the endpoints; null with type srv, whose records have it", "port"),
    ] = None
    scheme: Annotated[Scheme, doc(Reload.LIVE, "what the endpoints speak")] = Scheme.HTTP
    refresh_s: Annotated[
        float,
        doc(
            Reload.LIVE, "longest time between two lookups; a shorter TTL counts, down to 1 s", "seconds", ge=1, le=3600
        ),
    ] = 10.0
    keep_empty_s: Annotated[
        Annotated[float, Meta(ge=0, le=31_536_000)] | None,
        doc(
            Reload.LIVE,
            "how long the last good answer is kept once the name is said to have nothing; null: until it has again",
            "seconds",
        ),
    ] = None

    @property
    def url(self) -> str:
        """The form of its endpoints' URLs, with the name in the host's place."""
        return f"{self.scheme.value}://{self.name}"


class DnsServers(Base, frozen=True):
    """Who is asked for the names under models[].dns."""

    servers: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "name servers, IP or IP:PORT ([IPv6]:PORT); empty: those of /etc/resolv.conf", "addresses"),
    ] = ()
    timeout_s: Annotated[
        float, doc(Reload.LIVE, "time for one lookup, all servers and tries", "seconds", gt=0, le=60)
    ] = 2.0
