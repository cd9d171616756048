"""What outlives a supervisor's children: descriptors made once, which every life of theirs gets, and their plans."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar import boot, channel
from sidecar.telemetry import page
from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Page, Scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.configuration import Configuration
    from sidecar.sockets import OpenAdmin, OpenListener

log = get_log("supervisor")


class Estate:
    """The descriptors and plans of one control process and ``processes`` data processes.

    ``succeeds``: another supervisor, from which the sockets come, serves on them until this one's processes can.
    ``handed_over``: another one has the sockets too, and this one's processes end.
    """

    def __init__(
        self,
        config: Configuration,
        listeners: Sequence[OpenListener],
        admin: OpenAdmin,
        *,
        memory: bytes = b"",
        succeeds: bool = False,
    ) -> None:
        self._config = config
        self.listeners: Sequence[OpenListener] = listeners
        self.admin = admin
        self.processes = max(listener.processes for listener in config.settings.listeners)
        self.succeeds = succeeds
        self.handed_over = False
        self._id = f"{socket.gethostname()[:64]}-{os.urandom(4).hex()}"
        self._channels = tuple(channel.pair() for _ in range(self.processes))  # control end, data end; by index
        self._metrics_fds = tuple(page.create(f"warmroute-metrics-{index}") for index in range(self.processes))
        self._pages = tuple(Page(fd) for fd in self._metrics_fds)
        self.memory_fd = os.memfd_create("warmroute-memory", 0)
        os.write(self.memory_fd, memory)
        self._control_fd = -1
        self._data_fds: list[int] = []

    # --- plans --------------------------------------------------------------------------------------------------

    def plan_control(self) -> tuple[int, tuple[int, ...]]:
        """Write the control process's plan; return the descriptor behind which it is, and all that it needs."""
        plan = self._control_plan()
        self._control_fd = boot.write_plan(plan)
        fds = (*plan.admin_fds, *plan.channel_fds, *plan.metrics_fds, self.memory_fd)
        return self._control_fd, (*fds, self._control_fd)

    def plan_data(self, index: int) -> tuple[int, tuple[int, ...]]:
        """Do the same for a data process; in order of their indexes."""
        plan = self._data_plan(index)
        fd = boot.write_plan(plan)
        self._data_fds.append(fd)
        return fd, (plan.channel_fd, plan.metrics_fd, *(listener.fd for listener in plan.listeners), fd)

    def rewrite_plans(self) -> None:
        """Tell the children, and their later lives, what is in force now. The control process's plan comes first."""
        boot.rewrite_plan(self._control_fd, self._control_plan())
        for index, fd in enumerate(self._data_fds):
            boot.rewrite_plan(fd, self._data_plan(index))

    def take_over(self) -> None:
        """Nobody else serves on the sockets any more: have them as they are configured here, and tell the children."""
        self.succeeds = False
        listeners = []
        for opened in self.listeners:
            try:
                listeners.append(opened.taken_over(self._config.settings.listeners[opened.index]))
            except OSError as error:
                log.error("listener.unchanged", listener=opened.name, address=opened.address, error=str(error))
                listeners.append(replace(opened, taken=0, kept_backlog=0))
        self.listeners = tuple(listeners)
        self.rewrite_plans()

    def _control_plan(self) -> boot.ControlPlan:
        return boot.ControlPlan(
            parent_pid=os.getpid(),
            settings=self._config.settings,
            sidecar_id=self._id,
            admin_fds=tuple(sock.fileno() for sock in self.admin.sockets),
            admin_unix=self.admin.file is not None,
            channel_fds=tuple(control.fileno() for control, _ in self._channels),
            metrics_fds=self._metrics_fds,
            listen_addresses=tuple(listener.address for listener in self.listeners),
            memory_fd=self.memory_fd,
            config=self._config.state,
            admin_open=not self.succeeds,
            handed_over=self.handed_over,
        )

    def _data_plan(self, index: int) -> boot.DataPlan:
        return boot.DataPlan(
            index=index,
            parent_pid=os.getpid(),
            settings=self._config.settings,
            listeners=tuple(
                boot.ListenerFd(
                    opened.index, opened.address, sock.fileno(), opened.is_later(sock), opened.backlog_of(sock)
                )
                for opened in self.listeners
                for sock in opened.sockets_of(index)
            ),
            channel_fd=self._channels[index][1].fileno(),
            metrics_fd=self._metrics_fds[index],
            revision=self._config.state.revision,
            sequence=self._config.state.sequence,
            succeeds=self.succeeds,
            handed_over=self.handed_over,
        )

    # --- what children tell -------------------------------------------------------------------------------------

    def all_accept(self) -> bool:
        """Whether every data process accepts connections now, or did when it was last alive."""
        return all(each.words[Page.scalar(Scalar.ACCEPTING_NOW)] == 1 for each in self._pages)

    # --- the end ------------------------------------------------------------------------------------------------

    def close_listeners(self) -> None:
        """Close the supervisor's copies of the listening sockets."""
        for opened in self.listeners:
            opened.close()

    def leave_files(self, addresses: set[str]) -> None:
        """Leave the files of the Unix sockets at ``addresses`` where they are: they are another's now (or still)."""
        self.listeners = tuple(replace(one, file=None) if one.address in addresses else one for one in self.listeners)
        self.admin.leave_file(addresses)

    def release(self) -> None:
        """Close everything, and remove the files of Unix sockets."""
        self.close_listeners()
        for opened in self.listeners:
            opened.remove_socket_file()
        self.admin.remove_socket_file()
        for sock in self.admin.sockets:
            sock.close()
        for ends in self._channels:
            for end in ends:
                end.close()
        for each in self._pages:
            each.close()
        for fd in (*self._metrics_fds, self.memory_fd, self._control_fd, *self._data_fds):
            os.close(fd)
