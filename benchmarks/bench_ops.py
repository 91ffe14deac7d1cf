"""Single operations against XLA's: sums and elementary functions.

The emulator folds sums in a fixed order (tiles of 512 elements, each from its first
element) and computes elementary functions by its own polynomials, where XLA may choose.
Run time of a cached call only; compile time is the business of `bench_gpt`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort, Result, compare_calls, row

SUM_SHAPE = (4096, 1024)
ELEMENTS = 2**20
ELEMENTARY: dict[str, Callable[..., Any]] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "log": jnp.log,
    "erf": jax.lax.erf,
    "rsqrt": jax.lax.rsqrt,
}


def compare_function(
    function: Callable[..., Any], shape: tuple[int, ...], effort: Effort
) -> Result:
    """Emulated over native run time of a function of one float32 array in (0.1, 4)."""
    values = np.random.default_rng(0).uniform(0.1, 4.0, shape).astype(np.float32)
    emulated = nj.jit(function, target="trn2", policy="fp32")
    sizes = {"shape": shape, "dtype": "float32"}
    argument = jnp.asarray(values)
    return compare_calls(
        jax.jit(lambda x: function(x)), emulated, (argument,), effort, sizes=sizes
    )


@row("sum/last_axis", target=3)
def sum_last_axis(effort: Effort) -> Result:
    """Each row's sum: along the free dimension."""
    return compare_function(lambda x: x.sum(axis=-1), SUM_SHAPE, effort)


@row("sum/first_axis", target=3)
def sum_first_axis(effort: Effort) -> Result:
    """Each column's sum."""
    return compare_function(lambda x: x.sum(axis=0), SUM_SHAPE, effort)


def elementary(function: Callable[..., Any], effort: Effort) -> Result:
    """A function of every element of a vector."""
    return compare_function(function, (ELEMENTS,), effort)


for _name, _function in ELEMENTARY.items():
    row(f"elementary/{_name}")(functools.partial(elementary, _function))
