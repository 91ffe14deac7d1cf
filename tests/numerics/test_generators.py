"""Generators against plain-Python code written from the papers.

XORWOW: Marsaglia 2003, "Xorshift RNGs", the C function of section 3, transcribed. The
LFSR: polynomial arithmetic over GF(2) with Python ints, its period proven from the
order of x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.generators import (
    LFSR_POLYNOMIAL,
    XorwowState,
    next_lane_words,
    next_lfsr,
    next_xorwow,
    seed_lfsr,
    uniform,
)

# x, y, z, w, v, d: the seeds of the published function.
PUBLISHED = [123456789, 362436069, 521288629, 88675123, 5783321, 6615241]
SIGMAS = 4.0

pytestmark = pytest.mark.usefixtures("strict_promotion")


def _xorwow(state: list[int]) -> Iterator[int]:
    x, y, z, w, v, d = state
    while True:
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4)) ^ (t ^ (t << 1))
        v &= 0xFFFF_FFFF
        d = (d + 362437) & 0xFFFF_FFFF
        yield (d + v) & 0xFFFF_FFFF


def _take(words: Iterator[int], count: int) -> list[int]:
    return [next(words) for _ in range(count)]


def _state(words: Any) -> XorwowState:
    return XorwowState(jnp.asarray(words, jnp.uint32))


# -- XORWOW


def test_the_first_word_by_hand() -> None:
    """t = x ^ x >> 2; v becomes v ^ v << 4 ^ t ^ t << 1, and d + 362437 is added."""
    x, v, d = 0x075BCD15, 0x00583F19, 0x0064F0C9
    t = 0x075BCD15 ^ 0x01D6F345
    assert (x >> 2, t) == (0x01D6F345, 0x068D3E50)
    new_v = (v ^ 0x0583F190) ^ (t ^ 0x0D1A7CA0)
    assert (v << 4, t << 1) == (0x0583F190, 0x0D1A7CA0)
    assert (new_v, d + 362437) == (0x0E4C8C79, 0x006A788E)
    expected = 0x0E4C8C79 + 0x006A788E
    assert int(next_xorwow(_state(PUBLISHED), 1)[0][0]) == expected == 246875399


def test_xorwow_is_the_published_function() -> None:
    expected = _take(_xorwow(PUBLISHED), 1000)
    words, state = next_xorwow(_state(PUBLISHED), 1000)
    assert words.tolist() == expected
    assert int(state.words[5]) == (PUBLISHED[5] + 1000 * 362437) % 2**32


@pytest.mark.slow
def test_lanes_are_independent() -> None:
    lanes = XorwowState.from_seed(jnp.uint32(1), (3, 5))
    words, _ = next_xorwow(lanes, 40)
    assert words.shape == (3, 5, 40)
    for lane in np.ndindex(3, 5):
        expected = _take(_xorwow(np.asarray(lanes.words)[lane].tolist()), 40)
        assert words[lane].tolist() == expected


@pytest.mark.slow
def test_a_saved_state_continues_the_sequence() -> None:
    start = XorwowState.from_seed(jnp.uint32(2), (4,))
    whole, end = next_xorwow(start, 30)
    first, middle = next_xorwow(start, 13)
    saved = np.asarray(middle.words)  # what rand_get_state would return
    second, restored_end = next_xorwow(_state(saved), 17)
    np.testing.assert_array_equal(np.concatenate([first, second], -1), whole)
    np.testing.assert_array_equal(restored_end.words, end.words)
    none, unchanged = next_xorwow(start, 0)
    assert none.shape == (4, 0)
    np.testing.assert_array_equal(unchanged.words, start.words)


@pytest.mark.slow
def test_the_generators_of_a_lane_take_turns() -> None:
    state = XorwowState.from_seed(jnp.uint32(3), (2, 4))
    assert state.words[0].size == 24  # the documented words per VectorE lane
    words, after = next_lane_words(state, 10)
    assert words.shape == (2, 10)
    own, expected_after = next_xorwow(state, 3)
    for i in range(10):
        np.testing.assert_array_equal(words[:, i], own[:, i % 4, i // 4])
    np.testing.assert_array_equal(after.words, expected_after.words)


def _by_map(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(lambda states: lax.map(function, states))


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, _by_map])
def test_the_same_words_under_every_transformation(wrap: Callable) -> None:
    def draw(state: XorwowState) -> tuple[jax.Array, ...]:
        words, state = next_xorwow(state, 9)
        numbers = uniform(words, -3.3, 7.7)
        fused = numbers * numbers + numbers  # what XLA may do to it is its business
        return words, state.words, numbers, fused

    states = XorwowState.from_seed(jnp.uint32(4), (6,))
    with jax.disable_jit():
        expected = draw(states)
    for ours, theirs in zip(wrap(draw)(states)[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.slow
def test_words_look_random() -> None:
    words, _ = next_xorwow(XorwowState.from_seed(jnp.uint32(5), (512,)), 512)
    bits = np.unpackbits(np.asarray(words).view(np.uint8).reshape(-1, 4), axis=1)
    deviation = np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(words.size)
    assert deviation.max() < SIGMAS
    numbers = np.asarray(words).astype(np.float64)
    for a, b in [(numbers[:, 1:], numbers[:, :-1]), (numbers[1:], numbers[:-1])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < SIGMAS / np.sqrt(a.size)


# -- LFSR


def _times(a: int, b: int) -> int:
    """Product of two polynomials modulo the register's."""
    product = 0
    for bit in range(32):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in reversed(range(32, 64)):
        if product >> bit & 1:
            product ^= (1 << 32 | int(LFSR_POLYNOMIAL)) << (bit - 32)
    return product


def _power(base: int, exponent: int) -> int:
    result = 1
    while exponent:
        result = _times(result, base) if exponent & 1 else result
        base, exponent = _times(base, base), exponent >> 1
    return result


def test_the_lfsr_has_the_maximal_period() -> None:
    """The order of x is 2^32 - 1 = 3 x 5 x 17 x 257 x 65537: the whole group."""
    period = 2**32 - 1
    assert 3 * 5 * 17 * 257 * 65537 == period
    assert _power(2, period) == 1
    assert all(_power(2, period // prime) != 1 for prime in (3, 5, 17, 257, 65537))


@pytest.mark.slow
def test_lfsr_words_are_successive_powers() -> None:
    seeds = np.array([1, 2, 0x8000_0000, 0xFFFF_FFFF, 0xDEAD_BEEF], np.uint32)
    words, state = next_lfsr(jnp.asarray(seeds), 20)
    jump = _power(2, 32)
    for seed, row in zip(seeds.tolist(), words.tolist(), strict=True):
        expected = seed
        for word in row:
            expected = _times(expected, jump)
            assert word == expected
    np.testing.assert_array_equal(words[:, -1], state)
    again, _ = next_lfsr(next_lfsr(jnp.asarray(seeds), 7)[1], 13)
    np.testing.assert_array_equal(again, words[:, 7:])
    with jax.disable_jit():
        eager, _ = next_lfsr(jnp.asarray(seeds), 2)
    np.testing.assert_array_equal(eager, words[:, :2])


def test_lfsr_seeds_are_not_zero() -> None:
    seeds = np.asarray(seed_lfsr(jnp.uint32(0), (1 << 16,)))
    assert (seeds % 2 == 1).all()
    assert np.unique(seeds).size > 65_000


# -- Floats and masks


def _uniform_model(word: int, low: float, high: float) -> np.float32:
    """Each step rounded to float32, from exact fractions."""
    low32, high32 = np.float32(low), np.float32(high)
    span = np.float32(float(high32) - float(low32))
    product = np.float32(float(Fraction(word >> 8, 2**24) * Fraction(float(span))))
    return min(np.float32(float(product) + float(low32)), high32)


@pytest.mark.parametrize(
    "bounds", [(0, 1), (-1, 1), (-3.3, 7.7), (0.1, 0.1), (1e-3, 1e9)]
)
def test_uniform_is_rounded_step_by_step(bounds: tuple[float, float]) -> None:
    """24-digit products and sums are exact in float64, so no double rounding."""
    rng = np.random.default_rng(6)
    words = rng.integers(0, 2**32, 2000, dtype=np.uint32)
    words[:4] = [0, 255, 256, 0xFFFF_FFFF]
    actual = np.asarray(jax.jit(lambda words: uniform(words, *bounds))(words))
    expected = [_uniform_model(int(word), *bounds) for word in words]
    np.testing.assert_array_equal(actual, np.array(expected, np.float32))
    low, high = np.array(bounds, np.float32)
    assert low <= actual.min() <= actual.max() <= high


# -- Errors

WORDS = jnp.zeros(6, jnp.uint32)
WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("int32 and shape", lambda: next_xorwow(XorwowState(jnp.zeros(6, jnp.int32)), 1)),
    (r"shape \(5,\)", lambda: next_xorwow(_state([1] * 5), 1)),
    ("LFSR state of int32", lambda: next_lfsr(jnp.ones(3, jnp.int32), 1)),
    ("between 2 and 1", lambda: uniform(WORDS, 2, 1)),
    ("between nan", lambda: uniform(WORDS, float("nan"), 1)),
    ("between -3e", lambda: uniform(WORDS, -3e38, 3e38)),
]


@pytest.mark.parametrize(("message", "call"), WRONG)
def test_errors_name_the_problem_and_the_remedy(
    message: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(InvalidProgramError, match=message) as caught:
        call()
    assert caught.value.remedy
