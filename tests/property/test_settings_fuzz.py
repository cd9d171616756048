"""Whatever a configuration file or the environment holds: settings or SettingsError, nothing else, and in bounds."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.config.document import written
from sidecar.config.load import Loaded, parse_settings
from sidecar.config.problems import SettingsError
from sidecar.config.reference import effective
from sidecar.settings import Settings

BASE = "version: 1\nlisteners: [{address: '127.0.0.1:0'}]\nmodels: [{name: m, endpoints: ['http://w:1']}]\n"

_YAML_PIECES = st.sampled_from(
    [
        "version: 1",
        "listeners:",
        "  - ",
        "address: ",
        "&a ",
        "*a",
        "<<: ",
        "!!str ",
        "[",
        "]",
        "{",
        "}",
        ": ",
        "\n",
        "\t",
        "? ",
        "| ",
        "'",
        '"',
        "\\U00110000",
        "\\x",
        "---\n",
        "%YAML 1.2\n",
        "#",
        ".inf",
        "-.nan",
        "0x",
        "9" * 80,
        "\u2028",
        "\x00",
        "models: ",
        "policies: {retry: {attempts: ",
        "admin: null",
        "1e999",
        "://u:p@",
    ]
)
_NAMES = st.sampled_from(
    [
        *Settings.__struct_fields__,
        "address",
        "name",
        "endpoints",
        "url",
        "path",
        "retry",
        "attempts",
        "ttl_s",
        "probe",
        "tls",
        "format",
        "token_file",
        "connect_s",
        "head_bytes",
        "default_model",
        "trusted_networks",
        "models",
    ]
) | st.text(max_size=8)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["127.0.0.1:0", "[::1]:1", "http://w:1", "redis://h", "unix://s", "none", "m", "/x", "::/0", "\ud800"]
    )
)
_TREES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=6), max_leaves=20
)


def attempt(data: bytes, environ: dict[str, str] | None = None) -> Loaded | SettingsError:
    """Return what loading came to; whatever else it raises fails the test."""
    try:
        return parse_settings(data, "fuzz.yaml", environ or {})
    except SettingsError as caught:
        error = caught
    assert error.problems
    assert all(problem.remedy for problem in error.problems)
    assert all(str(problem).isprintable() for problem in error.problems)
    return error


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    attempt(data)


@given(st.lists(_YAML_PIECES | st.text(max_size=5), max_size=30))
def test_pieces_of_yaml(pieces: list[str]) -> None:
    attempt("".join(pieces).encode("utf-8", "replace"))


@settings(max_examples=200)
@given(st.dictionaries(_NAMES, _TREES, max_size=8))
def test_any_tree(tree: dict[str, Any]) -> None:
    attempt(json.dumps({"version": 1, "listeners": [{"address": "127.0.0.1:0"}], **tree}).encode())


@given(
    st.dictionaries(
        st.sampled_from(["MODELS__0__NAME", "MODELS__1", "LISTENERS__0", "LIMITS__FIELDS", "ADMIN", "STATE__URL", ""])
        | st.text(st.characters(codec="ascii", exclude_characters="\x00="), max_size=20),
        st.text(st.characters(exclude_characters="\x00"), max_size=30)
        | st.sampled_from(["[", "{a: *b}", "\udc80", "[{}]"]),
        max_size=4,
    )
)
def test_any_environment(variables: dict[str, str]) -> None:
    attempt(BASE.encode(), {f"WARMROUTE__{name}": value for name, value in variables.items()})


@given(
    st.floats(min_value=0.001, max_value=3600),
    st.integers(min_value=1, max_value=64),
    st.text(max_size=30) | st.from_regex(r"[a-z._-]{0,9}\Z"),
)
@example(1.0, 1, "1e100")
def test_what_is_shown_loads_again(connect_s: float, processes: int, name: str) -> None:
    document = yaml.safe_load(BASE)
    document["timeouts"] = {"connect_s": connect_s}
    document["listeners"][0] |= {"processes": processes, "name": name}
    first = attempt(written(document).encode())
    if isinstance(first, SettingsError):
        assert not re.fullmatch(r"[A-Za-z0-9._-]{0,128}", name)
        return
    again = attempt(written(effective(first.settings)).encode())
    assert isinstance(again, Loaded)
    assert again.settings == first.settings
