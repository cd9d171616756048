"""Runs one drill: the script, the load, the looks, the abort conditions, and an end that comes whatever happens."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.drills.examine import faults_of
from sidecar.drills.faulting import endpoint_of
from sidecar.drills.faults import Faults
from sidecar.drills.load import Sending
from sidecar.drills.picks import share_of_late
from sidecar.drills.place import RENEW_S, PlaceError, undoing
from sidecar.drills.record import Accounts, Check, Record, Span
from sidecar.drills.scenario import kind_of
from sidecar.drills.traffic import Figures, figures, of_calls
from sidecar.drills.verdict import ABORTED, to_abort
from sidecar.drills.watching import expected, unmet
from sidecar.heeding import heed

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from sidecar.drills.fleet import Fleet
    from sidecar.drills.place import Place
    from sidecar.drills.record import Look, Scrape
    from sidecar.drills.scenario import Do, Drill, Expect, Phase
    from sidecar.drills.show import Show

LOOK_S = 0.1
SCRAPE_S = 1.0
ABORT_S = 0.25
TELL_S = 0.5
END_S = 10.0
"""How long it may take at most to take back what the drill did, all together: as long as a fault's lease lasts."""
LATE_S = 2.0
"""How far back the live figures go."""


class Running:
    """One run of a drill against one sidecar. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        drill: Drill,
        place: Place,
        show: Show,
        fleet: Fleet | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drill = drill
        self._place = place
        self._show = show
        self._fleet = fleet
        self._clock = clock
        self._began = clock()
        self._faults = Faults(place, drill.name, self._now, None if fleet is None else fleet.places)
        self._sending: list[Sending] = []
        self._spans: list[Span] = []
        self._checks: list[Check] = []
        self._looks: list[Look] = []
        self._scrapes: list[Scrape] = []
        self._scraping = asyncio.Lock()
        self._measured = {name for objective in drill.objectives for name in objective.during}
        self._look: Look | None = None
        self._asked_at = 0.0
        self._undo: list[Do] = []
        self._before: dict[str, Do] = {}
        self._stop: asyncio.Future[str]
        self._hurry: asyncio.Future[None]
        self._background: list[asyncio.Task[None]] = []
        self._changes = any(phase.fault is not None or phase.do is not None for phase in drill.phases)
        self._with_ready = any(phase.expect and phase.expect.ready is not None for phase in drill.phases)

    async def run(self) -> Record:
        """Run the script to its end, or until something ends it before; take back what it did; return what it saw.

        Raises:
            PlaceError: the sidecar is not what the drill is for; nothing was touched.
        """
        await self._preflight()
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        self._hurry = loop.create_future()
        heed(loop, self._told_to_stop)
        self._began = self._clock()
        cut_short = ""
        left_behind: list[str] = []
        keeping: asyncio.Task[None] | None = None
        try:
            await self._look_once()  # how it is before anything is done to it
            for work in (self._keep_looking(), self._keep_scraping(), self._guard(), self._tell()):
                self._spawn(work)
            keeping = self._spawn(self._faults.keep())
            self._spawn(self._faults.watch_killed())
            if self._changes:
                self._spawn(self._keep_the_sidecar())
            cut_short = await self._until_over()
        finally:
            self._show.note("ending: load, faults")
            if keeping is not None:
                keeping.cancel()  # none is prolonged that could not be ended
            left_behind = await self._clean_up()
            heed(loop, lambda _: self._show.note("already ending"))
        return self._record(cut_short, tuple(left_behind))

    def _now(self) -> float:
        return self._clock() - self._began

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._background.append(asyncio.get_running_loop().create_task(work))
        return self._background[-1]

    def _told_to_stop(self, signum: signal.Signals) -> None:
        if not self._stop.done():
            self._stop.set_result(f"interrupted ({signum.name})")
        elif not self._hurry.done():
            self._show.note("no longer waiting for what is still under way")
            self._hurry.set_result(None)

    async def _preflight(self) -> None:
        """Refuse what cannot work before anything is touched.

        A sidecar of the drill's own has the fleet's ``ready_s`` to hear of all its workers: it may be ready before.

        Raises:
            PlaceError: the sidecar does not answer, has no such endpoint or model, takes no changes, or another drill
                has it.
        """
        start = self._drill.start
        until = self._clock() + (0.0 if self._fleet is None or start is None else start.up.ready_s)
        while lacks := self._unknown(await self._place.endpoints(), await self._place.models()):
            if self._clock() >= until:
                raise PlaceError(lacks)
            await asyncio.sleep(LOOK_S)
        if not self._changes:
            return
        await self._place.take(self._drill.name, self._drill.limit_s + END_S)
        try:
            await self._refuse_other_faults()
        except (PlaceError, asyncio.CancelledError):
            await self._release()
            raise

    async def _refuse_other_faults(self) -> None:
        """Look for faults of a drill that was killed: they end within seconds."""
        ours = {one.id for one in await self._place.faults() if one.id.startswith("drill-")}
        if ours:
            ids = ", ".join(sorted(ours))
            raise PlaceError(f"another drill has faults in force ({ids}): wait for its end, or remove them")

    def _unknown(self, endpoints: list[str], models: list[str]) -> str:
        """Return which endpoint or model is needed that is not among these; "" where none is."""
        wanted: list[tuple[str, str, list[str]]] = []
        if self._drill.start is not None and self._fleet is not None:
            wanted += [("start", one, endpoints) for one in self._drill.start.endpoints]
        for id_, phase in faults_of(self._drill).items():
            fault = phase.fault or {}
            wanted += [(f"fault {id_}", endpoint_of(fault), endpoints)]
            wanted += [(f"fault {id_}", str(fault.get("model", "")), models)]
        for phase in self._drill.phases:
            part = phase.expect or phase.do
            if part is not None:
                wanted += [(phase.name, part.endpoint, endpoints), (phase.name, part.model, models)]
        for where, name, known in wanted:
            if name and name not in known:
                return f'{where}: the sidecar knows no "{name}"; it knows: {", ".join(known[:16]) or "none"}'
        return ""

    # --- the script ---------------------------------------------------------------------------------------------

    async def _until_over(self) -> str:
        """Run the script; return why it ended before its end, "" where it did not."""
        script = asyncio.get_running_loop().create_task(self._script())
        try:
            await asyncio.wait({script, self._stop}, return_when=asyncio.FIRST_COMPLETED, timeout=self._drill.limit_s)
            if self._stop.done():
                return self._stop.result()
            if not script.done():
                return f"it took longer than limit_s, {self._drill.limit_s:g} s"
            return script.result()
        finally:
            script.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({script})

    async def _script(self) -> str:
        for phase in self._drill.phases:
            measured = phase.name in self._measured
            if measured:  # counters at both its ends: nothing of the phases beside it counts
                await self._scrape()
            begin = self._now()
            self._show.phase(begin, phase)
            try:
                await self._step(phase)
            except PlaceError as error:
                return f"{phase.name}: {error}"
            finally:
                self._spans.append(Span(phase.name, kind_of(phase), begin, self._now()))
            if measured:
                await self._scrape()
        return ""

    async def _step(self, phase: Phase) -> None:
        if phase.load is not None:
            sending = Sending(phase.load, self._place.target, self._now, self._drill.limit_s)
            self._sending.append(sending)
            sending.start()
        elif phase.fault is not None:
            await self._faults.begin(phase.fault)
        elif phase.end is not None:
            await self._faults.end(phase.end.fault)
        elif phase.do is not None:
            of = phase.do.endpoint or phase.do.model
            if of not in self._before:
                self._before[of] = await self._place.as_before(phase.do)
            undo = undoing(phase.do, self._before[of])
            if undo is not None and undo not in self._undo:
                self._undo.append(undo)
            await self._place.act(phase.do)
        elif phase.wait is not None:
            await asyncio.sleep(phase.wait.for_s)
        elif phase.expect is not None:
            self._checks.append(await self._await(phase.name, phase.expect))
            self._show.check(self._checks[-1])

    async def _await(self, name: str, expect: Expect) -> Check:
        """Wait for what is expected; it must be seen after the phase began."""
        begin = self._now()
        while True:
            fresh = self._look if self._asked_at >= begin else None
            missing = unmet(expect, fresh, self._share(expect, begin))
            took_s = self._now() - begin
            if not missing or took_s >= expect.within_s:
                return Check(name, expected(expect), not missing, took_s, "; ".join(missing))
            await asyncio.sleep(LOOK_S / 2)

    def _share(self, expect: Expect, since: float) -> float | None:
        """Return the share of picks that is expected of an endpoint; None where too little is known."""
        if self._look is None or (expect.share_at_most is None and expect.share_at_least is None):
            return None
        route = self._look.routes.get(expect.model)
        return None if route is None else share_of_late(self._scrapes, since, expect.endpoint, route.endpoints)

    # --- beside it ----------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            begin = self._now()
            await self._look_once()
            if self._fleet is not None and self._fleet.gone() and not self._stop.done():
                self._stop.set_result("warmroute up ended")
            await asyncio.sleep(max(0.0, LOOK_S - (self._now() - begin)))

    async def _look_once(self) -> None:
        asked_at = self._now()
        try:
            look = await self._place.look(asked_at, with_ready=self._with_ready)
        except PlaceError:
            self._look = None
            return
        self._look, self._asked_at = replace(look, at=self._now()), asked_at
        self._looks.append(self._look)

    async def _keep_scraping(self) -> None:
        while True:
            await self._scrape()
            await asyncio.sleep(SCRAPE_S)

    async def _scrape(self) -> None:
        async with self._scraping:  # one after another, so that they are in the order of their moments
            with suppress(PlaceError):
                self._scrapes.append(await self._place.scrape(self._now()))

    async def _keep_the_sidecar(self) -> None:
        """Go on saying that the drill runs; end it where the sidecar knows nothing of it any more."""
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(PlaceError):  # it may be starting again; then it says that it knows of none
                lost = await self._place.keep(self._drill.name, self._drill.limit_s + END_S - self._now())
                if lost and not self._stop.done():
                    self._stop.set_result(f"its faults are gone: {lost}")

    async def _guard(self) -> None:
        """End the drill where an abort condition holds."""
        while True:
            await asyncio.sleep(ABORT_S)
            for abort in self._drill.abort:
                why = to_abort(abort, self._late(abort.over_s))
                if why and not self._stop.done():
                    self._stop.set_result(f"{ABORTED}{why}")

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._show.status(self._now(), self._late(LATE_S), self._look, self._faults.in_force)

    def _late(self, over_s: float) -> Figures:
        """Return what callers saw of late: of answers that came then, for of others nothing is known yet."""
        since = self._now() - over_s
        if self._sending:
            return of_calls([call for one in self._sending for call in one.ended_since(since)])
        return figures(Record(length_s=self._now(), scrapes=tuple(self._scrapes)), [(since, self._now())])

    # --- the end ------------------------------------------------------------------------------------------------

    async def _clean_up(self) -> list[str]:
        """Take back all that the drill did, within ``END_S`` or until a signal; return what could not be.

        The load ends first, so that nobody waits for what is taken back while it goes on.
        """
        if not self._stop.done():
            self._stop.set_result("")
        ending = [asyncio.ensure_future(sending.end(self._hurry)) for sending in self._sending]
        undoing = self._undo[::-1]
        refused: list[str] = []
        await self._within(END_S, self._faults.end_all(), self._undo_all(undoing, refused))
        self._faults.give_up()
        left = self._faults.left + refused
        left += [f"{do.act.value} {do.endpoint or do.model}: nobody said in time that it is done" for do in undoing]
        if ending:
            await asyncio.wait(ending)
        if not left:  # who does not answer to that has no counters to tell
            await self._within(END_S, self._scrape())
            if self._changes:
                await self._within(END_S, self._release())
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._fleet is not None:
            return []  # what is in force there ends with it
        return left

    async def _release(self) -> None:
        with suppress(PlaceError):  # then it ends by itself
            await self._place.release()

    async def _undo_all(self, undoing: list[Do], refused: list[str]) -> None:
        """Do all of ``undoing``, which keeps what is not done yet; what is refused goes to ``refused``."""
        while undoing:
            do = undoing[0]
            try:
                if await self._place.as_before(do) != do:  # it may be so again already
                    await self._place.act(do)
            except PlaceError as error:
                refused.append(f"{do.act.value} {do.endpoint or do.model}: {error}")
            del undoing[0]

    async def _within(self, most_s: float, *parts: Coroutine[Any, Any, None]) -> None:
        """Await ``parts`` for so long at most, or until a signal says that nobody wants to wait."""
        work = asyncio.get_running_loop().create_task(_all(parts))
        either: set[asyncio.Future[Any]] = {work, self._hurry}
        await asyncio.wait(either, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        else:
            work.cancel()
            await asyncio.wait({work})

    def _record(self, cut_short: str, left_behind: tuple[str, ...]) -> Record:
        calls = sorted((call for one in self._sending for call in one.calls), key=lambda call: call.at)
        accounts = None
        if self._sending:
            accounts = Accounts(
                sent=len(calls),
                lost=sum(one.lost for one in self._sending),
                doubled=sum(one.doubled for one in self._sending),
                wrong=sum(one.wrong for one in self._sending),
                clean_cut=sum(one.clean_cut for one in self._sending),
            )
        return Record(
            length_s=self._now(),
            spans=tuple(self._spans),
            faults=tuple(self._faults.spans),
            calls=tuple(calls),
            looks=tuple(self._looks),
            scrapes=tuple(self._scrapes),
            checks=tuple(self._checks),
            accounts=accounts,
            cut_short=cut_short,
            left_behind=left_behind,
        )


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*parts)
