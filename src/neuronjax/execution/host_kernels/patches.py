"""The patches of a convolution, copied by a kernel of this processor.

A patch consists of runs: bytes that are contiguous in the padded input. The start of a
run is a sum over axes, whose sizes and steps are arguments of the call. So all shapes
and dtypes share one kernel, where XLA compiles a loop for every position.
"""

from __future__ import annotations

import functools
import itertools
from math import prod

import jax
import numpy as np
from llvmlite import ir

from neuronjax.ir.instruction_set import Window
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import I64, POINTER, Code, Value
from neuronjax.numerics.host_kernels.handler import (
    MANY,
    ROW_FIELDS,
    called,
    element_words,
    row_parts,
)

NAME = "neuronjax_patches"
#: Batch, outputs and kernel positions of up to three dimensions.
MOST_AXES = 7
# Fields of a plan: how the indices of all axes but the last are divided among threads,
# the bytes of a run, then the size and the step of each axis.
FIELDS = len(ROW_FIELDS) + 1 + 2 * MOST_AXES


def copied(base: jax.Array, window: Window, counts: tuple[int, ...]) -> jax.Array:
    """Return the windows, [outer, *counts, *window.sizes, channels], of a base [outer,
    *spatial, channels] with elements of whole bytes. `counts` are the numbers of
    windows along each of at most three dimensions."""
    outer, *_, channels = base.shape
    shape = (outer, *counts, *window.sizes, channels)
    run, axes = _runs(base, window, counts)
    axes = [(1, 0)] * (MOST_AXES - len(axes)) + axes
    rows, row = prod(size for size, _ in axes[:-1]), axes[-1][0] * run
    each = max(1, MANY * base.dtype.itemsize // row)
    parts = row_parts(rows, each)
    numbers = (rows, parts, each, run, *itertools.chain(*axes))
    plan = element_words(parts, prod(shape), *numbers)
    result = jax.ShapeDtypeStruct(shape, base.dtype)
    again = functools.partial(copied, window=window, counts=counts)
    return called(NAME, write, result, plan, again, base)


def _runs(
    base: jax.Array, window: Window, counts: tuple[int, ...]
) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of a run, and the axes as sizes and steps in bytes."""
    pitches = np.cumprod((base.dtype.itemsize, *base.shape[:0:-1])).tolist()
    run, (whole, *spatial) = pitches[1], pitches[:0:-1]
    axes = [(base.shape[0], whole)]
    for sizes, steps in (
        (counts, window.strides),
        (window.sizes, window.window_dilations),
    ):
        pairs = zip(sizes, steps, spatial, strict=True)
        axes += [(size, step * pitch) for size, step, pitch in pairs if size > 1]
    while axes and axes[-1][1] == run:
        run *= axes.pop()[0]
    return run, axes


def write(module: ir.Module, lanes: int) -> str:
    """Return, as text, the module with the kernel that copies patches."""

    def work(c: Code, index: Value, plan: list[Value], where: list[Value]) -> None:
        rows, _, each, run, *axes = plan
        source, target = where
        copy = c.external("memcpy", POINTER, POINTER, POINTER, I64)
        *outer, (runs, between) = zip(axes[::2], axes[1::2], strict=True)
        first = c.mul(index, each)
        with c.loop(c.smaller(c.add(first, each), rows), first) as row:
            begin, rest = source, row
            for size, step in reversed(outer):
                begin = c.at(begin, c.mul(c.srem(rest, size), step))
                rest = c.sdiv(rest, size)
            made = c.mul(row, runs)
            with c.loop(runs) as n:
                to = c.at(target, c.mul(c.add(made, n), run))
                c.call(copy, [to, c.at(begin, c.mul(n, between)), run])

    return handler.kernel(module, NAME, (1, 1, FIELDS), work)
