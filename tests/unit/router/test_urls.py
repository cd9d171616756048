from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.urls import check_address, is_loopback_name, masked_url, masked_urls
from sidecar.config.addresses import check_endpoint_url
from sidecar.upstreams.pool import split_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("none", "none"),
        ("unix:///run/s.sock", "unix:///run/s.sock"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://user:pw@h:6379/0", "redis://***@h:6379/0"),
        ("redis://:hunter2@X@h/0", "redis://***@h/0"),
        ("redis://:a/b:c#d e@h/0", "redis://***@h/0"),
        ("redis://h/0?password=hunter2", "redis://h/0"),
        ("redis://u:pw@h/0?password=hunter2&db=1", "redis://***@h/0"),
        ("redis://h/0?password=hun@ter2", "redis://***"),
        ("redis://:a?b@h", "redis://***"),
        ("unix://u:pw@/run/s.sock?db=1", "unix://***@/run/s.sock"),
    ],
)
def test_a_masked_url_says_where_and_not_how_to_get_in(url: str, shown: str) -> None:
    assert masked_url(url) == shown
    assert masked_urls(f"cannot reach {url} now") == f"cannot reach {shown} now" or " " in url


def test_every_url_of_a_text_is_masked() -> None:
    text = "redis://:a@b@h:1 failed, then unix://u:p@/s?password=q\nand http://w:1/x"
    assert masked_urls(text) == "redis://***@h:1 failed, then unix://***@/s\nand http://w:1/x"


@given(st.text(alphabet="pw:/?#@ &=", min_size=1), st.sampled_from(["redis://:{}@h/0", "redis://h/0?password={}"]))
def test_no_part_of_any_password_comes_through(rest: str, form: str) -> None:
    assert "hunter" not in masked_url(form.format("hunter" + rest + "hunter"))


ADDRESSES = [
    "http://worker:9001",
    "https://worker.pool-1.svc.cluster.local.:65535",
    "grpc://my_worker:1",
    "grpcs://10.0.0.1:443",
    "http://[::1]:80",
    "http://[fe80::1%eth0]:80",
    "unix:/run/worker.sock",
    "grpc+unix:/run/my worker.sock",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_of_the_store_is_one_of_the_configuration_and_can_be_connected_to(address: str) -> None:
    check_address(address)
    assert check_endpoint_url(address) == address
    host, port, path = split_address(address)
    assert (host and port) or path


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "worker",
            "worker:1",
            "http:/worker:1",
            "HTTP://worker:1",
            "ftp://worker:1",
            "http://worker",
            "http://:1",
        ),
        *("http://worker:", "http://worker:0", "http://worker:65536", "http://worker:+1", "http://worker:٣"),
        *("http://worker:1/", "http://worker:1/v2", "http://worker:1?a", "http://worker:1#a", "http://me@worker:1"),
        *("http://wor ker:1", "http://wor\tker:1", "http://worker:1\n", "http://worker:1\r\nX: y", "http://wörker:1"),
        *("http://-worker:1", "http://worker..x:1", "http://1.2.3:1", "http://1.2.3.256:1", "http://::1:1"),
        *("http://[]:1", "http://[::g]:1", "http://[1.2.3.4]:1", "http://[::1]1", f"http://{'a' * 300}:1"),
        *(
            "unix:",
            "unix:/",
            "unix://",
            "unix:///run/s",
            "unix:run/s",
            "unix:/run/",
            "unix:/a\0b",
            "unix:/" + "a" * 107,
        ),
    ],
)
def test_what_nobody_could_connect_to_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"must|control"):
        check_address(address)


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
