"""sort with any number of operands, keys and comparators; top_k; order statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Input, only_native, rows

Function = Any
FLOATS = ("float32", "bfloat16", "float16")
OTHERS = ("int8", "uint8", "int32", "uint32", "bool")
SHAPE = (3, 4, 6)

ONE: Mapping[str, Function] = {
    "sort": lambda x: lax.sort(x, dimension=2),
    "sort_first": lambda x: lax.sort(x, dimension=0),
    "sort_middle": lambda x: jnp.sort(x, axis=1),
    "sort_descending": lambda x: jnp.sort(x, descending=True),
    "sort_unstable": lambda x: lax.sort(x, is_stable=False),
    "argsort": lambda x: jnp.argsort(x, axis=1),
    "argsort_descending": lambda x: jnp.argsort(x, descending=True, stable=True),
    "sort_flat": lambda x: jnp.sort(x, axis=None),
}
NUMBERS: Mapping[str, Function] = {
    "top_k": lambda x: lax.top_k(x, 4),
    "top_1": lambda x: lax.top_k(x, 1),
    "top_all": lambda x: lax.top_k(x, 6),
    "sort_two_operands": lambda x: lax.sort(
        (x, lax.broadcasted_iota(jnp.int32, x.shape, 2)), num_keys=1
    ),
    "sort_two_keys": lambda x: lax.sort(
        (x, x[::-1], lax.broadcasted_iota(jnp.int32, x.shape, 1)),
        dimension=1,
        num_keys=2,
    ),
    "sort_three_keys": lambda x: lax.sort((x, x[:, ::-1], -x), num_keys=3),
    "lexsort": lambda x: jnp.lexsort((x[0, 0], x[1, 1])),
    "unique": lambda x: jnp.unique(x, size=12, fill_value=0, return_index=True),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0, 0]), x[1]),
    "searchsorted_right": lambda x: jnp.searchsorted(
        jnp.sort(x[0, 0]), x[1], side="right"
    ),
    "partition": lambda x: jnp.partition(x, 2)[..., 2],
    "vmap_sort": jax.vmap(lambda row: lax.sort(row, dimension=0)),
    "histogram": lambda x: jnp.histogram(x, bins=5, range=(0, 4))[0],
    "nonzero": lambda x: jnp.nonzero(x, size=9, fill_value=-1),
}
FLOAT: Mapping[str, Function] = {
    "percentile": lambda x: jnp.percentile(x, 25, axis=1),
    "quantile_nearest": lambda x: jnp.quantile(x, 0.5, axis=1, method="nearest"),
    "approx_max_k": lambda x: lax.approx_max_k(x, 3),
    "approx_min_k": lambda x: lax.approx_min_k(x, 3),
    "grad_sort": jax.grad(lambda x: (jnp.sort(x) * jnp.arange(6, dtype=x.dtype)).sum()),
    "grad_top_k": jax.grad(lambda x: lax.top_k(x, 2)[0].sum().astype(x.dtype)),
}


def special(dtype: str) -> tuple[Input, ...]:
    return (Input(SHAPE, dtype, "specials"),)


def repeated(dtype: str) -> tuple[Input, ...]:
    """Many equal elements, to show the order of equals."""
    return (Input(SHAPE, dtype, "digits"),)


def distinct(dtype: str) -> tuple[Input, ...]:
    return (Input(SHAPE, dtype, "distinct"),)


def named(prefix: str, table: Mapping[str, Function]) -> dict[str, Function]:
    return {f"{prefix}-{name}": function for name, function in table.items()}


def long_sorts() -> Iterator[Case]:
    inputs = (Input((2, 300), "float32", "spread"),)
    yield Case(name="sort-long", function=lax.sort, inputs=inputs)
    yield Case(name="top_k-long", function=lambda x: lax.top_k(x, 20), inputs=inputs)


CASES = (
    # The interpreter compares NaNs as floats where the program says TOTALORDER.
    *only_native(rows(named("special", ONE), FLOATS, special)),
    *rows(named("special", ONE), OTHERS, special),
    *rows(named("equal", ONE), ("float32", "int8"), repeated),
    *rows(named("equal", NUMBERS), ("float32", "bfloat16", "int32", "uint8"), repeated),
    *only_native(rows(FLOAT, ("float32", "bfloat16"), distinct)),
    *long_sorts(),
)
