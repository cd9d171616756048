"""Standard input, output and error of a command that was started without them (``<&- >&-``).

The worker, which knows nothing of this package, has the same (``worker.standard_streams``).
"""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


def open_closed() -> None:
    """Open what is closed of descriptors 0 to 2 on the null device, and give ``sys`` the streams that it lacks.

    The next file or socket would be one of them otherwise, and be written to, or handed on, in its place.
    """
    for place, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(place)
        except OSError:
            opened = os.open(os.devnull, mode)
            os.dup2(opened, place)
            if opened != place:
                os.close(opened)
            os.set_inheritable(place, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(place, "w" if place else "r", closefd=False))  # noqa: SIM115 - a descriptor
