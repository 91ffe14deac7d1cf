"""What the kernel of distances is told and what it finds, for who does not build it."""

from __future__ import annotations

from enum import IntEnum


class Told(IntEnum):
    """What the kernel is told, in FP64; sizes are magnitudes.

    `SMALLEST` and `LARGEST` are those of a format, `LOST` the share of a number that an
    error may have, and of `FLOOR` if the number is smaller; `STEP` and `PRECISION` the
    smallest normal number of the format in which errors are counted and 2 to the number
    of its mantissa's bits.
    """

    SMALLEST = 0
    LARGEST = 1
    LOST = 2
    STEP = 3
    PRECISION = 4
    FLOOR = 5


class Distance(IntEnum):
    """What it finds: sums, but for the maxima `ULP_MOST` and `SIZE_MOST`."""

    ERROR2 = 0
    REFERENCE2 = 1
    ACTUAL2 = 2
    PRODUCT = 3
    ULP = 4
    ULP_MOST = 5
    SIZE_MOST = 6
    DIFFERENT_BITS = 7
    DIFFERENT = 8
    NOTHING = 9
    ZEROS = 10
    BENEATH = 11
    BEYOND = 12
    CLIPPED = 13
    LOST = 14


MAXIMA = (Distance.ULP_MOST, Distance.SIZE_MOST)
