"""What errors are recognised as: the texts that servers have, and rules of one's own."""

from __future__ import annotations

import pytest

from router.outcomes import AttemptResult
from sidecar.config.recognising import recognising
from sidecar.grpc.statuses import Status
from sidecar.http1.recognise import KNOWN_GRPC, Recogniser
from sidecar.settings import GRPC_STATUSES, Listener, Means, Recognise, RecogniseRule, Settings

STOPS = b"Server is stopping, scheduler for model has stopped accepting new inference requests"
NOT_READY, CALLER = AttemptResult.NOT_READY, AttemptResult.CLIENT_ERROR


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (400, '{"error":"Request for unknown model: \'resnet\' has no available versions"}', NOT_READY),
        (404, '{"error":"Request for unknown model: \'resnet\' has no available versions"}', NOT_READY),
        (503, '{"error":"Request for unknown model: \'resnet\' version 1 is not at ready state"}', NOT_READY),
        (400, '{"error":"Model sum-model is not ready yet."}', NOT_READY),
        (500, '{"message":"This model\'s maximum context length is 4096 tokens. However, you ..."}', CALLER),
        (500, "The decoder prompt (length 8357) is longer than the maximum model length of 8192.", CALLER),
        (500, "The input (9000 tokens) is longer than the model's context length (8192 tokens).", CALLER),
        (400, '{"error":"Request for unknown model: \'resnet\' version 99 is not found"}', None),
        (500, "EngineCore encountered an issue", None),
        (503, '{"error":"model \'resnet\' is not ready: it is loading"}', NOT_READY),
        (503, '{"error":"model \'nosuch\' is not ready: it is loading"}', None),
        (503, '{"error":"no model \'resnet\' is not ready: it is loading"}', None),
        (500, "Model sum-model is not ready yet.", None),
        (400, '{"error":"Model sum-model with version v2 is not ready yet."}', NOT_READY),
        (
            503,
            '{"error":"[request id: 7] ' + STOPS.decode() + '"}',
            NOT_READY,
        ),
        (
            400,
            '5a\r\n{"error":"Request for unknown model: \'resnet\' has no available versions"}\r\n0\r\n\r\n',
            NOT_READY,
        ),
        (500, '{"error":{"message":"This model\'s maximum context length is 8 tokens","code":500}}', CALLER),
        # of another model than was asked for: a caller's wrong name, on a model that takes unknown ones
        (400, '{"error":"Request for unknown model: \'nosuch\' has no available versions"}', None),
        (400, '{"error":"Model nosuch is not ready yet."}', None),
        # what a caller wrote, repeated
        (400, "{\"error\":\"unexpected inference input 'x is not at ready state' for model 'resnet'\"}", None),
        (400, '{"error":"input Request for unknown model: \'resnet\' has no available versions"}', None),
        (400, '{"error":"[request id: x] Model is stopping has stopped accepting new inference requests] bad"}', None),
        (400, '{"error":"input \'Model resnet is not ready yet.\' unknown"}', None),
        (500, '{"error":"boom: {\\"message\\":\\"This model\'s maximum context length is 8 tokens"}', None),
        (500, "boom: This model's maximum context length is 8 tokens", None),
        (502, "has no available versions", None),
        (400, "", None),
    ],
)
def test_known_errors_of_servers(status: int, body: str, result: AttemptResult | None) -> None:
    model = "sum-model" if "sum-model" in body else "resnet"
    assert Recogniser(Recognise()).http(status, body.encode(), model) is result
    assert Recogniser(Recognise(known=False)).http(status, body.encode(), model) is None


@pytest.mark.parametrize(
    ("status", "message", "result"),
    [
        (Status.UNAVAILABLE, "Request for unknown model: 'm' version 1 is not at ready state", NOT_READY),
        (Status.NOT_FOUND, "Request for unknown model: 'm' has no available versions", NOT_READY),
        (Status.UNAVAILABLE, "model 'm' is not ready: it is warming", NOT_READY),
        (Status.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (5000000 vs. 4194304)", CALLER),
        (Status.RESOURCE_EXHAUSTED, "Decompressed message larger than max", CALLER),
        (Status.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000000 vs. 4194304)", CALLER),
        (Status.RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit (16495 vs. 16384);  :path:79B", CALLER),
        (Status.RESOURCE_EXHAUSTED, "received metadata size exceeds soft limit (9000 vs. 8192);  :path:79B", CALLER),
        (Status.RESOURCE_EXHAUSTED, "queue is full: received message larger than max", None),
        (Status.INTERNAL, "Request for unknown model: 'm' has no available versions", None),
        (Status.NOT_FOUND, "Request for unknown model: 'm' version 9 is not found", None),
        (Status.OK, "Request for unknown model: 'm' has no available versions", None),
        (Status.NOT_FOUND, "Request for unknown model: 'nosuch' has no available versions", None),
    ],
)
def test_known_errors_over_grpc(status: Status, message: str, result: AttemptResult | None) -> None:
    assert Recogniser(Recognise()).grpc(status, message.encode(), "m") is result


def test_rules_of_one_s_own_come_first() -> None:
    own = RecogniseRule(status=400, body_contains="versions", means=Means.CALLER_FAULT)
    recogniser = Recogniser(Recognise(rules=(own,)))
    text = b"Request for unknown model: 'm' has no available versions"
    assert recogniser.http(400, text, "m") is CALLER
    assert recogniser.http(404, text, "m") is NOT_READY


def test_no_more_of_a_message_is_looked_at_than_configured() -> None:
    recogniser = Recogniser(Recognise(look_at_bytes=64))
    assert recogniser.look_at_bytes == 64
    assert recogniser.grpc(Status.UNAVAILABLE, b" " * 64 + STOPS, "m") is None
    assert recogniser.grpc(Status.UNAVAILABLE, b" " * 2 + STOPS[:-1], "m") is None
    assert Recogniser(Recognise()).grpc(Status.UNAVAILABLE, b" " * 64 + STOPS, "m") is NOT_READY


def test_only_statuses_that_a_rule_names_are_looked_at() -> None:
    assert Recogniser(Recognise()).statuses == {400, 404, 500, 503}
    assert Recogniser(Recognise(known=False)).statuses == frozenset()


def test_codes_of_grpc_are_those_of_grpc() -> None:
    assert all(Status[name] == code for name, code in GRPC_STATUSES.items())
    assert set(KNOWN_GRPC) <= {*GRPC_STATUSES, "RESOURCE_EXHAUSTED"}
    assert "RESOURCE_EXHAUSTED" not in GRPC_STATUSES, "it is back-pressure"


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ((RecogniseRule(status=400, body_contains="text", means=Means.NOT_READY),), []),
        (
            (RecogniseRule(body_contains="text", means=Means.NOT_READY),),
            [(("recognise", "rules", 0), "needs a status or a grpc_status: name one")],
        ),
        (
            (RecogniseRule(grpc_status="UNAVAILABL", body_contains="text", means=Means.NOT_READY),),
            [
                (
                    ("recognise", "rules", 0, "grpc_status"),
                    f"must be one of {', '.join(GRPC_STATUSES)}; did you mean UNAVAILABLE?",
                )
            ],
        ),
        (
            (RecogniseRule(status=400, body_contains="text", means=Means.NOT_READY),) * 65,
            [(("recognise", "rules"), "must be at most 64 rules")],
        ),
    ],
)
def test_rules_that_make_no_sense(rules: tuple[RecogniseRule, ...], found: list[object]) -> None:
    settings = Settings(version=1, listeners=(Listener(address="127.0.0.1:8080"),), recognise=Recognise(rules=rules))
    assert list(recognising(settings)) == found
