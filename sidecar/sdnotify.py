"""Tells systemd of the state (sd_notify(3)): a datagram to the socket that it named."""

from __future__ import annotations

import socket

from sidecar.telemetry.logs import get_log

log = get_log("supervisor")


class Notify:
    """Sends states to ``address``; says nothing where that is empty."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def __call__(self, state: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ...; a supervisor that does not listen is no reason to stop."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.sendto(state.encode(), self._address)
            except OSError as error:
                log.warning("notify.failed", error=str(error))
