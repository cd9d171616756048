"""A request as another model is asked: what changes of it, and what does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.matching import Surface, match
from sidecar.http1.renaming import reframed, renamed, renamed_body, renamed_path


@pytest.mark.parametrize(
    ("target", "version", "expected"),
    [
        (b"/v2/models/m/infer", b"", b"/v2/models/b/infer"),
        (b"/v2/models/m", b"", b"/v2/models/b"),
        (b"/v2/models/m?a=/v2/models/m", b"2", b"/v2/models/b/versions/2?a=/v2/models/m"),
        (b"/v2/models/m/versions/1/infer", b"2", b"/v2/models/b/versions/2/infer"),
        (b"/v2/models/m/versions/1/infer?x", b"", b"/v2/models/b/infer?x"),
        (b"/v2/models/m/versions/1", b"", b"/v2/models/b"),
        (b"/v2/models/m%20x/versions/1/", b"", b"/v2/models/b/"),
        (b"/v2/models/m/infer", b"2", b"/v2/models/b/versions/2/infer"),
        (b"/v1/embeddings", b"2", b"/v1/embeddings"),
    ],
)
def test_paths(target: bytes, version: bytes, expected: bytes) -> None:
    assert renamed_path(target, b"b", version) == expected


@given(
    st.from_regex(
        rb"/v2/models/[a-z%0-9A-F]{1,8}(/versions/[a-z0-9]{1,3})?(/[a-z/]{0,9})?(\?[a-z/]{0,6})?", fullmatch=True
    )
)
def test_a_path_names_the_other_model_whatever_it_was(target: bytes) -> None:
    for version in ("", "7"):
        found = match(renamed_path(target, b"b", version.encode()))
        assert (found.model, found.version) == ("b", version)


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: 3\r\nwarmroute-attempt: 1\r\n\r\n"
)


def test_a_json_body_is_written_anew_and_framed() -> None:
    found = renamed(HEAD, Surface.OPENAI, b'{"model":"m"}', "b", "2")
    assert found is not None
    assert found.body == b'{"model":"b@2"}'
    assert found.head == HEAD.replace(b"Content-Length: 3\r\n", b"").replace(
        b"HTTP/1.1\r\n", b"HTTP/1.1\r\nContent-Length: 15\r\n"
    )


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (HEAD, None),
        (HEAD, b"[1]"),
        (HEAD, b"not json"),
        (HEAD.replace(b"application/json", b"multipart/form-data"), b'{"model":"m"}'),
        (HEAD.replace(b"Host: a", b"Content-Encoding: gzip"), b'{"model":"m"}'),
    ],
)
def test_bodies_that_cannot_be_renamed(head: bytes, body: bytes | None) -> None:
    assert renamed(head, Surface.OPENAI, body, "b", "") is None


def test_a_body_that_names_no_model_stays() -> None:
    found = renamed(HEAD, Surface.OPENAI, b'{"n": 1}', "b", "")
    assert found is not None
    assert (found.head, found.body) == (HEAD, None)


def test_other_surfaces_keep_their_bodies_unread() -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nX-Model: m\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = renamed(head, Surface.V2, None, "b", "1", b"\r\nx-model:")
    assert found is not None
    assert found.body is None
    assert found.head == (
        b"POST /v2/models/b/versions/1/infer HTTP/1.1\r\nX-model: b@1\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).replace(b"X-model", b"x-model")


def test_a_head_gets_the_length_that_its_body_has() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nA: b\r\n\r\n"
    assert reframed(head, 7) == b"POST / HTTP/1.1\r\nContent-Length: 7\r\nA: b\r\n\r\n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.booleans())
def test_all_but_the_model_stays_what_it_was(members: dict[str, object], named: bool) -> None:
    if named:
        members["model"] = "m"
    else:
        members.pop("model", None)
    body = json.dumps(members).encode()
    found = renamed_body(body, "b")
    assert found is not None
    if named:
        assert list(json.loads(found).items()) == [(k, "b" if k == "model" else v) for k, v in members.items()]
    else:
        assert found is body
