"""Rules that propagate values and errors through instructions that move numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuronjax.diagnostics.legal.arithmetic import legal
from neuronjax.diagnostics.legal.held import (
    Executors,
    Held,
    in_float64,
    is_doubtful,
    of_exact,
    places_in_doubt,
)
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.movement import moved_errors
from neuronjax.diagnostics.tolerance.tracked import Tracked, doubtful, exact, moved
from neuronjax.execution.movement import MOVES
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    DmaCopy,
    Im2col,
    Iota,
    LocalGather,
    Memset,
    NcTranspose,
    Rng,
)

Mover = Callable[[Sequence[np.ndarray]], np.ndarray]


@legal.register
def _(i: Memset, x: Sequence[Held], at: Executors) -> list[Held]:
    value, shape = i.value, i.results[0].type.shape
    if value.size > 1 and (value == value.flat[0]).all():
        value = value.reshape(-1)[:1].reshape((1,) * len(shape))
    held = exact(value, at.model) if is_float(i.results[0].type.dtype) else value
    return [Held(held, shape)]


@legal.register(Iota)
@legal.register(Rng)
def _(i: Iota | Rng, x: Sequence[Held], at: Executors) -> list[Held]:
    return of_exact(i, x, at)


# -- one operand -----------------------------------------------------------------------


def rearranged(held: Held, function: Callable[[np.ndarray], np.ndarray]) -> Held:
    """Return `held`, with values and errors moved by `function`."""
    x = held.wide()
    hard = held.hard
    if hard is not None:
        hard = function(np.broadcast_to(hard, held.shape))
    result = moved(function, x)
    return Held(result, result.shape, hard)


def _broadcast(i: DmaCopy, held: Held) -> Held:
    """Return `held` with the rank of the result, and size 1 on axes to broadcast."""
    shape = i.results[0].type.shape
    dimensions = i.parameters[0]
    # Put the axes in the result's order, since `dimensions` need not ascend.
    order = np.argsort(dimensions, kind="stable")
    sizes = [1] * len(shape)
    for axis, place in enumerate(dimensions):
        sizes[place] = held.x.shape[axis] if held.x.ndim else 1

    def placed(v: np.ndarray) -> np.ndarray:
        return v.transpose(order).reshape(sizes) if v.ndim else v.reshape(sizes)

    hard = held.hard
    if hard is not None:
        hard = placed(np.broadcast_to(hard, held.x.shape))
    return Held(moved(placed, held.x), shape, hard)


@legal.register
def _(i: DmaCopy, x: Sequence[Held], at: Executors) -> list[Held]:
    if i.kind == "broadcast":
        return [_broadcast(i, x[0])]
    if i.kind in ("reshape", "transpose", "slice", "reverse"):
        return [rearranged(x[0], lambda v: MOVES[i.kind](i, [v]))]
    data = {"dynamic_slice": 1, "concatenate": len(x)}.get(i.kind, 2)
    return _moved(i, x, at, range(data))


@legal.register
def _(i: NcTranspose, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_exact(i, x, at)
    return [rearranged(x[0], lambda v: np.swapaxes(v, -1, -2))]


@legal.register(Im2col)
@legal.register(LocalGather)
def _(i: Im2col | LocalGather, x: Sequence[Held], at: Executors) -> list[Held]:
    return _moved(i, x, at, range(1))


# -- several operands ------------------------------------------------------------------


def _moved(i: Instruction, x: Sequence[Held], at: Executors, data: range) -> list[Held]:
    """Return the result of `i`; operands whose number is not in `data` are indices."""
    plain = [h.values for h in x]

    def mover(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return in_float64(i, [*arrays, *plain[len(data) :]], at)[0]

    result = moved_together([x[n] for n in data], mover, at.model)
    if any(map(is_doubtful, x[len(data) :])):
        return [Held(doubtful(result.values, True, at.model), result.shape)]
    return [Held(result.x, i.results[0].type.shape, result.hard)]


def moved_together(x: Sequence[Held], mover: Mover, model: ErrorModel) -> Held:
    """Return the array into which `mover` moves elements of `x` and their errors."""
    value = np.asarray(mover([h.values for h in x]))
    if not any(isinstance(h.x, Tracked) for h in x):
        return Held(value, value.shape)
    if value.dtype.kind in "iub":
        if not any(map(is_doubtful, x)):
            return Held(value, value.shape)
        lost = mover([places_in_doubt(h).astype(value.dtype) for h in x])
        return Held(doubtful(value, lost != 0, model), value.shape)
    tracked = [h.tracked(model) for h in x]
    if all(t.is_exact for t in tracked):
        return Held(Tracked(value, model), value.shape)

    def move(errors: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(mover([e.astype(float) for e in errors]), np.float32)

    hard = None
    if any(h.hard is not None for h in x):
        hard = move([h.bound(model) for h in x])
    result = Tracked(value, model, np.float32, *moved_errors(move, tracked))
    return Held(result, value.shape, hard)
