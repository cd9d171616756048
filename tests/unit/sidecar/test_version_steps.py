"""Requests that name no version, on the data path by hand: splits, versions in paths, copies for another version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import pytest

from router.groups import ShardMap
from router.model import WHOLE, EndpointRecord, EndpointSeen, Replica
from router.outcomes import AttemptResult
from router.policy import (
    HedgingPolicy,
    KeyPolicy,
    LadderPolicy,
    MirrorPolicy,
    ModelPolicy,
    Policies,
    ServePolicy,
    ServeRule,
    ShardMode,
    ShardPolicy,
    VersionShare,
)
from router.routes import Attempt
from sidecar.http1.ladders import Ladders
from sidecar.http1.mirrors import mirror_step
from sidecar.http1.versions import version_step
from sidecar.settings import Admission, Limits, Mirror
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import UpstreamConnection
from tests.support.by_hand import Bench, HandTimer, bench
from tests.support.fake_transport import FakeTransport

ROOMY = Limits(body_bytes=1 << 20, replay_bytes=1 << 16)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FAILURE = b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"
SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 50), VersionShare("2", 50)), header="x-user")
LATEST = ServePolicy(ServeRule.LATEST)


def request(path: bytes = b"/v2/models/m/infer", fields: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: 3\r\n\r\nabc" % (path, fields)


@contextmanager
def serving(serve: ServePolicy, held: Mapping[str, tuple[str, ...]], *, idempotent: bool = True) -> Iterator[Bench]:
    """Yield a bench whose workers o0 and o1 hold these versions of the model m."""
    with bench(ROOMY, step_makers=(version_step, mirror_step)) as made:
        for name, versions in held.items():
            endpoint = made.cluster.endpoints[name]
            replicas = tuple(Replica("m", version) for version in versions)
            record = EndpointRecord(name, endpoint.address, replicas=replicas, static=True)
            made.cluster.apply(EndpointSeen(record, 0.0), 0.0)
        made.cluster.configure(
            Policies(), [ModelPolicy("m", serve=serve, idempotent=idempotent, default=True), ModelPolicy("n")], 0.0
        )
        yield made


def count(made: Bench, scalar: Scalar) -> int:
    return made.plane.words[made.plane.page.scalar(scalar)]


def passed(made: Bench, data: bytes) -> tuple[str, bytes]:
    """Send a request and answer it; return the endpoint that got it and the line that it got."""
    made.connection.data_received(data)
    made.loop.run()
    (worker,) = made.busy
    line = sent(worker.transport).partition(b"\r\n")[0]
    name = worker._upstream.id
    worker.data_received(ANSWER)
    made.loop.run()
    return name, line


def sent(transport: object) -> bytes:
    assert isinstance(transport, FakeTransport)
    data = transport.written
    transport.written = b""
    return data


def test_a_split_keeps_each_key_at_its_version() -> None:
    with serving(SPLIT, {"o0": ("1",), "o1": ("2",)}) as made:
        users = {user: passed(made, request(fields=b"X-User: u%d\r\n" % user))[0] for user in range(30)}
        assert set(users.values()) == {"o0", "o1"}
        assert users == {user: passed(made, request(fields=b"x-user:u%d\r\n" % user))[0] for user in range(30)}
        assert {passed(made, request())[0] for _ in range(20)} == {"o0", "o1"}
        assert count(made, Scalar.VERSION_MOVED_TOTAL) == 0


def test_a_version_in_the_path_is_no_matter_of_the_split() -> None:
    with serving(SPLIT, {"o0": ("1",), "o1": ("2",)}) as made:
        assert {passed(made, request(b"/v2/models/m/versions/2/infer"))[0] for _ in range(8)} == {"o1"}


def test_the_share_of_a_version_with_nobody_goes_to_the_others_and_is_counted() -> None:
    with serving(SPLIT, {"o0": ("1",), "o1": ("3",)}) as made:
        assert {passed(made, request(fields=b"X-User: u%d\r\n" % user))[0] for user in range(20)} == {"o0"}
        assert 0 < count(made, Scalar.VERSION_MOVED_TOTAL) < 20


def test_a_request_that_a_dead_version_never_began_goes_to_another_and_few_meet_it_again() -> None:
    with serving(SPLIT, {"o0": ("1",), "o1": ("2",)}, idempotent=False) as made:
        route = made.cluster.route("m")
        assert route is not None
        users = [b"u%d" % number for number in range(40)]
        of = {user: made.cluster.version_of(route, 0.0, made.plane.rng, user).version for user in users}
        of_one, of_two = ([user for user in users if of[user] == version] for version in "12")
        quarantine = made.cluster.endpoints["o1"].quarantine
        assert passed(made, request(fields=b"X-User: %s\r\n" % of_one[0]))[0] == "o0"  # there is a connection

        def asked(user: bytes) -> tuple[str, int]:
            """Return who answered at last, and how many connections to o1, which is down, were refused before."""
            made.loop.refusals = 1
            name = passed(made, request(fields=b"X-User: %s\r\n" % user))[0]
            refused = 1 - made.loop.refusals
            made.loop.refusals = 0
            return name, refused

        met = 0
        for second in range(60):
            made.now = second + 0.5
            name, refused = asked(of_two[second % len(of_two)])
            assert name == "o0"  # nobody gets an error
            met += refused
        assert 5 <= met <= 7  # at once, and after 1, 2, 4, 8, 16 s and 30 s, a bit less each

        made.now = quarantine.until + 0.1
        assert passed(made, request(fields=b"X-User: %s\r\n" % of_two[0]))[0] == "o1"  # the probe


def test_nobody_of_a_split_is_said() -> None:
    with serving(SPLIT, {"o0": ("3",), "o1": ("4",)}) as made:
        made.connection.data_received(request())
        assert b"503 Service Unavailable" in made.transport.written
        assert b"2 other_version" in made.transport.written


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (b"/v2/models/m/infer", b"/v2/models/m/versions/2/infer"),
        (b"/v2/models/m", b"/v2/models/m/versions/2"),
        (b"/v2/models/m?a=/b", b"/v2/models/m/versions/2?a=/b"),
        (b"/v2/models/%6d/ready", b"/v2/models/%6d/versions/2/ready"),
        (b"/v2/models/m/versions/1/infer", b"/v2/models/m/versions/1/infer"),
        (b"/v2/models/other/infer", b"/v2/models/other/infer"),
        (b"/anything", b"/anything"),
    ],
)
def test_a_worker_that_holds_several_versions_is_told_which(path: bytes, to: bytes) -> None:
    with serving(LATEST, {"o0": ("1", "2"), "o1": ("1", "2")}) as made:
        assert passed(made, request(path))[1] == b"POST %s HTTP/1.1" % to


def test_one_that_holds_one_version_is_not() -> None:
    with serving(LATEST, {"o0": ("2",), "o1": ("1", "2")}) as made:
        seen = set()
        for _ in range(30):
            seen.add(passed(made, request()))
            made.now += 11.0  # after which nobody knows who was the faster one
        assert seen == {
            ("o0", b"POST /v2/models/m/infer HTTP/1.1"),
            ("o1", b"POST /v2/models/m/versions/2/infer HTTP/1.1"),
        }
    with serving(LATEST, {"o0": ("2",), "o1": ("1",)}) as made:
        assert made.plane.resolve(b"/v2/models/m/infer", None).route is not None  # the usual way, without a step
        assert passed(made, request()) == ("o0", b"POST /v2/models/m/infer HTTP/1.1")
    with serving(ServePolicy(), {"o0": ("1", "2"), "o1": ("1", "2")}) as made:
        assert passed(made, request())[1] == b"POST /v2/models/m/infer HTTP/1.1"


def test_a_version_in_the_path_is_quoted() -> None:
    with serving(LATEST, {"o0": ("1", "2+a"), "o1": ("1", "2+a")}) as made:
        assert passed(made, request())[1] == b"POST /v2/models/m/versions/2%2Ba/infer HTTP/1.1"


def test_a_retry_names_the_version_for_its_own_endpoint() -> None:
    with serving(LATEST, {"o0": ("2",), "o1": ("1", "2")}) as made:
        lines = set()
        for _ in range(6):
            made.connection.data_received(request())
            made.loop.run()
            (worker,) = made.busy
            worker.connection_lost(None)
            made.loop.run()
            (worker,) = made.busy
            lines.add((worker._upstream.id, sent(worker.transport).partition(b"\r\n")[0]))
            worker.data_received(ANSWER)
            made.loop.run()
            made.cluster.endpoints["o0"].quarantine.peer_closed(1e9)
            made.cluster.endpoints["o1"].quarantine.peer_closed(1e9)
        assert ("o0", b"POST /v2/models/m/infer HTTP/1.1") in lines or (
            "o1",
            b"POST /v2/models/m/versions/2/infer HTTP/1.1",
        ) in lines
        assert lines <= {
            ("o0", b"POST /v2/models/m/infer HTTP/1.1"),
            ("o1", b"POST /v2/models/m/versions/2/infer HTTP/1.1"),
        }


def test_a_hedge_names_the_version_for_its_own_endpoint() -> None:
    with serving(LATEST, {"o0": ("2",), "o1": ("1", "2")}) as made:
        model = ModelPolicy("m", serve=LATEST, idempotent=True, hedge=True, default=True)
        made.cluster.configure(Policies(hedging=HedgingPolicy(minimum_samples=1)), [model], 0.0)
        route = made.cluster.route("m")
        assert route is not None
        assert route.hedging is not None
        route.hedging.sample(0.1)
        route.hedging.settle(0.0)
        made.connection.data_received(request())
        made.loop.run()  # the time of the hedge comes
        lines = {name: sent(worker.transport).partition(b"\r\n")[0] for name, worker in asked(made).items()}
        assert lines == {
            "o0": b"POST /v2/models/m/infer HTTP/1.1",
            "o1": b"POST /v2/models/m/versions/2/infer HTTP/1.1",
        }
        made.connection.connection_lost(None)
        made.check_rest()


# --- mirrors ----------------------------------------------------------------------------------------------------


def mirrored(**changed: float) -> ServePolicy:
    mirror = msgspec.structs.replace(Mirror(version="2"), **changed)
    return ServePolicy(
        ServeRule.PINNED, version="1", mirror=MirrorPolicy(mirror.version, mirror.share, mirror.most, mirror.timeout_s)
    )


HELD = {"o0": ("1",), "o1": ("2",)}


def run_soon(made: Bench) -> None:
    """Run what is due now; time stands, so no timer is."""
    while True:
        due = [each for each in made.loop.soon if not isinstance(getattr(each[0], "__self__", None), HandTimer)]
        if not due:
            return
        made.loop.soon = [each for each in made.loop.soon if each not in due]
        for callback, arguments in due:
            callback(*arguments)


def asked(made: Bench) -> dict[str, UpstreamConnection]:
    """Return whom a request waits on, by endpoint."""
    run_soon(made)
    return {worker._upstream.id: worker for worker in made.busy}


def test_a_copy_goes_to_the_other_version_and_its_answer_nowhere() -> None:
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request())
        workers = asked(made)
        assert b"warmroute-mirror" not in sent(workers["o0"].transport)
        data = sent(workers["o1"].transport)
        assert data.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\nwarmroute-mirror: 1\r\n")
        assert data.endswith(b"warmroute-attempt: 1\r\n\r\nabc")
        workers["o1"].data_received(FAILURE)
        assert not made.transport.written
        workers["o0"].data_received(ANSWER)
        assert made.transport.written.startswith(b"HTTP/1.1 200 OK")
        assert count(made, Scalar.MIRRORS_TOTAL) == 1
        assert count(made, Scalar.MIRRORS_FAILED_TOTAL) == 1
        assert count(made, Scalar.BACKGROUND_TOTAL) == 1
        assert made.outcomes() == made.results() == 1
        latency = made.cluster.endpoints["o1"].candidates["m", "2", WHOLE].latency
        assert (latency.ewma_ms, latency.fresh) == (0.0, {})
        assert made.cluster.endpoints["o1"].in_flight == 0


def test_a_copy_is_sent_once_the_request_is_whole_and_does_not_hold_it_back() -> None:
    with serving(mirrored(), HELD, idempotent=False) as made:
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n"
        made.connection.data_received(head + b"x" * 10)
        assert set(asked(made)) == {"o0"}
        for _ in range(2):
            made.connection.data_received(b"y" * 9995)
        workers = asked(made)
        assert sent(workers["o1"].transport).endswith(b"xxyy" + b"y" * 19986 + b"y" * 2)
        for worker in workers.values():
            worker.data_received(ANSWER)


def test_a_copy_outlives_its_request_and_ends_in_its_time() -> None:
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request())
        workers = asked(made)
        workers["o0"].data_received(ANSWER)
        made.connection.connection_lost(None)
        assert set(asked(made)) == {"o1"}
        made.loop.run()  # its timer is due
        assert asked(made) == {}
        assert workers["o1"].transport.is_closing()
        assert count(made, Scalar.MIRRORS_FAILED_TOTAL) == 1
        made.check_rest()


def test_no_more_copies_than_may_be_are_under_way() -> None:
    with serving(mirrored(most=1), HELD) as made:
        for number in range(3):
            made.connection.data_received(request())
            workers = asked(made)
            workers["o0"].data_received(ANSWER)
            assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == number
        workers["o1"].data_received(ANSWER)
        made.connection.data_received(request())
        assert set(asked(made)) == {"o0", "o1"}


@pytest.mark.parametrize("queue_wait_s", [0.0, 0.05])
def test_a_copy_gives_way_to_a_caller_that_finds_no_room(queue_wait_s: float) -> None:
    with serving(mirrored(), HELD) as made:
        model = ModelPolicy("m", serve=mirrored(), default=True)
        made.cluster.configure(Policies(requests_per_endpoint=2), [model], 0.0)
        made.plane.admission.configure(Admission(queue_wait_s=queue_wait_s), ())
        made.connection.data_received(request())
        workers = asked(made)
        workers["o0"].data_received(ANSWER)
        named = made.cluster.route("m", "2")
        assert named is not None
        other = made.cluster.choose(named, 0.0, made.plane.rng)
        assert isinstance(other, Attempt)
        made.transport.written = b""
        made.connection.data_received(request(b"/v2/models/m/versions/2/infer"))
        again = asked(made)
        assert set(again) == {"o1"}
        assert again["o1"] is not workers["o1"]
        assert workers["o1"].transport.is_closing()
        assert made.cluster.endpoints["o1"].in_flight == 2
        assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 1
        assert count(made, Scalar.MIRRORS_FAILED_TOTAL) == 0
        again["o1"].data_received(ANSWER)
        assert made.transport.written.startswith(b"HTTP/1.1 200 OK")
        made.connection.data_received(request())  # one of two places is taken: there is none for a copy
        assert set(asked(made)) == {"o0"}
        assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 2
        made.cluster.done(other, AttemptResult.SUCCESS, 0.0)
        assert not made.plane.copies


@pytest.mark.parametrize("state", ["tight", "degraded", "refusing"])
def test_nothing_is_copied_while_only_what_is_essential_is_done(state: str) -> None:
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request()[:-1])
        if state == "degraded":
            made.plane.ladders = Ladders((), LadderPolicy(), made.plane.page, 0.0, Admission())
            made.plane.ladders.degraded = 1
        else:
            setattr(made.plane, state, True if state != "refusing" else "why")
        made.connection.data_received(b"c")
        assert set(asked(made)) == {"o0"}
        assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 1


def test_a_request_that_went_to_that_version_anyway_is_not_copied() -> None:
    split = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("2", 1),), mirror=MirrorPolicy("2"))
    with serving(split, HELD) as made:
        made.connection.data_received(request())
        assert set(asked(made)) == {"o1"}
        made.connection.connection_lost(None)
    with serving(mirrored(share=0.0), HELD) as made:
        made.connection.data_received(request())
        assert set(asked(made)) == {"o0"}
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request(b"/v2/models/m/versions/1/infer"))
        assert set(asked(made)) == {"o0"}
    for other in (request(b"/v2/repository/models/m/unload"), b"GET /v2/models/m/ready HTTP/1.1\r\nHost: a\r\n\r\n"):
        with serving(mirrored(), HELD) as made:
            made.connection.data_received(other)
            assert set(asked(made)) == {"o0"}
            assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 0


def test_what_cannot_be_kept_or_has_nobody_is_dropped() -> None:
    with serving(mirrored(), {"o0": ("1",), "o1": ("3",)}) as made:
        made.connection.data_received(request())
        assert set(asked(made)) == {"o0"}
        assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 1
    with serving(mirrored(), HELD) as made:
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
        made.connection.data_received(head)
        for _ in range(4):
            made.connection.data_received(b"y" * 50000)
        assert set(asked(made)) == {"o0"}
        assert count(made, Scalar.MIRRORS_DROPPED_TOTAL) == 1


def test_a_copy_names_the_version_where_its_worker_holds_several() -> None:
    with serving(mirrored(), {"o0": ("1",), "o1": ("2", "3")}) as made:
        made.connection.data_received(request())
        workers = asked(made)
        assert sent(workers["o1"].transport).startswith(b"POST /v2/models/m/versions/2/infer HTTP/1.1\r\n")
        assert sent(workers["o0"].transport).startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")


def test_a_copy_whose_worker_is_gone_is_no_matter() -> None:
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request())
        workers = asked(made)
        workers["o1"].connection_lost(None)
        assert not made.cluster.endpoints["o1"].quarantine.active
        workers["o0"].data_received(ANSWER)
        assert made.transport.written.startswith(b"HTTP/1.1 200 OK")
        assert count(made, Scalar.MIRRORS_FAILED_TOTAL) == 1


def test_a_copy_that_finds_no_connection_is_one_of_those_that_failed() -> None:
    with serving(mirrored(), HELD) as made:
        made.connection.data_received(request())
        workers = asked(made)
        workers["o1"].connection_lost(None)
        workers["o0"].data_received(ANSWER)
        made.loop.refusals = 1
        made.connection.data_received(request())
        asked(made)
        assert made.loop.refusals == 0
        assert count(made, Scalar.MIRRORS_FAILED_TOTAL) == 2
        assert count(made, Scalar.MIRRORS_TOTAL) == 2


def test_a_copy_of_a_request_for_a_shard_goes_to_the_same_shard() -> None:
    shards = ShardPolicy(ShardMode.KEYED, 2)
    model = ModelPolicy("m", serve=mirrored(), shards=shards, key=KeyPolicy(header="x-user"), default=True)
    with bench(ROOMY, step_makers=(version_step, mirror_step)) as made:
        made.cluster.configure(Policies(), [model], 0.0)
        places = {"o0": [("1", 0), ("2", 1)], "o1": [("1", 1), ("2", 0)]}
        for name, held in places.items():
            endpoint = made.cluster.endpoints[name]
            replicas = tuple(Replica("m", version, shard, 2) for version, shard in held)
            record = EndpointRecord(name, endpoint.address, replicas=replicas, static=True)
            made.cluster.apply(EndpointSeen(record, 0.0), 0.0)
        shard = ShardMap(2).shard_of(b"ada")
        made.connection.data_received(request(fields=b"X-User: ada\r\n"))
        workers = asked(made)
        primary, copy = ("o0", "o1") if shard == 0 else ("o1", "o0")
        assert b"warmroute-mirror" not in sent(workers[primary].transport)
        assert b"warmroute-mirror: 1" in sent(workers[copy].transport)
        for worker in workers.values():
            worker.data_received(ANSWER)
        assert count(made, Scalar.MIRRORS_TOTAL) == 1
