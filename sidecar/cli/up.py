"""``warmroute up``: everything on this machine, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from sidecar.cli.outcome import EXIT_FAILED, EXIT_REFUSED, CliError


def up(
    *worker_flags: Annotated[
        str, Parameter(show_default=False, help="Flags for every worker, after -- (warmroute worker --help).")
    ],
    models: Annotated[Path, Parameter(help="Model repository, DIR/NAME/VERSION/.")] = Path("models"),
    model: Annotated[
        tuple[str, ...],
        Parameter(show_default=False, help="A model by name; may be repeated. Without it: all."),
    ] = (),
    listen: Annotated[str, Parameter(help="Where the proxy accepts, HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:8080"
    ),
    admin: Annotated[str, Parameter(help="Where the admin API accepts, HOST:PORT on loopback.")] = "127.0.0.1:9901",
    workers: Annotated[int, Parameter(help="Worker processes.", validator=Number(gte=1, lte=64))] = 2,
    processes: Annotated[int, Parameter(help="Data processes of the sidecar.", validator=Number(gte=1, lte=64))] = 2,
    engine: Annotated[
        str | None, Parameter(help="The workers' engine, onnxruntime (the default) or deterministic.")
    ] = None,
    config: Annotated[
        Path | None,
        Parameter(help="Settings of the sidecar; listeners, admin and state of it count for nothing here."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        Parameter(help="Written once all is warm, as JSON: addresses, process ids, paths. Removed at the end."),
    ] = None,
    keep_run_dir: Annotated[
        bool, Parameter(negative=(), help="Keep the run directory with its logs when everything has ended.")
    ] = False,
    no_color: Annotated[bool, Parameter(negative=(), help="No colours, no bars: plain lines.")] = False,
    parent_pid: Annotated[int | None, Parameter(help="End as by SIGTERM when this process, the parent, does.")] = None,
) -> int:
    """Run a state store, workers and a sidecar on this machine until Ctrl-C.

    Shows progress while models load, then prints the addresses and lines to try. A worker that dies is started again.
    Ctrl-C and SIGTERM drain: the sidecar first, then the workers, then the store; nothing is left behind, after SIGKILL
    neither.
    """
    from rich.console import Console

    from sidecar.boot import die_with_parent
    from sidecar.up.run import Options, Up, UpError
    from sidecar.up.settings import base_settings
    from sidecar.up.show import Show

    if parent_pid is not None:
        die_with_parent(parent_pid)
    readme = Path("README.md")
    options = Options(
        models_dir=models,
        models=model,
        listen=listen,
        admin=admin,
        workers=workers,
        processes=processes,
        engine=engine,
        worker_flags=worker_flags,
        settings=base_settings(config, os.environ, listen, admin, processes),
        sample_file=readme.absolute() if readme.is_file() else Path(__file__),
        environ=os.environ,
        ready_file=ready_file,
        keep_run_dir=keep_run_dir,
    )
    show = Show(Console(no_color=no_color, force_terminal=False if no_color else None, highlight=False))
    try:
        return Up(options, show).run()
    except UpError as error:
        raise CliError(str(error), EXIT_FAILED if error.started else EXIT_REFUSED) from None
    finally:
        show.settle()
