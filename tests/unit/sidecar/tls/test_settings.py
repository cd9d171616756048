from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sidecar.config.problems import dotted
from sidecar.config.semantics import examine
from sidecar.settings import Settings

PAIR = {"cert_file": "a", "key_file": "b"}
NOT_A_NAME = "must be a SPIFFE id (spiffe://TRUST-DOMAIN/PATH) or a DNS name, such as *.example.org"


def found(tls: dict[str, Any] | None = None, **upstream: Any) -> list[tuple[str, str]]:
    listener: dict[str, Any] = {"address": "127.0.0.1:1"} | ({"tls": PAIR | tls} if tls is not None else {})
    document = {
        "version": 1,
        "listeners": [listener],
        "models": [{"name": "m", "endpoints": ["https://w.test:1"], "default": True}],
        "upstream_tls": upstream,
    }
    return [(dotted(one.path), one.remedy) for one in examine(msgspec.convert(document, Settings))]


@pytest.mark.parametrize(
    "tls",
    [
        None,
        {},
        {"min_version": "1.3"},
        {"ca_file": "c", "client_auth": "optional"},
        {"ca_file": "c", "client_auth": "required", "allowed_names": ["spiffe://a/*", "*.a.test"]},
    ],
)
def test_good_listeners(tls: dict[str, Any] | None) -> None:
    assert found(tls) == []


@pytest.mark.parametrize(
    ("tls", "field", "remedy"),
    [
        (
            {"client_auth": "required"},
            "client_auth",
            "needs the CAs of callers: set listeners[0].tls.ca_file",
        ),
        (
            {"ca_file": "c"},
            "ca_file",
            "has no use while client_auth is none: set it to required, or leave this out",
        ),
        (
            {"ca_file": "c", "client_auth": "optional", "allowed_names": ["a"]},
            "allowed_names",
            "needs client_auth: required, for a caller that shows no certificate has no name",
        ),
        ({"ca_file": "c", "client_auth": "required", "allowed_names": ["a", "*."]}, "allowed_names[1]", NOT_A_NAME),
    ],
)
def test_listeners_that_make_no_sense(tls: dict[str, Any], field: str, remedy: str) -> None:
    assert found(tls) == [(f"listeners[0].tls.{field}", remedy)]


@pytest.mark.parametrize("name", ["w.test", "127.0.0.1", "::1", "a"])
def test_names_that_a_worker_may_be_asked_for(name: str) -> None:
    assert found(server_name=name) == []


@pytest.mark.parametrize(
    ("upstream", "field", "remedy"),
    [
        ({"cert_file": "a"}, "cert_file", "needs its private key: set upstream_tls.key_file"),
        ({"key_file": "a"}, "key_file", "needs its certificate: set upstream_tls.cert_file"),
        ({"server_name": "w:1"}, "server_name", "must be a host name or an IP address, without a port"),
        ({"server_name": "1.2.3"}, "server_name", "must be a host name or an IP address, without a port"),
        (
            {"allowed_names": ["spiffe://A/b"]},
            "allowed_names[0]",
            "must be spiffe://TRUST-DOMAIN/PATH, or end in /* for all ids below, in small letters",
        ),
    ],
)
def test_upstreams_that_make_no_sense(upstream: dict[str, Any], field: str, remedy: str) -> None:
    assert found(**upstream) == [(f"upstream_tls.{field}", remedy)]
