"""reduce: every body, dtypes, axes; several operands; bodies of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.table.case import Case, Check, Close, Exact, Input, Sum, rows
from tests.conformance.table.elementwise import FLOATS, INTEGERS

Function = Any

SHAPE = (4, 5, 6)
SUMS: Mapping[str, Function] = {
    "sum_all": jnp.sum,
    "sum_first": lambda x: x.sum(0),
    "sum_last": lambda x: x.sum(-1),
    "sum_middle": lambda x: x.sum(1),
    "sum_two": lambda x: x.sum((0, 2)),
    "sum_kept": lambda x: x.sum((1, 2), keepdims=True),
    "mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(1),
}
CHOICES: Mapping[str, Function] = {
    "max": lambda x: x.max(1),
    "min": lambda x: x.min((0, 2)),
    "max_all": jnp.max,
    "argmax": lambda x: jnp.argmax(x, 1),
    "argmin": lambda x: jnp.argmin(x, 2),
    "argmax_all": jnp.argmax,
    "lax_argmax": lambda x: lax.argmax(x, 0, np.int32),
    "ptp": lambda x: jnp.ptp(x, 1),
    "any": lambda x: jnp.any(x > 0, 1),
    "all": lambda x: jnp.all(x > -2, (0, 1)),
    "count_nonzero": lambda x: jnp.count_nonzero(x > 0, 1),
}
STATISTICS: Mapping[str, Function] = {
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((0, 1)),
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "softmax": lambda x: jax.nn.softmax(x, 1),
    "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
    "norm": lambda x: jnp.sqrt((x * x).sum(-1)),
    "median": lambda x: jnp.median(x, 1),
    "average": lambda x: jnp.average(x, 1, weights=x[0, :, 0] ** 2),
    "nanmean": lambda x: jnp.nanmean(x, 1),
    "standardize": lambda x: jax.nn.standardize(x),
}
BITS: Mapping[str, Function] = {
    "reduce_and": lambda x: lax.reduce_and(x, (1,)),
    "reduce_or": lambda x: lax.reduce_or(x, (0, 2)),
    "reduce_xor": lambda x: lax.reduce_xor(x, (2,)),
}


def own(body: Function, *inits: float) -> Function:
    """lax.reduce over axis 1 with a body that takes and returns pytrees."""

    def function(*operands: Any) -> Any:
        starts = tuple(
            np.asarray(v, x.dtype) for v, x in zip(inits, operands, strict=True)
        )
        return lax.reduce(operands, starts, body, (1,))

    return function


def _larger_magnitude(a: Any, b: Any) -> Any:
    (x,), (y,) = a, b
    return (jnp.where(abs(x) >= abs(y), x, y),)


def _sum_and_count(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


def _first_maximum(a: Any, b: Any) -> Any:
    (x, i), (y, j) = a, b
    takes = (x > y) | ((x == y) & (i < j))
    return jnp.where(takes, x, y), jnp.where(takes, i, j)


def _last_nonzero(a: Any, b: Any) -> Any:
    (x,), (y,) = a, b
    return (jnp.where(y != 0, y, x),)


def _bounds(a: Any, b: Any) -> Any:
    return jnp.minimum(a[0], b[0]), jnp.maximum(a[1], b[1])


OWN: Mapping[str, tuple[Function, tuple[str, ...]]] = {
    "largest_magnitude": (own(_larger_magnitude, 0), ("normal",)),
    "sum_and_count": (own(_sum_and_count, 0, 0), ("digits", "digits")),
    "first_maximum": (own(_first_maximum, -9, 99), ("digits", "distinct")),
    "last_nonzero": (own(_last_nonzero, 0), ("digits",)),
    "bounds": (own(_bounds, 9, -9), ("digits", "digits")),
}


def own_bodies():
    for dtype in ("float32", "bfloat16", "int32"):
        for name, (function, kinds) in OWN.items():
            inputs = tuple(Input(SHAPE, dtype, kind) for kind in kinds)
            yield Case(name=f"{name}-{dtype}", function=function, inputs=inputs)


#: Sizes that are nothing, one, and more than a tile of 512.
SIZES: Mapping[str, tuple[Function, tuple[int, ...], Check]] = {
    "sum_of_none": (lambda x: x.sum(0), (0, 3), Exact()),
    "max_of_one": (lambda x: x.max(0), (1, 3), Exact()),
    "prod_of_none": (lambda x: x.prod(1), (3, 0), Exact()),
    "sum_of_tiles": (lambda x: x.sum(0), (1100, 2), Sum(1100)),
    "sum_of_rows": (lambda x: x.sum(1), (2, 700), Sum(700)),
    "max_of_tiles": (lambda x: x.max(1), (2, 1100), Exact()),
    "argmax_of_tiles": (lambda x: x.argmax(), (2, 1100), Exact()),
}


def three(dtype: str) -> tuple[Input, ...]:
    return (Input(SHAPE, dtype),)


def line(dtype: str) -> tuple[Input, ...]:
    return (Input((3, 4, 4), dtype, "specials"),)


def in_16_bits() -> Check:
    return Close(0.04, 0.02)


CASES = (
    *rows(SUMS, ("float32",), three, Sum(130)),
    # Sums of 16-bit numbers are made in FP32 and rounded once, as jax.numpy asks.
    *rows(SUMS, ("bfloat16", "float16"), three, in_16_bits()),
    *rows({k: v for k, v in SUMS.items() if k != "mean"}, INTEGERS, three),
    *rows(CHOICES, FLOATS, three),
    *rows(CHOICES, ("int8", "uint8", "int32", "uint32"), three),
    *rows({f"{k}_special": v for k, v in CHOICES.items() if k != "ptp"}, FLOATS, line),
    *rows(STATISTICS, ("float32",), three, Close(1e-5, 2e-6)),
    *rows(STATISTICS, ("bfloat16",), three, in_16_bits()),
    *rows(BITS, (*INTEGERS, "bool"), three),
    *own_bodies(),
    *(
        Case(name=name, function=function, inputs=(Input(shape),), check=check)
        for name, (function, shape, check) in SIZES.items()
    ),
)
