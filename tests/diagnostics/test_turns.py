"""What turns of a loop have in common: executed once, told in every turn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.diagnostics import distances
from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.op_walk import ParallelWalk
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


def shifting(w, x):
    """A large array that no turn changes, and one of which every turn changes a row."""
    table = jnp.tile(jnp.tanh(w), (200, 1))

    def turn(carry, row):
        rows, n = carry
        rows = jax.lax.dynamic_update_slice(rows, row @ w, (n, 0))
        return (rows, n + 1), jax.lax.dynamic_slice(table, (n, 0), (4, 8)).sum()

    return jax.lax.scan(turn, (table * 1.5, 0), x)


def test_a_large_array_is_measured_once_in_all_turns(monkeypatch):
    measured, found = [], distances.distances

    def counted(actual, *others):
        measured.append(actual.size)
        return found(actual, *others)

    monkeypatch.setattr(distances, "distances", counted)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 1 << 10)
    turns = [said(shifting), measured.count(1600 * 8)]
    monkeypatch.setattr(distances, "_includes", lambda *_: False)
    measured.clear()
    assert repr(turns[0]) == repr(said(shifting))
    assert turns[1] < 0.8 * measured.count(1600 * 8)


@pytest.mark.parametrize("last", [1.0, np.inf, 1e39, np.nan])
def test_what_only_moves_numbers_has_no_error_of_its_own(last, monkeypatch):
    """It is not executed on the reference's values, which it would not change."""
    executed, execute = [], ParallelWalk._execute_row

    def counted(self, row, path, *args):
        executed.append((row[0].name, path.op.name))
        return execute(self, row, path, *args)

    monkeypatch.setattr(ParallelWalk, "_execute_row", counted)
    x = np.array([*X[0, 0], last / 4], "f")
    found = nj.compare(lambda x: (x * 4)[::2], policy="bf16")(x)
    [op] = (op for op in found.ops if op.short_op == "slice")
    slices = {lane for lane, name in executed if name == "stablehlo.slice"}
    assert {"reference", "actual"} <= slices
    assert not slices & {"isolated", "rounded"}
    broken = int(not abs(last) < 1e38)
    own = op.isolation
    assert (own.elements, own.differing, own.sum_error2, own.max_ulp) == (5, 0, 0, 0)
    assert (own.nonfinite, own.nonfinite_reference) == (broken, broken)
    finite = np.float64([*x[:8:2] * 4, 0 if broken else last])
    assert own.sum_reference2 == pytest.approx(np.sum(finite**2))
