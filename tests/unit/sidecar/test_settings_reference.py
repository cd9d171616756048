"""The schema documents itself, and the page in docs/ says what it says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from router import policy
from sidecar.config.load import parse_settings
from sidecar.config.policy_texts import POLICY_TEXTS
from sidecar.config.reference import FieldText, effective, fields, reference
from sidecar.settings import Reload

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
FIELDS = list(fields())


MAPPINGS = {
    "policies.scoring.coefficients",
    "models[].warmup.requests[].headers",
    "models[].static_answer.headers",
    "models[].static_answer.call.metadata",
    "policies.admission.priority.classes",
}


@pytest.mark.parametrize("field", FIELDS, ids=[field.path for field in FIELDS])
def test_every_field_is_documented(field: FieldText) -> None:
    assert field.description
    assert field.default
    if not field.section:
        assert field.reload in {one.value for one in Reload}
        assert (field.type == "mapping") is (field.path in MAPPINGS)  # names of anybody's choice
    if "number" in field.type:
        assert field.unit


def test_units_are_what_names_say() -> None:
    for field in FIELDS:
        for suffix, unit in (("_s", "seconds"), ("_ms", "milliseconds"), ("_bytes", "bytes"), ("_ratio", "ratio")):
            if field.path.endswith(suffix) and not field.path.endswith("_per_s"):
                assert field.unit == unit, field.path


def test_policy_texts_are_those_of_the_policies() -> None:
    named = {
        f"{part.name}.{field.name}"
        for part in dataclasses.fields(policy.Policies)
        if dataclasses.is_dataclass(getattr(policy.Policies(), part.name))  # others come from elsewhere in the schema
        for field in dataclasses.fields(getattr(policy.Policies(), part.name))
    }
    assert set(POLICY_TEXTS) == named


def test_every_field_of_the_schema_is_there_once() -> None:
    paths = [field.path for field in FIELDS]
    assert len(set(paths)) == len(paths)
    assert {"version", "listeners[].address", "models[].probe.path", "policies.retry.attempts"} <= set(paths)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == reference(), "run: warmroute config reference > docs/reference/configuration.md"


def test_effective_settings_are_plain_complete_and_without_passwords() -> None:
    text = "version: 1\nlisteners: [{address: 'h:1'}]\nstate: {url: 'redis://u:hunter2@h:1'}\nmodels: [{name: m}]\n"
    shown = effective(parse_settings(text.encode(), "w.yaml").settings)
    assert "hunter2" not in str(shown)
    assert shown["state"] == {
        "url": "redis://***@h:1",
        "namespace": "default",
        "password_file": None,
        "share_latencies": True,
        "share_breakers": True,
        "tls": {"ca_file": None, "cert_file": None, "key_file": None},
    }
    assert isinstance(shown["policies"], dict)
    assert shown["policies"]["retry"]["attempts"] == 1
