"""Every elementwise op of StableHLO and CHLO, on special values, by dtype.

Limits of FP32 are those of docs/exactness.md; 16-bit formats are correctly rounded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Check, Close, Exact, Input, Ulp

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
SIZE = 64
PAIRS = 480  # 21 special values squared, and some

Function = Callable[..., Any]

EXACT_UNARY: Mapping[str, Function] = {
    "abs": lax.abs,
    "neg": lax.neg,
    "sign": lax.sign,
    "floor": lax.floor,
    "ceil": lax.ceil,
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "is_finite": lax.is_finite,
    "square": lax.square,
    "sqrt": lax.sqrt,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isposinf": jnp.isposinf,
    "trunc": jnp.trunc,
    "signbit": jnp.signbit,
    "nan_to_num": jnp.nan_to_num,
    "positive": jnp.positive,
    "relu": lambda x: jnp.maximum(x, 0),
}
#: FP32's limit in ULP.
ELEMENTARY: Mapping[str, tuple[Function, float]] = {
    "exp": (lax.exp, 1.1),
    "expm1": (lax.expm1, 1.25),
    "log": (lax.log, 0.9),
    "log1p": (lax.log1p, 1.5),
    "tanh": (lax.tanh, 1.35),
    "sin": (lax.sin, 0.9),
    "cos": (lax.cos, 0.9),
    "tan": (lax.tan, 2.5),
    "asin": (lax.asin, 1.3),
    "acos": (lax.acos, 0.85),
    "atan": (lax.atan, 1.75),
    "sinh": (lax.sinh, 2.3),
    "cosh": (lax.cosh, 1.6),
    "asinh": (lax.asinh, 1.9),
    "acosh": (lax.acosh, 2),
    "atanh": (lax.atanh, 2.2),
    "rsqrt": (lax.rsqrt, 1.5),
    "cbrt": (lax.cbrt, 0.9),
    "erf": (lax.erf, 1.45),
    "erfc": (lax.erfc, 6.8),
    "erf_inv": (lax.erf_inv, 4.2),
    "lgamma": (lax.lgamma, 4.5),
    "digamma": (lax.digamma, 40),  # 10 in the larger unit of elementary.ULP_FLOOR
    "bessel_i1e": (lax.bessel_i1e, 4.6),
}
EXACT_BINARY: Mapping[str, Function] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "copysign": jnp.copysign,
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
}
ELEMENTARY_BINARY: Mapping[str, tuple[Function, float]] = {
    "pow": (lax.pow, 0.75),
    "atan2": (lax.atan2, 1.75),
}
COMPARISONS: Mapping[str, Function] = {
    name: getattr(lax, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
BITWISE: Mapping[str, Function] = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
SHIFTS: Mapping[str, Function] = {
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
}
INTEGER_UNARY: Mapping[str, Function] = {
    "abs": jnp.abs,
    "neg": lax.neg,
    "sign": lax.sign,
    "not": lax.bitwise_not,
    "popcount": lax.population_count,
    "clz": lax.clz,
    "cube": lambda x: lax.integer_pow(x, 3),
}
INTEGER_BINARY: Mapping[str, Function] = {
    name: EXACT_BINARY[name] for name in ("add", "sub", "mul", "div", "rem")
} | {
    "max": lax.max,
    "min": lax.min,
    "floor_divide": jnp.floor_divide,
    "mod": jnp.mod,
}
#: The interpreter dies of SIGFPE where a divisor is zero.
QUOTIENTS = ("div", "rem", "floor_divide", "mod")
#: Compositions of jax.numpy and jax.nn, away from their singularities.
COMPOSED: Mapping[str, tuple[Function, str]] = {
    "softplus": (lambda x: jnp.logaddexp(x, 0), "spread"),
    "silu": (lambda x: x * lax.logistic(x), "normal"),
    "exp2": (lax.exp2, "normal"),
    "logistic": (lax.logistic, "normal"),
    "log2": (jnp.log2, "positive"),
    "log10": (jnp.log10, "positive"),
    "sinc": (jnp.sinc, "normal"),
    "i0": (jnp.i0, "normal"),
    "deg2rad": (jnp.deg2rad, "spread"),
    "rint_half": (lambda x: jnp.round(x, 1), "normal"),
    "reciprocal": (jnp.reciprocal, "positive"),
    "power_static": (lambda x: x**5, "normal"),
    "float_power": (lambda x: x**2.5, "positive"),
    "modf": (jnp.modf, "spread"),
    "frexp": (jnp.frexp, "spread"),
    "bessel_i0e": (lax.bessel_i0e, "normal"),
}
COMPOSED_BINARY: Mapping[str, tuple[Function, str]] = {
    "logaddexp": (jnp.logaddexp, "normal"),
    "logaddexp2": (jnp.logaddexp2, "normal"),
    "hypot": (jnp.hypot, "normal"),
    "arctan2": (jnp.arctan2, "normal"),
    "divmod": (jnp.divmod, "positive"),
    "heaviside": (jnp.heaviside, "normal"),
    "ldexp": (lambda x, y: jnp.ldexp(x, y.astype(jnp.int32)), "positive"),
}
#: Of 16-bit formats in compositions: every step rounds, the host's may not.
ROUNDINGS = {"float32": 2e-5, "bfloat16": 0.04, "float16": 0.006}


def one(dtype: str, kind: str = "special") -> tuple[Input, ...]:
    return (Input((SIZE,), dtype, kind),)


def pair(dtype: str) -> tuple[Input, ...]:
    return Input((PAIRS,), dtype, "first"), Input((PAIRS,), dtype, "second")


def limit(dtype: str, ulp: float) -> Check:
    return Ulp(ulp if dtype == "float32" else 0.5001)


def close(dtype: str) -> Check:
    return Close(ROUNDINGS[dtype], ROUNDINGS[dtype] / 4)


def float_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        row = functools.partial(_row, dtype)
        for name, function in EXACT_UNARY.items():
            yield row(name, function, one(dtype))
        for name, (function, ulp) in ELEMENTARY.items():
            yield row(name, function, one(dtype), limit(dtype, ulp))
        for name, function in {**EXACT_BINARY, **COMPARISONS}.items():
            yield row(name, function, pair(dtype))
        for name, (function, ulp) in ELEMENTARY_BINARY.items():
            yield row(name, function, pair(dtype), limit(dtype, ulp))
        stepped = row("nextafter", lax.nextafter, pair(dtype))
        # The reference interpreter keeps subnormal results.
        yield dataclasses.replace(stepped, subnormals=True, interpreter=False)


def composed_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        row = functools.partial(_row, dtype)
        for name, (function, kind) in COMPOSED.items():
            yield row(name, function, one(dtype, kind), close(dtype))
        for name, (function, kind) in COMPOSED_BINARY.items():
            yield row(name, function, one(dtype, kind) * 2, close(dtype))


def integer_cases() -> Iterator[Case]:
    for dtype in INTEGERS:
        for name, function in INTEGER_UNARY.items():
            yield _row(dtype, name, function, one(dtype))
        two = pair(dtype)
        for name, function in {**INTEGER_BINARY, **BITWISE, **COMPARISONS}.items():
            yield dataclasses.replace(
                _row(dtype, name, function, two), interpreter=name not in QUOTIENTS
            )
        for name, function in SHIFTS.items():
            amounts = Input((PAIRS,), dtype, "shift")
            yield _row(dtype, name, function, (two[0], amounts))


def bool_cases() -> Iterator[Case]:
    yield _row("bool", "not", lax.bitwise_not, one("bool"))
    for name, function in {**BITWISE, **COMPARISONS}.items():
        yield _row("bool", name, function, pair("bool"))
    for name in ("max", "min"):
        yield _row("bool", name, EXACT_BINARY[name], pair("bool"))


def ternary_cases() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        x, y = pair(dtype)
        bounds = tuple(Input((PAIRS,), dtype, "inside") for _ in range(2))
        yield _row(dtype, "clamp", lambda x, a, b: lax.clamp(a, x, a + b), (x, *bounds))
        scalars = tuple(Input((), dtype, "inside") for _ in range(2))
        yield _row(
            dtype, "clamp_scalar", lambda x, a, b: lax.clamp(a, x, a + b), (x, *scalars)
        )
        chosen = Input((PAIRS,), "bool")
        yield _row(dtype, "select", lax.select, (chosen, x, y))
        yield _row(
            dtype,
            "where_scalar",
            lambda c, x, y: jnp.where(c, x, y),
            (Input((), "bool"), x, y),
        )
    yield _row(
        "float32",
        "select_three",
        lambda w, *x: lax.select_n(w, *x),
        (Input((SIZE,), "int32", "digits3"), *one("float32") * 3),
    )


def _row(
    dtype: str,
    name: str,
    function: Function,
    inputs: tuple[Input, ...],
    check: Check = Exact(),
) -> Case:
    return Case(name=f"{name}-{dtype}", function=function, inputs=inputs, check=check)


CASES = (
    *float_cases(),
    *integer_cases(),
    *bool_cases(),
    *ternary_cases(),
    *composed_cases(),
)
