from __future__ import annotations

import asyncio

import pytest

from router.model import EndpointRecord
from router.wire import MAX_RECORD_BYTES, decode_fields, encode_fields, record_bytes
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.models import Models, UnknownModelError
from worker.replica import HeldReplica
from worker.store import ModelFiles


def held(name: str, version: str, *, warm: bool = False) -> HeldReplica:
    replica = HeldReplica(
        ModelFiles(name, version),
        FixedEngine(DoublingModel()),
        EmptyLoader(),
        ReadableLog(),
        lambda: 0.0,
        lambda: None,
    )
    if warm:
        asyncio.run(replica.bring_up())
    return replica


def test_a_request_without_a_version_gets_the_newest_that_is_warm() -> None:
    models = Models([held("m", "9", warm=True), held("m", "10"), held("m", "2", warm=True)])
    assert [replica.version for replica in models.of("m")] == ["10", "9", "2"]
    assert models.find("m").version == "9"
    asyncio.run(models.of("m")[0].bring_up())
    assert models.find("m").version == "10"
    models.of("m")[0].drain()
    assert models.find("m").version == "9", "one that drains comes behind one that is warm"
    for replica in models:
        replica.drain()
    assert models.find("m").version == "10"
    models.of("m")[0].take_down()
    assert models.find("m").version == "9", "one that still answers comes before one that does not"
    for replica in models:
        replica.take_down()
    assert models.find("m").version == "10"


def test_a_request_with_a_version_gets_it_warm_or_not() -> None:
    models = Models([held("m", "1", warm=True), held("m", "2")])
    assert models.find("m", "1").version == "1"
    assert models.find("m", "2").version == "2"


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("n", None, "model 'n' is not served here; served: a, m"),
        ("m", "3", "model 'm': version '3' is not served here; served: 2, 1"),
        ("m", "01", "model 'm': version '01' is not served here; served: 2, 1"),
    ],
)
def test_what_is_not_here_is_said(name: str, version: str | None, error: str) -> None:
    models = Models([held("m", "1"), held("m", "2"), held("a", "1")])
    with pytest.raises(UnknownModelError) as caught:
        models.find(name, version)
    assert str(caught.value) == error


def test_versions_come_and_go() -> None:
    models = Models()
    first, second = held("m", "1"), held("m", "2")
    models.put(first)
    models.put(held("a", "1"))
    models.put(second)
    assert list(models.names) == ["m", "a"]
    assert [(replica.name, replica.version) for replica in models] == [("m", "2"), ("m", "1"), ("a", "1")]
    with pytest.raises(ValueError, match="m@1 is there already"):
        models.put(held("m", "1"))
    models.remove(second)
    models.remove(second)
    assert models.of("m") == (first,)
    models.remove(first)
    assert list(models.names) == ["a"]
    assert models.of("m") == ()


def test_a_record_holds_what_fits_and_what_serves_comes_first() -> None:
    models = Models([held(f"m{number}-{'x' * 100}", "1") for number in range(500)])
    warm = held("warm", "1", warm=True)
    models.put(warm)
    told = models.reports()
    assert told[0] == warm.report()
    assert 200 < len(told) < 500
    record = EndpointRecord("w" * 128, "http://127.0.0.1:9001", "e" * 32, replicas=tuple(told))
    assert record_bytes(record) <= MAX_RECORD_BYTES
    assert decode_fields("w", encode_fields(record) | {"v": "1", "epoch": "e", "rev": "1"}).replicas == tuple(told)


def test_a_record_of_a_few_has_them_in_their_order() -> None:
    models = Models([held("m", "1"), held("m", "2", warm=True), held("a", "1")])
    assert [(one.model, one.version) for one in models.reports()] == [("m", "2"), ("m", "1"), ("a", "1")]
