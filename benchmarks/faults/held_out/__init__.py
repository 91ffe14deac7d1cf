"""Numerical faults that nobody tunes the diagnostics on, grouped by theme."""

from __future__ import annotations

from benchmarks.faults.case import Fault
from benchmarks.faults.held_out import (
    attention,
    eight_bits,
    generative,
    geometry,
    integer_math,
    losses,
    normalization,
    optimizers,
    physics,
    policies,
    recurrent,
    reinforcement,
    training_loops,
    vision,
)

FAULTS: tuple[Fault, ...] = (
    *losses.FAULTS,
    *attention.FAULTS,
    *normalization.FAULTS,
    *recurrent.FAULTS,
    *reinforcement.FAULTS,
    *generative.FAULTS,
    *vision.FAULTS,
    *optimizers.FAULTS,
    *training_loops.FAULTS,
    *eight_bits.FAULTS,
    *policies.FAULTS,
    *integer_math.FAULTS,
    *physics.FAULTS,
    *geometry.FAULTS,
)
