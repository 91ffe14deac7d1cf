"""The error up to which a result is as exact as its program and formats allow.

The limits were set on one half of a collection of faults and programs without faults
(`benchmarks/faults`), and tested on the other half.
"""

from __future__ import annotations

import math

from neuronjax.diagnostics.faults.shares import MOST_LOST, Share

#: Ill-conditioning explains errors up to this many times the effect of perturbed data.
OF_DATA = 4.0
#: An error up to this many roundoffs of the coarsest format is ordinary rounding.
OF_ROUNDOFF = 6.0
#: The limit instead of `OF_ROUNDOFF` in 8 bits or fewer, where errors average out.
OF_COARSE_ROUNDOFF = 1.5
COARSE = 2.0**-6
#: A relative error that is acceptable in any result: the roundoff of BF16. Differences
#: of FP32 numbers have errors of about 1e-3 even in the best programs.
UNSEEN = 2.0**-8
#: An acceptable error of a result of one number, which may be near zero by chance.
UNSEEN_IN_ONE = 1e-2
#: Ill-conditioning excuses errors up to this and, in 8 bits or fewer, larger errors
#: that grew from op to op.
HOPELESS = 0.35
#: The limit instead of `HOPELESS` in 9 to 16 bits if one op enlarges an error by
#: `COSTLY` or more, as a difference of two nearly equal products does.
OF_ONE_OP = 0.1
#: No ordinary op amplifies an error in a short format by this factor or more.
COSTLY = 16.0
#: A format with a larger roundoff is short: it has at most 16 bits.
SHORT = 2.0**-12


def limit(share: Share, unit: float, most: float = HOPELESS) -> float:
    """Return the largest relative L2 error of an array that its data and roundings by
    `unit` explain. In 9 to 16 bits, the data explain no error larger than `most`. If an
    array of zeros has other numbers on perturbed data, as after a choice by numbers
    that are nearly equal, any error is explained."""
    if math.isinf(share.data_error):
        return math.inf
    most = most if SHORT < unit <= COARSE else HOPELESS
    return max(min(OF_DATA * share.data_error, most), excused(unit))


def excused(unit: float) -> float:
    """Return the relative L2 error that roundings with roundoff `unit` explain."""
    times = OF_COARSE_ROUNDOFF if unit > COARSE else OF_ROUNDOFF
    return max(times * unit, UNSEEN)


def is_far(share: Share, unit: float, most: float = HOPELESS) -> bool:
    """Return whether the error of an array exceeds `limit`, its number of Inf and NaN
    differs from that in the reference, or `loses_elements` returns True."""
    if share.nonfinite != share.nonfinite_reference:
        return True
    return share.error > limit(share, unit, most) or loses_elements(share)


def loses_elements(share: Share) -> bool:
    """Return whether more elements are lost (far off) than perturbed data explain. A
    single element of several does not count: it may be near zero by chance."""
    if share.lost * share.elements <= 1 < share.elements:
        return False
    return share.lost > MOST_LOST and share.lost > OF_DATA * share.data_lost
