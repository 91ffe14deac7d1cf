"""The time of collectives: by hand, against measurements, and what always holds."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.algorithms import ALGORITHMS, legal_algorithms
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import select
from neuronjax.timing.assumptions import (
    CHANNEL_SHARE,
    COLLECTIVE_CONSTANTS,
    EFA_SHARE,
    LINK_SHARE,
    LINK_START,
    NULL_EXECUTION,
    SLICE_BYTES,
)
from neuronjax.timing.collective_steps import steps_of, steps_over_nodes
from neuronjax.timing.collectives import (
    OPS,
    barrier_seconds,
    bus_factor,
    collective_time,
    launch_seconds,
    priced,
    queued_launch_seconds,
    time_over_nodes,
)
from neuronjax.timing.network import network_of
from neuronjax.timing.work import Core

KIB, MIB, GIB = 2**10, 2**20, 2**30
TRN1, TRN2 = map(resolve_target, ("trn1.32xlarge", "trn2.48xlarge"))
FOUR = resolve_target("trn2.48xlarge:4")
LINK1, LINK2 = 48e9 * LINK_SHARE.value, 128e9 * LINK_SHARE.value


def transfer(op, size, groups, target, algorithm, network=None):
    found = collective_time(
        op, size, groups, target, algorithm=algorithm, network=network
    )
    return found.transfer_seconds


def wide(target):
    """The network with DMA engines so fast that links decide."""
    return dataclasses.replace(network_of(target), dma_bytes_per_second=1e16)


# -- by hand ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "algorithm", "ranks", "bytes_per_wire"),
    [
        # Two channels over four chips; 7 of 8 chunks pass every boundary, twice.
        ("all_reduce", "ring", 8, 2 * 7 / 8 / 2),
        ("all_gather", "ring", 8, 7 / 8 / 2),
        # Four channels over 16 chips.
        ("all_reduce", "ring", 32, 2 * 31 / 32 / 4),
        ("all_reduce", "ring:1", 32, None),
        ("reduce_scatter", "ring:2", 32, 31 / 32 / 2),
        # Two chunks a step and pair, three steps over four chips, two channels.
        ("all_gather", "kangaring", 8, 3 * 2 / 8 / 2),
        # Of 4 chips in a ring, each sends 2 x 2 chunks to 3 others over 4/3 hops.
        ("reduce_scatter", "mesh", 8, 2 * 2 / 8 * 3 * 4 / 3 / 2),
        ("all_to_all", "mesh", 8, 2 * 2 / 8 * 3 * 4 / 3 / 2),
        # 15 others over 32/15 hops, four wires.
        ("all_gather", "mesh", 32, 2 * 2 / 32 * 32 / 4),
        # Half of a rank's half, then half of that: each on a wire of its own.
        ("all_gather", "rdh", 8, 1 / 4 + 1 / 8),
    ],
)
def test_bytes_over_the_busiest_wire(op, algorithm, ranks, bytes_per_wire):
    if bytes_per_wire is None:
        with pytest.raises(InvalidProgramError):
            transfer(op, MIB, [range(ranks)], TRN1, algorithm)
        return
    found = collective_time(
        op, MIB, [range(ranks)], TRN1, algorithm=algorithm, network=wide(TRN1)
    )
    expected = MIB * bytes_per_wire / LINK1
    assert found.transfer_seconds == pytest.approx(expected, rel=1e-3)


def test_mesh_of_trn2_sends_once_per_chip():
    """16 chips: 4 chunks of 64 to 15 others over 32 hops in all and four wires; what
    the ranks of a chip need is added or copied there."""
    found = collective_time(
        "all_gather",
        MIB,
        [range(64)],
        TRN2,
        algorithm="mesh",
        network=wide(TRN2),
    )
    expected = MIB * 4 / 64 * 32 / 4 / LINK2
    assert found.transfer_seconds == pytest.approx(expected, rel=1e-3)


def test_two_ranks_of_a_chip():
    """One reads both halves and adds, then gets the other: 1.5 times the bytes."""
    rate = 2 * 16 * 17e9 * CHANNEL_SHARE.value
    seconds = transfer("all_reduce", MIB, [[0, 1]], TRN1, "mesh")
    assert seconds == pytest.approx(1.5 * MIB / rate)


def test_efa_of_one_rank():
    """Ring over four instances, one rank on each: 3/4 of the bytes at the 200 Gb/s of
    an interface, which it has to itself."""
    found = collective_time(
        "all_gather", GIB, [[0, 64, 128, 192]], FOUR, algorithm="ring"
    )
    rate = 200e9 / 8 * EFA_SHARE.value
    assert found.transfer_seconds == pytest.approx(0.75 * GIB / rate)
    assert found.latency_seconds == pytest.approx(3 * 15e-6 + LINK_START.value)
    assert found.bottleneck == "efa"
    assert found.bytes_per_rank == pytest.approx(0.75 * GIB)


def test_ranks_share_the_interface_of_their_chips():
    """50 Gb/s each [CC] where all four of a chip send; of trn1 four on two chips do."""
    one = transfer("all_gather", GIB, [(0, 64)], FOUR, "ring")
    chip = [(n, 64 + n) for n in range(4)]
    assert transfer("all_gather", GIB, chip, FOUR, "ring") == pytest.approx(4 * one)
    other = [(0, 64), (4, 68)]
    assert transfer("all_gather", GIB, other, FOUR, "ring") == pytest.approx(one)
    trn1 = resolve_target("trn1.32xlarge:2")
    one = transfer("all_gather", GIB, [(0, 32)], trn1, "ring")
    assert one == pytest.approx(0.5 * GIB / (100e9 / 8 * EFA_SHARE.value))
    pair, far = ([(0, 32), (n, 32 + n)] for n in (2, 4))
    assert transfer("all_gather", GIB, pair, trn1, "ring") == pytest.approx(2 * one)
    assert transfer("all_gather", GIB, far, trn1, "ring") == pytest.approx(one)


def test_a_group_that_fills_its_node_has_four_channels():
    """Of 32 ranks each adds 47 chunks and copies 32 by kangaring; 8 have two."""
    links = dataclasses.replace(network_of(TRN1), link_share=1e9)
    rate = 16 * 17e9 * CHANNEL_SHARE.value
    for ranks, channels, copied in ((32, 4, 79 / 32), (8, 2, 19 / 8)):
        found = collective_time(
            "all_reduce",
            GIB,
            [range(ranks)],
            TRN1,
            algorithm="kangaring",
            network=links,
        )
        expected = GIB * copied / (channels * rate)
        assert found.transfer_seconds == pytest.approx(expected, rel=1e-3)


def test_slices_pass_the_steps_of_rdh_side_by_side():
    """On 8 ranks the DMA engines have most to do, 3 times the bytes; the wires 3/4. The
    first slice waits for all of its steps."""
    slice_, rate = SLICE_BYTES.value, 2 * 16 * 17e9 * CHANNEL_SHARE.value
    one, two, many = (
        transfer("all_reduce", n * slice_, [range(8)], TRN1, "rdh") for n in (1, 2, 33)
    )
    assert two - one == pytest.approx(3 * slice_ / rate, rel=1e-3)
    assert many - one == pytest.approx(32 * (two - one), rel=1e-3)
    assert one == pytest.approx(slice_ * (3 / 4 / LINK1 + 1.5 / rate), rel=1e-3)


def test_a_permute_of_neighbours():
    found = collective_time("collective_permute", GIB, [(0, 4), (4, 0)], TRN2)
    assert found.steps == 1
    assert found.transfer_seconds == pytest.approx(GIB / LINK2)
    assert found.bottleneck == "link"


def test_a_broadcast_is_an_all_gather():
    """compiler 2.29: of as many tensors as there are ranks."""
    broadcast = collective_time("collective_broadcast", MIB, [range(64)], TRN2)
    gather = collective_time("all_gather", 64 * MIB, [range(64)], TRN2)
    assert broadcast.seconds == gather.seconds
    assert broadcast.algbw_bytes_per_second == MIB / broadcast.seconds


def test_one_rank_and_nothing():
    alone = collective_time("all_reduce", MIB, [[3]], TRN2)
    assert (alone.seconds, alone.steps, alone.busbw_bytes_per_second) == (0, 0, 0)
    assert collective_time("collective_permute", MIB, [], TRN2).seconds == 0


# -- executions ------------------------------------------------------------------------


def test_cost_is_per_execution():
    """T16: 12 all-reduces take no longer than one, more ranks do."""
    for target, ranks in ((TRN2, (4, 8, 16, 32, 64)), (TRN1, (8, 16, 32))):
        each = collective_time("all_reduce", 32 * KIB, [range(64)], TRN2).seconds
        one, twelve = (
            [t + queued_launch_seconds(target, n, t) for n in ranks]
            for t in (each, 12 * each)
        )
        assert one == twelve == sorted(one)
        assert one[0] > 0.9e-3


def test_a_launch_passes_while_the_last_one_runs():
    """T16: twelve exchanges of 8 MB on 32 ranks of trn1 take 4.7 ms, one 5.3."""
    each = collective_time("all_reduce", 8e6, [range(32)], TRN1).seconds
    one, twelve = (t + queued_launch_seconds(TRN1, 32, t) for t in (each, 12 * each))
    assert one == twelve == pytest.approx(5.0e-3, rel=0.08)


def test_a_collective_of_a_program_has_a_start_of_its_own():
    """T16: 12 all-reduces of 2 ranks of trn2 take 0.325 ms, nccom-test's 2 us each."""
    each = collective_time("all_reduce", 32 * KIB, [range(2)], TRN2).seconds
    each += TRN2.chip.collective_start_seconds
    program = NULL_EXECUTION.value + 12 * each
    found = program + queued_launch_seconds(TRN2, 2, program)
    assert found == pytest.approx(0.325e-3, rel=0.1)


# -- constants -------------------------------------------------------------------------


def test_constants_have_sources():
    for constant in COLLECTIVE_CONSTANTS.values():
        assert constant.source
        assert constant.value > 0
        assert constant.is_assumption or not constant.fitted_to


def test_barriers():
    assert barrier_seconds(TRN2, 1) == 0
    assert barrier_seconds(resolve_target("trn3"), 8) == barrier_seconds(TRN2, 8)


def test_a_published_token_is_no_shorter_than_a_launch():
    """Llama-2-13B on 32 ranks of trn1 takes 4.3 ms a token [SDK 2.16], of which 26 GB
    of weights are 2.0 at the rate of HBM: a launch of 5 ms hides them."""
    weights_seconds = 26e9 / 16 / TRN1.chip.hbm_bytes_per_second
    token = weights_seconds + queued_launch_seconds(TRN1, 32, weights_seconds)
    assert token == pytest.approx(4.3e-3, rel=0.2)
    assert queued_launch_seconds(TRN1, 32, 6e-3) == 0
    assert launch_seconds(Core.of(TRN1), TRN1, 32) > weights_seconds


def test_a_program_shorter_than_a_launch_waits_for_it():
    target = resolve_target("trn2")
    assert queued_launch_seconds(target, 1, 1.0) == 0
    waits = queued_launch_seconds(target, 1, 50e-6)
    assert waits == pytest.approx(NULL_EXECUTION.value - 50e-6)


# -- what always holds -----------------------------------------------------------------

MACHINES = ("trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver", "trn2.48xlarge:2")
GROUPS = {
    "trn1.32xlarge": (range(2), range(8), range(32), range(0, 32, 2)),
    "trn2.48xlarge": (range(4), range(16), range(64), range(0, 64, 4), (0, 8, 20)),
    "trn2-ultraserver": (range(64), range(0, 256, 4)),
    "trn2.48xlarge:2": (range(128), (0, 64), range(0, 128, 4)),
}


def legal(op, target, group):
    like = "all_reduce" if op == "all_reduce" else "reduce_scatter"
    return legal_algorithms(like, Placement.of(target).group(group))


CASES = [
    (op, name, group, algorithm)
    for op in ("all_reduce", "reduce_scatter", "all_gather")
    for name in MACHINES
    for group in GROUPS[name]
    for algorithm in legal(op, resolve_target(name), group)
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_priced(algorithm):
    assert any(case[3] == algorithm for case in CASES)


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from(CASES), size=st.integers(1, 2**32), more=st.integers(0))
def test_more_bytes_are_never_faster(case, size, more):
    op, name, group, algorithm = case
    target = resolve_target(name)
    times = [
        collective_time(op, bytes_, [group], target, algorithm=algorithm)
        for bytes_ in (size, size + more)
    ]
    assert times[0].seconds <= times[1].seconds
    assert times[0].latency_seconds == times[1].latency_seconds
    assert times[0].seconds == pytest.approx(
        times[0].latency_seconds + times[0].transfer_seconds
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(CASES), factor=st.floats(1, 8), axis=st.integers(0, 2))
def test_a_wider_link_is_never_slower(case, factor, axis):
    op, name, group, algorithm = case
    target = resolve_target(name)
    network = network_of(target)
    links = tuple(
        dataclasses.replace(k, bytes_per_second=int(k.bytes_per_second * factor))
        if k.axis == axis % len(network.topology.shape)
        else k
        for k in network.topology.links
    )
    topology = dataclasses.replace(network.topology, links=links)
    wider = dataclasses.replace(network, topology=topology)
    before, after = (
        collective_time(op, MIB, [group], target, algorithm=algorithm, network=n)
        for n in (network, wider)
    )
    assert after.seconds <= before.seconds * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(CASES), size=st.integers(1, 2**34))
def test_no_chip_sends_more_than_its_links_can(case, size):
    """What must enter or leave a chip, over all its links: no algorithm is faster."""
    op, name, group, algorithm = case
    target = resolve_target(name)
    located = Placement.of(target).group(group)
    chips = len(located.by_chip)
    if chips == 1 or len(located.by_node) > 1:
        return
    links = target.topology.links
    peak = sum(link.per_chip * link.bytes_per_second for link in links)
    passes = 2 if op == "all_reduce" else 1
    moved = size * passes * (chips - 1) / chips
    found = collective_time(op, size, [group], target, algorithm=algorithm)
    assert moved / found.seconds <= peak
    if algorithm.startswith("ring"):
        assert found.busbw_bytes_per_second <= peak


@pytest.mark.parametrize(
    ("name", "group", "algorithm"),
    [
        (name, group, algorithm)
        for op, name, group, algorithm in CASES
        if op == "reduce_scatter"
        and algorithm != "left_fold"
        and not (name.startswith("trn1") and "mesh" in algorithm)
    ],
)
def test_steps_of_a_reduce_scatter_are_its_roundings(name, group, algorithm):
    target = resolve_target(name)
    placement = Placement.of(target)
    plan = select("reduce_scatter", MIB, [group], placement, override=algorithm)
    time = collective_time("reduce_scatter", MIB, [group], target, plan=plan)
    assert time.algorithm == plan.algorithm == algorithm
    assert time.steps == plan.roundings


def test_what_is_selected_is_what_the_numbers_use():
    placement = Placement.of(TRN2)
    for power in range(10, 31):
        plan = select("all_reduce", 2**power, [range(64)], placement)
        time = collective_time("all_reduce", 2**power, [range(64)], TRN2)
        assert time.algorithm == plan.algorithm


def test_groups_contend():
    """Groups of one rank per chip share the links; groups on chips of their own do
    not."""
    strided = [range(local, 64, 4) for local in range(4)]
    one = transfer("all_gather", GIB, strided[:1], TRN2, "ring", wide(TRN2))
    four = transfer("all_gather", GIB, strided, TRN2, "ring", wide(TRN2))
    assert four == pytest.approx(4 * one, rel=1e-3)
    packed = [range(first, first + 4) for first in range(0, 64, 4)]
    one = transfer("all_gather", GIB, packed[:1], TRN2, "mesh")
    assert transfer("all_gather", GIB, packed, TRN2, "mesh") == pytest.approx(one)


@pytest.mark.parametrize("algorithm", ["rdh+rdh", "kangaring+ring", "mesh+mesh"])
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_many_nodes_are_priced_by_their_first(op, algorithm):
    network = network_of(FOUR)
    placement = Placement.of(FOUR)
    whole = steps_of(op, algorithm, (placement.group(range(256)),), network.topology)
    inner = [placement.group(range(64))]
    short = steps_over_nodes(op, algorithm, inner, 4, network.topology)
    a, b = (priced(steps, MIB, network) for steps in (whole, short))
    assert a.steps == b.steps
    assert a.latency_seconds == pytest.approx(b.latency_seconds)
    assert a.transfer_seconds == pytest.approx(b.transfer_seconds)


@pytest.mark.parametrize("nodes", [1, 4, 5, 8])
def test_few_nodes_stand_for_many(nodes):
    target = resolve_target(f"trn1.32xlarge:{nodes}")
    found = time_over_nodes("all_reduce", MIB, [range(32)], nodes, target)
    named = collective_time("all_reduce", MIB, [range(32 * nodes)], target)
    assert found.algorithm == named.algorithm
    assert found.steps == named.steps
    assert found.seconds == pytest.approx(named.seconds)
    assert found.busbw_bytes_per_second == pytest.approx(named.busbw_bytes_per_second)


@pytest.mark.parametrize("op", OPS)
def test_every_op_on_every_machine(op):
    for name in (*MACHINES, "trn3-ultraserver-gen1", "inf2.48xlarge", "trn2", "trn3"):
        ranks = range(min(8, resolve_target(name).logical_cores()))
        groups = (
            list(itertools.pairwise(ranks)) if op == "collective_permute" else [ranks]
        )
        found = collective_time(op, MIB, groups, resolve_target(name))
        assert 0 < found.seconds < 1
        assert math.isfinite(found.busbw_bytes_per_second)


def test_bus_factors():
    assert bus_factor("all_reduce", 64) == 2 * 63 / 64
    assert bus_factor("all_gather", 4) == 3 / 4
    assert bus_factor("collective_permute", 4) == 1


# -- errors ----------------------------------------------------------------------------


def test_an_unknown_collective():
    with pytest.raises(InvalidProgramError, match="use one of: all_reduce"):
        collective_time("allreduce", MIB, [range(4)], TRN2)


def test_no_network_between_nodes():
    target = resolve_target("inf2.48xlarge")
    with pytest.raises(UnsupportedError, match="no published network"):
        collective_time("all_reduce", MIB, [[0, 24]], target)


def test_an_impossible_algorithm():
    with pytest.raises(InvalidProgramError, match="lacks some of the 4 ranks"):
        collective_time("all_reduce", MIB, [[0, 4]], TRN2, algorithm="kangaring")
    with pytest.raises(InvalidProgramError, match="use 'mesh'"):
        collective_time("all_to_all", MIB, [range(4)], TRN2, algorithm="ring")


def test_a_negative_size():
    with pytest.raises(InvalidProgramError, match="-1 bytes"):
        collective_time("all_reduce", -1, [range(4)], TRN2)
