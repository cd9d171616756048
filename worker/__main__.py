"""The worker's composition root: builds everything from the command line and runs it. ``python -m worker --help``."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import uvloop

from router.model import State
from worker.alarms import Alarms, AlarmWatch
from worker.baseline import BaselineError, page_cache_ratio, read_baseline
from worker.conditions import Conditions, size_bytes
from worker.control import Control, Source
from worker.engines import EngineError
from worker.engines.early import EarlyEngine
from worker.engines.registry import EngineSettings, find_kind, make_engine
from worker.execution import Executor
from worker.exposition import (
    of_alarms,
    of_buffers,
    of_changes,
    of_governor,
    of_leases,
    of_models,
    of_page_cache,
    of_process,
    of_recordings,
    of_threads,
    of_unread,
)
from worker.governor import Governor, Place
from worker.load_report import LoadProbe
from worker.loading.fetching import Fetcher
from worker.loading.hash_cache import HashCache
from worker.loading.leases import Leases, can_guard
from worker.loading.model_loader import ModelLoader
from worker.loading.prefetch import prefetcher
from worker.loading.settings import PeerListenError
from worker.loading.shm import ShmStore
from worker.log import EventLog, LibraryLog, Unraisable
from worker.memory import HostMemory, one_heap
from worker.metrics import Metrics
from worker.models import Models
from worker.news import News
from worker.numa import Placer
from worker.options import GRPC_ID_SUFFIX, Options, parse
from worker.process import DrainTimes, WorkerProcess
from worker.processor import CpuLoad, usable_cores
from worker.recording import Recorder, Recordings
from worker.replica import HeldReplica
from worker.report import TTL_S, RecordBuilder, Reporter, Reporters
from worker.repository import Repository
from worker.serving.body import Bodies
from worker.serving.description import Identity
from worker.serving.inference import Inference
from worker.serving.repository_api import RepositoryApi
from worker.serving.unread import Unread
from worker.serving.v2 import Serving
from worker.standard_streams import open_closed
from worker.standby import Standby
from worker.standing_threads import standing_threads
from worker.starts import Starts, process_age_s
from worker.store import StoreError, scan
from worker.turns import Standing, Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines.model_cache import ModelCache
    from worker.loading import Loader
    from worker.serving.grpc.server import GrpcSurface
    from worker.state_address import StateAddress

_USAGE = 2
_PR_SET_PDEATHSIG = 1


def main(argv: list[str], follow_parent: Callable[[int], bool] | None = None) -> int:
    """Run one worker; returns its exit code: 0 after a drain, 2 where it could not start.

    ``follow_parent`` makes it end with the parent of that process id, and says whether it still lives; by default the
    kernel is asked (:func:`die_with_parent`).
    """
    open_closed()
    # ONNX Runtime reports on its use and keeps a session file in TMPDIR from its import on; who runs a worker decides.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if "MALLOC_ARENA_MAX" not in os.environ:
        one_heap()
    options = parse(argv)
    if options.parent_pid is not None and not (follow_parent or die_with_parent)(options.parent_pid):
        return 0
    log = EventLog(sys.stderr, json=options.json_log)
    standby = None
    try:
        if options.standby:
            place = f"{options.host}:{options.port}"
            standby = Standby(options.loading.shm_dir, place, lambda: _bind(options.host, options.port))
        sock = _bind(options.host, options.port) if standby is None else standby.first()
    except OSError as error:
        log.error("worker.failed", error=f"--listen {options.host}:{options.port}: {error.strerror or error}")
        return _USAGE
    libraries = LibraryLog(log)
    logging.getLogger().addHandler(libraries)
    unraisable, before = Unraisable(), sys.unraisablehook
    sys.unraisablehook = unraisable.hook
    try:
        return uvloop.run(_run(options, sock, log, standby, unraisable))
    except (StoreError, EngineError, BaselineError, PeerListenError) as error:
        log.error("worker.failed", error=str(error))
        return _USAGE
    finally:
        sys.unraisablehook = before
        unraisable.look()
        logging.getLogger().removeHandler(libraries)


async def _run(
    options: Options, sock: socket.socket | None, log: EventLog, standby: Standby | None, unraisable: Unraisable
) -> int:
    unraisable.look_now_and_then()
    asyncio.get_running_loop().set_default_executor(standing_threads())
    kind = find_kind(options.engine)
    recordings = Recordings(options.warmup_dir, log)
    source = Source(options.models, options.model, kind.file_name, options.versions, options.shard, recordings)
    strict = options.behaviour.control is Control.NONE
    found = scan(options.models, options.model, kind.file_name, options.versions, options.shard) if strict else []
    found = [recordings.of(files) for files in found]
    memory = HostMemory()
    settings = EngineSettings(
        log,
        options.threads,
        options.load_s,
        options.service_s,
        _cores(),
        options.libraries.absolute() if options.libraries is not None else None,
        _model_cache(options, log),
        os.environ,
    )
    engine = EarlyEngine(make_engine(options.engine, settings), memory, log)
    epoch = secrets.token_hex(8)
    informed: list[Reporters | GrpcSurface] = []

    def changed() -> None:
        for one in informed:
            one.changed()

    governor = Governor(
        (Place("host", memory.read), Place("device", engine.memory)), options.memory_mark_ratio, options.memory_wait_s
    )
    conditions = Conditions(log, time.monotonic, governor)
    hashes = HashCache(options.loading.shm_dir, log)
    shm = ShmStore(
        options.loading.shm_dir,
        f"{options.namespace}.{options.id}",
        log,
        keep=options.loading.shm,
        limit_bytes=options.loading.shm_limit_bytes,
        memory=memory.read,
    )
    loader: Loader = ModelLoader(
        options.loading.strategy,
        hashes,
        memory.read,
        _cores(),
        shm,
        Fetcher(options.loading.peers, log),
        Placer(log) if options.loading.numa else None,
        conditions.fetched,
    )
    if options.shard is not None:
        from worker.sharding.loader import ShardLoader

        loader = ShardLoader(loader, hashes, _cores())
    starts = Starts(
        log,
        read_baseline(options.baseline),
        memory,
        imports_s=process_age_s(),
        objective_s=options.start_objective_s,
        cached_ratio=page_cache_ratio,
    )
    leases = None
    if options.loading.guard and can_guard():
        leases = Leases(log, memory.read)
        leases.heed()
    news = News()
    models = Models()
    cpu_load = CpuLoad(usable_cores(_cores()), time.monotonic, time.process_time).read
    sizes: dict[str, int] = {}

    def standing() -> Standing:
        room = engine.read()
        to_load = 0
        for one in models:
            if one.rest is None and one.state is State.COLD:
                key = f"{one.name}@{one.version} {one.files.signature}"
                sizes[key] = sizes.get(key) or size_bytes(one.files)
                to_load += sizes[key]
        return Standing(
            cpu_load=cpu_load(),
            free_memory=None if room is None else min(1.0, room.free_bytes / max(1, room.total_bytes)),
            bytes_to_load=to_load,
        )

    repository = Repository(
        source,
        options.behaviour,
        models,
        lambda files: HeldReplica(files, engine, loader, log, time.monotonic, changed, starts, news, leases),
        log,
        prefetcher(log, memory.read) if options.loading.prefetch else None,
        conditions,
        None
        if not options.turns.most
        else Turns(options.turns, options.loading.shm_dir, options.namespace, standing, log, time.monotonic),
    )
    if strict:
        repository.add(found)
    else:
        await repository.find()
    if shm.kept:
        shm.sweep({f"{replica.name}@{replica.version}" for replica in models})
    at_once = [replica.files for replica in models if replica.rest is None]
    engine.initialize(at_once)
    if not at_once:
        starts.apart()
    executor = Executor(
        options.concurrency or (options.pool or (kind.concurrency(_cores()),))[0],
        options.queue,
        order=options.order,
        weights=options.tenant_weights,
    )
    executor.stand()
    pool = None
    if options.pool is not None:
        from worker.execution.pool import Pool  # most workers have as many threads as cores

        cores = usable_cores(_cores())
        pool = Pool(executor, *options.pool, CpuLoad(cores, time.monotonic, time.process_time).read, log)
    metrics = Metrics()
    identity = Identity(options.id, epoch, _version)
    buffers = None
    if options.buffers_bytes:
        from worker.execution.buffers import Buffers  # off where nothing is said

        buffers = Buffers(options.buffers_bytes)
        metrics.add(of_buffers(buffers))
    bodies = Bodies(options.body_limit_bytes, options.bodies_limit_bytes, buffers)
    unread = Unread(options.answers_limit_bytes, options.answer_unread_s, log)
    metrics.add(of_unread(unread))
    recorder = None
    if options.warmup_dir is not None and options.record_warmup:
        recorder = Recorder(options.warmup_dir, options.record_warmup, log)
    requests = None
    if options.request_log is not None:
        from worker.request_log import RequestLog  # off where nothing is said

        try:
            requests = RequestLog(options.request_log, options.request_log_bytes, options.id, epoch, log)
        except OSError as error:
            log.error("worker.failed", error=f"--request-log {options.request_log}: {error.strerror or error}")
            return _USAGE
    inference = Inference(
        models,
        executor,
        log=log,
        recorder=recorder,
        buffers=buffers,
        requests=requests,
        unread=unread,
        strict_readiness=options.strict_readiness,
    )
    load = LoadProbe(executor, engine, cpu_load, inference.served, time.monotonic)
    alarms = Alarms()
    watch = AlarmWatch(alarms, lambda: tuple((r.name, r.version, r.state, r.content_hash) for r in models), log)
    always_report = options.load_reports == "always"
    serving = Serving(
        identity,
        models,
        executor,
        log,
        bodies,
        metrics=metrics,
        repository=repository,
        governor=governor,
        inference=inference,
        load=load,
        alarms=alarms,
        pool=pool,
        always_report=always_report,
        tenant_header=options.tenant_header,
    )
    metrics.add(of_models(models))
    metrics.add(of_governor(governor))
    metrics.add(of_changes(news))
    if leases is not None:
        metrics.add(of_leases(leases))
    if options.warmup_dir is not None:
        metrics.add(of_recordings(recordings, starts))
    metrics.add_blocking(of_page_cache(models))
    metrics.add(of_alarms(alarms))
    metrics.add(of_threads(executor, pool))
    metrics.add(of_process(executor, memory, starts, lambda: serving.draining))
    address = options.advertise or (_url(sock) if sock is not None else _url_of(options.host, options.port))
    grpc = None
    if options.grpc_listen is not None:
        try:
            api = RepositoryApi(repository, bodies, lambda: inference.draining, log)
            grpc = _grpc_class()(
                identity,
                models,
                inference,
                bodies,
                load,
                api,
                log,
                always_report=always_report,
                tenant_header=options.tenant_header,
            )
            grpc.bind(*options.grpc_listen, options.grpc_advertise)
        except (ImportError, OSError) as error:
            remedy = "; install warmroute[worker]" if isinstance(error, ImportError) else ""
            host, port = options.grpc_listen
            log.error("worker.failed", error=f"--grpc-listen {host}:{port}: {error}{remedy}")
            return _USAGE
        informed.append(grpc)

    debug = None
    if options.debug_listen is not None:
        from worker.debug import DebugPages, DebugServer  # a profiler's modules

        try:
            debug = DebugServer(_bind(*options.debug_listen), DebugPages(alarms))
        except OSError as error:
            host, port = options.debug_listen
            log.error("worker.failed", error=f"--debug-listen {host}:{port}: {error.strerror or error}")
            return _USAGE

    def reporter(state: StateAddress, id: str, address: str, news: News | None) -> Reporter:  # noqa: A002
        from worker.redis_writer import RedisWriter  # its client takes a while to import

        builder = RecordBuilder(
            id,
            epoch,
            address,
            engine,
            models.reports,
            lambda: executor.queue_depth,
            cpu_load,
            inference.idle_for_s,
            executor.queue_time_ms,
        )
        writer = RedisWriter(state, options.namespace, id, epoch, TTL_S)
        return Reporter(writer, builder, log, time.monotonic, random.random, news)

    reporters = Reporters()
    if options.state is not None:
        records = [reporter(options.state, options.id, address, news)]
        if grpc is not None:
            records.append(reporter(options.state, options.id + GRPC_ID_SUFFIX, grpc.address, None))
        reporters = Reporters(records)
        informed.append(reporters)
    process = WorkerProcess(
        sock,
        address,
        serving,
        repository,
        executor,
        reporters,
        DrainTimes(options.settle_s, options.drain_s),
        log,
        time.monotonic,
        grpc,
        debug,
        watch,
        pool,
        standby,
    )
    signals = [signal.SIGTERM]
    if options.parent_pid is None:
        signals.append(signal.SIGINT)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the parent says when it is our turn
    process.heed(signals)  # whoever reads that it has started may say at once that it is to stop
    log.info(
        "worker.started",
        id=options.id,
        pid=os.getpid(),
        engine=options.engine,
        models=[f"{replica.name}@{replica.version}" for replica in models],
        state="none" if options.state is None else options.state.shown,
    )
    peers = None
    if options.loading.peer_listen is not None:
        from worker.loading.peer_server import serve_peers  # gRPC takes a while to import

        peers = serve_peers(options.loading.peer_listen, options.loading.peer_streams, models, log)
    try:
        return await process.run()
    finally:
        if peers is not None:
            await asyncio.to_thread(peers.close)
        if requests is not None:
            requests.close()
        shm.close()
        if leases is not None:
            leases.close()


def _grpc_class() -> type[GrpcSurface]:
    from worker.serving.grpc.server import GrpcSurface  # what does not serve gRPC does not pay for its library

    return GrpcSurface


def _model_cache(options: Options, log: EventLog) -> ModelCache | None:
    if options.model_cache is None:
        return None
    from worker.engines.model_cache import ModelCache

    return ModelCache(options.model_cache.absolute(), options.model_cache_bytes, log)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


def _url(sock: socket.socket) -> str:
    return _url_of(*sock.getsockname()[:2])


def _url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes a while to import

    try:
        return version("warmroute")
    except PackageNotFoundError:
        return "unknown"


def run_forked(argv: list[str]) -> int:
    """Run a worker that a zygote has forked: its stand-in follows the parent, and is followed by the worker."""
    return main(argv, lambda _: True)


def die_with_parent(parent_pid: int) -> bool:
    """Ask the kernel for SIGTERM when the parent ends (prctl(2)); False where it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent_pid


def _exit(code: int) -> None:
    sys.stderr.flush()
    if threading.active_count() > 1:  # an execution that could not be cancelled must not hold up the end
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _exit(main(sys.argv[1:]))
