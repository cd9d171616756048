"""The state store refuses: its socket leads nowhere, its callers are cut. It lives on, and keeps what it holds."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.servers import asked, cut_callers, socket_of
from sidecar.faults.processes.target import identified

ASIDE = ".aside"


class StoreRefused:
    """Moves the server's Unix socket aside and leaves one in its place on which nobody listens (ECONNREFUSED)."""

    SUBJECT: ClassVar[str] = "socket"
    NEEDS: ClassVar[Reach] = Reach.ANSWERS
    LEAVES: ClassVar[Reach] = Reach.PROCESS
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "the server accepts again, with all that it held"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Refuse new callers, then cut those that are there."""
        path = socket_of(fault.url)
        if path is None:
            raise ProcessFaultError(
                f"{fault.kind}: needs url: unix:///PATH, the server's socket (store_stop refuses on a port too)"
            )
        memo = identified(fault)
        aside = path.with_name(path.name + ASIDE)
        if aside.exists():
            raise ProcessFaultError(f"{fault.kind}: {aside}: is there already: another such fault is in force")
        with asked(fault.kind, fault.url) as server:
            server.ping()
            try:
                nobody = _nobody_at(path.with_name(path.name + ".nobody"))
                path.rename(aside)
                nobody.rename(path)
            except OSError as error:
                self._put_back(path, aside)
                raise ProcessFaultError(f"{fault.kind}: {path}: {error.strerror or error}") from error
            try:
                cut_callers(server)
            except BaseException:
                self._put_back(path, aside)
                raise
        return memo | {
            "socket": str(path),
            "aside": str(aside),
            "inode": path.lstat().st_ino,
            "made_ns": path.lstat().st_mtime_ns,
        }

    @staticmethod
    def _put_back(path: Path, aside: Path) -> None:
        with suppress(OSError):
            aside.replace(path)

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """Put the socket back, unless another server has put its own there since."""
        path, aside = Path(str(memo["socket"])), Path(str(memo["aside"]))
        try:
            found = path.lstat()
            if (found.st_ino, found.st_mtime_ns) == (memo["inode"], memo["made_ns"]):  # inodes are used again
                aside.replace(path)
                return True
        except FileNotFoundError:
            with suppress(OSError):
                aside.replace(path)
                return True
            return False
        except OSError as error:
            raise ProcessFaultError(f"{path}: {error.strerror}: move {aside} there to let callers in again") from error
        with suppress(OSError):
            aside.unlink()
        return False


def _nobody_at(path: Path) -> Path:
    """Make a Unix socket that nobody listens on."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    path.chmod(0o600)
    return path
