"""``warmroute sidecar``: from a file, or from flags alone."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sidecar.cli.outcome import EXIT_REFUSED, CliError
from sidecar.config.load import FLAGS, load
from sidecar.config.overrides import EVERY, PREFIX, Override
from sidecar.watch import FileWatch

_MODEL = "default"
"""Name of the one model of a sidecar that was started without a file; in routes and metrics."""


def sidecar(
    *,
    config: Annotated[Path | None, Parameter(help="Configuration file (docs/configuration.md).")] = None,
    listen: Annotated[
        tuple[str, ...],
        Parameter(
            help="Where to accept, HOST:PORT or unix:/PATH; may be repeated. Replaces the file's listeners.",
            show_default=False,
        ),
    ] = (),
    grpc_listen: Annotated[
        tuple[str, ...],
        Parameter(help="Where to accept gRPC, HOST:PORT or unix:/PATH; may be repeated.", show_default=False),
    ] = (),
    to: Annotated[
        tuple[str, ...],
        Parameter(
            help="A worker, http(s)://HOST:PORT, grpc(s)://HOST:PORT or unix:/PATH; may be repeated. Without a file "
            "only; whatever is asked goes there.",
            show_default=False,
        ),
    ] = (),
    processes: Annotated[int | None, Parameter(help="Data processes, of every listener.")] = None,
    admin: Annotated[
        str | None, Parameter(help="Admin API, HOST:PORT on loopback; `none` where --admin-socket is all.")
    ] = None,
    admin_socket: Annotated[str | None, Parameter(help="Admin API, path of a Unix socket.")] = None,
    idempotent: Annotated[
        bool,
        Parameter(
            help="Requests may be executed twice, so they may be retried once sent. With --to only.", show_default=False
        ),
    ] = False,
    probe: Annotated[
        str | None,
        Parameter(help="Path that workers answer with 2xx when ready; without it they count as ready. With --to only."),
    ] = None,
    log_format: Annotated[Literal["text", "json"] | None, Parameter(help="How log lines look.")] = None,
    upgrade: Annotated[
        bool,
        Parameter(
            help="Take the sockets over from the sidecar that listens there now, and have it drain; see also SIGUSR2.",
            show_default=False,
        ),
    ] = False,
    upgrade_from: Annotated[
        str | None,
        Parameter(help="The same, from the sidecar that listens on this address, as it logged it (`listener.open`)."),
    ] = None,
    no_watch: Annotated[
        bool,
        Parameter(
            help="Do not look at the file twice a second; SIGHUP and `warmroute config reload` still load it.",
            show_default=False,
        ),
    ] = False,
) -> int:
    """Run a sidecar until it is told to stop.

    Flags go before the environment (WARMROUTE__SECTION__FIELD=value), the environment before the file. SIGTERM and
    Ctrl-C drain: nothing new is accepted, what runs may finish within timeouts.drain_s. A file that changes is loaded
    again, and so it is on SIGHUP.
    """
    if (
        config is None
        and not listen
        and not grpc_listen
        and not to
        and not any(name.startswith(PREFIX) for name in os.environ)
    ):
        raise CliError("give --config FILE, or --listen HOST:PORT and --to http://HOST:PORT", EXIT_REFUSED)
    overrides = flag_overrides(
        with_file=config is not None,
        listen=listen,
        grpc_listen=grpc_listen,
        to=to,
        processes=processes,
        admin=admin,
        admin_socket=admin_socket,
        idempotent=idempotent,
        probe=probe,
        log_format=log_format,
    )
    environ = dict(os.environ)
    path = config.absolute() if config is not None else None
    watch = FileWatch(str(path), time.monotonic()) if path is not None and not no_watch else None
    loaded = load(config, environ, overrides)
    for warning in loaded.warnings:
        sys.stderr.write(f"warning: {warning}\n")

    from sidecar import start  # after the configuration was found good: it brings logging and sockets along

    return start.run(
        loaded.settings,
        source=start.Source(str(path or FLAGS), lambda: load(path, environ, overrides), watch),
        notify_socket=environ.get("NOTIFY_SOCKET", ""),
        upgrade=start.Upgrade(sys.orig_argv, upgrade or upgrade_from is not None, upgrade_from or ""),
    )


def flag_overrides(
    *,
    with_file: bool,
    listen: tuple[str, ...] = (),
    grpc_listen: tuple[str, ...] = (),
    to: tuple[str, ...] = (),
    processes: int | None = None,
    admin: str | None = None,
    admin_socket: str | None = None,
    idempotent: bool = False,
    probe: str | None = None,
    log_format: str | None = None,
) -> list[Override]:
    """Return what flags set, in the order in which it has to be laid over a configuration.

    :raises CliError: flags that do not go together.
    """
    only_without = [flag for flag, given in (("--to", to), ("--idempotent", idempotent), ("--probe", probe)) if given]
    if with_file and only_without:
        flags = ", ".join(only_without)
        raise CliError(f"{flags}: only without --config; declare the model in the file, under models", EXIT_REFUSED)
    if not to and only_without:
        raise CliError(f"{', '.join(only_without)}: needs --to, the workers it is about", EXIT_REFUSED)
    overrides = []
    listeners = [{"address": address} for address in listen]
    listeners += [{"address": address, "protocol": "grpc"} for address in grpc_listen]
    if listeners:
        overrides.append(Override(("listeners",), listeners, "--listen" if listen else "--grpc-listen"))
    elif not with_file and to:
        raise CliError("--to: needs --listen HOST:PORT or --grpc-listen HOST:PORT, where to accept", EXIT_REFUSED)
    if processes is not None:
        overrides.append(Override(("listeners", EVERY, "processes"), processes, "--processes"))
    if to:
        overrides.append(Override(("models",), [_model(to, idempotent=idempotent)], "--to"))
        if probe is not None:
            overrides.append(Override(("models", 0, "probe"), {"path": probe}, "--probe"))
    if admin is not None:
        overrides.append(Override(("admin", "address"), None if admin == "none" else admin, "--admin"))
    if admin_socket is not None:
        overrides.append(Override(("admin", "socket"), admin_socket, "--admin-socket"))
    if log_format is not None:
        overrides.append(Override(("logging", "format"), log_format, "--log-format"))
    return overrides


def _model(to: tuple[str, ...], *, idempotent: bool) -> dict[str, object]:
    return {"name": _MODEL, "endpoints": list(to), "default": True, "idempotent": idempotent}
