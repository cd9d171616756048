"""Injected faults: what each kind lets pass and when, what makes no sense, and what the configuration begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from router.model import EndpointRecord, Replica
from sidecar.faults.abort import answer_of
from sidecar.faults.aim import misses
from sidecar.faults.call_link import trailers_of
from sidecar.faults.checking import document_of, problems, rule_of
from sidecar.faults.configured import changes
from sidecar.faults.framing import AnswerReader, MessageReader
from sidecar.faults.headers import asked_for
from sidecar.faults.kind import Plan, delay_s
from sidecar.faults.kinds import KINDS
from sidecar.faults.rules import FaultRule
from sidecar.faults.signals.terms import TERMS
from sidecar.faults.stages import End, Pipe
from sidecar.settings import Fault
from sidecar.settings.faults import PARAMETERS
from sidecar.telemetry.page import Scalar

NOW = 100.0
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TO_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"


def rule(kind: str, **fields: object) -> FaultRule:
    return FaultRule(**({"id": "f", "kind": kind, "ratio": 1.0, "until": 200.0} | fields))  # type: ignore[arg-type]


def draws(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


def passes(made: FaultRule, *data: bytes, bodiless: bool = False, ends: bool = False) -> list[tuple[float, bytes, End]]:
    """Return what a rule lets pass of pieces that come a second apart, the first at 0, with its direction's pipe."""
    plan = Plan(draws(*[0.5] * 8), bodiless=bodiless)
    KINDS[made.kind].plan(made, plan)
    pipe = Pipe(plan.request or plan.response)
    out = [piece for second, one in enumerate(data) for piece in pipe.data(one, float(second))]
    if ends:
        out += pipe.ends(float(len(data)))
    return [(round(piece.at, 6), piece.data, piece.end) for piece in out]


def joined(pieces: Sequence[tuple[float, bytes, End]]) -> tuple[bytes, End]:
    return b"".join(piece[1] for piece in pieces), pieces[-1][2] if pieces else End.NONE


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_counter_and_is_explained_by_its_class() -> None:
    for name, kind in KINDS.items():
        assert Scalar[f"FAULTS_{name.upper()}_TOTAL"]
        assert type(kind).__doc__
        assert set(kind.needs) <= set(kind.takes)


def test_a_delay_moves_all_of_a_direction() -> None:
    got = passes(rule("delay", delay_ms=250.0), b"a", b"b", ends=True)
    assert got == [(0.25, b"a", End.NONE), (1.25, b"b", End.NONE), (2.25, b"", End.ENDS)]


@pytest.mark.parametrize(
    ("fields", "drawn", "seconds"),
    [
        ({}, (), 0.1),
        ({"jitter_ms": 50.0}, (0.0,), 0.05),
        ({"jitter_ms": 50.0}, (1.0,), 0.15),
        ({"jitter_ms": 500.0}, (0.0,), 0.0),
        ({"jitter_ms": 50.0, "distribution": "normal"}, (0.0, 0.7), 0.1),
        ({"jitter_ms": 50.0, "distribution": "normal"}, (1 - 2.718281828**-0.5, 0.0), 0.15),
        ({"jitter_ms": 50.0, "distribution": "exponential"}, (0.0,), 0.1),
        ({"jitter_ms": 50.0, "distribution": "exponential"}, (1 - 2.718281828**-2,), 0.2),
        ({"jitter_ms": 300_000.0, "delay_ms": 300_000.0}, (1.0,), 300.0),
    ],
)
def test_delays_are_drawn(fields: dict[str, object], drawn: tuple[float, ...], seconds: float) -> None:
    assert delay_s(rule("delay", **({"delay_ms": 100.0} | fields)), draws(*drawn)) == pytest.approx(seconds)


def test_a_late_first_byte_delays_nothing_behind_it() -> None:
    got = passes(rule("first_byte", delay_ms=1500.0), b"a", b"b", b"c", ends=True)
    assert got == [(1.5, b"a", End.NONE), (1.5, b"b", End.NONE), (2.0, b"c", End.NONE), (3.0, b"", End.ENDS)]
    assert passes(rule("first_byte", delay_ms=1500.0), ends=True) == [(0.0, b"", End.ENDS)]


@pytest.mark.parametrize(("after", "passed"), [(None, b""), (0, b""), (3, b"abc"), (5, b"abcde")])
def test_a_reset_comes_with_the_byte_after(after: int | None, passed: bytes) -> None:
    assert joined(passes(rule("reset", after_bytes=after), b"ab", b"cde", b"f", b"g")) == (passed, End.RESETS)
    assert joined(passes(rule("reset", after_bytes=6), b"ab", b"cde", b"f")) == (b"abcdef", End.NONE)


def test_a_black_hole_swallows_the_end_too() -> None:
    assert passes(rule("black_hole"), b"a", b"b", ends=True) == []
    assert joined(passes(rule("black_hole", after_bytes=3), b"ab", b"cde", ends=True)) == (b"abc", End.NONE)


def test_a_narrow_way_takes_its_time() -> None:
    got = passes(rule("bandwidth", bytes_per_s=100.0), b"abcde", ends=True)
    assert got == [
        (0.02, b"ab", End.NONE),
        (0.04, b"cd", End.NONE),
        (0.05, b"e", End.NONE),
        (1.0, b"", End.ENDS),
    ]
    assert passes(rule("bandwidth", bytes_per_s=1.0), b"abc", ends=True)[-1] == (3.0, b"", End.ENDS)


@pytest.mark.parametrize("made", [rule("bandwidth", bytes_per_s=1.0), rule("slicing", piece_bytes=1)])
def test_nothing_is_cut_into_more_pieces_than_are_kept(made: FaultRule) -> None:
    data = b"x" * 1_000_000
    got = passes(made, data)
    assert len(got) <= 4200
    assert joined(got)[0] == data


def test_slices_are_apart() -> None:
    got = passes(rule("slicing", piece_bytes=2, delay_ms=100.0), b"abcde", ends=True)
    assert [(at, data) for at, data, _ in got] == [(0.0, b"ab"), (0.1, b"cd"), (0.2, b"e"), (1.0, b"")]


@pytest.mark.parametrize(
    ("pieces", "after", "passed", "end"),
    [
        ((PLAIN + b"0123456789",), 4, PLAIN + b"0123", End.CLOSES),
        ((PLAIN[:20], PLAIN[20:] + b"01", b"23456789"), 4, PLAIN + b"0123", End.CLOSES),
        ((PLAIN + b"0123456789",), 10, PLAIN + b"0123456789", End.NONE),
        ((CHUNKED + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",), 4, CHUNKED + b"3\r\nabc\r\n3\r\nd", End.CLOSES),
        ((b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN + b"0",), 0, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, End.CLOSES),
        ((TO_CLOSE + b"ab",), 1, TO_CLOSE + b"a", End.CLOSES),
    ],
)
def test_a_body_is_cut_short(pieces: tuple[bytes, ...], after: int, passed: bytes, end: End) -> None:
    assert joined(passes(rule("truncate", after_bytes=after), *pieces)) == (passed, end)


@pytest.mark.parametrize(
    ("pieces", "late"),
    [
        ((PLAIN + b"0123456789",), b"9"),
        ((PLAIN + b"012345678", b"9"), b"9"),
        ((CHUNKED + b"3\r\nabc\r\n0\r\n\r", b"\n"), b"\n"),
        ((CHUNKED + b"3\r\nabc\r\n0\r\nx: y\r\n\r\n",), b"\n"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b"\n"),
    ],
)
def test_the_end_of_an_answer_comes_late(pieces: tuple[bytes, ...], late: bytes) -> None:
    got = passes(rule("slow_close", delay_ms=5000.0), *pieces)
    assert joined(got)[0] == b"".join(pieces)
    assert got[-1] == (5.0 + len(pieces) - 1, late, End.NONE)
    assert all(at < 5.0 for at, _, _ in got[:-1])


def test_the_end_of_an_answer_may_be_that_of_its_connection() -> None:
    got = passes(rule("slow_close", delay_ms=5000.0), TO_CLOSE + b"ab", ends=True)
    assert got == [(0.0, TO_CLOSE + b"ab", End.NONE), (6.0, b"", End.ENDS)]
    head = passes(rule("slow_close", delay_ms=5000.0), PLAIN, bodiless=True)
    assert head[-1] == (5.0, b"\n", End.NONE)


def test_bodies_are_corrupted_and_heads_are_not() -> None:
    made = rule("corrupt", every_bytes=4)
    wrong = b"\xcf123\xcb567\xc79"
    assert joined(passes(made, PLAIN + b"0123456789"))[0] == PLAIN + wrong
    assert joined(passes(made, PLAIN + b"01", b"234", b"56789"))[0] == PLAIN + wrong
    assert joined(passes(made, CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n"))[0] == CHUNKED + b"5\r\n\x9ebcd\x9a\r\n0\r\n\r\n"
    asked = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
    assert joined(passes(rule("corrupt", direction="request"), asked + b"ab"))[0] == asked + b"\x9eb"
    asked = b"GET / HTTP/1.1\r\n\r\n"
    assert joined(passes(rule("corrupt", direction="request"), asked))[0] == asked


@pytest.mark.parametrize(
    ("head", "parts", "after", "passed"),
    [
        (TO_CLOSE, (b"data: a\n\nda", b"ta: b\n", b"\ndata: c"), 2, b"data: a\n\ndata: b\n\n"),
        (TO_CLOSE, (b"data: a\r\n\r", b"\ndata: b\r\n\r\n"), 1, b"data: a\r\n\r\n"),
        (TO_CLOSE, (b"data: a\n\n",), 0, b""),
        (CHUNKED, (b"9\r\ndata: a\n\n", b"\r\n9\r\ndata: b\n\n\r\n"), 1, b"9\r\ndata: a\n\n\r\n"),
        (CHUNKED, (b"12\r\ndata: a\n\ndata: b\n\n\r\n",), 1, b"12\r\ndata: a\n\n"),
    ],
)
def test_a_stream_is_cut_behind_events(head: bytes, parts: tuple[bytes, ...], after: int, passed: bytes) -> None:
    made = rule("cut_stream", after_events=after)
    assert joined(passes(made, head, *parts)) == (head + passed, End.RESETS)


def test_an_abort_asks_nobody() -> None:
    plan = Plan(draws())
    made = rule("abort", status=499)
    KINDS["abort"].plan(made, plan)
    assert plan.abort is made
    answer = answer_of(made, bodiless=False)
    assert answer.startswith(b"HTTP/1.1 499 Injected\r\n")
    assert list(AnswerReader().read(answer))[-1] == (b'{"error":"injected fault f"}', True)
    assert answer_of(made, bodiless=True).endswith(b"\r\n\r\n")


def test_nothing_passes_behind_an_end_and_nothing_overtakes() -> None:
    plan = Plan(draws())
    for made in (rule("first_byte", delay_ms=2000.0), rule("reset", after_bytes=1)):
        KINDS[made.kind].plan(made, plan)
    pipe = Pipe(plan.response)
    assert [(one.at, one.data, one.end) for one in pipe.data(b"ab", 0.0)] == [(2.0, b"a", End.RESETS)]
    assert pipe.over
    assert pipe.data(b"c", 9.0) == pipe.ends(9.0) == []


def test_a_reader_of_what_is_no_http_takes_it_for_a_body() -> None:
    reader = AnswerReader()
    assert list(reader.read(b"x" * (1 << 20) + b"yy"))[-1][1] is False
    assert list(reader.read(b"z")) == [(b"z", True)]
    broken = AnswerReader()
    assert list(broken.read(CHUNKED + b"xyz\r\nabc"))[-1] == (b"abc", True)


# --- gRPC -------------------------------------------------------------------------------------------------------------


MESSAGES = b"\0\0\0\0\x04abcd" + b"\0\0\0\0\0" + b"\x01\0\0\0\x02ef"
"""Three messages: of four bytes, of none, and a packed one of two."""


def on_call(made: FaultRule, *data: bytes, ends: bool = True) -> list[tuple[float, bytes | str, End]]:
    """Return what passes of a call: its head at 0, pieces a second apart from 1 on, and its end a second later."""
    plan = Plan(draws(*[0.5] * 8), call=True)
    KINDS[made.kind].plan(made, plan)
    pipe = Pipe(plan.request or plan.response)
    out = pipe.head("head", 0.0)
    out += [piece for second, one in enumerate(data, 1) for piece in pipe.data(one, float(second))]
    if ends:
        out += pipe.ends(float(len(data)) + 1)
    return [(round(one.at, 6), one.data if one.head is None else str(one.head), one.end) for one in out]


HEAD = (0.0, "head", End.NONE)


@pytest.mark.parametrize(
    ("made", "passed"),
    [
        (rule("delay", delay_ms=500.0), [(0.5, "head", 0), (1.5, MESSAGES, 0), (2.5, b"", 1)]),
        (rule("first_byte", delay_ms=1500.0), [(1.5, "head", 0), (1.5, MESSAGES, 0), (2.0, b"", 1)]),
        (rule("slow_close", delay_ms=500.0), [HEAD, (1.0, MESSAGES, 0), (2.5, b"", 1)]),
        (rule("reset"), [(0.0, b"", 3)]),
        (rule("reset", after_bytes=3), [HEAD, (1.0, MESSAGES[:3], 3)]),
        (rule("reset", after_bytes=21), [HEAD, (1.0, MESSAGES, 0), (2.0, b"", 1)]),
        (rule("black_hole"), []),
        (rule("black_hole", after_bytes=3), [HEAD, (1.0, MESSAGES[:3], 0)]),
        (rule("bandwidth", bytes_per_s=42.0), [HEAD, *((1 + i / 42, MESSAGES[i - 1 : i], 0) for i in range(1, 22))]),
        (rule("slicing", piece_bytes=11), [HEAD, (1.0, MESSAGES[:11], 0), (1.0, MESSAGES[11:], 0), (2.0, b"", 1)]),
        (rule("truncate"), [HEAD, (1.0, MESSAGES[:5], 2)]),
        (rule("truncate", after_bytes=5), [HEAD, (1.0, MESSAGES[:20], 2)]),
        (rule("truncate", after_bytes=6), [HEAD, (1.0, MESSAGES, 0), (2.0, b"", 1)]),
        (
            rule("corrupt", every_bytes=3),
            [HEAD, (1.0, b"\0\0\0\0\x04\x9ebc\x9b" + MESSAGES[9:], 0), (2.0, b"", 1)],
        ),
        (rule("cut_stream", after_events=0), [HEAD, (1.0, b"", 3)]),
        (rule("cut_stream", after_events=1), [HEAD, (1.0, MESSAGES[:9], 3)]),
        (rule("cut_stream", after_events=2), [HEAD, (1.0, MESSAGES[:14], 3)]),
        (rule("cut_stream", after_events=3), [HEAD, (1.0, MESSAGES, 3)]),
        (rule("cut_stream", after_events=4), [HEAD, (1.0, MESSAGES, 0), (2.0, b"", 1)]),
    ],
    ids=lambda one: f"{one.kind}-{one.after_bytes or one.after_events or 0}" if isinstance(one, FaultRule) else "",
)
def test_kinds_do_to_a_call_what_they_do_to_bytes(
    made: FaultRule, passed: list[tuple[float, bytes | str, int]]
) -> None:
    got = on_call(made, MESSAGES)
    if made.kind == "bandwidth":
        assert got.pop() == (2.0, b"", End.ENDS)
        passed = [(round(at, 6), data, end) for at, data, end in passed]
    assert got == passed


@pytest.mark.parametrize("kind", [rule("corrupt", every_bytes=2), rule("truncate", after_bytes=5)])
def test_frames_end_anywhere_in_messages(kind: FaultRule) -> None:
    whole = b"".join(piece[1] for piece in on_call(kind, MESSAGES) if isinstance(piece[1], bytes))
    single = (MESSAGES[i : i + 1] for i in range(len(MESSAGES)))
    assert b"".join(piece[1] for piece in on_call(kind, *single) if isinstance(piece[1], bytes)) == whole


def test_a_reader_of_messages_tells_what_they_hold() -> None:
    reader = MessageReader()
    assert b"".join(part for part, body in reader.read(MESSAGES + b"\0\0") if body) == b"abcdef"
    assert not reader.between


def test_a_call_is_aborted_with_a_status() -> None:
    made = trailers_of(rule("abort", id="g", status=429))
    assert made[2:] == [(b"grpc-status", b"14"), (b"grpc-message", b"injected fault g")]
    assert (b"grpc-status", b"7") in trailers_of(rule("abort", grpc_status=7))


# --- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"kind": "abort"}, []),
        ({"kind": "abort", "header": "x-drill: a b"}, []),
        (
            {"kind": "explode"},
            [("kind", f"no fault of kind 'explode': must be one of {', '.join(sorted([*KINDS, *TERMS]))}")],
        ),
        ({"kind": "warmth_lost", "endpoint": "a", "model": "m", "version": "1", "shard": 0}, []),
        ({"kind": "clock_skew", "skew_ms": 3.0}, []),
        (
            {"kind": "warmth_lost", "direction": "request", "ratio": 0.5, "tenant": "t", "header": "h"},
            [
                ("direction", "must be left out: warmth_lost is of what endpoints say, not of attempts"),
                ("ratio", "must be left out: warmth_lost is of all that its endpoints say"),
                ("tenant", "must be left out: warmth_lost is of what endpoints say, not of requests"),
                ("header", "must be left out: warmth_lost is of what endpoints say, not of requests"),
            ],
        ),
        (
            {"kind": "warmth_lost", "skew_ms": 3.0},
            [("skew_ms", "must be left out: warmth_lost does not go by it, clock_skew would")],
        ),
        ({"kind": "delay"}, [("delay_ms", "must be given: delay needs it")]),
        (
            {"kind": "truncate", "direction": "request"},
            [("direction", "must be response for truncate, or be left out")],
        ),
        (
            {"kind": "abort", "delay_ms": 3.0},
            [
                (
                    "delay_ms",
                    "must be left out: abort does not go by it, delay, first_byte, slicing, slow_close would",
                )
            ],
        ),
        (
            {"kind": "delay", "delay_ms": 3.0, "distribution": "normal"},
            [("jitter_ms", "must be given with distribution: it says how far delays are from delay_ms")],
        ),
        ({"kind": "abort", "header": "a b"}, [("header", "must be the name of a field, or NAME: VALUE")]),
        ({"kind": "abort", "header": "a: b\r\nc"}, [("header", "must be the name of a field, or NAME: VALUE")]),
    ],
)
def test_problems(fields: dict[str, object], wrong: list[tuple[str, str]]) -> None:
    assert list(problems(msgspec.convert(fields, Fault))) == wrong


def test_a_rule_is_shown_without_what_it_has_not() -> None:
    fault = Fault(kind="delay", delay_ms=20.0, ratio=0.5, model="m", for_s=30.0)
    made = rule_of(fault, "f", NOW)
    assert (made.id, made.until, made.delay_ms, made.direction) == ("f", 130.0, 20.0, "")
    assert document_of(made, NOW + 10) == {
        "id": "f",
        "kind": "delay",
        "ratio": 0.5,
        "direction": "request",
        "model": "m",
        "version": "",
        "shard": None,
        "endpoint": "",
        "tenant": "",
        "header": "",
        "delay_ms": 20.0,
        "left_s": 20.0,
    }


# --- configuration ----------------------------------------------------------------------------------------------------


def test_a_configured_fault_begins_once() -> None:
    one, other = Fault(kind="abort", id="a"), Fault(kind="reset", for_s=5.0)
    begin, end, begun = changes((one, other), (), NOW)
    assert [(made.id, made.until) for made in begin] == [("a", 160.0), ("config-1", 105.0)]
    assert end == []
    assert changes((one, other), begun, NOW + 500) == ([], [], begun)  # a reload, or another control process
    changed = Fault(kind="abort", id="a", status=500)
    begin, end, begun = changes((changed,), begun, NOW + 500)
    assert [(made.id, made.until, made.status) for made in begin] == [("a", 660.0, 500)]
    assert end == ["config-1"]
    assert changes((), begun, NOW)[1:] == (["a"], ())


# --- requests that ask ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ((), []),
        ((b"x-envoy-fault-delay-request: 200",), [("delay", 1.0, {"delay_ms": 200.0})]),
        (
            (b"X-Envoy-Fault-Delay-Request-Percentage: 25", b"X-Envoy-Fault-Delay-Request:200 "),
            [("delay", 0.25, {"delay_ms": 200.0})],
        ),
        (
            (b"x-envoy-fault-abort-request: 503", b"x-envoy-fault-delay-request: 7"),
            [("delay", 1.0, {"delay_ms": 7.0}), ("abort", 1.0, {"status": 503})],
        ),
        ((b"x-envoy-fault-abort-grpc-request: 14",), [("abort", 1.0, {"grpc_status": 14})]),
        ((b"x-envoy-fault-abort-request-percentage: 50",), []),
        ((b"x-envoy-fault-throughput-response: 2",), [("bandwidth", 1.0, {"bytes_per_s": 2048.0})]),
        ((b"x-envoy-fault-throughput-response: x",), []),
        ((b"x-envoy-fault-abort-request: 200",), []),
        ((b"x-envoy-fault-abort-request: 503", b"x-envoy-fault-abort-request-percentage: many"), []),
        ((b"warmroute-fault: truncate; after_bytes=9",), [("truncate", 1.0, {"after_bytes": 9})]),
        ((b"warmroute-fault: abort;status=500 ;ratio=0.5",), [("abort", 0.5, {"status": 500})]),
        ((b"warmroute-fault: abort", b"warmroute-fault: reset"), [("abort", 1.0, {}), ("reset", 1.0, {})]),
        ((b"warmroute-fault: abort; for_s=9",), []),
        ((b"warmroute-fault: explode",), []),
        ((b"warmroute-fault: warmth_lost",), []),
        ((b"warmroute-fault: delay",), []),
        ((b"warmroute-fault: abort",) * 20, [("abort", 1.0, {})] * 8),
        ((b"x-warmroute-fault: abort",), []),
    ],
)
def test_what_a_request_asks_for(fields: tuple[bytes, ...], asked: list[tuple[str, float, dict[str, object]]]) -> None:
    got = asked_for(b"\r\n".join((b"GET / HTTP/1.1", *fields, b"", b"")))
    given = [{name: value for name in PARAMETERS if (value := getattr(one, name)) is not None} for one in got]
    assert [(one.kind, one.ratio, has) for one, has in zip(got, given, strict=True)] == asked
    assert all(one.id == "header" and one.until == float("inf") for one in got)


# --- what it names ----------------------------------------------------------------------------------------------------

KNOWN = (
    EndpointRecord("w0", "http://w0:1", replicas=(Replica("magika", "1"), Replica("llm", "7"))),
    EndpointRecord("w1", "http://w1:1", replicas=(Replica("magika", "2", shard=1, shard_count=2),)),
    EndpointRecord("bare", "http://w2:1"),
)
NOTHING = " is known now, so this strikes nothing until there is"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, []),
        ({"endpoint": "bare"}, []),
        ({"endpoint": "w1", "model": "magika", "version": "2", "shard": 1, "header": "x"}, []),
        ({"model": "magica"}, [f'model: no model "magica"{NOTHING}; did you mean "magika"?']),
        ({"model": "x"}, [f'model: no model "x"{NOTHING}; known: llm, magika']),
        (
            {"endpoint": "w", "version": "3"},
            [
                f'endpoint: no endpoint "w"{NOTHING}; did you mean "w1"?',
                f'version: no version "3"{NOTHING}; known: 1, 2, 7',
            ],
        ),
        ({"model": "magika", "version": "7"}, [f'version: no version "7" of model magika{NOTHING}; known: 1, 2']),
        ({"endpoint": "w1", "model": "llm"}, [f'model: no model "llm" on endpoint w1{NOTHING}; known: magika']),
        ({"endpoint": "bare", "model": "llm"}, [f'model: no model "llm" on endpoint bare{NOTHING}; known: none']),
        ({"model": "llm", "shard": 1}, [f'shard: no shard "1" of model llm{NOTHING}; known: 0']),
    ],
)
def test_what_a_fault_names_and_nobody_knows_is_told(fields: dict[str, object], told: list[str]) -> None:
    assert list(misses(Fault("abort", **fields), KNOWN, None)) == told  # type: ignore[arg-type]


def test_a_tenant_is_missed_where_requests_have_none() -> None:
    fault = Fault("abort", tenant="t")
    assert [text.partition(",")[0] for text in misses(fault, KNOWN, None)] == [
        "tenant: policies.admission.tenant.header is null"
    ]
    assert misses(fault, KNOWN, "x-tenant") == ()
