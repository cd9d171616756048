"""Calls that go to another model where their own has nobody: when, what they say then, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import EndpointSeen, Replica
from router.policy import LadderPolicy
from sidecar.grpc.matching import NOTHING, Named, named_by_message
from sidecar.grpc.renaming import renamed_message
from sidecar.http1.ladders import Ladders
from sidecar.http2 import frames
from sidecar.settings import Admission, FallbackOn, Model
from sidecar.telemetry.page import MODEL_LADDER, LadderWord
from tests.support.grpc_by_hand import INFER, GrpcBench, Peer, call_fields, grpc_bench, infer, message

UNAVAILABLE = 14


@contextmanager
def falling(*fallback: str, idempotent: bool = False, on: tuple[FallbackOn, ...] = ()) -> Iterator[GrpcBench]:
    """One worker holds m, the other n in two versions; m falls back."""
    with grpc_bench(idempotent=idempotent) as bench:
        model = Model(name="m", fallback=fallback, idempotent=idempotent)
        if on:
            model = Model(name="m", fallback=fallback, idempotent=idempotent, fallback_on=on)
        bench.plane.ladders = Ladders((model,), LadderPolicy(), bench.plane.page, bench.now, Admission())
        held = ((Replica("m"),), (Replica("n"), Replica("n", "2")))
        for endpoint, replicas in zip(list(bench.cluster.endpoints.values()), held, strict=True):
            bench.cluster.apply(EndpointSeen(replace(endpoint.record, replicas=replicas), bench.now), bench.now)
        yield bench


def lose(bench: GrpcBench) -> None:
    """Nobody serves m any more."""
    endpoint = bench.cluster.endpoints["o0"]
    record = replace(endpoint.record, draining=True)
    bench.cluster.apply(EndpointSeen(record, bench.now), bench.now)


def told(bench: GrpcBench, stream: int = 1) -> dict[bytes, bytes]:
    """Return all fields that the caller got."""
    return dict(field for one in bench.caller.got(frames.HEADERS) if one.stream == stream for field in one.fields)


def sent(worker: Peer, stream: int = 1) -> bytes:
    return b"".join(one.payload for one in worker.got(frames.DATA) if one.stream == stream)


@pytest.mark.parametrize(("fallback", "version"), [("n", b""), ("n@2", b"2")])
def test_a_call_without_anybody_goes_to_the_fallback_and_says_its_name(fallback: str, version: bytes) -> None:
    with falling(fallback) as bench:
        lose(bench)
        worker = bench.call(1, infer(b"m") + b"rest", path=INFER)
        assert sent(worker) == message(infer(b"n", version) + b"rest")
        bench.answer(worker)
        fields = told(bench)
        assert fields[b"grpc-status"] == b"0"
        assert fields[b"warmroute-degraded"] == b"fallback"
        assert fields[b"warmroute-degraded-model"] == fallback.encode()
        assert bench.outcomes == {"ok": 1}
        row = bench.plane.page.model_row("m")
        assert bench.plane.words[row + MODEL_LADDER + LadderWord.BY_FALLBACK] == 1
        assert bench.plane.words[row] == 1


def test_metadata_names_the_other_model_too() -> None:
    with falling("n") as bench:
        lose(bench)
        worker = bench.call(1, b"x", (b"warmroute-model", b"m"), (b"x-other", b"m"))
        head, data = [one for one in worker.take() if one.stream == 1]
        assert head.value(b"warmroute-model") == b"n"
        assert head.value(b"x-other") == b"m"
        assert data.payload == message(b"x")
        bench.answer(worker)
        again = bench.call(3, b"x", (b"warmroute-model", b"n"))
        bench.answer(again, 3)
        assert b"warmroute-degraded" not in told(bench, 3)


def test_a_stream_whose_first_message_is_still_coming_is_renamed_and_its_windows_hold() -> None:
    with falling("n@2") as bench:
        lose(bench)
        whole = message(infer(b"m") + b"z" * 3000)
        bench.caller.head(1, call_fields(INFER.replace(b"ModelInfer", b"ModelStreamInfer")))
        bench.caller.data(1, whole[:40])
        worker = bench.worker
        bench.caller.data(1, whole[40:])
        bench.caller.data(1, message(b"second"), end=True)
        assert sent(worker) == message(infer(b"n", b"2") + b"z" * 3000) + message(b"second")
        bench.check_windows()
        bench.answer(worker)


@pytest.mark.parametrize(("idempotent", "to"), [(True, 2), (False, 1)])
def test_what_may_have_begun_goes_elsewhere_only_where_twice_does_no_harm(idempotent: bool, to: int) -> None:
    with falling("n", idempotent=idempotent) as bench:
        worker = bench.call(1, infer(b"m"), path=INFER)
        bench.live.discard(worker)
        worker.protocol.connection_lost(ConnectionResetError())
        bench.loop.fire()
        bench.loop.run_soon()
        assert len(bench.loop.workers) == to
        if idempotent:
            assert sent(bench.worker) == message(infer(b"n"))
            bench.answer(bench.worker)
            assert told(bench)[b"warmroute-degraded"] == b"fallback"
        else:
            assert told(bench)[b"grpc-status"] == b"%d" % UNAVAILABLE


@pytest.mark.parametrize(
    ("body", "fallback", "on"),
    [
        (message(infer(b"m"))[5:], "o", ()),  # nobody has it
        (message(infer(b"m"))[5:], "n", (FallbackOn.CONNECT_FAILED,)),
    ],
)
def test_where_there_is_nobody_either_or_this_end_is_none_of_those_it_ends_as_ever(
    body: bytes, fallback: str, on: tuple[FallbackOn, ...]
) -> None:
    with falling(fallback, on=on) as bench:
        lose(bench)
        bench.caller.head(1, call_fields(INFER))
        bench.caller.data(1, message(body), end=True)
        fields = told(bench)
        assert fields[b"grpc-status"] == b"%d" % UNAVAILABLE
        assert int(fields[b"grpc-retry-pushback-ms"]) >= 1


def test_a_message_that_is_compressed_is_not_renamed() -> None:
    assert renamed_message(message(infer(b"m"), compressed=True), (1, 2), b"n", b"") is None


NAMES = st.binary(max_size=300)


@given(NAMES, NAMES, st.binary(max_size=40), NAMES.filter(bool), NAMES, st.integers(0, 60))
def test_whatever_a_message_named_it_names_the_other_model_and_its_rest_stays(
    name: bytes, version: bytes, rest: bytes, other: bytes, other_version: bytes, cut: int
) -> None:
    def field(tag: int, text: bytes) -> bytes:
        size = bytes((len(text),)) if len(text) < 128 else bytes((len(text) & 127 | 128, len(text) >> 7))
        return bytes((tag,)) + size + text

    rest = b"\x1a" + rest
    start = field(0x0A, name) + field(0x12, version)
    whole = message(start + rest) + b"next"
    here = whole[: len(whole) - min(cut, len(rest) + 3)]
    found = renamed_message(here, (1, 2), other, other_version)
    assert found is not None
    expected = field(0x0A, other) + (field(0x12, other_version) if other_version else b"")
    assert found == message(expected + rest)[: 5 + len(expected)] + here[5 + len(start) :]


@given(st.binary(max_size=60))
def test_no_data_breaks_it(data: bytes) -> None:
    found = renamed_message(data, (1, 2), b"n", b"2")
    if found is not None and data[5:6] in (b"", b"\x1a"):
        assert named_by_message(found, (1, 2), b"", whole=True) in (Named("n", "2"), NOTHING)


def test_a_field_that_is_no_name_stays_before() -> None:
    body = b"\x0a\x04repo\x12\x01m\x1a\x00"
    assert renamed_message(message(body), (2, 0), b"n", b"2") == message(b"\x0a\x04repo\x12\x01n\x1a\x00")
