"""Values of a program with their errors, and rounding of such values to a format.

An array that the program broadcasts is stored in its shape before the broadcast, so
that `diagnostics.tolerance.elementwise` knows which elements have the same error.
`Held.wide` broadcasts the array for an instruction that needs every element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.executors import Emulator, Position
from neuronjax.diagnostics.reference64 import Reference64, is_float
from neuronjax.diagnostics.tolerance.drawn import Draw
from neuronjax.diagnostics.tolerance.model import ErrorModel, Roundoff, roundoff
from neuronjax.diagnostics.tolerance.tracked import Shared, Tracked, exact, moved
from neuronjax.ir.instruction import Block, Instruction

Array = Tracked | np.ndarray


@dataclass(eq=False)
class Held:
    """A value of the program, with its error.

    Attributes:
        x: the elements, `Tracked` if they are floats or may be wrong. The shape of `x`
            is `shape`, or has size 1 on axes that are broadcast later.
        shape: the shape that the program declares.
        hard: if the numbers were just rounded, absolute error bounds in the shape of
            `x`: the bound of earlier errors plus the largest error of the rounding.
            None if only `x.scale()` bounds the errors.
        is_drawn: whether the value contains a random error; see the function `drawn`.
    """

    x: Array
    shape: tuple[int, ...]
    hard: np.ndarray | None = None
    is_drawn: bool = False

    @property
    def is_exact(self) -> bool:
        if self.is_drawn:
            return False
        return not isinstance(self.x, Tracked) or self.x.is_exact

    @property
    def values(self) -> np.ndarray:
        """Return the elements, broadcast to `shape`, without their errors."""
        plain = self.x.value if isinstance(self.x, Tracked) else self.x
        return np.broadcast_to(plain, self.shape)

    def wide(self) -> Array:
        """Return `x` broadcast to `shape`; the copies of an element share its error."""
        if self.x.shape == self.shape:
            return self.x
        wide = moved(lambda v: np.broadcast_to(v, self.shape), self.x)
        if isinstance(self.x, Tracked) and wide.own is not None:
            wide.shared[self.x.source], wide.own = Shared(False, wide.own), None
        return wide

    def tracked(self, model: ErrorModel) -> Tracked:
        """Return `x` broadcast to `shape`, as tracked numbers even if `x` is plain."""
        x = self.wide()
        return x if isinstance(x, Tracked) else exact(x, model)

    def bound(self, model: ErrorModel) -> np.ndarray:
        if not isinstance(self.x, Tracked):
            return np.zeros(self.shape, np.float32)
        with np.errstate(all="ignore"):
            scale = np.asarray(model.spread * np.asarray(self.x.scale()))
        if self.hard is not None:
            scale = np.minimum(np.where(np.isnan(scale), np.inf, scale), self.hard)
        scale = np.where(np.isnan(scale), np.inf, scale)
        return np.broadcast_to(scale, self.shape).astype(np.float32)


def drawn(held: Held, is_drawn: bool, draw: Draw) -> Held:
    """Return `held` with random errors in its values, in place of scales of errors.

    `is_drawn` states whether operands of the instruction that computed `held` have
    random errors. If they have, or if this call adds errors, `is_drawn` of the result
    is True, so that it does not count as exact and a later cast adds a random error.
    """
    x = held.x
    if not isinstance(x, Tracked) or x.dtype.kind in "iub" or x.is_exact:
        return Held(x, held.shape, is_drawn=is_drawn)
    return Held(draw.made(x), held.shape, is_drawn=True)


class Executors(NamedTuple):
    """The error model and the executors that rules of instructions use.

    Attributes:
        model: errors of roundings, sums and elementary functions.
        reference: executes instructions in float64.
        emulator: executes instructions in the formats of the program.
        run: function that executes a block on values.
    """

    model: ErrorModel
    reference: Reference64
    emulator: Emulator
    run: Callable[[Block, Sequence[Held]], list[Held]]


def is_doubtful(held: Held) -> bool:
    """Return whether `held` has integers or booleans that errors may change."""
    return isinstance(held.x, Tracked) and held.x.dtype.kind in "iub"


def places_in_doubt(held: Held) -> np.ndarray:
    """Return a mask of the elements of `held` that may be wrong."""
    if not isinstance(held.x, Tracked):
        return np.zeros(held.shape, bool)
    scale = np.asarray(held.x.scale())
    return np.broadcast_to((scale > 0) | np.isnan(scale), held.shape)


def exactly(i: Instruction, arrays: Sequence[np.ndarray], at: Executors) -> list[Any]:
    """Return the results of `i` for `arrays`, computed in the program's formats."""
    given = [
        at.reference.leave(x, view.type.dtype)
        for x, view in zip(arrays, i.operands, strict=True)
    ]
    results = at.emulator.execute(i, given, at.emulator.first_key, Position())
    return [at.reference.enter(x) for x in results]


def in_float64(
    i: Instruction, arrays: Sequence[np.ndarray], at: Executors
) -> list[np.ndarray]:
    key = at.reference.first_key
    return [np.asarray(x) for x in at.reference.execute(i, arrays, key, Position())]


def of_exact(i: Instruction, x: Sequence[Held], at: Executors) -> list[Held]:
    """Return the results of `exactly` for the values of `x`, without errors."""
    results = exactly(i, [h.values for h in x], at)
    return [
        Held(
            exact(r, at.model) if is_float(b.type.dtype) else np.asarray(r),
            b.type.shape,
        )
        for r, b in zip(results, i.results, strict=True)
    ]


# -- rounding --------------------------------------------------------------------------


def written(x: Array, i: Instruction) -> Held:
    """Return the first result of `i`: `x`, computed in FP32, with the error of rounding
    to the result's format."""
    type = i.results[0].type
    assert isinstance(x, Tracked)
    format = roundoff(i.write_format or type.dtype)
    result, hard = rounded(x, format, i.rounding == "stochastic")
    return Held(result, type.shape, hard)


def rounded(
    x: Tracked, format: Roundoff, is_stochastic: bool = False
) -> tuple[Tracked, np.ndarray | None]:
    """Return (`x` with the error of rounding to `format`, absolute error bounds). The
    bounds are None if `format` is not narrower than FP32.

    The values are not rounded, since the order of addition or the table of a function
    may decide to which neighbour in the format a number is rounded.
    """
    model = x.model
    if format.unit <= model.stored.unit:
        return x, None
    before = np.asarray(model.spread * np.asarray(x.scale()), np.float32)
    size = np.abs(x.value).astype(np.float32) + before
    with np.errstate(all="ignore"):
        half = half_steps(size, format)
        loss = half if is_stochastic else half * UNIFORM
        hard = before + (2 * half if is_stochastic else half)
    is_number = np.isfinite(x.value)
    beyond = ~(size <= format.largest) & is_number
    loss = np.where(beyond, np.float32(np.inf), np.where(is_number, loss, 0))
    hard = np.where(beyond, np.float32(np.inf), np.where(is_number, hard, before))
    return x.wider(loss), np.broadcast_to(hard.astype(np.float32), x.shape)


#: Standard deviation of an error that is uniform on [-1, 1].
UNIFORM = np.float32(3**-0.5)


def half_steps(size: np.ndarray, format: Roundoff) -> np.ndarray:
    """Return half the distance between neighbours in `format` at magnitude `size`."""
    _, exponent = np.frexp(size)
    return np.ldexp(np.float32(format.unit), exponent - 1) + np.float32(format.smallest)


def without_needless_errors(x: Tracked) -> Tracked:
    """Return `x`, a result of exact operands, without the rounding errors of elements
    that FP32 represents exactly."""
    value = x.value
    with np.errstate(all="ignore"):
        held = value.astype(np.float32).astype(value.dtype) == value
        held &= (np.abs(value) >= 2.0**-126) | (value == 0)
    held |= ~np.isfinite(value)
    if held.all():
        return Tracked(value, x.model, x.dtype)
    if x.own is not None and held.any():
        own = np.where(held, np.float32(0.0), x.own)
        return Tracked(value, x.model, x.dtype, own, x.joint, x.shared)
    return x


def is_power_of_two(held: Held) -> bool:
    """Return whether all elements are exact powers of 2, so that products are exact."""
    if not held.is_exact or not isinstance(held.x, Tracked):
        return False
    mantissa, _ = np.frexp(held.x.value)
    return bool(np.all(np.abs(mantissa) == 0.5))
