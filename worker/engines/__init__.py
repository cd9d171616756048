"""What executes a model: the interface every engine has, and the values that pass through it.

An engine may not import aiohttp, redis or anything of ``worker.serving``. Everything it does happens in a thread that
is not the event loop's, so it may block, but must look at its :class:`Cancellation`.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from worker.datatypes import Datatype
    from worker.memory import Memory
    from worker.stages import Stages
    from worker.store import ModelFiles

    Array = np.ndarray[Any, np.dtype[Any]]

P = ParamSpec("P")
T = TypeVar("T")

Parameters = dict[str, "bool | int | float | str"]
"""Parameters of one inference request; an engine ignores those that it does not know."""


class EngineError(Exception):
    """A model cannot be loaded or run; the text says why, in words for whoever operates the worker."""


class InputError(EngineError):
    """The engine refused a request's input: the caller's fault."""


class GivenUpError(EngineError):
    """The work was given up because nobody waits for it any more."""


MAX_TOLD_CHARS: Final = 4096
_NO_MEMORY = re.compile(
    r"bad.?alloc|failed to allocate memory|out of memory|cannot allocate memory|alloc_failed", re.IGNORECASE
)


def told(error: BaseException) -> str:
    """Return what an error says, in UTF-8 and within :data:`MAX_TOLD_CHARS`, whatever an engine made it say."""
    try:
        text = str(error)
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - it is an error's own code that fails, of whatever kind
        return f"{type(error).__name__}, which cannot say more"
    if len(text) > MAX_TOLD_CHARS:
        text = f"{text[:MAX_TOLD_CHARS]}... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def says_no_memory(text: str) -> bool:
    """Return whether it is for want of memory that an engine failed with this ``text``."""
    return _NO_MEMORY.search(text) is not None


def as_failure(error: BaseException) -> Exception:
    """Return what an engine raised in a thread of its own as something that fails a model, and nothing beside it.

    That is ``error`` itself, but where it is meant to end more: ``SystemExit`` and ``KeyboardInterrupt`` end a process
    that passes them on, ``StopIteration`` and ``CancelledError`` whoever waits. A real Ctrl-C, or a signal, comes to
    the main thread alone.
    """
    if isinstance(error, StopIteration):
        return RuntimeError(f"StopIteration: {told(error)}")  # a future cannot pass one on
    if isinstance(error, Exception):
        return error
    said = told(error)
    said = f": {said}" if said else ""
    return EngineError(f"the engine raised {type(error).__name__}{said}, which would have ended the worker")


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an engine, or what calls one, in a thread that is not the main one; returns what ``call`` does.

    Raises:
        Exception: what ``call`` raised, as :func:`as_failure` has it.
    """
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        failure = as_failure(error)
        if failure is error:
            raise
        raise failure from error


class Cancellation:
    """Tells a blocking call that nobody waits for it any more. Safe to use from several threads.

    Or that it should be quick about it: what only makes later work quicker is then left out.
    """

    _hastened = False

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """True once :meth:`cancel` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Give the work up; calls what was registered, once, in this thread."""
        with self._lock:
            if self._event.is_set():
                return
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @property
    def hastened(self) -> bool:
        """True once :meth:`hasten` was called."""
        return self._hastened

    def hasten(self) -> None:
        """Have only that done from now on which must be."""
        self._hastened = True

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` (quick, never raising) when the work is given up; at once where it was already."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float) -> None:
        """Block for ``timeout_s`` seconds.

        Raises:
            GivenUpError: the work was given up meanwhile.
        """
        if self._event.wait(timeout_s):
            raise GivenUpError("given up")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives. A dimension that varies is -1."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class LoadedModel(Protocol):
    """A model that an engine holds ready to run. ``run`` may be called from several threads at once."""

    @property
    def platform(self) -> str:
        """The protocol's name of the model's format, such as ``onnxruntime_onnx``."""

    @property
    def device(self) -> str:
        """What really executes it, as the engine says after loading, such as ``CPUExecutionProvider``."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it takes, in the model's order."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in the model's order."""

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Execute the model once; returns one array per name in ``outputs``.

        Raises:
            InputError: the values cannot be processed, whoever runs them.
            GivenUpError: given up, because ``cancellation`` said so.
            EngineError: the execution failed.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return what the engine has to say of it beyond that, for ``/stats``: small, and ready for JSON."""

    def unload(self) -> None:
        """Give back what it holds. No run is under way, and none follows."""


@runtime_checkable
class WritesInto(Protocol):
    """A :class:`LoadedModel` that can write its outputs into arrays that it is given, too."""

    def run_into(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], cancellation: Cancellation) -> None:
        """Execute the model once, into ``outputs``.

        Raises:
            EngineError: as ``run`` does; also where it cannot with these arrays.
        """


@runtime_checkable
class Detachable(Protocol):
    """A :class:`LoadedModel` that goes on when its files are changed, once what it has mapped of them is moved.

    It maps and unmaps files only as it is loaded and unloaded, or in its turn of :mod:`worker.engines.background`.
    """

    def detach(self) -> None:
        """Begin nothing more with the files: they may change from now on. It has that turn, and none follows."""


class Engine(Protocol):
    """Makes files into something that runs. All of it blocks, and is called in threads that are not the loop's."""

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        """Bring up the devices that ``models`` will want, while their files are still being read.

        A head start and no more: :meth:`load` must do without, and fail with the same error.

        Raises:
            EngineError: a device cannot be used; in the words of its driver.
        """

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> LoadedModel:
        """Load one model, and measure its ``stages``; blocks until it can run.

        Raises:
            EngineError: the model cannot be loaded.
            GivenUpError: given up, because ``cancellation`` said so.
        """

    def memory(self) -> Memory | None:
        """Return what its models' device has, in bytes; None where they live in the host's memory. Quick."""
