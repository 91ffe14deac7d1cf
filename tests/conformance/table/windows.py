"""reduce_window and select_and_scatter: pools, their gradients, cumulative ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.table.case import Case, Check, Close, Exact, Input, Sum, rows

Function = Any

#: Keywords of lax.reduce_window, for operands of rank 3.
WINDOWS: Mapping[str, dict[str, Any]] = {
    "valid": dict(window_dimensions=(1, 2, 3)),
    "strided": dict(window_dimensions=(1, 2, 2), window_strides=(1, 2, 2)),
    "same": dict(window_dimensions=(1, 3, 3), padding="SAME"),
    "padded": dict(window_dimensions=(1, 3, 2), padding=[(0, 0), (2, 1), (1, 0)]),
    "dilated_window": dict(window_dimensions=(1, 2, 3), window_dilation=(1, 3, 2)),
    "dilated_base": dict(window_dimensions=(1, 2, 3), base_dilation=(1, 2, 3)),
    "everything": dict(
        window_dimensions=(2, 3, 2),
        window_strides=(1, 2, 3),
        padding=[(1, 0), (1, 2), (0, 3)],
        base_dilation=(1, 2, 1),
        window_dilation=(1, 1, 2),
    ),
    "all_of_an_axis": dict(window_dimensions=(1, 5, 1)),
    "one": dict(window_dimensions=(1, 1, 1)),
    "overlapping": dict(
        window_dimensions=(2, 4, 4), window_strides=(1, 1, 3), padding="SAME"
    ),
}
#: name -> (body, first value of floats, of integers)
BODIES: Mapping[str, tuple[Function, float, int]] = {
    "max": (lax.max, -np.inf, -128),
    "min": (lax.min, np.inf, 127),
    "sum": (lax.add, 0.0, 0),
    "prod": (lax.mul, 1.0, 1),
}
SHAPE = (2, 5, 7)


def window(body: Function, init: float, keywords: dict[str, Any]) -> Function:
    given = dict(window_strides=(1, 1, 1), padding="VALID") | keywords

    def function(x: Any) -> Any:
        return lax.reduce_window(x, np.asarray(init, x.dtype), body, **given)

    return function


def pools() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16", "int32"):
        for name, keywords in WINDOWS.items():
            for body, (function, start, integer) in BODIES.items():
                exact = body in ("max", "min") or dtype == "int32"
                yield Case(
                    name=f"window-{body}-{name}-{dtype}",
                    function=window(
                        function, integer if dtype == "int32" else start, keywords
                    ),
                    inputs=(Input(SHAPE, dtype),),
                    check=_folded(dtype, exact),
                )


def _folded(dtype: str, exact: bool) -> Check:
    """A body of BF16 may round after every step."""
    if exact:
        return Exact()
    return Sum(40) if dtype == "float32" else Close(0.05, 0.05)


CUMULATIVE: Mapping[str, Function | tuple[Function, Check]] = {
    "cummax": lambda x: lax.cummax(x, 1),
    "cummin_reverse": lambda x: lax.cummin(x, 2, reverse=True),
}
CUMULATIVE_SUMS: Mapping[str, Function] = {
    "cumsum": lambda x: lax.cumsum(x, 1),
    "cumsum_reverse": lambda x: lax.cumsum(x, 2, reverse=True),
    "cumprod": lambda x: lax.cumprod(x, 1),
    "cumprod_reverse": lambda x: lax.cumprod(x, 0, reverse=True),
}
CUMULATIVE_FLOAT: Mapping[str, Function] = {
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "cumlogsumexp_reverse": lambda x: lax.cumlogsumexp(x, 2, reverse=True),
    "avg_pool": lambda x: window(lax.add, 0, WINDOWS["same"])(x) / 9,
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x, axis=1),
    "associative_scan_pair": lambda x: lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1), axis=1
    ),
}


def _lexicographic(a: Any, b: Any) -> Any:
    (x, i), (y, j) = a, b
    takes = (x > y) | ((x == y) & (i < j))
    return jnp.where(takes, x, y), jnp.where(takes, i, j)


def argmax_pool(x: Any) -> Any:
    """Maxima and where they are: a window of two operands."""
    places = lax.broadcasted_iota(jnp.int32, x.shape, 2)
    lowest = np.asarray(-100 if x.dtype.kind == "i" else -np.inf, x.dtype)
    starts = (lowest, np.int32(99))
    return lax.reduce_window(
        (x, places), starts, _lexicographic, (1, 2, 3), (1, 1, 2), "VALID"
    )


def magnitude_pool(x: Any) -> Any:
    """A body that no reducer of XLA is."""

    def larger(a: Any, b: Any) -> Any:
        return jnp.where(abs(a) >= abs(b), a, b)

    return lax.reduce_window(
        x, np.zeros((), x.dtype), larger, (1, 2, 2), (1, 1, 1), "SAME"
    )


OWN: Mapping[str, Function] = {"argmax": argmax_pool, "magnitude": magnitude_pool}


def gradient(body: str, keywords: dict[str, Any]) -> Function:
    """Of a pool weighted by position, so that no two contributions are equal."""

    def function(x: Any) -> Any:
        start = np.inf if body == "min" else -np.inf

        def loss(x: Any) -> Any:
            pooled = window(BODIES[body][0], start, keywords)(x)
            weights = jnp.arange(1, pooled.size + 1, dtype=x.dtype)
            return (pooled * weights.reshape(pooled.shape)).sum()

        return jax.grad(loss)(x)

    return function


#: JAX differentiates no dilated windows of maxima.
GRADIENTS = ("valid", "strided", "same", "padded", "overlapping")


def gradients() -> Iterator[Case]:
    for body in ("max", "min"):
        for name in GRADIENTS:
            for kind in ("normal", "digits"):
                yield Case(
                    name=f"grad-{body}_pool-{name}-{kind}",
                    function=gradient(body, WINDOWS[name]),
                    inputs=(Input(SHAPE, "float32", kind),),
                )
    strided = gradient("max", WINDOWS["strided"])
    yield from rows({"grad-max_pool": strided}, ("bfloat16", "float16"), three)


def three(dtype: str) -> tuple[Input, ...]:
    return (Input(SHAPE, dtype),)


CASES = (
    *pools(),
    *rows(CUMULATIVE, ("float32", "bfloat16", "float16", "int32", "uint8"), three),
    *rows(CUMULATIVE_SUMS, ("float32",), three, Sum(40)),
    *rows(CUMULATIVE_SUMS, ("bfloat16",), three, Close(0.05, 0.05)),
    *rows(CUMULATIVE_SUMS, ("int8", "uint16", "int32"), three),
    *rows(CUMULATIVE_FLOAT, ("float32",), three, Close(1e-5, 1e-5)),
    *rows(OWN, ("float32", "bfloat16", "int32"), three),
    *gradients(),
)
