"""What the admin API is given: the control process's parts, by reference, and nothing global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.protocols import Rng
    from sidecar.config.state import ConfigState
    from sidecar.discovery.dns import DnsSource
    from sidecar.discovery.load_streams import LoadStreams
    from sidecar.discovery.static import StaticSource
    from sidecar.discovery.warming import WarmedSource
    from sidecar.loading import Loader
    from sidecar.settings import Settings
    from sidecar.state.answers import SharedAnswers
    from sidecar.state.keeper import Keeper
    from sidecar.state.store import RedisSource
    from sidecar.telemetry.page import Page
    from sidecar.tls.expiry import ExpiryWatch
    from sidecar.upstreams.probes import Costs


@dataclass(slots=True)
class Context:
    """The parts that requests to the admin API read and steer. ``clock`` gives monotonic seconds."""

    settings: Settings
    keeper: Keeper
    pages: Sequence[Page]
    store: RedisSource | None
    static: StaticSource
    warmed: WarmedSource
    streams: LoadStreams
    dns: DnsSource
    probe_costs: Costs
    version: str
    sidecar_id: str
    listen_addresses: tuple[str, ...]
    clock: Callable[[], float]
    rng: Rng
    started_at: float
    certificates: ExpiryWatch
    config: ConfigState
    loader: Loader
    ask_reload: Callable[[], bool]
    """Has the supervisor look at the configuration again; False where it cannot."""
    answers: SharedAnswers | None = None
    """The second tier of kept answers, where there is a store."""
    draining: bool = False
    handed_over: bool = False
    """Another sidecar serves on the same sockets; what still comes here comes on connections that were there before."""
