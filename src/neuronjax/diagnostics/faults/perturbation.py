"""Data changed by at most a roundoff, to see how a program amplifies such a change.

A number is multiplied by 1 + u s, where u is the format's unit roundoff and s, between
-1 and 1, is a hash of the number's magnitude. As under rounding, equal numbers stay
equal, zeros stay zero and opposite numbers stay opposite: a constant feature stays
constant and a symmetric matrix symmetric. `draw` selects the hash. Whole numbers count
as exact, and stay, if their format could also hold the halves between them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.distances import blocks_of
from neuronjax.diagnostics.tolerance.model import roundoff
from neuronjax.ir.instruction_set import DotDimensions
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU, FORMATS
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.figures import FACTORS, SHIFTS


@functools.cache
def unit_of(dtype: Any) -> float:
    """Return the unit roundoff of a dtype or format; 0 for integers and E8M0."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name == FLOAT8_E8M0FNU.name:
        return 0.0
    if name in FORMATS:
        return roundoff(name).unit
    return 0.0 if np.dtype(name).kind in "iub" else 2.0**-53


def perturbed(x: np.ndarray, unit: float, draw: int = 0) -> np.ndarray:
    """Return `x` (float64) with a random relative change of each number, at most
    `unit`, the roundoff of a format. `draw` selects the random numbers. Whole numbers
    do not change if the format can also hold the halves between them."""
    if not unit or is_exact(x, 0.25 / unit):
        return x
    seed, out = np.uint64(draw * FACTORS[1] % 2**64), np.empty(x.shape)
    if choice.usable():
        move = choice.on_arrays("perturb_kernel")
        about = np.append(np.array([unit]).view(np.uint64), seed)
        move(np.ascontiguousarray(x), out, about)
        return out
    for part, moved in blocks_of(x.reshape(-1), out.reshape(-1)):
        bits = np.abs(part).view(np.uint64) * np.uint64(FACTORS[0])
        bits += seed
        bits ^= bits >> np.uint64(SHIFTS[0])
        bits *= np.uint64(FACTORS[1])
        bits ^= bits >> np.uint64(SHIFTS[1])
        signed = (bits >> np.uint64(SHIFTS[2])).astype(np.float64) * 2.0**-52 - 1
        np.multiply(part, 1 + unit * signed, out=moved)
    return out


def is_exact(x: np.ndarray, most: float = 2.0**24) -> bool:
    """Return whether numbers are whole and no larger than `most`."""
    if not is_whole(np.asarray(x).flat[:256]):  # these decide for most arrays
        return False
    return np.abs(x).max(initial=0) <= most and is_whole(x)


def selects(dimensions: DotDimensions, operands: Sequence[np.ndarray]) -> bool:
    """Return whether an operand is one-hot along the contracted axes, so that the
    product only selects numbers of the other operand."""
    axes = dimensions.lhs_contract, dimensions.rhs_contract
    return any(
        is_exact(x, 1) and np.min(x, initial=0) >= 0 and np.all(np.sum(x, a) <= 1)
        for x, a in zip(operands, axes, strict=True)
    )


def is_whole(x: np.ndarray) -> bool:
    """Return whether all finite numbers are whole."""
    return bool(np.all((x == np.rint(x)) | ~np.isfinite(x)))
