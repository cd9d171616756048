"""Replicas that warm-up requests prove: after their connections broke they wait for a new proof, not for a request."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import WHOLE, EjectCause, EndpointEjected, EndpointRecord, Replica, State
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, Policies, WarmthPolicy
from router.routes import Attempt
from tests.support.fleet import Driven, record


def proven(id_: str, at: float | None, *, state: State = State.WARM, model: str = "m") -> EndpointRecord:
    return record(id_, static=True, replicas=(Replica(model, state=state, proven_at=at),))


def reason(driven: Driven, id_: str) -> Reason | None:
    return driven.cluster.endpoints[id_].candidates["m", "", WHOLE].reason


def test_no_request_is_the_probe_of_what_must_be_proven() -> None:
    driven = Driven()
    driven.seen(proven("a", 90.0), proven("b", 90.0))
    driven.done(driven.to("a"), AttemptResult.RESET)
    assert reason(driven, "a") is Reason.UNPROVEN
    driven.wait(600.0)
    assert set(driven.ids()) == {"b"}, "whatever the time"
    driven.seen(proven("a", 90.0))
    assert set(driven.ids()) == {"b"}, "a record that was under way when it broke proves nothing"
    driven.seen(proven("a", driven.now))
    assert reason(driven, "a") is None, "the answers to its warm-up requests end the quarantine, too"
    driven.wait(0.2)
    assert set(driven.ids()) == {"a", "b"}
    assert not driven.attempt().probe


def test_what_broke_after_its_warm_up_requests_were_sent_stays_in_quarantine() -> None:
    driven = Driven()
    driven.seen(proven("a", 90.0), proven("b", 90.0))
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    driven.seen(proven("a", driven.now - 0.001))
    assert driven.cluster.endpoints["a"].quarantine.active
    driven.seen(replace(proven("a", None), epoch=driven.cluster.endpoints["a"].epoch))
    assert driven.cluster.endpoints["a"].quarantine.active, "nobody proves it"


def test_what_a_sibling_saw_break_is_unproven_here_too_unless_the_proof_is_newer() -> None:
    driven = Driven()
    driven.seen(proven("a", 90.0), proven("b", 90.0))
    driven.apply(EndpointEjected("a", EjectCause.QUARANTINE, driven.now + 1, 1, driven.now))
    assert reason(driven, "a") is Reason.UNPROVEN
    driven.now += 2.0
    driven.seen(proven("a", driven.now - 0.5))
    assert reason(driven, "a") is None


def test_another_model_s_request_may_end_the_quarantine_but_proves_nothing_for_this_one() -> None:
    driven = Driven(models=[ModelPolicy("m"), ModelPolicy("n")])
    both = record("a", static=True, replicas=(Replica("m", proven_at=90.0), Replica("n")))
    driven.seen(both, proven("b", 90.0))
    driven.done(driven.to("a"), AttemptResult.CONNECT_REFUSED)
    driven.now += 2.0
    probe = driven.attempt(route=driven.route("n"))
    driven.done(probe, AttemptResult.SUCCESS)
    assert not driven.cluster.endpoints["a"].quarantine.active
    assert reason(driven, "a") is Reason.UNPROVEN
    assert set(driven.ids()) == {"b"}


def test_one_that_served_before_warm_ups_were_configured_serves_on_until_it_breaks() -> None:
    driven = Driven()
    driven.seen(proven("a", -inf), proven("b", -inf))
    assert set(driven.ids()) == {"a", "b"}
    driven.done(driven.to("a"), AttemptResult.CUT)
    assert reason(driven, "a") is Reason.UNPROVEN


def test_where_nobody_else_is_left_the_caller_is_told_so() -> None:
    driven = Driven()
    driven.seen(proven("a", 90.0))
    driven.done(driven.attempt(), AttemptResult.CONNECT_REFUSED)
    nobody = driven.nobody()
    assert nobody.reason is Reason.UNPROVEN
    assert nobody.detail == "m: none of 1 can be picked: 1 unproven"
    assert not driven.cluster.routable(driven.now + 5.0)


@given(st.lists(st.sampled_from(["break", "peer", "prove", "old", "wait", "ask"]), max_size=30))
def test_it_is_never_picked_without_a_proof_since_the_last_break(steps: list[str]) -> None:
    driven = Driven()
    driven.seen(proven("a", 90.0), proven("b", 90.0))
    proofs, broke = {"a": 90.0, "b": 90.0}, {"a": -inf, "b": -inf}
    for step in steps:
        driven.now += 0.01
        if step == "peer":
            driven.apply(EndpointEjected("a", EjectCause.QUARANTINE, driven.now + 1, 1, driven.now))
            quarantine = driven.cluster.endpoints["a"].quarantine
            broke["a"] = max(broke["a"], quarantine.since)
        elif step == "prove":
            for id_ in proofs:
                proofs[id_] = driven.now
                driven.seen(proven(id_, driven.now))
        elif step == "old":
            driven.seen(proven("a", proofs["a"]))
        elif step == "wait":
            driven.wait(3.0)
        else:
            picked = driven.choose()
            if not isinstance(picked, Attempt):
                guards = {id_: driven.cluster.endpoints[id_].quarantine.until for id_ in proofs}
                assert all(broke[id_] > proofs[id_] or guards[id_] > driven.now - 1.0 for id_ in proofs)
                continue
            id_ = picked.endpoint.id
            assert broke[id_] <= proofs[id_]
            driven.done(picked, AttemptResult.CONNECT_REFUSED if step == "break" else AttemptResult.SUCCESS)
            broke[id_] = max(broke[id_], driven.cluster.endpoints[id_].quarantine.since)


def warmth_term(driven: Driven, id_: str) -> tuple[float | None, float]:
    row = next(
        row for row in driven.cluster.explain(driven.route(), driven.now, driven.rng).rows if row.endpoint == id_
    )
    return next(term.raw for term in row.terms if term.name == "warmth"), row.idle_s


def test_an_idle_replica_cools_and_a_proof_or_an_answer_warms_it_again() -> None:
    policies = Policies(warmth=WarmthPolicy(idle_after_s=60.0, decay_s=100.0, floor=0.2))
    driven = Driven(policies=policies)

    def there(id_: str, at: float | None) -> EndpointRecord:
        return record(id_, static=True, replicas=(Replica("m", warmth=(("b1", 1.0),), proven_at=at),))

    driven.seen(there("a", None), there("b", None), there("c", driven.now))
    driven.wait(60.0)
    assert warmth_term(driven, "a") == (1.0, 60.0)
    driven.wait(50.0)
    assert warmth_term(driven, "a")[0] == pytest.approx(0.6)
    before = driven.shares()
    assert before["a"] == pytest.approx(1 / 3), "all have cooled alike"
    driven.seen(there("c", driven.now))
    driven.done(driven.to("b"), AttemptResult.SUCCESS, 0.02)
    driven.wait(1.0)
    assert warmth_term(driven, "c")[0] == 1.0
    assert warmth_term(driven, "b")[0] == 1.0
    after = driven.shares()
    assert after["a"] < after["c"]
    driven.cluster.configure(Policies(), [ModelPolicy("m")], driven.now)
    assert warmth_term(driven, "a")[0] == 1.0, "no longer configured"


def test_what_a_worker_says_of_being_idle_counts_too() -> None:
    driven = Driven(policies=Policies(warmth=WarmthPolicy(idle_after_s=60.0)))
    driven.seen(record("a"))
    driven.wait(100.0, heard=["a"])
    assert warmth_term(driven, "a")[1] == 100.0
    driven.seen(replace(record("a"), idle_for_s=3.0))
    assert warmth_term(driven, "a")[1] == 3.0, "another sidecar had work for it"
