"""Which algorithm runs: by size and group, or as asked."""

from __future__ import annotations

import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import SINGLE_STEP_BYTES, VARIABLE, select

TRN2 = Placement.of(resolve_target("trn2.48xlarge"))
MIB = 2**20
ALL = (range(64),)


def chosen(size_bytes, groups=ALL, op="all_reduce", **asked):
    asked.setdefault("environ", {})
    return select(op, size_bytes, groups, TRN2, **asked).algorithm


@pytest.mark.parametrize(
    ("size_bytes", "name"),
    [
        (SINGLE_STEP_BYTES // 63, "single_step_mesh"),
        (SINGLE_STEP_BYTES // 63 + 1, "mesh"),
        (MIB - 1, "mesh"),
        (MIB, "rdh"),
        (56 * MIB - 1, "rdh"),
        (56 * MIB, "kangaring"),
    ],
)
def test_the_algorithm_depends_on_the_size(size_bytes, name):
    assert chosen(size_bytes) == name


def test_reduce_scatter_is_never_single_step():
    assert chosen(16, op="reduce_scatter") == "mesh"


@pytest.mark.parametrize(
    ("groups", "small", "medium", "large"),
    [
        ([range(12)], "mesh", "kangaring", "kangaring"),  # three chips
        ([range(0, 64, 4)], "mesh", "rdh", "ring"),  # one rank per chip
        ([range(6)], "ring", "ring", "ring"),
        ([range(k, 64, 2) for k in range(2)], "mesh", "rdh", "ring"),
        ([range(128)], "mesh+mesh", "rdh+rdh", "kangaring+rdh"),
        ([range(192)], "mesh+mesh", "rdh+ring", "kangaring+ring"),
        ([range(0, 256, 64)], "mesh", "rdh", "rdh"),
    ],
)
def test_the_algorithm_depends_on_the_group(groups, small, medium, large):
    sizes = (MIB // 2, MIB, 56 * MIB)
    assert tuple(chosen(s, groups) for s in sizes) == (small, medium, large)


def test_groups_that_lie_differently_take_a_ring():
    assert chosen(MIB // 2, [(0, 1, 4, 5), (2, 6, 3, 7)]) == "ring"
    with pytest.raises(InvalidProgramError, match="different ways"):
        chosen(MIB // 2, [(0, 1, 4, 5), (2, 6, 3, 7)], override="mesh")


def test_scope_overrides_policy_overrides_environment():
    environ = {VARIABLE: "ring"}
    assert chosen(16, environ=environ) == "ring"
    assert chosen(16, environ=environ, policy="rdh") == "rdh"
    assert chosen(16, environ=environ, policy="rdh", override="mesh") == "mesh"
    assert chosen(16, environ=environ, policy="auto") == "ring"
    assert chosen(16, policy="auto", override="auto") == "single_step_mesh"


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv(VARIABLE, "left_fold")
    assert select("all_reduce", 16, ALL, TRN2).algorithm == "left_fold"


def test_an_unknown_algorithm():
    with pytest.raises(InvalidProgramError, match="does not exist") as caught:
        chosen(16, environ={VARIABLE: "kangoring"})
    assert VARIABLE in caught.value.what
    assert "did you mean 'kangaring'" in str(caught.value)
    assert "single_step_mesh" in str(caught.value)


def test_an_impossible_algorithm():
    with pytest.raises(InvalidProgramError, match="lacks some of the 4") as caught:
        chosen(16, [range(0, 64, 4)], override="kangaring")
    assert "ring:4, rdh, mesh, single_step_mesh" in str(caught.value)


def test_one_device_takes_anything():
    assert chosen(16, [(0,)], override="kangaring") == "kangaring"


@pytest.mark.parametrize("groups", [[(0, 1), (2,)], []])
def test_groups_of_different_sizes(groups):
    with pytest.raises(InvalidProgramError, match="groups of one size"):
        chosen(16, groups)


def test_other_ops_have_no_algorithm():
    with pytest.raises(InvalidProgramError, match="all_gather"):
        chosen(16, op="all_gather")


def test_groups_over_nodes_must_be_symmetric():
    groups = [(0, 1, 64, 66)]
    with pytest.raises(
        InvalidProgramError, match="different logical cores on"
    ) as caught:
        chosen(16, groups)
    assert "the same logical cores on every node" in str(caught.value)
    assert chosen(16, groups, policy="left_fold") == "left_fold"
