"""The worker's command line: every flag with its default and unit. Nothing else configures a worker."""

from __future__ import annotations

import argparse
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from router.wire import MAX_ID_CHARS
from worker.control import Behaviour, Control
from worker.execution.queues import Order
from worker.flags import QUEUE, QUEUE_OF_POOL, make_parser
from worker.loading.settings import LoadOptions
from worker.state_address import StateAddress
from worker.store import ShardPlace, Versions
from worker.turns import TurnOptions

if TYPE_CHECKING:
    pass

EVERY_ADDRESS = ("0.0.0.0", "::", "")
GRPC_ID_SUFFIX = ".grpc"
"""What the id of a worker's second record in the shared state has behind the worker's own: that of its gRPC address."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was told; times in seconds."""

    models: Path | None
    model: tuple[str, ...]
    versions: Versions
    behaviour: Behaviour
    host: str
    port: int
    state: StateAddress | None
    namespace: str
    id: str
    engine: str
    loading: LoadOptions
    libraries: Path | None
    model_cache: Path | None
    model_cache_bytes: int
    threads: int
    concurrency: int | None
    pool: tuple[int, int] | None
    buffers_bytes: int
    queue: int | None
    order: Order
    tenant_header: str
    tenant_weights: dict[str, float]
    load_s: float
    service_s: float
    body_limit_bytes: int
    bodies_limit_bytes: int
    answers_limit_bytes: int
    answer_unread_s: float
    settle_s: float
    drain_s: float
    advertise: str | None
    grpc_listen: tuple[str, int] | None
    grpc_advertise: str | None
    load_reports: str
    debug_listen: tuple[str, int] | None
    parent_pid: int | None
    json_log: bool
    start_objective_s: float
    baseline: Path | None
    shard: ShardPlace | None
    standby: bool
    turns: TurnOptions
    warmup_dir: Path | None
    record_warmup: int
    memory_mark_ratio: float
    memory_wait_s: float
    request_log: Path | None
    request_log_bytes: int
    strict_readiness: bool


def parse(argv: list[str]) -> Options:
    """Read the command line; what is wrong with it ends the process with code 2, naming the flag."""
    parser = make_parser()
    given = parser.parse_args(argv)
    if given.zygote is not None:
        parser.error("--zygote: a worker cannot; use `warmroute worker` or `python -m worker.zygote_client`")
    host, port = given.listen
    if given.advertise is None and given.state != "none" and host in EVERY_ADDRESS:
        parser.error(
            f"--listen {host}: every address of the host; say with --advertise URL which one others should use"
        )
    if given.grpc_listen is not None and given.state != "none":
        _check_grpc(parser, given)
    if given.shm and not given.id:
        parser.error("--shm: needs --id, under which the next worker finds what this one has kept")
    state = None
    if given.state != "none":
        state = StateAddress(
            given.state,
            _secret(parser, given.state_password_file),
            _file(parser, "--state-ca-file", given.state_ca_file),
            _file(parser, "--state-cert-file", given.state_cert_file),
            _file(parser, "--state-key-file", given.state_key_file),
        )
    if given.shard is None and (given.group or given.generation != 1):
        parser.error("--group, --generation: only with --shard")
    if given.shard is not None and given.models is None:
        parser.error("--shard: there is nothing to hold a shard of; give --models DIR")
    if given.standby:
        also = next((f for f in ("grpc_listen", "debug_listen", "peer_listen") if getattr(given, f) is not None), None)
        if also is not None:
            parser.error(f"--standby: not with --{also.replace('_', '-')}: only --listen is handed over")
        if not port:
            parser.error("--standby: those who take turns need one port; name it with --listen HOST:PORT")
    if given.record_warmup and given.warmup_dir is None:
        parser.error(f"--record-warmup {given.record_warmup}: say with --warmup-dir DIR where to")
    if given.pool is not None and given.concurrency is not None:
        parser.error("--pool and --concurrency exclude each other; give one of them")
    control = Control(given.model_control)
    if given.load_model and control is not Control.EXPLICIT:
        parser.error(f"--load-model {given.load_model[0]}: only with --model-control {Control.EXPLICIT.value}")
    if control is Control.POLL and given.models is None:
        parser.error("--model-control poll: there is nothing to look at; give --models DIR")
    own_id = given.id or f"worker-{secrets.token_hex(4)}"
    return Options(
        models=given.models,
        model=tuple(given.model),
        versions=given.versions,
        behaviour=Behaviour(
            control,
            given.poll_s,
            tuple(dict.fromkeys(given.load_model)),
            given.lazy,
            given.idle_unload_s,
            given.settle_s if state is not None else 0.0,  # else nobody is told that a model goes
            given.drain_s,
        ),
        host=host,
        port=port,
        state=state,
        namespace=given.namespace,
        id=own_id,
        engine=given.engine,
        loading=LoadOptions.read(given),
        libraries=given.libraries,
        model_cache=given.model_cache,
        model_cache_bytes=given.model_cache_bytes,
        threads=given.threads,
        concurrency=given.concurrency,
        pool=given.pool,
        buffers_bytes=given.buffers_bytes,
        queue=_queue_limit(given),
        order=Order(given.queue_order),
        tenant_header=given.tenant_header,
        tenant_weights=dict(given.tenant_weight),
        load_s=given.load_s,
        service_s=given.service_ms / 1000,
        body_limit_bytes=given.body_limit_bytes,
        bodies_limit_bytes=given.bodies_limit_bytes,
        answers_limit_bytes=given.answers_limit_bytes,
        answer_unread_s=given.answer_unread_s,
        settle_s=given.settle_s,
        drain_s=given.drain_s,
        advertise=given.advertise,
        grpc_listen=given.grpc_listen,
        grpc_advertise=given.grpc_advertise,
        load_reports=given.load_reports,
        debug_listen=given.debug_listen,
        parent_pid=given.parent_pid,
        json_log=given.log_format == "json",
        start_objective_s=given.start_objective_s,
        baseline=given.baseline,
        standby=given.standby,
        turns=TurnOptions(
            given.preload_limit, given.preload_instance or own_id, given.preload_wait_s, given.preload_turn_s
        ),
        warmup_dir=given.warmup_dir,
        record_warmup=given.record_warmup,
        memory_mark_ratio=given.memory_mark,
        memory_wait_s=given.memory_wait_s,
        request_log=given.request_log,
        request_log_bytes=given.request_log_bytes,
        strict_readiness=given.strict_readiness,
        shard=None if given.shard is None else ShardPlace(given.shard, given.group or "", given.generation),
    )


def _check_grpc(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    host, _ = given.grpc_listen
    if given.grpc_advertise is None and host in EVERY_ADDRESS:
        parser.error(
            f"--grpc-listen {host}: every address of the host; say with --grpc-advertise URL which others should use"
        )
    most = MAX_ID_CHARS - len(GRPC_ID_SUFFIX)
    if given.id is not None and len(given.id) > most:
        parser.error(f"--id: {len(given.id)} characters, with --grpc-listen at most {most}")


def _queue_limit(given: argparse.Namespace) -> int | None:
    """Return how many may wait; None: as many as there are threads."""
    if given.queue is None:
        return QUEUE if given.pool is None else QUEUE_OF_POOL
    return None if given.queue == "pool" else int(given.queue)


def _file(parser: argparse.ArgumentParser, flag: str, path: Path | None) -> str | None:
    if path is not None and not path.is_file():
        parser.error(f"{flag} {path}: no such file")
    return None if path is None else str(path)


def _secret(parser: argparse.ArgumentParser, path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--state-password-file {path}: {error}")
