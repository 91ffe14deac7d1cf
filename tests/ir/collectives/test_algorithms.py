"""Algorithms: the roundings that follow from the documents, and where each is legal."""

from __future__ import annotations

import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.algorithms import (
    ALGORITHMS,
    ALL_REDUCE,
    REDUCE_SCATTER,
    fold_plan,
    legal_algorithms,
)
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.fold_plan import Stage

TRN2 = Placement.of(resolve_target("trn2.48xlarge"))
TRN1 = Placement.of(resolve_target("trn1.32xlarge"))
MORE_CHANNELS = ("ring:3", "ring:4")


def legal(placement, devices, op=ALL_REDUCE):
    return legal_algorithms(op, placement.group(devices))


def plan(name, placement, devices, op=ALL_REDUCE):
    return fold_plan(name, op, placement.group(devices))


@pytest.mark.parametrize(
    ("name", "roundings"),
    [
        ("ring", 63),
        ("kangaring", 32),
        ("rdh", 5),
        ("mesh", 2),
        ("single_step_mesh", 1),
        ("left_fold", 1),
    ],
)
def test_roundings_of_64_ranks_on_16_chips(name, roundings):
    found = plan(name, TRN2, range(64))
    assert found.algorithm == name
    assert found.ranks == 64
    assert found.roundings == roundings


@pytest.mark.parametrize(
    ("name", "roundings"), [("ring", 31), ("kangaring", 16), ("rdh", 5), ("mesh", 2)]
)
def test_roundings_of_32_ranks_on_16_chips(name, roundings):
    assert plan(name, TRN1, range(32)).roundings == roundings


def test_stages():
    assert plan("rdh", TRN2, range(64)).stages == (Stage(4, 4), *[Stage(2, 2)] * 4)
    assert plan("mesh", TRN2, range(64)).stages == (Stage(4, 4), Stage(16, 16))
    assert plan("rdh", TRN2, range(0, 64, 4)).stages == (Stage(2, 2),) * 4
    assert plan("mesh", TRN2, range(4)).stages == (Stage(4, 4),)


def test_rdh_pairs_chips_by_the_highest_bit_first():
    (order,) = plan("rdh", TRN2, range(16)).order
    assert order == (*range(0, 4), *range(8, 12), *range(4, 8), *range(12, 16))


def test_over_nodes_rdh_pairs_by_the_lowest_bit_first():
    (order,) = plan("rdh", TRN2, range(0, 512, 64)).order
    assert order == tuple(range(8))


def test_kangaring_gathers_the_ranks_of_a_chip():
    listed = [0, 4, 1, 5, 2, 6, 3, 7]  # the group alternates between two chips
    found = plan("kangaring", TRN2, listed)
    devices = [listed[r] for r in found.order_of(0)]  # device 0: pair (0, 1)
    assert devices == [2, 3, 4, 5, 6, 7, 0, 1]


def test_the_cycles_of_kangaring_swap_the_roles():
    found = plan("kangaring", TRN2, range(64))
    assert found.channels == 2
    for owner in (0, 1, 37):
        first, second = (found.order_of(owner, channel) for channel in (0, 1))
        pairs = [order[k : k + 2] for order in (first, second) for k in (0, 2, 62)]
        assert all(abs(p - s) == 1 for p, s in pairs)
        assert [p % 2 for p, _ in pairs] == [0, 0, 0, 1, 1, 1]
        assert owner in first[-2:]
        assert owner in second[-2:]


def chips_of(order, ranks_per_chip=4):
    """The chips along a path, each once."""
    return [r // ranks_per_chip for r in order[::ranks_per_chip]]


def wires(chips):
    """From chip to chip along a closed path."""
    return set(zip(chips, [*chips[1:], chips[0]], strict=True))


@pytest.mark.parametrize(("placement", "ranks"), [(TRN2, 64), (TRN1, 32)])
def test_channels_of_a_torus_share_no_wire(placement, ranks):
    found = plan("ring:4", placement, range(ranks))
    assert (found.channels, found.chunks) == (4, 4 * ranks)
    assert found.roundings == ranks - 1
    # The chunk of a chip's last rank starts at the first of the next chip.
    last = {channel: found.order_of(0, channel)[-1] for channel in range(4)}
    assert set(last.values()) == {0}
    used: list[tuple[int, int]] = []
    for channel in range(4):
        path = found.order_of(0, channel)
        chips = list(dict.fromkeys(r * 16 // ranks for r in path))
        assert len(chips) == 16
        for a, b in wires(chips):
            across = (a // 4 - b // 4) % 4, (a - b) % 4
            assert across in {(0, 1), (0, 3), (1, 0), (3, 0)}
        used += wires(chips)
    assert len(set(used)) == len(used) == 4 * 16


def test_an_instance_of_an_ultraserver_is_a_torus():
    server = Placement.of(resolve_target("trn2-ultraserver"))
    assert "ring:4" in legal(server, range(64, 128))
    assert "ring:4" not in legal(server, range(256))
    assert "ring:4" not in legal(server, range(32, 96))  # halves of two


def test_a_ring_of_some_chips_goes_there_and_back():
    found = plan("ring:2", TRN2, range(8))
    assert found.order_of(3, 0) == (4, 5, 6, 7, 0, 1, 2, 3)
    assert found.order_of(3, 1) == (2, 1, 0, 7, 6, 5, 4, 3)
    with pytest.raises(InvalidProgramError, match="2 channels are possible"):
        plan("ring:3", TRN2, range(8))


@pytest.mark.parametrize(
    ("devices", "missing"),
    [
        (range(64), ()),
        (range(12), (*MORE_CHANNELS, "rdh")),  # three chips
        (range(0, 64, 4), ("kangaring",)),  # one rank per chip
        (range(0, 64, 2), ("kangaring",)),  # two of four
        (range(6), (*MORE_CHANNELS, "kangaring", "rdh", "mesh")),  # 4 + 2
    ],
)
def test_legal_within_a_node(devices, missing):
    rest = ("kangaring", "rdh", "mesh", "single_step_mesh", "left_fold")
    flat = ("ring", "ring:2", "ring:3", "ring:4", *rest)
    assert legal(TRN2, devices) == tuple(n for n in flat if n not in missing)


def test_legal_over_nodes():
    assert legal(TRN2, range(0, 256, 64)) == (
        "ring",
        "ring:2",
        "rdh",
        "mesh",
        "single_step_mesh",
        "left_fold",
    )
    found = legal(TRN2, range(128))
    assert found[:4] == ("ring", "ring:2", "single_step_mesh", "left_fold")
    assert len(found) == 4 + 4 * 4
    assert "kangaring+rdh" in found


def test_pairs_need_symmetric_groups():
    assert "mesh+mesh" in legal(TRN2, [0, 1, 64, 65])
    for asymmetric in ([0, 1, 64, 66], [0, 1, 2, 64]):
        # Left fold is no algorithm of the vendor's.
        assert legal(TRN2, asymmetric) == ("left_fold",)
    with pytest.raises(InvalidProgramError, match="different logical cores"):
        plan("ring", TRN2, [0, 1, 64, 66])


def test_a_pair_runs_within_nodes_and_then_over_them():
    found = plan("kangaring+rdh", TRN2, range(256))
    assert found.stages == (Stage(64, 2), Stage(2, 2), Stage(2, 2))
    assert (found.chunks, found.channels) == (2 * 256, 2)
    # Chunk 70 belongs to core 6 of node 1: it starts behind the pair (6, 7), which is
    # chip 1's last, and the first cycle goes from chip 1 to chip 0.
    assert found.order_of(70)[:4] == (0, 1, 2, 3)
    assert found.order_of(70)[62:66] == (6, 7, 64, 65)


def test_only_all_reduce_is_single_step():
    assert "single_step_mesh" not in legal(TRN2, range(8), REDUCE_SCATTER)
    assert "mesh+single_step_mesh" not in legal(TRN2, range(128), REDUCE_SCATTER)


def test_kangaring_has_at_most_256_ranks():
    server = Placement.of(resolve_target("trn2-ultraserver"))
    assert "kangaring" in legal(server, range(256))
    single = Placement.of(resolve_target("trn2-ultraserver"), lnc=1)
    assert "kangaring" not in legal(single, range(512))


def test_the_refusal_says_why():
    with pytest.raises(InvalidProgramError, match=r"3 chips.*power of two") as caught:
        plan("rdh", TRN2, range(12))
    assert "kangaring" in str(caught.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_rank_has_nothing_to_do(name):
    assert plan(name, TRN2, [5]).stages == ()


@pytest.mark.parametrize(
    ("target", "lnc", "ranks_per_chip", "chips_per_node"),
    [
        ("trn1.32xlarge", None, 2, 16),
        ("trn1", None, 2, 16),
        ("trn2", None, 4, 16),
        ("trn2.48xlarge", 1, 8, 16),
        ("trn2-ultraserver", None, 4, 64),
        ("trn2.48xlarge:4", None, 4, 16),
        ("inf2", None, 2, 12),
        ("trn3", None, 4, 16),
        ("trn3-ultraserver-gen2", None, 4, 144),
    ],
)
def test_placement(target, lnc, ranks_per_chip, chips_per_node):
    found = Placement.of(resolve_target(target), lnc=lnc)
    assert found.ranks_per_chip == ranks_per_chip
    assert found.chips_per_node == chips_per_node


def test_devices_placed_elsewhere():
    cores = [4 * k for k in range(16)]
    found = Placement.of(resolve_target("trn2.48xlarge"), cores=cores)
    assert "kangaring" not in legal(found, range(16))
    assert plan("rdh", found, range(16)).stages == (Stage(2, 2),) * 4
    with pytest.raises(InvalidProgramError, match="logical core"):
        Placement.of(resolve_target("trn2"), cores=[0, 0])
    with pytest.raises(InvalidProgramError, match="device 16"):
        found.group([15, 16])
