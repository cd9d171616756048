"""Who a data process has as endpoints while the configuration changes: never nobody for a model that has any."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from router.model import EndpointRecord, Replica, State
from sidecar.discovery.members import Members
from sidecar.discovery.planned import NOT_PROBED_YET, StaticEndpoint, static_endpoints
from sidecar.discovery.proving import NOT_WARMED_YET
from sidecar.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

A, B = "http://127.0.0.1:9001", "http://127.0.0.1:9002"


def endpoints(*models: tuple[str, str, str | None], **more: Any) -> tuple[StaticEndpoint, ...]:
    """Return the endpoints of models, each with its URL and its probe's path."""
    return static_endpoints(
        msgspec.convert(
            {
                "version": 1,
                "listeners": [{"address": "127.0.0.1:0"}],
                "models": [
                    {"name": name, "endpoints": [url], **({"probe": {"path": path}} if path else {})}
                    for name, url, path in models
                ],
                **more,
            },
            Settings,
        )
    )


def shown(members: Members) -> dict[str, dict[str, str]]:
    return {
        f"{id} {record.address[-4:]}": {replica.model: replica.state.value for replica in record.replicas}
        for id, record in members.records.items()  # noqa: A001
    }


def said(url: str, id: str = "", **models: State) -> EndpointRecord:  # noqa: A002
    replicas: Iterable[Replica] = (
        Replica(model, state=state, reason="" if state is State.WARM else "503") for model, state in models.items()
    )
    return EndpointRecord(id or url[7:], url, replicas=tuple(replicas), static=True)


def test_what_nobody_probes_replaces_what_was_there_at_once() -> None:
    members = Members(endpoints(("d", A, None)))
    members.configure(endpoints(("e", B, None)))
    assert not members.settling
    assert shown(members) == {"127.0.0.1:9002 9002": {"e": "warm"}}


def test_all_of_before_stays_until_the_newcomer_is_warm() -> None:
    members = Members(endpoints(("d", A, None)))
    members.configure(endpoints(("e", B, "/r")))
    assert (members.settling, members.awaited) == (True, frozenset({"e"}))
    assert shown(members) == {"127.0.0.1:9001 9001": {"d": "warm"}, "127.0.0.1:9002 9002": {"e": "cold"}}
    assert not members.gone("127.0.0.1:9001")  # the control process has taken it out already: we have not
    members.seen(said(B, e=State.COLD))
    assert members.awaited == {"e"}
    members.seen(said(B, e=State.WARM))
    assert (members.settling, members.awaited) == (True, frozenset())
    members.settle()
    assert not members.settling
    assert shown(members) == {"127.0.0.1:9002 9002": {"e": "warm"}}


def test_a_model_that_leaves_stays_on_the_endpoint_that_serves_its_successor() -> None:
    members = Members(endpoints(("d", A, None)))
    members.configure(endpoints(("e", A, "/r")))
    assert shown(members) == {"127.0.0.1:9001 9001": {"e": "cold", "d": "warm"}}
    assert members.seen(said(A, e=State.WARM)) == members.records["127.0.0.1:9001"]
    members.settle()
    assert shown(members) == {"127.0.0.1:9001 9001": {"e": "warm"}}


def test_another_address_under_a_name_is_taken_when_it_is_warm() -> None:
    def named(url: str) -> tuple[StaticEndpoint, ...]:
        return endpoints(endpoints=[{"name": "w", "url": url, "models": ["m"], "probe": {"path": "/r"}}])

    members = Members(named(A))
    members.seen(said(A, "w", m=State.WARM))
    members.configure(named(B))
    assert shown(members) == {"w 9001": {"m": "warm"}}
    assert members.seen(said(B, "w", m=State.WARM)) == said(A, "w", m=State.WARM)
    members.settle()
    assert shown(members) == {"w 9002": {"m": "warm"}}


def test_a_change_amid_a_change_keeps_what_still_serves() -> None:
    members = Members(endpoints(("d", A, None)))
    members.configure(endpoints(("e", B, "/r")))
    members.configure(endpoints(("f", B, "/other")))
    assert shown(members) == {"127.0.0.1:9001 9001": {"d": "warm"}, "127.0.0.1:9002 9002": {"f": "cold", "e": "cold"}}
    members.settle()  # after the longest time: by the configuration
    assert shown(members) == {"127.0.0.1:9002 9002": {"f": "cold"}}


@pytest.mark.parametrize("state", [State.WARM, State.COLD])
def test_what_the_same_probe_found_holds_for_another_model(state: State) -> None:
    members = Members(endpoints(("d", A, "/r")))
    members.seen(said(A, d=state))
    members.configure(endpoints(("e", A, "/r")))
    assert not members.settling
    assert shown(members) == {"127.0.0.1:9001 9001": {"e": state.value}}


def test_a_newcomer_beside_others_that_are_warm_is_not_waited_for() -> None:
    members = Members(endpoints(("d", A, None)))
    both = [{"url": B, "models": ["d"], "probe": {"path": "/r"}}, {"url": "http://127.0.0.1:9003", "models": ["d"]}]
    members.configure(endpoints(endpoints=both))
    assert not members.settling
    assert sorted(members.records) == ["127.0.0.1:9002", "127.0.0.1:9003"]


def test_the_control_process_may_be_ahead_or_behind() -> None:
    members = Members(endpoints(("d", A, "/r")))
    members.seen(said(A, d=State.WARM))
    newer = said(B, e=State.WARM)
    assert members.seen(newer) is newer  # it has read a configuration that we have not
    assert members.seen(said(A, e=State.WARM)) == said(A, d=State.WARM)
    members.configure(endpoints(("e", B, "/r")))
    assert not members.settling  # what it said is known
    assert shown(members) == {"127.0.0.1:9002 9002": {"e": "warm"}}
    assert members.seen(said(A, d=State.WARM)) is None  # and here it has not read ours
    assert members.gone("127.0.0.1:9001")
    other = said(A, x=State.WARM)
    assert members.seen(other) is other


def test_a_control_process_that_has_not_probed_yet_takes_nothing_away() -> None:
    members = Members(endpoints(("d", A, "/r")))
    members.seen(said(A, d=State.WARM))
    record = said(A, d=State.COLD)
    unasked = replace(record, replicas=(replace(record.replicas[0], reason=NOT_PROBED_YET),))
    assert members.seen(unasked) == said(A, d=State.WARM)
    assert members.seen(said(A, d=State.COLD)) == said(A, d=State.COLD)


def test_what_probes_found_of_warmth_and_load_is_taken_over_and_goes_with_the_probe() -> None:
    members = Members(endpoints(("d", A, "/r")))
    found = replace(
        said(A, d=State.WARM),
        queue_depth=3,
        free_memory_ratio=0.5,
        replicas=(Replica("d", warmth=(("any", 1.0),)),),
    )
    assert members.seen(found) == found
    members.configure(endpoints(("d", A, "/r"), ("e", B, None)))
    assert members.records[found.id] == found
    members.configure(endpoints(("d", A, None)))
    assert members.records[found.id].replicas == (Replica("d"),)


WARMUP = {"requests": [{"name": "b1", "path": "/infer"}]}


def warmed(*, warmup: bool = True) -> tuple[StaticEndpoint, ...]:
    """Return the endpoints A and B of one model, with or without a warm-up."""
    model: dict[str, Any] = {"name": "m", "endpoints": [A, B]} | ({"warmup": WARMUP} if warmup else {})
    return endpoints(models=[model])


def replica(members: Members, url: str) -> Replica:
    return members.records[url[7:]].replicas[0]


def proof(url: str, state: State, reason: str = "", proven_at: float = -inf) -> EndpointRecord:
    found = Replica("m", state=state, reason=reason, proven_at=proven_at, warmth=(("b1", 1.0),))
    return EndpointRecord(url[7:], url, replicas=(found,), static=True)


def test_what_is_to_be_proven_is_warming_until_somebody_says_that_it_is() -> None:
    members = Members(warmed())
    assert (replica(members, A).state, replica(members, A).proven_at) == (State.WARMING, -inf)
    members.seen(proof(A, State.WARMING, NOT_WARMED_YET))
    assert replica(members, A).state is State.WARMING
    members.seen(proof(A, State.WARM, proven_at=5.0))
    assert replica(members, A) == Replica("m", warmth=(("b1", 1.0),), proven_at=5.0)
    members.seen(proof(A, State.WARMING, NOT_WARMED_YET))
    members.seen(proof(A, State.WARMING, f"{NOT_WARMED_YET}: warm-up b1: took 2 s"))
    assert replica(members, A).proven_at == 5.0, "a new control process knows less, and takes nothing away"
    members.seen(proof(A, State.WARMING, "its connections broke"))
    assert replica(members, A).state is State.WARMING


def test_who_serves_when_a_warm_up_is_configured_serves_on_until_it_fails() -> None:
    members = Members(warmed(warmup=False))
    members.configure(warmed())
    assert not members.settling
    assert (replica(members, A).state, replica(members, A).proven_at) == (State.WARM, -inf)
    members.seen(proof(A, State.WARMING, "warm-up b1: HTTP 500, not a 2xx"))
    assert replica(members, A).state is State.WARMING
    members.seen(proof(A, State.WARM, proven_at=5.0))
    members.configure(warmed(warmup=False))
    assert replica(members, A) == Replica("m")


def test_what_leaves_stays_until_what_replaces_it_is_proven() -> None:
    one = {"name": "m", "endpoints": [A]}
    members = Members(endpoints(models=[one]))
    members.configure(endpoints(models=[{"name": "m", "endpoints": [B], "warmup": WARMUP}]))
    assert members.settling
    assert set(members.records) == {A[7:], B[7:]}
    assert members.awaited == {"m"}
    members.seen(proof(B, State.WARM, proven_at=5.0))
    assert not members.awaited
    members.settle()
    assert set(members.records) == {B[7:]}


def test_what_a_new_control_process_does_not_know_yet_takes_nobody_out_whom_a_name_stands_for() -> None:
    members = Members(())
    found = proof(A, State.WARM, proven_at=5.0)
    assert members.seen(found) == found, "it is no member of ours"
    unknown = proof(A, State.WARMING, NOT_WARMED_YET)
    assert members.seen(unknown, found) == found
    assert members.seen(unknown) == unknown, "nothing was known of it"
    broken = proof(A, State.WARMING, "its connections broke")
    assert members.seen(broken, found) == broken
    assert members.seen(unknown, replace(found, address=B)) == unknown, "it is another"
