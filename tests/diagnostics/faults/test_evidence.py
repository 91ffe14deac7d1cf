"""What is measured of arrays and ops, against figures made by hand."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from neuronjax.api.compare import compare
from neuronjax.capture.trace import capture
from neuronjax.diagnostics.distances import BLOCK_ELEMENTS
from neuronjax.diagnostics.faults.evidence import absorbed, cut_off, is_tie
from neuronjax.diagnostics.faults.judgement import loses_elements
from neuronjax.diagnostics.faults.perturbation import perturbed, unit_of
from neuronjax.diagnostics.faults.shares import Seen, repeated, share_of
from neuronjax.diagnostics.faults.whole_numbers import outside, rounds_whole
from neuronjax.numerics.host_kernels import choice

FP16 = np.dtype("float16")
FP32 = np.dtype("float32")


def number_outside(op, operands, result):
    return int(outside(op, operands, result).sum())


def seen(actual, reference, perturbed=None, dtype=None):
    actual = np.asarray(actual)
    wide = () if perturbed is None else (np.asarray(perturbed, np.float64),)
    return Seen(dtype or actual.dtype, np.asarray(reference, np.float64), actual, wide)


# -- arrays ----------------------------------------------------------------------------


def test_errors_are_relative_l2():
    share = share_of(seen(np.float32([3, 4]), [3, 5], [3, 4.5]), 2**-24)
    assert share.error == pytest.approx(1 / np.sqrt(34))
    assert share.data_error == pytest.approx(0.5 / np.sqrt(34))
    assert (share.elements, share.norm, share.largest) == (2, np.sqrt(17), 5)


def test_elements_off_by_more_than_half_are_lost():
    share = share_of(seen(np.float32([1, 1, 1, 0]), [1, 1.6, 2.1, 1]), 2**-24)
    assert share.lost == 0.5


@pytest.mark.parametrize(("size", "lost", "wrong"), [(8, 1, 0), (8, 2, 1), (40, 2, 0)])
def test_elements_are_lost_if_more_than_one_and_a_tenth(size, lost, wrong):
    reference = np.ones(size)
    actual = reference.astype(np.float32)
    actual[:lost] = 0.4
    assert loses_elements(share_of(seen(actual, reference), 2**-24)) == wrong


def test_numbers_that_are_nothing_beside_the_others_are_not_lost():
    share = share_of(seen(np.float32([1, 0]), [1, 1e-12]), 2**-24)
    assert share.lost == 0
    assert share.zeros == 0.5


def test_underflow_and_overflow_are_of_the_declared_format():
    reference = [1e-6, 1e-9, 1.0, 7e4]
    with np.errstate(over="ignore"):
        share = share_of(seen(np.float16(reference), reference), 2**-11)
    assert share.beneath == 0.5  # 6.1e-5 is the smallest normal number
    assert share.zeros == 0.25  # 6e-8 is the smallest of all
    assert share.beyond == 0.25
    assert (share.nonfinite, share.nonfinite_reference, share.nan) == (1, 0, 0)
    assert share.error == np.inf


def test_clipping_is_told_from_overflow():
    fp8 = np.dtype(ml_dtypes.float8_e4m3fn)
    share = share_of(seen(np.asarray([448, 448, 2], fp8), [1e3, 448, 2]), 2**-4)
    assert share.clipped == pytest.approx(1 / 3)


def test_nothing_and_an_empty_array():
    assert share_of(seen(np.zeros(3, FP32), [0, 0, 0]), 0.0).error == 0
    assert share_of(seen(np.zeros((0,), FP32), np.zeros(0)), 0.0).elements == 0


# -- ops -------------------------------------------------------------------------------


def op_of(function, *arguments):
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments]
    names = [f"x{n}" for n in range(len(types))]
    program = capture(function, types, names).program
    return program.entry.body.ops[-1]


def test_a_sum_that_absorbs():
    big, small = np.float32([1e8, 1e8, 1, 0]), np.float32([1, 1, 1, 5])
    pair = [seen(big, big), seen(small, small)]
    total = seen(big + small, big.astype(np.float64) + small)
    # Two of the four sums whose other addend is not zero are their larger addend.
    assert absorbed(op_of(jnp.add, big, small), pair, total) == (0.5, np.sqrt(0.5))
    assert absorbed(op_of(jnp.multiply, big, small), pair, total) == (0.0, 0)


def test_a_difference_that_is_minus_its_smaller_operand_absorbs_nothing():
    one, half = np.float32([1.0, 1e-9]), np.float32([0.5, 1.0])
    op = op_of(jnp.subtract, one, half)
    found = absorbed(op, [seen(one, one), seen(half, half)], seen(one - half, one))
    assert found == (0.5, pytest.approx(1e-9 / np.sqrt(2)))


def test_a_scatter_that_absorbs():
    state, gain = np.float32([1e8, 1e8, 0, 3]), np.float32([1, 1, 1])
    index = np.int32([0, 0, 2])
    op = op_of(lambda x, i, g: x.at[i].add(g), state, index, gain)
    exact = np.float64([1e8 + 2, 1e8, 1, 3])
    given = [seen(state, state), seen(index, index), seen(gain, gain)]
    # Two elements should have changed, and one did.
    assert absorbed(op, given, seen(np.float32([1e8, 1e8, 1, 3]), exact)) == (0.5, 1)


def test_a_cast_that_makes_what_it_made_before_absorbs_what_moves_the_reference():
    x = np.float32([256.5, 4, 2])
    op = op_of(lambda x: x.astype(jnp.bfloat16), x)
    before = seen(np.float32([256, 3, 2]), np.float64([256, 3, 2]))
    result = seen(np.float32([256, 4, 2]), x)
    assert absorbed(op, [seen(x, x)], result) == (0, 0)
    assert absorbed(op, [seen(x, x)], result, before) == (
        0.5,
        pytest.approx(0.5 / 3**0.5),
    )


@pytest.mark.slow
@given(st.integers(-128, 127), st.integers(-128, 127))
def test_integers_that_wrap(a, b):
    x, y = np.int8([a]), np.int8([b])
    with np.errstate(over="ignore"):
        total = seen(x + y, x + y)
    op = op_of(lambda x, y: x + y, x, y)
    assert number_outside(op, [seen(x, x), seen(y, y)], total) == int(
        not -128 <= a + b <= 127
    )


def test_hashes_may_wrap():
    x = np.uint32([2**31])
    op = op_of(lambda x, y: x + y, x, x)
    assert number_outside(op, [seen(x, x)] * 2, seen(x + x, x + x)) == 0


def test_a_sum_of_integers_that_wraps():
    x = np.full((2, 300), 2**24, np.int32)
    op = op_of(lambda x: x.sum(1), x)
    zero = np.int32(0)
    total = seen(np.zeros(2, np.int32), np.zeros(2))
    assert number_outside(op, [seen(x, x), seen(zero, zero)], total) == 2


def test_what_a_bound_takes_off():
    x, high = np.float32([1, 3]), np.float32([2, 2])
    op = op_of(jnp.minimum, x, high)
    operands = dict(zip(op.operands, (seen(x, x), seen(high, high)), strict=True))
    found = cut_off(op, operands, seen(np.float32([1, 2]), [1, 2]))
    assert [found[v][0] for v in op.operands] == pytest.approx([1 / np.sqrt(2)] * 2)


def test_what_a_bound_makes_zero_is_counted_apart():
    x, low = np.float32([-2, 3]), np.float32([0, 0])
    op = op_of(jnp.maximum, x, low)
    operands = dict(zip(op.operands, (seen(x, x), seen(low, low)), strict=True))
    found = cut_off(op, operands, seen(np.float32([0, 3]), [0, 3]))
    assert found[op.operands[0]] == pytest.approx((0, np.sqrt(2)))


# -- perturbed data --------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.floats(-1e30, 1e30), min_size=1))
def test_perturbed_data_stay_what_they_are(values):
    """Equal numbers stay equal, negatives negative, zeros zero; and within a unit."""
    x, unit = np.asarray(values), 2.0**-9
    y = perturbed(x, unit)
    normal = np.abs(x) > 1e-290
    assert np.all(np.abs(y - x)[normal] <= unit * np.abs(x)[normal] * (1 + 1e-12))
    assert np.array_equal(perturbed(-x, unit), -y)
    assert np.array_equal(perturbed(np.repeat(x, 2), unit), np.repeat(y, 2))
    assert np.array_equal(y == 0, x == 0) or not np.all(normal | (x == 0))


def test_data_are_perturbed_without_the_kernel_by_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 31)) * 2.0 ** rng.integers(-1070, 1000, (7, 31))
    x[0, :4] = 0.0, -0.0, np.inf, np.nan
    found = [perturbed(part, 2.0**-9, draw) for part in (x, x.T) for draw in (0, 3)]
    monkeypatch.setattr(choice, "enabled", False)
    again = [perturbed(part, 2.0**-9, draw) for part in (x, x.T) for draw in (0, 3)]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in again]


def test_a_perturbation_has_no_preferred_sign():
    x = np.random.default_rng(0).normal(size=100_000)
    shifts = (perturbed(x, 1.0) - x) / x
    assert abs(shifts.mean()) < 0.01
    assert shifts.std() == pytest.approx(3**-0.5, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        ("float32", 2**-24),
        ("bfloat16", 2**-8),
        ("float8_e4m3fn", 2**-4),
        ("int32", 0),
        ("bool", 0),
        ("float8_e8m0fnu", 0),
    ],
)
def test_units(dtype, unit):
    assert unit_of(np.dtype(dtype)) == unit


def test_what_needs_no_excuse_is_not_looked_at():
    x = seen(np.float32([3, 4]), [3, 4.001], [3, 5])
    assert share_of(x, 2**-24).data_error > 0.1
    assert share_of(x, 2**-24, excused=1e-2).data_error == 0


def test_repeated_numbers_have_the_figures_of_one():
    share = share_of(seen(np.float32([1, np.inf, 0]), [1, 2, 3]), 2**-24)
    twice = repeated(share, 6)
    assert (twice.elements, twice.nonfinite) == (6, 2)
    whole = share_of(seen(np.float32([1, np.inf, 0] * 2), [1, 2, 3] * 2), 2**-24)
    assert twice == whole


def test_errors_whose_squares_underflow_are_errors():
    share = share_of(seen(np.float32([0, 0]), [1e-200, 1e-210]), 2**-24)
    assert (share.lost, share.zeros) == (1, 1)


# -- whole numbers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "dtype", "rounds"),
    [
        ([2**24 + 1, 2], "float32", True),
        ([2**24 - 1, 2], "float32", False),
        ([2**24 + 1, 0.5], "float32", False),
        ([257, 1], "bfloat16", True),
        ([2.0**70], "float32", False),
    ],
)
def test_whole_numbers_that_a_float_rounds(numbers, dtype, rounds):
    x = np.asarray(numbers, np.float64)
    array = seen(x.astype(dtype), x)
    share = share_of(array, unit_of(array.dtype))
    op = op_of(jnp.negative, np.float32([1]))
    assert rounds_whole(op, array, share, 1e-8) == rounds
    assert not rounds_whole(op, array, share, 0.0)


def test_integers_that_an_engine_rounds():
    x = np.int32([2**24 + 1])
    array = seen(x - 1, x)
    share = share_of(array, 0.0)
    assert rounds_whole(op_of(lambda x: x + x, x), array, share, 6e-8)
    assert not rounds_whole(op_of(lambda x: x + x, x), array, share, 0.0)
    assert not rounds_whole(op_of(lambda x: x[::-1], x), array, share, 6e-8)


@pytest.mark.slow
@given(st.integers(-128, 127), st.integers(0, 7))
def test_shifts_that_wrap(x, bits):
    number, n = np.int8([x]), np.int8([bits])
    op = op_of(lambda x, n: x << n, number, n)
    total = seen(number << n, number << n)
    lost = int(not -128 <= x * 2**bits <= 127)
    assert number_outside(op, [seen(number, number), seen(n, n)], total) == lost


def test_products_of_matrices_that_wrap():
    rng = np.random.default_rng(0)
    x = rng.integers(-16, 17, (3, 4, 5)).astype(np.int8)
    w = rng.integers(-16, 17, (3, 5, 2)).astype(np.int8)
    op = op_of(
        lambda x, w: jnp.einsum("bij,bjk->bik", x, w, preferred_element_type=jnp.int8),
        x,
        w,
    )
    exact = np.matmul(x.astype(np.int64), w.astype(np.int64))
    result = exact.astype(np.int8)
    beyond = int(np.sum((exact > 127) | (exact < -128)))
    assert 0 < beyond < exact.size
    assert number_outside(op, [seen(x, x), seen(w, w)], seen(result, result)) == beyond


def test_scatters_and_casts_that_wrap():
    counts, index, ones = np.zeros(2, np.uint8), np.zeros(300, np.int32), np.uint8(1)
    op = op_of(lambda x, i: x.at[i].add(ones), counts, index)
    updates = np.ones(300, np.uint8)
    parts = [seen(x, x) for x in (counts, index[:, None], updates)]
    assert number_outside(op, parts, seen(np.uint8([44, 0]), [44, 0])) == 1
    assert number_outside(op, parts, seen(np.uint8([200, 100]), [200, 100])) == 0
    floats = np.float32([3e9, -5.5, np.nan])
    op = op_of(lambda x: x.astype(jnp.int32), floats)
    whole = seen(np.int32([2**31 - 1, -5, 0]), [0, 0, 0])
    assert number_outside(op, [seen(floats, floats)], whole) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_inf_in_large_arrays_does_not_make_numpy_warn():
    """NumPy counts their figures in blocks; 1e305 squared is Inf there."""
    x = np.full((2, BLOCK_ELEMENTS), 100.0, np.float32)
    report = compare(lambda x: jnp.exp(7 * x) - jnp.exp(6.9 * x), policy="fp32")(x)
    assert report.verdict is not None
    assert report.verdict.wrong[0].how == "nonfinite"
    assert report.faults[0].kind == "overflow"


def test_a_float_beside_a_whole_number_becomes_either_by_chance():
    op = op_of(lambda x: x.astype(jnp.int32), np.float32([2.0]))
    given = seen(np.float32([2.0]), [2.0 - 2.0**-40])
    assert is_tie(op, [given], seen(np.int32([2]), [1], dtype=np.dtype("int32")))


def test_a_float_that_is_another_number_is_no_tie():
    op = op_of(lambda x: x.astype(jnp.int32), np.float32([2.0]))
    given = seen(np.float32([1.9]), [2.0])
    assert not is_tie(op, [given], seen(np.int32([1]), [2], dtype=np.dtype("int32")))


@pytest.mark.parametrize(("size", "flips", "tie"), [(64, 1, 1), (64, 2, 0), (1, 1, 0)])
def test_one_comparison_of_many_falls_otherwise_by_chance(size, flips, tie):
    op = op_of(lambda x, y: x > y, np.zeros(size, "f"), np.zeros(size, "f"))
    zeros = seen(np.zeros(size, "f"), np.zeros(size))
    result = seen(np.arange(size) < flips, np.zeros(size, bool))
    assert is_tie(op, [zeros, zeros], result) == tie


def test_one_float_that_is_repeated_becomes_another_whole_number_by_chance():
    """A table of buckets has the same distance in every row."""
    same = np.full(256, 2.0, np.float32)
    op = op_of(lambda x: x.astype(jnp.int32), same)
    flips = seen(same.astype(np.int32), same - 1, dtype=np.dtype("int32"))
    assert is_tie(op, [seen(same, same - 2.0**-40)], flips)
    apart = np.arange(1, 257, dtype=np.float32)
    flips = seen(apart.astype(np.int32), apart - 1, dtype=np.dtype("int32"))
    assert not is_tie(op, [seen(apart, apart - 2.0**-40)], flips)
