"""Quotients of integers by way of a reciprocal, and casts that the compiler folds.

The oracles are NumPy: one FP32 product with one FP32 quotient, cut off, and the number
before a cast.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj

RECIPROCAL = nj.Policy(integer_division="reciprocal")
FOLDED = nj.Policy(round_trips="folded")


def _by_reciprocal(x: np.ndarray, divisor: int) -> np.ndarray:
    inverse = np.float32(1) / np.float32(divisor)
    return np.trunc(x.astype(np.float32) * inverse).astype(x.dtype)


def test_published_quotients() -> None:
    """Public runs (foxl-ai/kiln) give r - 1 for 1 to 4 and 6 to 8; 4768 is exact."""
    r = np.arange(1, 9, dtype=np.int32)

    def quotients(r: jax.Array) -> list[jax.Array]:
        return [r * divisor // divisor for divisor in (6284, 4768, 64, 4096)]

    first, *others = map(np.asarray, nj.jit(quotients, policy=RECIPROCAL)(r))
    assert [*first[:4], *first[5:]] == [0, 1, 2, 3, 5, 6, 7]
    assert all((found == r).all() for found in others)
    assert all((np.asarray(found) == r).all() for found in nj.jit(quotients)(r))


def test_quotients_by_a_constant() -> None:
    x = np.random.default_rng(5).integers(-(2**31), 2**31, 4096).astype(np.int32)
    x = np.concatenate([x, np.arange(-2000, 2000, dtype=np.int32) * 49])
    divided = nj.jit(lambda n: lax.div(n, np.int32(-49)), policy=RECIPROCAL)
    found = np.asarray(divided(x))
    assert (found == _by_reciprocal(x, -49)).all()
    with jax.disable_jit():
        assert (np.asarray(divided(x)) == found).all()


def test_other_quotients_are_exact() -> None:
    """A divisor that the program computes is no constant."""
    x = np.arange(1, 9, dtype=np.int32) * 6284
    found = nj.jit(lambda n, d: n // d, policy=RECIPROCAL)(x, np.int32(6284))
    assert (np.asarray(found) == np.arange(1, 9)).all()


@pytest.mark.parametrize("narrow", [jnp.bfloat16, jnp.float16])
def test_a_folded_cast_rounds_nothing(narrow: Any) -> None:
    x = np.random.default_rng(1).standard_normal(200).astype(np.float32)

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A cast there and back, and its narrow number."""
        y = x.astype(narrow)
        return y.astype(jnp.float32), y

    kept, folded = nj.jit(both)(x), nj.jit(both, policy=FOLDED)(x)
    assert (np.asarray(folded[0]) == x).all()
    assert (np.asarray(kept[0]) == x.astype(narrow).astype(np.float32)).all()
    assert (np.asarray(folded[1]) == x.astype(narrow)).all()


@pytest.mark.parametrize("emax", ["standard", "alternative"])
def test_modes_of_the_compiler_inside_a_composed_program(emax: Any) -> None:
    """A scan with quotients, casts and MX products, under grad: jit is op by op."""
    policy = nj.Policy(
        auto_cast="matmult",
        auto_cast_type="mxfp8",
        mx_emax=emax,
        integer_division="reciprocal",
        round_trips="folded",
    )
    draw = np.random.default_rng(3)
    w = draw.standard_normal((32, 32)).astype(np.float32)
    x = draw.standard_normal((4, 32)).astype(np.float32) * 300
    counts = np.arange(1, 4, dtype=np.int32) * 6284

    def loss(w: jax.Array, x: jax.Array, counts: jax.Array) -> jax.Array:
        def turn(x: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
            share = (count // 6284).astype(jnp.float32)
            kept = (x @ w).astype(jnp.bfloat16).astype(jnp.float32)
            return jnp.tanh(kept * (1 + share)), kept.sum()

        return jax.lax.scan(turn, x, counts)[1].sum()

    step = nj.jit(jax.value_and_grad(loss), target="trn3", policy=policy)
    compiled = step(w, x, counts)
    with jax.disable_jit():
        alone = step(w, x, counts)
    for one, other in zip(*map(jax.tree.leaves, (compiled, alone)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    plain = nj.jit(jax.value_and_grad(loss), target="trn3", policy="mxfp8")
    assert float(plain(w, x, counts)[0]) != float(compiled[0])


def test_what_is_between_two_casts_keeps_them() -> None:
    x = np.float32([1.001, -2.003])
    negated = lambda x: (-x.astype(jnp.bfloat16)).astype(jnp.float32)  # noqa: E731
    integers = lambda x: x.astype(jnp.int32).astype(jnp.float32)  # noqa: E731
    for function in (negated, integers):
        kept = nj.jit(function)(x)
        assert (np.asarray(nj.jit(function, policy=FOLDED)(x)) == kept).all()


def test_a_cast_to_a_dtype_that_is_no_narrower_is_kept() -> None:
    x = np.linspace(0.1, 1, 50).astype(np.float16)
    for other in (jnp.bfloat16, jnp.float32):
        back = lambda x, other=other: x.astype(other).astype(x.dtype)  # noqa: E731
        for given in (x, np.array([1e-39, 1.1], jnp.bfloat16)):
            found = np.asarray(nj.jit(back, policy=FOLDED)(given))
            assert found.tobytes() == np.asarray(nj.jit(back)(given)).tobytes()


def test_arithmetic_that_rounds_to_bfloat16() -> None:
    """The remedy of `check`: c = 65537 x; c - (c - x)."""
    x = np.random.default_rng(2).standard_normal(500).astype(np.float32)

    def rounded(x: jax.Array) -> jax.Array:
        c = 65537 * x
        return c - (c - x)

    found = np.asarray(nj.jit(rounded, policy=FOLDED)(x))
    assert (found == x.astype(jnp.bfloat16).astype(np.float32)).all()
