from __future__ import annotations

import pytest

from sidecar.admin.guard import is_loopback_name


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("localhost", True),
        ("LocalHost.:80", True),
        ("127.0.0.1", True),
        ("127.1.2.3:9901", True),
        ("[::1]", True),
        ("[::1]:9901", True),
        ("::1", True),
        ("", False),
        (":80", False),
        ("0.0.0.0", False),
        ("10.0.0.1:9901", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("[::2]:80", False),
        ("[::1]evil.example", False),
        ("[::1]:80x", False),
        ("[127.0.0.1", True),  # nobody but this machine can be meant
        ("localhost:80:80", False),
    ],
)
def test_only_names_of_this_machine_are_loopback(text: str, loopback: bool) -> None:
    assert is_loopback_name(text) is loopback
