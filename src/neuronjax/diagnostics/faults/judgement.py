"""When a result is farther off than its program and formats explain.

The figures were set on one half of a collection of faults and their healthy twins
(`benchmarks/faults`), and are reported on the other.
"""

from __future__ import annotations

from neuronjax.diagnostics.faults.shares import MOST_LOST, Share

#: So many times what perturbed data do is still the condition of the problem.
OF_DATA = 4.0
#: So many roundoffs of the coarsest format on the way are still ordinary rounding.
OF_ROUNDOFF = 6.0
#: Of formats of 8 bits and fewer, whose roundoffs average out sooner than they add up.
OF_COARSE_ROUNDOFF = 1.5
COARSE = 2.0**-6
#: A relative error that nobody minds in a result, for three of its digits are right;
#: differences in FP32 come near to it in programs that are as good as they can be.
UNSEEN = 1e-3
#: An error that no condition of the data excuses, unless it grew in 8 bits and fewer
#: from op to op.
HOPELESS = 0.35


def limit(share: Share, unit: float) -> float:
    """Return the relative L2 error up to which an array is as good as it can be."""
    return max(min(OF_DATA * share.data_error, HOPELESS), excused(unit))


def excused(unit: float) -> float:
    """The relative L2 error that roundings explain, whatever the data do."""
    times = OF_COARSE_ROUNDOFF if unit > COARSE else OF_ROUNDOFF
    return max(times * unit, UNSEEN)


def is_far(share: Share, unit: float) -> bool:
    """Return whether an array is farther off, or has lost elements."""
    if share.nonfinite != share.nonfinite_reference:
        return True
    return share.error > limit(share, unit) or loses_elements(share)


def loses_elements(share: Share) -> bool:
    """Whether single elements are lost, and not by the data's condition; then a result
    is wrong whatever its norm. One of a few may be near zero by chance."""
    if share.lost * share.elements <= 1 < share.elements:
        return False
    return share.lost > MOST_LOST and share.lost > OF_DATA * share.data_lost
