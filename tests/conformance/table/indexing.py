"""gather and scatter: NumPy indexing, .at[], every mode and hint, batching by vmap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Check, Exact, Input, Sum, rows

Function = Any
DTYPES = ("float32", "bfloat16", "int8", "uint32", "bool")
SHAPE = (4, 5, 6)
MODES = ("fill", "clip", "promise_in_bounds", None)


def taken(dtype: str) -> tuple[Input, ...]:
    return Input(SHAPE, dtype, "specials"), Input((3, 2), "int32", "index")


def inside(dtype: str) -> tuple[Input, ...]:
    return Input(SHAPE, dtype, "specials"), Input((3, 2), "int32", "inside")


#: Indices from -9 to 9 where axes have 4 to 6 elements.
GATHERS: Mapping[str, Function] = {
    "index": lambda x, i: x[i],
    "index_middle": lambda x, i: x[:, i],
    "index_two": lambda x, i: x[i, i[::-1]],
    "index_apart": lambda x, i: x[i, :, i[::-1]],
    "index_all": lambda x, i: x[i, i, i],
    "index_and_slice": lambda x, i: x[1:, i[0], ::2],
    "index_one": lambda x, i: x[i[0, 0]],
    "index_none": lambda x, i: x[i[:0]],
    "index_mask": lambda x, i: jnp.where((i > 0)[:, 0, None, None], x[:3], x[1:]),
    "take": lambda x, i: jnp.take(x, i, axis=1),
    "take_wrap": lambda x, i: jnp.take(x, i, axis=1, mode="wrap"),
    "take_clip": lambda x, i: jnp.take(x, i, axis=2, mode="clip"),
    "take_along_axis": lambda x, i: jnp.take_along_axis(x, i[:1, :, None] % 5, axis=1),
    "vmap": lambda x, i: jax.vmap(lambda row, j: row[j])(x[:3], i),
    "vmap_nested": lambda x, i: jax.vmap(
        jax.vmap(lambda row, j: row[j], (0, None)), (0, 0)
    )(x[:3], i),
    "vmap_dynamic_slice": lambda x, i: jax.vmap(
        lambda row, j: lax.dynamic_slice(row, (j[0], j[1]), (2, 3))
    )(x[:3], i),
    "vmap_index_only": lambda x, i: jax.vmap(lambda j: lax.dynamic_index_in_dim(x, j))(
        i[:, 0]
    ),
    "one_hot_row": lambda x, i: x.at[i, 1].get(),
    "get_unique": lambda x, i: x.at[jnp.array([3, 0, 2])].get(
        unique_indices=True, mode="clip"
    ),
    "get_sorted": lambda x, i: x.at[jnp.array([0, 2, 2, 3])].get(
        indices_are_sorted=True
    ),
    "choose": lambda x, i: jnp.choose(i[:, 0] % 3, x[0, :3, :3].T, mode="clip"),
    "window": lambda x, i: lax.gather(
        x,
        i,
        lax.GatherDimensionNumbers(
            offset_dims=(1, 2, 3), collapsed_slice_dims=(), start_index_map=(2, 0)
        ),
        slice_sizes=(2, 3, 2),
        mode="clip",
    ),
    "window_fill": lambda x, i: lax.gather(
        x,
        i,
        lax.GatherDimensionNumbers(
            offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(2, 1)
        ),
        slice_sizes=(2, 1, 2),
        mode="fill",
    ),
}


def gather_modes() -> Iterator[Case]:
    for mode in MODES:
        for dtype in DTYPES:
            in_bounds = mode == "promise_in_bounds"
            yield Case(
                name=f"get-{mode}-{dtype}",
                function=lambda x, i, mode=mode: x.at[i, i].get(mode=mode),
                inputs=(inside if in_bounds else taken)(dtype),
            )
    yield Case(
        name="get-fill_value",
        function=lambda x, i: x.at[:, i].get(mode="fill", fill_value=7),
        inputs=taken("float32"),
    )


UPDATES: Mapping[str, Function] = {
    "set": lambda x, i, u, mode: x.at[i].set(u, mode=mode),
    "add": lambda x, i, u, mode: x.at[i].add(u, mode=mode),
    "mul": lambda x, i, u, mode: x.at[i].multiply(u, mode=mode),
    "min": lambda x, i, u, mode: x.at[i].min(u, mode=mode),
    "max": lambda x, i, u, mode: x.at[i].max(u, mode=mode),
    "subtract": lambda x, i, u, mode: x.at[i].subtract(u, mode=mode),
}
LINEAR = ("add", "subtract", "mul")


def distinct_rows(dtype: str) -> tuple[Input, ...]:
    """Indices that differ, so that the order of updates does not show; two of the five
    are out of bounds."""
    return (
        Input((4, 3), dtype),
        Input((5,), "int32", "distinct_beyond"),
        Input((5, 3), dtype),
    )


def scatter_modes() -> Iterator[Case]:
    for name, function in UPDATES.items():
        for mode in ("drop", "clip", None):
            for dtype in ("float32", "bfloat16", "int32", "uint8"):
                # Clipped indices meet in the last row.
                clipped = mode == "clip"
                if clipped and name == "set":
                    continue
                yield Case(
                    name=f"scatter-{name}-{mode}-{dtype}",
                    function=lambda x, i, u, f=function, mode=mode: f(x, i, u, mode),
                    inputs=distinct_rows(dtype),
                    check=_met(dtype) if clipped and name in LINEAR else Exact(),
                )


def _met(dtype: str) -> Check:
    return Exact() if dtype not in ("float32", "bfloat16") else Sum(8)


#: Of small integers, so that floats are exact in any order of the updates.
SCATTERS: Mapping[str, Function] = {
    "add_repeated": lambda x, i: x.at[i].add(2),
    "add_two_indices": lambda x, i: x.at[i, i[::-1]].add(x[:3, :2]),
    "add_slices": lambda x, i: x.at[:, i[:, 0]].add(x[:, :3]),
    "add_apart": lambda x, i: x.at[i[:, 0], :, i[:, 1]].add(x[:3, :, 0]),
    "max_repeated": lambda x, i: x.at[i].max(x[:3, None]),
    "min_repeated": lambda x, i: x.at[i].min(x[:3, None]),
    "set_one": lambda x, i: x.at[i[0, 0]].set(5),
    "set_slice": lambda x, i: x.at[1:3, ::2].set(7),
    "set_column": lambda x, i: x.at[:, i[0, 0], 2].set(x[:, 0, 0]),
    "set_unique": lambda x, i: x.at[jnp.array([2, 0])].set(
        x[2:], unique_indices=True, mode="promise_in_bounds"
    ),
    "set_sorted": lambda x, i: x.at[jnp.array([0, 3])].set(
        x[1:3], indices_are_sorted=True
    ),
    "add_scalar_everywhere": lambda x, i: x.at[...].add(1),
    "segment_sum": lambda x, i: jax.ops.segment_sum(
        x.reshape(20, 6), jnp.arange(20) % 7, num_segments=8
    ),
    "segment_max": lambda x, i: jax.ops.segment_max(
        x.reshape(20, 6), jnp.arange(20) % 7, num_segments=7
    ),
    "bincount": lambda x, i: jnp.bincount(i.ravel() % 4, length=5),
    "vmap_add": lambda x, i: jax.vmap(lambda row, j: row.at[j].add(1))(x[:3], i),
    "vmap_set": lambda x, i: jax.vmap(lambda row, j: row.at[j[0]].set(row[0]))(
        x[:3], i
    ),
    "vmap_update_slice": lambda x, i: jax.vmap(
        lambda row, j: lax.dynamic_update_slice(row, row[:2, :2], (j[0], j[1]))
    )(x[:3], i),
    "apply": lambda x, i: x.at[jnp.array([1, 3])].apply(lambda v: v * 2 + 1),
    "power": lambda x, i: x.at[jnp.array([1, 3])].power(2),
    "divide": lambda x, i: x.at[jnp.array([1, 3])].divide(2),
    "fill_diagonal": lambda x, i: jnp.fill_diagonal(x[0, :5, :5], 9, inplace=False),
    "window_add": lambda x, i: lax.scatter_add(
        x,
        i,
        x[:3, :2, :2],
        lax.ScatterDimensionNumbers(
            update_window_dims=(1, 2),
            inserted_window_dims=(1,),
            scatter_dims_to_operand_dims=(2, 1),
        ),
        mode="clip",
    ),
    "window_dropped": lambda x, i: lax.scatter_add(
        x,
        i,
        x[:3, :2, :2],
        lax.ScatterDimensionNumbers(
            update_window_dims=(1, 2),
            inserted_window_dims=(1,),
            scatter_dims_to_operand_dims=(2, 1),
        ),
    ),
}


def scattered(dtype: str) -> tuple[Input, ...]:
    return Input(SHAPE, dtype, "digits"), Input((3, 2), "int32", "index")


GRADIENTS: Mapping[str, Function] = {
    "grad_gather": lambda x, i: jax.grad(lambda x: (x[i] * jnp.arange(1.0, 7)).sum())(
        x
    ),
    "grad_take_along": lambda x, i: jax.grad(
        lambda x: (jnp.take_along_axis(x, i[:1, :, None] % 5, 1) * 3).sum()
    )(x),
    "grad_scatter": lambda x, i: jax.grad(
        lambda x: (x.at[i].set(0.0) * jnp.arange(6.0)).sum()
    )(x),
    "grad_scatter_mul": lambda x, i: jax.grad(
        lambda x: (
            x.at[jnp.array([0, 2])].multiply(x[1], unique_indices=True) * 2
        ).sum()
    )(x),
    "grad_dynamic_slice": lambda x, i: jax.grad(
        lambda x: lax.dynamic_slice(x, (i[0, 0], 0, 1), (2, 2, 2)).sum()
    )(x),
}
#: Indices of every integer type.
INDEX_DTYPES = ("int8", "uint8", "int16", "uint16", "uint32")


def typed_indices() -> Iterator[Case]:
    for dtype in INDEX_DTYPES:
        inputs = (Input((5, 3)), Input((4,), dtype, "inside"))
        yield Case(name=f"index-by-{dtype}", function=lambda x, i: x[i], inputs=inputs)
        yield Case(
            name=f"set-by-{dtype}",
            function=lambda x, i: x.at[i].set(1),
            inputs=inputs,
        )


CASES = (
    *rows({f"gather-{k}": v for k, v in GATHERS.items()}, DTYPES, taken),
    *gather_modes(),
    *scatter_modes(),
    *rows(
        {f"scatter-{k}": v for k, v in SCATTERS.items()},
        ("float32", "bfloat16", "int32"),
        scattered,
    ),
    *rows(GRADIENTS, ("float32",), scattered),
    *typed_indices(),
)
