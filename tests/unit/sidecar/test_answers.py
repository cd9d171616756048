"""The answers that warmroute gives itself, byte for byte, on each surface."""

from __future__ import annotations

import json

import pytest

from router.matching import Surface
from router.outcomes import OUTCOMES, Outcome
from sidecar.http1.answers import error_answer, error_body

ANSWERED = [outcome for outcome in Outcome if OUTCOMES[outcome].answered_here]


def test_a_plain_answer_is_text() -> None:
    assert error_answer(Surface.PLAIN, Outcome.CONNECT_FAILED, "o0: Connection refused", request_id=b"id-1") == (
        b"HTTP/1.1 502 Bad Gateway\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: 75\r\n"
        b"warmroute-outcome: connect_failed\r\n"
        b"x-request-id: id-1\r\n"
        b"\r\n"
        b"502 Bad Gateway: the worker refused the connection: o0: Connection refused\n"
    )


def test_an_answer_of_the_inference_protocol_has_one_field() -> None:
    assert error_answer(Surface.V2, Outcome.NO_CANDIDATE, "no_endpoints", retry_after_s=1.2) == (
        b"HTTP/1.1 503 Service Unavailable\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: 55\r\n"
        b"warmroute-outcome: no_candidate\r\n"
        b"Retry-After: 2\r\n"
        b"\r\n"
        b'{"error":"no warm replica can take this: no_endpoints"}'
    )


def test_an_answer_in_openai_s_form_has_four() -> None:
    assert error_answer(Surface.OPENAI, Outcome.BODY_TOO_LARGE, close=True) == (
        b"HTTP/1.1 413 Content Too Large\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: 119\r\n"
        b"warmroute-outcome: body_too_large\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b'{"error":{"message":"request body over the limit","type":"invalid_request_error",'
        b'"param":null,"code":"body_too_large"}}'
    )


def test_a_code_of_openai_s_replaces_ours() -> None:
    whole = error_answer(Surface.OPENAI, Outcome.NO_ROUTE, "x", code="model_not_found")
    assert b'"code":"model_not_found"' in whole
    assert b"warmroute-outcome: no_route\r\n" in whole


@pytest.mark.parametrize("outcome", ANSWERED)
@pytest.mark.parametrize("surface", Surface)
def test_every_outcome_that_is_answered_here_has_a_whole_answer(outcome: Outcome, surface: Surface) -> None:
    spec = OUTCOMES[outcome]
    head, _, body = error_answer(surface, outcome, 'odd "detail" é\n').partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert head.startswith(b"HTTP/1.1 %d %s\r\n" % (spec.status, spec.phrase.encode()))
    assert int(fields[b"Content-Length"]) == len(body)
    assert (b"Retry-After" in fields) == spec.retry_after
    if surface is Surface.PLAIN:
        assert body.decode().startswith(f"{spec.status} {spec.phrase}: {spec.message}: odd")
    else:
        error = json.loads(body)["error"]
        text = error["message"] if surface is Surface.OPENAI else error
        assert text == f'{spec.message}: odd "detail" é\n'


@pytest.mark.parametrize(("wait_s", "said"), [(None, b"1"), (0.0, b"1"), (0.4, b"1"), (1.0, b"1"), (59.01, b"60")])
def test_retry_after_is_rounded_up_to_whole_seconds(wait_s: float | None, said: bytes) -> None:
    assert b"\r\nRetry-After: %s\r\n" % said in error_answer(Surface.V2, Outcome.NO_CANDIDATE, retry_after_s=wait_s)


def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    whole = error_answer(Surface.V2, Outcome.NO_ROUTE, "x")
    assert error_answer(Surface.V2, Outcome.NO_ROUTE, "x", head_only=True) == whole[: whole.find(b"\r\n\r\n") + 4]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (0, b"503 Service Unavailable"),
        (503, b"503 Service Unavailable"),
        (429, b"429 Too Many Requests"),
        (799, b"799 Unassigned"),
    ],
)
def test_another_status_replaces_the_table_s_everywhere(status: int, line: bytes) -> None:
    got = error_answer(Surface.PLAIN, Outcome.OVERLOADED, status=status)
    assert got.startswith(b"HTTP/1.1 " + line + b"\r\n")
    assert got.endswith(b"\r\n\r\n" + line + b": the proxy is at its limit\n")


def test_a_body_can_be_had_alone() -> None:
    assert error_body(Surface.V2, Outcome.INTERNAL) == (b"application/json", b'{"error":"an error inside the proxy"}')
