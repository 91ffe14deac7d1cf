"""Reshapes, transposes, broadcasts, slices, pads, iota: no bit of a value changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.table.case import Case, Input, rows

Function = Any
DTYPES = ("float32", "bfloat16", "int8", "uint32", "bool")
NUMBERS = (
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
)
SHAPE = (3, 4, 5)


def three(dtype: str) -> tuple[Input, ...]:
    return (Input(SHAPE, dtype, "specials"),)


def _pad(*widths: tuple[int, int, int]) -> Function:
    return lambda x: lax.pad(x, x[0, 0, 0], widths)


ONE: Mapping[str, Function] = {
    "reshape": lambda x: x.reshape(5, 12),
    "reshape_scalar_axis": lambda x: x.reshape(3, 1, 4, 1, 5),
    "ravel": jnp.ravel,
    "transpose": lambda x: x.T,
    "transpose_102": lambda x: x.transpose(1, 0, 2),
    "transpose_201": lambda x: x.transpose(2, 0, 1),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 3, 4, 6, 5), (1, 2, 4)),
    "broadcast_of_one": lambda x: jnp.broadcast_to(x[:, :1], SHAPE),
    "broadcast_scalar": lambda x: jnp.full((2, 3), x[1, 2, 3]),
    "reverse": lambda x: lax.rev(x, (0, 2)),
    "slice": lambda x: x[1:3, 1:, 2:4],
    "slice_strided": lambda x: x[::2, 1::3, 1:5:2],
    "slice_reversed": lambda x: x[::-1, :, ::-2],
    "slice_empty": lambda x: x[1:1],
    "concatenate": lambda x: jnp.concatenate([x, x[:, :2], x[:, ::-1]], axis=1),
    "concatenate_empty": lambda x: jnp.concatenate([x[:0], x]),
    "stack": lambda x: jnp.stack([x, x[::-1]], axis=2),
    "split": lambda x: jnp.split(x, [1, 3], axis=1),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "repeat": lambda x: jnp.repeat(x, 2, axis=1),
    "roll": lambda x: jnp.roll(x, (1, -2), (0, 2)),
    "squeeze_expand": lambda x: x[:1].squeeze(0)[:, None, :, None],
    "tril": jnp.tril,
    "triu": lambda x: jnp.triu(x, 1),
    "diagonal": lambda x: jnp.diagonal(x, 1, 1, 2),
    "rot90": lambda x: jnp.rot90(x, axes=(0, 1)),
    "moveaxis": lambda x: jnp.moveaxis(x, 0, -1),
    "pad": _pad((1, 2, 0), (0, 0, 0), (2, 0, 0)),
    "pad_interior": _pad((0, 0, 1), (1, 0, 2), (0, 1, 0)),
    "pad_negative": _pad((-1, 0, 0), (-1, -1, 0), (2, -3, 0)),
    "pad_all": _pad((-1, 2, 1), (3, -2, 2), (-4, -3, 3)),
    "pad_edge": lambda x: jnp.pad(x, ((1, 1), (0, 2), (0, 0)), mode="edge"),
    "pad_reflect": lambda x: jnp.pad(x, ((1, 1), (0, 2), (0, 0)), mode="reflect"),
    "pad_wrap": lambda x: jnp.pad(x, ((1, 1), (0, 2), (0, 0)), mode="wrap"),
    "barrier": lax.optimization_barrier,
    "constant": lambda x: jnp.asarray(np.arange(6).reshape(2, 3), x.dtype),
}
#: Starts are inside, beyond the end and before the beginning: they are clamped.
STARTED: Mapping[str, Function] = {
    "dynamic_slice": lambda x, i, j, k: lax.dynamic_slice(x, (i, j, k), (2, 3, 1)),
    "dynamic_slice_in_dim": lambda x, i, j, k: lax.dynamic_slice_in_dim(x, j, 2, 1),
    "dynamic_index": lambda x, i, j, k: lax.dynamic_index_in_dim(x, i, 0, False),
    "dynamic_update_slice": lambda x, i, j, k: lax.dynamic_update_slice(
        x, x[:2, :1, :3][::-1], (i, j, k)
    ),
    "dynamic_update_in_dim": lambda x, i, j, k: lax.dynamic_update_slice_in_dim(
        x, x[:, 2:4], j, 1
    ),
    "dynamic_update_index": lambda x, i, j, k: lax.dynamic_update_index_in_dim(
        x, x[0], i, 0
    ),
}
STARTS = ((0, 0, 0), (1, 2, 3), (9, 9, 9), (-1, -2, -30), (2, -100, 4))
IOTAS: Mapping[str, Function] = {
    "iota": lambda x: lax.broadcasted_iota(x.dtype, (3, 4), 1),
    "iota_first": lambda x: lax.broadcasted_iota(x.dtype, (3, 4), 0),
    "arange": lambda x: jnp.arange(2, 20, 3).astype(x.dtype),
    "eye": lambda x: jnp.eye(3, 4, 1, dtype=x.dtype),
}
FLOAT: Mapping[str, Function] = {
    "linspace": lambda x: jnp.linspace(0, 1, 5, dtype=x.dtype),
    "meshgrid": lambda x: jnp.meshgrid(x[0, 0], x[0, :, 0]),
}


def started() -> Iterator[Case]:
    """The three indices are int32, int8 or uint32, as any integer may start a slice."""
    for dtype in DTYPES:
        for name, function in STARTED.items():

            def at_all_starts(x: Any, *, function: Function = function) -> list[Any]:
                return [function(x, *map(jnp.int32, start)) for start in STARTS]

            yield Case(
                name=f"{name}-{dtype}", function=at_all_starts, inputs=three(dtype)
            )
    for index in ("int8", "uint8", "uint32"):
        inputs = (*three("float32"), Input((3,), index, "normal"))
        yield Case(
            name=f"dynamic_slice-{index}_starts",
            function=lambda x, i: lax.dynamic_slice(x, tuple(i), (1, 2, 3)),
            inputs=inputs,
            # It reads unsigned starts as signed ones.
            interpreter=index == "int8",
        )


CASES = (
    *rows(ONE, DTYPES, three),
    *started(),
    *rows(IOTAS, NUMBERS, three),
    *rows(FLOAT, ("float32",), three),
)
