"""Where the shared state is. Apart from what talks to it, which takes a while to import and not every worker needs."""

from __future__ import annotations

from dataclasses import dataclass

from router.urls import masked_url

SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class StateAddress:
    """Where the shared state is and how to get in. User and password may stand in the URL."""

    url: str
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def shown(self) -> str:
        """The URL without its secrets, for logs."""
        return masked_url(self.url)
