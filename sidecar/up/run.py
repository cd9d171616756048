"""Runs what ``warmroute up`` promises: a store, workers and a sidecar, started, watched, and ended in order.

::

    warmroute up ─┬─ state store (private Unix socket)
                  ├─ worker-1 … worker-N
                  ├─ supervisor ─┬─ control
                  │              └─ data-0 … data-M
                  └─ janitor (cleans up when this process cannot)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals as Sig
from typing import TYPE_CHECKING

import msgspec

from router.urls import is_loopback
from sidecar import boot
from sidecar.children import Child, RestartPolicy
from sidecar.config.addresses import split_address
from sidecar.signals import Signals
from sidecar.sockets import BindError, check_free
from sidecar.state.embedded import EmbeddedRedis, EmbeddedRedisError
from sidecar.up.announce import Places, WorkerPlace, tries, write_request
from sidecar.up.ask import ask, ask_json
from sidecar.up.engines import unknown_engine
from sidecar.up.fleet import OUTPUT, LogTail, SidecarView, WorkerView
from sidecar.up.hold import held
from sidecar.up.janitor import Janitor
from sidecar.up.ready_file import ReadyFile, ReadyFileError
from sidecar.up.settings import NAMESPACE, in_run_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sidecar.settings import Settings
    from sidecar.up.show import Show

TICK_S = 0.1
MAX_FAILED_STARTS = 3
"""A worker or sidecar that fails this often on start, before all was ready once, ends ``up``."""
STOP_MARGIN_S = 6.0
"""How long the sidecar may take to stop beyond its grace period: the supervisor kills what overstays before that."""
STORE_AGAIN_S = 1.0
"""Once all is ready, a store that does not start again is tried again this much later: requests go on without it."""
WORKER_DRAIN_S = 10.0
CUT_SHORT_S = 1.5
_POLICY = RestartPolicy()


class UpError(Exception):
    """``up`` cannot start or go on; the text is one line and says what would help.

    ``started``: something ran already, and has been ended.
    """

    def __init__(self, text: str, *, started: bool = True) -> None:
        super().__init__(text)
        self.started = started


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    models_dir: Path
    models: tuple[str, ...]
    listen: str
    admin: str
    workers: int
    processes: int
    engine: str | None
    worker_flags: tuple[str, ...]
    settings: Settings
    sample_file: Path
    environ: Mapping[str, str]
    ready_file: Path | None = None
    keep_run_dir: bool = False


@dataclass(slots=True)
class Watched:
    """A child with its log and what the log tells."""

    child: Child
    log: LogTail
    view: WorkerView | SidecarView


def find_models(directory: Path) -> tuple[str, ...]:
    """Return the names of the models under ``directory`` (``NAME/VERSION/``), sorted."""
    if not directory.is_dir():
        return ()
    return tuple(
        sorted(
            entry.name
            for entry in directory.iterdir()
            if entry.is_dir() and any(version.is_dir() and version.name.isdigit() for version in entry.iterdir())
        )
    )


class Up:
    """One run of ``warmroute up``. ``clock`` is monotonic seconds."""

    def __init__(self, options: Options, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._show = show
        self._clock = clock
        self._models = options.models
        self._ready_file = None if options.ready_file is None else ReadyFile(options.ready_file)
        self._run_dir = Path()
        self._redis: EmbeddedRedis | None = None
        self._janitor: Janitor | None = None
        self._workers: list[Watched] = []
        self._sidecar: Watched | None = None
        self._plan_fd = -1
        self._drain_s = 0.0
        self._store_due = 0.0
        self._told: Places | None = None
        self._ready = False
        self._told_to_stop = 0
        self._killed = False

    def run(self) -> int:
        """Start everything, stay until told to stop, end everything; return the exit code: 1 where it was cut short.

        Raises:
            UpError: it cannot start or go on; everything that ran has been ended.
        """
        self._check()
        wanted = (Sig.SIGTERM, Sig.SIGINT, Sig.SIGHUP, Sig.SIGCHLD)
        with Signals(wanted) as signals, ExitStack() as undo:
            undo.callback(self._clean_up)
            undo.callback(self._stop, signals)
            self._start()
            while not self._told_to_stop:
                self._heed(signals, TICK_S)
                self._look_after()
        return 1 if self._killed else 0

    # --- start --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse what cannot work before anything is started."""
        options = self._options
        if not self._models:
            self._models = find_models(options.models_dir)
        if not self._models:
            raise UpError(
                f"no model under {options.models_dir}/ (expected NAME/VERSION/model.onnx): fetch the demo model with "
                f"'make demo' or 'python tools/fetch_demo_model.py --models {options.models_dir}', or name another "
                "directory with --models",
                started=False,
            )
        if options.engine is not None and (wrong := unknown_engine(options.engine)):
            raise UpError(f"--engine {options.engine}: {wrong}", started=False)
        try:
            check_free(options.listen, "--listen HOST:PORT")
            check_free(options.admin, "--admin HOST:PORT")
            if self._ready_file is not None:
                self._ready_file.check()
        except (BindError, ReadyFileError) as error:
            raise UpError(str(error), started=False) from error
        if not is_loopback(split_address(options.admin)[0]):  # there is no token here, and reads are open
            raise UpError(f"--admin {options.admin}: must be a loopback address, such as 127.0.0.1:9901", started=False)

    def _start(self) -> None:
        self._drain_s = self._options.settings.timeouts.drain_s
        self._janitor = Janitor(self._drain_s + STOP_MARGIN_S + WORKER_DRAIN_S)
        self._run_dir = Path(tempfile.mkdtemp(prefix="warmroute-"))
        if not self._options.keep_run_dir:
            self._janitor.tree(self._run_dir)
        kept = "kept" if self._options.keep_run_dir else "removed at the end"
        self._show.line(f"starting in {self._run_dir} ({kept})")
        for name in ("log", "tmp"):
            (self._run_dir / name).mkdir(mode=0o700)
        settings = self._settings(self._options.listen, self._options.admin)
        (self._run_dir / "warmroute.yaml").write_bytes(msgspec.yaml.encode(settings))
        self._redis = EmbeddedRedis(self._run_dir)
        self._start_store()
        for number in range(1, self._options.workers + 1):
            self._workers.append(self._worker(f"worker-{number}"))
        self._plan_fd = boot.write_plan(boot.SupervisorPlan(os.getpid(), settings))
        command = (sys.executable, "-P", "-m", "sidecar", "supervise", "--plan-fd", str(self._plan_fd))
        self._sidecar = self._watched("sidecar", command, SidecarView(), pass_fds=(self._plan_fd,))
        for watched in (*self._workers, self._sidecar):
            self._start_child(watched)

    def _settings(self, listen: str, admin: str) -> Settings:
        options, store = self._options, EmbeddedRedis(self._run_dir).url
        return in_run_dir(options.settings, self._run_dir, store, listen, admin, options.processes, self._models)

    def _worker(self, name: str) -> Watched:
        assert self._redis is not None  # noqa: S101  started before any worker
        command = [sys.executable, "-P", "-m", "worker"]
        command += ["--listen", "127.0.0.1:0", "--state", self._redis.url, "--namespace", NAMESPACE, "--id", name]
        command += ["--parent-pid", str(os.getpid()), "--log-format", "json"]
        command += ["--drain-s", str(WORKER_DRAIN_S)]
        if self._options.models_dir.is_dir():
            command += ["--models", str(self._options.models_dir.absolute())]
        for model in self._models:
            command.append(f"--model={model}")  # in one word, so that nothing is taken for another option
        if self._options.engine is not None:
            command.append(f"--engine={self._options.engine}")
        command += self._options.worker_flags
        return self._watched(name, command, WorkerView(name))

    def _watched(
        self,
        name: str,
        command: Sequence[str],
        view: WorkerView | SidecarView,
        pass_fds: tuple[int, ...] = (),
    ) -> Watched:
        log = LogTail(self._run_dir / "log" / f"{name}.log")
        # a place of ours for what libraries may leave in the temporary directory
        environ = {**self._options.environ, "TMPDIR": str(self._run_dir / "tmp")}
        child = Child(name, command, pass_fds=pass_fds, policy=_POLICY, stderr_fd=log.fd, environ=environ)
        return Watched(child, log, view)

    def _start_child(self, watched: Watched) -> None:
        self._record(watched.child.start(self._clock()))

    def _start_store(self) -> None:
        assert self._redis is not None  # noqa: S101  made before
        try:
            self._redis.start()
        except EmbeddedRedisError as error:
            raise UpError(str(error)) from error
        self._record(self._redis.pid)

    def _restart_store(self) -> None:
        if self._clock() < self._store_due:
            return
        try:
            self._start_store()
        except UpError as error:
            if not self._ready:
                raise
            self._store_due = self._clock() + STORE_AGAIN_S
            self._show.note(f"state store: {error}; again in {STORE_AGAIN_S:g} s", "yellow")
        else:
            self._show.note("state store: died; started again, empty", "yellow")

    def _record(self, pid: int | None) -> None:
        if pid is not None and self._janitor is not None:
            self._janitor.process(pid)

    # --- life ---------------------------------------------------------------------------------------------------

    def _heed(self, signals: Signals, timeout_s: float) -> None:
        for signum in signals.wait(timeout_s):
            if signum in (Sig.SIGTERM, Sig.SIGINT, Sig.SIGHUP):
                self._told_to_stop += 1

    def _everybody(self) -> tuple[Watched, ...]:
        return (*self._workers, self._sidecar) if self._sidecar is not None else tuple(self._workers)

    def _worker_views(self) -> list[WorkerView]:
        return [watched.view for watched in self._workers if isinstance(watched.view, WorkerView)]

    def _look_after(self) -> None:
        for watched in self._everybody():
            self._read_log(watched)
            self._restart(watched)
        if self._redis is not None and not self._redis.running and not held(self._redis.socket_path):
            self._restart_store()
        if not self._ready:
            self._show.workers(self._worker_views())
            self._try_ready()
        elif self._ready_file is not None:
            self._keep_ready_file(self._ready_file)

    def _read_log(self, watched: Watched) -> None:
        for event in watched.log.read():
            watched.view.apply(event)
            if event["event"] == "process.started":
                self._record(int(event["pid"]))
            if self._ready or event.get("level") in ("warning", "error") or event["event"] == OUTPUT:
                self._show.event(watched.child.name, event)
            if not self._ready and event["event"] == "model.state" and event.get("to") == "failed":
                raise UpError(f"{watched.child.name} could not load {event.get('model')}: {event.get('reason')}")

    def _restart(self, watched: Watched) -> None:
        child, now = watched.child, self._clock()
        ended = child.reap(now)
        if ended is not None:
            how = ended.signal or f"exit code {ended.code}"
            delay_s = child.plan_restart(ended, now)
            self._read_log(watched)  # its last words
            if isinstance(watched.view, WorkerView):
                watched.view.reset()
            if not self._ready and (ended.code == 2 or child.failed_starts >= MAX_FAILED_STARTS):
                raise UpError(f"{child.name} does not start ({how}); its words stand above")
            self._show.note(f"{child.name}: ended ({how}), starting again in {delay_s:.1f} s", "yellow")
        if child.restart_at is not None and child.restart_at <= now:
            self._start_child(watched)

    def _try_ready(self) -> None:
        if self._sidecar is None or not all(view.warm(self._models) for view in self._worker_views()):
            return
        view = self._sidecar.view
        assert isinstance(view, SidecarView)  # noqa: S101  made so
        if not view.listen or not view.admin or ask(view.admin, "/readyz")[0] != 200:
            return
        self._ready = True
        # a sidecar that must be started again comes back where it was, also where port 0 let the kernel choose
        boot.rewrite_plan(self._plan_fd, boot.SupervisorPlan(os.getpid(), self._settings(view.listen, view.admin)))
        self._show.settle()
        self._announce(view)

    def _places(self, sidecar: SidecarView) -> Places:
        assert self._sidecar is not None  # noqa: S101  all of them run: it is ready
        assert self._redis is not None  # noqa: S101
        assert self._janitor is not None  # noqa: S101
        return Places(
            listen=sidecar.listen,
            admin=sidecar.admin,
            admin_socket=str(self._run_dir / "admin.sock"),
            redis_socket=str(self._redis.socket_path),
            run_dir=str(self._run_dir),
            request=str(self._run_dir / "request.json"),
            workers=tuple(
                WorkerPlace(watched.view.id, watched.child.pid, watched.view.address)
                for watched in self._workers
                if isinstance(watched.view, WorkerView)
            ),
            sidecar_pid=self._sidecar.child.pid,
            control_pid=sidecar.control_pid,
            data_pids=tuple(pid for _, pid in sorted(sidecar.data_pids.items())),
            redis_pid=self._redis.pid,
            janitor_pid=self._janitor.pid,
        )

    def _announce(self, sidecar: SidecarView) -> None:
        show, places, sample_file = self._show, self._places(sidecar), self._options.sample_file
        self._told = places
        model = "magika" if "magika" in self._models else self._models[0]
        metadata = {"name": model} | ask_json(places.workers[0].address, f"/v2/models/{model}")
        write_request(Path(places.request), metadata, sample_file)
        show.line()
        show.line("ready", "bold green")
        show.line(f"  proxy      http://{places.listen}")
        show.line(f"  admin      http://{places.admin} (reads), unix:{places.admin_socket} (writes too)")
        for worker in places.workers:
            show.line(f"  {worker.id:<10} {worker.address}")
        for title, command in tries(places, metadata, sample_file):
            show.line()
            show.line(f"# {title}", "dim")
            show.line(command, "cyan")
        show.line()
        show.line("Ctrl-C drains and leaves nothing behind", "dim")
        if self._ready_file is not None:
            assert self._janitor is not None  # noqa: S101  the first to start
            try:
                self._ready_file.write(places, self._janitor)
            except ReadyFileError as error:
                raise UpError(str(error)) from error

    def _keep_ready_file(self, file: ReadyFile) -> None:
        """Have the ready file name the processes that run now."""
        assert self._sidecar is not None  # noqa: S101  it is ready
        assert isinstance(self._sidecar.view, SidecarView)  # noqa: S101  made so
        places = self._places(self._sidecar.view)
        if places == self._told or self._janitor is None:
            return
        self._told = places
        try:
            file.write_again(places, self._janitor)
        except ReadyFileError as error:
            self._show.note(f"{error}; it names processes that are gone", "yellow")

    # --- end ----------------------------------------------------------------------------------------------------

    def _stop(self, signals: Signals) -> None:
        """End the sidecar, then the workers, then the store; a second signal cuts it short."""
        self._show.settle()
        self._show.note("draining: the sidecar, the workers, the state store (again to cut it short)")
        if self._sidecar is not None:
            self._end([self._sidecar], self._drain_s + STOP_MARGIN_S, signals)
        self._end(self._workers, WORKER_DRAIN_S + 1.0, signals)
        if self._redis is not None:
            self._redis.stop()

    def _end(self, group: list[Watched], patience_s: float, signals: Signals) -> None:
        told = self._told_to_stop
        deadline = self._clock() + (patience_s if told <= 1 else CUT_SHORT_S)
        for watched in group:
            watched.child.send(Sig.SIGTERM)
        while True:
            now = self._clock()
            for watched in group:
                ended = watched.child.reap(now)
                self._killed |= ended is not None and ended.code not in (0, None)
                for event in watched.log.read():
                    if event.get("level") in ("warning", "error") or event["event"] == OUTPUT:
                        self._show.event(watched.child.name, event)
            if not any(watched.child.pid for watched in group):
                return
            if now >= deadline:
                for watched in group:
                    if watched.child.pid is not None:
                        self._show.note(f"{watched.child.name}: killed, it did not leave in time", "yellow")
                        watched.child.send(Sig.SIGKILL)
                        self._killed = True
                deadline = now + CUT_SHORT_S
            self._heed(signals, min(TICK_S, deadline - now))
            if self._told_to_stop > told:
                told = self._told_to_stop
                deadline = min(deadline, now + CUT_SHORT_S)
                for watched in group:
                    watched.child.send(Sig.SIGTERM)

    def _clean_up(self) -> None:
        for watched in self._everybody():
            watched.log.close()
        if self._plan_fd >= 0:
            os.close(self._plan_fd)
        if self._ready_file is not None:
            self._ready_file.remove()
        if self._run_dir != Path() and not self._options.keep_run_dir:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        if self._janitor is not None:
            self._janitor.finish()
        self._show.note("stopped, nothing left behind" if not self._options.keep_run_dir else f"kept {self._run_dir}")
