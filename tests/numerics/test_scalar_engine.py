"""ScalarE's piecewise cubics: against an oracle, in every context, and their errors."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.special
from jax import lax

from neuronjax.execution.tiles.activation_functions import FUNCTIONS
from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.numerics.exact import opaque_zero, seal
from neuronjax.numerics.scalar_engine import OF_PROGRAMS, function, tables
from scripts import make_scalar_engine_tables as made
from tests.oracles import piecewise

NAMES = sorted(tables())
TINY = np.finfo(np.float32).tiny
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, TINY, -TINY, TINY / 2, -1e-39], np.float32
)


def run(name: str, x: np.ndarray) -> np.ndarray:
    """The function alone, compiled."""

    def call(x: jax.Array) -> jax.Array:
        zero = opaque_zero()
        return seal(function(name)(x, zero), zero)

    return np.asarray(jax.jit(call)(x))


def assert_same(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> None:
    """Bit for bit; of NaNs one is as good as another."""
    same = got.view(np.uint32) == want.view(np.uint32)
    same |= np.isnan(got) & np.isnan(want)
    assert same.all(), [(x[i], got[i], want[i]) for i in np.flatnonzero(~same)[:5]]


def numbers(name: str) -> np.ndarray:
    """Borders of segments, special values, a few of everything."""
    generator = np.random.default_rng(0)
    anything = generator.integers(0, 2**32, 3000, dtype=np.uint32).view(np.float32)
    near = generator.normal(0, 4, 5000).astype(np.float32)
    far = generator.uniform(-100, 100, 3000).astype(np.float32)
    return np.concatenate([piecewise.borders(name), SPECIAL, anything, near, far])


@pytest.mark.slow_except("exp", "log", "reciprocal", "rsqrt", "silu", "sin")
@pytest.mark.parametrize("name", NAMES)
def test_every_border_and_random_numbers_against_the_oracle(name: str) -> None:
    x = numbers(name)
    assert_same(run(name, x), piecewise.evaluate(name, x), x)


@pytest.mark.slow_except("bfloat16-exp", "float16-rsqrt")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_every_16_bit_number_against_the_oracle(name: str, dtype: type) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(dtype).astype(np.float32)
    assert_same(run(name, x), piecewise.evaluate(name, x), x)


@pytest.mark.slow_except("exp", "rsqrt", "silu")
@pytest.mark.parametrize("name", NAMES)
def test_special_values_are_those_of_the_exact_functions(name: str) -> None:
    x = SPECIAL[np.abs(SPECIAL) != TINY]
    zero = opaque_zero()
    want = np.asarray(jax.jit(FUNCTIONS[name])(x, zero))
    assert_same(run(name, x), want, x)


def test_the_tables_are_those_of_the_engine_that_are_no_arithmetic() -> None:
    simple = {"copy", "square", "abs", "sign", "relu", "prelu"}
    assert set(NAMES) == set(ACTIVATION_FUNCTIONS) - simple
    assert set(OF_PROGRAMS.values()) <= set(NAMES)


# ---- How the tables are made.


@pytest.mark.slow_except("rsqrt", "tanh")
@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_what_the_script_makes(name: str) -> None:
    with made.mpmath.workprec(made.PRECISION_BITS):
        assert made.rows(name, made.FUNCTIONS[name]) == piecewise.TABLES[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_segment_errs_by_more_than_the_tolerance(name: str) -> None:
    assert tables()[name].error <= made.TOLERANCE


def test_four_segments_to_an_octave_of_rsqrt_and_quarters_for_exp() -> None:
    assert [octave.bits for octave in tables()["rsqrt"].octaves] == [2, 2]
    widths = {
        2.0 ** (octave.exponent - octave.bits)
        for octave in tables()["exp"].octaves
        if octave.exponent >= -1
    }
    assert widths == {0.25}


# Results near 2^-126 lose more: products below it are zeros.
FLOAT64: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "exp": (np.exp, -75, 88),
    "log": (np.log, 2.0**-64, 2.0**64),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97),
    "sigmoid": (scipy.special.expit, -75, 90),
    "sqrt": (np.sqrt, 2.0**-116, 2.0**118),
    "tanh": (np.tanh, -90, 90),
}


@pytest.mark.slow_except("exp", "rsqrt")
@pytest.mark.parametrize("name", sorted(FLOAT64))
def test_the_error_in_the_documented_range(name: str) -> None:
    exact, low, high = FLOAT64[name]
    generator = np.random.default_rng(1)
    spread = generator.uniform(low, high, 20_000)
    if low > 0:
        spread = 2 ** generator.uniform(np.log2(low), np.log2(high), 20_000)
    x = np.concatenate([spread, generator.uniform(max(low, -4), 4, 20_000)])
    x = x.astype(np.float32)
    x = x[x > 0] if low > 0 else x
    want = exact(x.astype(np.float64))
    error = np.abs(run(name, x) - want) / np.abs(want)
    assert error.max() < 1.02 * made.TOLERANCE
    assert error.max() > 2.0**-19, "as coarse as ScalarE, not as FP32"


def test_the_sine_goes_on_as_the_published_cubic() -> None:
    got = run("sin", np.float32([9, -9])).tolist()
    assert got == pytest.approx([27.65, -27.65], abs=0.01)


# ---- Contexts.

X = np.random.default_rng(2).normal(0, 3, (24, 40)).astype(np.float32)


def _apply(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(function(name)(x, zero), zero)


def scanned(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = _apply(name, row, zero)
        return carry + jnp.sum(result) * np.float32(0.7), result

    return lax.scan(step, jnp.float32(0), x)[1]


def mapped(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: _apply(name, row, zero))(x)


def among_products(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    result = _apply(name, x, zero)
    other = _apply(name, x * np.float32(1.5) + result, zero) * result + x
    return jnp.where(other > 0, result, result + 0 * jnp.isnan(other))


def of_constants(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    return _apply(name, jnp.asarray(X), zero) + 0 * (x > 0)


CONTEXTS = (scanned, mapped, among_products, of_constants)


@pytest.mark.slow_except("scanned-exp", "among_products-rsqrt", "of_constants-log")
@pytest.mark.parametrize("name", ["exp", "log", "reciprocal", "rsqrt", "silu"])
@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.__name__)
def test_bits_are_the_same_in_every_context(name: str, context: Callable) -> None:
    x = np.abs(X) if name in ("log", "rsqrt") and context is not of_constants else X
    call = jax.jit(lambda x: context(name, x, opaque_zero()))
    got = np.asarray(jax.jit(lambda x: call(x))(x)).ravel()
    assert_same(got, run(name, x).ravel(), x.ravel())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "log", "reciprocal", "rsqrt", "silu", "sin"])
def test_bits_are_the_same_op_by_op(name: str) -> None:
    zero = opaque_zero()
    with jax.disable_jit():
        got = np.asarray(function(name)(jnp.asarray(X), zero))
    assert_same(got.ravel(), run(name, X).ravel(), X.ravel())
