"""while, fori_loop, scan, cond, switch and calls, with carries of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Input, rows

Function = Any
DTYPES = ("float32", "bfloat16", "int8", "int32", "uint32")
SHAPE = (4, 6)


def inputs(dtype: str) -> tuple[Input, ...]:
    return Input(SHAPE, dtype, "digits"), Input((), "int32", "inside")


def collatz(x: Any, n: Any) -> Any:
    """A carry of an integer, a boolean and an array; as many steps as it takes."""

    def body(carry: Any) -> Any:
        value, _, total = carry
        value = jnp.where(value % 2 == 0, value // 2, 3 * value + 1)
        return value, value == 1, total + x

    start = (n + 6, jnp.array(False), jnp.zeros_like(x))
    return lax.while_loop(lambda carry: ~carry[1], body, start)


def triangular(x: Any, n: Any) -> Any:
    """A loop in a loop whose bound is the outer counter."""

    def outer(i: Any, total: Any) -> Any:
        return lax.fori_loop(0, i, lambda j, t: t + x[j % 4], total)

    return lax.fori_loop(0, n + 2, outer, x[0])


def scan_with(**keywords: Any) -> Function:
    def function(x: Any, n: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            count, largest = carry
            return (count + 1, jnp.maximum(largest, row)), (largest, count > 1)

        return lax.scan(step, (n, x[0]), x, **keywords)

    return function


def scan_of_none(x: Any, n: Any) -> Any:
    return lax.scan(lambda c, _: (c + x[0], c.sum()), x[1], None, length=3)


def scan_dict(x: Any, n: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return {"a": carry["b"], "b": row}, carry["a"][None]

    return lax.scan(step, {"a": x[0], "b": x[1]}, x)


def nested_scan(x: Any, n: Any) -> Any:
    def outer(carry: Any, row: Any) -> Any:
        return lax.scan(lambda c, v: (c + v, c), carry, row)

    return lax.scan(outer, x[0, 0], x)


def cond_pytree(x: Any, n: Any) -> Any:
    branches = (
        lambda x: {"a": x[0], "n": x.size * 2},
        lambda x: {"a": x[1], "n": x.size},
    )
    return lax.cond(n > 1, *branches, x)


def cond_in_loop(x: Any, n: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda x: x + x[0], lambda x: jnp.roll(x, 1, 0), x)

    return lax.fori_loop(0, 5, body, x)


def switched(index: Any) -> Function:
    def function(x: Any, n: Any) -> Any:
        branches = [lambda x: x, lambda x: x * 2, lambda x: x[::-1]]
        return lax.switch(n + index, branches, x)

    return function


FLOWS: Mapping[str, Function] = {
    "while": collatz,
    "while_never": lambda x, n: lax.while_loop(lambda c: c[0] > 9, lambda c: c, (n, x)),
    "fori": lambda x, n: lax.fori_loop(0, 5, lambda i, c: c + x[i % 4], x[0]),
    "fori_dynamic": lambda x, n: lax.fori_loop(n, 7, lambda i, c: c + x[i % 4], x[0]),
    "fori_nested": triangular,
    "fori_unrolled": lambda x, n: lax.fori_loop(
        0, 6, lambda i, c: c + x[i % 4], x[0], unroll=3
    ),
    "fori_in_place": lambda x, n: lax.fori_loop(
        0, 4, lambda i, c: c.at[i].set(c[3 - i]), x
    ),
    "scan": scan_with(),
    "scan_reverse": scan_with(reverse=True),
    "scan_unrolled": scan_with(unroll=2),
    "scan_of_none": scan_of_none,
    "scan_dict": scan_dict,
    "scan_nested": nested_scan,
    "map": lambda x, n: lax.map(lambda row: row + n.astype(x.dtype), x),
    "map_batches": lambda x, n: lax.map(lambda row: row[::-1], x, batch_size=3),
    "cond": lambda x, n: lax.cond(n > 1, lambda x: x + x, lambda x: x[::-1], x),
    "cond_pytree": cond_pytree,
    "cond_in_loop": cond_in_loop,
    "cond_vmapped": lambda x, n: jax.vmap(
        lambda row: lax.cond(row[0] > 1, lambda r: r + r, lambda r: r, row)
    )(x),
    "while_vmapped": lambda x, n: jax.vmap(
        lambda row: lax.while_loop(
            lambda c: c[1] < 3,
            lambda c: (c[0] + row, c[1] + 1),
            (row, row[0].astype(int)),
        )
    )(x),
    "switch": switched(0),
    "switch_below": switched(-9),
    "switch_beyond": switched(9),
    "call": lambda x, n: jax.jit(lambda x: x + x[0])(jax.jit(lambda x: x[::-1])(x)),
    "call_twice": lambda x, n: [jax.jit(jnp.sort)(x), jax.jit(jnp.sort)(x[0])],
    "remat": lambda x, n: jax.checkpoint(lambda x: x + x[1])(x),
    "pure_carry_bool": lambda x, n: lax.scan(
        lambda c, row: (c ^ (row > 1), c), x[0] > 0, x
    ),
}
GRADIENTS: Mapping[str, Function] = {
    "grad_scan": lambda x, n: jax.grad(
        lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), x[0], x)[0].sum()
    )(x),
    "grad_fori": lambda x, n: jax.grad(
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i] * 2, x[0]).sum()
    )(x),
    "grad_cond": lambda x, n: jax.grad(
        lambda x: lax.cond(n > 1, jnp.sum, lambda x: (x * 2).sum(), x)
    )(x),
    "grad_remat": lambda x, n: jax.grad(
        lambda x: jax.checkpoint(lambda x: x * x * 2)(x).sum()
    )(x),
}

CASES = (
    *rows(FLOWS, DTYPES, inputs),
    *rows(GRADIENTS, ("float32",), inputs),
)
