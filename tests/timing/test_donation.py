"""HBM where results take the place of arguments: who pairs with whom, and from when."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.timing.hbm import with_donation
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.work import Core

CORE = Core.of(resolve_target("trn2"), 1)
BIG = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
BYTES = 4 * 8192 * 8192


def plan_of(function, *arguments):
    low = nj.jit(function, target="trn2", policy="fp32").lower(*arguments)
    return plan_memory(low.captured.instructions, CORE, low.program.argument_names)


def peak(function, *arguments, donated):
    return with_donation(plan_of(function, *arguments), donated).hbm.bytes


def test_a_result_takes_the_place_of_a_donated_argument():
    def scaled(w):
        return w * 0.5

    assert peak(scaled, BIG, donated=()) == 2 * BYTES
    assert peak(scaled, BIG, donated=(0,)) == BYTES


def test_other_types_have_a_place_of_their_own():
    def halves(w):
        return (w * 0.5).astype(jnp.bfloat16)

    assert peak(halves, BIG, donated=(0,)) == BYTES + BYTES // 2


def test_an_argument_is_given_away_once():
    def both(w):
        return w * 0.5, jnp.tanh(w)

    assert peak(both, BIG, donated=(0,)) == 2 * BYTES


def test_only_what_is_donated_is_given_away():
    def update(w, m):
        return w - m, 0.9 * m

    assert peak(update, BIG, BIG, donated=()) == 4 * BYTES
    assert peak(update, BIG, BIG, donated=(1,)) == 3 * BYTES
    assert peak(update, BIG, BIG, donated=(0, 1)) == 2 * BYTES


def test_not_while_somebody_still_reads_the_argument():
    def late(w):
        first = jnp.exp(w)
        return first, w @ first

    # The argument, and both results, of which the first is moved later.
    assert peak(late, BIG, donated=(0,)) >= 3 * BYTES


@pytest.mark.parametrize("donated", [(), (0,), (0, 1)])
def test_nothing_but_hbm_changes_and_twice_is_once(donated):
    plan = plan_of(lambda w, m: (w - m, 0.9 * m), BIG, BIG)
    once = with_donation(plan, donated)
    assert with_donation(once, donated).hbm.bytes == once.hbm.bytes
    assert once.hbm_read_bytes == plan.hbm_read_bytes
    assert once.main.units is plan.main.units
    assert len(once.hbm.usage) == len(plan.hbm.usage)
    assert sum(once.hbm.categories.values()) == once.hbm.bytes
