"""Observations of one execution of an op: its errors, and the numbers that it loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.faults.judgement import COARSE, COSTLY, OF_ONE_OP, SHORT
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.shares import MOST_LOST, Seen, Share, norm, wide
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.execution.probes.signs import MOSTLY
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import FORMATS, get_format


@dataclass(frozen=True, slots=True)
class OpEvidence:
    """The errors and the lost numbers of one execution of an op.

    Attributes:
        result: the result with the largest error, compared with the float64 reference.
        operands: the float and integer operands, compared with the reference.
        own: the op's own rounding error: relative L2 error on the reference's operands.
        absorbed: (share of sums that equal one addend though the other addend is not
            zero, root mean square of the addends that rounding drops).
        wrapped: number of integers beyond the range of their type.
        misread: number of integers that change sign: -1 is 2**32 - 1 in uint32.
        rounds_whole: whether the op rounds whole numbers (257 is 256 in bfloat16).
        cut_off: for each operand of a clamp, maximum, minimum, select or saturating
            cast, two root mean squares of what is cut off in the reference: of numbers
            that stay nonzero, and of numbers that become zero.
        is_tie: whether results differ from the reference by chance: one comparison
            flips, or floats next to a rounding boundary become other whole numbers.
    """

    result: Share
    operands: Mapping[Value, Share]
    own: float
    absorbed: tuple[float, float]
    wrapped: int
    misread: int
    rounds_whole: bool
    cut_off: Mapping[Value, tuple[float, float]]
    is_tie: bool = False

    @property
    def error_before(self) -> float:
        """Return the largest error of an operand."""
        return max((x.error for x in self.operands.values()), default=0.0)

    def is_costly(self, unit: float, cast: Cast | None) -> bool:
        """Return whether, in 9 to 16 bits, the op makes an error of `OF_ONE_OP` or more
        that is `COSTLY` times the errors of its operands and of their `cast`. `unit` is
        the roundoff of the coarsest format on which the result depends. An op that
        reads a changed index or choice makes no such error."""
        if any(s.error for v, s in self.operands.items() if v.type.dtype.kind in "iub"):
            return False
        before = max(self.error_before, cast.unit if cast else 0.0)
        least = max(OF_ONE_OP, COSTLY * before)
        is_made = self.result.elements > 1 and self.result.error >= least
        return is_made and SHORT < unit <= COARSE


#: Ops whose results have the same absolute errors as their operands.
ADDS = frozenset(("stablehlo.add", "stablehlo.subtract"))


def narrows(op: Op) -> bool:
    """Return whether an op is a cast to a float with fewer digits."""
    if op.name != "stablehlo.convert":
        return False
    before, after = (unit_of(v.type.dtype) for v in (*op.operands, *op.results))
    return 0 < before < after


def absorbed(
    op: Op, operands: Sequence[Seen], result: Seen, state: Seen | None = None
) -> tuple[float, float]:
    """Return the share of sums of two nonzero addends that equal one of the addends,
    and the root mean square of the addends that rounding drops.

    A cast in a loop counts as the sum of `state` (its previous result) and the change
    in the reference, and a scatter as the sum of its first operand and the change.
    """
    if result.dtype.kind in "iub":
        return 0.0, 0.0
    total = result.actual
    if op.name == "stablehlo.scatter":
        adds = [inner.name for inner in op.regions[0].ops] == ["stablehlo.add"]
        state = operands[0] if adds else None
    if state is not None:
        return _stays(total == state.actual, result.reference - state.reference)
    if op.name not in ADDS or len(operands) != 2:
        return 0.0, 0.0
    left, right = (x.actual for x in operands)
    right = -right if op.name == "stablehlo.subtract" else right
    return max(_stays(total == left, right, total), _stays(total == right, left, total))


def _stays(
    stays: np.ndarray, addend: np.ndarray, total: np.ndarray | None = None
) -> tuple[float, float]:
    if not stays.any():  # most arrays end here
        return 0.0, 0.0
    hits = stays & (addend != 0)
    if total is not None:
        hits &= np.isfinite(total)
    if not hits.any():
        return 0.0, 0.0
    left_out = norm(np.where(hits, wide(addend), 0.0)) / math.sqrt(addend.size)
    return np.count_nonzero(hits) / np.count_nonzero(addend), left_out


#: Op -> the fractional part of a float at which the result of the op jumps.
_CHANGES = {
    "stablehlo.convert": 0.0,
    "stablehlo.floor": 0.0,
    "stablehlo.ceil": 0.0,
    "stablehlo.round_nearest_even": 0.5,
    "stablehlo.round_nearest_afz": 0.5,
}
#: This many different floats may become other whole numbers by chance.
_FEW_FLIPS = 4
#: Floats with a smaller relative distance may be the same number in FP32.
_ONE_IN_FP32 = 2.0**-21
#: Larger floats have at most 12 fractional bits in FP32: too few for `is_tie`.
_LARGEST_WITH_FRACTION = 2.0**11


def is_tie(op: Op, operands: Sequence[Seen], result: Seen) -> bool:
    """Return whether `result` is off only by chance: exactly one of several comparisons
    flips, or floats next to a rounding boundary become other whole numbers. Many
    different floats that do (such as `floor` of n / 3 * 3) are no chance."""
    if op.name == "stablehlo.compare":
        flips = np.count_nonzero(np.asarray(result.actual) != result.reference)
        return flips == 1 < np.size(result.reference)
    if op.name not in _CHANGES or operands[0].dtype.kind in "iub":
        return False
    if op.name == "stablehlo.convert" and result.dtype.kind not in "iu":
        return False
    flipped = np.asarray(result.actual) != np.asarray(result.reference)
    few = flipped.size  # a half may be rounded to either neighbour, in any number
    if not _CHANGES[op.name]:
        few = max(_FEW_FLIPS, MOST_LOST * few)
    given = wide(operands[0].reference)[flipped]
    change = np.rint(given - _CHANGES[op.name]) + _CHANGES[op.name]
    apart = np.abs(given - change) + np.abs(given - wide(operands[0].actual)[flipped])
    size = np.abs(given)
    beside = (apart <= _ONE_IN_FP32 * size) & (size < _LARGEST_WITH_FRACTION)
    return bool(0 < np.unique(given).size <= few and beside.all())


BOUNDS = frozenset(("stablehlo.maximum", "stablehlo.minimum", "stablehlo.clamp"))
#: Ops that bound numbers, among them selects such as `jnp.where(x > most, most, x)`.
CLIPS = BOUNDS | {"stablehlo.select"}
ROUNDS = frozenset(
    f"stablehlo.{name}"
    for name in ("round_nearest_even", "round_nearest_afz", "floor", "ceil")
)


#: A slice of an array with fewer numbers than this does not count as a channel.
LEAST_IN_CHANNEL = 4


def rounds(op: Op) -> bool:
    """Return whether an op rounds floats to whole numbers."""
    if op.name != "stablehlo.convert":
        return op.name in ROUNDS
    before, after = (v.type.dtype.kind for v in (*op.operands, *op.results))
    return after in "iu" and before not in "iub"


class Flattened(NamedTuple):
    """The numbers that a rounding to whole numbers changes by 100 % or more.

    Attributes:
        numbers: the share of these numbers.
        norm: their norm relative to that of all numbers; if this share is larger in
            the median row, column or other slice along one axis, that share. Thus one
            large channel hides no other. 1 for a vector.
        channels: the largest share of rows, columns or other slices along one axis
            whose numbers all become 0 or 1 in magnitude, most of them with such a
            change.
    """

    numbers: float
    norm: float
    channels: float


def flattened(operand: Seen, result: Seen) -> Flattened:
    """Return what the rounding of `operand` to `result` changes by 100 % or more. The
    number 0.5 counts as 0, since code rounds x by `floor(x + 0.5)`."""
    x = wide(operand.reference)
    counts = (x != 0) & (x != 0.5)
    changed = (np.abs(wide(result.reference) - x) >= np.abs(x)) & counts
    codes, channels = np.abs(wide(result.reference)), 0.0
    lost = np.where(changed, x, 0)
    size = norm(lost) / (norm(x) or 1.0)
    axes = [n for n, length in enumerate(x.shape) if length > 1]
    for axis in axes if len(axes) > 1 else ():
        others = tuple(n for n in range(x.ndim) if n != axis)
        there, gone = counts.sum(others), changed.sum(others)
        dead = (there >= LEAST_IN_CHANNEL) & (gone > MOSTLY * there)
        dead &= codes.max(others, initial=0) <= 1
        channels = max(channels, float(np.mean(dead)))
        part, whole = (np.sqrt((y * y).sum(others)) for y in (lost, x))
        if (whole > 0).any():
            size = max(size, float(np.median(part[whole > 0] / whole[whole > 0])))
    return Flattened(float(np.mean(changed)), size if len(axes) > 1 else 1.0, channels)


def cut_off(
    op: Op, operands: Mapping[Value, Seen], result: Seen
) -> Mapping[Value, tuple[float, float]]:
    """Return two root mean squares of what `op` cuts off, for each operand that it
    bounds: of numbers that stay nonzero, and of numbers that become zero. An op bounds
    operands if it is in `CLIPS` (a select, only if it clips like a clamp), or is a
    saturating cast to 8 bits; other ops give an empty mapping."""
    if op.name in CLIPS and result.dtype.kind not in "iub":
        bounded = wide(result.reference)
    elif op.name == "stablehlo.convert" and is_short_float(result.dtype):
        limit = largest_of(result.dtype)
        bounded = np.clip(wide(result.reference), -limit, limit)
        if not np.isfinite(wide(result.actual)).all():
            return {}  # the cast does not saturate
    else:
        return {}
    numbers = ((v, seen) for v, seen in operands.items() if seen.dtype.kind != "b")
    x = {v: wide(seen.reference) for v, seen in numbers}
    found = {
        v: y - bounded
        for v, y in x.items()
        if y.shape == bounded.shape and (op.name in BOUNDS or _is_clipped(y, bounded))
    }
    size, kept = math.sqrt(max(1, bounded.size)), bounded != 0
    return {
        v: (norm(np.where(kept, off, 0)) / size, norm(np.where(kept, 0, off)) / size)
        for v, off in found.items()
    }


def _is_clipped(x: np.ndarray, bounded: np.ndarray) -> bool:
    """Return whether `bounded` is `x` clipped at both ends, without a changed sign."""
    if (x * bounded)[x != bounded].min(initial=0.0) < 0:
        return False
    changed = x[x != bounded]
    above, below = changed[changed >= 0], changed[changed <= 0]
    is_above = above.min(initial=np.inf) >= bounded.max(initial=-np.inf)
    return is_above and below.max(initial=-np.inf) <= bounded.min(initial=np.inf)


def is_short_float(dtype: Any) -> bool:
    """Return whether a dtype is a float of 8 bits or fewer, except E8M0 for scales."""
    return np.dtype(dtype).itemsize == 1 and unit_of(dtype) > 0


def largest_of(dtype: Any) -> float:
    """Return the largest finite number of a float format, or Inf for integers."""
    name = np.dtype(dtype).name
    return get_format(name).max_finite if name in FORMATS else math.inf
