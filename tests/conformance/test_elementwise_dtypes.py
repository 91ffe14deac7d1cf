"""Elementwise ops on every dtype of the chips, from StableHLO text.

Integers against Python's own, exactly; floats bit by bit where one rounding decides,
the elementary functions against float64 (their bounds are tested in `numerics`).
"""

from __future__ import annotations

import fractions
import itertools
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.numerics.float_format import FloatFormat, get_format
from tests.conformance.module_text import (
    dtype_of,
    module,
    quick,
    run,
    same_numbers,
    tensor,
)
from tests.oracles import floats, integers

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "float8_e3m4")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
#: Trainium3 has e4m3fn in place of e4m3.
ON_TRN3 = "float8_e4m3fn"


@pytest.fixture(autouse=True)
def _with_64_bit_integers():
    with jax.enable_x64(True):
        yield


def target_of(name: str) -> str:
    return "trn3" if name == ON_TRN3 else "trn2"


def integer_pairs(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of numbers where something wraps, shifts out or divides by zero."""
    if dtype == np.bool_:
        return np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    info = np.iinfo(dtype)
    near = [*range(-3, 4), -7, 7, info.bits - 1, info.bits, info.bits + 1, 2**15 + 3]
    ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 3]
    values = np.array(
        [x for x in (*near, *ends) if info.min <= x <= info.max], dtype=dtype
    )
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


ORDINARY = (0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7, 0.25, 12.25, 1e-3)
FLOAT_VALUES = np.float32([*ORDINARY, 1e30, -1e30, np.inf, -np.inf, np.nan])


def float_pairs(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        x, y = np.meshgrid(FLOAT_VALUES.astype(dtype), FLOAT_VALUES.astype(dtype))
    return x.ravel(), y.ravel()


def elementwise(
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    results: Sequence[np.dtype] = (),
    **options,
) -> list[np.ndarray]:
    """Each "dialect.op attributes" on the arrays, in one program."""
    types = [tensor(a.shape, a.dtype) for a in arrays]
    shape = max((a.shape for a in arrays), key=len)
    lines, outputs = [], []
    for n, text in enumerate(names):
        name, _, attributes = text.partition(" ")
        dtype = results[n] if results else arrays[-1].dtype
        result = tensor(shape, dtype)
        operands = ", ".join(f"%a{i}" for i in range(len(arrays)))
        signature = f"({', '.join(types)}) -> {result}"
        lines.append(f'%{n} = "{name}"({operands}) {attributes} : {signature}')
        outputs.append((f"%{n}", result))
    return run(module(types, lines, outputs), arrays, **options)


# ---- Integers and booleans.


@pytest.mark.slow_except("bool")
@pytest.mark.parametrize("name", quick([*INTEGERS, "bool"], "int8", "uint32", "bool"))
def test_integers_are_exact(name):
    dtype = dtype_of(name)
    x, y = integer_pairs(dtype)
    boolean = name == "bool"
    binary = [*(integers.BOOLEAN if boolean else integers.BINARY)]
    # An unsigned number has no sign to take: StableHLO has these ops for signed ones.
    no = {"abs", "negate", "sign"} if name in UNSIGNED else set()
    unary = ["not"] if boolean else [u for u in integers.UNARY if u not in no]
    dialect = {"mulhi": "chlo.mulhi"}
    once = dict(compiled_only=name != "int8")
    ops = [dialect.get(op, f"stablehlo.{op}") for op in binary]
    got = elementwise(ops, [x, y], **once)
    for op, result in zip(binary, got, strict=True):
        same_numbers(result, integers.apply(op, x, y), f"{name} {op}")
    got = elementwise([f"stablehlo.{op}" for op in unary], [x], **once)
    for op, result in zip(unary, got, strict=True):
        same_numbers(result, integers.apply(op, x), f"{name} {op}")


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["int16", "int32"], "int32"))
def test_integers_through_fp32_saturate(name):
    dtype = dtype_of(name)
    x, y = integer_pairs(dtype)
    ops = {"add": floats.add, "subtract": floats.subtract, "multiply": floats.multiply}
    policy = nj.Policy(integer_path="fp32")
    got = elementwise(
        [*(f"stablehlo.{op}" for op in ops), "stablehlo.divide"], [x, y], policy=policy
    )
    info = np.iinfo(dtype)
    for (op, oracle), result in zip(ops.items(), got[:-1], strict=True):
        exact = oracle(x.astype(np.float32), y.astype(np.float32)).astype(np.float64)
        want = np.clip(np.rint(exact), info.min, info.max).astype(dtype)
        same_numbers(result, want, op)
    # Division is not on that path.
    same_numbers(got[-1], integers.apply("divide", x, y), "divide")


# ---- Comparison, selection, clamping.

DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def total_order(x: np.ndarray) -> np.ndarray:
    """Integers in the order of IEEE 754's totalOrder."""
    bits = 8 * x.dtype.itemsize
    codes = x.view(f"u{x.dtype.itemsize}").astype(np.int64)
    size = codes & ((1 << (bits - 1)) - 1)
    return np.where(codes >> (bits - 1), -1 - size, size)


@pytest.mark.slow_cases("float8_e4m3")
@pytest.mark.parametrize(
    "name",
    quick([*FLOATS, "int8", "uint32", "bool"], "bfloat16", "float8_e4m3", "uint32"),
)
def test_comparison(name):
    dtype = dtype_of(name)
    is_float = name in FLOATS
    x, y = (float_pairs if is_float else integer_pairs)(dtype)
    kind = {"f": "FLOAT", "i": "SIGNED", "u": "UNSIGNED", "b": "UNSIGNED"}
    types = [kind.get(dtype.kind, "FLOAT"), *(["TOTALORDER"] if is_float else [])]
    attributes = [
        (direction, type, f"#stablehlo<comparison_direction {direction}>")
        for direction, type in itertools.product(DIRECTIONS, types)
    ]
    ops = [
        f"stablehlo.compare {{comparison_direction = {text}, "
        f"compare_type = #stablehlo<comparison_type {type}>}}"
        for _, type, text in attributes
    ]
    results = [np.dtype(bool)] * len(ops)
    got = elementwise(ops, [x, y], results, compiled_only=name != "float16")
    for (direction, type, _), result in zip(attributes, got, strict=True):
        total = type == "TOTALORDER"
        a, b = map(total_order, (x, y)) if total else (x, y)
        if is_float and not total:
            a, b = (v.astype(np.float32) for v in (x, y))
        same_numbers(result, DIRECTIONS[direction](a, b), f"{name} {direction} {type}")


@pytest.mark.parametrize(
    "name", quick(["float32", "float8_e5m2", "uint8", "int32"], "float8_e5m2", "uint8")
)
def test_bounds_and_predicates_that_are_scalars(name):
    dtype = dtype_of(name)
    x, _ = (float_pairs if name in FLOATS else integer_pairs)(dtype)
    low, high = np.array(2, dtype), np.array(7, dtype)
    t, s = tensor(x.shape, dtype), tensor((), dtype)
    text = module(
        [s, t, s, tensor((), bool)],
        [
            f"%0 = stablehlo.clamp %a0, %a1, %a2 : ({s}, {t}, {s}) -> {t}",
            f"%1 = stablehlo.select %a3, %0, %a1 : tensor<i1>, {t}",
        ],
        [("%0", t), ("%1", t)],
    )
    arrays = [low, x, high, np.array(False)]
    clamped, selected = run(text, arrays, compiled_only=name != "int32")
    with np.errstate(invalid="ignore"):
        wide = np.clip(x.astype(np.float64), 2, 7)
    same_numbers(clamped, wide.astype(dtype), name)
    same_numbers(selected, x, name)


# ---- Floats.


@pytest.mark.slow
@pytest.mark.parametrize("name", quick([*FLOATS[1:], ON_TRN3], "float16", ON_TRN3))
def test_narrow_arithmetic_rounds_the_fp32_result(name):
    dtype = dtype_of(name)
    x, y = float_pairs(dtype)
    a, b = (v.astype(np.float32) for v in (x, y))
    with np.errstate(all="ignore"):
        want = {
            "add": floats.add(a, b),
            "subtract": floats.subtract(a, b),
            "multiply": floats.multiply(a, b),
            "divide": floats.divide(a, b),
            "maximum": np.maximum(a, b),
            "minimum": np.minimum(a, b),
            "remainder": np.fmod(a, b),
        }
        ops = [f"stablehlo.{op}" for op in want]
        options = dict(target=target_of(name), compiled_only=name != "float8_e4m3")
        for (op, exact), got in zip(
            want.items(), elementwise(ops, [x, y], **options), strict=True
        ):
            # Which zero is larger is left open by NumPy.
            both_zero = (a == 0) & (b == 0) & (op in ("maximum", "minimum"))
            want_code = exact.astype(dtype)
            same_numbers(got[~both_zero], want_code[~both_zero], f"{name} {op}")


ROUNDINGS = {
    "abs": np.abs,
    "negate": np.negative,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "round_nearest_afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick([*FLOATS[1:], ON_TRN3], "bfloat16", ON_TRN3))
def test_signs_and_roundings_of_every_code(name):
    dtype = dtype_of(name)
    codes = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
    x = codes.view(dtype)
    ops = [*(f"stablehlo.{op}" for op in ROUNDINGS), "stablehlo.is_finite"]
    ops += [f"chlo.{op}" for op in ("is_inf", "is_pos_inf", "is_neg_inf")]
    results = [dtype] * len(ROUNDINGS) + [np.dtype(bool)] * 4
    *rounded, finite, inf, positive, negative = elementwise(
        ops, [x], results, target=target_of(name), compiled_only=name != "float8_e5m2"
    )
    wide = x.astype(np.float32)
    if name == "bfloat16":
        wide = floats.flush(wide)
    with np.errstate(invalid="ignore"):
        for (op, oracle), got in zip(ROUNDINGS.items(), rounded, strict=True):
            same_numbers(got, oracle(wide).astype(dtype), f"{name} {op}")
    assert np.array_equal(finite, np.isfinite(wide))
    assert np.array_equal(inf, np.isinf(wide))
    assert np.array_equal(positive, wide == np.inf)
    assert np.array_equal(negative, wide == -np.inf)


PRECISIONS = [
    (5, 10),
    (8, 7),
    (4, 3),
    (5, 2),
    (3, 0),
    (1, 1),
    (2, 23),
    (8, 0),
    (11, 52),
]


def reduced(x: float, source: FloatFormat, exponent: int, mantissa: int) -> float:
    """The specification, on an exact number of the source's format."""
    if np.isnan(x) or np.isinf(x) or x == 0:
        return np.copysign(np.inf, x) if np.isnan(x) and not mantissa else x
    exact = fractions.Fraction(x)
    size = abs(exact)
    power = max(int(np.floor(np.log2(float(size)))), source.min_exponent)
    kept = min(mantissa, source.mantissa_bits)
    quantum = fractions.Fraction(2) ** (power - kept)
    digits = round(size / quantum)
    if size / quantum == fractions.Fraction(3, 2) and not kept:
        # Of two powers of two the one with the even code, in the source's format.
        digits = 1 + (power + source.bias) % 2
    rounded = digits * quantum
    if not rounded:
        return float(np.copysign(0.0, x))
    reach = (1 << (exponent - 1)) - 1
    top = rounded.numerator.bit_length() - rounded.denominator.bit_length()
    top -= fractions.Fraction(2) ** top > rounded
    narrow = exponent < source.exponent_bits
    if narrow and top <= -reach:
        rounded = 0
    if (narrow and top > reach) or rounded > fractions.Fraction(source.max_finite):
        rounded = np.inf
    return float(np.copysign(float(rounded), x))


@pytest.mark.slow
@pytest.mark.parametrize("name", quick([*FLOATS, ON_TRN3], "float32", "float8_e5m2"))
def test_reduce_precision(name):
    dtype = dtype_of(name)
    width = 8 * dtype.itemsize
    rng = np.random.default_rng(3)
    codes = np.arange(256) if width == 8 else rng.integers(0, 1 << width, 400)
    edges = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, 1.5, 448, 65504, 65520])
    with np.errstate(over="ignore"):
        x = np.concatenate(
            [codes.astype(f"u{width // 8}").view(dtype), edges.astype(dtype)]
        )
    ops = [
        f"stablehlo.reduce_precision {{exponent_bits = {e} : i32, "
        f"mantissa_bits = {m} : i32}}"
        for e, m in PRECISIONS
    ]
    options = dict(target=target_of(name), compiled_only=name != "float16")
    fmt = get_format(dtype)
    wide = x.astype(np.float32)
    if fmt.exponent_bits == 8:
        wide = floats.flush(wide)
    for (e, m), got in zip(PRECISIONS, elementwise(ops, [x], **options), strict=True):
        want = [reduced(float(v), fmt, e, m) for v in wide]
        with np.errstate(over="ignore", invalid="ignore"):
            same_numbers(got, np.float32(want).astype(dtype), f"{name} {e} {m}")


@pytest.mark.parametrize("name", quick(FLOATS[:3], "float16"))
def test_next_after_is_the_neighbour(name):
    dtype = dtype_of(name)
    x, y = float_pairs(dtype)
    [got] = elementwise(["chlo.next_after"], [x, y], compiled_only=True)
    same_numbers(got, np.where(x == y, y, np.nextafter(x, y)), name)


@pytest.mark.slow
def test_polygamma_is_what_digamma_s_gradient_needs():
    x = np.array([0.1, 0.5, 1, 2.5, 30, -0.5, -3.7], np.float32)

    def slope(x):
        gradient = jax.grad(lambda v: lax.digamma(v).sum())(x)
        return gradient, lax.zeta(np.float32(2), x[:5])

    got, tail = nj.jit(slope)(x)
    want, _ = jax.jit(slope)(x[:5])
    assert np.allclose(got[:5], want, rtol=1e-5)
    assert np.allclose(got[5:], [8.934802, 14.842425], rtol=1e-5)
    assert np.allclose(tail, want, rtol=1e-5)


# ---- Conversions.

ALL = (*FLOATS, *INTEGERS, "bool")
ABSENT_ON_TRN3 = ("float8_e3m4",)


def _convertible(dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return np.array([False, True])
    ends = [127, 128, 255, 256, 2**15, 2**16, 2**24 + 1, 2**31, 2**32, 2**63]
    ends += [2**25 + 2, 3 * 2**23 + 3, 448, 464, 240, 248, 65504, 65520, 2.0**64, 1e30]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        whole = [int(s * v) for v in ends if v < 1e19 for s in (1, -1)]
        whole += [0, 1, info.min, info.max]
        return np.array([v for v in whole if info.min <= v <= info.max], dtype)
    both = np.float32([*ends, *(-float(v) for v in ends)])
    with np.errstate(over="ignore"):
        return np.concatenate([FLOAT_VALUES, both]).astype(dtype)


def _converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """StableHLO: integers wrap, floats truncate and saturate, NaN is 0."""
    if dtype == np.bool_:
        return x.astype(np.float64) != 0
    if dtype.kind not in "iu":
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(np.float32).astype(dtype)
    width = integers.Width.of(dtype)
    if x.dtype.kind in "iub":
        return np.array([width.wrap(int(v)) for v in x.tolist()], dtype)
    info = np.iinfo(dtype)
    out = []
    for v in x.astype(np.float64).tolist():
        if np.isnan(v):
            out.append(0)
        elif np.isinf(v):
            out.append(info.max if v > 0 else info.min)
        else:
            out.append(min(max(int(v), info.min), info.max))
    return np.array(out, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("source", [*ALL, ON_TRN3])
def test_conversion_between_all_pairs(source):
    target = target_of(source)
    legal = [n for n in ALL if target == "trn2" or n not in ABSENT_ON_TRN3]
    others = [n for n in legal if n != source]
    x = _convertible(dtype_of(source))
    dtypes = [dtype_of(n) for n in others]
    ops = ["stablehlo.convert"] * len(others)
    got = elementwise(ops, [x], dtypes, target=target, compiled_only=True)
    for dtype, result in zip(dtypes, got, strict=True):
        same_numbers(result, _converted(x, dtype), f"{source} to {dtype}")
