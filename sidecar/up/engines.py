"""Which engines a worker may be told to run: the names alone, for the sidecar imports nothing of the worker's."""

from __future__ import annotations

from typing import Final

from sidecar.config.problems import nearest

BUILT_IN: Final = ("onnxruntime", "deterministic", "torchscript", "torchexport")
"""Those that the worker brings (``worker.engines.registry``, which a test compares)."""
GROUP: Final = "warmroute.engines"
"""Where other packages name theirs."""


def unknown_engine(name: str) -> str:
    """Return what to do about the name of an engine that there is not; nothing where there is one."""
    known = list(BUILT_IN)
    if name in known:
        return ""
    from importlib.metadata import entry_points  # takes a while, and built-in engines do not need it

    known += sorted({point.name for point in entry_points(group=GROUP)} - set(known))
    if name in known:
        return ""
    meant = nearest(name, known)
    if meant is not None:
        return f'no engine has this name; did you mean "{meant}"?'
    return f"no engine has this name; there are: {', '.join(known)}, and those of packages that are installed here"
