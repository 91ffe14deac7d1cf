"""Settings and results of the distance kernel, for code that does not build it."""

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
    """The results of the distance kernel: sums; `ULP_MOST` and `SIZE_MOST` are maxima,
    and the entries from `DIFFERENT_BITS` on count numbers."""

    ERROR2 = 0
    REFERENCE2 = 1
    ACTUAL2 = 2
    PRODUCT = 3
    ULP = 4
    ULP_MOST = 5
    SIZE_MOST = 6
    DIFFERENT_BITS = 7  # numbers whose bits differ from those of the rounded reference
    DIFFERENT = 8  # numbers whose value differs from that of the rounded reference
    NOTHING = 9  # numbers that are zero
    ZEROS = 10  # numbers that are zero and whose reference is not
    BENEATH = 11  # nonzero references smaller than `SMALLEST` in magnitude
    BEYOND = 12  # references larger than `LARGEST` in magnitude
    CLIPPED = 13  # numbers of magnitude `LARGEST`, with a larger reference
    LOST = 14  # errors larger than `Told.LOST` allows


MAXIMA = (Distance.ULP_MOST, Distance.SIZE_MOST)
