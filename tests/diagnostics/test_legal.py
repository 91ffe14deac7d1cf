"""Bounds of single instructions: by hand where they are known, else in many runs."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

import neuronjax as nj
from neuronjax.diagnostics import reference64_tables
from neuronjax.errors import UnimplementedError
from neuronjax.numerics.elementary import UNARY

BF16 = ml_dtypes.bfloat16


def bounds(function, *arguments, **options):
    return nj.tolerance(function, policy="fp32", **options)(*arguments)


@pytest.mark.parametrize("name", UNARY)
def test_every_function_has_a_reference(name):
    assert name in reference64_tables.UNARY


def test_one_rounding_is_off_by_half_a_step():
    """1 + 2^-9 lies between two BF16 numbers that are 2^-7 apart; 300 + 0.5, 2."""
    x = np.asarray([1.0, 300.0], BF16)
    y = np.asarray([2.0**-9, 0.5], BF16)
    found = bounds(lambda x, y: x + y, x, y)
    np.testing.assert_array_equal(found.expected, [1 + 2.0**-9, 300.5])
    np.testing.assert_allclose(found.atol, [2.0**-8, 1.0], rtol=1e-6)
    assert found.allows(np.asarray([1.0, 300.0], BF16))
    assert not found.allows(np.asarray([1.0, 304.0], BF16))


@pytest.mark.slow_except("<lambda>0", "<lambda>4", "<lambda>10")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0.25,
        lambda x: x + 3,
        lambda x: x * x,
        lambda x: -jnp.abs(x),
        lambda x: jnp.maximum(x, x[::-1]),
        lambda x: x.T.reshape(2, -1)[:, ::2],
        lambda x: jnp.concatenate([x, jnp.pad(x, 1)[:, :4]]),
        lambda x: x[jnp.asarray([2, 0, 1])],
        lambda x: lax.dynamic_update_slice(x, x[:1, :1], (1, 1)),
        lambda x: jnp.where(x > 2, x, 7.0),
        lambda x: jnp.sort(x, axis=1),
        lambda x: x.astype(jnp.int32),
    ],
)
def test_what_fp32_holds_has_no_error(function):
    """Whole numbers: no operation here rounds them."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = bounds(function, x)
    assert not found.atol.any()
    np.testing.assert_array_equal(found.expected, function(jnp.asarray(x)))


def test_a_cast_of_what_is_exact_is_made():
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    found = bounds(lambda x: x.astype(jnp.bfloat16), x)
    np.testing.assert_array_equal(found.expected, x.astype(BF16).astype(np.float64))
    assert not found.atol.any()


def test_an_error_that_a_row_shares_cancels():
    """The sum of a softmax is 1 whatever the table of exp: what all of a row has too
    much, its denominator has too."""
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    total = bounds(lambda x: jax.nn.softmax(x).sum(-1), x, samples=0)
    plain = bounds(lambda x: jnp.exp(x).sum(-1), x, samples=0)
    share = np.max(plain.atol / plain.expected)
    assert np.max(total.atol) < share
    assert total.atol.max() < 2e-4


FUNCTIONS = {
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": lambda x: jnp.log(jnp.abs(x) + 0.1),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "rsqrt": lambda x: lax.rsqrt(jnp.abs(x) + 0.1),
    "cbrt": jnp.cbrt,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "erf": special.erf,
    "erfc": special.erfc,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": lambda x: jnp.tan(x / 4),
    "atan": jnp.arctan,
    "atan2": lambda x: jnp.arctan2(x, x[::-1]),
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "asin": lambda x: jnp.arcsin(jnp.tanh(x)),
    "power": lambda x: jnp.power(jnp.abs(x), 1.7),
    "cube": lambda x: x**3,
    "lgamma": lambda x: special.gammaln(jnp.abs(x) + 1),
}


@pytest.mark.slow_except("sinh", "cube")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_inside_exact_and_from_tables(name):
    x = np.random.default_rng(0).normal(size=512).astype(np.float32) * 2
    found = bounds(FUNCTIONS[name], x, samples=0)
    for how in ("exact", "scalar_engine"):
        policy = nj.Policy(auto_cast="none", transcendentals=how)
        checked = found.check(nj.jit(FUNCTIONS[name], policy=policy)(x))
        assert checked, f"{how}\n{checked}"
    sharp = bounds(FUNCTIONS[name], x, samples=0, functions="emulated")
    assert sharp.allows(nj.jit(FUNCTIONS[name], policy="fp32")(x))
    assert np.all(sharp.atol <= found.atol * (1 + 1e-6))


def test_an_instruction_without_a_rule_has_a_line_and_a_remedy():
    def pooled(x):
        shape = ((2,), (2,), "VALID")
        return lax.reduce_window(x, -jnp.inf, lax.max, *shape).sum()

    with pytest.raises(UnimplementedError) as caught:
        bounds(jax.grad(pooled), np.arange(8, dtype=np.float32))
    assert "select_and_scatter" in str(caught.value)
    assert "test_legal.py" in (caught.value.location or "")
    assert "nj.compare" in (caught.value.remedy or "")
