"""Select the algorithm of a reduction over devices.

The algorithm depends on size and group, as intranode-collective-comm.rst [IN] and
internode-collective-comm.rst [IX] say, unless the user names one: for the call, in the
policy, or in the environment variable NEURONJAX_CC_ALGORITHM, in this order. All groups
of an instruction run one algorithm with one fold plan (ASSUMPTION), so an algorithm
that only some can run is not used.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware.chips import MIB
from neuronjax.ir.collectives.algorithms import (
    ALGORITHMS,
    ALL_REDUCE,
    REDUCE_SCATTER,
    fold_plan,
)
from neuronjax.ir.collectives.placement import Group, Placement
from neuronjax.ir.fold_plan import FoldPlan

VARIABLE = "NEURONJAX_CC_ALGORITHM"
AUTO = "auto"

# Bytes that one rank sends over EFA within one hop: 15 us at 50 Gb/s [IX]. If the
# single step sends less, it is best. ASSUMPTION: the bound also holds inside a node.
SINGLE_STEP_BYTES = 93_750


class _SizeRange(NamedTuple):
    """The preferred algorithms for tensors below a size; the first possible one is
    taken. `inside` is for groups in one node, and `between` for groups with one rank
    per node. Other groups use pairs "a+b" of `a` from `inside`, `b` from `between`."""

    below_bytes: float
    inside: tuple[str, ...]
    between: tuple[str, ...]


# ASSUMPTION: a documented "MB" is 2^20 bytes, and the size is that of the tensor on one
# rank. For several nodes IX says only "small", "medium" and "large". ASSUMPTION: these
# are the ranges of IN, and large tensors use rdh, which IX gives as an example.
_RANGES = (
    _SizeRange(1 * MIB, ("mesh", "ring"), ("mesh", "ring")),  # [IN, IX]
    _SizeRange(56 * MIB, ("rdh", "kangaring", "ring"), ("rdh", "ring")),  # [IN, IX]
    _SizeRange(math.inf, ("kangaring", "ring"), ("rdh", "ring")),  # [IN, IX]
)


def select(
    op: str,
    size_bytes: int,
    groups: Sequence[Sequence[int]],
    placement: Placement,
    *,
    override: str | None = None,
    policy: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> FoldPlan:
    """Return the fold plan of one instruction.

    Args:
        op: "all_reduce" or "reduce_scatter".
        size_bytes: the size of the tensor to reduce, on one rank.
        groups: devices by number, in groups of one size; the order in a group is that
            of its ranks.
        placement: the places of devices.
        override: an algorithm's name for this call; None or "auto" to use `policy`.
        policy: the name in the policy; None or "auto" to use the environment.
        environ: where `VARIABLE` is looked up; if it is not set, the size decides.

    Raises:
        InvalidProgramError: an unknown algorithm, one that is impossible for these
            groups, groups for which all are impossible, or another op.
    """
    if op not in (ALL_REDUCE, REDUCE_SCATTER):
        raise InvalidProgramError(
            f"{op!r} has no choice of algorithms",
            remedy=f"use {ALL_REDUCE!r} or {REDUCE_SCATTER!r}",
        )
    if len({len(group) for group in groups}) != 1:
        raise InvalidProgramError(
            f"{op} needs groups of one size, not {tuple(map(tuple, groups))}",
            remedy="use groups of equal size",
        )
    placed = tuple(dict.fromkeys(map(placement.group, groups)))
    words = ((override, "this call"), (policy, "the policy"))
    for word, who in (*words, (environ.get(VARIABLE), VARIABLE)):
        if word and word != AUTO:
            return _requested(word, who, op, placed)
    reason = ""
    for name in _preferred(op, size_bytes, placed[0]):
        plan = _plan(name, op, placed)
        if isinstance(plan, FoldPlan):
            return plan
        reason = plan
    raise InvalidProgramError(
        f"{op}: no algorithm can run over {placed[0].size} ranks: {reason}",
        remedy="use the same logical cores on every node",
    )


def _preferred(op: str, size_bytes: int, group: Group) -> Iterator[str]:
    """Yield names, the preferred first; the last can run wherever another can."""
    if op == ALL_REDUCE and (group.size - 1) * size_bytes < SINGLE_STEP_BYTES:
        yield "single_step_mesh"
    row = next(r for r in _RANGES if size_bytes < r.below_bytes)
    nodes = len(group.by_node)
    if nodes == 1:
        yield from row.inside
    elif nodes == group.size:
        yield from row.between
    else:
        yield from map("+".join, itertools.product(row.inside, row.between))
    yield "ring"


def _plan(name: str, op: str, groups: Sequence[Group]) -> FoldPlan | str:
    """Return the plan that all groups can run, or why there is none."""
    if groups[0].size > 1:
        for group in groups:
            reason = ALGORITHMS[name].refuses(op, group)
            if reason:
                return reason
    plans = {fold_plan(name, op, group) for group in groups}
    if len(plans) > 1:
        return "the groups are placed on chips in different ways"
    return plans.pop()


def _requested(name: str, who: str, op: str, groups: Sequence[Group]) -> FoldPlan:
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidProgramError(
            f"{op}: {who} asks for the algorithm {name!r}, which does not exist",
            remedy=f"{hint}legal here: {_legal(op, groups)}",
        )
    plan = _plan(name, op, groups)
    if isinstance(plan, str):
        ranks = groups[0].size
        raise InvalidProgramError(
            f"{op}: {who} asks for {name}, which {ranks} ranks cannot run: {plan}",
            remedy=f"legal here: {_legal(op, groups)}",
        )
    return plan


def _legal(op: str, groups: Sequence[Group]) -> str:
    names = (n for n in ALGORITHMS if isinstance(_plan(n, op, groups), FoldPlan))
    return ", ".join((AUTO, *names))
