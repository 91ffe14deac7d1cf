"""complex64 as pairs of float32, against NumPy's complex128 on the same inputs.

Errors are in units of 2^-24 |result|; what a part loses below 2^-126, where FP32 has
zeros for subnormals, does not count. Signs and infinities at the special values are
those of C99 Annex G, which NumPy's functions have where it has an opinion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.capture.attributes import complex_elements
from neuronjax.execution import interpreter
from neuronjax.execution.transformations import join_complex, split_complex
from neuronjax.hardware import resolve_target
from neuronjax.ir.program import (
    Function,
    Location,
    Op,
    Program,
    Region,
    TensorType,
    Value,
)
from neuronjax.lowering import lower
from tests.conformance.bits import assert_same, op_by_op

UNIT = 2.0**-24
TINY = 2.0**-126
LARGEST = float(np.finfo(np.float32).max)

# ---- One op, which JAX may lower otherwise or not at all.


def single(
    name: str,
    *arrays: np.ndarray,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    **attributes: Any,
) -> Any:
    """A program of one op, and a function of arrays that runs it."""
    arguments = tuple(
        Value(i, TensorType(a.shape, a.dtype)) for i, a in enumerate(arrays)
    )
    shape = arrays[0].shape if shape is None else shape
    result = Value(len(arrays), TensorType(shape, np.dtype(dtype or arrays[0].dtype)))
    op = Op(name, arguments, (result,), attributes, (), Location("scope", "user.py", 7))
    body = Region(arguments, (op,), (result,))
    names = tuple(f"x{i}" for i in range(len(arrays)))
    program = Program({"main": Function("main", body)}, "main", names)
    lowered = lower(program, target=resolve_target("trn2"), policy=nj.Policy())

    def run(*arrays: Any) -> jax.Array:
        parts = split_complex([jnp.asarray(a) for a in arrays])
        return join_complex(interpreter.run(lowered, parts).results, program)[0]

    return run


def one_by_one(name: str, *arrays: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The result of one op, executed op by op.

    Arrays are repeated to one length, so that tests share what is compiled.
    """
    n = len(arrays[0])
    arrays = tuple(np.resize(a, LENGTH) for a in arrays)
    run = single(name, *arrays, dtype=dtype)
    return np.asarray(op_by_op(run, *arrays))[:n]


def parts(re: Any, im: Any) -> np.ndarray:
    """complex64 from its parts, which Python's arithmetic would mix."""
    re, im = np.broadcast_arrays(re, im)
    out = np.empty(re.shape, np.complex64)
    out.real, out.imag = re, im
    return out


def magnitudes(rng: np.random.Generator, low: float, high: float, n: int) -> np.ndarray:
    """Of either sign, between 10^low and 10^high."""
    return 10 ** rng.uniform(low, high, n) * rng.choice([-1, 1], n)


def points(seed: int, n: int = 140) -> np.ndarray:
    """Ordinary, small, huge, and mixed numbers; close to poles, zeros and cuts."""
    rng = np.random.default_rng(seed)
    ranges = ((-1, 1), (-6, 1.9), (-30, -10), (10, 30), (-30, 30), (36, 38.4))
    spread = [parts(magnitudes(rng, *r, n), magnitudes(rng, *r, n)) for r in ranges]
    circle = np.exp(1j * rng.uniform(-np.pi, np.pi, n))
    centers = (1, -1, 1j, -1j, circle, 1j * np.pi, np.pi / 2, 1j * np.pi / 2)
    near = []
    for center in centers:
        re, im = (magnitudes(rng, -8, -0.5, n) for _ in range(2))
        re[::3] = 0
        im[1::3] = 0
        near.append(np.asarray(center + re + 1j * im, np.complex64))
    return np.concatenate([*spread, *near])


VALUES = (0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan)
GRID = parts(np.repeat(VALUES, len(VALUES)), np.tile(VALUES, len(VALUES)))
POINTS = points(1)
LENGTH = len(POINTS) + len(GRID)


@functools.cache
def of_points_and_grid(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A function of `POINTS` and of `GRID`."""
    dtype = np.float32 if name == "stablehlo.abs" else None
    got = one_by_one(name, np.concatenate([POINTS, GRID]), dtype=dtype)
    return got[: len(POINTS)], got[len(POINTS) :]


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units of 2^-24 |exact|, where the result is in range."""
    exact = exact.astype(np.complex128)
    size = np.maximum(abs(exact.real), abs(exact.imag))
    in_range = (size < LARGEST * (1 - 8 * UNIT)) & (size > TINY)
    with np.errstate(all="ignore"):
        difference = abs(got.astype(np.complex128) - exact) - 4 * TINY
        return np.where(in_range, difference / (abs(exact) * UNIT), 0)


class Case(NamedTuple):
    """A function, its exact counterpart, and the largest error allowed."""

    op: str
    exact: Callable[..., Any]
    bound: float


def log1p(z: np.ndarray) -> np.ndarray:
    """NumPy's own is not accurate near zero."""
    x, y = z.real, z.imag
    small = np.log1p(x * (2 + x) + y * y) / 2
    near = abs(z) < 0.5
    return np.where(near, small, np.log(abs(1 + z))) + 1j * np.arctan2(y, 1 + x)


def sign(z: np.ndarray) -> np.ndarray:
    return z / abs(z)


def cbrt(z: np.ndarray) -> np.ndarray:
    return np.cbrt(abs(z)) * np.exp(1j * np.angle(z) / 3)


def logistic(z: np.ndarray) -> np.ndarray:
    """e^z / (1 + e^z) left of the imaginary axis; 1 + e^z as expm1 near the poles."""
    left = np.where(z.real > 0, -z, z)
    growth = np.exp(left)
    turned = np.expm1(left - 1j * np.pi * np.sign(left.imag))
    denominator = np.where(abs(abs(z.imag) - np.pi) < 1, -turned, 1 + growth)
    return np.where(z.real > 0, 1, growth) / denominator


CASES = (
    Case("stablehlo.abs", np.abs, 2.1),
    Case("stablehlo.sign", sign, 3.0),
    Case("stablehlo.exponential", np.exp, 4.0),
    Case("stablehlo.exponential_minus_one", np.expm1, 6.0),
    Case("stablehlo.log", np.log, 6.0),
    Case("stablehlo.log_plus_one", log1p, 6.0),
    Case("stablehlo.logistic", logistic, 8.0),
    Case("stablehlo.sqrt", np.sqrt, 3.0),
    Case("stablehlo.rsqrt", lambda z: 1 / np.sqrt(z), 5.0),
    Case("stablehlo.cbrt", cbrt, 5.0),
    Case("stablehlo.sine", np.sin, 4.5),
    Case("stablehlo.cosine", np.cos, 4.5),
    Case("stablehlo.tan", np.tan, 8.0),
    Case("stablehlo.tanh", np.tanh, 8.0),
    Case("chlo.sinh", np.sinh, 5.0),
    Case("chlo.cosh", np.cosh, 5.0),
    Case("chlo.acos", np.arccos, 5.0),
    Case("chlo.asin", np.arcsin, 6.0),
    Case("chlo.atan", np.arctan, 6.0),
    Case("chlo.acosh", np.arccosh, 5.0),
    Case("chlo.asinh", np.arcsinh, 6.0),
    Case("chlo.atanh", np.arctanh, 6.0),
    Case("chlo.square", np.square, 2.3),
    Case("chlo.conj", np.conj, 0.0),
    Case("stablehlo.negate", np.negative, 0.0),
)
OVERFLOWING = {"chlo.square": 1e19}


@pytest.mark.slow_cases(
    "stablehlo.abs",
    "stablehlo.exponential",
    "stablehlo.log",
    "stablehlo.sqrt",
    "stablehlo.sign",
    "stablehlo.exponential_minus_one",
    "stablehlo.log_plus_one",
    "stablehlo.rsqrt",
)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_functions_are_accurate(case):
    got, _ = of_points_and_grid(case.op)
    check_accuracy(case, got, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_functions_are_accurate_at_many_points(case):
    z = points(7, 20_000)
    dtype = np.float32 if case.op == "stablehlo.abs" else None
    got = jax.jit(single(case.op, z, dtype=dtype))(z)
    check_accuracy(case, np.asarray(got), z)


FEW = ("stablehlo.exponential", "stablehlo.sqrt", "stablehlo.tanh")


@pytest.mark.slow_cases("stablehlo.tanh")
@pytest.mark.parametrize(
    "name",
    [
        c.op if c.op in FEW else pytest.param(c.op, marks=pytest.mark.slow)
        for c in CASES
    ],
)
def test_compiled_is_op_by_op(name):
    z = np.concatenate([POINTS, GRID])
    dtype = np.float32 if name == "stablehlo.abs" else None
    compiled = jax.jit(single(name, z, dtype=dtype))(z)
    assert_same(np.concatenate(of_points_and_grid(name)), np.asarray(compiled))


def check_accuracy(case: Case, got: np.ndarray, z: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        exact = case.exact(z.astype(np.complex128))
    found = errors(got, exact)
    found[abs(z) >= OVERFLOWING.get(case.op, np.inf)] = 0
    worst = int(np.argmax(found))
    assert found[worst] <= case.bound, (found[worst], z[worst], got[worst])


PAIRS = (
    Case("stablehlo.add", np.add, 1.0),
    Case("stablehlo.subtract", np.subtract, 1.0),
    Case("stablehlo.multiply", np.multiply, 2.3),
    Case("stablehlo.divide", np.divide, 5.0),
)


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.op)
def test_arithmetic_is_accurate(case):
    z, w = points(2), points(3)
    w = np.random.default_rng(4).permutation(w)
    if case.op == "stablehlo.multiply":  # by its definition: four products in range
        z, w = (np.where(abs(x) < 1e18, x, 1) for x in (z, w))
    with np.errstate(all="ignore"):
        exact = case.exact(z.astype(np.complex128), w.astype(np.complex128))
    got = one_by_one(case.op, z, w)
    found = errors(got, exact)
    worst = int(np.argmax(found))
    assert found[worst] <= case.bound, (z[worst], w[worst], got[worst], exact[worst])


@pytest.mark.parametrize("name", ["stablehlo.multiply", "stablehlo.divide"])
def test_compiled_arithmetic_is_op_by_op(name):
    z = np.concatenate([POINTS, GRID])
    w = np.random.default_rng(8).permutation(z)
    compiled = jax.jit(single(name, z, w))(z, w)
    assert_same(one_by_one(name, z, w), np.asarray(compiled))


def test_division_does_not_overflow_in_between():
    big, small = parts(3e38, -2e38), parts(2e-38, 3e-38)
    z = np.array([big, small, parts(1e-30, 1e-30), parts(1e30, 0)])
    w = np.array([big, small, parts(1e-30, -1e-30), parts(0, 1e38)])
    exact = np.array([1, 1, 1j, -1e-8j])
    assert (errors(one_by_one("stablehlo.divide", z, w), exact) <= 5).all()


def test_powers():
    rng = np.random.default_rng(5)
    base = parts(magnitudes(rng, -3, 3, 500), magnitudes(rng, -3, 3, 500))
    exponent = parts(magnitudes(rng, -2, 1, 500), magnitudes(rng, -2, 1, 500))
    wide = base.astype(np.complex128)
    exact = np.exp(exponent * np.log(wide))
    got = one_by_one("stablehlo.power", base, exponent)
    growth = 1 + abs(exponent * np.log(wide))
    assert (errors(got, exact) <= 8 * growth).all()


def test_powers_of_zero_and_to_zero():
    base = parts([0, 0, -0.0, 2, np.inf, np.nan], [0, 0, 0, 1, 0, 0])
    exponent = parts([0, 2, 0.5, 0, 0, 0], [0] * 6)
    got = one_by_one("stablehlo.power", base, exponent)
    np.testing.assert_array_equal(got, [1, 0, 0, 1, 1, 1])


def test_arc_tangent_of_two():
    rng = np.random.default_rng(6)
    y, x = (parts(*rng.normal(size=(2, 200))) for _ in range(2))
    got = one_by_one("stablehlo.atan2", y, x)
    wide = y.astype(np.complex128), x.astype(np.complex128)
    exact = -1j * np.log(
        (wide[1] + 1j * wide[0]) / np.sqrt(wide[1] ** 2 + wide[0] ** 2)
    )
    assert (abs(got - exact) < 1e-5 * (1 + abs(exact))).all()


# ---- Special values.

# With NaNs too. For the others NumPy's results with a NaN are not looked at closely:
# C99 leaves the sign of what is beside it open, and of limits without a direction.
ALL_SPECIALS = ("stablehlo.abs", "stablehlo.log", "stablehlo.sqrt")
SPECIALS = (
    *ALL_SPECIALS,
    "stablehlo.exponential",
    "stablehlo.log_plus_one",
    "stablehlo.sine",
    "stablehlo.cosine",
    "stablehlo.tan",
    "stablehlo.tanh",
    "chlo.sinh",
    "chlo.cosh",
    "chlo.acos",
    "chlo.asin",
    "chlo.atan",
    "chlo.acosh",
    "chlo.asinh",
    "chlo.atanh",
)


@pytest.mark.parametrize("name", SPECIALS)
def test_special_values(name):
    (case,) = [c for c in CASES if c.op == name]
    function = np.log1p if name.endswith("plus_one") else case.exact
    kept = ~np.isnan(GRID) | (name in ALL_SPECIALS)
    z, got = GRID[kept], of_points_and_grid(name)[1][kept]
    with np.errstate(all="ignore"):
        exact = function(z.astype(np.complex128))
    nonfinite = ~np.isfinite(z.real) & ~np.isfinite(z.imag)
    open_ = (np.isnan(exact) | nonfinite) & (name not in ALL_SPECIALS)
    for part in (np.real, np.imag):
        mine, numpys = part(got), part(exact)
        np.testing.assert_allclose(abs(mine), abs(numpys), 1e-6, 1e-45, err_msg=name)
        signs = np.signbit(mine) == np.signbit(numpys)
        assert (signs | open_ | np.isnan(numpys)).all(), z[~signs & ~open_]


INFINITE = (
    # z, w, |re| and |im| of z / w
    ((1, 1), (0, 0), (np.inf, np.inf)),
    ((-1, 1), (-0.0, 0), (np.inf, np.inf)),
    ((0, 0), (0, 0), (np.nan, np.nan)),
    ((np.inf, np.nan), (1, 0), (np.inf, np.nan)),
    ((np.inf, -np.inf), (1, 1), (np.nan, np.inf)),
    ((np.inf, 1), (1, 1), (np.inf, np.inf)),
    ((1, 1), (np.inf, 0), (0, 0)),
    ((1, -1), (np.nan, np.inf), (0, 0)),
    ((1, -1), (3, -np.inf), (0, 0)),
    ((np.inf, 0), (np.inf, 0), (np.nan, np.nan)),
    ((np.nan, 1), (2, 1), (np.nan, np.nan)),
)


def test_division_at_infinity():
    z, w, quotient = (
        parts(*zip(*column, strict=True)) for column in zip(*INFINITE, strict=True)
    )
    got = one_by_one("stablehlo.divide", z, w)
    np.testing.assert_array_equal(abs(got.real), quotient.real)
    np.testing.assert_array_equal(abs(got.imag), quotient.imag)
    assert (np.signbit(got.real[:2]) == [False, False]).all()


# ---- Conversions, constants, and what has no meaning.


def test_a_conversion_to_a_real_number_drops_the_imaginary_part():
    z = POINTS[:5]
    got = one_by_one("stablehlo.convert", z, dtype=np.float32)
    assert_same(got, z.real.copy())


@pytest.mark.slow
def test_ops_that_jax_does_not_write():
    z, w = POINTS[:12].reshape(3, 4), POINTS[20:24]
    sharded = single("stablehlo.custom_call", z, call_target_name="Sharding")
    assert_same(np.asarray(jax.jit(sharded)(z)), z)
    spread = jax.jit(single("chlo.broadcast_add", z, w))(z, w)
    assert_same(np.asarray(spread), z + w)
    constant = single("chlo.constant", value=z, shape=z.shape, dtype=z.dtype)
    assert_same(np.asarray(constant()), z)
    product = single("stablehlo.dot", z, w, shape=(3,))
    assert (errors(np.asarray(product(z, w)), z @ w.astype(np.complex128)) < 8).all()


def test_printed_constants():
    text = "%c = stablehlo.constant dense<{}> : tensor<{}complex<f32>>"
    read = lambda *a: complex_elements(text.format(*a))  # noqa: E731
    assert_same(read("(1.0,-2.5)", ""), np.array(1 - 2.5j, np.complex64))
    assert_same(read("(1.0,-2.5)", "2x"), np.full(2, 1 - 2.5j, np.complex64))
    infinite = parts(np.float32(-np.inf), np.float32(0))
    assert_same(read("(0xFF800000,0.0)", ""), infinite)
    assert read("", "0x3x").shape == (0, 3)
    with pytest.raises(nj.UnimplementedError, match="cannot be decoded"):
        complex_elements("%c = something else")


@pytest.mark.parametrize(
    ("name", "dtype", "attributes", "message"),
    [
        ("stablehlo.floor", None, {}, "not defined for complex"),
        ("chlo.erf", None, {}, "not defined for complex"),
        ("stablehlo.bitcast_convert", np.uint32, {}, "cannot be read as"),
        ("stablehlo.compare", np.bool_, {"comparison_direction": "LT"}, "no order"),
    ],
)
def test_ops_without_a_meaning(name, dtype, attributes, message):
    z = POINTS[:3]
    operands = (z, z) if name.endswith("compare") else (z,)
    with pytest.raises(nj.UnsupportedError, match=message) as caught:
        single(name, *operands, dtype=dtype, **attributes)
    assert caught.value.op == name
    assert caught.value.location == "user.py:7"
    assert "real and the imaginary" in (caught.value.remedy or "")
