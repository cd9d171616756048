"""Plans over one, two and four memory nodes, against every other division there is; and what this machine does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worker_parts import ReadableLog
from worker import numa
from worker.loading.mapping import Mapping
from worker.numa import Node, PlacementError, Placer, costs, plan, read_topology


def machine(*free: int, cpus: int = 2, remote: int = 21) -> tuple[Node, ...]:
    ids = range(len(free))
    return tuple(
        Node(
            id_,
            free[id_],
            frozenset(range(id_ * cpus, (id_ + 1) * cpus)),
            {other: 10 if other == id_ else remote + abs(other - id_) for other in ids},
        )
        for id_ in ids
    )


def every_division(pages: int, free: list[int]) -> Iterator[tuple[int, ...]]:
    for counts in itertools.product(*(range(min(pages, room) + 1) for room in free)):
        if sum(counts) == pages:
            yield counts


@pytest.mark.parametrize("nodes", [1, 2, 4])
@given(data=st.data())
def test_no_other_division_costs_less(nodes: int, data: st.DataObject) -> None:
    free = data.draw(st.lists(st.integers(0, 5), min_size=nodes, max_size=nodes))
    remote = data.draw(st.integers(10, 40))
    topology = machine(*free, remote=remote)
    cpus = data.draw(st.sets(st.integers(0, 2 * nodes - 1)))
    pages = data.draw(st.integers(0, sum(free)))
    found = plan(topology, pages, cpus)
    assert sum(found.pages.values()) == pages
    assert all(0 < count <= topology[id_].free_pages for id_, count in found.pages.items())
    each = costs(topology, cpus)
    least = min(sum(count * each[id_] for id_, count in enumerate(counts)) for counts in every_division(pages, free))
    assert found.cost == pytest.approx(least)


def test_pages_are_where_the_work_is_done_and_then_near_it() -> None:
    topology = machine(100, 100, 100, 100)
    assert plan(topology, 80, {4, 5}).pages == {2: 80}
    assert plan(topology, 150, {4, 5}).pages == {2: 100, 1: 50}
    assert plan(topology, 80, range(8)).pages in ({1: 80}, {2: 80})  # in the middle of all
    assert plan(topology, 80, {99}) == plan(topology, 80, range(8))  # nobody knows that processor


def test_of_nodes_that_cost_the_same_the_emptier_is_taken() -> None:
    assert plan(machine(10, 50), 20, range(4)).pages == {1: 20}


def test_more_than_is_free_is_refused() -> None:
    with pytest.raises(PlacementError, match="31 pages, and 30 are free on 2 nodes"):
        plan(machine(10, 20), 31, {0})


def write_node(root: Path, id_: int, free_kb: int, cpus: str, distances: str) -> None:
    place = root / f"node{id_}"
    place.mkdir(parents=True)
    (place / "meminfo").write_text(f"Node {id_} MemTotal:  8000 kB\nNode {id_} MemFree:   {free_kb} kB\n")
    (place / "cpulist").write_text(f"{cpus}\n")
    (place / "distance").write_text(f"{distances}\n")


def test_the_topology_is_read_from_sysfs(tmp_path: Path) -> None:
    write_node(tmp_path, 0, 4000, "0-2,8", "10 21")
    write_node(tmp_path, 2, 40, "", "21 10")
    (tmp_path / "power").mkdir()
    assert read_topology(tmp_path, 4096) == (
        Node(0, 1000, frozenset({0, 1, 2, 8}), {0: 10, 2: 21}),
        Node(2, 10, frozenset(), {0: 21, 2: 10}),
    )
    (tmp_path / "node2" / "distance").write_text("21\n")
    assert read_topology(tmp_path) == ()
    assert read_topology(tmp_path / "none") == ()


def test_where_there_is_one_node_that_is_told_once() -> None:
    log = ReadableLog()
    placer = Placer(log, machine(100))
    for _ in range(2):
        with placer.placing(4096) as found:
            assert found is None
    assert [event["reason"] for event in log.events("numa.degraded")] == ["this machine has one memory node"]
    with Placer(log, ()).placing(4096) as found:
        assert found is None
    with Placer(log, machine(0, 0)).placing(4096) as found:
        assert found is None
    reasons = [event["reason"] for event in log.events("numa.degraded")][1:]
    assert reasons == ["the system tells of no memory nodes", "1 pages, and 0 are free on 2 nodes"]


def test_what_the_kernel_refuses_is_told_and_loading_goes_on() -> None:
    log = ReadableLog()
    nowhere = tuple(Node(id_, 100, frozenset({0}), {500: 10, 501: 10}) for id_ in (500, 501))
    with Placer(log, nowhere).placing(4096) as found:
        assert found is None  # this machine has no such node
    (event,) = log.events("numa.degraded")
    assert event["reason"].startswith("set_mempolicy: ")


@pytest.mark.skipif(not numa.read_topology(), reason="the system tells of no memory nodes")
def test_pages_are_bound_and_locked_on_a_node_that_is_there(tmp_path: Path) -> None:
    log = ReadableLog()
    here = numa.read_topology()[0].id
    twice = tuple(
        Node(id_, 100 if id_ == here else 0, frozenset({0}), {here: 10, here + 1: 20}) for id_ in (here, here + 1)
    )
    path = tmp_path / "weights"
    path.write_bytes(bytes(50_000))
    mapping = Mapping(path)
    placer = Placer(log, twice)
    with placer.placing(50_000) as found:
        if found is None and log.events("numa.degraded"):
            pytest.skip(f"not here: {log.events('numa.degraded')}")
        assert found is not None
        assert found.pages == {here: 13}
        assert mapping.populate(0, 50_000)
    placer.hold([mapping], found)
    policies = Path("/proc/self/numa_maps")
    if policies.exists() and not log.events("numa.degraded"):
        (line,) = (line for line in policies.read_text().splitlines() if str(path) in line)
        assert f" bind:{here} " in line
    mapping.close()


@pytest.mark.parametrize(
    ("sizes", "pages", "wanted"),
    [
        ([3 * 4096], {0: 3}, [(0, 3 * 4096, 0)]),
        ([3 * 4096], {1: 2, 0: 1}, [(0, 2 * 4096, 1), (2 * 4096, 4096, 0)]),
        ([4096, 5000], {1: 2, 0: 1}, [(0, 4096, 1), (0, 4096, 1), (4096, 904, 0)]),
    ],
)
def test_mappings_are_divided_as_planned(
    sizes: list[int], pages: dict[int, int], wanted: list[tuple[int, int, int]]
) -> None:
    class Mapped:
        address = 0

        def __init__(self, size_bytes: int) -> None:
            self.size_bytes = size_bytes

    order = [(id_, count * 4096) for id_, count in pages.items()]
    assert [row for size in sizes for row in numa._ranges(Mapped(size), order)] == wanted  # type: ignore[arg-type]
