"""Kept answers and versions: whose answer is told follows whom a request would be asked of now."""

from __future__ import annotations

import time

import pytest

from router.model import EndpointRecord, EndpointSeen, Replica
from router.policy import ModelPolicy, ServePolicy, ServeRule, VersionShare
from sidecar.settings import Cache, Model
from tests.support.data_path import DataPath, on_data_path
from tests.support.degrading import SLOW, infer
from tests.support.wires import OriginConnection, answer, post

ANY = ServePolicy()
LATEST = ServePolicy(ServeRule.LATEST)
FIRST, SECOND = [ServePolicy(ServeRule.PINNED, version) for version in ("1", "2")]
SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 0), VersionShare("2", 1)))
OTHER_SPLIT = ServePolicy(ServeRule.SPLIT, shares=(VersionShare("1", 1), VersionShare("2", 0)))


def says_its(version: bytes) -> object:
    async def script(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            await origin.send(answer(b"v" + version))

    return script


def serve(path: DataPath, policy: ServePolicy) -> None:
    path.cluster.configure(SLOW, (ModelPolicy("m", serve=policy),), time.monotonic())


def offers(path: DataPath, name: str, *replicas: Replica) -> None:
    record = EndpointRecord(name, path.cluster.endpoints[name].record.address, replicas=replicas, static=True)
    path.cluster.apply(EndpointSeen(record, time.monotonic()), time.monotonic())


def with_versions(scenario: object) -> None:
    on_data_path(
        says_its(b"1"),  # type: ignore[arg-type]
        says_its(b"2"),  # type: ignore[arg-type]
        models=(ModelPolicy("m"),),
        held=((Replica("m", "1"),), (Replica("m", "2"),)),
        ladders=(Model(name="m", cache=Cache()),),
        policies=SLOW,
    )(scenario)()  # type: ignore[arg-type]


async def check_is_told(path: DataPath, body: bytes | None) -> None:
    """Have all workers gone, and see whose kept answer a request is told."""
    for origin in path.origins:
        await origin.stop()
    client = await path.connect()
    for _ in range(3):
        told = await infer(client)
        if body is None:
            assert told.status == 503
        else:
            assert (told.body, told.value(b"warmroute-degraded")) == (body, b"cache")


@pytest.mark.parametrize(
    ("rules", "body"),
    [
        ((FIRST, SECOND), b"v2"),
        ((SECOND, FIRST), b"v1"),  # what a version said that was gone back from is never heard again
        ((SPLIT, SECOND), b"v2"),
        ((SECOND, SPLIT), b"v2"),
        ((SPLIT, OTHER_SPLIT), b"v1"),
        ((FIRST, LATEST), b"v2"),
        ((LATEST, FIRST), b"v1"),
    ],
)
def test_an_answer_is_told_where_its_version_would_be_asked(rules: tuple[ServePolicy, ...], body: bytes) -> None:
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        for rule in rules:
            serve(path, rule)
            assert (await infer(client)).status == 200
        await check_is_told(path, body)

    with_versions(scenario)


@pytest.mark.parametrize(("before", "after"), [(SECOND, FIRST), (SPLIT, OTHER_SPLIT), (SPLIT, FIRST), (LATEST, FIRST)])
def test_what_another_version_answered_is_told_nobody(before: ServePolicy, after: ServePolicy) -> None:
    async def scenario(path: DataPath) -> None:
        serve(path, before)
        assert (await infer(await path.connect())).body == b"v2"
        serve(path, after)
        await check_is_told(path, None)

    with_versions(scenario)


def test_who_names_a_version_is_told_what_it_answered_to_others() -> None:
    async def scenario(path: DataPath) -> None:
        serve(path, FIRST)
        client = await path.connect()
        assert (await infer(client)).body == b"v1"
        await check_is_told(path, b"v1")
        for version, status in ((b"1", 503), (b"2", 503)):  # the path is part of the key
            assert (await client.ask(post(b"{}", target=b"/v2/models/m/versions/%s/infer" % version))).status == status

    with_versions(scenario)


def test_under_latest_the_version_that_took_over_counts_and_not_one_that_was_withdrawn() -> None:
    async def scenario(path: DataPath) -> None:
        serve(path, LATEST)
        client = await path.connect()
        assert (await infer(client)).body == b"v2"
        offers(path, "o1", Replica("m", "0"))
        assert (await infer(client)).body == b"v1"
        await check_is_told(path, b"v1")

    with_versions(scenario)


def test_where_any_version_may_answer_so_may_any_that_is_there() -> None:
    async def scenario(path: DataPath) -> None:
        serve(path, FIRST)
        client = await path.connect()
        assert (await infer(client)).body == b"v1"
        serve(path, ANY)
        await check_is_told(path, b"v1")

    with_versions(scenario)
