"""GpSimdE's Cholesky factors and triangular solves.

Bit for bit against loops over single FP32 numbers that find each element on its own,
from the factor's finished columns; and against float64 within bounds.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from neuronjax.ir.algebra_set import Cholesky, TriangularSolve
from tests.conformance import instructions

EPSILON = 2.0**-24  # of one rounding


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def complexes(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, seed=seed) + np.complex64(1j) * floats(*shape, seed=seed + 99)


def definite(x: np.ndarray) -> np.ndarray:
    """Hermitian positive definite matrices from any square ones."""
    squares = x @ np.conj(np.swapaxes(x, -1, -2)) + x.shape[-1] * np.eye(x.shape[-1])
    below = np.tril(squares, -1)
    diagonal = np.eye(x.shape[-1]) * squares.real
    whole = below + np.conj(np.swapaxes(below, -1, -2)) + diagonal
    return whole.astype(x.dtype)


def parts(x: np.ndarray) -> list[np.ndarray]:
    return [x.real.copy(), x.imag.copy()] if x.dtype.kind == "c" else [x]


def number(written: list[np.ndarray]) -> np.ndarray:
    re, *im = written
    return re + np.complex64(1j) * im[0] if im else re


def factor(a: np.ndarray, **fields) -> np.ndarray:
    result = (a.shape, a.real.dtype)
    results = [result] * len(parts(a))
    fields = {"engine": "gpsimd", "lower": True, **fields}
    return number(instructions.run(Cholesky, parts(a), *results, **fields))


def solve(a: np.ndarray, b: np.ndarray, **fields) -> np.ndarray:
    results = [(b.shape, b.real.dtype)] * len(parts(b))
    fields = {
        "engine": "gpsimd",
        "left_side": True,
        "lower": True,
        "unit_diagonal": False,
        "transpose_a": "NO_TRANSPOSE",
        **fields,
    }
    operands = [*parts(a), *parts(b)]
    return number(instructions.run(TriangularSolve, operands, *results, **fields))


# ---- One FP32 operation at a time.


def times(a, b):
    """The stated product of complex or real FP32 numbers."""
    if not isinstance(a, np.complex64):
        return a * b
    re = a.real * b.real - a.imag * b.imag
    return np.complex64(complex(re, a.real * b.imag + a.imag * b.real))


def over(a, b):
    """Smith's quotient."""
    if not isinstance(a, np.complex64):
        return a / b
    if abs(b.real) >= abs(b.imag):
        r = b.imag / b.real
        d = b.real + b.imag * r
        re, im = (a.real + a.imag * r) / d, (a.imag - a.real * r) / d
    else:
        r = b.real / b.imag
        d = b.imag + b.real * r
        re, im = (a.imag + a.real * r) / d, -((a.real - a.imag * r) / d)
    return np.complex64(complex(re, im))


def oracle_factor(a: np.ndarray) -> np.ndarray:
    """L of one matrix, element by element."""
    n = len(a)
    found = np.zeros_like(a)
    for j, i in itertools.product(range(n), range(n)):
        if i < j:
            continue
        rest = a[i, j]
        for k in range(j):
            rest = rest - times(found[i, k], np.conj(found[j, k]))
        if i == j:
            found[j, j] = np.sqrt(rest.real)
        elif a.dtype.kind == "c":
            d = found[j, j].real
            found[i, j] = complex(rest.real / d, rest.imag / d)
        else:
            found[i, j] = rest / found[j, j]
    return found


def oracle_column(a: np.ndarray, b: np.ndarray, rows, unit: bool) -> np.ndarray:
    """x with a x = b for one column b; `rows` in the order of substitution."""
    x = np.zeros_like(b)
    for position, i in enumerate(rows):
        rest = b[i]
        for k in rows[:position]:
            rest = rest - times(a[i, k], x[k])
        x[i] = rest if unit else over(rest, a[i, i])
    return x


def oracle_solve(a, b, *, left_side, lower, unit_diagonal, transpose_a) -> np.ndarray:
    if transpose_a != "NO_TRANSPOSE":
        a, lower = a.T, not lower
    if transpose_a == "ADJOINT":
        a = np.conj(a)
    if not left_side:
        a, lower, b = a.T, not lower, b.T
    rows = list(range(len(a)))[:: 1 if lower else -1]
    columns = [oracle_column(a, column, rows, unit_diagonal) for column in b.T]
    found = np.stack(columns, axis=1)
    return found if left_side else found.T


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


# ---- Cholesky.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "lower"),
    [
        (floats, True),
        (complexes, False),
        pytest.param(floats, False, marks=pytest.mark.slow),
        pytest.param(complexes, True, marks=pytest.mark.slow),
    ],
)
def test_factor_is_the_stated_fold(make, lower):
    a = definite(make(2, 6, 6))
    want = np.stack([oracle_factor(x) for x in a])
    read = np.tril(np.full((6, 6), True))
    if not lower:
        want, read = np.conj(np.swapaxes(want, 1, 2)), read.T
    # The other triangle is not read.
    got = factor(np.where(read, a, a.dtype.type(np.nan)), lower=lower)
    same_bits(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_narrow_factors_are_rounded_once(kind):
    a = definite(floats(5, 5)).astype(kind)
    want = oracle_factor(a.astype(np.float32)).astype(kind)
    same_bits(factor(a).astype(np.float32), want.astype(np.float32))


@pytest.mark.slow_cases("shape2")
@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 3, 1, 1)])
def test_small_factors(shape):
    a = np.full(shape, 4, np.float32)
    if shape[-1] < 2:
        same_bits(factor(a), np.sqrt(a))
    else:
        assert factor(a).shape == shape


@pytest.mark.slow
def test_a_matrix_that_is_not_definite_is_nan():
    """The one matrix, its triangle; as JAX's factor on every platform."""
    good = definite(floats(4, 4))
    zero_pivot = good.copy()
    zero_pivot[0, 0] = 0
    last_pivot = good.copy()
    last_pivot[3, 3] = -1
    got = factor(np.stack([good, zero_pivot, last_pivot, good * np.float32(np.nan)]))
    same_bits(got[0], oracle_factor(good))
    triangle = np.tril(np.full((4, 4), np.nan, np.float32))
    for bad in got[1:]:
        same_bits(bad, triangle)


@pytest.mark.slow
def test_factor_error():
    """Within n roundings of the matrix, norm-wise (Higham, theorem 10.3)."""
    a = definite(floats(96, 96))
    found = factor(a).astype(np.float64)
    residual = np.linalg.norm(found @ found.T - a) / np.linalg.norm(a)
    assert residual < 4 * EPSILON


# ---- Triangular solves.


SOLVES = [
    *itertools.product(
        [True, False], [True, False], ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_side", "lower", "transpose_a"),
    [
        # Each option twice; the rest takes time.
        pytest.param(*options, marks=[] if i % 5 == 0 else pytest.mark.slow)
        for i, options in enumerate(SOLVES)
    ],
)
def test_solution_is_the_stated_fold(left_side, lower, transpose_a):
    # Each unit diagonal and each kind of number meets every other option.
    unit = (left_side + lower) % 2 == 1
    make = complexes if transpose_a == "ADJOINT" else floats
    a = make(2, 5, 5) + 3 * np.eye(5, dtype=np.float32)
    b = make(2, 5, 3, seed=1) if left_side else make(2, 3, 5, seed=1)
    options = {
        "left_side": left_side,
        "lower": lower,
        "unit_diagonal": unit,
        "transpose_a": transpose_a,
    }
    want = np.stack([oracle_solve(x, y, **options) for x, y in zip(a, b, strict=True)])
    keep = np.tril if lower else np.triu
    unread = ~keep(np.full((5, 5), True), *([-1 if lower else 1] if unit else []))
    got = solve(np.where(unread, a.dtype.type(np.nan), a), b, **options)
    same_bits(got, want)


@pytest.mark.slow
def test_complex_solutions_divide_by_every_kind_of_pivot():
    """Smith's two cases, and parts that are zero."""
    a = np.diag(np.array([2 + 1j, 1 - 3j, 4, 5j, -1 + 1j], np.complex64))
    b = complexes(5, 2)
    options = {"left_side": True, "lower": True, "unit_diagonal": False}
    want = oracle_solve(a, b, transpose_a="NO_TRANSPOSE", **options)
    np.testing.assert_array_equal(solve(a, b), want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [np.float16, pytest.param(ml_dtypes.bfloat16, marks=pytest.mark.slow)]
)
def test_narrow_solutions_are_rounded_once(kind):
    a = (floats(4, 4) + 3 * np.eye(4, dtype=np.float32)).astype(kind)
    b = floats(4, 2, seed=1).astype(kind)
    options = {"left_side": True, "lower": True, "unit_diagonal": False}
    wide = (x.astype(np.float32) for x in (a, b))
    want = oracle_solve(*wide, transpose_a="NO_TRANSPOSE", **options).astype(kind)
    same_bits(solve(a, b).astype(np.float32), want.astype(np.float32))


@pytest.mark.slow
def test_parts_round_stochastically_on_their_own():
    """1 + 2^-12 is no bfloat16: equal parts are rounded by different bits."""
    one = np.full((1, 256), 1 + 2.0**-12, np.float32)
    eye, nothing = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    re, im = instructions.run(
        TriangularSolve,
        [eye, nothing, one, one],
        *[((1, 256), ml_dtypes.bfloat16)] * 2,
        engine="gpsimd",
        left_side=True,
        lower=True,
        unit_diagonal=True,
        transpose_a="NO_TRANSPOSE",
        rounding="stochastic",
    )
    assert set(np.unique(re.astype(np.float32))) == {1, 1 + 2.0**-7}
    assert (re != im).any()


@pytest.mark.parametrize(
    ("a", "b"), [((0, 0), (0, 3)), ((3, 3), (3, 0)), ((0, 2, 2), (0, 2, 1))]
)
def test_solutions_without_elements(a, b):
    assert solve(np.zeros(a, np.float32), np.zeros(b, np.float32)).shape == b


@pytest.mark.slow
def test_zero_pivot():
    """As IEEE 754 divides."""
    a, b = np.zeros((2, 2), np.float32), np.array([[1], [-1]], np.float32)
    np.testing.assert_array_equal(solve(a, b), [[np.inf], [np.nan]])


@pytest.mark.slow
def test_solution_error():
    """Backward error (Higham, theorem 8.5): each row within n roundings."""
    n = 96
    a = np.tril(floats(n, n)) + 8 * np.eye(n, dtype=np.float32)
    b = floats(n, 4, seed=1)
    x, a, b = (m.astype(np.float64) for m in (solve(a, b), a, b))
    residual = np.abs(a @ x - b)
    assert (residual <= n * EPSILON * (np.abs(a) @ np.abs(x))).all()
