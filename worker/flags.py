"""A worker's flags, and what is asked of them without a command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from worker.control import IDLE_S, POLL_S, Control
from worker.engines.registry import ENGINES
from worker.execution.queues import Order
from worker.flag_types import (
    MAX_THREADS,
    advertised,
    count,
    header,
    id_,
    listen,
    listen_here,
    name,
    namespace,
    pause,
    pool,
    queue,
    ratio,
    seconds,
    startup,
    state,
    versions,
    weight,
)
from worker.governor import MARK_RATIO, WAIT_S
from worker.loading.settings import add_flags
from worker.recording import MAX_RECORDED
from worker.serving.terms import TENANT_HEADER
from worker.serving.unread import UNREAD_S
from worker.starts import OBJECTIVE_S
from worker.turns import TURN_S
from worker.turns import WAIT_S as TURN_WAIT_S

MAX_BODY_BYTES = 64 << 20
REQUEST_LOG_BYTES = 64 << 20
QUEUE = 64
QUEUE_OF_POOL = 1000
"""So that the law by which a pool grows can see that many wait (:mod:`worker.execution.sizing`)."""


def choices(flag: str) -> tuple[str, ...]:
    """Return the values that ``flag`` takes; none where there is no such flag, or it takes others."""
    found = (action.choices for action in make_parser()._actions if flag in action.option_strings)  # noqa: SLF001
    return tuple(str(choice) for choice in next(found, None) or ())


def has_flag(flag: str) -> bool:
    """Return whether a worker has ``flag``."""
    return any(flag in action.option_strings for action in make_parser()._actions)  # noqa: SLF001


def make_parser() -> argparse.ArgumentParser:
    """Return what reads a worker's command line: every flag with its default and unit."""
    parser = argparse.ArgumentParser(
        prog="warmroute worker",
        description="Serve models over the Open Inference Protocol and report to the shared state how warm they are.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--models", type=Path, metavar="DIR", help="model repository: NAME/VERSION/ directories")
    add("--model", action="append", default=[], type=name, metavar="NAME", help="serve only this model; repeatable")
    add(
        "--versions",
        type=versions,
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
        type=count(0, 64),
        default=0,
        metavar="N",
        help="at most so many models are preloaded at once on this machine, by all workers with this flag; 0: no limit",
    )
    add(
        "--preload-instance",
        type=namespace,
        metavar="NAME",
        help="workers of one name share their turns; default: --id",
    )
    add(
        "--preload-wait-s",
        type=seconds,
        default=TURN_WAIT_S,
        metavar="S",
        help="how long a preload waits for its turn; after that the model is loaded by its first request",
    )
    add(
        "--preload-turn-s",
        type=seconds,
        default=TURN_S,
        metavar="S",
        help="how long a preload may take in its turn; after that it goes on without, and what need not be read before "
        "the model serves comes when it is used; 0: as long as it takes",
    )
    add(
        "--warmup-dir",
        type=Path,
        metavar="DIR",
        help="where warm-up inputs were recorded, for models whose model.yaml names none",
    )
    add(
        "--record-warmup",
        type=count(0, MAX_RECORDED),
        default=0,
        metavar="N",
        help="with --warmup-dir: keep the first request of each shape there, at most N of each model version",
    )
    add(
        "--memory-mark",
        type=ratio,
        default=MARK_RATIO,
        metavar="RATIO",
        help="share of host or device memory that may be in use after a load; 1: loads are never held back",
    )
    add(
        "--memory-wait-s",
        type=seconds,
        default=WAIT_S,
        metavar="S",
        help="how long a load is held back for want of memory before it fails",
    )
    add(
        "--shard",
        type=count(0, 255),
        metavar="K",
        help="hold only this shard of each model, as its manifest.json describes it (warmroute models shard)",
    )
    add("--group", type=namespace, metavar="NAME", help="with --shard: who answers together with it")
    add(
        "--generation",
        type=count(1, 1 << 30),
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
        type=startup,
        metavar="NAME",
        help="with --model-control explicit: load this model at the start; * for all; repeatable",
    )
    add(
        "--poll-s",
        type=pause,
        default=POLL_S,
        metavar="S",
        help="with --model-control poll: look at the repository this often",
    )
    add("--lazy", action="store_true", help="load a model when a request comes for it, not at the start")
    add(
        "--idle-unload-s",
        type=seconds,
        nargs="?",
        const=IDLE_S,
        default=0.0,
        metavar="S",
        help=f"unload a model after so long without a request, and load it for the next; {IDLE_S:g} where S is not "
        "said; 0: never",
    )
    add(
        "--strict-readiness",
        action="store_true",
        help="be ready only while every model of the start is warm, not once one of all is and the others have failed",
    )
    add("--listen", type=listen, default="127.0.0.1:0", metavar="HOST:PORT", help="where to accept; port 0: any free")
    add(
        "--advertise",
        type=advertised,
        metavar="URL",
        help="address that others should use; made from --listen if not set",
    )
    add(
        "--state",
        type=state,
        default="none",
        metavar="URL",
        help="shared state: redis://, rediss:// or unix:///PATH, or none",
    )
    add("--grpc-listen", type=listen, metavar="HOST:PORT", help="serve gRPC, too; needs the extra worker")
    add(
        "--grpc-advertise",
        type=lambda text: advertised(text, "grpc"),
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
        type=listen_here,
        metavar="HOST:PORT",
        help="serve /debug pages on this loopback address",
    )
    add("--namespace", type=namespace, default="default", metavar="NS", help="prefix of the keys in the shared state")
    add("--id", type=id_, metavar="ID", help="this worker's id in the shared state; random if not set")
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
    add("--model-cache-bytes", type=count(1, 1 << 50), default=1 << 30, metavar="N", help="limit of --model-cache")
    add_flags(add, count, listen)
    add("--threads", type=count(1, 1024), default=1, metavar="N", help="threads within one execution")
    add(
        "--concurrency",
        type=count(1, MAX_THREADS),
        metavar="N",
        help="executions at once; the engine's own default if not set",
    )
    add(
        "--pool",
        type=pool,
        metavar="MIN..MAX",
        help="executions at once, as many as the load asks for, instead of --concurrency",
    )
    add(
        "--queue",
        type=queue,
        metavar="N",
        help=f"requests that may wait for an execution, more get 503; pool: as many as there are executions at once; "
        f"{QUEUE}, or with --pool {QUEUE_OF_POOL}, if not set",
    )
    add(
        "--buffers-bytes",
        type=count(0, 1 << 40),
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
        type=header,
        default=TENANT_HEADER,
        metavar="NAME",
        help="with --queue-order fair: the field that says whose turn it is",
    )
    add(
        "--tenant-weight",
        action="append",
        default=[],
        type=weight,
        metavar="TENANT=W",
        help="with --queue-order fair: the turns of a tenant for one of another; 1 if not set; repeatable",
    )
    add("--body-limit-bytes", type=count(1, 1 << 40), default=MAX_BODY_BYTES, metavar="N", help="largest request body")
    add(
        "--bodies-limit-bytes",
        type=count(1, 1 << 40),
        default=4 * MAX_BODY_BYTES,
        metavar="N",
        help="all request bodies that are held at once; more get 503",
    )
    add(
        "--answers-limit-bytes",
        type=count(1, 1 << 40),
        default=4 * MAX_BODY_BYTES,
        metavar="N",
        help="with as much of answers held that callers have not taken yet, inferences get 503",
    )
    add(
        "--answer-unread-s",
        type=seconds,
        default=UNREAD_S,
        metavar="S",
        help="cut an answer of which its caller takes nothing for so long; 0: never",
    )
    add("--load-s", type=seconds, default=0.0, metavar="S", help="engine deterministic: how long a load takes, seconds")
    add(
        "--service-ms",
        type=seconds,
        default=0.0,
        metavar="MS",
        help="engine deterministic: how long an execution takes, ms",
    )
    add(
        "--settle-s",
        type=seconds,
        default=0.5,
        metavar="S",
        help="on SIGTERM: go on accepting this long, as callers learn of it",
    )
    add("--drain-s", type=seconds, default=30.0, metavar="S", help="on SIGTERM: finish what runs within this time")
    add("--parent-pid", type=count(1, 1 << 30), metavar="P", help="drain when this parent process ends; ignore SIGINT")
    add("--zygote", metavar="PATH", help="have the zygote at PATH fork this worker; of `warmroute worker` only")
    add(
        "--request-log",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for each inference that has an x-request-id (docs/replay.md)",
    )
    add(
        "--request-log-bytes",
        type=count(1 << 16, 1 << 40),
        default=REQUEST_LOG_BYTES,
        metavar="N",
        help="at this size the file of --request-log becomes FILE.1, and a new one begins",
    )
    add("--log-format", choices=("json", "text"), default="json", help="how events on standard error look")
    add(
        "--start-objective-s",
        type=seconds,
        default=OBJECTIVE_S,
        metavar="S",
        help="tell of a start that takes longer, seconds; 0: of none",
    )
    add("--baseline", type=Path, metavar="FILE", help="baseline of start times, from bench coldstart --fit")
    return parser
