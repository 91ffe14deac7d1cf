"""What one execution of a program with collectives costs before any of them runs.

A program with collectives waits for all ranks of its groups once per execution: 1 to 5
ms in the only published measurement (T16 of `benchmarks/validate_collectives.py`), and
no more for 12 all-reduces than for one. Not a cost per collective; `collectives` has
those.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from neuronjax.hardware import Target
from neuronjax.timing.collective_constants import (
    HARDWARE_BARRIER_SHARE,
    NULL_EXECUTION,
    TRN1_DOUBLING_BARRIER,
    TRN1_FOUR_BARRIER,
    TRN1_PAIR_BARRIER,
    TRN2_DOUBLING_BARRIER,
    TRN2_FOUR_BARRIER,
    TRN2_PAIR_BARRIER,
)

# For 2 ranks, for 4, and more for every doubling of 4.
_TRN1 = (TRN1_PAIR_BARRIER, TRN1_FOUR_BARRIER, TRN1_DOUBLING_BARRIER)
_TRN2 = (TRN2_PAIR_BARRIER, TRN2_FOUR_BARRIER, TRN2_DOUBLING_BARRIER)
# ASSUMPTION: chips without a measurement are like the one before them.
_BARRIERS = MappingProxyType(
    {"trn1": _TRN1, "inf2": _TRN1, "trn2": _TRN2, "trn3": _TRN2, "trn4": _TRN2}
)


def barrier_seconds(target: Target, ranks: int, *, hardware: bool = False) -> float:
    """The wait for all ranks of the largest group, once per execution.

    Args:
        target: the machine.
        ranks: of the largest group; 1 waits for nobody.
        hardware: with the runtime's barrier on the device (since SDK 2.27).
    """
    if ranks < 2:
        return 0.0
    pair, four, doubling = (c.value for c in _BARRIERS[target.chip.name])
    seconds = pair
    if ranks > 2:
        seconds = four + doubling * max(0.0, math.log2(ranks / 4))
    return seconds * (HARDWARE_BARRIER_SHARE.value if hardware else 1.0)


def execution_seconds(
    target: Target,
    ranks: int,
    collective_seconds: float = 0.0,
    *,
    hardware_barrier: bool = False,
) -> float:
    """A launch, the barrier, and the collectives of a program that has nothing else.

    Args:
        target: the machine.
        ranks: of the largest group.
        collective_seconds: of all its collectives together.
        hardware_barrier: as in `barrier_seconds`.
    """
    barrier = barrier_seconds(target, ranks, hardware=hardware_barrier)
    return NULL_EXECUTION.value + barrier + collective_seconds
