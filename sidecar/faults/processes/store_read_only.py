"""The state store takes no writes, as a replica does; a failover is that, with the callers cut before and after."""

from __future__ import annotations

from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.servers import asked, cut_callers, plain
from sidecar.faults.processes.target import identified
from sidecar.pids import start_ticks

NOWHERE = ("127.0.0.1", "1")
"""The primary that it is told to follow: nobody listens there, so it keeps what it holds."""


class StoreReadOnly:
    """Makes the server a replica of nobody: reads go on, writes are answered READONLY."""

    SUBJECT: ClassVar[str] = "role"
    NEEDS: ClassVar[Reach] = Reach.ANSWERS
    LEAVES: ClassVar[Reach] = Reach.ANSWERS
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    UNDONE: ClassVar[str] = "the server takes writes again"
    LASTS: ClassVar[bool] = True
    CUTS: ClassVar[bool] = False

    def begin(self, fault: ProcessFault) -> Memo:
        """Have it take no writes."""
        if not fault.url:
            raise ProcessFaultError(f"{fault.kind}: needs url: unix:///PATH or redis://127.0.0.1:PORT of the server")
        memo = identified(fault)
        with asked(fault.kind, fault.url) as server:
            role = server.execute_command("ROLE")[0]
            if role != "master":
                raise ProcessFaultError(f"{fault.kind}: {plain(fault.url)}: is a {role} already: name the primary")
            server.execute_command("REPLICAOF", *NOWHERE)
            if self.CUTS:
                cut_callers(server)
        return memo | {"url": fault.url, "kind": fault.kind}

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """Have it take writes, unless it is another process, or somebody else gave it another role since."""
        if start_ticks(int(memo["pid"])) != memo["ticks"]:
            return False
        url = str(memo["url"])
        try:
            with asked(str(memo["kind"]), url) as server:
                role = server.execute_command("ROLE")
                if [str(part) for part in role[:3]] != ["slave", *NOWHERE]:
                    return False
                server.execute_command("REPLICAOF", "NO", "ONE")
                if self.CUTS:
                    cut_callers(server)
        except ProcessFaultError as error:
            raise ProcessFaultError(f"{error}: still read-only: REPLICAOF NO ONE there lets it take writes") from error
        return True


class StoreFailover(StoreReadOnly):
    """What callers see of a failover: all connections cut, no writes taken until the end, then cut once more."""

    UNDONE: ClassVar[str] = "the server takes writes again, as a new primary: all connections are cut"
    LASTS: ClassVar[bool] = True
    CUTS: ClassVar[bool] = True
