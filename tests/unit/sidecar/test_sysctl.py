from __future__ import annotations

from pathlib import Path

from sidecar.sysctl import fastopen_for_servers, sysctl


def test_a_number_is_read_and_what_is_none_or_not_there_is_none() -> None:
    assert sysctl("net.core.somaxconn") == int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert sysctl("kernel.ostype") is None
    assert sysctl("net.core.absent") is None


def test_fast_open_for_servers_is_a_bit_of_its_own() -> None:
    assert [fastopen_for_servers(value) for value in (0, 1, 2, 3, 0x400)] == [False, False, True, True, False]
    assert fastopen_for_servers(None)
