"""A caller's connection whose requests may need more than a pick (``steps``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.outcomes import Outcome
from sidecar.http1.chunked import ChunkScanner
from sidecar.http1.hedging import HedgingConnection
from sidecar.http1.look import Look
from sidecar.http1.parsing import without_fields
from sidecar.http1.retrying import NOT_BEGUN
from sidecar.http1.steps import CACHED, Course
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.retry import Failed
    from router.routes import Attempt, NoCandidate
    from sidecar.http1.head import RequestHead
    from sidecar.http1.plane import Plane
    from sidecar.http1.steps import Special
    from sidecar.http1.targets import Target
    from sidecar.http1.watch import Watch

MEMORY_PARTS: Final = 4
"""Bodies that are kept back may take one part in so many of what memory this process may have."""
_EXPECT: Final = re.compile(rb"\r\nexpect:", re.IGNORECASE)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class SpecialConnection(HedgingConnection):
    """A caller's connection whose requests may need more than a pick."""

    __slots__ = ()

    @property
    def _course(self) -> Course | None:
        """The course of the request in hand, None where it needs no more than a pick."""
        watch = self._watch
        return None if watch is None else watch.course

    def _begin_special(self, special: Special, now: float) -> None:
        """Take a request whose target is special; what there is of its body stands in ``_seen``."""
        course = Course(special)
        self._plain = False
        self._target = special.target
        self._end_watch()
        self._start_watch(now, course)
        if self._over(now):
            return
        most = special.body_bytes
        if not most:
            self._go_through(course, now)
        elif self.request_done:
            self._take_body(course, now)
        elif self._left > most - len(self._seen) and self._scanner is None:
            self._go_through(course, now)  # too long, by its own word
        else:
            if self._look is None:
                self._look = Look(None)
                self._look.field.finish()  # nobody asks for the model
                self._look.waiting = False
            self._look.course = course
            self._look.kept += self._seen
            self._seen = b""
            self._invite_body()
            self._resume_reading()

    def _gather(self, look: Look, course: Course, out: bytes) -> bool:
        """Keep more of a body that is waited for; True where it was kept."""
        look.kept += out
        most = course.special.body_bytes
        if look.much and not self.request_done:
            self._look_at_all_kept()
            if course.over:
                return True
        if self.request_done or len(look.kept) > most:
            look.course = None
            self._seen = bytes(look.kept)
            look.kept.clear()
            if look.field.done:
                self._look = None
            now = self._plane.clock()
            if self.request_done:
                self._take_body(course, now)
            else:
                self._go_through(course, now)
        return True

    def _take_body(self, course: Course, now: float) -> None:
        seen = self._seen
        if len(seen) <= course.special.body_bytes:
            course.body = seen if self._head.length >= 0 else without_chunks(seen)
        self._go_through(course, now)

    def proceed(self, course: Course) -> None:
        """Go on with a request that waited in a step; nothing where it is over by now."""
        if self._course is not course or course.over:
            return
        now = self._plane.clock()
        try:
            if self.request_done:  # the worker's time begins when it is asked
                self._wait_for_head(now)
            self._go_through(course, now)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _go_through(self, course: Course, now: float) -> None:
        """Take the steps that are left, and dispatch the request."""
        steps = course.special.steps
        while course.at < len(steps):
            step = steps[course.at]
            course.at += 1
            if not step.take(self, course, now) or course.over:
                return
        watch = self._watch
        route = self._target.route
        if watch is None or route is None:
            return
        if self.request_done:
            watch.stop_hedging()
            self._arm_hedge(watch, now)
        self._dispatch_later(route, None, now)

    def _nobody_left(self, none: NoCandidate, failed: Failed | None) -> None:
        if failed is None or not self._turns_to_other_version(failed):
            super()._nobody_left(none, failed)

    def _turns_to_other_version(self, failed: Failed) -> bool:
        """Give a request that surely nobody began to another version of its split, where its own has nobody left.

        Only once, and not where a fallback was asked already. What stands in the course after the version, and depends
        on it (its shard, its shape class), is found out again; what belongs to the request (a place under its model's
        limit, a copy for the mirror) stays.
        """
        course = self._course
        if course is None or course.turned or failed.outcome not in NOT_BEGUN:
            return False
        if course.descent is not None and course.descent.next_fallback:
            return False
        own = self._target
        course.turned = True
        self._target = course.special.target
        now = self._plane.clock()
        for step in course.special.steps:
            if step.rank < CACHED and (not step.take(self, course, now) or course.over):
                return True
        route = self._target.route
        if route is None or route is own.route:
            self._target = own
            return False
        self._dispatch_later(route, failed.endpoint, now, failed)
        return True

    def _arm_hedge(self, watch: Watch, now: float) -> None:
        super()._arm_hedge(watch, now)
        course = watch.course
        if course is not None and course.mirror is not None:
            course.mirror.whole(self, course)

    def _most_kept(self) -> int:
        course = self._course
        if course is not None and course.mirror is not None:
            return self._plane.replay_bytes
        return super()._most_kept()

    # --- for steps ------------------------------------------------------------------------------------------------

    @property
    def plane(self) -> Plane:
        """The data path of this process."""
        return self._plane

    @property
    def head(self) -> RequestHead:
        """The head of the request in hand."""
        return self._head

    @property
    def target(self) -> Target:
        """What it asks for, as far as that is known."""
        return self._target

    def turn_to(self, target: Target) -> None:
        """Have the request take another target's route (:meth:`Targets.plain`), for a step that found out which."""
        self._target = target

    def attempt_of(self, course: Course) -> Attempt | None:
        """Return the attempt under way of a course's request, None where that is over, or nobody was asked."""
        return self._attempt if self._course is course else None

    def whole_request(self) -> tuple[bytes, bytes] | None:
        """Return head and body of the request in hand as they go to workers, None where not all of it is kept."""
        return (self._sent_head, self._seen) if self.request_done and self._whole else None

    # --- bodies that are kept back --------------------------------------------------------------------------------

    def _look_at_all_kept(self) -> None:
        """Refuse the request where bodies that are kept back take too much of this process's memory."""
        plane = self._plane
        most = min(plane.limits.model_prefixes_bytes, plane.memory_bytes // MEMORY_PARTS)
        kept = sum(connection.kept_bytes for connection in plane.connections)
        if plane.tight or kept > most:
            plane.count(Scalar.OVERLOAD_REFUSED_TOTAL)
            self._fail_request(
                Outcome.OVERLOADED,
                f"{kept} bytes are kept of bodies that are looked at first ({most} may be: "
                "limits.model_prefixes_bytes, or a quarter of overload.memory_bytes)",
            )

    def _invite_body(self) -> None:
        """Have a caller that waits for it send its body: the worker that would say so is not known yet."""
        if _EXPECT.search(self._head.raw):
            self._sent_head = without_fields(self._sent_head, (b"expect",))
            if not self.old_client:
                self.transport.write(_CONTINUE)


def without_chunks(framed: bytes) -> bytes:
    """Return what a whole body in chunks carries (RFC 9112 7.1)."""
    scanner = ChunkScanner()
    data: list[bytes] = []
    scanner.copy = data
    scanner.feed(framed)
    return b"".join(data)
