"""The configuration in force, and how another one takes its place: loaded whole, merged, or refused with every reason.

The supervisor's part of a reload. It decides and logs; what the running processes do with it is theirs (``boot.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.config.changes import merge, revision, would_break
from sidecar.config.problems import SettingsError
from sidecar.config.state import ConfigState
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.config.load import Loaded
    from sidecar.config.state import Change
    from sidecar.settings import Settings
    from sidecar.watch import FileWatch

MOST_SAID = 100
"""Changes and problems that are logged and shown one by one."""

log = get_log("config")


class Configuration:
    """The settings in force (``settings``) and what is known of where they come from (``state``).

    ``load`` reads the source again, as at the start; None where there is nothing to read again. ``watch`` tells when
    to. ``wall`` gives Unix seconds. ``remedy`` is what makes changes take effect that need another process.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        source: str,
        load: Callable[[], Loaded] | None,
        watch: FileWatch | None,
        wall: Callable[[], float],
        remedy: str,
    ) -> None:
        self.settings = settings
        self.watch = watch
        self._load = load
        self._wall = wall
        self._remedy = remedy
        self.state = ConfigState(
            revision=revision(settings), source=source, reloadable=load is not None, loaded_at=wall()
        )

    def announce(self) -> None:
        """Log what is in force."""
        log.info("config.loaded", revision=self.state.revision, source=self.state.source)

    def reload(self, now: float) -> None:
        """Read the source again. Afterwards ``settings`` and ``state`` are what the processes should run with.

        A source that cannot be used changes nothing but what is said of it. ``now`` is monotonic.
        """
        if self._load is None:
            log.warning("config.reload_unsupported", source=self.state.source, remedy=self._remedy)
            return
        before = msgspec.structs.replace(self.state, asked_at=now)
        if self.watch is not None:
            self.watch.read(now)
        try:
            loaded = self._load()
        except SettingsError as error:
            self._refuse(before, [str(problem) for problem in error.problems[:MOST_SAID]])
            return
        except Exception as error:  # whatever a reader stumbles over, what runs goes on
            log.error("config.failed", exc_info=True)
            self._refuse(before, [f"{self.state.source}: {type(error).__name__}: {error}"])
            return
        for warning in loaded.warnings:
            log.warning("config.warning", warning=str(warning))
        self._take(before, loaded.settings)

    def _refuse(self, before: ConfigState, problems: list[str]) -> None:
        for problem in problems:
            log.error("config.problem", problem=problem)
        since = self._wall() if before.bad_since is None else before.bad_since
        self.state = msgspec.structs.replace(
            before, bad_since=since, problems=tuple(problems), refused=before.refused + 1
        )
        log.error(
            "config.refused",
            source=before.source,
            problems=len(problems),
            stays=before.revision,
            remedy="correct the file: it is looked at again when it changes, or on SIGHUP",
        )

    def _take(self, before: ConfigState, wanted: Settings) -> None:
        merged = merge(self.settings, wanted)
        name = revision(wanted)
        good = msgspec.structs.replace(
            before, bad_since=None, problems=(), needs_restart=merged.restart[:MOST_SAID], would_break=()
        )
        if merged.settings == self.settings and name == before.revision:
            self.state = msgspec.structs.replace(good, unchanged=before.unchanged + 1)
            log.info("config.unchanged", revision=name)
            return
        broken = would_break(self.settings, wanted, merged)
        if broken:
            self._withhold(good, name, (*merged.restart, *merged.applied), broken[:MOST_SAID])
            return
        self.state = msgspec.structs.replace(
            good,
            revision=name,
            sequence=before.sequence + 1,
            loaded_at=self._wall(),
            applied=merged.applied[:MOST_SAID],
            taken=before.taken + 1,
        )
        self.settings = merged.settings
        _say("config.changed", merged.applied)
        _say("config.needs_restart", merged.restart, remedy=self._remedy)
        log.info(
            "config.taken",
            revision=name,
            before=before.revision,
            changes=len(merged.applied),
            need_restart=len(merged.restart),
        )

    def _withhold(self, good: ConfigState, name: str, changes: tuple[Change, ...], broken: tuple[str, ...]) -> None:
        """Take over nothing: what can be taken over would break something without what cannot."""
        self.state = msgspec.structs.replace(
            good, applied=(), needs_restart=changes[:MOST_SAID], would_break=broken, withheld=good.withheld + 1
        )
        for problem in broken:
            log.error("config.would_break", problem=problem)
        _say("config.needs_restart", changes, remedy=self._remedy)
        log.error("config.withheld", revision=name, stays=good.revision, need_restart=len(changes), remedy=self._remedy)


def _say(event: str, changes: tuple[Change, ...], **fields: str) -> None:
    write = log.warning if fields else log.info
    for change in changes[:MOST_SAID]:
        write(event, path=change.path, old=change.old, new=change.new, **fields)
    if len(changes) > MOST_SAID:
        write(event, more=len(changes) - MOST_SAID, **fields)
