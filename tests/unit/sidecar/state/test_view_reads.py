"""Reads that tell only what is not known, and what becomes of models on the way."""

from __future__ import annotations

from router.model import EndpointSeen, EndpointsHeard
from router.wire import ModelEvent, ModelNews, encode_news
from sidecar.state.view import StoreView
from tests.support.store_view import TTL_S, Store, read, record, seen, started


def test_a_read_is_told_only_what_changed_and_hears_who_beat_since() -> None:
    store, view = started("a", "b", "c")
    store.beat("b")
    store.put(record("c", free=9), "free")
    reply = store.reply(view.read_begins())
    assert [type(part) for part in reply[2::2]] == [int, int, list]
    events = list(view.read_ended(reply, 2.0))
    assert events[0] == EndpointsHeard(("b",), 2.0)
    assert seen(events[1:]) == ["c"]
    reply = store.reply(view.read_begins())
    assert [type(part) for part in reply[2::2]] == [int, int, int]
    assert list(view.read_ended(reply, 3.0)) == []
    assert view.bad.total() == 0


def test_what_deltas_told_need_not_be_read_again() -> None:
    store, view = started("a")
    list(view.message(store.put(record("a", free=9), "free"), 1.0))
    list(view.message(store.beat("a"), 1.0))
    reply = store.reply(view.read_begins())
    assert reply[2] == store.revision
    assert list(view.read_ended(reply, 2.0)) == []


def test_a_change_that_could_not_be_read_is_asked_for_again() -> None:
    store, view = started("a")
    store.put(record("a", free=9), "free")
    store.hashes["a"]["free"] = "x"
    reply = store.reply(view.read_begins())
    assert list(view.read_ended(reply, 1.0)) == []
    assert view.bad.total() == 1
    store.hashes["a"]["free"] = "9"
    assert seen(list(view.read_ended(store.reply(view.read_begins()), 2.0))) == ["a"]


def test_a_record_of_a_writer_without_content_revisions_is_told_whole_each_time() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"))
    del store.hashes["a"]["crev"]
    read(view, store.reply())
    assert isinstance(store.reply(view.read_begins())[2], list)


def test_the_same_number_in_a_store_that_was_emptied_is_no_proof() -> None:
    store, view = started("a", "b")
    list(view.message(store.beat("b"), 0.5))
    has = view.read_begins()
    other = Store()
    other.put(record("a", free=7, epoch="e2"))
    assert isinstance(other.reply(has)[2], int)  # its first write has the number that the view knows
    assert list(view.read_ended(other.reply(has), 1.0)) == []
    assert view.emptied
    assert view.needs_read
    assert seen(list(view.read_ended(other.reply(view.read_begins()), 2.0))) == ["a"]


def test_a_read_from_before_the_store_was_emptied_changes_nothing() -> None:
    store, view = started("a")
    for _ in range(5):
        list(view.message(store.beat("a"), 0.1))
    old = store.reply(view.read_begins())
    other = Store()
    list(view.message(other.put(record("a", free=7)), 1.0))  # live, and its revision went back
    assert view.emptied
    assert list(view.read_ended(old, 1.1)) == []
    assert view.needs_read
    (event,) = view.read_ended(other.reply(view.read_begins()), 1.2)
    assert isinstance(event, EndpointSeen)
    assert event.record.free_memory_bytes == 7
    assert event.record.revision == 1


def test_what_could_not_be_heard_while_this_process_stood_still_is_no_silence() -> None:
    store, view = started("a", "b")
    list(view.message(store.beat("a"), 3.0))
    view.paused(20.0, 24.0)
    assert list(view.expire(24.0)) == []
    list(view.message(store.beat("a"), 24.1))
    (gone,) = view.expire(25.1)
    assert gone.id == "b", "its own silence goes on"
    del store.hashes["a"]
    read(view, store.reply(), 26.0)
    view.paused(20.0, 46.5)
    assert list(view.expire_missing(47.0, lambda _: False)) == []
    assert [event.id for event in view.expire_missing(52.0, lambda _: False)] == ["a"]


def news(*numbers: int) -> str:
    return encode_news(ModelNews(number, ModelEvent.LOADED, "m", str(number), "") for number in numbers)


def told(view: StoreView) -> list[tuple[str, int]]:
    found = [(id_, one.number) for id_, one in view.news]
    view.news.clear()
    return found


def test_what_becomes_of_models_is_told_once_and_not_what_was_there_before() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"), news=news(1, 2))
    read(view, store.reply())
    assert told(view) == [], "it is old"
    list(view.message(store.put(record("a"), "free", "news", news=news(1, 2)), 1.0))
    assert told(view) == []
    list(view.message(store.put(record("a"), "free", "news", news=news(1, 2, 3, 4)), 2.0))
    assert told(view) == [("a", 3), ("a", 4)]
    list(view.message(store.beat("a"), 3.0))
    assert told(view) == []
    list(view.message(store.put(record("a", epoch="e2"), news=news(1)), 4.0))
    assert told(view) == [("a", 1)], "a new process counts anew"
    list(view.message(store.put(record("b"), news=news(1)), 5.0))
    assert told(view) == [("b", 1)]


def test_news_that_deltas_missed_are_in_the_next_read() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"), news=news(1))
    read(view, store.reply())
    store.put(record("a", free=2), news=news(1, 2))
    read(view, store.reply(view.read_begins()))
    assert told(view) == [("a", 2)]


def test_news_that_cannot_be_read_are_complained_of_and_the_record_stands() -> None:
    store, view = Store(), StoreView(TTL_S)
    store.put(record("a"))
    read(view, store.reply())
    assert seen(list(view.message(store.put(record("a", free=2), news="{}"), 1.0))) == ["a"]
    assert view.complaints == [("malformed", "endpoint 'a': news: not a list of at most 8")]
    assert told(view) == []
