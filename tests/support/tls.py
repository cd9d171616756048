"""TLS for tests: a certificate made on the spot, and a listener that ends TLS in front of a Unix socket."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True, slots=True)
class Pair:
    """A self-signed certificate for 127.0.0.1, which is its own CA, and its key."""

    cert_file: Path
    key_file: Path


def make_pair(directory: Path) -> Pair:
    """Make a certificate with the openssl command; raises RuntimeError where there is none."""
    if OPENSSL is None:
        raise RuntimeError("the openssl command is needed")
    pair = Pair(directory / "cert.pem", directory / "key.pem")
    subprocess.run(
        [
            *(OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(pair.cert_file), "-keyout", str(pair.key_file)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return pair


@contextlib.contextmanager
def tls_front(unix_socket: Path, pair: Pair) -> Iterator[int]:
    """Accept TLS from clients that show ``pair``'s certificate, and pass on to ``unix_socket``; yields the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    context.load_verify_locations(pair.cert_file)
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(raw: socket.socket) -> None:
        try:
            with context.wrap_socket(raw, server_side=True) as outer, socket.socket(socket.AF_UNIX) as inner:
                inner.connect(str(unix_socket))
                back = threading.Thread(target=_pump, args=(inner, outer), daemon=True)
                back.start()
                _pump(outer, inner)
                back.join()
        except OSError:
            raw.close()

    def accept() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(raw,), daemon=True)
            thread.start()
            threads.append(thread)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for thread in threads:
            thread.join(5)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
