"""What accompanies the arguments and the results of a run, each by its name.

A program takes arrays and returns arrays. Beside them travel what stochastic rounding,
delayed scaling and probes need and make. Both records are pytrees, so that they pass
through `jax.jit`, `custom_vjp`, `custom_vmap` and `shard_map` as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.instruction import InstructionProgram


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CallContext:
    """What accompanies the arguments.

    Attributes:
        call_index: uint32 scalar, part of every stochastic rounding key.
        amax_history: float32 [amax_history_length, amax_slots], newest step first, for
            delayed scaling.
    """

    call_index: Any = None
    amax_history: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What a run returns.

    Attributes:
        results: one array per result of the program.
        amax_history: of the next call, where this one had one.
        statistics: what the probes counted: arrays by name, with a leading axis of
            probes; see `Statistics.arrays`.
    """

    results: Sequence[Any]
    amax_history: Any = None
    statistics: Any = None


def check_history(program: InstructionProgram, history: Any) -> None:
    """Refuse an amax history of another shape than the program's."""
    expected = (program.amax_history_length, program.amax_slots)
    if tuple(history.shape) != expected:
        raise InvalidProgramError(
            f"the amax history has shape {tuple(history.shape)}, the program needs "
            f"{expected} (steps, tensors)",
            remedy="make it with step.init_amax_history(*args)",
        )
