"""Fold plans: what they may be, and how patterns nest."""

from __future__ import annotations

import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.fold_plan import (
    FoldPlan,
    Stage,
    arranged,
    channelled,
    hypercube,
    nested,
    path,
    star,
)


@pytest.mark.parametrize(
    ("stage", "roundings"),
    [
        (Stage(64, 1), 63),  # the first is a copy
        (Stage(64, 2), 32),
        (Stage(64, 64), 1),
        (Stage(2, 1), 1),
        (Stage(2, 2), 1),
    ],
)
def test_roundings_of_a_stage(stage, roundings):
    assert stage.roundings == roundings


@pytest.mark.parametrize(("width", "hop"), [(1, 1), (4, 3), (4, 0), (4, 8)])
def test_illegal_stages(width, hop):
    with pytest.raises(InvalidProgramError, match="divides"):
        Stage(width, hop)


@pytest.mark.parametrize(
    "order",
    [
        ((0, 1, 2),),
        ((0, 1, 2, 2),),
        ((0, 1, 2, 3), (0, 1, 2, 3)),
        (),
    ],
)
def test_illegal_orders(order):
    with pytest.raises(InvalidProgramError):
        FoldPlan("test", (Stage(4, 4),), order)


def test_a_plan_is_a_value():
    assert path(4) == path(4)
    assert hash(path(4)) == hash(path(4))
    assert path(4) != path(4, hop=2)
    assert str(nested(star(4), path(8))) == "star+path(4/4,8/1)"


def test_path_ends_at_the_owner():
    plan = path(4)
    assert plan.order == ((1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2), (0, 1, 2, 3))
    assert plan.chunks == plan.ranks == 4


def test_path_of_pairs_ends_at_the_pair_of_the_owner():
    plan = path(6, hop=2)
    assert plan.order_of(0) == plan.order_of(1) == (2, 3, 4, 5, 0, 1)
    assert plan.order_of(4) == plan.order_of(5) == (0, 1, 2, 3, 4, 5)
    assert plan.roundings == 3


def test_hypercube_orders():
    assert hypercube(8, highest_first=False).order == (tuple(range(8)),)
    assert hypercube(8, highest_first=True).order == ((0, 4, 2, 6, 1, 5, 3, 7),)
    assert hypercube(1, highest_first=True) == hypercube(1, highest_first=False)


def test_one_rank_adds_nothing():
    for plan in (star(1), path(1), hypercube(1, highest_first=True)):
        assert (plan.stages, plan.order, plan.roundings) == ((), ((0,),), 0)


def test_nested_paths_rotate_both():
    plan = nested(path(2), path(3))
    assert plan.stages == (Stage(2, 1), Stage(3, 1))
    # Owner 3 is number 1 of place 1: places 2, 0, 1; in each numbers 0, 1.
    assert plan.order_of(3) == (4, 5, 0, 1, 2, 3)
    assert plan.order_of(0) == (3, 2, 5, 4, 1, 0)


def test_nested_with_one_order_has_one_order():
    assert nested(star(4), hypercube(4, highest_first=False)).chunks == 1
    assert nested(star(2), path(3)).chunks == 6


def test_arranged_names_owners_too():
    plan = arranged(path(3), (2, 0, 1))
    # The path is 2 -> 0 -> 1; rank 2 is at its place 0.
    assert plan.order_of(2) == (0, 1, 2)
    assert plan.order_of(0) == (1, 2, 0)
    assert arranged(star(3), (2, 0, 1)).order == ((2, 0, 1),)


def test_channels_share_the_chunk_of_a_rank():
    there, back = path(3), arranged(path(3), (2, 1, 0))
    plan = channelled([there, back])
    assert (plan.ranks, plan.channels, plan.chunks) == (3, 2, 6)
    assert plan.order_of(0, 0) == (1, 2, 0)
    assert plan.order_of(0, 1) == (2, 1, 0)
    assert plan.order_of(0, 2) == plan.order_of(0, 0)
    assert str(plan) == "path(3/1)x2"
    assert channelled([there]) == there
    # Owners keep their channels under another name, and when plans are nested.
    assert arranged(plan, (1, 0, 2)).order_of(1, 1) == (2, 0, 1)
    both = nested(plan, path(2))
    assert both.channels == 2
    assert both.order_of(4, 0) == (2, 0, 1, 5, 3, 4)
    assert both.order_of(4, 1) == (0, 2, 1, 3, 5, 4)
