"""A control process's parts as it puts them together: nothing runs, and the test says what there is."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from router.model import EndpointRecord, EndpointSeen, Replica
from sidecar import boot, channel
from sidecar.control import Control
from sidecar.settings import Settings
from sidecar.telemetry import page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sidecar.admin.context import Context


class ControlByHand:
    """One with ``processes`` pages. ``context`` is what its admin API is given."""

    def __init__(self, context: Context, pages: list[page.Page]) -> None:
        self.context = context
        self.pages = pages

    def seen(self, id_: str, models: Iterable[str], version: str = "1", *, static: bool = False) -> None:
        """Have the store, or the configuration, say that an endpoint is there, with a warm replica of each model."""
        replicas = tuple(Replica(model, version) for model in models)
        record = EndpointRecord(id_, "http://127.0.0.1:1", "e", replicas=replicas, static=static)
        source = self.context.static.name if static else "redis"
        self.context.keeper.found(source, EndpointSeen(record, self.context.clock()))

    def fleet(self, endpoints: int, models: int, *, static: bool = False) -> None:
        """Have so many endpoints, each with so many models, all the same. Those that are static never go stale."""
        for number in range(endpoints):
            self.seen(f"e{number}", [f"m{model}" for model in range(models)], static=static)


@contextmanager
def control_by_hand(*, processes: int = 1, **settings: Any) -> Iterator[ControlByHand]:
    """Make one; everything that it was given is closed at the end."""
    made = msgspec.convert(
        {
            "version": 1,
            "listeners": [{"address": "127.0.0.1:0", "processes": processes}],
            "state": {"url": "redis://127.0.0.1:1/0"},
            **settings,
        },
        Settings,
    )
    pairs = [channel.pair() for _ in range(processes)]
    page_fds = [page.create(f"test-{index}") for index in range(processes)]
    memory_fd = os.memfd_create("test-memory", 0)
    plan = boot.ControlPlan(
        parent_pid=os.getppid(),
        settings=made,
        sidecar_id="test-sidecar",
        admin_fds=(),
        admin_unix=True,
        channel_fds=tuple(os.dup(control.fileno()) for control, _ in pairs),
        metrics_fds=tuple(page_fds),
        listen_addresses=("127.0.0.1:8080",),
        memory_fd=memory_fd,
    )
    plan_fd = boot.write_plan(plan)
    pages = [page.Page(fd) for fd in page_fds]
    control = Control(plan, boot.PlanFile(plan_fd))
    for index, one in enumerate(pages):
        one.begin(1000 + index, 0.0)
    try:
        yield ControlByHand(control.context, pages)
    finally:
        for port in control.context.keeper.feed.ports:
            port.channel.close()
        for mapped in (*pages, *control.context.pages):
            mapped.close()
        for pair in pairs:
            for end in pair:
                end.close()
        for fd in (*page_fds, memory_fd, plan_fd):
            os.close(fd)
