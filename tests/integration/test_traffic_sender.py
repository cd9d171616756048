"""The open loop over real sockets: how each request ends, and from when its latency counts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended, Sample
from sidecar.traffic.sender import Sender
from sidecar.traffic.summary import Summary, quantile
from tests.support.loops import in_loop, until
from tests.support.scripted_origin import CLOSE, scripted_origin, whole

ANSWERS = {
    "/ok": [whole(b"fine", fields=b"x-request-id: {id}\r\nwarmroute-degraded: cache\r\nX-Other: 1\r\n")],
    "/none": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "/interim": [b"HTTP/1.1 103 Early Hints\r\n\r\n", whole(b"fine")],
    "/missing": [whole(b"", b"404 Not Found")],
    "/broken": [whole(b"", b"503 Service Unavailable", b"Retry-After: 1\r\n")],
    "/chunked": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda",
        b"ta:\r\n6\r\n [DONE\r\n1\r\n]\r\n0\r\n\r\n",
    ],
    "/until-close": [b"HTTP/1.1 200 OK\r\n\r\nsome", b"thing", CLOSE],
    "/cut": [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", CLOSE],
    "/silent": [CLOSE],
    "/other": [whole(b"", fields=b"x-request-id: somebody-else\r\n")],
    "/nonsense": [b"SSH-2.0-OpenSSH\r\n\r\n"],
    "/twice": [whole(b"one") + whole(b"two")],
}


def at_once(*targets: str, **more: object) -> list[Timed]:
    return [Timed(0.0, target=target, name=target, **more) for target in targets]  # type: ignore[arg-type]


@in_loop
async def test_each_request_ends_in_one_way() -> None:
    taken: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, taken.append)
        await sender.run(at_once(*ANSWERS))
        assert sender.unasked_answers == 1
        assert (sender.begun, sender.ended, sender.in_flight) == (len(ANSWERS), len(ANSWERS), 0)
    samples = {sample.name: sample for sample in taken}
    assert len(taken) == len(samples)
    assert {name: sample.ended for name, sample in samples.items()} == {
        "/ok": Ended.OK,
        "/none": Ended.OK,
        "/interim": Ended.OK,
        "/missing": Ended.STATUS_4XX,
        "/broken": Ended.STATUS_5XX,
        "/chunked": Ended.OK,
        "/until-close": Ended.OK,
        "/cut": Ended.CUT,
        "/silent": Ended.CUT,
        "/other": Ended.WRONG,
        "/nonsense": Ended.WRONG,
        "/twice": Ended.OK,
    }
    assert samples["/ok"].headers == {"x-request-id": samples["/ok"].request_id, "warmroute-degraded": "cache"}
    assert samples["/broken"].headers == {"retry-after": "1"}
    assert (samples["/chunked"].body_bytes, samples["/until-close"].body_bytes) == (12, 9)
    assert (samples["/cut"].status, samples["/silent"].status, samples["/silent"].first_byte_s) == (200, 0, None)
    for sample in samples.values():
        assert sample.sent_s is not None
        assert 0.0 == sample.intended_s <= sample.sent_s <= (sample.first_byte_s or sample.sent_s) <= sample.ended_s


@in_loop
async def test_a_stream_without_its_end_mark_was_cut_by_somebody() -> None:
    samples: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, samples.append, max_connections=1)
        await sender.run(at_once("/chunked", ends_with=b"[DONE]") + at_once("/chunked", ends_with=b"[END]"))
        assert origin.connections == 1
    assert [sample.ended for sample in samples] == [Ended.OK, Ended.FALSE_END]


@in_loop
async def test_waiting_for_a_connection_is_part_of_the_latency() -> None:
    """What a closed loop would leave out: while one request is stuck, others fall due."""
    samples: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, samples.append, max_connections=1)
        running = asyncio.create_task(
            sender.run([Timed(0.0, target="/gated", name="stuck"), Timed(0.01, target="/ok", name="behind")])
        )
        await until(lambda: sender.in_flight and sender.now_s() > 0.1, "both fell due")
        origin.gate.set()
        await running
        assert origin.connections == 1
    stuck, behind = samples
    assert (stuck.name, behind.name, behind.intended_s) == ("stuck", "behind", 0.01)
    assert behind.sent_s is not None
    assert behind.sent_s >= stuck.ended_s >= 0.1
    assert behind.latency_s >= behind.lag_s > 0.08


@in_loop
async def test_a_stall_shows_in_all_that_fell_due_meanwhile() -> None:
    """Coordinated omission: who asks again only after an answer would see one slow request of a hundred."""
    samples: list[Sample] = []
    requests = [
        Timed(number / 200, target="/stalls" if number == 20 else "/ok", name=str(number)) for number in range(100)
    ]
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, samples.append, max_connections=1)
        running = asyncio.create_task(sender.run(requests))
        await until(lambda: sender.in_flight and sender.now_s() > requests[-1].at_s, "all fell due")
        released_s = sender.now_s()
        origin.gate.set()
        await running
    assert {sample.ended for sample in samples} == {Ended.OK}
    stalled = [sample for sample in samples if int(sample.name) >= 20]
    assert len(stalled) == 80
    for sample in stalled:
        assert sample.intended_s == int(sample.name) / 200
        assert sample.latency_s >= released_s - sample.intended_s - 1e-6
    summary = Summary()
    for sample in samples:
        summary.add(sample)
    median_s = quantile(sorted(summary.latencies_s), 0.5)
    assert median_s is not None
    assert median_s > 0.1


@in_loop
async def test_an_answer_feeds_what_follows_it() -> None:
    samples: list[Sample] = []
    asks = Timed(0.0, target="/ask/${id}", body=b'{"in": "${id}"}', method="POST", name="2", fill=True)
    again = Timed(0.0, target="/again/${missing}", name="3", fill=True)
    last = Timed(0.0, target="/ok", name="4")
    flow = Timed(0.0, target="/new", name="1", take=(("id", ("s", "0")),), then=(asks, again, last))
    session = [b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n", b'{"s": ["a b', b'"]}']
    answers = {**ANSWERS, "/new": session, "/ask/a%20b": [whole(b"")]}
    async with scripted_origin(answers) as origin:
        await Sender(origin.url, samples.append).run([flow])
        assert origin.bodies == [b"", b'{"in": "a b"}', b""]
    assert [(sample.name, sample.ended) for sample in samples] == [
        ("1", Ended.OK),
        ("2", Ended.OK),
        ("3", Ended.UNSENT),
        ("4", Ended.OK),
    ]
    assert samples[2].error == "no answer before it in its flow had missing"


@in_loop
async def test_time_over_before_sending_or_before_an_answer() -> None:
    samples: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, samples.append, max_connections=1, timeout_s=0.5)
        await sender.run([Timed(0.0, target="/gated"), Timed(0.0, target="/ok", timeout_s=0.25)])
        assert len(origin.heads) == 1
    assert {sample.number: sample.ended for sample in samples} == {1: Ended.TIMED_OUT, 2: Ended.UNSENT}
    assert [sample.sent_s for sample in samples if sample.ended is Ended.UNSENT] == [None]
    assert all(sample.latency_s >= 0.25 for sample in samples)


@in_loop
async def test_a_caller_hangs_up_when_it_is_meant_to() -> None:
    samples: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        await Sender(origin.url, samples.append).run(at_once("/gated", hang_up_s=0.02))
    assert [sample.ended for sample in samples] == [Ended.HUNG_UP]


@in_loop
async def test_what_follows_in_a_flow_begins_when_the_one_before_has_ended() -> None:
    samples: list[Sample] = []
    flow = Timed(0.0, target="/broken", name="1", then=(Timed(0.02, target="/ok", name="2"), Timed(0.0, name="3")))
    async with scripted_origin({**ANSWERS, "/": [whole(b"")]}) as origin:
        await Sender(origin.url, samples.append).run([flow, Timed(0.0, target="/ok", name="beside")])
    ended = {sample.name: sample for sample in samples}
    assert [sample.name for sample in samples if sample.name != "beside"] == ["1", "2", "3"]  # a failure ends no flow
    assert ended["2"].intended_s == ended["1"].ended_s + 0.02
    assert ended["3"].intended_s == ended["2"].ended_s


@in_loop
async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        samples: list[Sample] = []
        await Sender(f"http://127.0.0.1:{taken.getsockname()[1]}", samples.append, max_connections=1).run(
            at_once("/a", "/b")
        )
    assert [(sample.ended, sample.error) for sample in samples] == [(Ended.NO_CONNECTION, "Connection refused")] * 2


@in_loop
async def test_stopping_lets_what_is_under_way_end() -> None:
    samples: list[Sample] = []
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, samples.append)
        running = asyncio.create_task(sender.run([Timed(0.0, target="/gated"), Timed(3600.0, target="/ok")]))
        await until(lambda: origin.heads, "the first is there")
        sender.stop()
        origin.gate.set()
        await running
    assert [sample.ended for sample in samples] == [Ended.OK]


@in_loop
async def test_an_error_of_who_takes_samples_ends_the_run() -> None:
    def take(sample: Sample) -> None:
        raise LookupError(sample.name)

    async with scripted_origin(ANSWERS) as origin:
        with pytest.raises(LookupError, match="/ok"):
            await Sender(origin.url, take).run([*at_once("/ok"), Timed(3600.0)])


@in_loop
async def test_what_is_sent(tmp_path: Path) -> None:
    async with scripted_origin(ANSWERS) as origin:
        sender = Sender(origin.url, lambda _: None, prefix="run")
        headers = (("Content-Type", "text/plain"), ("Connection", "close"), ("Content-Length", "99"))
        await sender.run(
            [Timed(0.0, "POST", "/ok", headers, b"body"), Timed(0.0, target="/ok", headers=(("Host", "h"),))]
        )
        assert origin.heads[0].decode().split("\r\n") == [
            "POST /ok HTTP/1.1",
            f"Host: {origin.url[7:]}",
            "Content-Type: text/plain",
            "x-request-id: run-1",
            "Content-Length: 4",
            "",
            "",
        ]
        assert origin.bodies == [b"body", b""]
        assert origin.heads[1] == b"GET /ok HTTP/1.1\r\nHost: h\r\nx-request-id: run-2\r\n\r\n"
        with pytest.raises(ValueError, match="header X: its value"):
            await Sender(origin.url, lambda _: None).run([Timed(0.0, headers=(("X", "a\r\nb"),))])
