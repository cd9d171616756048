"""The way of one inference, whichever surface it came in on: the model, its gate, a place, the run, and the counts."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from router.model import State
from worker.engines import EngineError, GivenUpError, InputError, says_no_memory, told
from worker.execution import DeadlineError, QueueFullError
from worker.execution.queues import DEFAULT_TICKET
from worker.gate import GateClosedError
from worker.models import UnknownModelError
from worker.readiness import not_ready
from worker.served import AtLimitError, UnloadedError
from worker.serving.errors import OUT_OF_MEMORY, RequestError
from worker.serving.terms import take_out, with_parameters
from worker.serving.unread import Unread
from worker.statistics import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from worker.copies import LoadedCopy
    from worker.engines import Array, Cancellation, LoadedModel
    from worker.execution import Executor, Place, Ticket
    from worker.execution.batches import Batcher
    from worker.execution.buffers import Buffers
    from worker.log import EventLog
    from worker.models import Models
    from worker.recording import Recorder
    from worker.replica import HeldReplica
    from worker.request_log import Note, RequestLog
    from worker.serving.fit import InferRequest
    from worker.store import Batching, ModelFiles

T = TypeVar("T")

WORKER_HEADER = "warmroute-worker"
_GONE = 499
"""The status, for the request log, of a request whose caller did not wait for its answer."""


class Inference:
    """What every surface asks for inferences. Used on the event loop only."""

    def __init__(
        self,
        models: Models,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        log: EventLog | None = None,
        recorder: Recorder | None = None,
        buffers: Buffers | None = None,
        requests: RequestLog | None = None,
        unread: Unread | None = None,
        *,
        strict_readiness: bool = False,
    ) -> None:
        """``clock``: monotonic seconds, of the executor, too. ``recorder``: keeps what was asked.

        ``unread``: the answers that are not taken yet; without it they have no limit.

        ``buffers``: memory for inputs and outputs; without it they have their own. ``requests``: gets a line of each.
        ``strict_readiness``: be ready only while each model of the start is warm.
        """
        self._models = models
        self._executor = executor
        self._clock = clock
        self._log = log
        self._recorder = recorder
        self.buffers = buffers
        self._requests = requests
        self._strict_readiness = strict_readiness
        self._batchers: WeakKeyDictionary[LoadedCopy, Batcher] = WeakKeyDictionary()
        self._last_active: float | None = None
        self._answered = self._failed = 0
        self.unread = Unread() if unread is None else unread
        self.draining = False
        """Say not ready from now on; what arrives is still answered."""

    def idle_for_s(self) -> float | None:
        """Return for how many seconds no inference request was at work; None where there never was one."""
        if self._executor.in_flight:
            return 0.0
        return None if self._last_active is None else max(0.0, self._clock() - self._last_active)

    def served(self) -> tuple[int, int]:
        """Return how many requests were answered as asked, and how many were not, since the start."""
        return self._answered, self._failed

    def check_ready(self) -> None:
        """Do nothing where the worker as a whole takes requests (:func:`worker.readiness.not_ready`).

        Raises:
            RequestError: it does not, or drains; the text is the reason.
        """
        self._check_draining()
        replica = not_ready(self._models, strict=self._strict_readiness)
        if replica is not None:
            pass_gate(replica)

    def check_model_ready(self, name: str, version: str | None) -> HeldReplica:
        """Return the replica that a request would be for, where it is proven warm and the worker is not draining.

        Raises:
            RequestError: otherwise; the text is the reason.
        """
        replica = self.find(name, version)
        self._check_draining()
        pass_gate(replica)
        return replica

    def _check_draining(self) -> None:
        if self.draining:
            raise RequestError("the worker is draining", 503, 1)

    def find(self, name: str, version: str | None) -> HeldReplica:
        """Return the replica that a request is for; without a ``version`` the one that the worker prefers.

        Raises:
            RequestError: there is none.
        """
        try:
            return self._models.find(name, version)
        except UnknownModelError as error:
            raise RequestError(str(error), 404) from None

    def loaded(self, replica: HeldReplica) -> LoadedModel:
        """Return the loaded model of ``replica``, whose tensors are known.

        Raises:
            RequestError: it is not loaded.
        """
        if replica.model is None:
            pass_gate(replica)
            raise RequestError(f"model {replica.name!r} is not loaded", 503, 1)
        return replica.model

    @contextmanager
    def receiving(self, get: Callable[[str], str | None]) -> Iterator[None]:
        """Hold a place while a message of unknown length is received, before it is known for which model it is.

        ``get`` returns the fields of its head.

        Raises:
            RequestError: there is no room.
        """
        note = None if self._requests is None else self._requests.begin("", get)
        try:
            with self._executor.place():
                yield
        except QueueFullError as error:
            self._failed += 1
            if note is not None:
                note.end(503)
            raise RequestError(str(error), 503, error.retry_after_s) from None

    def admit(
        self,
        name: str,
        version: str | None,
        ticket: Ticket = DEFAULT_TICKET,
        get: Callable[[str], str | None] | None = None,
        came: float | None = None,
    ) -> AbstractContextManager[Admitted]:
        """Let a request in: past its model's gate and to a place, which it has until the end of the ``with`` block.

        Whatever becomes of it is counted. ``ticket``: what its head says of its turn and its time. ``get`` returns the
        fields of its head, which was here at ``came``; now, where that is not said.

        Raises:
            RequestError: there is no such model, it is not warm, there is no room, its time was over, or the run
                failed.
        """
        if self._requests is not None and get is not None and not ticket.background:
            note = self._requests.begin(name, get)
            if note is not None:
                return self._noted(note, name, version, ticket, came)
        return self._let_in(name, version, ticket, came)

    @contextmanager
    def _noted(
        self, note: Note, name: str, version: str | None, ticket: Ticket, came: float | None
    ) -> Iterator[Admitted]:
        status = 500
        try:
            with self._let_in(name, version, ticket, came, note) as admitted:
                yield admitted
            status = 200
        except RequestError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = _GONE
            raise
        finally:
            note.end(status)

    @contextmanager
    def _let_in(
        self, name: str, version: str | None, ticket: Ticket, came: float | None, note: Note | None = None
    ) -> Iterator[Admitted]:
        try:
            replica = self._models.wanted(name, version, background=ticket.background)
        except UnknownModelError as error:
            raise RequestError(str(error), 404) from None
        if note is not None:
            note.version = replica.version
        began = self._last_active = self._clock()
        if not replica.gate.is_open and replica.state is not State.DRAINING:
            replica.counts.before_warm += 1
        pass_gate(replica)
        self.loaded(replica)
        replica.statistics.began()
        try:
            with (
                _errors(replica),
                replica.request(background=ticket.background),
                self._executor.place() as place,
            ):
                if why := self.unread.full:
                    raise AtLimitError(why)
                yield Admitted(self, replica, place, ticket, began if came is None else came, note)
        except BaseException:
            self._failed += 1
            replica.statistics.failed(self._clock() - began)
            raise
        else:
            self._answered += 1
        finally:
            self._last_active = self._clock()

    def clock(self) -> float:
        """The time now, in monotonic seconds."""
        return self._clock()

    def record(self, copy: LoadedCopy, request: InferRequest, ticket: Ticket) -> None:
        """Have a request that was answered kept, where requests are kept and somebody asked it; in any thread."""
        if self._recorder is not None and not ticket.background:
            self._recorder.note(copy.files, request.inputs)

    def batcher(self, replica: HeldReplica, copy: LoadedCopy, batching: Batching) -> Batcher:
        """Return what joins the requests to ``copy`` as ``batching`` says."""
        batcher = self._batchers.get(copy)
        if batcher is None:
            from worker.execution.batches import Batcher  # most models have none

            def given_up(why: str) -> None:
                if self._log is not None:
                    remedy = "take batching out of its model.yaml"
                    self._log.warning(
                        "model.batching_off", model=replica.name, version=replica.version, reason=why, remedy=remedy
                    )

            batcher = self._batchers[copy] = Batcher(replica, copy, batching, self._executor, given_up, self.buffers)
        return batcher


class Admitted:
    """An inference that has a place."""

    def __init__(
        self,
        inference: Inference,
        replica: HeldReplica,
        place: Place,
        ticket: Ticket,
        came: float,
        note: Note | None = None,
    ) -> None:
        self.replica = replica
        self._note = note
        self._inference = inference
        self._place = place
        self._ticket = ticket
        self._came = came

    async def run(
        self,
        read: Callable[[LoadedModel], InferRequest],
        write: Callable[[ModelFiles, InferRequest, list[Array]], T],
        parameters: Mapping[str, object],
        *,
        quick: bool,
    ) -> T:
        """Read the request, execute it and write the answer, all in a thread: the loop does not pay for it.

        All three see the copy of the model that serves when the thread comes to it, whatever takes over meanwhile.
        Where requests are joined, this one is read before that, on the loop if it is ``quick`` to read, and all see the
        copy that served then. ``parameters``: those of the request, where they are known already.
        """
        if parameters:
            self._ticket = with_parameters(self._ticket, parameters, self._came)
        batching = self.replica.files.batching
        if batching is not None:
            return await self._run_joined(read, write, batching, quick=quick)
        replica, clock, buffers, note = self.replica, self._inference.clock, self._inference.buffers, self._note
        submitted = clock()

        def call(cancellation: Cancellation) -> T:
            begun = clock()
            if note is not None:
                note.queue_s = begun - submitted
            with replica.hold() as copy:
                request = read(copy.model)
                known = clock()
                self._check_time(request, known)
                names = [output.spec.name for output in request.outputs]
                arrays = replica.execute(copy, request.inputs, names, request.parameters, cancellation, buffers)
                replica.statistics.executed()
                ran = clock()
                if note is not None:
                    note.run_s = ran - known
                answer = write(copy.files, request, arrays)
                self._inference.record(copy, request, self._ticket)
            replica.statistics.succeeded(Times(begun - submitted, known - begun, ran - known, clock() - ran))
            return answer

        return await self._place.run(call, self._ticket)

    async def _run_joined(
        self,
        read: Callable[[LoadedModel], InferRequest],
        write: Callable[[ModelFiles, InferRequest, list[Array]], T],
        batching: Batching,
        *,
        quick: bool,
    ) -> T:
        from worker.execution.batches import Member

        clock = self._inference.clock
        with self.replica.hold() as copy:
            batcher = self._inference.batcher(self.replica, copy, batching)
            began = clock()
            request = read(copy.model) if quick else await asyncio.to_thread(read, copy.model)
            known = clock()
            self._check_time(request, known)

            def write_part(arrays: list[Array]) -> T:
                answer = write(copy.files, request, arrays)
                self._inference.record(copy, request, self._ticket)
                return answer

            member = Member(
                request.inputs,
                tuple(output.spec.name for output in request.outputs),
                request.parameters,
                self._ticket,
                write_part,
                known - began,
            )
            answer = await batcher.run(member, self._place)
            if self._note is not None and member.times is not None:
                self._note.queue_s, self._note.run_s = member.times.queue_s, member.times.infer_s
            return answer

    def _check_time(self, request: InferRequest, now: float) -> None:
        """Keep to what the parameters say, now that they are known for sure, and leave the engine its own."""
        if not request.parameters:
            return
        self._ticket = with_parameters(self._ticket, request.parameters, self._came)
        take_out(request.parameters)
        if self._ticket.deadline is not None and now >= self._ticket.deadline:
            raise DeadlineError(began=False)


@contextmanager
def _errors(replica: HeldReplica) -> Iterator[None]:
    """Count what comes to a bad end, and make it an error for the caller."""
    try:
        yield
    except QueueFullError as error:
        replica.counts.rejected += 1
        raise RequestError(str(error), 503, error.retry_after_s) from None
    except AtLimitError as error:
        replica.counts.rejected += 1
        raise RequestError(str(error), 503, 1) from None
    except UnloadedError as error:
        replica.counts.rejected += 1
        raise RequestError(str(error), 503, 1) from None
    except DeadlineError as error:
        replica.counts.cancelled += 1
        text = f"model {replica.name!r}: {error}"
        # What never ran may do so elsewhere; what ran for longer than its caller waits would not be quicker there.
        raise (RequestError(text, 504, overdue=True) if error.began else RequestError(text, 503, 1)) from None
    except asyncio.CancelledError:
        replica.counts.cancelled += 1
        raise
    except GivenUpError:
        replica.counts.cancelled += 1
        raise RequestError(f"model {replica.name!r}: the worker stopped before this was done", 503, 1) from None
    except InputError as error:
        raise RequestError(f"model {replica.name!r}: {told(error)}") from None
    except EngineError as error:
        replica.counts.failed += 1
        text = told(error)
        why = f"{OUT_OF_MEMORY}: {text}" if says_no_memory(text) else text
        raise RequestError(f"model {replica.name!r}: {why}", 500) from None
    except MemoryError:
        replica.counts.failed += 1
        raise RequestError(f"model {replica.name!r}: {OUT_OF_MEMORY}", 500) from None


def pass_gate(replica: HeldReplica) -> None:
    """Do nothing where the gate of ``replica`` is open.

    Raises:
        RequestError: it is closed.
    """
    try:
        replica.gate.check()
    except GateClosedError as error:
        raise RequestError(str(error), 503, error.retry_after_s) from None
