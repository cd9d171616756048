"""A model that serves at once from a session that is quick to make, and swaps it for a quicker one made meanwhile.

Much of what an engine does when it makes a session pays only later: ONNX Runtime lays every weight out anew for its
kernels (*prepacking*), which on a CPU is nearly all of the time. So the first session is made without that and serves;
the second is made in the background, proven by the warm-up runs, and takes over between two runs. Whoever runs the
model notices nothing but the speed. Where the second cannot be made, the first goes on serving, and says why.
"""

from __future__ import annotations

import contextlib
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from worker.crew import Crew
from worker.engines import Cancellation, Detachable, EngineError, GivenUpError, WritesInto, told
from worker.engines.background import lower_priority, turn
from worker.memory import trim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from worker.engines import Array, LoadedModel, Parameters
    from worker.log import EventLog

GIVE_UP_S = 30.0
"""How long an unload waits for a second session that is being made; ONNX Runtime looks between two operators."""
SETTLE_S = 0.25
"""How long after the first session's proof the second is begun: the first answers to callers have the machine alone."""


class Phase(StrEnum):
    """How far a model is between its two sessions."""

    FIRST = "first"  # it is not proven yet
    BUILDING = "building"
    PROVING = "proving"
    SECOND = "second"  # it serves
    FAILED = "failed"  # the first one serves on
    GIVEN_UP = "given_up"  # the model was unloaded meanwhile, or its files are being changed


class _Session:
    """A session and how many runs are under way in it."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.runs = 0


class TwoPhaseModel:
    """A :class:`worker.engines.LoadedModel` whose session is swapped for a better one while it serves.

    ``build`` makes the second session (blocking, told by its cancellation to stop), ``prove`` runs it and raises where
    it does not do what it should. Both are called in one thread of their own, after ``proofs`` runs of the first
    session have succeeded (the warm-up runs) and ``settle_s`` have passed.
    """

    def __init__(
        self,
        first: LoadedModel,
        build: Callable[[Cancellation], LoadedModel],
        prove: Callable[[LoadedModel, Cancellation], None],
        proofs: int,
        *,
        name: str,
        log: EventLog,
        behind: bool = True,
        settle_s: float = SETTLE_S,
    ) -> None:
        """``behind``: make the second session in a thread of low priority, which those that it starts inherit."""
        self.platform = first.platform
        self.device = first.device
        self.inputs = first.inputs
        self.outputs = first.outputs
        self._build = build
        self._prove = prove
        self._proofs = proofs
        self._name = name
        self._log = log
        self._behind = behind
        self._settle_s = settle_s
        self._current = _Session(first)
        self._changed = threading.Condition(threading.Lock())
        self._cancellation = Cancellation()
        self._crew = Crew()
        self._phase = Phase.FIRST
        self._reason = ""
        self._seconds = 0.0

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Execute the session that serves now; see :class:`worker.engines.LoadedModel`."""
        with self._held() as model:
            answer = model.run(inputs, outputs, parameters, cancellation)
        if self._proofs:
            self._count_proof()
        return answer

    def run_into(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], cancellation: Cancellation) -> None:
        """Execute the session that serves now; see :class:`worker.engines.WritesInto`."""
        with self._held() as model:
            if not isinstance(model, WritesInto):
                raise EngineError("it cannot write into arrays")
            model.run_into(inputs, outputs, cancellation)

    @contextlib.contextmanager
    def _held(self) -> Iterator[LoadedModel]:
        with self._changed:
            session = self._current
            session.runs += 1
        try:
            yield session.model
        finally:
            with self._changed:
                session.runs -= 1
                if session is not self._current:
                    self._changed.notify_all()

    def _count_proof(self) -> None:
        with self._changed:
            if self._proofs == 0 or self._cancellation.cancelled:
                return
            self._proofs -= 1
            if self._proofs:
                return
            self._phase = Phase.BUILDING
            try:
                self._crew.start(self._second_phase)
            except MemoryError as error:  # the first one serves on
                self._phase, self._reason = Phase.FAILED, f"out of memory: {error}"

    # --- the second session: everything below runs in its thread ----------------------------------------------------

    def _second_phase(self) -> None:
        try:
            self._cancellation.wait(self._settle_s)
            with turn(self._cancellation):
                self._cancellation.wait(0)
                if self._behind:
                    lower_priority()
                began = time.monotonic()
                second = self._build(self._cancellation)
                try:
                    self._enter(Phase.PROVING)
                    self._prove(second, self._cancellation)
                    first = self._swap(second, time.monotonic() - began)
                except BaseException:
                    second.unload()
                    raise
                self._drop(first)
        except GivenUpError:
            self._enter(Phase.GIVEN_UP)
        except Exception as error:  # noqa: BLE001 - whatever broke, the first session serves on
            if self._cancellation.cancelled:
                self._enter(Phase.GIVEN_UP)
                return
            reason = told(error) or type(error).__name__
            self._enter(Phase.FAILED, reason)
            self._log.warning("model.second_session_failed", model=self._name, reason=reason[:500])

    def _enter(self, phase: Phase, reason: str = "") -> None:
        with self._changed:
            self._phase, self._reason = phase, reason

    def _swap(self, second: LoadedModel, seconds: float) -> _Session:
        with self._changed:
            if self._cancellation.cancelled:
                raise GivenUpError("unloaded meanwhile")
            first, self._current = self._current, _Session(second)
            self._phase, self._seconds = Phase.SECOND, seconds
        self._log.info("model.session_swapped", model=self._name, seconds=round(seconds, 3))
        return first

    def _drop(self, first: _Session) -> None:
        """Unload the first session when the last run in it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: first.runs == 0)
        first.model.unload()
        trim()

    # --- the rest of a loaded model -----------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """Return what the session that serves says of itself, and how far the second one is."""
        with self._changed:
            model, phase, reason, seconds = self._current.model, self._phase, self._reason, self._seconds
        said: dict[str, Any] = {"phase": phase.value}
        if reason:
            said["reason"] = reason
        if seconds:
            said["seconds"] = round(seconds, 3)
        return {**model.facts(), "two_phase": said}

    def detach(self) -> None:
        """Make no second session of files that may change; see :class:`worker.engines.Detachable`."""
        self._cancellation.cancel()
        with self._changed:
            model = self._current.model
            if self._phase is Phase.FIRST:
                self._phase = Phase.GIVEN_UP
        if isinstance(model, Detachable):
            model.detach()

    def unload(self) -> None:
        """Give up what is still being made, wait for its end, and drop the session.

        What the second session is made of belongs to the model, and may go when this returns: see
        :class:`worker.engines.LoadedModel`.
        """
        self._cancellation.cancel()
        self._crew.end(GIVE_UP_S)
        with self._changed:
            model = self._current.model
            if self._phase is Phase.BUILDING:  # it had not begun yet
                self._phase = Phase.GIVEN_UP
        model.unload()

    def wait(self, timeout_s: float) -> Phase:
        """Wait until the second session serves or never will; returns the phase then."""
        self._crew.wait(timeout_s)
        return self._phase
