"""XLA's rewrites of arithmetic, each shown in plain JAX, and the guard against it.

The hazard is a property of this host's XLA: where it does not show, the test says so
by skipping, after the guard was asserted. Oracles are NumPy's, in FP32 step by step
(section 6 of the design).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from tests.conformance import bits
from tests.oracles import contraction, data, floats, reduction

emulate = nj.jit(target="trn2", policy="fp32")


def guarded(function, *args):
    """What the emulator returns: compiled, op by op, and under an outer jit."""
    step = emulate(function)
    out = bits.same_both_ways(step, *args)
    bits.assert_same(jax.jit(lambda *a: step(*a))(*args), out, "outer jit")
    return out


def report(hazard: str, host, expected) -> None:
    """Skips, with the reason, where the host computes the expected bits."""
    share = np.mean(np.asarray(host) != np.asarray(expected))
    if share == 0:
        pytest.skip(f"this host's XLA does not show it: {hazard}")


@pytest.mark.slow
def test_multiply_add_is_contracted():
    rng = np.random.default_rng(1)
    x, y, z = (data.normal(rng, (4096,)) for _ in range(3))
    program = lambda x, y, z: x * y + z  # noqa: E731
    expected = floats.add(floats.multiply(x, y), z)
    floats.same_bits(guarded(program, x, y, z), expected, "x * y + z")
    report("x * y + z is one fused multiply-add", jax.jit(program)(x, y, z), expected)


@pytest.mark.slow
def test_division_by_a_broadcast_is_a_multiplication():
    rng = np.random.default_rng(2)
    x, divisor = data.normal(rng, (64, 128)), data.normal(rng, (64, 1))
    program = lambda x, d: x / d  # noqa: E731
    expected = floats.divide(x, divisor)
    floats.same_bits(guarded(program, x, divisor), expected, "x / broadcast")
    host = jax.jit(program)(x, divisor)
    report("a / broadcast(b) is a * (1 / b)", host, expected)


def test_constants_are_reassociated():
    rng = np.random.default_rng(3)
    x = data.normal(rng, (4096,))
    a, b = np.float32(0.1), np.float32(0.3)
    program = lambda x: (x * a) * b  # noqa: E731
    expected = floats.multiply(floats.multiply(x, a), b)
    floats.same_bits(guarded(program, x), expected, "(x * a) * b")
    report("(x * a) * b is x * (a * b)", jax.jit(program)(x), expected)


def test_sums_with_constants_keep_their_order():
    rng = np.random.default_rng(4)
    x = data.normal(rng, (4096,))
    a, b = np.float32(0.1), np.float32(0.3)
    program = lambda x: (x + a) + b  # noqa: E731
    expected = floats.add(floats.add(x, a), b)
    floats.same_bits(guarded(program, x), expected, "(x + a) + b")
    report("(x + a) + b is x + (a + b)", jax.jit(program)(x), expected)


@pytest.mark.slow
def test_zeros_keep_their_signs():
    """Constants, padding and selections of +0 stay +0."""
    x = np.float32([-1.0, 2.0, -0.0, 0.0])

    def program(x):
        return (
            jnp.maximum(x, 0.0),
            jnp.where(x > 0, x, 0.0),
            jnp.pad(x, (1, 1)),
            jnp.abs(x) * 0.0,
            jnp.zeros(3) + jnp.zeros(3),
        )

    expected = (
        np.float32([0, 2, 0, 0]),
        np.float32([0, 2, 0, 0]),
        np.float32([0, -1, 2, -0.0, 0, 0]),
        np.zeros(4, np.float32),
        np.zeros(3, np.float32),
    )
    step = emulate(program)
    for name, outputs in (
        ("op by op", bits.op_by_op(step, x)),
        ("compiled", step(x)),
    ):
        for index, (out, values) in enumerate(zip(outputs, expected, strict=True)):
            floats.same_bits(out, values, f"{name}, output {index}")


@pytest.mark.slow
def test_additions_stay_outside_a_scatter():
    """Zeros, scattered onto, then added to: not scattered onto the addend."""
    rng = np.random.default_rng(9)
    updates, rows = data.normal(rng, (40, 8)), rng.integers(0, 7, 40)
    addend = data.normal(rng, (7, 8))

    def program(updates, rows, addend):
        return jnp.zeros((7, 8)).at[rows].add(updates) + addend

    total = np.zeros((7, 8), np.float32)
    for row, update in zip(rows, updates, strict=True):
        total[row] = floats.add(total[row], update)
    expected = floats.add(total, addend)
    out = guarded(program, updates, rows, addend)
    floats.same_bits(out, expected, "zeros.at[].add + addend")
    host = jax.jit(program)(updates, rows, addend)
    report("scatter(0, u) + x is scatter(x, u)", host, expected)


@pytest.mark.slow
def test_dots_have_another_order_in_a_program():
    rng = np.random.default_rng(5)
    x, w = data.normal(rng, (48, 200)), data.normal(rng, (200, 200))
    narrow = [floats.round_to(a, "bf16") for a in (x, w)]
    program = lambda x, w: jnp.tanh(x @ w) @ w.T @ w  # noqa: E731
    plain = (((1,), (0,)), ((), ()))
    array = contraction.Array(lhs="bf16", rhs="bf16")

    def dots(x, w):
        y = x @ w
        return y, (x + 1) @ w.T

    step = nj.jit(dots, target="trn2", policy="bf16")
    out, transposed = bits.same_both_ways(step, x, w)
    fold = contraction.dot_general(x, w, plain, array)
    floats.same_bits(out, fold, "x @ w")
    other = contraction.dot_general(floats.add(x, np.float32(1)), w.T, plain, array)
    floats.same_bits(transposed, other, "(x + 1) @ w.T")
    bits.same_both_ways(nj.jit(program, target="trn2", policy="bf16"), x, w)
    host = jax.jit(dots)(*narrow)[0]
    report("a dot in a program is no left fold", host, fold)


@pytest.mark.slow
def test_reductions_are_no_left_folds():
    rng = np.random.default_rng(6)
    x = data.cancelling(rng, (64, 700))
    program = lambda x: jnp.sum(x, axis=-1)  # noqa: E731
    expected = reduction.reduce(x, (1,))
    floats.same_bits(guarded(program, x), expected, "sum")
    report("sums have an order of their own", jax.jit(program)(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 513, 20_000])
def test_a_nan_survives_large_maxima(size):
    x = np.linspace(-1, 1, size, dtype=np.float32)[None].repeat(3, 0)
    x[0, size // 2] = x[1, 0] = np.nan
    program = lambda x: (jnp.max(x, axis=1), jnp.min(x, axis=1))  # noqa: E731
    expected = np.float32([np.nan, np.nan, 1]), np.float32([np.nan, np.nan, -1])
    for out, wanted in zip(guarded(program, x), expected, strict=True):
        floats.same_bits(out, wanted, f"maximum or minimum of {size}")
    host = np.isnan(np.stack(jax.jit(program)(x)))
    report("a large maximum loses a NaN", host, np.isnan(np.stack(expected)))


@pytest.mark.slow
def test_fp32_subnormals_are_zero_everywhere():
    rng = np.random.default_rng(7)
    x = data.tiny(rng, (2048,))
    half = np.float32(0.5)
    program = lambda x: (x + x, x * half, x - x / 2, jnp.abs(x) > 0)  # noqa: E731
    expected = (
        floats.add(x, x),
        floats.multiply(x, half),
        floats.subtract(x, floats.divide(x, np.float32(2))),
        floats.flush(np.abs(x)) > 0,
    )
    for out, wanted in zip(guarded(program, x), expected, strict=True):
        floats.same_bits(out, wanted, "flushed")
    kept = (x.astype(np.float64) * 0.5).astype(np.float32)
    # The other way round: a host that keeps them would differ from the chip.
    host = np.asarray(jax.jit(lambda x: x * half)(x))
    if not np.array_equal(host, expected[1]):
        pytest.skip("this host keeps FP32 subnormals outside the emulator")
    assert (kept != expected[1]).any()


@pytest.mark.slow
def test_bfloat16_round_trips_are_rounded():
    rng = np.random.default_rng(8)
    x = data.normal(rng, (2048,))
    program = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + x  # noqa: E731
    expected = floats.add(floats.round_to(x, "bf16"), x)
    floats.same_bits(guarded(program, x), expected, "round trip")
    host = jax.jit(program)(x)
    report("a BF16 round trip is elided", host, expected)
