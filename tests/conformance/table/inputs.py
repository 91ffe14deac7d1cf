"""Seeded inputs: ordinary values, special values, and all pairs of special values."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from tests.conformance.table.case import Case, Input

Generator = np.random.Generator
Make = Callable[[Generator, tuple[int, ...], np.dtype], np.ndarray]

#: Beside those that depend on the format; each is rounded to it.
FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -3.0)
#: Near where elementary functions overflow, underflow or change their method.
FAR = (1e-3, -1e-3, 0.9999, 1.0001, 4.0, -9.5, 25.0, 88.5, -87.0, -104.0, 1e4, 3e7)


def is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def special_values(dtype: np.dtype) -> np.ndarray:
    """Zeros, infinities, NaN, limits and subnormals of a format; limits of integers."""
    if dtype.kind == "b":
        return np.array([False, True])
    if is_integer(dtype):
        info = jnp.iinfo(dtype)
        values = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1]
        if info.min < 0:
            values += [-1, -2, -7]
        return np.array(values).astype(dtype)
    info = jnp.finfo(dtype)
    top, tiny, eps = (float(v) for v in (info.max, info.tiny, info.eps))
    near = (top, -top, tiny, -tiny, tiny / 2, -tiny / 4, 1 + eps, 1 - eps, tiny * 1.5)
    with np.errstate(over="ignore"):
        return np.array([*FLOATS, *near]).astype(dtype)


def normal(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Normal floats, integers of the whole range, booleans, complex numbers."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if is_integer(dtype):
        info = jnp.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = rng.normal(size=(2, *shape))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def special(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A vector: special values, values far out, and ordinary ones of all magnitudes."""
    (size,) = shape
    values = special_values(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):
            values = np.concatenate([values, np.array(FAR).astype(dtype)])
    return np.concatenate([values, spread(rng, (size,), dtype)])[:size]


def specials(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of any rank with some special values at random places."""
    values = normal(rng, shape, dtype)
    return np.where(
        rng.random(shape) < 0.3, rng.choice(special_values(dtype), shape), values
    )


def spread(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Floats of magnitudes 2^-10 to 2^10."""
    values = normal(rng, shape, dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return values
    scales = np.exp2(rng.integers(-10, 10, shape))
    return (values.astype(np.float64) * scales).astype(dtype)


def first_of_pair(rng: Generator, shape: tuple[int, ...], dtype: np.dtype):
    """Every special value many times: the first of all pairs with `second`."""
    (size,) = shape
    values = special_values(dtype)
    pairs = np.repeat(values, len(values))
    return np.concatenate([pairs, spread(rng, (size,), dtype)])[:size]


def second_of_pair(rng: Generator, shape: tuple[int, ...], dtype: np.dtype):
    (size,) = shape
    values = special_values(dtype)
    pairs = np.tile(values, len(values))
    return np.concatenate([pairs, spread(rng, (size,), dtype)])[:size]


def uniform(low: float, high: float) -> Make:
    def make(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return rng.uniform(low, high, shape).astype(dtype)

    return make


def integers(low: int, high: int) -> Make:
    """From low to high, both included."""

    def make(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)

    return make


def distinct(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A permutation of 0 .. n - 1."""
    return rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def distinct_beyond(rng: Generator, shape: tuple[int, ...], dtype: np.dtype):
    """As `distinct`, but the larger numbers are far beyond any axis."""
    values = distinct(rng, shape, dtype)
    return np.where(values > 2, values * 10, values)


def ordered(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.sort(distinct(rng, shape, dtype), axis=None).reshape(shape)


def positive_definite(rng: Generator, shape: tuple[int, ...], dtype: np.dtype):
    """A matrix (or a batch) with eigenvalues from 1 to about 10."""
    a = rng.normal(size=shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        a = a + 1j * rng.normal(size=shape)
    product = a @ np.swapaxes(a.conj(), -1, -2) / shape[-1]
    return (product + np.eye(shape[-1])).astype(dtype)


def triangular(rng: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Well conditioned in its lower and in its upper triangle."""
    a = normal(rng, shape, np.dtype(np.float64)) / shape[-1]
    if jnp.issubdtype(dtype, jnp.complexfloating):
        a = a + 1j * normal(rng, shape, np.dtype(np.float64)) / shape[-1]
    return (a + 2 * np.eye(shape[-1])).astype(dtype)


KINDS: Mapping[str, Make] = {
    "normal": normal,
    "special": special,
    "specials": specials,
    "spread": spread,
    "first": first_of_pair,
    "second": second_of_pair,
    "unit": uniform(-1, 1),
    "fraction": uniform(0, 1),
    "positive": uniform(0.1, 4),
    "above_one": uniform(1, 5),
    "order": integers(1, 4),
    "digits": integers(0, 3),
    "digits3": integers(0, 2),
    "index": integers(-9, 9),
    "inside": integers(0, 3),
    "shift": integers(0, 40),
    "distinct": distinct,
    "distinct_beyond": distinct_beyond,
    "ordered": ordered,
    "positive_definite": positive_definite,
    "triangular": triangular,
}


def array(case: str, position: int, spec: Input) -> np.ndarray:
    """The same bits in every process: NumPy's PCG64 seeded with the row's name."""
    rng = np.random.Generator(
        np.random.PCG64(zlib.crc32(f"{case} {position}".encode()))
    )
    return KINDS[spec.kind](rng, spec.shape, np.dtype(jnp.dtype(spec.dtype)))


def arrays(case: Case) -> tuple[np.ndarray, ...]:
    return tuple(array(case.name, i, spec) for i, spec in enumerate(case.inputs))
