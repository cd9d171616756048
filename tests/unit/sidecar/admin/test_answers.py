"""How answers that are made in turns are shared, given up, and kept for who reads them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import zlib
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiohttp import web

from sidecar.admin.answers import PIECE_BYTES, PLAIN_BYTES, Answers, Packed
from sidecar.admin.written import Rows, write
from tests.support.loops import in_loop, turns

if TYPE_CHECKING:
    from collections.abc import Iterator


class Transport:
    def is_closing(self) -> bool:
        return False


class Asked:
    """As much of a request as making its answer takes."""

    def __init__(self) -> None:
        self.transport: Transport | None = Transport()
        self.path = "/metrics"
        self.method = "GET"
        self.headers: dict[str, str] = {}


class Making:
    """Makes an answer, one turn whenever the test lets the loop go round; says what became of each."""

    def __init__(self, length: int = 5) -> None:
        self.begun = self.ended = self.given_up = 0
        self._length = length

    def __call__(self) -> Iterator[bytes | None]:
        self.begun += 1
        number = self.begun
        try:
            for _ in range(self._length):
                yield None
            yield b"answer %d" % number
            self.ended += 1
        except GeneratorExit:
            self.given_up += 1
            raise


class Desk:
    """Answers of which each turn is a slice of its own."""

    def __init__(self) -> None:
        self.answers = Answers(clock=itertools.count().__next__)

    def ask(self, make: Making, request: Asked | None = None, name: str = "page") -> asyncio.Task[web.StreamResponse]:
        asked = cast("Any", request or Asked())
        return asyncio.create_task(cast("Any", self.answers.answer(asked, name, make, {"Content-Type": "text/plain"})))

    def idle(self) -> bool:
        return not self.answers._next and not self.answers._under_way


async def text(task: asyncio.Task[web.StreamResponse]) -> str:
    response = await task
    assert isinstance(response, web.Response)
    assert response.text is not None
    return response.text


@in_loop
async def test_who_asks_together_gets_the_same_and_who_asks_later_the_next() -> None:
    desk, make = Desk(), Making()
    together = [desk.ask(make) for _ in range(3)]
    await turns(4)
    assert (make.begun, make.ended) == (1, 0)
    late = [desk.ask(make) for _ in range(2)]
    await turns(2)
    assert make.begun == 1  # one at a time
    assert [await text(one) for one in together] == ["answer 1"] * 3
    assert [await text(one) for one in late] == ["answer 2"] * 2
    assert (make.begun, make.ended) == (2, 2)
    assert desk.idle()


@in_loop
async def test_an_answer_takes_turns_with_everything_else() -> None:
    desk, make = Desk(), Making(length=50)
    task = desk.ask(make)
    await turns(30)
    assert make.begun == 1
    assert not task.done()
    assert await text(desk.ask(Making(length=2), name="another")) == "answer 1"
    assert not task.done()
    assert await text(task) == "answer 1"


@in_loop
async def test_nothing_is_made_for_clients_that_went_away() -> None:
    desk, make = Desk(), Making(length=1000)
    gone, stays = Asked(), Asked()
    one, other = desk.ask(make, gone), desk.ask(make, stays)
    await turns(5)
    gone.transport = None
    await turns(5)
    assert not one.done()  # the other one still waits
    stays.transport = None
    assert [(await task).status for task in (one, other)] == [499, 499]
    await turns(1)
    gc.collect()
    assert (make.begun, make.ended, make.given_up) == (1, 0, 1)
    assert desk.idle()


@in_loop
async def test_what_goes_wrong_is_told_to_all_and_ends_it() -> None:
    class Broken(Making):
        def __call__(self) -> Iterator[bytes | None]:
            yield None
            raise LookupError("broken")

    desk = Desk()
    tasks = [desk.ask(Broken()) for _ in range(2)]
    for task in tasks:
        with pytest.raises(LookupError, match="broken"):
            await task
    assert desk.idle()
    assert gc.isenabled()


@in_loop
async def test_the_collector_waits_while_answers_are_made() -> None:
    desk = Desk()
    one, other = desk.ask(Making(length=20), name="one"), desk.ask(Making(length=40), name="other")
    await turns(5)
    assert not gc.isenabled()
    await one
    assert not gc.isenabled()
    await other
    assert gc.isenabled()


def test_a_long_answer_is_kept_small_and_comes_again_in_pieces() -> None:
    pieces = [b"line %d\n" % number * 500 for number in range(400)]
    packed = Packed()
    for piece in pieces:
        packed.add(piece)
    packed.end()
    whole = b"".join(pieces)
    assert packed.plain_bytes == len(whole) > PLAIN_BYTES
    assert len(packed.packed) < len(whole) / 10
    for _ in range(2):  # each reader from the beginning
        plain = list(packed.pieces(packed=False))
        assert b"".join(plain) == whole
        assert max(map(len, plain)) <= PIECE_BYTES
    zipped = list(packed.pieces(packed=True))
    assert max(map(len, zipped)) <= PIECE_BYTES
    assert zlib.decompress(b"".join(zipped), 31) == whole


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"a": Rows(())}, '{\n  "a": []\n}\n'),
        ({"a": Rows((1, None, {"b": "x\ny"}))}, '{\n  "a": [\n    1,\n    {\n      "b": "x\\ny"\n    }\n  ]\n}\n'),
        (
            {"a": 1, "b": Rows(({"c": Rows([2])},)), "d": {}},
            '{\n  "a": 1,\n  "b": [\n    {\n      "c": [\n        2\n      ]\n    }\n  ],\n  "d": {}\n}\n',
        ),
        ({"a": {}}, '{\n  "a": {}\n}\n'),
    ],
)
def test_what_is_written_row_by_row_reads_as_if_it_were_written_at_once(document: Any, text: str) -> None:
    pieces = list(write(document))
    assert b"".join(filter(None, pieces)).decode() == text
    assert (None in pieces) is (isinstance(document["a"], Rows) and None in document["a"].members)
