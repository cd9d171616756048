"""``warmroute config``: check a file, show what it amounts to, print the reference."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from router.urls import masked_url
from sidecar.cli.client import ADMIN, Admin, decoded
from sidecar.cli.kernel import KernelLimits, caps, kernel_limits
from sidecar.cli.outcome import EXIT_FAILED, CliError
from sidecar.cli.shapes import ConfigStatus, Refusal
from sidecar.config.document import written
from sidecar.config.load import load
from sidecar.config.reference import effective, reference
from sidecar.discovery.planned import held
from sidecar.settings import ClientAuth, Model, Settings

app = App(name="config", help="Check, show and explain configuration.", version_flags=())

_ASKED = {
    ClientAuth.NONE: "not asked for",
    ClientAuth.OPTIONAL: "optional",
    ClientAuth.REQUIRED: "required",
}

File = Annotated[Path, Parameter(help="Configuration file.")]


@app.command
def check(file: File, /) -> int:
    """Check a configuration as `warmroute sidecar` would read it, environment included, and sum it up.

    Exit code 0: it can be used; what the kernel of this machine would cap is listed. 2: it cannot; every error names
    file, line, field, value and remedy.
    """
    loaded = load(file, os.environ)
    print(f"{file}: good")
    for line in summary(loaded.settings, kernel_limits()):
        print(f"  {line}")
    for warning in (*loaded.warnings, *_ends(loaded.settings, time.time())):
        print(f"warning: {warning}")
    return 0


def _ends(settings: Settings, now: float) -> Iterator[str]:
    """Yield what TLS files hold that has ended, or ends soon."""
    from sidecar.tls.expiry import expired  # the X.509 parser is large, and needed here alone

    for ending, days in expired(settings, now):
        what = f"ends in {days:.1f} days" if days > 0 else f"ended {-days:.1f} days ago"
        yield f"{ending.of}: {ending.file}: the {ending.kind} {what}: renew it"


@app.command
def show(file: File, /) -> int:
    """Print the settings that a file and the environment amount to, defaults included, as YAML without passwords."""
    print(written(effective(load(file, os.environ).settings)), end="")
    return 0


@app.command
def reload(*, admin: Admin = ADMIN) -> int:
    """Have a running sidecar load its configuration again, and say what changed once all of it runs with it.

    Exit code 0: taken over, or nothing changed. 1: the one before stays, for it cannot be used, with every problem; or
    what needs a restart is so bound up with the rest that nothing of it could be taken over (`withheld`).
    """
    answer = admin.ask("POST", "/config/reload", token=admin.token(), accept_errors=True)
    if answer.status >= 300:
        refused = decoded(answer.body, Refusal)
        for problem in refused.problems:
            print(problem)
        raise CliError(refused.error, EXIT_FAILED)
    status = decoded(answer.body, ConfigStatus)
    if status.result == "unchanged":
        print(f"unchanged: {status.revision}, from {status.source}, in force since {status.loaded_at}")
        if status.applied:
            print("  `warmroute config status` shows what was taken over then")
    else:
        print(f"{status.result}: {status.revision}, from {status.source}")
    _show(status, applied=status.result == "taken")
    return 1 if status.would_break else 0


@app.command
def status(*, admin: Admin = ADMIN) -> int:
    """Say which configuration a running sidecar runs with, and what is wrong with the one that should be.

    Exit code 0: its source is what runs. 1: the source cannot be used, or needs an upgrade or a restart.
    """
    status = decoded(admin.get("/config/status"), ConfigStatus)
    print(f"{status.revision}, from {status.source}, in force since {status.loaded_at}")
    _show(status, applied=True)
    if status.bad_since is not None:
        print(f"bad since {status.bad_since}:")
        for problem in status.problems:
            print(f"  {problem}")
    return 1 if status.needs_restart or status.bad_since is not None else 0


def _show(status: ConfigStatus, *, applied: bool) -> None:
    """Print what there is to say of it; ``applied``: with the changes that the last one taken over had made."""
    for change in status.applied if applied else ():
        print(f"  {change}")
    for change in status.needs_restart:
        print(f"  needs an upgrade or a restart: {change}")
    for problem in status.would_break:
        print(f"  nothing of it is in force yet, for without what needs a restart: {problem}")
    behind = [str(process.index) for process in status.processes if not process.current]
    if behind:
        print(f"  not yet in data processes {', '.join(behind)}")


@app.command(name="reference")
def print_reference() -> int:
    """Print every field with type, default, range, unit and reload class, as Markdown."""
    print(reference(), end="")
    return 0


def summary(settings: Settings, limits: KernelLimits) -> Iterator[str]:
    """Yield what ``settings`` amount to, a line each, and what the kernel would cap of it."""
    for listener in settings.listeners:
        name = f" ({listener.name})" if listener.name else ""
        tls = "" if listener.tls is None else f", TLS, client certificates {_ASKED[listener.tls.client_auth]}"
        yield f"listener  {listener.address}{name}: {_count(listener.processes, 'data process', 'data processes')}{tls}"
    admin = settings.admin
    places = [f"unix:{admin.socket}"] if admin.socket else []
    if admin.address:
        places.append(f"http://{admin.address} ({'writes with the token' if admin.token_file else 'reads only'})")
    yield f"admin     {', '.join(places)}"
    if settings.state.url == "none":
        yield "state     none: static endpoints only"
    else:
        yield f"state     {masked_url(settings.state.url)}, namespace {settings.state.namespace}"
    for model in settings.models:
        yield f"model     {model.name}: {_endpoints(settings, model)}{_traits(model)}"
    for cap in caps(settings, limits):
        yield f"kernel    {cap}"


def _endpoints(settings: Settings, model: Model) -> str:
    static = len(model.endpoints) + sum(
        1 for one in settings.endpoints if model.name in {said[0] for said in map(held, one.models) if said}
    )
    text = _count(static, "static endpoint", "static endpoints")
    if model.dns is not None:
        found = f"those of {model.dns.name}"
        text, static = (f"{text}, and {found}" if static else found), static + 1
    return text if settings.state.url == "none" else f"{text}, others from the store" if static else "from the store"


def _traits(model: Model) -> str:
    traits = [word for word, holds in (("idempotent", model.idempotent), ("the default", model.default)) if holds]
    if model.shards.count > 1:
        traits.append(f"{model.shards.count} {model.shards.mode} shards")
    return f"; {', '.join(traits)}" if traits else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
