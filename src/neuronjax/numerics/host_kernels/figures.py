"""Settings and results of kernels on arrays, for code that does not build these."""

from __future__ import annotations

from enum import IntEnum


class Told(IntEnum):
    """The settings of the distance kernel, which are FP64 numbers without sign.

    `SMALLEST` (normal) and `LARGEST` (finite) bound a format. `LOST` is the allowed
    error relative to the magnitude of a number, or to `FLOOR` if `FLOOR` is larger.
    `STEP` is the smallest normal number of the format in which errors are counted, and
    `PRECISION` is 2^n, where n is the number of its mantissa bits.
    """

    SMALLEST = 0
    LARGEST = 1
    LOST = 2
    STEP = 3
    PRECISION = 4
    FLOOR = 5


class Distance(IntEnum):
    """The results of the distance kernel: sums, maxima and counts. A number differs
    from a reference of its own type in any bit, and from one of another type in the
    value of the rounded reference."""

    ERROR2 = 0
    REFERENCE2 = 1
    ACTUAL2 = 2
    PRODUCT = 3
    ULP = 4
    ULP_MOST = 5
    SIZE_MOST = 6
    DIFFERENT = 7  # numbers that differ
    NOTHING = 8  # numbers that are zero
    ZEROS = 9  # numbers that are zero and whose reference is not
    BENEATH = 10  # nonzero references smaller than `SMALLEST` in magnitude
    BEYOND = 11  # references larger than `LARGEST` in magnitude
    CLIPPED = 12  # numbers of magnitude `LARGEST`, with a larger reference
    LOST = 13  # errors larger than `Told.LOST` allows


MAXIMA = frozenset((Distance.ULP_MOST, Distance.SIZE_MOST))
COUNTS = frozenset(list(Distance)[Distance.DIFFERENT :])
_STEPS = ("ACTUAL2", "PRODUCT", "ULP", "ULP_MOST", "DIFFERENT")
_RANGE = ("SIZE_MOST", "NOTHING", "ZEROS", "BENEATH", "BEYOND", "CLIPPED")
#: Setting -> the results that are computed if the setting is given; others always are.
ASKED_BY = {
    Told.STEP: [Distance[name] for name in _STEPS],
    Told.LARGEST: [Distance[name] for name in _RANGE],
    Told.LOST: [Distance.LOST],
}


class Lanes(IntEnum):
    """The pairs of runs whose distances the lane kernel measures: the reference on
    perturbed data against the reference; the run against the reference; the program on
    the reference's operands, rounded to FP32, against FP64 arithmetic on these."""

    MOVED = 0
    RUN = 1
    ALONE = 2


#: The distances that the lane kernel measures for each pair of runs.
LANE_FIGURES = {
    Lanes.MOVED: [Distance.ERROR2, Distance.REFERENCE2],
    Lanes.RUN: [*Distance],
    Lanes.ALONE: [Distance.ERROR2, Distance.REFERENCE2, *ASKED_BY[Told.STEP]],
}

#: The smallest magnitude that is not flushed. An engine first rounds to the digits of a
#: normal number and then flushes, so a magnitude just below 2^-126 becomes normal.
NORMAL = 2.0**-126 - 2.0**-151

#: The factors of the hash that perturbs data, and how far it shifts bits to the right.
FACTORS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
SHIFTS = 29, 32, 11
