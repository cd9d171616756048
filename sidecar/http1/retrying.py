"""Whether a request whose attempt failed is tried again: one judgement, for HTTP and for gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult, Outcome
from router.retry import Failed, RetryDenied
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.routes import Attempt
    from sidecar.http1.plane import Plane

NOT_BEGUN: Final = frozenset({Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT})
"""How an attempt failed that no worker saw."""


def retry_after(
    plane: Plane,
    attempt: Attempt,
    result: AttemptResult,
    *,
    first: int,
    replayable: bool,
    tries: int,
    now: float,
    left_s: float,
) -> float | None:
    """Say after how many seconds a request whose attempt failed is tried again, and count that; None: it is not.

    Args:
        plane: what the data process shares.
        attempt: what failed, with no byte of an answer passed on.
        result: how.
        first: the number of the first attempt made here; above 1 a proxy in front tries again already.
        replayable: all that was sent of the request can be sent again.
        tries: attempts made.
        now: the moment.
        left_s: what is left of the request's time.
    """
    if result is AttemptResult.CANCELLED or first != 1:
        return None
    if result is AttemptResult.NOT_READY and not plane.cluster.has_others(attempt, now):
        return None  # its answer is better than none
    verdict = plane.cluster.retry(
        attempt,
        result,
        answered=False,
        replayable=replayable,
        tries=tries,
        now=now,
        rng=plane.rng,
        left_s=left_s,
    )
    if verdict.allowed:
        plane.count(Scalar.RETRIES_TOTAL)
        return verdict.delay_s
    if verdict.denied is RetryDenied.BUDGET:
        plane.count(Scalar.RETRIES_DENIED_TOTAL)
    return None


def not_ready_there(attempt: Attempt) -> Failed:
    """Return what a request is told that was tried again because of ``NOT_READY``, where nobody else takes it."""
    return Failed(attempt.endpoint, Outcome.NO_CANDIDATE, f"{attempt.endpoint.id}: the model is not ready there")
