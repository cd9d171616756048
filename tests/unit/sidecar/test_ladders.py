"""The ladders of one process: switches, what a reload keeps, gauges, log lines, messages of the second tier."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.ladder import LadderStep
from router.policy import LadderPolicy
from sidecar.cache.keeping import Kept, kept_elsewhere
from sidecar.cache.terms import Refused, Terms
from sidecar.channel import MAX_MESSAGE_BYTES, AnswerFound, AnswerKept, CacheCleared, decode, encode
from sidecar.config.load import parse_settings
from sidecar.http1.ladders import Ladders
from sidecar.http1.shared_answers import FILLS_PER_S, MOST_WAITING, SharedTier
from sidecar.settings import Admission, Cache, Model, SharedCache, StaticAnswer, Tenant
from sidecar.telemetry.page import MODEL_LADDER, LadderWord, Page
from tests.support.by_hand import HandLoop
from tests.support.pages import begun_page

REPLICA, FALLBACK, CACHE, STATIC, REFUSE = LadderStep
FULL = Model(name="m", fallback=("b",), cache=Cache(), static_answer=StaticAnswer(body="[]"))
POLICY = LadderPolicy()
DOCUMENT = Path(__file__).parents[3] / "docs" / "degradation.md"


@pytest.fixture
def page() -> Iterator[Page]:
    with begun_page() as one:
        yield one


def gauge(page: Page, word: LadderWord, model: str = "m") -> int:
    return int(page.words[page.model_row(model) + MODEL_LADDER + word])


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        (POLICY, (REPLICA, FALLBACK, CACHE, STATIC, REFUSE)),
        (LadderPolicy(fallback=False), (REPLICA, CACHE, STATIC, REFUSE)),
        (LadderPolicy(cache=False), (REPLICA, FALLBACK, STATIC, REFUSE)),
        (LadderPolicy(static=False), (REPLICA, FALLBACK, CACHE, REFUSE)),
    ],
)
def test_each_step_has_a_switch(page: Page, policy: LadderPolicy, steps: tuple[LadderStep, ...]) -> None:
    ladders = Ladders((FULL,), policy, page, 0.0, Admission())
    assert ladders.by_model["m"].steps == steps
    ladders.configure((FULL,), POLICY, 1.0, Admission())
    ladders.configure((FULL,), policy, 1.0, Admission())
    assert ladders.by_model["m"].steps == steps


def test_a_model_without_any_step_has_no_ladder(page: Page) -> None:
    off = LadderPolicy(fallback=False, cache=False, static=False)
    ladders = Ladders((FULL, Model(name="b")), off, page, 0.0, Admission())
    assert ladders.by_model == {}
    ladders.configure((FULL,), POLICY, 0.0, Admission())
    assert list(ladders.by_model) == ["m"]
    assert gauge(page, LadderWord.STEP_NOW) == REPLICA
    ladders.configure((), POLICY, 0.0, Admission())
    assert gauge(page, LadderWord.STEP_NOW) == 0


def test_a_reload_keeps_answers_unless_they_were_kept_by_other_terms(page: Page) -> None:
    ladders = Ladders((FULL,), POLICY, page, 0.0, Admission())

    def kept() -> int:
        ladders.flush(1.0)
        return gauge(page, LadderWord.ENTRIES_NOW)

    answers = ladders.by_model["m"].answers
    assert answers is not None
    for key in (b"1", b"2"):
        answers.keep(key, Kept(b"HTTP/1.1 200 OK\r\n", b"x", 0.0, 100.0))
    assert kept() == 2
    ladders.configure((FULL,), LadderPolicy(failures=9), 0.0, Admission())
    assert kept() == 2
    ladders.configure((Model(name="m", cache=Cache(entries=1)),), POLICY, 0.0, Admission())
    assert kept() == 1
    tenants = Admission(tenant=Tenant(header="x-t"))
    by_admission, by_cache = Cache(entries=1), Cache(entries=1, tenant_header="x-t")
    for cache, admission in ((by_admission, tenants), (by_cache, tenants), (by_admission, Admission())):
        ladders.configure((Model(name="m", cache=cache),), POLICY, 0.0, admission)
        assert kept() == 0
        anew = ladders.by_model["m"].answers
        assert anew is not None
        anew.keep(b"1", Kept(b"HTTP/1.1 200 OK\r\n", b"x", 0.0, 100.0))
        assert kept() == 1


def test_what_is_too_old_is_let_go_and_clearing_names_a_model_or_all(page: Page) -> None:
    ladders = Ladders((FULL,), POLICY, page, 0.0, Admission())
    answers = ladders.by_model["m"].answers
    assert answers is not None
    answers.keep(b"1", Kept(b"h", b"x", 0.0, 5.0))
    answers.keep(b"2", Kept(b"h", b"x", 0.0, 50.0))
    ladders.flush(10.0)
    assert gauge(page, LadderWord.ENTRIES_NOW) == 1
    assert ladders.clear("b") == 0
    assert ladders.clear("m") == 1
    answers.keep(b"2", Kept(b"h", b"x", 10.0, 50.0))
    assert ladders.clear() == 1


def test_moves_are_counted_shown_and_logged_but_not_in_floods(page: Page, caplog: pytest.LogCaptureFixture) -> None:
    ladders = Ladders((FULL,), LadderPolicy(successes=1, hold_s=0.0), page, 0.0, Admission())
    model = ladders.by_model["m"]
    with caplog.at_level(logging.INFO, "warmroute.ladder"):
        model.failed("m", REPLICA, 10.0, "no_candidate", certain=True)
        assert ladders.degraded == 1
        assert (gauge(page, LadderWord.STEP_NOW), gauge(page, LadderWord.SINCE_MS_NOW)) == (FALLBACK, 10_000)
        for _ in range(5):
            model.succeeded("m", REPLICA, 10.5)
            model.failed("m", REPLICA, 10.5, "no_candidate", certain=True)
        model.succeeded("m", REPLICA, 12.0)
    assert ladders.degraded == 0
    assert gauge(page, LadderWord.STEP_NOW) == REPLICA
    assert [record.message for record in caplog.records] == ["ladder.down", "ladder.up"]


def test_each_route_has_its_own_place_and_the_lowest_is_shown(page: Page) -> None:
    ladders = Ladders((FULL,), POLICY, page, 0.0, Admission())
    model = ladders.by_model["m"]
    model.failed("m@2", REPLICA, 5.0, "no_candidate", certain=True)
    begun = [model.begin(place, 5.1, whole=True) for place in ("m@2", "m@1", "m", "m#0")]
    assert begun == [FALLBACK, REPLICA, REPLICA, REPLICA]
    model.failed("m#0", REPLICA, 6.0, "no_candidate", certain=True)
    model.failed("m#0", FALLBACK, 7.0, "no_candidate", certain=True)
    assert (gauge(page, LadderWord.STEP_NOW), gauge(page, LadderWord.SINCE_MS_NOW)) == (CACHE, 7_000)
    assert ladders.degraded == 1
    ladders.configure((Model(name="m", fallback=("b",)),), POLICY, 8.0, Admission())
    assert [model.begin(place, 8.0, whole=True) for place in ("m#0", "m")] == [REFUSE, REPLICA]
    assert [model.degraded(place) for place in ("m@2", "m#0", "m")] == [True, True, False]


def test_a_route_that_nobody_asks_for_begins_again(page: Page, caplog: pytest.LogCaptureFixture) -> None:
    ladders = Ladders((FULL,), LadderPolicy(hold_s=90.0), page, 0.0, Admission())
    model = ladders.by_model["m"]
    model.failed("m@2", REPLICA, 5.0, "no_candidate", certain=True)
    ladders.flush(90.0)
    assert model.begin("m@2", 90.0, whole=True) is FALLBACK
    ladders.flush(175.0)
    assert ladders.degraded == 1
    with caplog.at_level(logging.INFO, "warmroute.ladder"):
        ladders.flush(181.0)
    assert ladders.degraded == 0
    assert gauge(page, LadderWord.STEP_NOW) == REPLICA
    assert caplog.records[-1].message == "ladder.up"


def test_the_gauges_of_a_process_that_starts_again_begin_at_nothing(page: Page) -> None:
    Ladders((FULL,), POLICY, page, 7.0, Admission())
    page.begin(os.getpid(), 8.0)
    assert gauge(page, LadderWord.STEP_NOW) == gauge(page, LadderWord.SINCE_MS_NOW) == 0


# --- the second tier --------------------------------------------------------------------------------------------------


def test_the_longest_answers_fit_a_message() -> None:
    for message in (
        AnswerKept(b"k" * 32, b"h" * 536, b"b" * 65000, 1 << 40, 1 << 31, 10**7, 1 << 40),
        AnswerFound(1 << 62, b"h" * 536, b"b" * 65000, 1 << 40, 1 << 31),
        CacheCleared("m" * 128),
    ):
        data = encode(message)
        assert len(data) < MAX_MESSAGE_BYTES
        assert decode(data) == message


class Tier:
    """A second tier whose channel takes what it is told to take."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.now = 5.0
        self.takes = True
        self.sent: list[object] = []
        self.tier = SharedTier(self.loop, lambda: self.now, self.send)  # type: ignore[arg-type]
        self.heard: list[Kept | Refused | None] = []

    def send(self, message: object) -> bool:
        if self.takes:
            self.sent.append(message)
        return self.takes


@pytest.fixture
def rig() -> Iterator[Tier]:
    one = Tier()
    yield one
    one.loop.close()


TERMS = Terms(Cache(), Admission())
KEPT = Kept(b"HTTP/1.1 200 OK\r\n", b"x" * 100, 0.0, 60.0)


def test_fills_are_bounded_in_number_and_size(rig: Tier) -> None:
    assert not rig.tier.fill(SharedCache(max_entry_bytes=110 + 5), b"k", KEPT)
    assert rig.sent == []
    assert [rig.tier.fill(SharedCache(), b"k", KEPT) for _ in range(FILLS_PER_S + 1)] == [True] * FILLS_PER_S + [False]
    rig.now += 1.0
    assert rig.tier.fill(SharedCache(), b"k", KEPT)
    rig.takes = False
    assert not rig.tier.fill(SharedCache(), b"k", KEPT)


def test_a_question_is_answered_once_whatever_comes_after(rig: Tier) -> None:
    assert rig.tier.ask(SharedCache(), TERMS, b"k", rig.heard.append, kept_elsewhere)
    rig.tier.found(AnswerFound(1, KEPT.head, KEPT.body, 2_000, 3))
    rig.tier.found(AnswerFound(1, KEPT.head, KEPT.body, 2_000, 3))
    (found,) = rig.heard
    assert isinstance(found, Kept)
    assert (found.stored_at, found.ttl_s, found.age_s, found.body) == (3.0, 597.0, 3, KEPT.body)
    rig.tier.found(AnswerFound(99))


GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"


@pytest.mark.parametrize(
    ("why", "answer", "cache"),
    [
        (None, AnswerFound(1, GOOD, b"x", 599_000), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD, b"x", 600_000), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD, b"x", 4_000), Cache(ttl_s=4)),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD, b"x", 2_000, 3), Cache(ttl_s=4)),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Cache-Control: max-age=5\r\n", b"x", 5_000), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, bad=True), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Set-Cookie: a=b\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Vary: Origin\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Cache-Control: private\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"warmroute-degraded: no\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Content-Length: 0\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Transfer-Encoding: chunked\r\n", b"x"), Cache()),
        (Refused.ANSWER_CONTROL, AnswerFound(1, GOOD + b"Age: 1\r\n", b"x"), Cache()),
        (Refused.STREAM, AnswerFound(1, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", b"x"), Cache()),
        (Refused.STATUS, AnswerFound(1, b"HTTP/1.1 500 No\r\n", b"x"), Cache()),
        (Refused.STATUS, AnswerFound(1, b"HTTP/1.1 204 No Content\r\n", b"x"), Cache(statuses=(200, 204))),
        (Refused.STATUS, AnswerFound(1, b"HTTP/1.1 304 Not Modified\r\n", b"x"), Cache(statuses=(200, 304))),
        (None, AnswerFound(1, b"HTTP/1.1 500 No\r\n", b"x"), Cache(statuses=(200, 500), errors=True)),
        (Refused.SIZE, AnswerFound(1, GOOD, b"x" * 65536), Cache()),
        (Refused.SIZE, AnswerFound(1, GOOD, b"x" * 300), Cache(max_entry_bytes=256)),
    ],
)
def test_what_others_kept_is_held_to_the_terms_in_force_here(
    rig: Tier, why: Refused | None, answer: AnswerFound, cache: Cache
) -> None:
    assert rig.tier.ask(SharedCache(), Terms(cache, Admission()), b"k", rig.heard.append, kept_elsewhere)
    rig.tier.found(answer)
    (found,) = rig.heard
    assert (found if isinstance(found, Refused) else None) is why
    assert isinstance(found, Kept) is (why is None)


def test_questions_are_bounded_and_one_that_the_channel_does_not_take_is_none(rig: Tier) -> None:
    assert all(rig.tier.ask(SharedCache(), TERMS, b"k", rig.heard.append, kept_elsewhere) for _ in range(MOST_WAITING))
    assert not rig.tier.ask(SharedCache(), TERMS, b"k", rig.heard.append, kept_elsewhere)
    rig.tier.found(AnswerFound(1))
    rig.takes = False
    assert not rig.tier.ask(SharedCache(), TERMS, b"k", rig.heard.append, kept_elsewhere)
    assert rig.heard == [None]


def test_the_example_in_the_documentation_loads() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    head = 'version: 1\nlisteners: [{address: "127.0.0.1:8080"}]\n'
    models = parse_settings((head + example).encode(), "w.yaml").settings.models
    assert models[0].fallback == ("big@1", "small")
    assert models[0].static_answer is not None
