"""The algorithms of reductions over devices: where each is possible, and its fold plan.

Algorithms differ in which rank adds what, and in how often a partial sum is stored in
the tensor's dtype. For 64 ranks on 16 chips a ring rounds 63 times, kangaring 32, rdh
5, mesh 2 and single_step_mesh once. Steps and roundings follow the vendor's intranode-
and internode-collective-comm.rst (IN, IX) and the public header nec.h (NEC); what they
leave open is marked ASSUMPTION. Legal groups:

    ring              any (*). A flat ring over nodes is an edge case, but exists [IX]
    ring:2 to ring:4  the same on 2, 3 or 4 channels; more than 2 need all chips of a
                      4 x 4 torus (`closed_paths`)
    kangaring         one node; all ranks of each of its chips; an even number of them
                      per chip; at most 256 ranks [IN, NEC]
    rdh               the same number of ranks on each chip, 2^k chips [IN]; or one rank
                      on each of 2^k nodes [IX]
    mesh              the same number of ranks on each chip; or one per node [IN, IX]
    single_step_mesh  any (*), all-reduce only [IN, IX]
    left_fold         any; not the vendor's, but what XLA's host devices do with FP32
                      and BF16
    A+B               several ranks on each of several nodes, the same on each; A within
                      a node, B over nodes, each as above [IX]

(*) The group must be joined by a network: see `Group.fault`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from neuronjax.errors import InvalidProgramError
from neuronjax.ir import fold_plan as plans
from neuronjax.ir.collectives.placement import Group
from neuronjax.ir.fold_plan import FoldPlan
from neuronjax.policy.values import IN_NODE, OVER_NODES

# -- rings -----------------------------------------------------------------------------

# A ring sends along closed paths, one for every channel. Channels share no wire in one
# direction, so they run at the same time, each with its part of the data. On a 4 x 4
# torus two cycles have no wire in common, and each can be used in both directions: four
# channels if the group has all chips, else two (vendor's `collective_permute_implicit`;
# intranode-collective-comm.rst says that KangaRing then has two cycles, on which the
# ranks of a chip swap their roles).


MAX_CHANNELS = 4

# Cycles over the wires of trn2's 4 x 4 torus; the chip number is 4 row + column.
# ASSUMPTION: these two of several possible pairs, and the same ones on trn1, whose
# wiring is not published.
_SIDES = (4, 4)
_CYCLES = (
    (0, 12, 8, 4, 7, 3, 15, 11, 10, 6, 2, 14, 13, 9, 5, 1),
    (0, 4, 5, 6, 7, 11, 8, 9, 10, 14, 15, 12, 13, 1, 2, 3),
)


def closed_paths(group: Group, otherwise: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of a group in the order of each channel. Every second channel
    goes backwards, so it enters each chip at another rank. `otherwise` gives the
    order for a group that does not have all chips of a 4 x 4 torus; ASSUMPTION: it is
    used forwards and backwards, whatever the wires."""
    wired = _along_wires(group)
    if not wired:
        return tuple(otherwise), tuple(otherwise)[::-1]
    a, b = wired
    return a, b[::-1], a[::-1], b


def _along_wires(group: Group) -> tuple[tuple[int, ...], ...]:
    """Return the cycles of the torus if the chips of the group form one, else ()."""
    if group.torus[-2:] != _SIDES or len(group.by_node) > 1:
        return ()
    chips = len(_CYCLES[0])
    of_chip = {
        group.locals[ranks[0]] // group.ranks_per_chip: ranks for ranks in group.by_chip
    }
    planes = {chip // chips for chip in of_chip}
    if len(of_chip) < chips or len(planes) > 1:
        return ()
    first = planes.pop() * chips
    return tuple(
        tuple(rank for chip in cycle for rank in of_chip[first + chip])
        for cycle in _CYCLES
    )


ALL_REDUCE, REDUCE_SCATTER = "all_reduce", "reduce_scatter"
MAX_KANGARING_RANKS = 256  # [NEC]


@dataclass(frozen=True)
class Algorithm:
    """One way to reduce over a group."""

    name: str  # the name that users write
    #: Returns why it cannot run an op ("all_reduce", "reduce_scatter") over a group, or
    #: "".
    refuses: Callable[[str, Group], str]
    #: Returns its fold plan for a group that it does not refuse.
    plan: Callable[[Group], FoldPlan]


# -- where each is possible ------------------------------------------------------------


def _scatters(op: str, group: Group) -> str:
    """Return why the ranks of `group` cannot each reduce all data for `op`, or ""."""
    if op != ALL_REDUCE:
        return "this algorithm can run all_reduce only"
    return group.fault


def _uneven(op: str, group: Group) -> str:
    counts = sorted({len(ranks) for ranks in group.by_chip})
    if len(counts) > 1:
        sizes = " or ".join(map(str, counts))
        return f"the group does not have equally many ranks on each chip, but {sizes}"
    if len(group.by_node) == 1 or len(group.by_node) == group.size:
        return ""
    return (
        "the group has several ranks on each of several nodes: name a pair of "
        "algorithms, such as 'mesh+mesh'"
    )


def _no_power_of_two(op: str, group: Group) -> str:
    chips = len(group.by_chip)
    if chips & (chips - 1):
        return f"the group is on {chips} chips, which is not a power of two"
    return _uneven(op, group)


def _partial_chips(op: str, group: Group) -> str:
    if len(group.by_node) > 1:
        return "the group is on several nodes"
    if any(len(ranks) < group.ranks_per_chip for ranks in group.by_chip):
        return f"the group lacks some of the {group.ranks_per_chip} ranks of a chip"
    if group.ranks_per_chip % 2:
        return f"the {group.ranks_per_chip} ranks of a chip do not form pairs"
    if group.size > MAX_KANGARING_RANKS:
        return (
            f"the group has {group.size} ranks; at most {MAX_KANGARING_RANKS} are "
            "allowed"
        )
    return ""


# -- what each does --------------------------------------------------------------------


def _ring(channels: int) -> Algorithm:
    """Return the ring, in which the sum of chunk r starts at rank r + 1 and ends at its
    owner r. (StableHLO does not describe this rotation.) The number of channels on the
    chips is not published; ASSUMPTION: one, unless the name says more."""

    def refuses(op: str, group: Group) -> str:
        most = len(closed_paths(group, range(group.size)))
        if channels <= most:
            return group.fault
        return f"the group lacks chips of a 4 x 4 torus: {most} channels are possible"

    def plan(group: Group) -> FoldPlan:
        paths = closed_paths(group, range(group.size))
        return _along(paths[:channels], hop=1)

    return Algorithm("ring" if channels == 1 else f"ring:{channels}", refuses, plan)


def _kangaring(group: Group) -> FoldPlan:
    """Return a ring of pairs: a hop adds the received sum and the chunks of both ranks.
    Two cycles carry half of the data each; the roles are swapped on the second [IN].
    ASSUMPTION: neighbouring ranks of a chip form a pair, whose first rank is primary on
    the first cycle."""
    ranks = [r for chip in group.by_chip for r in chip]
    return _along(closed_paths(group, ranks)[:2], hop=2)


def _along(paths: Iterable[Sequence[int]], hop: int) -> FoldPlan:
    return plans.channelled(
        [plans.arranged(plans.path(len(ranks), hop), ranks) for ranks in paths]
    )


def _over_chips(group: Group, outer: FoldPlan) -> FoldPlan:
    """Return the plan that adds the ranks of a chip in one step, then the chips."""
    inner = plans.star(len(group.by_chip[0]))
    ranks = [r for chip in group.by_chip for r in chip]
    return plans.arranged(plans.nested(inner, outer), ranks)


def _rdh(group: Group) -> FoldPlan:
    """Return the plan that pairs chips by the bits of their numbers. Within a node the
    highest bit comes first (ASSUMPTION: as in IN's figure of the all-gather), over
    nodes the lowest [IX]. ASSUMPTION: chips are numbered in the order of the group."""
    chips = len(group.by_chip)
    in_node = len(group.by_node) == 1
    return _over_chips(group, plans.hypercube(chips, highest_first=in_node))


def _mesh(group: Group) -> FoldPlan:
    """Return the plan that adds a chip's ranks, then chips (ASSUMPTION: in order)."""
    return _over_chips(group, plans.star(len(group.by_chip)))


def _star(group: Group) -> FoldPlan:
    """Return the plan in which a rank reads all data; ASSUMPTION: in listed order."""
    return plans.star(group.size)


_FLAT = (
    *map(_ring, range(1, MAX_CHANNELS + 1)),
    Algorithm("kangaring", _partial_chips, _kangaring),
    Algorithm("rdh", _no_power_of_two, _rdh),
    Algorithm("mesh", _uneven, _mesh),
    Algorithm("single_step_mesh", _scatters, _star),
    Algorithm("left_fold", lambda op, group: "", _star),
)


# -- over nodes ------------------------------------------------------------------------


def _parts(group: Group) -> tuple[Group, Group]:
    """Return the group's part on its first node, and each node's first rank."""
    inner = group.among(group.by_node[0])
    return inner, group.among(ranks[0] for ranks in group.by_node)


def _asymmetric(group: Group) -> str:
    if len(group.by_node) == 1:
        return "the group is on one node: name one algorithm, not a pair"
    if len(group.by_node) == group.size:
        return "the group has one rank on each node: name one algorithm, not a pair"
    return group.fault


def _pair(inside: Algorithm, between: Algorithm) -> Algorithm:
    """Return reduce-scatter in the node, all-reduce over nodes, all-gather [IX] as one
    algorithm. The plan has two stages, because the all-gather adds nothing."""
    name = f"{inside.name}+{between.name}"

    def refuses(op: str, group: Group) -> str:
        if reason := _asymmetric(group):
            return reason
        inner, outer = _parts(group)
        # Only the second stage is an all-reduce.
        for part in ((inside, REDUCE_SCATTER, inner), (between, op, outer)):
            algorithm, own_op, own_group = part
            if reason := algorithm.refuses(own_op, own_group):
                return f"{algorithm.name}: {reason}"
        return ""

    def plan(group: Group) -> FoldPlan:
        inner, outer = _parts(group)
        ranks = [r for node in group.by_node for r in node]
        both = plans.nested(inside.plan(inner), between.plan(outer))
        return plans.arranged(both, ranks)

    return Algorithm(name, refuses, plan)


_BY_NAME = {a.name: a for a in _FLAT}
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    _BY_NAME
    | {f"{a}+{b}": _pair(_BY_NAME[a], _BY_NAME[b]) for a in IN_NODE for b in OVER_NODES}
)
"""Every algorithm by its name; pairs are "within a node + over nodes"."""


@functools.lru_cache(maxsize=1024)
def fold_plan(name: str, op: str, group: Group) -> FoldPlan:
    """Return the plan of an algorithm for a group; refuse a group that the algorithm
    refuses. One rank adds nothing."""
    if group.size == 1:
        return replace(plans.star(1), algorithm=name)
    algorithm = ALGORITHMS[name]
    reason = algorithm.refuses(op, group)
    if reason:
        raise InvalidProgramError(
            f"{name} cannot run {op} over {group.size} ranks: {reason}",
            remedy=f"use one of: {', '.join(legal_algorithms(op, group))}",
        )
    return replace(algorithm.plan(group), algorithm=name)


def legal_algorithms(op: str, group: Group) -> tuple[str, ...]:
    """Return the names of the algorithms that can run an op over a group."""
    return tuple(n for n, a in ALGORITHMS.items() if not a.refuses(op, group))
