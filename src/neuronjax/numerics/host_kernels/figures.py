"""Settings and results of the distance kernel, for code that does not build it."""

from __future__ import annotations

from enum import IntEnum


class Told(IntEnum):
    """The settings of the kernel, in FP64; sizes are magnitudes.

    `SMALLEST` (normal) and `LARGEST` (finite) bound a format. `LOST` is the allowed
    error relative to the magnitude of a number, or to `FLOOR` where that is larger.
    `STEP` is the smallest normal number of the format in which errors are counted, and
    `PRECISION` is 2 to the number of its mantissa bits.
    """

    SMALLEST = 0
    LARGEST = 1
    LOST = 2
    STEP = 3
    PRECISION = 4
    FLOOR = 5


class Distance(IntEnum):
    """The results of the kernel: sums, except the maxima `ULP_MOST` and `SIZE_MOST`.

    From `DIFFERENT_BITS` on they are counts: of numbers that differ from the rounded
    reference, in bits or in value; of zeros, all (`NOTHING`) and those whose reference
    is not zero (`ZEROS`); of references below `SMALLEST` but not zero, and above
    `LARGEST`; of the latter those whose number is `LARGEST`; of errors not allowed.
    """

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
