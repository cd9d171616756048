"""A drill whose load is gRPC calls under TLS: against a sidecar that runs, with faults that strike them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.certificates import Authority, write
from tests.support.product import running

pytestmark = [pytest.mark.beside, pytest.mark.timeout(60)]

DRILL = """\
version: 1
name: calls
title: Calls are refused
phases:
  - name: load
    load:
      path: /w.W/Echo
      rate_per_s: 40
      to: grpcs://LISTEN
      tls: {ca_file: CA}
      message_base64: MESSAGE
  - {name: calm, wait: {for_s: 1}}
  - {name: refused, fault: {id: refused, kind: abort, grpc_status: 9, for_s: 2}}
  - {name: failing, wait: {for_s: 1}}
objectives:
  - {measure: error_ratio, at_most: 0.9, during: [calm]}  # those sent as the fault begins may meet it
  - {measure: error_ratio, at_least: 0.9, during: [failing]}
  - {measure: lost, at_most: 0}
  - {measure: wrong, at_most: 0}
"""


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Gives back what it got, and remembers it."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def service(self, details: Any) -> Any:
        def answer(request: bytes, _: Any) -> bytes:
            self.seen.add(request)
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


def test_a_drill_of_calls(tmp_path: Path) -> None:
    authority, worker = Authority(), Worker()
    ca = write(tmp_path / "ca.pem", authority.pem)
    cert, key = authority.issue("127.0.0.1").write(tmp_path, "sidecar")
    server = grpc.server(ThreadPoolExecutor(4), handlers=(worker,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    listener = {"address": "127.0.0.1:0", "protocol": "grpc", "tls": {"cert_file": cert, "key_file": key}}
    settings = {
        "listeners": [listener],
        "admin": {"socket": f"{tmp_path}/admin.sock", "address": "127.0.0.1:0"},
        "models": [{"name": "m", "default": True, "endpoints": [f"grpc://127.0.0.1:{port}"]}],
    }
    try:
        with running(tmp_path, settings=settings, processes=1) as sidecar:
            file = tmp_path / "calls.yaml"
            told = {"LISTEN": sidecar.listen, "CA": ca, "MESSAGE": base64.b64encode(b"ask").decode()}
            text = DRILL
            for word, value in told.items():
                text = text.replace(word, value)
            file.write_text(text)
            command = [str(Path(sys.executable).with_name("warmroute")), "drill", "run", str(file)]
            command += ["--admin", f"unix:{tmp_path}/admin.sock", "--out", str(tmp_path / "out")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    finally:
        server.stop(0).wait(5)
    report = json.loads((tmp_path / "out" / "calls.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert worker.seen == {b"ask"}
    assert report["outcomes"]["ok"] > 20
    assert report["outcomes"]["grpc_9"] > 20
