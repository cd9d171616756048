"""TLS on the whole product: the basics over TLS both ways."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import Worker, run_basics
from tests.support.certificates import Authority, write

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(60)]


def test_the_basics_over_tls_both_ways(tmp_path: Path) -> None:
    authority = Authority()
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    ours = authority.issue("127.0.0.1", "spiffe://test/sidecar").write(tmp_path, "sidecar")
    worker = authority.issue("spiffe://test/worker/1").write(tmp_path, "worker")
    caller = authority.issue("spiffe://test/ns/app").write(tmp_path, "caller")

    def settings(address: str) -> dict[str, Any]:
        assert address.startswith("https://")
        tls = {"cert_file": ours[0], "key_file": ours[1], "ca_file": ca_file, "client_auth": "required"}
        return {
            "listeners": [
                {"address": "127.0.0.1:0", "processes": 2, "tls": {**tls, "allowed_names": ["spiffe://test/ns/*"]}}
            ],
            "models": [{"name": "m", "default": True, "endpoints": [address]}],
            "upstream_tls": {
                "ca_file": ca_file,
                "cert_file": ours[0],
                "key_file": ours[1],
                "allowed_names": ["spiffe://test/worker/1"],
            },
        }

    async def connect(address: str) -> Any:
        host, _, port = address.rpartition(":")
        return await asyncio.open_connection(host, int(port), ssl=authority.client(caller))

    def origin() -> Worker:
        return Worker(tls=authority.server(worker, asks=True))

    run_basics(tmp_path, origin, settings, connect)
