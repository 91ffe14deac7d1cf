"""What a program or a kernel takes beside its instructions, once."""

from __future__ import annotations

from neuronjax.timing import assumptions as a
from neuronjax.timing.work import Core


def around_seconds(core: Core) -> float:
    """Of a program on a logical core."""
    return a.PROGRAM_SECONDS.value + joining_seconds(core)


def joining_seconds(core: Core) -> float:
    """Of a kernel: its cores begin and end together, if it has more than one.

    Nothing more is seen of kernels on one core: streams of 0.6 ms are predicted within
    1 % without it [KDA].
    """
    return a.TWO_CORES_SECONDS.value if core.lnc > 1 else 0.0
