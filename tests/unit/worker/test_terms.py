"""What requests say of their turn and their time, in heads and in parameters."""

from __future__ import annotations

from typing import Any

import pytest

from worker.execution import Ticket
from worker.execution.queues import DEFAULT_LEVEL, DEFAULT_TICKET
from worker.serving.errors import RequestError
from worker.serving.terms import QUICK_BYTES, of_head, of_json, take_out, with_parameters

NOW = 50.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, DEFAULT_TICKET),
        ({"x-request-timeout-ms": "250"}, Ticket(deadline=50.25)),
        ({"warmroute-queue-priority": "1"}, Ticket(level=1)),
        ({"warmroute-queue-priority": "0"}, DEFAULT_TICKET),
        ({"warmroute-queue-priority": "4000"}, Ticket(level=10)),
        ({"warmroute-queue-priority": str(2**64 - 1)}, Ticket(level=10)),
        ({"who": "a" * 200}, Ticket(tenant="a" * 128)),
        ({"warmroute-background": "1"}, Ticket(background=True)),
        ({"warmroute-background": "0"}, DEFAULT_TICKET),
    ],
)
def test_heads(fields: dict[str, str], expected: Ticket) -> None:
    assert of_head(fields.get, NOW, "who") == expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"x-request-timeout-ms": "-1"}, "header x-request-timeout-ms: '-1': expected a whole number"),
        ({"x-request-timeout-ms": "1.5"}, "header x-request-timeout-ms: '1.5': expected a whole number"),
        ({"warmroute-queue-priority": "high"}, "header warmroute-queue-priority: 'high': expected a whole number"),
    ],
)
def test_heads_that_are_not_as_they_should_be(fields: dict[str, str], text: str) -> None:
    with pytest.raises(RequestError) as refused:
        of_head(fields.get, NOW, "who")
    assert (str(refused.value), refused.value.status) == (text, 400)


@pytest.mark.parametrize(
    ("ticket", "parameters", "expected"),
    [
        (DEFAULT_TICKET, {"p": 1}, DEFAULT_TICKET),
        (DEFAULT_TICKET, {"timeout": 250_000}, Ticket(deadline=50.25)),
        (DEFAULT_TICKET, {"timeout": 0}, DEFAULT_TICKET),
        (Ticket(deadline=50.1), {"timeout": 250_000}, Ticket(deadline=50.1)),
        (Ticket(deadline=50.5), {"timeout": 250_000}, Ticket(deadline=50.25)),
        (Ticket(level=2, tenant="a"), {"priority": 7}, Ticket(level=7, tenant="a")),
        (Ticket(level=2), {"priority": 0}, Ticket(level=2)),
        (Ticket(level=2), {"priority": 11}, Ticket(level=10)),
        (Ticket(level=2), {"priority": 2**64 - 1}, Ticket(level=10)),
        (DEFAULT_TICKET, {"timeout": 10**400}, Ticket(deadline=NOW + (2**64 - 1) / 1e6)),
    ],
)
def test_parameters(ticket: Ticket, parameters: dict[str, Any], expected: Ticket) -> None:
    assert with_parameters(ticket, parameters, NOW) == expected


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None])
@pytest.mark.parametrize("name", ["timeout", "priority"])
def test_parameters_that_are_no_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        with_parameters(DEFAULT_TICKET, {name: value}, NOW)
    assert str(refused.value) == f"inference request: parameter {name!r} is {value!r}, expected a whole number"


def test_a_parameter_that_is_nested_deeper_than_can_be_shown() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(RequestError, match="parameter 'timeout' is an array, expected a whole number"):
        with_parameters(DEFAULT_TICKET, {"timeout": value}, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"parameters": {"timeout": 5, "p": 1}, "inputs": []}', {"timeout": 5, "p": 1}),
        (b'{"inputs": [{"parameters": {"timeout": 5}}]}', {}),
        (b'{"parameters": {"p": 1}}', {}),
        (b'{"parameters": {"timeout": 5}', {}),
        (b'{"parameters": ["timeout"]}', {}),
        (b"[" * 5000 + b'"timeout"', {}),
        (b'{"parameters": {"timeout": 5}}'.ljust(QUICK_BYTES + 1), {}),
        (b"", {}),
    ],
)
def test_parameters_are_found_in_json_before_it_is_read(text: bytes, expected: dict[str, Any]) -> None:
    assert of_json(bytearray(text)) == expected
    assert of_json(memoryview(text)) == expected


def test_the_engine_gets_its_own_parameters_only() -> None:
    parameters: dict[str, bool | int | float | str] = {"timeout": 1, "priority": 2, "p": 3}
    take_out(parameters)
    assert parameters == {"p": 3}
    assert DEFAULT_TICKET.level == DEFAULT_LEVEL
