"""Faults that the diagnostics' authors may look at while they build them.

One file a theme; `parts` has the innocent layers and losses around the faults. Every
case was run under its policy and compared with the healthy program in FP64.
"""

from __future__ import annotations

from benchmarks.faults.case import Fault
from benchmarks.faults.seen import (
    attention,
    counting,
    decisions,
    eight_bits,
    fitting,
    formulas,
    generative,
    geometry,
    integers,
    losses,
    more_integers,
    more_low_precision,
    more_science,
    more_signals,
    more_training,
    normalization,
    optimizers,
    quantization,
    recurrent,
    science,
    serving,
    signals,
    statistics,
    steps,
)

FAULTS: tuple[Fault, ...] = (
    *attention.FAULTS,
    *losses.FAULTS,
    *optimizers.FAULTS,
    *normalization.FAULTS,
    *recurrent.FAULTS,
    *generative.FAULTS,
    *decisions.FAULTS,
    *geometry.FAULTS,
    *science.FAULTS,
    *statistics.FAULTS,
    *signals.FAULTS,
    *integers.FAULTS,
    *eight_bits.FAULTS,
    *quantization.FAULTS,
    *more_integers.FAULTS,
    *more_training.FAULTS,
    *more_science.FAULTS,
    *more_signals.FAULTS,
    *more_low_precision.FAULTS,
    *counting.FAULTS,
    *formulas.FAULTS,
    *steps.FAULTS,
    *serving.FAULTS,
    *fitting.FAULTS,
)
