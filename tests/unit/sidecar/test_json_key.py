"""The key in a JSON body: what counts as one, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.affinity import blocks_of
from router.policy import AffinityPolicy
from sidecar.http1.json_key import JsonKey, JsonPathError, PromptKey


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("user", b'{"user": "a"}', b"a"),
        ("user", b'\xef\xbb\xbf {"user": "a"}', b"a"),
        ("user", b'{"user": "\\u0061\\n"}', b"a\n"),
        ("user", '{"user": "ä"}'.encode(), "ä".encode()),
        ("user", b'{"user": 17}', b"17"),
        ("user", b'{"user": -1.50e3}', b"-1.50e3"),
        ("user", b'{"user": "a", "user": "b"}', b"b"),
        ("user", b'{"a": {"user": "b"}, "user": "c", "z": [{"user": 1}]}', b"c"),
        ("user-id", b'{"user-id": "a"}', b"a"),
        ("a.b.c", b'{"a": {"x": 1, "b": {"c": "k"}}}', b"k"),
        ("a.b", b'{"a": {"b": "x"}, "a": {}}', None),
        ("a.b", b'{"a": null}', None),
        ("a.b", b'{"a": "b"}', None),
        ("a.b", b'{"a": [{"b": "c"}]}', None),
        ("user", b'{"user": ""}', None),
        ("user", b'{"user": null}', None),
        ("user", b'{"user": true}', None),
        ("user", b'{"user": {"a": 1}}', None),
        ("user", b'{"user": ["a"]}', None),
        ("user", b'{"user": "\\ud800"}', None),
        ("user", b'{"users": "a"}', None),
        ("user", b'{"user": "a"', None),
        ("user", b'[{"user": "a"}]', None),
        ("user", b"", None),
        ("user", b"\x1f\x8b", None),
        ("user", b'{"user": "a", "z": ' + b"[" * 100_000 + b"}", None),
    ],
)
def test_what_is_a_key(path: str, body: bytes, key: bytes | None) -> None:
    assert JsonKey(path).of(body) == key


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", ".".join("abcdefghi"), "x" * 257])
def test_paths_that_name_nothing(path: str) -> None:
    with pytest.raises(JsonPathError, match=r"^must be names with dots between them, at most 8, for example user\.id$"):
        JsonKey(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
    max_leaves=12,
)


@given(value=JSON, ascii_only=st.booleans())
def test_the_key_is_what_another_reader_finds(value: object, *, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = value.get("a") if isinstance(value, dict) else None
    found = found.get("b") if isinstance(found, dict) else None
    expected = None
    if isinstance(found, str):
        expected = found.encode() or None
    elif isinstance(found, int) and not isinstance(found, bool):
        expected = b"%d" % found
    assert JsonKey("a.b").of(body) == expected


@given(body=st.binary(max_size=64))
def test_any_bytes_are_read_to_an_end(body: bytes) -> None:
    assert JsonKey("a").of(body) is None or body.find(b"a") >= 0


POLICY = AffinityPolicy(block_bytes=8, blocks=4, least_blocks=1)
TENSOR = b'0123456789"]'


def v2(*inputs: object) -> bytes:
    """Return a body of the V2 protocol."""
    return json.dumps({"id": "1", "inputs": inputs}).encode()


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b'{"prompt": "0123456789abcdef"}', b"0123456789abcdef"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream": true}', b'[{"role": "user"}]'),
        (b'{"input": ["0123456789"]}', b'["0123456789"]'),
        (b'{"input": "0123456789", "messages": ["0123456789"]}', b'["0123456789"]'),
        (b'\xef\xbb\xbf{"prompt": "0123456789"}', b"0123456789"),
        (b'{"prompt": "x"}', b""),
        (b'{"prompt": null}', b""),
        (b'{"model": "m"}', b""),
        (b'["prompt"]', b""),
        (b"prompt", b""),
        (b"", b""),
        (b'{"prompt": ' + b"[" * 100_000, b""),
        (b'{"text_input": "0123456789", "parameters": {}}', b'0123456789"'),
        (v2({"name": "x", "data": [1]}, {"name": "text_input", "datatype": "BYTES", "data": ["0123456789"]}), TENSOR),
        (v2({"name": "text_input", "datatype": "BYTES", "data": [["0123456789"]]}), TENSOR + b"]"),
        (v2({"name": "text_input", "datatype": "INT64", "data": [1234567890, 1234567890]}), b""),
        (v2({"name": "text_input", "datatype": "BYTES", "parameters": {"binary_data_size": 400}}), b""),
        (v2({"name": "other", "datatype": "BYTES", "data": ["0123456789"]}), b""),
        (v2({"name": 1, "datatype": "BYTES", "data": ["0123456789"]}), b""),
        (b'{"inputs": "0123456789"}', b""),
        (b'{"inputs": ["0123456789"]}', b""),
    ],
)
def test_the_prompt_of_a_body(body: bytes, prompt: bytes) -> None:
    assert PromptKey(POLICY).of(body) == blocks_of(prompt, POLICY)


@pytest.mark.parametrize("name", ["inputs", "prompt", "frage-ä"])
def test_the_input_that_has_the_prompt_is_configured(name: str) -> None:
    policy = replace(POLICY, input=name)
    body = v2({"name": name, "datatype": "BYTES", "shape": [1], "data": ["0123456789"]})
    assert PromptKey(policy).of(body) == blocks_of(TENSOR, POLICY)
    assert PromptKey(POLICY).of(body) is None
