"""FP4 in loops, sorts and casts: compiled it is what it is op by op and in NumPy.

XLA has no integers of four bits that it could sort, and fails to compile bitcasts of
FP4 in loops over arrays of FP4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.widening import narrowed, widen
from tests.conformance import bits

FP4 = jnp.float4_e2m1fn
CODES = np.arange(16, dtype=np.uint8)
EVERY = CODES.view(ml_dtypes.float4_e2m1fn)


def both_ways(function, *args) -> np.ndarray:
    step = nj.jit(function, target="trn3")
    return np.asarray(bits.same_both_ways(step, *args))


def test_every_code_is_its_value_and_back():
    fmt = get_format(FP4)
    expected = EVERY.astype(np.float32)

    @jax.jit
    def there_and_back(codes: jax.Array) -> tuple[jax.Array, jax.Array]:
        narrow = narrowed(codes, fmt)
        return narrow, widen(narrow)

    narrow, wide = there_and_back(jnp.asarray(CODES))
    assert np.asarray(narrow).view(np.uint8).tolist() == CODES.tolist()
    assert np.asarray(wide).tobytes() == expected.tobytes()


@pytest.mark.slow
def test_a_cast_to_fp4_in_a_loop_over_fp4():
    """A bitcast there is code that LLVM refuses."""
    rows = jnp.asarray(np.resize(EVERY, (5, 3)))

    def function(rows: jax.Array) -> jax.Array:
        def turn(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return carry + row, carry

        return lax.scan(turn, rows[0], rows, reverse=True)[1]

    found = both_ways(function, rows)
    carry, expected = np.resize(EVERY, (5, 3))[0], []
    for row in np.resize(EVERY, (5, 3))[::-1]:
        expected.append(carry)
        total = carry.astype(np.float32) + row.astype(np.float32)
        carry = total.astype(ml_dtypes.float4_e2m1fn)
    assert found.tobytes() == np.stack(expected[::-1]).tobytes()


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("descending", [False, True])
def test_fp4_is_sorted(descending):
    drawn = np.random.default_rng(0).permutation(np.repeat(EVERY, 3))
    found = both_ways(lambda x: jnp.sort(x, descending=descending), jnp.asarray(drawn))
    values = found.astype(np.float32)
    order = np.sort(drawn.astype(np.float32))
    assert (values == (order[::-1] if descending else order)).all()
    assert sorted(found.view(np.uint8)) == sorted(drawn.view(np.uint8))


@pytest.mark.slow
def test_fp4_is_carried_along_by_a_sort_and_chosen_by_top_k():
    keys = np.random.default_rng(1).permutation(16).astype(np.int32)
    moved = both_ways(
        lambda k, x: lax.sort([k, x], num_keys=1)[1], jnp.asarray(keys), EVERY
    )
    assert moved.tobytes() == EVERY[np.argsort(keys)].tobytes()
    largest = both_ways(lambda x: lax.top_k(x, 3)[0], jnp.asarray(EVERY))
    assert largest.astype(np.float32).tolist() == [6.0, 4.0, 3.0]


@pytest.mark.slow
def test_fp4_loses_its_bit_of_significand():
    """1.5 is half-way between 1 and 2, and 3 between 2 and 4; the even one is taken."""
    normal = jnp.asarray(EVERY[2:6])
    found = both_ways(lambda x: lax.reduce_precision(x, 2, 0), normal)
    assert found.astype(np.float32).tolist() == [1, 2, 2, 2]
