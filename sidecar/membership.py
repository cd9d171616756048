"""Which endpoints and models a data process goes by, while its configuration and what it is told change.

Every change is one step that no request falls into. Where newcomers are awaited (``sidecar.discovery.members``), what
leaves is kept until they are warm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.model import EndpointGone, EndpointSeen, GoneReason
from sidecar.discovery.members import Members
from sidecar.discovery.planned import static_endpoints
from sidecar.settings import model_policies, router_policies
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Set

    from router.model import Event, SnapshotEnded
    from router.policy import ModelPolicy
    from sidecar.http1.forwarding import ListenerRules
    from sidecar.http1.plane import Plane
    from sidecar.settings import ModelTimeouts, Settings

SETTLE_S = 2.0
"""Longest time that what leaves the configuration is kept for newcomers to be found warm, while somebody probes."""
CONTROL_SPEAKS_S = 1.0
"""No ping for this long: nobody may be probing, and nothing is taken out that probes would have to replace."""

_log = get_log("membership")


class Membership:
    """Keeps ``plane`` and its cluster by the settings, and by what the control process says of endpoints.

    ``rules`` are those of the open listeners, in the plan's order. Times are monotonic seconds.
    """

    def __init__(self, plane: Plane, settings: Settings, now: float) -> None:
        self.rules: list[ListenerRules] = []
        self._places: tuple[int, ...] = ()
        self._plane = plane
        self._cluster = plane.cluster
        self._settings = settings
        self._models = model_policies(settings)
        self._timeouts = model_timeouts(settings)
        self._members = Members(static_endpoints(settings))
        self._whole = False  # a snapshot came: what is not in the cluster is not there
        self._pinged = now
        self._epoch = ""
        self._settled_by = now
        plane.admission.configure(settings.policies.admission, settings.models)

    def configure(self, settings: Settings, places: tuple[int, ...], now: float) -> None:
        """Go by another configuration, in which the open listeners have these places."""
        self._settings, self._places = settings, places
        members = self._members.records
        self._members.configure(static_endpoints(settings))
        self._go_by(members.keys(), now)
        if self._members.settling:
            self._settled_by = now + SETTLE_S
            _log.info("config.settling", awaited=sorted(self._members.awaited))

    def settle(self, now: float) -> bool:
        """Let go what was kept, once it can be done without or was long enough while somebody probes; True if so."""
        if not self._members.settling:
            return False
        cold = self._members.awaited
        if cold and (now < self._settled_by or now - self._pinged > CONTROL_SPEAKS_S):
            return False
        members = self._members.records
        self._members.settle()
        self._go_by(members.keys(), now)
        say = _log.warning if cold else _log.info
        say("config.settled", not_warm=sorted(cold))
        return True

    def pinged(self, epoch: str, now: float) -> None:
        """Note that the control process of this epoch is there."""
        if now - self._pinged > CONTROL_SPEAKS_S or epoch != self._epoch:  # nobody probed meanwhile
            self._settled_by = now + SETTLE_S
        if epoch != self._epoch:
            self._epoch = epoch
            self._members.forget_said()
        self._pinged = now

    def told(self, event: EndpointSeen | EndpointGone, now: float) -> tuple[Event, ...]:
        """Take what the control process says of an endpoint; return what siblings should hear of."""
        if isinstance(event, EndpointSeen):
            if event.record.static:
                held = self._cluster.endpoints.get(event.record.id)
                record = self._members.seen(event.record, None if held is None else held.record)
                if record is None:
                    return ()
                event = EndpointSeen(record, event.at)
            return self._cluster.apply(event, now)
        held = self._cluster.endpoints.get(event.id)
        if held is None or not held.record.static or self._members.gone(event.id):
            return self._cluster.apply(event, now)
        return ()

    def ended(self, event: SnapshotEnded, now: float) -> tuple[Event, ...]:
        """Take the end of a snapshot; members are there whatever the control process had read when it made it."""
        self._whole = True
        self._place(now, whole=True)
        return self._cluster.apply(event, now)

    def _go_by(self, members: Set[str], now: float) -> None:
        """Go by the settings as far as the members allow; ``members`` are the ids of those before.

        A model that is awaited does not become anybody's default, and the one that it replaces stays.
        """
        settings, awaited = self._settings, self._members.awaited
        if self._whole:
            self._place(now)
            for id in members - self._members.records.keys():  # noqa: A001
                held = self._cluster.endpoints.get(id)
                if held is not None and held.record.static:
                    self._cluster.apply(EndpointGone(id, GoneReason.REMOVED, now), now)
        models, timeouts = model_policies(settings), model_timeouts(settings)
        if self._members.settling:
            models = _with_leaving(models, self._models, awaited)
            timeouts = self._timeouts | timeouts
        self._models, self._timeouts = models, timeouts
        self._cluster.configure(router_policies(settings), models, now)
        if self._plane.ladders is not None:
            self._plane.ladders.configure(settings.models, settings.policies.ladder, now, settings.policies.admission)
        self._plane.admission.configure(settings.policies.admission, settings.models)
        self._plane.configure(settings.limits, settings.timeouts, timeouts)
        for place, rules in zip(self._places, self.rules, strict=False):
            listener = settings.listeners[place]
            rules.configure(
                rules.default_model if listener.default_model in awaited else listener.default_model,
                trusted_networks=listener.trusted_networks,
                model_header=listener.model_header,
            )

    def _place(self, now: float, *, whole: bool = False) -> None:
        """Have the members in the cluster; ``whole``: name those too that are there."""
        for id, record in self._members.records.items():  # noqa: A001
            held = self._cluster.endpoints.get(id)
            if held is None or (held.record.static and (whole or held.record != record)):
                self._cluster.apply(EndpointSeen(record, now), now)


def _with_leaving(
    models: tuple[ModelPolicy, ...], before: tuple[ModelPolicy, ...], awaited: frozenset[str]
) -> tuple[ModelPolicy, ...]:
    """Return ``models`` and those of ``before`` that leave; the default one stays where the new one is ``awaited``."""
    default = next((model.name for model in models if model.default), None)
    if default in awaited:
        default = next((model.name for model in before if model.default), default)
    names = {model.name for model in models}
    together = (*models, *(model for model in before if model.name not in names))
    return tuple(replace(model, default=model.name == default) for model in together)


def model_timeouts(settings: Settings) -> dict[str, ModelTimeouts]:
    """Return the times of each model that are its own."""
    return {model.name: model.timeouts for model in settings.models}
