"""The worker's command line: every flag with its default and unit. Nothing else configures a worker."""

from __future__ import annotations

import argparse
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from router.urls import check_address
from router.wire import MAX_ID_CHARS
from worker.control import IDLE_S, LEAST_POLL_S, POLL_S, Behaviour, Control
from worker.engines.registry import ENGINES
from worker.execution.queues import MAX_WEIGHT, Order
from worker.governor import MARK_RATIO, WAIT_S
from worker.loading.settings import LoadOptions, add_flags
from worker.recording import MAX_RECORDED
from worker.serving.terms import MAX_TENANT_CHARS, TENANT_HEADER
from worker.starts import OBJECTIVE_S
from worker.state_address import SCHEMES, StateAddress
from worker.store import MAX_VERSIONS, NAME, VERSION, ShardPlace, Versions
from worker.turns import WAIT_S as TURN_WAIT_S
from worker.turns import TurnOptions

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_ADDRESS = ("0.0.0.0", "::", "")
GRPC_ID_SUFFIX = ".grpc"
"""What the id of a worker's second record in the shared state has behind the worker's own: that of its gRPC address."""
MAX_BODY_BYTES = 64 << 20
MAX_THREADS = 1024
QUEUE = 64
QUEUE_OF_POOL = 1000
"""So that the law by which a pool grows can see that many wait (:mod:`worker.execution.sizing`)."""
_FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")


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


def parse(argv: list[str]) -> Options:
    """Read the command line; what is wrong with it ends the process with code 2, naming the flag."""
    parser = _parser()
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
        turns=TurnOptions(given.preload_limit, given.preload_instance or own_id, given.preload_wait_s),
        warmup_dir=given.warmup_dir,
        record_warmup=given.record_warmup,
        memory_mark_ratio=given.memory_mark,
        memory_wait_s=given.memory_wait_s,
        shard=None if given.shard is None else ShardPlace(given.shard, given.group or "", given.generation),
    )


def choices(flag: str) -> tuple[str, ...]:
    """Return the values that ``flag`` takes; none where there is no such flag, or it takes others."""
    found = (action.choices for action in _parser()._actions if flag in action.option_strings)  # noqa: SLF001
    return tuple(str(choice) for choice in next(found, None) or ())


def _check_grpc(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    host, _ = given.grpc_listen
    if given.grpc_advertise is None and host in EVERY_ADDRESS:
        parser.error(
            f"--grpc-listen {host}: every address of the host; say with --grpc-advertise URL which others should use"
        )
    most = MAX_ID_CHARS - len(GRPC_ID_SUFFIX)
    if given.id is not None and len(given.id) > most:
        parser.error(f"--id: {len(given.id)} characters, with --grpc-listen at most {most}")


def has_flag(flag: str) -> bool:
    """Return whether a worker has ``flag``."""
    return any(flag in action.option_strings for action in _parser()._actions)  # noqa: SLF001


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute worker",
        description="Serve models over the Open Inference Protocol and report to the shared state how warm they are.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--models", type=Path, metavar="DIR", help="model repository: NAME/VERSION/ directories")
    add("--model", action="append", default=[], type=_name, metavar="NAME", help="serve only this model; repeatable")
    add(
        "--versions",
        type=_versions,
        default="latest",
        metavar="WHICH",
        help="versions of each model to serve: latest, latest:N, all, or numbers such as 1,3",
    )
    add(
        "--standby",
        action="store_true",
        help="load and prove everything, and listen once nobody else with this flag does at the address of --listen",
    )
    add(
        "--preload-limit",
        type=_count(0, 64),
        default=0,
        metavar="N",
        help="at most so many models are preloaded at once on this machine, by all workers with this flag; 0: no limit",
    )
    add("--preload-instance", type=_group, metavar="NAME", help="workers of one name share their turns; default: --id")
    add(
        "--preload-wait-s",
        type=_seconds,
        default=TURN_WAIT_S,
        metavar="S",
        help="how long a preload waits for its turn; after that the model is loaded by its first request",
    )
    add(
        "--warmup-dir",
        type=Path,
        metavar="DIR",
        help="where warm-up inputs were recorded, for models whose model.yaml names none",
    )
    add(
        "--record-warmup",
        type=_count(0, MAX_RECORDED),
        default=0,
        metavar="N",
        help="with --warmup-dir: keep the first request of each shape there, at most N of each model version",
    )
    add(
        "--memory-mark",
        type=_ratio,
        default=MARK_RATIO,
        metavar="RATIO",
        help="share of host or device memory that may be in use after a load; 1: loads are never held back",
    )
    add(
        "--memory-wait-s",
        type=_seconds,
        default=WAIT_S,
        metavar="S",
        help="how long a load is held back for want of memory before it fails",
    )
    add(
        "--shard",
        type=_count(0, 255),
        metavar="K",
        help="hold only this shard of each model, as its manifest.json describes it (warmroute models shard)",
    )
    add("--group", type=_group, metavar="NAME", help="with --shard: who answers together with it")
    add(
        "--generation",
        type=_count(1, 1 << 30),
        default=1,
        metavar="N",
        help="with --shard: shards of different generations do not belong together",
    )
    add(
        "--model-control",
        choices=[one.value for one in Control],
        default=Control.NONE.value,
        help="what is loaded: everything, as the worker starts; what is asked for; or what the repository holds",
    )
    add(
        "--load-model",
        action="append",
        default=[],
        type=_startup,
        metavar="NAME",
        help="with --model-control explicit: load this model at the start; * for all; repeatable",
    )
    add(
        "--poll-s",
        type=_pause,
        default=POLL_S,
        metavar="S",
        help="with --model-control poll: look at the repository this often",
    )
    add("--lazy", action="store_true", help="load a model when a request comes for it, not at the start")
    add(
        "--idle-unload-s",
        type=_seconds,
        nargs="?",
        const=IDLE_S,
        default=0.0,
        metavar="S",
        help=f"unload a model after so long without a request, and load it for the next; {IDLE_S:g} where S is not "
        "said; 0: never",
    )
    add("--listen", type=_listen, default="127.0.0.1:0", metavar="HOST:PORT", help="where to accept; port 0: any free")
    add(
        "--advertise",
        type=_advertised,
        metavar="URL",
        help="address that others should use; made from --listen if not set",
    )
    add(
        "--state",
        type=_state,
        default="none",
        metavar="URL",
        help="shared state: redis://, rediss:// or unix:///PATH, or none",
    )
    add("--grpc-listen", type=_listen, metavar="HOST:PORT", help="serve gRPC, too; needs the extra worker")
    add(
        "--grpc-advertise",
        type=lambda text: _advertised(text, "grpc"),
        metavar="URL",
        help="address that others should use for gRPC; made from --grpc-listen if not set",
    )
    add(
        "--load-reports",
        choices=("asked", "always"),
        default="asked",
        help="which answers carry a load report (ORCA): those to requests that ask for one, or all",
    )
    add(
        "--debug-listen",
        type=_listen_here,
        metavar="HOST:PORT",
        help="serve /debug pages on this loopback address",
    )
    add("--namespace", type=_namespace, default="default", metavar="NS", help="prefix of the keys in the shared state")
    add("--id", type=_id, metavar="ID", help="this worker's id in the shared state; random if not set")
    add(
        "--state-password-file",
        type=Path,
        metavar="FILE",
        help="password of the shared state, instead of one in its URL",
    )
    add("--state-ca-file", type=Path, metavar="FILE", help="CA bundle for rediss://")
    add("--state-cert-file", type=Path, metavar="FILE", help="client certificate for rediss://")
    add("--state-key-file", type=Path, metavar="FILE", help="key of the client certificate")
    add(
        "--engine",
        default="onnxruntime",
        metavar="NAME",
        help=f"what executes the models: {', '.join(ENGINES)}, or one that another package brings",
    )
    add("--libraries", type=Path, metavar="DIR", help="where native libraries lie that a model.yaml may name")
    add("--model-cache", type=Path, metavar="DIR", help="keep optimised models here, for quicker starts")
    add("--model-cache-bytes", type=_count(1, 1 << 50), default=1 << 30, metavar="N", help="limit of --model-cache")
    add_flags(add, _count, _listen)
    add("--threads", type=_count(1, 1024), default=1, metavar="N", help="threads within one execution")
    add(
        "--concurrency",
        type=_count(1, MAX_THREADS),
        metavar="N",
        help="executions at once; the engine's own default if not set",
    )
    add(
        "--pool",
        type=_pool,
        metavar="MIN..MAX",
        help="executions at once, as many as the load asks for, instead of --concurrency",
    )
    add(
        "--queue",
        type=_queue,
        metavar="N",
        help=f"requests that may wait for an execution, more get 503; pool: as many as there are executions at once; "
        f"{QUEUE}, or with --pool {QUEUE_OF_POOL}, if not set",
    )
    add(
        "--buffers-bytes",
        type=_count(0, 1 << 40),
        default=0,
        metavar="N",
        help="memory that bodies, joined inputs and large outputs use again, in blocks; 0: none",
    )
    add(
        "--queue-order",
        choices=[one.value for one in Order],
        default=Order.FIFO.value,
        help="who is next: as they came, by priority, or by turns between tenants",
    )
    add(
        "--tenant-header",
        type=_header,
        default=TENANT_HEADER,
        metavar="NAME",
        help="with --queue-order fair: the field that says whose turn it is",
    )
    add(
        "--tenant-weight",
        action="append",
        default=[],
        type=_weight,
        metavar="TENANT=W",
        help="with --queue-order fair: the turns of a tenant for one of another; 1 if not set; repeatable",
    )
    add("--body-limit-bytes", type=_count(1, 1 << 40), default=MAX_BODY_BYTES, metavar="N", help="largest request body")
    add(
        "--bodies-limit-bytes",
        type=_count(1, 1 << 40),
        default=4 * MAX_BODY_BYTES,
        metavar="N",
        help="all request bodies that are held at once; more get 503",
    )
    add(
        "--load-s", type=_seconds, default=0.0, metavar="S", help="engine deterministic: how long a load takes, seconds"
    )
    add(
        "--service-ms",
        type=_seconds,
        default=0.0,
        metavar="MS",
        help="engine deterministic: how long an execution takes, ms",
    )
    add(
        "--settle-s",
        type=_seconds,
        default=0.5,
        metavar="S",
        help="on SIGTERM: go on accepting this long, as callers learn of it",
    )
    add("--drain-s", type=_seconds, default=30.0, metavar="S", help="on SIGTERM: finish what runs within this time")
    add("--parent-pid", type=_count(1, 1 << 30), metavar="P", help="drain when this parent process ends; ignore SIGINT")
    add("--zygote", metavar="PATH", help="have the zygote at PATH fork this worker; of `warmroute worker` only")
    add("--log-format", choices=("json", "text"), default="json", help="how events on standard error look")
    add(
        "--start-objective-s",
        type=_seconds,
        default=OBJECTIVE_S,
        metavar="S",
        help="tell of a start that takes longer, seconds; 0: of none",
    )
    add("--baseline", type=Path, metavar="FILE", help="baseline of start times, from bench coldstart --fit")
    return parser


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return text


def _startup(text: str) -> str:
    return text if text == "*" else _name(text)


def _pause(text: str) -> float:
    value = _seconds(text)
    if value < LEAST_POLL_S:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, {LEAST_POLL_S:g} or more")
    return value


def _versions(text: str) -> Versions:
    if text in ("latest", "all"):
        return Versions(1 if text == "latest" else 0)
    kind, _, count = text.partition(":")
    if kind == "latest" and re.fullmatch("[1-9][0-9]?", count) and int(count) <= MAX_VERSIONS:
        return Versions(int(count))
    named = tuple(dict.fromkeys(text.split(",")))
    if len(named) <= MAX_VERSIONS and all(VERSION.fullmatch(version) for version in named):
        return Versions(named=named)
    raise argparse.ArgumentTypeError(
        f"{text!r}: expected latest, latest:N, all, or numbers such as 1,3; at most {MAX_VERSIONS} versions"
    )


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return text


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 64 of A-Z a-z 0-9 . _ -")
    return text


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9001 or [::1]:9001")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _listen_here(text: str) -> tuple[str, int]:
    host, port = _listen(text)
    if not (host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host)):
        raise argparse.ArgumentTypeError(f"{text!r}: the pages ask for no password; use a loopback address")
    return host, port


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0, up to 1")
    return value


def _group(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 64 of A-Z a-z 0-9 . _ -")
    return text


def _advertised(text: str, scheme: str = "http") -> str:
    address = text.removesuffix("/")
    try:
        check_address(address)
    except ValueError:
        address = ""
    if not address.startswith(f"{scheme}://"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {scheme}://HOST:PORT")
    return address


def _state(text: str) -> str:
    parts = urlsplit(text)
    place = parts.netloc.rpartition("@")[
        2
    ]  # of a socket none: clients would pass over the first part of a relative path
    if text != "none" and (parts.scheme not in SCHEMES or (parts.scheme == "unix" and place)):
        raise argparse.ArgumentTypeError("expected redis://, rediss:// or unix:///PATH, or none")
    return text


def _pool(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,4})\.\.([0-9]{1,4})", text)
    least, most = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= least < most <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected MIN..MAX, as 4..16; from 1 to {MAX_THREADS}")
    return least, most


def _queue(text: str) -> int | str:
    return text if text == "pool" else _count(0, 1 << 20)(text)


def _queue_limit(given: argparse.Namespace) -> int | None:
    """Return how many may wait; None: as many as there are threads."""
    if given.queue is None:
        return QUEUE if given.pool is None else QUEUE_OF_POOL
    return None if given.queue == "pool" else int(given.queue)


def _header(text: str) -> str:
    if not _FIELD.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the name of a field, such as {TENANT_HEADER}")
    return text


def _weight(text: str) -> tuple[str, float]:
    tenant, equals, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not equals or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT or not 1 <= len(tenant) <= MAX_TENANT_CHARS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected TENANT=W, the weight from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}, as gold=4"
        )
    return tenant, weight


def _count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least} to {most}")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 0 or more")
    return value


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
