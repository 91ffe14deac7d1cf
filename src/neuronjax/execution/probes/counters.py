"""What is counted of the elements of a result."""

COUNTERS = (
    "elements",
    "nonzero",
    "underflow",
    "subnormal",
    "overflow",
    "saturated",
    "nan_in",
    "nan",
    "inf",
    "updates",
    "stagnant",
    "error_units",
    "blocks",
    "blocks_underflow",
    "blocks_saturated",
    "blocks_nan",
)
"""The rows of `Counters.counts`; what they mean is said at `Statistics`."""
