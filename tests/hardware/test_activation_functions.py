"""ScalarE's function list: the published ranges, and which arguments they exclude."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.errors import UnsupportedError
from neuronjax.hardware.activation_functions import (
    ACTIVATION_FUNCTIONS,
    BY_STABLEHLO_NAME,
    activation_function,
    out_of_range,
)
from neuronjax.numerics.elementary import UNARY

FUNCTIONS = sorted(ACTIVATION_FUNCTIONS)
RESTRICTED = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-math.pi, math.pi),
    "arctan": (-math.pi / 2, math.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),
}


def test_exactly_the_published_functions_are_restricted():
    restricted = {f.name for f in ACTIVATION_FUNCTIONS.values() if f.is_restricted}
    assert restricted == set(RESTRICTED)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_intervals_are_ordered_and_apart(name):
    ends = [end for interval in ACTIVATION_FUNCTIONS[name].valid for end in interval]
    assert ends == sorted(ends)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_zero_and_nan(name):
    function = ACTIVATION_FUNCTIONS[name]
    x = np.float32([-np.inf, 0, np.inf, np.nan])
    needs_nonzero = name in ("log", "sqrt", "rsqrt", "reciprocal")
    infinite = function.is_restricted
    expected = [infinite, needs_nonzero, infinite, False]
    assert out_of_range(name, x).tolist() == expected


@pytest.mark.parametrize("name", sorted(RESTRICTED))
def test_the_ends_belong_to_the_range(name):
    low, high = RESTRICTED[name]
    ends = np.array([low, high])
    beyond = np.array([np.nextafter(low, -np.inf), np.nextafter(high, np.inf)])
    assert not out_of_range(name, ends).any()
    assert out_of_range(name, beyond).all()


def test_reciprocal_has_two_intervals():
    x = np.float32([-(2.0**43), -1, -(2.0**-43), 2.0**-43, 1, 2.0**43])
    expected = [True, False, True, True, False, True]
    assert out_of_range("reciprocal", x).tolist() == expected


def test_on_jax_arrays_under_jit_it_counts():
    x = jnp.array([-4.0, -3.0, 0.5, 9.0, jnp.nan])
    count = jax.jit(lambda x: out_of_range("sine", x).sum())(x)
    assert int(count) == 2


def test_both_vocabularies_name_the_same_function():
    for name, function in BY_STABLEHLO_NAME.items():
        assert activation_function(name) is function
        assert activation_function(function.name) is function


def test_elementary_functions_of_programs_are_known():
    """Names that the emulator computes and the engine has: a typo would drop one."""
    expected = {"atan", "erf", "exponential", "log", "logistic", "reciprocal", "rsqrt"}
    expected |= {"sine", "sqrt", "tanh"}
    assert set(BY_STABLEHLO_NAME) & set(UNARY) == expected


def test_an_unknown_name_is_an_error_that_lists_the_others():
    with pytest.raises(UnsupportedError, match="gelu_apprx_tanh"):
        out_of_range("cosine", np.float32([1]))
