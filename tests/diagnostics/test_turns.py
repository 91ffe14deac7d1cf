"""What turns of a loop have in common: executed once, told in every turn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.turns import KEPT, Memory
from tests.arrays import normal

PATH: Any = "an op"
X, W = normal(6, 4, 8, seed=1), normal(8, 8, seed=2)


def recurrent(w, x):
    """Constants, what no turn changes, and an op that makes nothing of its operand."""

    def turn(h, row):
        kept = jnp.exp(w) * 0.5
        h = jax.lax.optimization_barrier(jnp.tanh(h @ kept + row))
        return h, h.astype(jnp.bfloat16) * 3

    return jax.lax.scan(turn, jnp.zeros(x.shape[1:]), x)


def nested(w, x):
    """What an inner loop keeps, the next turn of the outer one changes."""

    def outer(h, row):
        def inner(k, total):
            return total + jnp.sin(row) @ w + k

        return jax.lax.fori_loop(0, 3, inner, h), row * 2

    return jax.lax.scan(outer, jnp.zeros(x.shape[1:]), x)


def chosen(w, x):
    """A branch that not every turn takes."""

    def turn(h, row):
        h = jax.lax.cond(row.sum() > 0, lambda h: h @ w, lambda h: h + 1.5, h)
        return h, row - 1

    return jax.lax.scan(turn, jnp.zeros(x.shape[1:]), x)


STOCHASTIC = nj.Policy(auto_cast="all", auto_cast_type="bf16", rounding="stochastic")


def said(function, policy="bf16"):
    """All that a comparison says, but for the time that it took."""
    found = nj.compare(function, policy=policy)(W, X)
    faults = [(f.as_dict(), f.iteration) for f in found.faults]
    return [(op.as_dict(), op.iterations) for op in found.ops], faults


@pytest.mark.parametrize("function", [recurrent, nested, chosen])
@pytest.mark.parametrize("policy", ["bf16", STOCHASTIC])
def test_every_turn_has_its_own_figures(function, policy, monkeypatch):
    kept = said(function, policy)
    monkeypatch.setattr(Memory, "_keep", lambda *_: None)
    assert repr(kept) == repr(said(function, policy))


def test_what_no_turn_changes_is_executed_once(monkeypatch):
    executed = []
    execute = Emulator.execute

    def counted(self, i, *args):
        executed.append(getattr(i, "function", None))
        return execute(self, i, *args)

    monkeypatch.setattr(Emulator, "execute", counted)
    nj.compare(recurrent, policy="bf16")(W, X)
    assert executed.count("exponential") < executed.count("tanh") / 3


def test_large_arrays_are_not_kept():
    """A turn would hold them for the next in every lane."""
    large, small = np.ones(KEPT + 1), np.ones(KEPT)
    memory, made = Memory(), []
    for turn in range(3):
        memory.begin(PATH, (turn,))
        for x in (large, small):
            memory.once("size", [x], lambda x=x: made.append(x.size))
    assert (made.count(KEPT + 1), made.count(KEPT)) == (3, 1)


def test_an_op_whose_turns_share_nothing_is_not_remembered():
    memory, made, kept = Memory(), [], np.ones(4)
    for turn in range(4):
        memory.begin(PATH, (turn,))
        x = kept if turn > 1 else np.ones(4)
        memory.once("sum", [x], lambda: made.append(turn))
    assert made == [0, 1, 2, 3]
