"""Certificates and CAs that change every second under load, on both sides: nothing is lost.

Each second everybody gets certificates of a new CA, which was trusted beside the old ones a second before, as in a
rotation that is done right. Callers keep connections and open new ones; so does the sidecar to its worker.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, write
from tests.support.load import Ask, Load
from tests.support.product import running
from tests.support.sidecars import until
from tests.support.streaming_origin import Handler, Server

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(90)]

SECONDS = 6
APP = "spiffe://a.test/ns/app"
KEPT = Ask("kept", b"POST /echo HTTP/1.1\r\n", b"x" * 1000, b"x")
FRESH = Ask("fresh", b"POST /echo HTTP/1.1\r\nConnection: close\r\n", b"y" * 1000, b"y")


class Place:
    """Where everybody's files are. At turn N certificates are of CA N; the CAs from N - 3 to N + 2 are trusted.

    Files are looked at each second, and turns come each second, or when both processes have looked since the last one:
    what they found then may have been of the turn before it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._authorities = [Authority(f"CA {number}") for number in range(SECONDS + 3)]
        self._turn = -1
        self.worker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.worker.verify_mode = ssl.CERT_REQUIRED
        self.caller: ssl.SSLContext
        self.turn()

    def turn(self) -> None:
        """Do the next one: the sidecar's files first, then the callers' and the worker's contexts."""
        self._turn += 1
        trusted = b"".join(one.pem for one in self._authorities[max(0, self._turn - 3) : self._turn + 3])
        newest = self._authorities[self._turn]
        write(self.directory / "ca.pem", trusted)
        newest.issue("127.0.0.1", "spiffe://a.test/sidecar").write(self.directory, "sidecar")
        context = ssl.create_default_context(cadata=trusted.decode())
        context.load_cert_chain(*newest.issue(APP).write(self.directory, "caller"))
        self.caller = context
        self.worker.load_verify_locations(cadata=trusted.decode())
        self.worker.load_cert_chain(*newest.issue("127.0.0.1").write(self.directory, "worker"))


@contextmanager
def secure_origin(place: Place) -> Iterator[str]:
    """Run a worker on threads that wants a certificate, with the newest of its own."""
    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = place.worker.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def settings(place: Place, origin: str, allowed: str) -> dict[str, Any]:
    files = {name: str(place.directory / f"sidecar.{end}") for name, end in (("cert_file", "pem"), ("key_file", "key"))}
    files["ca_file"] = str(place.directory / "ca.pem")
    tls = {**files, "client_auth": "required", "allowed_names": [allowed]}
    return {
        "listeners": [{"address": "127.0.0.1:0", "processes": 2, "name": "in", "tls": tls}],
        "models": [{"name": "default", "default": True, "endpoints": [origin]}],
        "upstream_tls": files,
        # so that connections to the worker are made anew all the time
        "limits": {"pooled_per_endpoint": 2},
    }


def test_a_rotation_every_second_loses_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with (
        secure_origin(place) as origin,
        running(tmp_path, settings=settings(place, origin, "spiffe://a.test/ns/*")) as sidecar,
        Load(sidecar.listen, [KEPT], clients=6, rate_per_s=60, tls=lambda: place.caller) as kept,
        Load(sidecar.listen, [FRESH], clients=6, rate_per_s=30, tls=lambda: place.caller) as fresh,
    ):
        reloads = partial(sidecar.metric, "warmroute_tls_reloads_total")
        for second in range(SECONDS):
            until(lambda: time.monotonic() >= kept.began + second + 1, "the next second")  # noqa: B023  called at once
            before = reloads()
            place.turn()
            until(lambda: reloads() >= before + 2, "both processes have followed")  # noqa: B023  called at once
        until(lambda: len(kept.answers) > 100 and len(fresh.answers) > 100, "many were answered meanwhile")
        assert len(kept.ports) == 6, "connections that were kept are the ones of the start"

        path = tmp_path / "warmroute.yaml"
        document = json.loads(path.read_text())
        document["listeners"][0]["tls"]["allowed_names"] = ["spiffe://a.test/other"]
        load_end = len(kept.answers)
        fresh.stop()
        path.write_text(json.dumps(document))
        until(lambda: len(sidecar.process.events("config.in_force", process="data-0")) > 0, "it is in force")
        until(lambda: len(sidecar.process.events("config.in_force", process="data-1")) > 0, "it is in force")
        until(lambda: len(kept.answers) > load_end + 30, "what stands goes on")
        assert not _let_in(sidecar.listen, place.caller)
        kept.stop()
        for load in (kept, fresh):
            assert load.failed() == [], load.summary()
        assert sum(answer.fresh for answer in kept.answers) == 6
        assert all(answer.fresh for answer in fresh.answers)
        # a look may fall between a pair's two files: it is taken at the next one
        assert sidecar.metric("warmroute_tls_reloads_failed_total") < SECONDS
        assert sidecar.metric("warmroute_tls_upstream_failed_total") == 0
        not_after = {labels["of"]: value for labels, value in sidecar.samples("warmroute_tls_not_after_seconds")}
        assert set(not_after) == {"in", "upstream"}
        assert all(50 * 86400 < value - time.time() < 366 * 86400 for value in not_after.values())


def _let_in(listen: str, context: ssl.SSLContext) -> bool:
    host, _, port = listen.rpartition(":")
    try:
        with context.wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=host) as sock:
            sock.sendall(KEPT.raw)
            return bool(sock.recv(1000))
    except (ssl.SSLError, ConnectionError):
        return False
