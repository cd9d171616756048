"""The start of a sidecar: opens its sockets, or takes them over, and runs the supervisor over them."""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import dataclass
from signal import Signals as Sig
from typing import TYPE_CHECKING

from sidecar import boot
from sidecar.configuration import Configuration
from sidecar.handover import HandoverError, Inheritance
from sidecar.sdnotify import Notify
from sidecar.signals import Signals
from sidecar.sockets import NOTHING, BindError, bound_addresses, open_admin, open_listeners
from sidecar.supervisor import Supervisor
from sidecar.telemetry.logs import get_log, setup_logging
from sidecar.version import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.config.load import Loaded
    from sidecar.settings import Settings
    from sidecar.watch import FileWatch

EXIT_REFUSED = 2

log = get_log("supervisor")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from: ``load`` reads it again, ``watch`` (from before it was read) tells when to."""

    name: str
    load: Callable[[], Loaded]
    watch: FileWatch | None = None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """How a sidecar upgrades. ``relaunch``: the command that started it. ``claim``: it takes over from one that runs.

    That is the one that listens on ``at``, or where that is empty, on one of its own listeners' addresses.
    """

    relaunch: Sequence[str] = ()
    claim: bool = False
    at: str = ""


def run(
    settings: Settings,
    *,
    source: Source | None = None,
    notify_socket: str = "",
    parent_pid: int | None = None,
    upgrade: Upgrade | None = None,
) -> int:
    """Run a sidecar until it is told to stop; return the exit code: 0 ended in order, 1 failed, 2 refused to start.

    ``notify_socket`` is where systemd wants to hear of the state (sd_notify(3)). With ``parent_pid`` the sidecar drains
    when that parent dies. Without a ``source`` the configuration stays what it is.
    """
    setup_logging(settings.logging.format.value, settings.logging.level.value, "supervisor")
    if parent_pid is not None:
        boot.die_with_parent(parent_pid)
    _raise_file_limit()
    upgrade = upgrade or Upgrade()
    with Signals((Sig.SIGTERM, Sig.SIGINT, Sig.SIGHUP, Sig.SIGUSR2, Sig.SIGCHLD)) as signals:
        inheritance = None
        try:
            if upgrade.claim:
                at = (upgrade.at,) if upgrade.at else bound_addresses(settings.listeners)
                inheritance = Inheritance.claim(at, installed_version())
            listeners = open_listeners(settings.listeners, inheritance or NOTHING)
            admin = open_admin(settings.admin, inheritance or NOTHING)
        except (BindError, HandoverError) as error:
            sys.stderr.write(f"warmroute: {error}\n")
            return EXIT_REFUSED
        if inheritance is not None:
            inheritance.close_rest()
        return Supervisor(
            configuration(settings, source),
            listeners,
            admin,
            signals,
            notify=Notify(notify_socket),
            inheritance=inheritance,
            relaunch=upgrade.relaunch,
        ).run()


def configuration(settings: Settings, source: Source | None) -> Configuration:
    """Return the configuration in force, and its source where there is one."""
    return Configuration(
        settings,
        source=source.name if source is not None else "warmroute up",
        load=source.load if source is not None else None,
        watch=source.watch if source is not None else None,
        wall=time.time,
        remedy=f"upgrade in place: kill -USR2 {os.getpid()}" if source is not None else "restart warmroute up",
    )


def _raise_file_limit() -> None:
    """Let the children open as many descriptors as the hard limit allows; the usual soft one (1,024) is for select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("limits.files", soft=soft, hard=hard, error=str(error))
