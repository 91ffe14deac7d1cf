"""ScalarE's function list: the published ranges."""

from __future__ import annotations

import math

import pytest

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS

RESTRICTED = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-math.pi, math.pi),
    "arctan": (-math.pi / 2, math.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),
}


def test_exactly_the_published_functions_are_restricted():
    everywhere = (-math.inf, math.inf)
    found = {n: v[-1] for n, v in ACTIVATION_FUNCTIONS.items() if everywhere not in v}
    assert found == RESTRICTED


@pytest.mark.parametrize("name", sorted(ACTIVATION_FUNCTIONS))
def test_intervals_are_ordered_and_apart(name):
    ends = [end for interval in ACTIVATION_FUNCTIONS[name] for end in interval]
    assert ends == sorted(ends)
