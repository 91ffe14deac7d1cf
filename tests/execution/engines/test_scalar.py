"""ScalarE: every function a program can name, rounded correctly where it is narrow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution.engines.dispatch import Registers, execute
from neuronjax.execution.engines.scalar import host_function
from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import Activation
from neuronjax.ir.program import TensorType
from neuronjax.lowering.elementwise import CHLO_FUNCTIONS, FUNCTIONS
from neuronjax.numerics.elementary import EXCEPTIONS, UNARY
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.float_format import get_format
from scripts import make_tables

PROGRAM_NAMES = sorted({*FUNCTIONS, *CHLO_FUNCTIONS})


def emulated(name: str, **policy):
    options = {"policy": nj.Policy(**policy)} if policy else {"policy": "fp32"}
    return nj.jit(host_function(name), target="trn2", **options)


def executed(name: str, dtype: str, x: np.ndarray, **attributes) -> np.ndarray:
    """One activation, without a program: JAX itself writes some functions out."""
    kind = TensorType(x.shape, np.dtype(dtype))
    activation = Activation(
        operands=(View(Buffer(0, kind)),),
        results=(Buffer(1, kind),),
        engine="scalar",
        function=name,
        **attributes,
    )

    def call(x: jax.Array) -> jax.Array:
        registers = Registers(opaque_zero(), jnp.uint32(0))
        return execute(activation, (x,), registers)[0]

    return np.asarray(jax.jit(call)(x.astype(dtype))).astype(np.float32)


def test_every_function_of_a_program_has_an_implementation():
    assert set(PROGRAM_NAMES) <= set(UNARY)
    assert all(callable(host_function(name)) for name in PROGRAM_NAMES)


@pytest.mark.slow_except("logistic")
@pytest.mark.parametrize("name", ["acos", "cbrt", "digamma", "logistic"])
def test_float16_is_correctly_rounded_at_the_exceptions(name):
    fmt = get_format("float16")
    x = np.float32([argument for argument, _ in EXCEPTIONS["float16"][name]])
    want = make_tables.correctly_rounded(name, x, fmt)
    np.testing.assert_array_equal(executed(name, "float16", x), want)


@pytest.mark.slow
def test_a_program_rounds_like_the_instruction():
    x = np.float32([argument for argument, _ in EXCEPTIONS["float16"]["cbrt"]])
    got = emulated("cbrt")(jnp.asarray(x, jnp.float16))
    assert got.dtype == jnp.float16
    want = executed("cbrt", "float16", x)
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want)


@pytest.mark.slow_cases("lgamma")
@pytest.mark.parametrize("name", ["tanh", "lgamma"])
def test_bfloat16_is_correctly_rounded(name):
    x = np.random.default_rng(0).uniform(-4, 4, 64).astype(ml_dtypes.bfloat16)
    x, fmt = x.astype(np.float32), get_format("bfloat16")
    want = make_tables.correctly_rounded(name, x, fmt)
    np.testing.assert_array_equal(executed(name, "bfloat16", x), want)


@pytest.mark.slow_cases("digamma")
@pytest.mark.parametrize("name", ["bessel_i1e", "digamma"])
def test_float32_is_the_polynomial_itself(name):
    x = np.random.default_rng(0).uniform(-6, 6, 1000).astype(np.float32)
    want = make_tables.in_float32(name)(x)
    got = executed(name, "float32", x)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.slow
def test_a_result_rounded_elsewhere_has_no_exceptions():
    """Under auto-cast "all" the exceptions of the buffer's dtype do not apply."""
    x = np.float32([argument for argument, _ in EXCEPTIONS["float16"]["cbrt"]])
    got = executed("cbrt", "float16", x, write_format="float8_e4m3")
    once = make_tables.rounded(np.cbrt(x), get_format("float8_e4m3"))
    np.testing.assert_array_equal(got, once)


def test_stochastic_rounding_is_about_the_float32_result():
    """The exception would shift the mean; both neighbours must occur."""
    (argument, _), *_ = EXCEPTIONS["float16"]["cbrt"]
    x = jnp.full(4096, argument, jnp.float16)
    got = emulated("cbrt", rounding="stochastic", seed=3).with_rounding_seed(0)(x)
    values, counts = np.unique(np.asarray(got), return_counts=True)
    assert values.size == 2
    assert abs(counts[0] - 2048) < 5 * 32  # within five standard deviations of a half


def test_host_functions_are_the_hosts():
    x = jnp.linspace(0.5, 3, 7)
    got = emulated("digamma", transcendentals="host")(x)
    np.testing.assert_allclose(got, jax.lax.digamma(x), rtol=1e-5)
