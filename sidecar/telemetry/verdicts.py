"""What the log of a data process says of the router's verdicts: who was taken out or let in again, and on what."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from router.evidence import breaker_text
from router.model import EjectCause, EndpointEjected, EndpointReturned, Evidence
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.endpoint import Candidate
    from router.model import Event
    from router.routes import Route

_log = get_log("data")


def log_event(event: Event) -> None:
    """Say that this process took somebody out, or let somebody in again."""
    if isinstance(event, EndpointEjected):
        _log_ejection(event)
    elif isinstance(event, EndpointReturned):
        if event.cause is EjectCause.BREAKER:
            _log.info("breaker.closed", endpoint=event.id, model=event.model, version=event.version)
        else:
            _log.info("endpoint.returned", endpoint=event.id, cause=event.cause.value)


def _log_ejection(event: EndpointEjected) -> None:
    for_s = round(event.until - event.at, 3)
    if event.cause is EjectCause.OUTLIER and event.evidence is not None:
        found = event.evidence
        _log.warning(
            "endpoint.ejected",
            endpoint=event.id,
            cause=event.cause.value,
            model=event.model,
            version=event.version,
            step=event.level,
            for_s=for_s,
            calls=found.calls,
            failed=found.failed,
            others_ratio=found.others_ratio,
        )
        return
    if event.cause is not EjectCause.BREAKER or event.rule is None or event.evidence is None:
        _log.warning("endpoint.ejected", endpoint=event.id, cause=event.cause.value, step=event.level, for_s=for_s)
        return
    _log.warning(
        "breaker.opened",
        endpoint=event.id,
        model=event.model,
        version=event.version,
        rule=event.rule.value,
        why=breaker_text(event.rule, event.evidence),
        **_figures(event.evidence),
        for_s=for_s,
    )


def log_trials(half_opened: Iterable[Candidate]) -> None:
    """Name the replicas whose breakers are tried again."""
    for candidate in half_opened:
        rule = candidate.breaker.rule
        _log.info(
            "breaker.half_open",
            endpoint=candidate.endpoint.id,
            model=candidate.model,
            version=candidate.version,
            rule=None if rule is None else rule.value,
        )


def log_panic(routes: Iterable[Route]) -> None:
    """Name the routes that began or ceased to pick who is ejected."""
    for route in routes:
        say = _log.error if route.panic else _log.info
        say("route.panic" if route.panic else "route.calm", route=route.key, candidates=len(route.candidates))


def log_failing(routes: Iterable[tuple[Route, Exception | None]]) -> None:
    """Name the routes whose tables could not be made, with the exception, or can be again."""
    for route, error in routes:
        if error is None:
            _log.info("route.mended", route=route.key)
        else:
            _log.error("route.failed", route=route.key, exc_info=error)


def _figures(evidence: Evidence) -> dict[str, object]:
    """Return what a breaker opened on as fields of a log line, without what is unknown."""
    return {name: value for name, value in asdict(evidence).items() if value is not None}
