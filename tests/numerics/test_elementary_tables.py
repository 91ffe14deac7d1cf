"""Correct rounding to narrow formats, and the measured accuracy, against mpmath.

The ordinary tests round a sample by mpmath alone; the exhaustive ones all inputs of all
formats of at most 16 bits, and measure the FP32 functions over all or many numbers.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.numerics.elementary import EXCEPTIONS, MAX_ULP, MEASURED, UNARY, nearest
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.rounding import round_to_format
from scripts import make_tables

NAMES = sorted(UNARY)
SAMPLE = 48
# The functions of most programs meet every float32 number, in about a minute of one
# core each, the others every 97th.
EVERY_FLOAT32 = frozenset(
    {"cosine", "erf", "exponential", "exponential_base2", "exponential_minus_one"}
    | {"log", "log_plus_one", "logistic", "reciprocal", "rsqrt", "sine", "sqrt", "tanh"}
)
STRIDE = 97


def engine(name: str, format_name: str, x: jax.Array, zero: jax.Array):
    """(result, the same as the engine rounds it) of float32 numbers of a format."""
    result = UNARY[name](x, zero)
    corrected = nearest(name, x, result, format_name)
    return result, round_to_format(corrected, get_format(format_name))


def run(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of few numbers in float16, op by op, for compiling takes longer.

    `test_elementary` shows that it is the same.
    """
    zero = opaque_zero()
    with jax.disable_jit():
        pair = engine(name, "float16", jnp.asarray(np.resize(x, SAMPLE)), zero)
    result, rounded = (np.asarray(y)[: x.size] for y in pair)
    return result, rounded


def assert_same(got: jax.Array, want: np.ndarray, x: np.ndarray) -> None:
    bits, expected = np.asarray(got).view(np.uint32), want.view(np.uint32)
    wrong = (bits != expected) & ~(np.isnan(got) & np.isnan(want))
    assert not wrong.any(), [(x[i], got[i], want[i]) for i in np.flatnonzero(wrong)[:3]]


# ---- Rounding.


@pytest.mark.slow_cases(
    "bessel_i1e",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "cosh",
    "cosine",
    "digamma",
    "sine",
    "erfc",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_rounds_as_mpmath_says(name):
    fmt = get_format("float16")
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    x = generator.choice(make_tables.all_values(fmt), SAMPLE)
    want = make_tables.correctly_rounded(name, x, fmt)
    assert_same(run(name, x)[1], want, x)


@pytest.mark.slow_except("erfc", "exponential", "log", "log_plus_one", "tan")
@pytest.mark.parametrize("name", sorted(EXCEPTIONS["float16"]))
def test_each_exception_is_needed_and_right(name):
    fmt = get_format("float16")
    x, _ = (np.float32(column) for column in zip(*EXCEPTIONS["float16"][name]))
    want = make_tables.correctly_rounded(name, x, fmt)
    result, got = run(name, x)
    assert_same(got, want, x)
    assert (make_tables.rounded(result, fmt) != want).all()


def test_exceptions_are_few_and_neighbours_of_what_rounding_gives():
    rows = [row for f in EXCEPTIONS.values() for row in f.values()]
    assert set(EXCEPTIONS) == {"float16"}
    assert max(map(len, rows)) <= 20
    assert all(np.isfinite(output) for row in rows for _, output in row)


@pytest.mark.parametrize("format_name", ["bfloat16", "float8_e5m2", "float32"])
def test_other_formats_have_no_exceptions_and_pay_nothing(format_name):
    x = result = jnp.ones(3)
    assert nearest("cbrt", x, result, format_name) is result


@pytest.mark.slow
def test_rounding_to_odd_keeps_the_side_of_a_tie():
    """1 + 2^-11 is a tie in float16; what lies 2^-60 beside it is not."""
    tie = np.full(3, 1 + 2.0**-11)
    odd = make_tables.to_odd(tie, np.array([-1, 0, 1]))
    got = make_tables.rounded(odd, get_format("float16"))
    assert got.tolist() == [1, 1, 1 + 2.0**-10]


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_name", make_tables.FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_every_input_rounds_correctly(name, format_name):
    fmt = get_format(format_name)
    x = make_tables.all_values(fmt)
    want = make_tables.correctly_rounded(name, x, fmt)
    compiled = jax.jit(lambda x: engine(name, format_name, x, opaque_zero())[1])
    assert_same(compiled(x), want, x)


# ---- Accuracy.


def test_every_function_was_measured_and_keeps_its_bound():
    assert sorted(MEASURED) == NAMES
    for name, row in MEASURED.items():
        assert row.max_ulp <= MAX_ULP[name], name
        assert row.stride == 1 or name not in EVERY_FLOAT32, name
        # Zeros are where float64 is at its worst.
        assert row.reference_ulp < 1e-5, name


@pytest.mark.slow_cases("acos", "atan")
@pytest.mark.parametrize("name", NAMES)
def test_the_worst_case_on_record_is_reproduced(name):
    row = MEASURED[name]
    x = np.float32([row.at])
    error, _ = make_tables.worst_of(name, x, run(name, x)[0])
    assert error == pytest.approx(row.max_ulp, abs=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_over_float32(name):
    row = make_tables.measure(name, 1 if name in EVERY_FLOAT32 else STRIDE)
    assert row["max_ulp"] <= MAX_ULP[name], row
    assert row["reference_ulp"] < 1e-5
