"""What fast open does, tried in a network namespace: ``unshare --net python fast_open.py DIRECTORY`` prints JSON."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSCTL = Path("/proc/sys/net/ipv4/tcp_fastopen")
CLIENT_AND_SERVER = 3
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_REQUEST = b"POST /echo HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"


def loopback_up() -> None:
    """Bring the namespace's own loopback up (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))


def counters() -> dict[str, int]:
    """Return this namespace's extended TCP counters (proc(5), /proc/net/netstat)."""
    lines = [line.split() for line in Path("/proc/self/net/netstat").read_text().splitlines()]
    names, values = (line for line in lines if line[0] == "TcpExt:")
    return dict(zip(names[1:], map(int, values[1:]), strict=True))


def ask(place: tuple[str, int]) -> str:
    """Send a whole request with the first packet, where the kernel has a cookie for the server; return the answer."""
    with socket.socket() as sock:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # not settimeout: fast open needs a blocking socket
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 5, 0))
        sock.sendto(_REQUEST, socket.MSG_FASTOPEN, place)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer.decode()


def main(directory: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.product import running
    from tests.support.streaming_origin import streaming_origin

    loopback_up()
    SYSCTL.write_text(str(CLIENT_AND_SERVER))
    with streaming_origin(directory / "origin.log") as origin, running(directory, "--to", origin) as sidecar:
        host, _, port = sidecar.listen.rpartition(":")
        before = counters()
        answers = [ask((host, int(port)))]
        first = counters()
        answers.append(ask((host, int(port))))
        after = counters()
        granted = sidecar.process.await_event("listener.open")
        code = sidecar.stop()
    passive = [one["TCPFastOpenPassive"] for one in (before, first, after)]
    print(json.dumps({"passive": passive, "answers": answers, "queue": granted["fastopen_queue"], "code": code}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
