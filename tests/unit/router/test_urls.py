from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.urls import masked_url, masked_urls


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
