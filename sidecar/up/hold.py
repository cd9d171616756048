"""How a fault keeps the state store of ``warmroute up`` away: a file beside its socket that names who holds it.

It is in force as long as that process lives, so nothing that becomes of it keeps the store away for ever.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from sidecar.pids import start_ticks

SUFFIX = ".hold"


def hold(socket: Path) -> None:
    """Keep the store at ``socket`` away until :func:`let_go`, or until this process ends.

    Raises:
        OSError: the file cannot be written.
    """
    pid = os.getpid()
    part = _file(socket).with_suffix(".part")
    part.write_text(json.dumps({"pid": pid, "ticks": start_ticks(pid)}), encoding="ascii")
    part.replace(_file(socket))


def let_go(socket: Path) -> bool:
    """Let the store come back; return False where it was not held."""
    try:
        _file(socket).unlink()
    except OSError:
        return False
    return True


def held(socket: Path) -> bool:
    """Tell whether somebody who lives keeps the store away."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(_file(socket).read_bytes())
        return bool(start_ticks(int(note["pid"])) == note["ticks"] is not None)
    return False


def _file(socket: Path) -> Path:
    return socket.with_name(socket.name + SUFFIX)
