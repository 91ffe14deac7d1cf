"""What XLA must not see through, and quotients however their operands are broadcast."""

from __future__ import annotations

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.numerics import exact
from neuronjax.numerics.elementary_core import inverse, quotient
from neuronjax.numerics.exact import opaque, opaque_zero, seal
from tests.host_bits import beside_smallest


def test_xla_evaluates_no_part_of_the_zero():
    compiled = jax.jit(opaque_zero).lower().compile()
    assert " fft(" in str(compiled.as_text())
    assert np.asarray(compiled()).view(np.uint32) == 0x8000_0000


def test_other_platforms_draw_the_zero():
    text = jax.jit(opaque_zero).trace().lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.rng" in text
    assert "stablehlo.fft" not in text


@pytest.mark.slow
def test_the_zero_is_one_under_every_transformation():
    """A constant argument of an outer jit, a batch, a derivative."""

    def add(x):
        return seal(x * x, opaque_zero())

    x = np.linspace(-3, 3, 8, dtype=np.float32)
    for run in (jax.jit(add), jax.vmap(add), jax.jit(jax.vmap(add))):
        np.testing.assert_array_equal(run(x), x * x)
    np.testing.assert_array_equal(jax.vmap(jax.grad(add))(x), 2 * x)


FLOATS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int32", *FLOATS])
def test_opaque_changes_no_bit(dtype):
    codes = np.arange(256, dtype=np.uint8)
    x = (codes % 2 == 1) if dtype == "bool" else codes.view(jnp.dtype(dtype))
    out = jax.jit(lambda x: opaque(x, opaque_zero()))(x)
    assert np.asarray(out).tobytes() == x.tobytes()


SHAPES = {"scalar": (1, 1), "row": (1, 96), "column": (64, 1), "full": (64, 96)}


@pytest.mark.slow_except(
    "-scalar-scalar",
    "-full-full",
    "dividend-full-full",
    "divisor-full-full",
)
@pytest.mark.parametrize(("a", "b"), [*itertools.product(SHAPES, SHAPES)])
@pytest.mark.parametrize("batch", ["", "dividend", "divisor"])
def test_quotients_are_ieee_however_operands_are_broadcast(a, b, batch):
    """XLA makes a product with the reciprocal of a divisor that is a broadcast."""
    rng = np.random.default_rng(7)

    def drawn(shape, batched):
        shape = (4, *shape) if batched else shape
        return rng.standard_normal(shape).astype(np.float32) * 10

    x, y = drawn(SHAPES[a], batch == "dividend"), drawn(SHAPES[b], batch == "divisor")

    def run(x, y):
        zero = opaque_zero()
        dividend, divisor = (jnp.broadcast_to(v, SHAPES["full"]) for v in (x, y))
        return seal(quotient(dividend, divisor, zero), zero)

    axes = (0 if batch == "dividend" else None, 0 if batch == "divisor" else None)
    call = jax.vmap(run, axes) if batch else run
    expected = np.broadcast_to(x / y, (*([4] if batch else []), *SHAPES["full"]))
    np.testing.assert_array_equal(jax.jit(call)(x, y), expected)


@pytest.mark.parametrize("constant", [1.0, 0.3, -7.0, 0.0])
def test_a_constant_divided_by_a_broadcast(constant):
    y = np.float32([3.0, -0.7, 1e-30, 49.0, np.inf, 2.0**127])

    @jax.jit
    def run(y):
        zero = opaque_zero()
        wide = jnp.broadcast_to(y[:, None], (6, 128))
        dividend = opaque(jnp.full((6, 128), constant, jnp.float32), zero)
        return seal(quotient(dividend, wide, zero), zero), inverse(wide, zero)

    with np.errstate(under="ignore"):
        expected = np.float32(constant) / y
        reciprocal = np.float32(1) / y
    expected, reciprocal = (
        np.where(np.abs(v) < 2.0**-126, np.copysign(np.float32(0), v), v)
        for v in (expected, reciprocal)
    )
    found = [np.asarray(v)[:, 0].view(np.uint32) for v in run(y)]
    np.testing.assert_array_equal(found[0], expected.astype(np.float32).view(np.uint32))
    np.testing.assert_array_equal(
        found[1], reciprocal.astype(np.float32).view(np.uint32)
    )


def rounded_then_flushed(a, b) -> np.float32:
    """The product by fractions: to 24 bits whatever the exponent, then flushed."""
    product = Fraction(float(a)) * Fraction(float(b))
    sign = np.float32(-1 if product < 0 else 1)
    power, size = 0, abs(product)
    while size < 2**23:
        power, size = power - 1, size * 2
    while size >= 2**24:
        power, size = power + 1, size / 2
    found = round(size) * Fraction(2) ** power
    return sign * np.float32(float(found) if found >= Fraction(2) ** -126 else 0.0)


@pytest.mark.parametrize("rounds_first", [True, False])
def test_products_are_rounded_and_then_flushed(monkeypatch, rounds_first):
    """As this host does it, and as one that flushes first is made to."""
    a, b = beside_smallest()
    a, b = (np.concatenate([x[::60], x[-25:]]) for x in (a, b))
    a = a * np.where(np.arange(len(a)) % 2, -1, 1).astype(np.float32)
    if not rounds_first:
        monkeypatch.setattr(exact, "_rounds_first", lambda: False)
    found = np.asarray(jax.jit(exact.product)(a, b, exact.opaque_zero()))
    wanted = np.array([rounded_then_flushed(*pair) for pair in zip(a, b, strict=True)])
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    below = np.abs(a.astype(np.float64) * b) < 2.0**-126
    assert (below & (wanted != 0)).any()  # where the two orders differ
    large = np.float32([3e38, -3e38, np.inf, np.nan, 0.0]), np.float32([2, 2, 1, 1, -1])
    found = np.asarray(jax.jit(exact.product)(*large, exact.opaque_zero()))
    np.testing.assert_array_equal(found, large[0] * large[1])
