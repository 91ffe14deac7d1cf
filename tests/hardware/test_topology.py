"""Wiring of networks, and targets of several instances."""

from __future__ import annotations

import pytest

from neuronjax import hardware
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.collectives.placement import Placement
from tests.hardware.trn2_wiring import ENGINE_NEIGHBOURS, Z_ENGINES

WIRES = ENGINE_NEIGHBOURS


def test_the_wiring_of_trn2_is_the_torus():
    """Chip 4 row + column has its four neighbours, each on an S-engine of its own."""
    for chip, found in enumerate(WIRES):
        row, column = divmod(chip, 4)
        expected = {
            4 * ((row + 1) % 4) + column,
            4 * ((row - 1) % 4) + column,
            4 * row + (column + 1) % 4,
            4 * row + (column - 1) % 4,
        }
        assert set(found) == expected
        assert all(chip in WIRES[other] for other in found)


def test_wires_of_trn2_join_engines_by_direction():
    """Along a column the same S-engine at both ends, along a row the other of a die."""
    for chip, others in enumerate(WIRES):
        for engine, other in enumerate(others):
            end = WIRES[other].index(chip)
            is_row = chip // 4 == other // 4
            assert end == (engine ^ 1 if is_row else engine)


def test_z_links_share_the_engines():
    left, right = Z_ENGINES.values()
    assert sorted((*left, *right)) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["trn3-switch-4x16", "trn3-switch-36x4"])
def test_racks_divide_the_servers(name):
    topology = hardware.TOPOLOGIES[name]
    assert topology.racks == 2
    assert topology.shape[0] % topology.racks == 0
    assert [link.axis for link in topology.links] == [0, 0, 1]


def test_several_instances():
    one, four = map(hardware.resolve_target, ("trn2.48xlarge", "trn2.48xlarge:4"))
    assert (four.name, four.instances) == ("trn2.48xlarge:4", 4)
    assert four.chips == 4 * one.chips == 64
    assert four.logical_cores() == 256
    assert four.logical_cores(1) == 512
    assert four.topology is one.topology
    assert hardware.resolve_target("trn2.48xlarge:1") is one
    assert hardware.resolve_target("u-trn2x64:2").name == "trn2-ultraserver:2"


def test_devices_of_several_instances_lie_on_several_nodes():
    placement = Placement.of(hardware.resolve_target("trn2.48xlarge:4"))
    group = placement.group(range(256))
    assert [len(ranks) for ranks in group.by_node] == [64] * 4
    assert len(group.by_chip) == 64


@pytest.mark.parametrize("count", ["0", "", "x", "-1", "4:4", "1.5", "²"])
def test_a_number_of_instances_that_is_none(count):
    with pytest.raises(InvalidProgramError, match=r"write for example 'trn2\.48xl"):
        hardware.resolve_target(f"trn2.48xlarge:{count}")


@pytest.mark.parametrize("name", ["trn2:2", "inf2.48xlarge:2", "trn2.3xlarge:8"])
def test_instances_without_a_published_network_are_refused(name):
    with pytest.raises(InvalidProgramError, match="no published network"):
        hardware.resolve_target(name)


def test_an_unknown_target_with_a_number_names_the_nearest():
    with pytest.raises(InvalidProgramError, match=r"did you mean 'trn2\.48xlarge'"):
        hardware.resolve_target("trn2.48xlarg:4")


def test_efa_of_a_rank():
    """50 Gb/s for a rank of trn2.48xlarge, 25 at LNC 1 (collectives.rst)."""
    instance = hardware.INSTANCES["trn2.48xlarge"]
    target = hardware.resolve_target("trn2.48xlarge")
    for lnc, gigabits in ((2, 50), (1, 25)):
        assert instance.efa_bits_per_second == gigabits * 1e9 * target.logical_cores(
            lnc
        )
