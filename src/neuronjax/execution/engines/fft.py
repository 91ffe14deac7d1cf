"""GpSimdE: Fourier transforms of any length, by mixed radices and Bluestein's method.

A length is split into factors of 4 as long as possible, then 2, then odd primes in
rising order. A product of primes above `LARGEST_RADIX` is the last factor; it is
transformed by Bluestein's convolution of the next power of two. One axis is transformed
by Stockham's self-sorting algorithm, decimation in frequency: with L = p m the length
of the transforms still to do,

    y[k, j] = (sum over q of x[m q + j] W_p^(q k)) W_L^(j k),   W_n = exp(-2 pi i / n)

for j < m, k < p, and then transforms of length m over j (no twiddle where k = 0 or m =
1).

`_radix_2`, `_radix_4` and `_odd_radix` define the order of the sums. Twiddles are
computed in float64 and rounded once to FP32; every product and every sum is rounded to
FP32. The inverse exchanges real and imaginary parts before and after, and divides by
the length last. Real transforms are complex ones with imaginary part 0. Relative errors
in the 2-norm, measured on white noise against float64: 1.2e-7 at 1,024 points, 1.7e-7
at 2^20, at most 2.1e-7 at primes up to 100,003. This is a model: the vendor has no such
routine.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import factorial, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.complex_parts import (
    Parts,
    difference,
    each,
    product,
    write_parts,
)
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide
from neuronjax.ir.algebra_set import Fft
from neuronjax.numerics.elementary_core import quotient
from neuronjax.numerics.exact import opaque, own_kernel, seal, sealed_product

Blocks = list[Parts]

# Primes up to this are summed directly; Bluestein's method is faster for larger ones.
LARGEST_RADIX = 127
# Odd radices up to this are straight-line code, larger ones a loop.
_UNROLLED_RADIX = 7


@execute.register
def fft(i: Fft, x: Sequence[jax.Array], r: Registers) -> Arrays:
    parts = tuple([wide(a) for a in x])
    rank, n = parts[0].ndim, i.fft_length[-1]
    last, others = rank - 1, range(rank - len(i.fft_length), rank - 1)
    if 0 in (*parts[0].shape, *i.results[0].type.shape):
        parts = tuple([jnp.zeros(b.type.shape, jnp.float32) for b in i.results])
    elif i.fft_type == "FFT":
        parts = _transform(parts, (*others, last), r.zero)
    elif i.fft_type == "RFFT":
        whole = (parts[0], _unknown_zeros(parts[0].shape, r.zero))
        parts = _half(_transform(whole, (last,), r.zero), n)
        parts = _transform(parts, others, r.zero)
    elif i.fft_type == "IFFT":
        parts = _inverse(parts, (*others, last), r.zero)
    else:
        parts = _hermitian(_inverse(parts, others, r.zero), n, r.zero)
        parts = _inverse(parts, (last,), r.zero)[:1]
    if i.fft_type in ("IFFT", "IRFFT"):
        length = jnp.float32(prod(i.fft_length))
        parts = each(lambda a: quotient(a, jnp.full_like(a, length), r.zero), parts)
    return write_parts(parts, i, r)


# -- real, inverse, several axes -------------------------------------------------------


def _unknown_zeros(shape: tuple[int, ...], zero: jax.Array) -> jax.Array:
    """Return zeros that XLA does not know, so that it keeps additions of them."""
    return jnp.broadcast_to(opaque(jnp.float32(0), zero), shape)


def _is_real_bin(n: int) -> np.ndarray:
    """Return which bins of the first half of a real array's spectrum are real."""
    bins = np.arange(n // 2 + 1)
    return (bins == 0) | (2 * bins == n)


def _half(x: Parts, n: int) -> Parts:
    """Return the first half of the last axis; bins that are real by symmetry get an
    imaginary part of exactly 0."""
    re, im = each(lambda a: lax.slice_in_dim(a, 0, n // 2 + 1, axis=-1), x)
    return (re, jnp.where(_is_real_bin(n), np.float32(0), im))


def _hermitian(x: Parts, n: int, zero: jax.Array) -> Parts:
    """Return the whole spectrum of a real array from its first half. The imaginary
    parts of real bins are not read."""
    re, im = x
    im = jnp.where(_is_real_bin(n), _unknown_zeros(im.shape, zero), im)
    mirror = lambda a: jnp.flip(a[..., 1 : n - n // 2], -1)  # noqa: E731
    return (
        jnp.concatenate([re, mirror(re)], -1),
        jnp.concatenate([im, -mirror(im)], -1),
    )


def _inverse(x: Parts, axes: Sequence[int], zero: jax.Array) -> Parts:
    """Return the inverse transform times the length. Exchanging the parts of z gives i
    conj(z), which turns the transform into its inverse."""
    return _transform(x[::-1], axes, zero)[::-1]


def _transform(x: Parts, axes: Sequence[int], zero: jax.Array) -> Parts:
    for axis in reversed(axes):
        shape = x[0].shape
        batch, n, rest = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        x = _middle_axis(each(lambda a: a.reshape(batch, n, rest), x), zero)
        x = each(lambda a: a.reshape(shape), x)
    return x


# -- one axis --------------------------------------------------------------------------


def factors(n: int) -> list[int]:
    """Return the factors of a length: 4s, a 2, odd primes in rising order, the rest."""
    result = []
    for p in (4, 2, *range(3, LARGEST_RADIX + 1, 2)):
        while n % p == 0 and n > 1:
            result.append(p)
            n //= p
    return result if n == 1 else [*result, n]


def _middle_axis(x: Parts, zero: jax.Array) -> Parts:
    """Return the transform over axis 1 of [batch, n, rest]."""
    batch, n, _ = x[0].shape
    length = n
    for p in factors(n):
        m = length // p
        x = each(lambda a: a.reshape(batch, p, m, -1), x)
        odd = _bluestein if p > LARGEST_RADIX else _odd_radix
        blocks = {2: _radix_2, 4: _radix_4}.get(p, odd)(x, zero)
        if m > 1:
            blocks = _twiddled(blocks, length, zero)
        # [batch, m, p, rest]: the frequencies k become the outermost axis of `rest`.
        inner = [each(lambda a: jnp.swapaxes(a, 1, 2), block) for block in blocks]
        x = tuple(jnp.concatenate(part, 2) for part in zip(*inner, strict=True))
        length = m
    return each(lambda a: a.reshape(batch, n, -1), x)


def _twiddled(blocks: Blocks, length: int, zero: jax.Array) -> Blocks:
    """Return the blocks with all frequencies but the first multiplied by W^(j k)."""
    first, *others = blocks
    j, k = np.arange(first[0].shape[2]), 1
    twiddled = [first]
    for block in others:
        frequencies = np.arange(k, k + block[0].shape[1])
        twiddles = _table(np.outer(frequencies, j), length)
        twiddles = each(lambda a: a[:, :, None], twiddles)
        twiddled.append(product(block, twiddles, zero))
        k += len(frequencies)
    return twiddled


def _split(x: Parts) -> Blocks:
    return [
        each(lambda a: lax.slice_in_dim(a, q, q + 1, axis=1), x)
        for q in range(x[0].shape[1])
    ]


def _sum(a: Parts, b: Parts) -> Parts:
    return (a[0] + b[0], a[1] + b[1])


def _times_i(x: Parts) -> Parts:
    return (-x[1], x[0])


def _radix_2(x: Parts, zero: jax.Array) -> Blocks:
    a, b = _split(x)
    return [_sum(a, b), difference(a, b)]


def _radix_4(x: Parts, zero: jax.Array) -> Blocks:
    """Return e + f, g - i h, e - f and g + i h, where e, g = a + c, a - c and f, h = b
    + d, b - d."""
    a, b, c, d = _split(x)
    even, odd = _sum(a, c), _sum(b, d)
    straight, crossed = difference(a, c), _times_i(difference(b, d))
    return [
        _sum(even, odd),
        difference(straight, crossed),
        difference(even, odd),
        _sum(straight, crossed),
    ]


def _odd_radix(x: Parts, zero: jax.Array) -> Blocks:
    """Transform an odd prime length p = 2 h + 1, with angles in units of 2 pi / p.

    t_q = x_q + x_(p-q)                            u_q = x_q - x_(p-q)
    a_k = (x_0 + cos(k) t_1) + cos(2k) t_2 + ...   b_k = sin(k) u_1 + sin(2k) u_2 + ...
    y_k = a_k - i b_k, y_(p-k) = a_k + i b_k       y_0 = (x_0 + t_1) + t_2 + ...
    """
    p = x[0].shape[1]
    h = p // 2
    head = each(lambda a: a[:, :1], x)
    front = each(lambda a: a[:, 1 : h + 1], x)
    back = each(lambda a: jnp.flip(a[:, h + 1 :], 1), x)
    index = np.arange(1, h + 1)
    cosines, sines = _table(np.outer(index, index), p)  # cos and -sin
    t, u = _sum(front, back), difference(front, back)
    constant, even, odd = _odd_sums(head, t, u, cosines, -sines, zero)
    odd = _times_i(odd)
    backward = each(lambda a: jnp.flip(a, 1), _sum(even, odd))
    return [constant, difference(even, odd), backward]


def _odd_sums(
    head: Parts, t: Parts, u: Parts, cosines: jax.Array, sines: jax.Array, zero: Any
) -> tuple[Parts, Parts, Parts]:
    """Return y_0, and a_k and b_k as [batch, h, m, rest]; see `_odd_radix`."""

    def step(sums: tuple, terms: tuple) -> tuple[tuple, None]:
        constant, even, odd = sums
        t_q, u_q, cosine, sine = terms
        cosine, sine = cosine[None, :, None, None], sine[None, :, None, None]
        even = _sum(even, each(lambda a: sealed_product(a, cosine, zero), t_q))
        odd = _sum(odd, each(lambda a: sealed_product(a, sine, zero), u_q))
        return (_sum(constant, t_q), even, odd), None

    # x + -0 is x for every x.
    nothing = each(lambda a: jnp.full_like(a, -0.0), t)
    start = each(lambda a: jnp.broadcast_to(a, t[0].shape), head)
    by_q = lambda a: jnp.moveaxis(a, 1, 0)[:, :, None]  # noqa: E731
    terms = (each(by_q, t), each(by_q, u), cosines.T, sines.T)
    unroll = 2 * len(cosines) + 1 <= _UNROLLED_RADIX
    sums, _ = lax.scan(step, (head, start, nothing), terms, unroll=unroll)
    return sums


def _bluestein(x: Parts, zero: jax.Array) -> Blocks:
    """Transform by y_k = w_k sum over n of (x_n w_n) conj(w_(k-n)), w_n = exp(-pi i n^2
    / q). The sum is a circular convolution of the next power of two, M >= 2 q - 1: the
    inverse transform of the product of two transforms, divided by M. The transform of
    conj(w) is computed in float64 and rounded once to FP32."""
    q = x[0].shape[1]
    size = 1 << (2 * q - 2).bit_length()
    chirp = each(lambda a: a[:, None], _table(np.arange(q) ** 2, 2 * q))
    blank = opaque(jnp.float32(0), zero)
    padding = [(0, 0, 0), (0, size - q, 0), (0, 0, 0)]
    signal = product(each(lambda a: a[:, :, 0], x), chirp, zero)
    signal = each(lambda a: lax.pad(a, blank, padding), signal)
    # The same function is called twice with the same shape, so it is compiled once.
    transform = own_kernel(lambda re, im, zero: _middle_axis((re, im), zero))
    kernel = tuple([jnp.asarray(a[:, None]) for a in kernel_spectrum(q, size)])
    spectrum = product(transform(*signal, zero), kernel, zero)
    total = transform(*spectrum[::-1], zero)[::-1]
    total = each(lambda a: seal(a[:, :q] * np.float32(1 / size), zero), total)
    return [each(lambda a: a[:, :, None], product(total, chirp, zero))]


# -- constants, in float64 -------------------------------------------------------------


def _table(exponents: np.ndarray, n: int) -> Parts:
    """Return exp(-2 pi i e / n) of integers e, rounded once to FP32."""
    cosines, sines = (roots[exponents % n] for roots in roots_of_unity(n))
    return tuple(jnp.asarray(x.astype(np.float32)) for x in (cosines, -sines))


@functools.lru_cache(maxsize=64)
def roots_of_unity(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of 2 pi k / n, k = 0 ... n - 1, in float64. The angle is
    reduced to 0 ... pi / 4 with integers. Sines and cosines are Taylor sums of single
    IEEE operations, so every host computes the same values."""
    octant, rest = np.divmod(8 * np.arange(n, dtype=np.int64), n)
    x = np.where(octant % 2, n - rest, rest) / n * (np.pi / 4)
    square = x * x
    cosine, sine = _taylor(square, 0), x * _taylor(square, 1)
    exchanged = np.isin(octant, (1, 2, 5, 6))
    c, s = np.where(exchanged, (sine, cosine), (cosine, sine))
    c = np.where(np.isin(octant, (2, 3, 4, 5)), -c, c)
    return c, np.where(octant >= 4, -s, s)


def _taylor(square: np.ndarray, odd: int) -> np.ndarray:
    """Return 1 / odd! - square / (odd + 2)! + ..., by Horner's rule."""
    total = np.zeros_like(square)
    for degree in range(18 + odd, -1, -2):
        total = (-1) ** (degree // 2) / factorial(degree) + total * square
    return total


@functools.lru_cache(maxsize=64)
def kernel_spectrum(q: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the transform of exp(pi i n^2 / q), n = -(q - 1) ... q - 1, taken
    cyclically. It is computed by radix 2 with single IEEE operations in float64, and
    rounded to FP32."""
    n = np.arange(size, dtype=np.int64)
    distance = np.minimum(n, size - n)
    roots = roots_of_unity(2 * q)
    re, im = (np.where(distance < q, a[distance**2 % (2 * q)], 0.0) for a in roots)
    length = size
    while length > 1:
        (a, b), (c, d) = (part.reshape(2, length // 2, -1) for part in (re, im))
        cosine, sine = (part[: length // 2, None] for part in roots_of_unity(length))
        u, v = a - b, c - d
        re = np.stack([a + b, u * cosine + v * sine], axis=1)
        im = np.stack([c + d, v * cosine - u * sine], axis=1)
        length //= 2
    return re.reshape(-1).astype(np.float32), im.reshape(-1).astype(np.float32)
