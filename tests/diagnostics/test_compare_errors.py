"""The errors of an array: hand-computed values, and sums that add up."""

import math

import ml_dtypes
import numpy as np
import pytest

from neuronjax.diagnostics.distances import BLOCK_ELEMENTS, same_bits
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.numerics.host_kernels import choice


def of(actual, reference, dtype=np.float32, reference_dtype=None):
    reference_dtype = reference_dtype or dtype
    return errors_of(np.array(actual, dtype), np.array(reference, reference_dtype))


def test_ulps_are_those_of_the_declared_format():
    step = 2.0**-23
    errors = of([1.0, 1 + 3 * step, 2.0], [1.0, 1.0, 2.0])
    assert errors.max_ulp == 3
    assert errors.mean_ulp == 1
    assert errors.differing == 1
    bfloat16 = of([1 + 2.0**-7], [1.0], ml_dtypes.bfloat16)
    assert bfloat16.max_ulp == 1


def test_a_number_where_the_reference_is_zero_is_at_most_all_of_the_significand():
    assert of([1e-3], [0.0]).max_ulp <= 2**24


def test_subnormal_spacing_is_that_of_the_smallest_normal_number():
    assert of([2.0**-149], [0.0]).max_ulp == 1


def test_a_float64_reference_gives_fractions_of_a_ulp():
    errors = of([1.0], [1 + 2.0**-25], reference_dtype=np.float64)
    assert errors.max_ulp == 0.25
    assert errors.differing == 0  # it is the correctly rounded result


def test_relative_l2_cosine_and_sqnr():
    errors = of([3.0, 5.0], [3.0, 4.0])
    assert errors.relative_l2 == pytest.approx(0.2)
    assert errors.sqnr_db == pytest.approx(-20 * math.log10(0.2))
    cosine = (9 + 20) / (5 * math.hypot(3, 5))
    assert errors.cosine == pytest.approx(cosine)


def test_nan_and_inf_are_counted_and_left_out_of_the_sums():
    nan, inf = math.nan, math.inf
    errors = of([nan, inf, -inf, 1.0, inf], [nan, inf, inf, 1.0, 2.0])
    assert errors.nonfinite == 4
    assert errors.nonfinite_reference == 3
    assert errors.nonfinite_changed == 2  # -Inf for Inf, Inf for 2
    assert errors.differing == 2
    assert errors.max_ulp == inf
    assert errors.relative_l2 == inf
    assert errors.sum_reference2 == 1


def test_integers_and_booleans():
    assert of([1, 7], [1, 4], np.int32).max_ulp == 3
    assert of([True, False], [True, True], np.bool_).differing == 1


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float16", "bfloat16"]
)
def test_every_format_counts_neighbours_as_one_ulp(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    one = np.ones(1, dtype)
    following = (one.view(f"u{dtype.itemsize}") + 1).astype(f"u{dtype.itemsize}")
    assert errors_of(following.view(dtype), one).max_ulp == 1


def test_blocks_add_up():
    generator = np.random.default_rng(0)
    r = generator.normal(size=2 * BLOCK_ELEMENTS + 7).astype(np.float32)
    a = (r * np.float32(1 + 1e-5)).astype(np.float32)
    whole = errors_of(a, r)
    parts = errors_of(a[:999], r[:999]) + errors_of(a[999:], r[999:])
    assert whole.elements == parts.elements == r.size
    assert whole.max_ulp == parts.max_ulp
    assert whole.relative_l2 == pytest.approx(parts.relative_l2)
    direct = np.linalg.norm((a - r).astype(float)) / np.linalg.norm(r.astype(float))
    assert whole.relative_l2 == pytest.approx(direct, rel=1e-6)


def test_nothing_is_no_error():
    assert Errors().relative_l2 == 0
    assert Errors().cosine == 1
    assert errors_of(np.zeros(0, np.float32), np.zeros(0, np.float32)) == Errors()


def test_same_bits_tells_zeros_and_dtypes_apart():
    plus, minus = np.zeros(2, np.float32), -np.zeros(2, np.float32)
    assert same_bits(plus, plus.copy())
    assert not same_bits(plus, minus)
    assert not same_bits(plus, plus.astype(np.float64))


@pytest.mark.parametrize("kernels", [True, False])
def test_the_errors_of_parts_add_up(kernels, monkeypatch):
    monkeypatch.setattr(choice, "enabled", kernels)
    r = np.random.default_rng(3).normal(size=2 * BLOCK_ELEMENTS + 5)
    a = (r * 1.001).astype(np.float32)
    whole = errors_of(a, r)
    halves = errors_of(a[:777], r[:777]) + errors_of(a[777:], r[777:])
    assert whole.max_ulp == halves.max_ulp
    assert whole.elements == halves.elements
    assert whole.relative_l2 == pytest.approx(halves.relative_l2, rel=1e-12)


def test_an_array_that_shows_another_twice_has_its_errors_twice():
    r = np.random.default_rng(4).normal(size=64)
    a = (r * 1.01).astype(np.float32)
    twice, shown = errors_of(np.tile(a, 2), np.tile(r, 2)), errors_of(a, r).repeated(2)
    assert (twice.elements, twice.differing) == (shown.elements, shown.differing)
    assert twice.sum_error2 == pytest.approx(shown.sum_error2, rel=1e-12)
    assert twice.max_ulp == shown.max_ulp
