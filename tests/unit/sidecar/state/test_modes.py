from __future__ import annotations

import pytest

from router.model import StoreMode
from router.policy import FreshnessPolicy
from sidecar.state.modes import TRANSITIONS, Signal, StoreModes

POLICY = FreshnessPolicy()
LIVE, FROZEN, LOCAL, UNIFORM = StoreMode.LIVE, StoreMode.FROZEN, StoreMode.LOCAL, StoreMode.UNIFORM
AB = frozenset({"a", "b"})


class Fleet:
    """A store with endpoints a and b at time ``now``, which steps by tenths of a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.known = AB
        self.observed = True
        self.modes = StoreModes(POLICY, self.now)
        self.modes.connected(self.now, ())
        self.seen: list[StoreMode] = []
        self.hear("a", "b")

    def hear(self, *ids: str) -> None:
        self.modes.heard(ids, self.now)
        self.check()

    def check(self) -> StoreMode:
        if self.modes.check(self.now, self.known, observed=self.observed):
            self.seen.append(self.modes.mode)
        return self.modes.mode

    def wait(self, seconds: float, *speaking: str) -> StoreMode:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            if speaking:
                self.modes.heard(speaking, self.now)
            self.check()
        return self.modes.mode

    def lose(self) -> StoreMode:
        self.modes.lost()
        return self.check()

    def reconnect(self, *, emptied: bool = False) -> StoreMode:
        self.modes.connected(self.now, self.known, emptied=emptied)
        return self.check()


def test_live_while_somebody_speaks() -> None:
    fleet = Fleet()
    assert fleet.wait(60, "a") is LIVE
    assert fleet.seen == []


def test_a_lost_connection_freezes_at_once_then_local_after_a_minute() -> None:
    fleet = Fleet()
    assert fleet.lose() is FROZEN
    assert fleet.wait(59.8) is FROZEN
    assert fleet.wait(0.4) is LOCAL
    assert fleet.seen == [FROZEN, LOCAL]


def test_uniform_only_where_nothing_was_ever_observed_and_back_to_local_when_it_is() -> None:
    fleet = Fleet()
    fleet.observed = False
    fleet.lose()
    assert fleet.wait(61) is UNIFORM
    fleet.observed = True
    assert fleet.check() is LOCAL
    assert fleet.seen == [FROZEN, UNIFORM, LOCAL]


def test_silence_for_one_ttl_freezes_where_endpoints_are_known() -> None:
    fleet = Fleet()
    assert fleet.wait(4.8) is LIVE
    assert fleet.wait(0.4) is FROZEN


def test_silence_is_no_degraded_mode_where_no_endpoint_is_known() -> None:
    fleet = Fleet()
    fleet.known = frozenset()
    assert fleet.wait(120) is LIVE
    assert fleet.seen == []


def test_after_silence_the_first_word_gives_the_others_one_ttl() -> None:
    fleet = Fleet()
    fleet.wait(6)
    assert fleet.wait(4.8, "a") is FROZEN, "b may still be on its way"
    assert fleet.wait(0.4, "a") is LIVE
    other = Fleet()
    other.wait(6)
    other.hear("a")
    assert other.modes.mode is FROZEN
    other.hear("b")
    assert other.modes.mode is LIVE


def test_a_reconnect_is_live_again_when_all_that_were_known_spoke() -> None:
    fleet = Fleet()
    fleet.lose()
    fleet.wait(3)
    assert fleet.reconnect() is FROZEN
    fleet.hear("a")
    assert fleet.modes.mode is FROZEN
    fleet.hear("b")
    assert fleet.modes.mode is LIVE


def test_an_endpoint_that_died_during_the_outage_is_waited_for_one_ttl() -> None:
    fleet = Fleet()
    fleet.lose()
    fleet.reconnect()
    assert fleet.wait(4.8, "a") is FROZEN
    assert fleet.wait(0.4, "a") is LIVE


def test_an_emptied_store_gives_ten_seconds() -> None:
    fleet = Fleet()
    fleet.lose()
    fleet.reconnect(emptied=True)
    assert fleet.wait(9.8, "a") is FROZEN
    assert fleet.wait(0.4, "a") is LIVE


def test_content_lost_under_a_live_connection_freezes_until_all_registered_again() -> None:
    fleet = Fleet()
    fleet.modes.connected(fleet.now, fleet.known, emptied=True)
    assert fleet.check() is FROZEN
    fleet.hear("a")
    fleet.hear("b")
    assert fleet.modes.mode is LIVE


def test_one_that_says_goodbye_is_not_waited_for() -> None:
    fleet = Fleet()
    fleet.lose()
    fleet.reconnect()
    fleet.hear("a")
    fleet.modes.left("b")
    assert fleet.check() is LIVE


def test_a_silent_store_whose_last_endpoint_left_is_live() -> None:
    fleet = Fleet()
    fleet.wait(6)
    assert fleet.modes.mode is FROZEN
    for name in AB:
        fleet.modes.left(name)
    fleet.known = frozenset()
    assert fleet.check() is LIVE


def test_local_and_uniform_come_back_live_too() -> None:
    for observed, before in ((True, LOCAL), (False, UNIFORM)):
        fleet = Fleet()
        fleet.observed = observed
        fleet.lose()
        fleet.wait(61)
        assert fleet.modes.mode is before
        fleet.reconnect()
        fleet.hear("a", "b")
        assert fleet.modes.mode is LIVE


def test_a_store_that_was_never_there_is_frozen_from_the_first_failure() -> None:
    modes = StoreModes(POLICY, 0.0)
    assert not modes.check(0.1, (), observed=False)
    assert modes.mode is LIVE
    modes.lost()
    assert modes.check(0.2, (), observed=False)
    assert modes.mode is FROZEN
    modes.connected(1.0, ())
    modes.check(1.0, (), observed=False)
    assert modes.mode is LIVE
    assert modes.changes == 2
    assert modes.since == 1.0


def test_flowing_is_live_and_heard_just_now() -> None:
    fleet = Fleet()
    assert fleet.modes.flowing(fleet.now + 1.9)
    assert not fleet.modes.flowing(fleet.now + 2.1)
    fleet.lose()
    assert not fleet.modes.flowing(fleet.now)


@pytest.mark.parametrize("mode", list(StoreMode))
@pytest.mark.parametrize("signal", list(Signal))
def test_every_step_down_is_one_step_and_settling_always_leads_to_live(mode: StoreMode, signal: Signal) -> None:
    after = TRANSITIONS.get((mode, signal), mode)
    order = [LIVE, FROZEN, LOCAL, UNIFORM]
    if signal is Signal.SETTLED:
        assert after is LIVE
    else:
        assert order.index(after) <= order.index(mode) + 1


def test_what_a_read_lacks_counts_once_the_connection_has_stood_for_long_enough() -> None:
    fleet = Fleet()
    assert not fleet.modes.stands(fleet.now)
    fleet.wait(POLICY.ttl_s + 0.1)
    assert fleet.modes.stands(fleet.now)
    assert fleet.wait(POLICY.ttl_s) is FROZEN
    assert fleet.modes.stands(fleet.now)  # nobody speaks, and the store itself is well
    fleet.lose()
    assert not fleet.modes.stands(fleet.now)
    fleet.reconnect(emptied=True)
    fleet.wait(POLICY.empty_store_grace_s - 0.1)
    assert not fleet.modes.stands(fleet.now)
    fleet.wait(0.2)
    assert fleet.modes.stands(fleet.now)


def test_what_could_not_be_heard_while_this_process_stood_still_is_no_silence() -> None:
    fleet = Fleet()
    fleet.wait(1.0, "a", "b")
    fleet.now += 20.0
    fleet.modes.paused(20.0, fleet.now)
    assert fleet.check() is LIVE
    assert fleet.modes.flowing(fleet.now)
    assert fleet.wait(POLICY.ttl_s - 0.2) is LIVE
    assert fleet.wait(0.4) is FROZEN


def test_standing_still_takes_nothing_from_the_time_to_be_heard_again() -> None:
    fleet = Fleet()
    fleet.lose()
    fleet.reconnect()
    fleet.now += 20.0
    fleet.modes.paused(20.0, fleet.now)
    assert fleet.check() is FROZEN
    assert not fleet.modes.stands(fleet.now)
    assert fleet.wait(POLICY.ttl_s + 0.1, "a") is LIVE  # b did not come
    assert fleet.modes.stands(fleet.now)
