"""Makes a proven copy of a model version out of its files, or nothing: what a failure leaves behind is given back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from worker.copies import LoadedCopy
from worker.engines import EngineError, GivenUpError, contained, says_no_memory, told
from worker.expectation import check_expected
from worker.loading import LoadError
from worker.memory import trim
from worker.stages import Stage
from worker.warmup import WarmupError, shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import Cancellation, Engine, LoadedModel
    from worker.loading import Loaded, Loader, Progress
    from worker.loading.guard import Guard
    from worker.loading.leases import Leases
    from worker.memory import MemoryProbe
    from worker.stages import Stages
    from worker.store import ModelFiles, ShapeClass


class BuildError(Exception):
    """No copy came of it; the text says why, in words for whoever operates the worker."""


class Builder:
    """Brings files in, which verifies them, has the engine make a model of them and proves it by runs."""

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        memory: MemoryProbe,
        not_given_back: Callable[[str], None] = lambda _: None,
        leases: Leases | None = None,
        guarded: Callable[[], None] = lambda: None,
    ) -> None:
        """``memory``: what models live in; it is only asked when it did not suffice.

        ``not_given_back`` is told, on the loop, why an engine kept what it had of a model that came to nothing.
        ``leases`` guard the files of a copy, whose ``guard`` has something to say when ``guarded`` is called, on the
        loop.
        """
        self._engine = engine
        self._loader = loader
        self._memory = memory
        self._not_given_back = not_given_back
        self._leases = leases
        self._guarded = guarded

    async def build(
        self,
        files: ModelFiles,
        cancellation: Cancellation,
        stages: Stages,
        progress: Progress,
        loaded: Callable[[], None],
        proven: Callable[[ShapeClass], None],
        passed_over: Callable[[ShapeClass, str], None] = lambda *_: None,
    ) -> LoadedCopy:
        """Return a proven copy of ``files``.

        ``progress`` is called in another thread; ``loaded`` (the warm-up begins), ``proven`` and
        ``passed_over`` (see :func:`worker.warmup.warm_up`) on this loop.

        Raises:
            BuildError: there is none; nothing is held any more.
            GivenUpError: ``cancellation`` said so; nothing is held any more.
        """
        try:
            return await self._build(files, cancellation, stages, progress, loaded, proven, passed_over)
        except GivenUpError:
            raise
        except MemoryError as error:
            raise BuildError(self._out_of_memory(told(error))) from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise BuildError(f"{where}{error.strerror or error}") from error
        except (LoadError, EngineError, WarmupError) as error:
            text = told(error)
            raise BuildError(self._out_of_memory(text) if says_no_memory(text) else text) from error
        except Exception as error:
            raise BuildError(f"{type(error).__name__}: {told(error)}") from error

    async def _build(
        self,
        files: ModelFiles,
        cancellation: Cancellation,
        stages: Stages,
        progress: Progress,
        loaded: Callable[[], None],
        proven: Callable[[ShapeClass], None],
        passed_over: Callable[[ShapeClass, str], None],
    ) -> LoadedCopy:
        loop = asyncio.get_running_loop()

        def tell(shape_class: ShapeClass) -> None:
            loop.call_soon_threadsafe(proven, shape_class)

        def tell_passed_over(shape_class: ShapeClass, why: str) -> None:
            loop.call_soon_threadsafe(passed_over, shape_class, why)

        brought = await asyncio.to_thread(self._loader.load, files, progress, cancellation, stages)
        guard = None if self._leases is None else self._leases.guard(files, brought, cancellation)
        try:
            _go_on(cancellation)
            model = await asyncio.to_thread(contained, self._load, brought, files, cancellation, stages, guard)
        except BaseException as error:
            await asyncio.to_thread(_release, brought, guard)
            if guard is not None and guard.given_up:
                raise LoadError(guard.given_up) from error
            if isinstance(error, EngineError) and not isinstance(error, GivenUpError):
                raise EngineError(_as_in_repository(str(error), files, brought)) from error
            raise
        copy = LoadedCopy(files, model, brought, stages, guard)
        try:
            _go_on(cancellation)
            _check_labels(files, model)
            loaded()
            with stages.measure(Stage.WARM_UP):
                copy.proven = await asyncio.to_thread(
                    warm_up, model, shape_classes(files), cancellation, tell, tell_passed_over
                )
                await asyncio.to_thread(contained, check_expected, model, files, cancellation)
                if files.batching is not None:
                    from worker.execution.proof import check_batching  # most models have none

                    await asyncio.to_thread(contained, check_batching, model, files, cancellation, copy.proven)
            _go_on(cancellation)  # a run that could not be interrupted ends well after it was given up
            await asyncio.to_thread(self._settle, copy)
            _go_on(cancellation)
        except BaseException as error:
            kept = await close(copy)
            if kept:
                self._not_given_back(kept)
            if guard is not None and guard.given_up:
                raise LoadError(guard.given_up) from error
            raise
        return copy

    def _load(
        self, brought: Loaded, files: ModelFiles, cancellation: Cancellation, stages: Stages, guard: Guard | None
    ) -> LoadedModel:
        if guard is not None:
            guard.take()
        return self._engine.load(brought.placed(files), cancellation, stages)

    def _settle(self, copy: LoadedCopy) -> None:
        """Look whether the files are still what they were, and guard them from now on."""
        copy.loaded.check()
        if copy.guard is not None:
            copy.guard.settle(copy.model, copy.cancel_runs, self._guarded)

    def _out_of_memory(self, detail: str) -> str:
        memory = self._memory.read()
        free = "" if memory is None else f"; {memory.free_bytes} of {memory.total_bytes} bytes are free"
        return f"out of memory{free}; give the worker more or have it serve less: {detail}"[:500]


def give_back(copy: LoadedCopy) -> str:
    """Have a copy that nobody uses give back what it holds, and the heap return its free pages; blocks.

    Returns:
        Why not all of it is given back, in the words of what failed; empty where it is.
    """
    try:
        contained(copy.close)
    except EngineError as error:
        return told(error)
    except Exception as error:  # noqa: BLE001 - what an engine does not give back is lost, and nothing beside it
        return f"{type(error).__name__}: {told(error)}"
    finally:
        trim()
    return ""


async def close(copy: LoadedCopy) -> str:
    """Have a copy give back what it holds, in a thread; see :func:`give_back`."""
    return await asyncio.to_thread(give_back, copy)


def _go_on(cancellation: Cancellation) -> None:
    if cancellation.cancelled:
        raise GivenUpError("given up meanwhile")


def _release(brought: Loaded, guard: Guard | None) -> None:
    with contextlib.nullcontext() if guard is None else guard.closing():
        brought.release()


def _as_in_repository(text: str, files: ModelFiles, brought: Loaded) -> str:
    """Return what an engine said of a copy of the files, such as one in shared memory, with the files' own names."""
    copy, own = brought.model_file, files.model_file
    if copy is None or own is None:
        return text
    return text.replace(str(copy), str(own)).replace(f"{copy.parent}/", f"{own.parent}/")


def _check_labels(files: ModelFiles, model: LoadedModel) -> None:
    if files.labels and not any(spec.shape and spec.shape[-1] in (-1, len(files.labels)) for spec in model.outputs):
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in model.outputs)
        raise EngineError(f"{files.directory}: {len(files.labels)} labels fit no output; the outputs are {shapes}")
