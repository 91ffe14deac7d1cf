"""GpSimdE's Fourier transforms.

Bit for bit against a recursion over single FP32 numbers that follows the definition in
the engine's docstring, with twiddles from mpmath; and against float64 within bounds.
"""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest

from neuronjax.execution.engines import fft
from neuronjax.ir.algebra_set import Fft
from tests.conformance import instructions

# Relative errors in the 2-norm, of white noise; see the docstring of the engine.
BOUND = 3e-7


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def transform(x: np.ndarray, kind: str, *lengths: int) -> np.ndarray:
    """The instruction, compiled and alone, with equal bits."""
    shape = list(x.shape)
    if kind in ("RFFT", "IRFFT"):
        shape[-1] = lengths[-1] if kind == "IRFFT" else lengths[-1] // 2 + 1
    operands = [x] if kind == "RFFT" else [x.real.copy(), x.imag.copy()]
    results = [(shape, np.float32)] * (1 if kind == "IRFFT" else 2)
    options = {"engine": "gpsimd", "fft_type": kind, "fft_length": lengths}
    re, *im = instructions.run(Fft, operands, *results, **options)
    return re + np.complex64(1j) * im[0] if im else re


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


# ---- One FP32 operation at a time; numbers are pairs.


@functools.cache
def root(e: int, n: int) -> tuple[np.float32, np.float32]:
    """exp(-2 pi i e / n), rounded once."""
    angle = mpmath.mpf(2 * (e % n)) / n
    return np.float32(mpmath.cospi(angle)), np.float32(-mpmath.sinpi(angle))


def plus(a, b):
    return a[0] + b[0], a[1] + b[1]


def minus(a, b):
    return a[0] - b[0], a[1] - b[1]


def times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def turned(a):
    """i a."""
    return -a[1], a[0]


def fold(first, terms):
    return functools.reduce(plus, terms, first)


def short(x: list) -> list:
    """The transform of a radix."""
    p = len(x)
    if p == 2:
        return [plus(*x), minus(*x)]
    if p == 4:
        a, b, c, d = x
        e, f, g, h = plus(a, c), plus(b, d), minus(a, c), turned(minus(b, d))
        return [plus(e, f), minus(g, h), minus(e, f), plus(g, h)]
    half = range(1, p // 2 + 1)
    t = [plus(x[q], x[p - q]) for q in half]
    u = [minus(x[q], x[p - q]) for q in half]
    y = [fold(x[0], t)] + [None] * (p - 1)
    for k in half:
        cosines = [root(q * k, p)[0] for q in half]
        sines = [-root(q * k, p)[1] for q in half]
        a = fold(x[0], [(v[0] * c, v[1] * c) for v, c in zip(t, cosines, strict=True)])
        terms = [(v[0] * s, v[1] * s) for v, s in zip(u, sines, strict=True)]
        b = turned(fold(terms[0], terms[1:]))
        y[k], y[p - k] = minus(a, b), plus(a, b)
    return y


def chirped(x: list) -> list:
    """Bluestein's convolution."""
    q = len(x)
    size = 1
    while size < 2 * q - 1:
        size *= 2
    w = [root(n * n, 2 * q) for n in range(q)]
    circle = np.zeros(size, complex)
    for n in range(q):
        circle[n] = circle[-n] = np.exp(1j * np.pi * (n * n % (2 * q)) / q)
    kernel = np.fft.fft(circle)
    kernel = [(np.float32(z.real), np.float32(z.imag)) for z in kernel]
    nothing = (np.float32(0), np.float32(0))
    signal = [times(a, b) for a, b in zip(x, w, strict=True)]
    spectrum = long(signal + [nothing] * (size - q))
    products = [times(a, b) for a, b in zip(spectrum, kernel, strict=True)]
    total = [(a[1], a[0]) for a in long([(a[1], a[0]) for a in products])]
    scale = np.float32(1 / size)
    return [
        times((a[0] * scale, a[1] * scale), b) for a, b in zip(total, w, strict=False)
    ]


LARGEST = 127


def radix(n: int) -> int:
    """The first factor that is taken out."""
    for p in (4, 2, *range(3, LARGEST + 1, 2)):
        if n % p == 0:
            return p
    return n


def long(x: list) -> list:
    """A transform of any length."""
    n = len(x)
    if n == 1:
        return x
    p = radix(n)
    m = n // p
    if p > LARGEST:
        return chirped(x)
    columns = [short([x[m * q + j] for q in range(p)]) for j in range(m)]
    y = []
    for k in range(p):
        row = [column[k] for column in columns]
        if k > 0 and m > 1:
            row = [times(v, root(j * k, n)) for j, v in enumerate(row)]
        y.append(long(row))
    return [y[k % p][k // p] for k in range(n)]


def oracle(x: np.ndarray) -> np.ndarray:
    found = long([(z.real, z.imag) for z in x])
    return np.array([complex(*z) for z in found], np.complex64)


# ---- Complex transforms.


def slow(*lengths: int) -> list:
    return [pytest.param(n, marks=pytest.mark.slow) for n in lengths]


@pytest.mark.slow_except("1")
@pytest.mark.parametrize("n", [1, 12, 22, *slow(2, 45, 64, 210, 97 * 3, 131, 262)])
def test_fft_has_the_bits_of_the_documented_order(n):
    x = noise(2, n, seed=n)
    got = transform(x, "FFT", n)
    np.testing.assert_array_equal(got, np.stack([oracle(row) for row in x]))


@pytest.mark.slow
@pytest.mark.parametrize("n", [14, *slow(7)])
def test_bluestein_in_the_stated_order(monkeypatch, n):
    """Alone, and behind a radix; from a smaller prime on, to have it short."""
    monkeypatch.setattr(fft, "LARGEST_RADIX", 5)
    monkeypatch.setitem(globals(), "LARGEST", 5)
    x = noise(n, seed=n)
    np.testing.assert_array_equal(transform(x, "FFT", n), oracle(x))


def test_factors():
    assert fft.factors(1) == []
    assert fft.factors(2048) == [4, 4, 4, 4, 4, 2]
    assert fft.factors(2 * 3 * 3 * 127) == [2, 3, 3, 127]
    assert fft.factors(6 * 131 * 137) == [2, 3, 131 * 137]


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [100, *slow(3, 8, 49, 97, 127, 128, 917, 1009, 1024, 4095, 65536, 10007)]
)
def test_fft_error_is_within_its_bound(n):
    x = noise(3, n)
    assert error(transform(x, "FFT", n), np.fft.fft(x.astype(complex))) < BOUND


def test_roots_of_unity_are_correctly_rounded():
    for n in (8, 12, 131, 1000):
        cosines, sines = fft.roots_of_unity(n)
        got = [
            (np.float32(c), np.float32(-s)) for c, s in zip(cosines, sines, strict=True)
        ]
        assert got == [root(e, n) for e in range(n)]


# ---- Kinds and axes.


@pytest.mark.slow
def test_three_axes_and_back():
    lengths = (2, 3, 4)
    x = noise(2, *lengths)
    there = transform(x, "FFT", *lengths)
    assert error(there, np.fft.fftn(x.astype(complex), axes=(1, 2, 3))) < BOUND
    assert error(transform(there, "IFFT", *lengths), x) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, *slow(1, 9)])
def test_real_there_and_back(n):
    """The parts that are zero by symmetry are so exactly, and are not read."""
    x = noise(4, n).real.copy()
    spectrum = transform(x, "RFFT", n)
    assert error(spectrum, np.fft.rfft(x.astype(float))) < BOUND
    own_mirror = [0, n // 2] if n % 2 == 0 else [0]
    assert not spectrum.imag[:, own_mirror].any()
    spectrum.imag[:, own_mirror] = 1e3
    back = transform(spectrum, "IRFFT", n)
    assert back.dtype == np.float32
    assert error(back, x) < BOUND


@pytest.mark.slow
def test_real_there_and_back_over_two_axes():
    x = noise(2, 3, 4).real.copy()
    spectrum = transform(x, "RFFT", 3, 4)
    assert error(spectrum, np.fft.rfft2(x.astype(float))) < BOUND
    assert error(transform(spectrum, "IRFFT", 3, 4), x) < BOUND


@pytest.mark.slow
def test_the_inverse_is_divided_last():
    """By the length, in one correctly rounded operation."""
    x = noise(6)
    exchanged = oracle(x.imag + np.complex64(1j) * x.real)
    parts = exchanged.imag / np.float32(6), exchanged.real / np.float32(6)
    got = transform(x, "IFFT", 6)
    np.testing.assert_array_equal(got.real, parts[0])
    np.testing.assert_array_equal(got.imag, parts[1])


@pytest.mark.slow_cases("shape1")
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_fft_of_no_elements_keeps_its_shape(shape):
    assert transform(noise(*shape), "FFT", shape[-1]).shape == shape
