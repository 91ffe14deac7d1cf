"""Bounds from runs whose roundings are drawn, for programs that are deep.

Slopes add up what every operand may be: after a few layers, in which errors cancel as
often as they agree, their bound is far from any run. A sampled run makes every error
that a rule knows, of a rounding, an order or a table, by chance and of its size, and
computes on with that: correlations and cancellations are the program's own. The
distance of a legal run from the reference is then, in units of what some runs have,
distributed as Student's t. Errors are drawn `AMPLITUDE` times too large and distances
divided by it, so that a kink (`relu`) nearby is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from scipy.special import stdtrit

from neuronjax.diagnostics.legal.held import Held
from neuronjax.diagnostics.legal.results import LegalOutput
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import Tracked

SAMPLES = 32
AMPLITUDE = 4.0
#: No element of an array is taken to be surer than by this share of what is typical.
_FLOOR = 0.125
#: Of an output, as a share of its typical number.
_LITTLE = 2.0**-7


def drawn(held: Held, is_drawn: bool, generator: np.random.Generator) -> Held:
    """A value with one of the errors it may have, and none that is not drawn.

    It is marked, and what follows from it, so that a later cast draws its rounding too
    and does not make it."""
    x = held.x
    if not isinstance(x, Tracked) or x.dtype.kind in "iub" or x.is_exact:
        return Held(x, held.shape, is_drawn=is_drawn)
    error = np.zeros(x.shape)
    if x.own is not None:
        error += x.own * generator.standard_normal(x.shape)
    if x.joint is not None:
        error += x.joint * generator.standard_normal()
    for term in x.shared.values():
        size = term.scale * x.value if term.is_relative else term.scale
        error += size * generator.standard_normal()
    value = x.value.astype(np.float64)
    # What may be anything, as what may overflow, is no number from here on.
    shift = np.where(np.isfinite(error), AMPLITUDE * error, np.nan)
    value = np.where(np.isfinite(value), value + shift, value)
    kept = Tracked(value.astype(x.value.dtype), x.model)
    return Held(kept, held.shape, is_drawn=True)


class Spread:
    """How far sampled runs are from a reference, element by element.

    Args:
        expected: the reference.

    Attributes:
        count: of the runs so far.
    """

    def __init__(self, expected: np.ndarray) -> None:
        self._expected = expected.astype(np.float64)
        self._squares = np.zeros(expected.shape)
        self._largest = np.zeros(expected.shape)
        self._norm = 0.0
        self.count = 0

    def add(self, values: np.ndarray) -> None:
        """One run more."""
        with np.errstate(all="ignore"):
            apart = (values.astype(np.float64) - self._expected) / AMPLITUDE
            squares = np.where(np.isfinite(self._expected), np.square(apart), 0.0)
        squares = np.where(np.isnan(squares), np.inf, squares)
        self._squares += squares
        self._largest = np.maximum(self._largest, AMPLITUDE * np.sqrt(squares))
        self._norm += float(squares[np.isfinite(squares)].sum())
        self.count += 1

    def bounds(self, failure: float) -> tuple[np.ndarray, float]:
        """Of every element's error, and of the norm of all."""
        quantile = -float(stdtrit(self.count, failure / 2))
        scale = np.sqrt(self._squares / self.count)
        known = scale[np.isfinite(scale)]
        floor = _FLOOR * float(np.median(known)) if known.size else 0.0
        # Where a number may jump, a legal run may be as far off as a sampled one is.
        elements = np.maximum(quantile * np.maximum(scale, floor), self._largest)
        return elements, quantile * float(np.sqrt(self._norm / self.count))


def narrowed(output: LegalOutput, spread: Spread, model: ErrorModel) -> LegalOutput:
    """An output whose bounds are the smaller of slopes' and samples'."""
    if output.dtype.kind in "iub":
        return output
    elements, norm = spread.bounds(model.failure)
    is_number = np.isfinite(output.expected)
    atol = np.where(is_number, np.minimum(output.atol, elements), output.atol)
    is_whole = np.isfinite(output.atol).all()  # else the norm is that of the others
    l2 = min(output.l2, norm) if is_whole else norm
    return dataclasses.replace(output, atol=atol, l2=l2)


def is_wide(output: LegalOutput) -> bool:
    """Whether slopes alone say little of an output."""
    expected = output.expected[np.isfinite(output.expected)]
    if output.dtype.kind in "iub" or not expected.size:
        return False
    typical = float(np.sqrt(np.mean(np.square(expected))))
    return float(np.median(output.atol)) > _LITTLE * typical


def generators(samples: int) -> Iterable[np.random.Generator]:
    """One for each run, always the same."""
    return (np.random.default_rng((samples, n)) for n in range(samples))
