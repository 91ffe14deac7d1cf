"""What sums over sliding windows, and scatters, make of values and errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.legal.arithmetic import legal, no_rule
from neuronjax.diagnostics.legal.held import (
    Executors,
    Held,
    in_float64,
    is_doubtful,
    written,
)
from neuronjax.diagnostics.legal.sums import of_discrete
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import Tracked
from neuronjax.ir.instruction_set import LocalScatter, Pool

_Fold = Callable[..., np.ndarray]


def _added_up(
    fold: _Fold, parts: Sequence[Tracked], counts: Any, model: ErrorModel
) -> Tracked:
    """Sums by an instruction that adds: its value, and what the terms hand on.

    Args:
        fold: adds up arrays of the shapes of the parts.
        parts: the terms.
        counts: of the terms of every sum.
        model: how sums are rounded.
    """
    value = fold(*(p.value for p in parts))
    squares = fold(*(np.square(p.value) for p in parts))
    sizes = fold(*(np.abs(p.value) for p in parts))
    walk = np.square(np.minimum(sizes, np.abs(value) + 3 * np.sqrt(squares))) + squares
    last = model.sums.unit * np.abs(value) * (counts > 0)
    own = np.sqrt(model.of_sums(1) * counts * walk) + last
    own = own + np.sqrt(fold(*(np.square(_whole(p.own, p)) for p in parts)))
    correlated = [p.correlated() for p in parts]
    joint = None
    if any(c is not None for c in correlated):
        whole = (_whole(c, p) for c, p in zip(correlated, parts, strict=True))
        joint = fold(*whole).astype(np.float32)
    return Tracked(value, model, np.float32, own.astype(np.float32), joint)


@legal.register
def _(i: Pool, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    whole, start = x[0].tracked(at.model), x[1].values

    def fold(v: np.ndarray, init: Any = 0.0) -> np.ndarray:
        return in_float64(i, [v, np.asarray(init, np.float64)], at)[0]

    if i.op == "add":
        found = _added_up(fold, [whole], math.prod(i.window.sizes), at.model)
        return [written(np.add(found, start), i)]
    if i.op == "multiply":
        raise no_rule(i, "a product over windows")
    value = fold(whole.value, start)
    joint = None
    if not whole.is_exact:
        scale = np.broadcast_to(np.asarray(whole.scale(), np.float64), whole.shape)
        sign = 1 if i.op == "maximum" else -1
        joint = np.abs(fold(sign * scale, start)).astype(np.float32)
        joint = np.where(np.isfinite(joint), joint, np.float32(0.0))
    return [written(Tracked(value, at.model, np.float32, None, joint), i)]


@legal.register
def _(i: LocalScatter, x: Sequence[Held], at: Executors) -> list[Held]:
    operand, indices, updates = x
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    if is_doubtful(indices):
        raise no_rule(i, "a scatter whose indices are in doubt")
    if i.op not in ("add", "assign"):
        raise no_rule(i, f"a scatter by {i.op}")
    execute = functools.partial(_scattered, i, indices.values, at)
    parts = [operand.tracked(at.model), updates.tracked(at.model)]
    if i.op == "assign":
        value = execute(*(p.value for p in parts))
        scale = execute(*(_whole(p.scale(), p) for p in parts)).astype(np.float32)
        joint = scale if scale.any() else None
        return [Held(Tracked(value, at.model, np.float32, None, joint), operand.shape)]
    counts = execute(np.zeros(operand.shape), np.ones(updates.shape))
    return [written(_added_up(execute, parts, counts, at.model), i)]


def _whole(error: Any, x: Tracked) -> np.ndarray:
    """A scale for every element; 0 for none."""
    return np.broadcast_to(np.asarray(0.0 if error is None else error, float), x.shape)


def _scattered(
    i: LocalScatter, indices: np.ndarray, at: Executors, operand: Any, updates: Any
) -> np.ndarray:
    given = [np.asarray(operand, np.float64), indices, np.asarray(updates, np.float64)]
    return in_float64(i, given, at)[0]
