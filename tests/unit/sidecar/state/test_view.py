from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from router.model import EndpointGone, EndpointRecord, EndpointSeen, EndpointsHeard, GoneReason, State
from router.wire import MAX_FIELD_CHARS, REASONS, WireError
from sidecar.state.view import MAX_COMPLAINTS, MAX_ENDPOINTS, MAX_WAITING, Count, StoreView
from tests.support.store_view import TTL_S, Store, read, record, seen, started


def test_a_first_read_shows_the_whole_fleet() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"))
    assert (view.needs_read, view.complete) == (True, False)
    (event,) = read(view, store.reply(), 7.0)
    assert event == EndpointSeen(EndpointRecord(**_as_read(record("a"), 1)), 7.0)
    assert (view.needs_read, view.complete) == (False, True)


def _as_read(record: EndpointRecord, revision: int) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__} | {"revision": revision}


def test_deltas_change_only_their_fields() -> None:
    store, view = started("a")
    (event,) = view.message(store.put(record("a", free=99), "free"), 1.0)
    assert isinstance(event, EndpointSeen)
    assert (event.record.free_memory_bytes, event.record.address, event.record.revision) == (
        99,
        "http://127.0.0.1:9001",
        2,
    )


def test_a_beat_is_a_sign_of_life_and_a_del_a_goodbye() -> None:
    store, view = started("a")
    assert list(view.message(store.beat("a"), 1.0)) == [EndpointsHeard(("a",), 1.0)]
    assert list(view.message(store.drop("a"), 2.0)) == [EndpointGone("a", GoneReason.DEREGISTERED, 2.0)]
    assert list(view.ids) == []


def test_a_new_epoch_replaces_everything() -> None:
    store, view = started("a")
    (event,) = view.message(store.put(record("a", epoch="e2", state=State.LOADING)), 1.0)
    assert isinstance(event, EndpointSeen)
    assert (event.record.epoch, event.record.replicas[0].state) == ("e2", State.LOADING)


def test_a_missing_revision_stops_everything_until_a_later_read() -> None:
    store, view = started("a", "b")
    store.put(record("a", free=50), "free")  # this message is lost
    message = store.put(record("b", free=60), "free")
    assert list(view.message(message, 1.0)) == []
    assert view.needs_read
    assert list(view.message(store.beat("b"), 1.0)) == []
    assert view.counts[Count.GAPS] == 1
    events = read(view, store.reply(), 2.0)
    assert seen(events) == ["a", "b"]
    assert list(view.message(store.beat("a"), 3.0)) == [EndpointsHeard(("a",), 3.0)]


def test_a_read_that_was_under_way_when_a_gap_opened_does_not_close_it() -> None:
    store, view = started("a")
    view.read_begins()
    reply = store.reply()
    store.put(record("a", free=50), "free")  # lost
    list(view.message(store.beat("a"), 1.0))
    assert list(view.read_ended(reply, 1.0)) == []
    assert view.needs_read
    assert seen(read(view, store.reply(), 2.0)) == ["a"]


def test_what_arrives_during_the_first_read_is_applied_after_it_and_only_if_newer() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"))
    view.read_begins()
    early = store.put(record("a", free=2), "free")
    reply = store.reply()
    late = store.put(record("a", free=3), "free")
    assert list(view.message(early, 0.0)) == []
    assert list(view.message(late, 0.0)) == []
    events = list(view.read_ended(reply, 1.0))
    assert [e.record.free_memory_bytes for e in events if isinstance(e, EndpointSeen)] == [2, 3]
    assert view.counts[Count.GAPS] == 0


def test_a_read_that_is_older_than_applied_deltas_takes_nothing_back() -> None:
    store, view = started("a", "b")
    view.read_begins()
    reply = store.reply()
    list(view.message(store.put(record("a", free=77), "free"), 1.0))
    list(view.message(store.drop("b"), 1.0))
    assert list(view.read_ended(reply, 2.0)) == []
    assert list(view.ids) == ["a"]
    assert list(view.message(store.beat("a"), 3.0)) == [EndpointsHeard(("a",), 3.0)]


def test_a_read_that_shows_only_newer_revisions_is_a_sign_of_life() -> None:
    store, view = started("a")
    store.beat("a")
    assert read(view, store.reply(), 4.0) == [EndpointsHeard(("a",), 4.0)]
    assert read(view, store.reply(), 5.0) == []


def test_expired_are_those_that_neither_delta_nor_read_showed_for_a_ttl() -> None:
    store, view = started("a", "b", "c")
    list(view.message(store.beat("a"), 4.0))
    del store.hashes["c"]
    read(view, store.reply(), 4.0)  # b is quiet, but its hash is there
    assert list(view.expire(5.0)) == []
    assert list(view.expire(5.1)) == [EndpointGone("c", GoneReason.EXPIRED, 5.1)]
    assert [event.id for event in view.expire(9.1)] == ["a", "b"]
    assert view.counts[Count.EXPIRED] == 3


def nobody(_endpoint_id: str) -> bool:
    return False


def test_what_a_read_lacks_is_let_go_a_ttl_later_unless_it_is_shown_or_answers() -> None:
    store, view = started("a", "b", "c")
    del store.hashes["a"]
    del store.hashes["b"]
    read(view, store.reply(), 10.0)
    read(view, store.reply(), 14.0)  # it counts from the first read that lacked it
    assert list(view.expire_missing(15.0, nobody)) == []
    assert list(view.expire_missing(15.1, lambda name: name == "b")) == [EndpointGone("a", GoneReason.EXPIRED, 15.1)]
    list(view.message(store.put(record("b")), 16.0))
    assert list(view.expire_missing(99.0, nobody)) == []
    assert sorted(view.ids) == ["b", "c"]


@pytest.mark.parametrize("how", ["reconnect", "emptied", "beat", "shown", "unreadable"])
def test_a_read_that_lacked_something_says_nothing_after(how: str) -> None:
    store, view = started("a", "b")
    held = store.hashes.pop("a")
    read(view, store.reply(), 10.0)
    if how == "reconnect":
        view.reconnected()
    elif how == "emptied":
        view.forget()
    else:
        store.hashes["a"] = held
        if how == "beat":
            list(view.message(store.beat("a"), 11.0))
        elif how == "shown":
            read(view, store.reply(), 11.0)
        else:
            held["replicas"] = "{"
            read(view, store.reply(), 11.0)
    assert list(view.expire_missing(99.0, nobody)) == []


def test_a_bad_record_is_counted_named_and_skipped_and_the_rest_stays() -> None:
    store, view = started("a")
    store.put(record("bad"))
    store.hashes["bad"]["replicas"] = "{"
    store.put(record("b"))
    assert seen(read(view, store.reply())) == ["b"]
    assert view.bad.total() == 1
    assert view.complaints[0][1].startswith("endpoint 'bad'")


def test_what_is_skipped_is_counted_by_reason_and_no_reason_hides_another() -> None:
    store, view = started("a")
    for number in range(40):
        store.put(record(f"bad-{number}"))
        store.hashes[f"bad-{number}"]["replicas"] = "{"
    store.put(record("newer"))
    store.hashes["newer"]["v"] = "2"
    store.put(record("long"))
    store.hashes["long"]["replicas"] = " " * (MAX_FIELD_CHARS + 1)
    read(view, store.reply())
    assert view.bad == {"malformed": 40, "version": 1, "over_limit": 1}
    kept = Counter(reason for reason, _ in view.complaints)
    assert kept == {"malformed": MAX_COMPLAINTS, "version": 1, "over_limit": 1}
    assert view.bad.keys() == set(REASONS)


def test_a_key_that_is_no_hash_is_a_bad_record_and_the_rest_stays() -> None:
    store, view = started("a", "b")
    reply = store.reply()
    reply[reply.index("a") + 1] = "wr:{t}:ep:a is no hash"
    store.put(record("c"))
    reply[0] = store.revision
    reply += ["c", store.hashes["c"], "evil", "wr:{t}:ep:evil is no hash"]
    assert seen(read(view, reply)) == ["c"]
    assert set(view.ids) == {"a", "b", "c"}
    assert view.bad.total() == 2
    assert view.complaints == [("malformed", f"wr:{{t}}:ep:{name} is no hash") for name in ("a", "evil")]
    assert not view.needs_read


def test_a_record_that_stays_bad_asks_for_no_read_at_each_of_its_heartbeats() -> None:
    store, view = started("a")
    store.put(record("bad"))
    store.hashes["bad"]["replicas"] = "{"
    read(view, store.reply())
    wanted = []
    for message in (store.beat("bad"), store.put(record("bad"), "replicas")):
        assert list(view.message(message, 1.0)) == []
        wanted.append(view.needs_read)
    assert wanted == [False, True]  # the second one may have mended it
    assert seen(read(view, store.reply(), 3.0)) == ["bad"]


@pytest.mark.parametrize("reply", [[], ["a", {}], ["abc"], [None], [-1], ["none", "a", {}]])
def test_a_read_without_a_revision_is_refused_as_a_whole(reply: list[Any]) -> None:
    _, view = started("a")
    with pytest.raises(WireError):
        read(view, reply)
    assert list(view.ids) == ["a"]


@pytest.mark.parametrize("payload", ["", "nonsense", "[]", '{"v":9}', b"\xff"])
def test_a_bad_message_is_counted_and_the_gap_it_leaves_is_read(payload: str | bytes) -> None:
    store, view = started("a")
    assert list(view.message(payload, 0.0)) == []
    assert view.bad.total() == 1
    store.put(record("a"))
    assert list(view.message(store.beat("a"), 0.0)) == []
    assert view.needs_read


def test_a_message_with_a_revision_that_the_store_never_had_empties_nothing() -> None:
    store, view = started("a")
    ahead = '{"v":1,"id":"zz","epoch":"e","rev":1152921504606846976,"kind":"beat"}'
    assert list(view.message(ahead, 0.0)) == []
    assert read(view, store.reply(), 0.1) == []
    assert list(view.message(store.put(record("a", free=5)), 0.2)) == []
    assert (view.emptied, view.needs_read) == (False, True)
    assert seen(read(view, store.reply(), 0.3)) == ["a"]
    assert not view.needs_read
    assert list(view.message(store.beat("a"), 0.4)) == [EndpointsHeard(("a",), 0.4)]
    assert view.counts[Count.EMPTIED] == 0


def test_a_store_that_was_emptied_behind_such_a_message_is_noticed_by_the_read() -> None:
    store, view = started("a", "b")
    list(view.message('{"v":1,"id":"zz","epoch":"e","rev":1152921504606846976,"kind":"beat"}', 0.0))
    before = store.reply(view.read_begins())
    other = Store()
    list(view.message(other.put(record("a", free=7)), 0.1))
    assert list(view.read_ended(before, 0.2)) == []  # it may tell of the store as it was before
    read(view, other.reply(), 0.3)
    assert view.emptied


def test_part_of_a_record_never_seen_whole_asks_for_a_read() -> None:
    store, view = started("a")
    assert list(view.message(store.put(record("b"), "free"), 0.0)) == []
    assert view.needs_read


def test_a_store_that_came_back_empty_keeps_what_is_known_and_lets_anything_be_newer() -> None:
    store, view = started("a", "b")
    for _ in range(20):
        list(view.message(store.beat("a"), 1.0))
    store = Store()
    view.reconnected()
    assert read(view, store.reply(), 2.0) == []
    assert view.emptied
    assert sorted(view.ids) == ["a", "b"]
    (event,) = view.message(store.put(record("a", free=5)), 3.0)
    assert isinstance(event, EndpointSeen)
    assert event.record.revision == 1


def test_a_counter_set_back_under_a_live_connection_is_noticed_at_its_first_message() -> None:
    store, view = started("a")
    for _ in range(5):
        list(view.message(store.beat("a"), 1.0))
    store = Store()
    assert list(view.message(store.put(record("a", free=5)), 2.0)) == []
    assert view.emptied
    assert view.needs_read
    assert seen(read(view, store.reply(), 3.0)) == ["a"]


def test_how_long_a_replica_was_warm_runs_on_when_only_other_fields_change() -> None:
    store, view = started("a")
    (told,) = view.message(store.put(record("a", warm_for_s=10.0), "replicas"), 100.0)
    (later,) = view.message(store.put(record("a", free=9), "free"), 130.0)
    assert isinstance(told, EndpointSeen)
    assert isinstance(later, EndpointSeen)
    assert told.record.replicas[0].warm_for_s == 10.0
    assert later.record.replicas[0].warm_for_s == 40.0


def test_what_waits_for_a_read_is_bounded() -> None:
    store, view = started("a")
    store.beat("a")
    for _ in range(3 * MAX_WAITING):
        list(view.message(store.beat("a"), 0.0))
    assert len(view._waiting) <= MAX_WAITING
    assert read(view, store.reply(), 1.0) == [EndpointsHeard(("a",), 1.0)]
    assert list(view.message(store.beat("a"), 2.0)) == [EndpointsHeard(("a",), 2.0)]


def test_the_number_of_endpoints_is_bounded() -> None:
    store, view = Store(), StoreView(TTL_S)
    for number in range(MAX_ENDPOINTS + 3):
        store.put(record(f"w{number}"))
    assert len(read(view, store.reply())) == MAX_ENDPOINTS
    assert view.bad.total() == 3
    assert len(view.complaints) == 3


def test_a_reply_whose_hashes_are_maps_reads_the_same() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"))
    assert seen(read(view, [1, "a", store.hashes["a"]])) == ["a"]
