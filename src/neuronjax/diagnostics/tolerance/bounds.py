"""Error bounds of a correct kernel, derived from its NumPy reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

# These modules register rules when they are imported.
import neuronjax.diagnostics.tolerance.contraction
import neuronjax.diagnostics.tolerance.elementwise
import neuronjax.diagnostics.tolerance.movement
import neuronjax.diagnostics.tolerance.reductions
import neuronjax.diagnostics.tolerance.stepwise  # noqa: F401
from neuronjax.diagnostics.tolerance.drawn import Draw, sharpened
from neuronjax.diagnostics.tolerance.fresh import names_changed, stand_ins
from neuronjax.diagnostics.tolerance.judged import Tolerance, sum_of_squares
from neuronjax.diagnostics.tolerance.model import SHARED_SPREAD, ErrorModel, error_model
from neuronjax.diagnostics.tolerance.runs import of_run
from neuronjax.diagnostics.tolerance.tracked import Tracked, as_tracked, over_blocks

#: Factor on bounds from random errors, since a kernel may use another algorithm than
#: its reference, such as sums in chunks.
_OTHER_WAYS = 2.0
#: Default number of runs with random errors: half of `drawn.SAMPLES`, since
#: `neuronjax judge` tries several seeds. With fewer runs bounds are wider.
SAMPLES = 16


def error_bounds(
    forward: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    precision: Any = "fp32",
    products: Any = None,
    sums: Any = "fp32",
    functions: str | Mapping[str, float] = "silicon",
    failure: float = 1e-12,
    samples: int | None = None,
    usual: int = SAMPLES,
) -> Any:
    """Run a NumPy reference and return its results with error bounds for kernels.

    The bounds rest on statements of three kinds. Rigorous: an error propagates by the
    largest slope over an operand's possible values, and any outcome of a comparison, an
    index or a `where` that the errors can cause is allowed. Probabilistic: roundings to
    nearest are independent and symmetric; an element of a correct kernel then exceeds
    its bound with a probability of at most `failure`. (With 1e-12, one of 1e9 elements
    exceeds its bound with a probability of 1e-3.) Assumed: a kernel's order of addition
    is independent of the signs of the terms (`contraction.py`); elementary functions
    have the measured error (`model.SILICON`), half of which is common to all elements;
    and two elements that the reference combines share roundings only where it
    broadcasts, contracts or assigns. A kernel with another but mathematically equal
    algorithm is sure to pass only where its roundings are no larger than those of the
    reference.

    The bound of the norm of all errors is sharper than those of single elements: in a
    norm, independent errors add in squares.

    A dropped term goes unnoticed if it is smaller than the bound, as are about 1 % of
    the terms of a sum of 4,096 products of normally distributed numbers.

    Args:
        forward: the reference; NumPy functions that it calls need rules. While it runs,
            NumPy is replaced in its module, so that arrays that it makes carry errors.
        inputs: arrays and numbers, as the reference takes them. The only error of float
            arrays is their rounding to `precision`.
        precision: the format to which every result is rounded: "fp32", "bf16", "fp16",
            "fp8_e4m3", "tf32", a name of a format, or a dtype.
        products: the format of the operands of contractions, by default `precision`;
            "bf16x3" means FP32 by three BF16 matmuls.
        sums: the format of partial sums.
        functions: relative errors of elementary functions: "silicon", as measured on
            chips; "emulated", for kernels on this emulator; or a mapping by name
            ("exp", "rsqrt", "sqrt", "reciprocal", "other").
        failure: probability that one correct element is refused.
        samples: number of runs with random errors that narrow the bounds, see
            `drawn.py`. None means `usual` if the bounds without runs exceed 1/128 of
            the result, as after long loops, else 0.
        usual: number of runs that `samples=None` makes.

    Returns:
        A `Tolerance`, or a tuple, list or dict of them as the reference returns.

    Raises:
        UnimplementedError: a function of the reference has no rule.
        InvalidProgramError: an unknown precision, or the reference converts an array to
            a Python number, which carries no error, as by `float(x[0])`.

    Memory: 12 to 16 bytes for every element that the reference holds; none for large
    results of element-wise functions, which are computed in parts (`pending.py`). Time:
    the time of two to four FP32 matmuls for each matmul of the reference.
    """
    model = error_model(precision, products, sums, functions, failure)

    def run(draw: Draw | None) -> Any:
        model_ = dataclasses.replace(model, draw=draw)
        tracked = [_entered(x, model_) for x in inputs]
        names = stand_ins(forward, model_)
        with names_changed(forward, names), np.errstate(all="ignore"):
            return forward(*tracked)

    def values(draw: Draw) -> Iterator[tuple[int, np.ndarray]]:
        for number, x in enumerate(jax.tree.leaves(run(draw))):
            value = as_tracked(x, model).value
            for n in range(draw.count):
                yield number, of_run(value, n)

    leaves, tree = jax.tree.flatten(run(None))
    with np.errstate(all="ignore"):
        tolerances = dict(enumerate(tolerance_of(as_tracked(x, model)) for x in leaves))
    how = {"usual": usual, "ways": _OTHER_WAYS, "is_batched": True}
    tolerances = sharpened(tolerances, values, samples, failure, **how)
    return jax.tree.unflatten(tree, [tolerances[n] for n in range(len(leaves))])


def _entered(x: Any, model: ErrorModel) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return x.copy() if x.dtype.kind in "iubOSU" else as_tracked(x, model)


def tolerance_of(x: Tracked) -> Tolerance:
    """Return the error bounds of `x`, per element and for the norm of all errors."""
    x = x.passed()
    is_stored = not x.functions
    value = (
        np.asarray(x.value, order="C") if is_stored else np.empty(x.shape, x.carrier)
    )
    bound = np.empty(x.shape, np.float32)

    def bound_of(block: Any) -> tuple[float, float]:
        part = x.part(block)
        if not is_stored:
            value[block] = part.value
        correlated = part.correlated(x.shared, block)
        sizes = sum(e for e in (part.own, correlated) if e is not None)
        limit = np.asarray(np.float32(x.model.spread) * sizes, np.float32)
        bound[block] = np.where(np.isnan(limit), np.float32(np.inf), limit)
        counts = np.isfinite(bound[block]) & np.isfinite(part.value)
        return _squares(part.own, counts), _squares(correlated, counts)

    of_own, of_correlated = np.sum(over_blocks(bound_of, x.shape), axis=0)
    spread = min(x.model.spread, 1 + x.model.spread / math.sqrt(2 * max(1, x.size)))
    norm = spread * math.sqrt(of_own) + SHARED_SPREAD * math.sqrt(of_correlated)
    return Tolerance(value, bound, norm)


def _squares(error: np.ndarray | None, counts: np.ndarray) -> float:
    if error is None:
        return 0.0
    return sum_of_squares(np.where(counts, error, np.float32(0.0)).reshape(-1))
