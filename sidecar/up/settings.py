"""The sidecar's settings in ``warmroute up``: a file's, and over it what ``up`` decides itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.config.load import Loaded, finish, load_settings
from sidecar.config.overrides import Override
from sidecar.settings import Admin, Listener, Model, Settings, StateStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sidecar.config.document import Node
    from sidecar.config.problems import Problem

NAMESPACE = "up"


def decided(listen: str, admin: str, processes: int) -> tuple[Override, ...]:
    """Return what ``up`` sets whatever a file says: where it accepts, and its own store."""
    source = "warmroute up"
    return (
        Override(("version",), 1, source),
        Override(("listeners",), [{"address": listen, "processes": processes}], source),
        Override(("admin",), {"address": admin}, source),
        Override(("state",), {"url": "unix:///state.sock", "namespace": NAMESPACE}, source),
    )


def base_settings(config: Path | None, environ: Mapping[str, str], listen: str, admin: str, processes: int) -> Settings:
    """Return what the file says, and the environment over it; the defaults where there is no file.

    :raises SettingsError: the file cannot be used; it holds every problem found.
    """
    if config is None:
        return Settings(version=1, listeners=(Listener(address=listen, processes=processes),))
    return load_settings(config, environ, decided(listen, admin, processes))


def checked(root: Node, problems: list[Problem]) -> Loaded:
    """Read a tree as ``warmroute up --config`` would, with addresses that are of no account.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    return finish(root, problems, {}, decided("127.0.0.1:8080", "127.0.0.1:9901", 1))


def in_run_dir(
    base: Settings, run_dir: Path, store: str, listen: str, admin: str, processes: int, models: Sequence[str]
) -> Settings:
    """Return ``base`` as it runs in ``run_dir``: ``store`` is the URL of its store.

    Of ``models``, which the workers serve, those that ``base`` does not name are idempotent: trying them again is what
    they are there for.
    """
    named = {model.name for model in base.models}
    added = tuple(Model(name=name, idempotent=True) for name in models if name not in named)
    return msgspec.structs.replace(
        base,
        listeners=(Listener(address=listen, processes=processes),),
        admin=Admin(socket=str(run_dir / "admin.sock"), address=admin),
        state=StateStore(url=store, namespace=NAMESPACE),
        models=(*base.models, *added),
    )
