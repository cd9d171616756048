"""Configurations as text, and what is said of those that must not load."""

from __future__ import annotations

import pytest

from sidecar.config.load import parse_settings
from sidecar.config.problems import SettingsError

GOOD = """\
version: 1
listeners: [{address: "127.0.0.1:8080"}]
models: [{name: magika, endpoints: ["http://127.0.0.1:9001"]}]
"""
"""One that loads."""


def refused(content: str | bytes, **environ: str) -> list[str]:
    """Return the lines of the error of a configuration that must not load, from the file ``w.yaml``."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(content if isinstance(content, bytes) else content.encode(), "w.yaml", environ)
    return str(caught.value).split("\n")
