from __future__ import annotations

import threading

from tests.support.worker_parts import DoublingModel
from worker.copies import LoadedCopy
from worker.loading import Loaded
from worker.stages import Stages
from worker.store import ModelFiles


def test_it_is_unused_when_the_last_use_has_ended_and_told_so_once() -> None:
    copy, told = LoadedCopy(ModelFiles("m", "1"), DoublingModel(), Loaded("", 0), Stages()), []
    assert copy.take()
    assert copy.take()
    copy.give_back()
    copy.retire(lambda: told.append("unused"))
    assert not copy.take()
    assert told == []
    copy.give_back()
    assert told == ["unused"]


def test_one_who_uses_it_may_have_it_run_though_it_is_retired() -> None:
    copy, told = LoadedCopy(ModelFiles("m", "1"), DoublingModel(), Loaded("", 0), Stages()), []
    assert not copy.take_along()
    assert copy.take()
    copy.retire(lambda: told.append("unused"))
    assert copy.take_along()
    copy.give_back()
    assert told == []
    copy.give_back()
    assert told == ["unused"]
    assert not copy.take_along()


def test_one_that_nobody_uses_is_unused_at_once() -> None:
    copy, told = LoadedCopy(ModelFiles("m", "1"), DoublingModel(), Loaded("", 0), Stages()), []
    assert copy.take()
    copy.give_back()
    copy.retire(lambda: told.append("unused"))
    assert told == ["unused"]


def test_many_threads_take_it_and_none_has_it_after_it_is_unused() -> None:
    copy = LoadedCopy(ModelFiles("m", "1"), DoublingModel(), Loaded("", 0), Stages())
    unused = threading.Event()
    wrong: list[str] = []
    start = threading.Barrier(5)

    def use() -> None:
        start.wait(10)
        while copy.take():
            if unused.is_set():
                wrong.append("in use after it was unused")
            copy.give_back()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait(10)
    copy.retire(unused.set)
    for thread in threads:
        thread.join(10)
    assert unused.is_set()
    assert (copy.users, wrong) == (0, [])


def test_its_first_run_is_told_from_others() -> None:
    copy = LoadedCopy(ModelFiles("m", "1"), DoublingModel(), Loaded("", 0), Stages())
    assert [copy.first_run() for _ in range(3)] == [True, False, False]
