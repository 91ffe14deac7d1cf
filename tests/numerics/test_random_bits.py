"""The hash of stochastic rounding: its definition, and statistics of its output.

Bounds are about 4 standard deviations of an ideal source; everything is deterministic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.random_bits import fold, random_bits

N = 1 << 18
KEYS = [0, 1, 2, 0x8000_0000, 0xFFFF_FFFF, 0xDEAD_BEEF]
SIGMAS = 4.0


def _mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
    x = (x ^ (x >> 15)) * 0xD35A2D97 % 2**32
    return x ^ (x >> 15)


def _model(key: int, index: int) -> int:
    return _mix((_mix(index ^ key) + _mix(key ^ 0x9E3779B9)) % 2**32)


def _fold_model(key: int, data: int) -> int:
    return _mix(_mix((key + 0x9E3779B9) % 2**32) ^ data)


_stream = jax.jit(lambda key: random_bits((N,), key))


def _bits(key: int) -> np.ndarray:
    return np.asarray(_stream(jnp.uint32(key)))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of the values as fractions of 2^32."""
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


def _disagreement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For each of the 32 bits: how many sigmas the rate of equality is from 1/2."""
    flips = np.unpackbits((a ^ b).view(np.uint8).reshape(-1, 4), axis=1).sum(axis=0)
    return np.abs(flips - a.size / 2) / np.sqrt(a.size / 4)


@pytest.mark.slow
def test_bits_are_the_hash_of_key_and_row_major_index(strict_promotion: None) -> None:
    for key in KEYS:
        actual = np.asarray(random_bits((3, 4, 5), jnp.uint32(key))).reshape(-1)
        assert actual.tolist() == [_model(key, index) for index in range(60)]


def test_fold_is_the_hash_of_key_and_data(strict_promotion: None) -> None:
    for key in KEYS:
        for data in KEYS:
            actual = int(fold(jnp.uint32(key), jnp.uint32(data)))
            assert actual == _fold_model(key, data)


@pytest.mark.slow_except("shape0", "shape2")
@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 7), (7, 1), (2, 0, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    bits = random_bits(shape, jnp.uint32(5))
    assert (bits.shape, bits.dtype) == (shape, jnp.uint32)
    expected = [_model(5, index) for index in range(bits.size)]
    assert np.asarray(bits).reshape(-1).tolist() == expected


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(InvalidProgramError, match="4294967296 elements"):
        jax.eval_shape(lambda key: random_bits((1 << 16, 1 << 16), key), jnp.uint32(0))


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, "scan", "eager"])
def test_the_same_bits_under_every_transformation(wrap: Callable | str) -> None:
    keys = jnp.array(KEYS, jnp.uint32)

    def draw(key: jax.Array) -> jax.Array:
        return random_bits((4, 8), fold(key, jnp.uint32(9)))

    def scanned(keys: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, key: (carry, draw(key)), 0, keys)[1]

    def one_by_one(keys: jax.Array) -> jax.Array:
        return jnp.stack([draw(key) for key in keys])

    expected = np.asarray(one_by_one(keys))
    if wrap == "eager":
        with jax.disable_jit():
            actual = one_by_one(keys)
    elif wrap == "scan":
        actual = jax.jit(scanned)(keys)
    else:
        actual = jax.vmap(draw)(keys) if wrap is jax.vmap else jax.jit(one_by_one)(keys)
    np.testing.assert_array_equal(np.asarray(actual), expected)


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_set_half_of_the_time(key: int) -> None:
    bits = _bits(key)
    # 32 bits x 6 keys: the expected maximum of 192 normal deviates is below 4 sigma.
    assert _disagreement(bits, np.zeros_like(bits)).max() < SIGMAS


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
@pytest.mark.parametrize("key", KEYS)
def test_bytes_are_uniform(key: int, shift: int) -> None:
    counts = np.bincount((_bits(key) >> np.uint32(shift)) & np.uint32(255))
    chi_square = ((counts - N / 256) ** 2 / (N / 256)).sum()
    assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255)


@pytest.mark.parametrize("key", KEYS)
def test_neighbouring_elements_do_not_correlate(key: int) -> None:
    bits = _bits(key)
    for lag in (1, 2, 3, 4, 16, 127, 128, 512, 4096):
        assert abs(_correlation(bits[lag:], bits[:-lag])) < SIGMAS / np.sqrt(N - lag)


@pytest.mark.slow
def test_keys_that_differ_in_one_bit_do_not_correlate() -> None:
    for key in KEYS[:2]:
        for bit in range(32):
            a, b = _bits(key), _bits(key ^ (1 << bit))
            assert abs(_correlation(a, b)) < SIGMAS / np.sqrt(N), bit
            assert _disagreement(a, b).max() < SIGMAS + 1, bit  # 2,048 deviates


def test_streams_are_not_permutations_of_each_other() -> None:
    """What a hash of `index ^ key` alone would be."""
    common = np.intersect1d(_bits(6), _bits(7)).size
    expected = N * N / 2**32  # chance
    assert abs(common - expected) < SIGMAS * np.sqrt(expected) + 1


def test_successive_instructions_do_not_correlate() -> None:
    """One element across instruction ordinals, and whole tensors of neighbours."""
    ordinals = jnp.arange(N, dtype=jnp.uint32)
    seed = jnp.uint32(0)

    @jax.jit
    def first_elements(ordinals: jax.Array) -> jax.Array:
        return jax.vmap(lambda i: random_bits((2,), fold(seed, i)))(ordinals)

    bits = np.asarray(first_elements(ordinals))[:, 0]
    assert abs(_correlation(bits[1:], bits[:-1])) < SIGMAS / np.sqrt(N)
    assert _disagreement(bits[1:], bits[:-1]).max() < SIGMAS
    tensors = [_bits(int(fold(seed, jnp.uint32(i)))) for i in range(6)]
    for a, b in itertools.pairwise(tensors):
        assert abs(_correlation(a, b)) < SIGMAS / np.sqrt(N)


def test_one_flipped_bit_of_key_or_data_flips_half_of_a_folded_key() -> None:
    rng = np.random.default_rng(0)
    key, data = rng.integers(0, 2**32, (2, 4096), dtype=np.uint32)
    folded = np.asarray(fold(jnp.asarray(key), jnp.asarray(data)))
    for bit in range(32):
        flip = np.uint32(1 << bit)
        by_key = np.asarray(fold(jnp.asarray(key ^ flip), jnp.asarray(data)))
        by_data = np.asarray(fold(jnp.asarray(key), jnp.asarray(data ^ flip)))
        assert _disagreement(folded, by_key).max() < SIGMAS + 2
        assert _disagreement(folded, by_data).max() < SIGMAS + 2


def test_the_order_of_folds_matters() -> None:
    a, b, key = jnp.uint32(1), jnp.uint32(2), jnp.uint32(0)
    assert int(fold(fold(key, a), b)) != int(fold(fold(key, b), a))


@pytest.mark.slow
def test_folding_never_merges_data() -> None:
    folded = np.asarray(fold(jnp.uint32(3), jnp.arange(N, dtype=jnp.uint32)))
    assert np.unique(folded).size == N
