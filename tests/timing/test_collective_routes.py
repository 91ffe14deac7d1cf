"""Wires between chips: shortest ways, both ways round, switches, closed paths."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from neuronjax.hardware import TOPOLOGIES, resolve_target
from neuronjax.ir.collectives.placement import Placement
from neuronjax.timing.routes import channels, routes_of
from tests.hardware.trn2_wiring import ENGINE_NEIGHBOURS

TORI = [t for t in TOPOLOGIES.values() if t.kind in ("torus", "ring", "chain")]


def distances(start, neighbours):
    """By breadth-first search: an oracle that knows no axes."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        chip = waiting.popleft()
        for other in neighbours[chip]:
            if other not in found:
                found[other] = found[chip] + 1
                waiting.append(other)
    return found


def test_hops_on_trn2_are_those_of_its_wiring():
    routes = routes_of(TOPOLOGIES["trn2-torus-4x4"])
    for start in range(16):
        expected = distances(start, ENGINE_NEIGHBOURS)
        for end in range(16):
            hops = sum(part for _, part in routes.between(start, end))
            assert hops == pytest.approx(expected[end])


def test_mean_and_diameter():
    routes = routes_of(TOPOLOGIES["trn2-torus-4x4x4"])
    hops = [sum(p for _, p in routes.between(0, end)) for end in range(1, 64)]
    assert max(hops) == 6
    assert sum(hops) / 63 == pytest.approx(3.048, abs=1e-3)


@pytest.mark.parametrize("topology", TORI, ids=lambda t: t.name)
def test_a_message_arrives_whole(topology):
    """What enters a chip leaves it, but for source and destination."""
    routes = routes_of(topology)
    last = len(list(itertools.product(*map(range, topology.shape)))) - 1
    for start, end in ((0, last), (last, 0), (1, last // 2)):
        out = sum(p for (chip, _, _), p in routes.between(start, end) if chip == start)
        assert out == pytest.approx(1.0 if start != end else 0.0)


def test_opposite_chips_use_both_ways():
    routes = routes_of(TOPOLOGIES["inf2-ring-12"])
    parts = {part for _, part in routes.between(0, 6)}
    assert parts == {0.5}
    assert len(routes.between(0, 6)) == 12


@pytest.mark.parametrize(
    ("ends", "links"),
    [
        ((0, 1), [2, 2]),  # chips of one server
        ((0, 16), [0, 0]),  # servers of one rack
        ((0, 32), [1, 1]),  # the same place in the other rack
        ((0, 49), [1, 1, 0, 0]),  # another place there
        ((5, 5), []),
    ],
)
def test_a_switch(ends, links):
    routes = routes_of(TOPOLOGIES["trn3-switch-4x16"])
    assert [wire[1] for wire, _ in routes.between(*ends)] == links


def test_rates():
    torus = routes_of(TOPOLOGIES["trn2-torus-4x4x4"])
    assert torus.bytes_per_second((0, 0, 1)) == 64e9
    assert torus.bytes_per_second((0, 1, 1)) == 128e9
    switch = routes_of(TOPOLOGIES["trn3-switch-36x4"])
    assert switch.bytes_per_second((0, 0, 1)) == 320e9
    assert switch.bytes_per_second((0, 2, -1)) == 256e9


def paths_of(target, chips):
    machine = resolve_target(target)
    per_chip = machine.logical_cores() // machine.chips
    group = Placement.of(machine).group([chip * per_chip for chip in chips])
    return channels(machine.topology, group)


@pytest.mark.parametrize(
    ("target", "chips", "count"),
    [
        ("trn2.48xlarge", range(16), 4),
        ("trn1.32xlarge", range(16), 4),
        ("trn2-ultraserver", range(64), 4),
        ("trn2-ultraserver", range(16, 32), 4),
        ("trn2.48xlarge", range(8), 2),
        ("trn2.48xlarge", (0, 1, 4, 5), 2),
        ("trn1.32xlarge", range(4), 2),
        ("inf2.48xlarge", range(12), 2),
    ],
)
def test_channels_are_closed_paths_without_a_wire_in_common(target, chips, count):
    paths = paths_of(target, chips)
    routes = routes_of(resolve_target(target).topology)
    assert len(paths) == count
    used = []
    for path in paths:
        assert sorted(path) == sorted(chips)
        for a, b in zip(path, (*path[1:], path[0]), strict=True):
            (wire, part), *others = routes.between(a, b)
            assert part == 1.0
            assert not others
            used.append(wire)
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("chips", [range(15), (0, 5, 10), (0, 1, 2, 3, 4), (3, 7)])
def test_where_there_is_no_closed_path_the_listed_order_is_taken(chips):
    path, back = paths_of("trn2.48xlarge", chips)
    assert path == tuple(chips)
    assert back == path[::-1]


def test_one_chip_has_no_channel():
    assert paths_of("trn2.48xlarge", [3]) == ()
