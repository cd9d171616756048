"""The shared state."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sidecar.settings.base import Base, Reload, doc


class StateTls(Base, frozen=True):
    """TLS towards the state store (with rediss://)."""

    ca_file: Annotated[str | None, doc(Reload.RESTART, "CA bundle; the system's where null", "path")] = None
    cert_file: Annotated[str | None, doc(Reload.RESTART, "client certificate", "path")] = None
    key_file: Annotated[str | None, doc(Reload.RESTART, "client key", "path")] = None


class StateStore(Base, frozen=True):
    """The shared state."""

    url: Annotated[
        str,
        doc(Reload.RESTART, "redis://, rediss://, unix:///PATH (user and password may stand in it), or none", "URL"),
    ] = "none"
    namespace: Annotated[
        str,
        doc(
            Reload.RESTART,
            "stands in every key: wr:{NAMESPACE}:...",
            form=(r"^[A-Za-z0-9._-]{1,64}\Z", "1 to 64 letters, digits, dots, underscores or hyphens"),
        ),
    ] = "default"
    password_file: Annotated[
        str | None, doc(Reload.RESTART, "file with the password, instead of one in the URL", "path")
    ] = None
    share_latencies: Annotated[
        bool,
        doc(Reload.RESTART, "tell other sidecars of the namespace what replicas took, and count what they measured"),
    ] = True
    share_breakers: Annotated[
        bool,
        doc(Reload.RESTART, "tell other sidecars of the namespace which breakers are open here, and heed their word"),
    ] = True
    tls: StateTls = msgspec.field(default_factory=StateTls)
