"""Which versions a fleet of the drill's own will have, as far as its models' directory tells before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.config.semantics import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.drills.scenario import Drill, Phase

_UP_TAKES: Final = Path("models")
"""Where ``warmroute up`` looks for models that is told nothing else."""
_OTHERWISE: Final = ("--models", "--engine")
"""Flags of workers with which their versions are others."""


def unknown_versions(drill: Drill, models_dir: Path | None) -> Iterator[Finding]:
    """Yield each version that a phase names and no worker of the drill's own fleet will have.

    ``models_dir`` is that of the fleet, as seen from here. Models that endpoints of the configuration have, too, may
    have any version.
    """
    for number, phase in enumerate(drill.phases):
        for model, version, path in _named(phase):
            known = _versions(drill, model, models_dir or _UP_TAKES)
            if known and version not in known:
                there = f"there {'is' if len(known) == 1 else 'are'} {', '.join(known)}"
                yield Finding(("phases", number, *path), f"no worker will have version {version} of {model}: {there}")


def _named(phase: Phase) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the models that a phase names with a version, and where it does."""
    do, expect, fault = phase.do, phase.expect, phase.fault or {}
    if do is not None:
        yield from ((do.model, version, ("do", "split", version)) for version in do.split)
        if do.version:
            yield do.model, do.version, ("do", "version")
    if expect is not None and expect.version:
        yield expect.model, expect.version, ("expect", "version")
    if fault.get("version") and fault.get("model"):
        yield str(fault["model"]), str(fault["version"]), ("fault", "version")


def _versions(drill: Drill, model: str, models_dir: Path) -> list[str]:
    """Return the versions of a model that the workers may serve; none where that cannot be known."""
    if drill.start is None or model not in drill.start.up.models:
        return []
    up, streams = drill.start.up, drill.start.streams
    sets = [up.worker_flags, drill.short.worker_flags, *(off.worker_flags for off in drill.without.values())]
    if any(flag.startswith(_OTHERWISE) for flags in sets for flag in flags or ()):
        return []
    configs = [up.config, drill.short.config, *(off.config for off in drill.without.values())]
    if any("endpoints" in config for config in configs) or (streams is not None and streams.model == model):
        return []
    try:
        found = [entry.name for entry in (models_dir / model).iterdir() if entry.is_dir() and entry.name.isdigit()]
    except OSError:  # without a directory the deterministic engine has version 1 alone, and others nothing
        return ["1"] if up.engine == "deterministic" and not (models_dir / model).exists() else []
    return sorted(found, key=int)
