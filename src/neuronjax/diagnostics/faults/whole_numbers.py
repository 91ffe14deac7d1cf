"""Whole numbers that a type cannot hold: they wrap around, saturate or are rounded.

Integer arithmetic is repeated in float64, whose range is wider. For a scatter, only the
sum of all results is compared: if results wrapped around, the sum is off by a multiple
of the type's range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.faults.perturbation import is_exact, is_whole, unit_of
from neuronjax.diagnostics.faults.shares import Seen, Share, wide
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.reference64 import products
from neuronjax.execution.probes.watching import is_word
from neuronjax.ir.instruction_set import DotDimensions
from neuronjax.ir.program import Op

#: Above this every float64 number is whole.
_LARGEST = 2.0**53
#: FP32 holds every whole number up to this.
_EXACT = 2.0**24
_FOLDS: dict[str, np.ufunc] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
}
_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    **_FOLDS,
    "stablehlo.negate": np.negative,
    "stablehlo.abs": np.abs,
    "stablehlo.power": np.power,
    "stablehlo.shift_left": lambda x, bits: x * np.exp2(bits),
}


def rounds_whole(op: Op, result: Seen, share: Share, own: float) -> bool:
    """Return whether an op rounds whole numbers in floats, or integers because an
    engine computes with them in floats. `own` is the op's own rounding error."""
    if np.dtype(result.dtype).kind in "iu":
        return own > 0 and op.name in _RULES
    unit = unit_of(result.dtype)
    if not own or not unit or not 1 / unit < share.largest < _LARGEST:
        return False
    return is_whole(wide(result.reference))


def unheld(operands: Sequence[np.ndarray], cast: Cast | None) -> bool:
    """Return whether a policy's `cast` rounds an operand of whole numbers, such as
    positions or counts, that FP32 holds exactly."""
    if cast is None or cast.unit <= 1 / _EXACT:
        return False
    digits = lambda x: np.frexp(x)[0] / cast.unit  # noqa: E731
    return any(is_exact(x) and not is_whole(digits(x)) for x in operands)


NOT_COUNTED = np.zeros((), bool)


def outside(op: Op, operands: Sequence[Seen], result: Seen) -> np.ndarray:
    """Return a mask of the integer results of an op outside the range of their type;
    for a scatter, the number of these results.

    Return `NOT_COUNTED` for floats and for ops without a rule. Return it also for ops
    that read uint32 or uint64, or make them from other integers, because hashes and
    random number generators wrap around on purpose.
    """
    dtype = np.dtype(result.dtype)
    rule = _RULES.get(op.name)
    if rule is None or dtype.kind not in "iu" or not operands:
        return NOT_COUNTED
    given = np.dtype(operands[0].dtype)
    if is_word(given) or (is_word(dtype) and given.kind in "iub"):
        return NOT_COUNTED
    return rule(op, [wide(x.actual) for x in operands], result)


def takes(op: Op, operands: Sequence[Seen], numbers: np.ndarray, which: Any) -> bool:
    """Return whether `op` is a select that takes elements of its operand `numbers` that
    the mask `which` marks."""
    if op.name != "stablehlo.select":
        return False
    choice, *branches = (np.asarray(x.actual) for x in operands)
    chosen = (choice, ~choice)
    return any(
        np.array_equal(x, numbers) and bool(np.any(which & taken))
        for x, taken in zip(branches, chosen, strict=True)
    )


def misread(op: Op, operands: Sequence[Seen], result: Seen) -> int:
    """Return how many results of a subtraction or cast change sign: -1 is 2**32 - 1 in
    uint32. Hashes change signs on purpose, so callers check how results are used."""
    if not operands or not _is_integer(result) or not _is_integer(operands[0]):
        return 0
    is_either = any(is_word(np.dtype(x.dtype)) for x in (operands[0], result))
    if not is_either or op.name not in ("stablehlo.subtract", "stablehlo.convert"):
        return 0
    return int(np.sum(_RULES[op.name](op, [wide(x.actual) for x in operands], result)))


def _is_integer(x: Seen) -> bool:
    return np.dtype(x.dtype).kind in "iu"


def _exactly(exact: Callable[[Op, Sequence[np.ndarray]], Any]) -> _Rule:
    """Return a rule that finds the results outside the range of their type; `exact`
    returns the results in float64, or None if they are not known."""

    def rule(op: Op, x: Sequence[np.ndarray], result: Seen) -> np.ndarray:
        found, info = exact(op, x), np.iinfo(result.dtype)
        if found is None:
            return np.zeros((), bool)
        return (found > info.max) | (found < info.min)

    return rule


def _reduced(op: Op, x: Sequence[np.ndarray]) -> np.ndarray | None:
    function = _of_region(op)
    if function is None or len(x) != 2:
        return None
    axes = tuple(op.attributes["dimensions"])
    return function(function.reduce(x[0], axis=axes), x[1])


def _cumulative(op: Op, x: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the exact results if an op is cumulative, like `jnp.cumsum`; else None."""
    function, sizes = _of_region(op), op.attributes["window_dimensions"]
    long = [n for n, size in enumerate(sizes) if size > 1]
    if function is None or len(x) != 2 or len(long) != 1:
        return None
    [axis] = long
    before, after = np.asarray(op.attributes["padding"])[axis]
    grows = {before, after} == {0, sizes[axis] - 1} and sizes[axis] == x[0].shape[axis]
    if not grows or op.results[0].type.shape != x[0].shape:
        return None
    ordered = x[0] if before else np.flip(x[0], axis)
    return function.accumulate(ordered, axis=axis)


def _scattered(op: Op, x: Sequence[np.ndarray], result: Seen) -> np.ndarray:
    if _of_region(op) is not np.add or len(x) != 3:
        return np.zeros((), int)
    missing = float(x[0].sum() + x[2].sum() - wide(result.actual).sum())
    times, rest = divmod(abs(missing), 2.0 ** (8 * np.dtype(result.dtype).itemsize))
    return np.asarray(0 if rest else int(times))


def wrapped_over_devices(op: Op, x: Sequence[Seen], results: Sequence[Seen]) -> int:
    """Return how many elements of sums over devices wrap around or saturate. Devices
    with equal results count as one group. A group is skipped if elements within the
    range are off by more than FP32 rounding: an operand of the group is missing."""
    dtype = np.dtype(results[0].dtype)
    is_sum = op.name == "stablehlo.all_reduce" and _of_region(op) is np.add
    if not (is_sum and dtype.kind in "iu") or is_word(dtype):
        return 0
    groups: dict[bytes, tuple[np.ndarray, list[np.ndarray]]] = {}
    for operand, result in zip(x, results, strict=True):
        actual = wide(result.actual)
        group = groups.setdefault(actual.tobytes(), (actual, []))
        group[1].append(wide(operand.actual))
    info, count = np.iinfo(dtype), 0
    for actual, operands in groups.values():
        total, size = np.sum(operands, axis=0), np.sum(np.abs(operands), axis=0)
        outside = (total < info.min) | (total > info.max)
        wraps = (total - actual) % 2.0 ** (8 * dtype.itemsize) == 0
        ends = (actual == info.min) | (actual == info.max)
        near = np.abs(total - actual) * _EXACT <= size
        if np.where(outside, wraps | ends, near).all():
            count += int(np.count_nonzero(outside))
    return count


def _of_region(op: Op) -> np.ufunc | None:
    names = [inner.name for inner in op.regions[0].ops]
    return _FOLDS.get(names[0]) if len(names) == 1 else None


_Rule = Callable[[Op, Sequence[np.ndarray], Seen], np.ndarray]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _exactly(lambda op, x: _ELEMENTWISE[op.name](*x))),
    # A cast of Inf or NaN is another fault and is not counted.
    "stablehlo.convert": _exactly(
        lambda op, x: np.nan_to_num(np.trunc(x[0]), posinf=0, neginf=0)
    ),
    "stablehlo.dot_general": _exactly(lambda op, x: products(DotDimensions.of(op), *x)),
    "stablehlo.reduce": _exactly(_reduced),
    "stablehlo.reduce_window": _exactly(_cumulative),
    "stablehlo.scatter": _scattered,
}
