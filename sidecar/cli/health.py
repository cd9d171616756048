"""``warmroute health``."""

from __future__ import annotations

from sidecar.cli.client import ADMIN, Admin, decoded
from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK
from sidecar.cli.shapes import Health, Readiness
from sidecar.cli.tables import seconds


def health(*, admin: Admin = ADMIN) -> int:
    """Say whether a sidecar is alive and ready.

    Exit code 0: ready. 1: alive but not ready, with the reasons. 3: no answer.
    """
    alive = decoded(admin.get("/healthz"), Health)
    ready = admin.ask("GET", "/readyz", accept_errors=True)
    up = sum(process.up for process in alive.processes)
    print(
        f"alive: {alive.sidecar}, version {alive.version}, up {seconds(alive.uptime_s)}, "
        f"{up} of {len(alive.processes)} data processes, store {alive.store_mode}"
    )
    if ready.status < 300:
        print("ready")
        return EXIT_OK
    reasons = decoded(ready.body, Readiness).reasons
    print(f"not ready: {'; '.join(reasons) or f'status {ready.status}'}")
    return EXIT_FAILED
