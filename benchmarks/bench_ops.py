"""Single operations against XLA's: sums and elementary functions.

The emulator folds sums in a fixed order (tiles of 512 elements, each from its first
element) and computes elementary functions by its own polynomials; XLA is free to
choose. 2^22 float32 elements are 16 MiB in and out: XLA's own functions take about as
long as memory does, so any further work of the emulation is visible. `plain` rows time
the function alone, without a program around it, the others a program of one
instruction; `tables` rows use `transcendentals="scalar_engine"`. Only the run time of a
cached call is measured; compile time is measured in `bench_gpt`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort, Result, compare_calls, row
from neuronjax.numerics.elementary import UNARY
from neuronjax.numerics.exact import opaque_zero

Function = Callable[[jax.Array], jax.Array]
SUM_SHAPE = (4096, 1024)
SMALL, LARGE = (2**20,), (2**22,)
SUMS: dict[str, Function] = {
    "last_axis": lambda x: x.sum(axis=-1),  # along the free dimension
    "first_axis": lambda x: x.sum(axis=0),
}
ELEMENTARY: dict[str, Function] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "log": jnp.log,
    "erf": jax.lax.erf,
    "rsqrt": jax.lax.rsqrt,
}
FUNCTIONS: dict[str, Function] = {
    "exponential": jnp.exp,
    "tanh": jnp.tanh,
    "erf": jax.lax.erf,
}
TABLES = nj.Policy(transcendentals="scalar_engine")


def compare(
    function: Function,
    ours: Function,
    shape: tuple[int, ...],
    low: float,
    effort: Effort,
) -> Result:
    """Measure our over XLA's run time on uniform float32 numbers from `low` to 4."""
    values = np.random.default_rng(0).uniform(low, 4.0, shape).astype(np.float32)
    sizes = {"shape": shape, "dtype": "float32"}
    native = jax.jit(lambda x: function(x))
    return compare_calls(native, ours, (jnp.asarray(values),), effort, sizes=sizes)


def program(function: Function, policy: str | nj.Policy = "fp32") -> Function:
    """Return the emulated program of a function."""
    return nj.jit(lambda x: function(x), target="trn2", policy=policy)


def plain(name: str) -> Function:
    """Return our function alone."""
    return jax.jit(lambda x: UNARY[name](x, opaque_zero()))


def _register(
    name: str,
    function: Function,
    ours: Function,
    shape: tuple[int, ...],
    low: float = 0.1,
    target: float | None = None,
) -> None:
    measure = functools.partial(compare, function, ours, shape, low)
    row(name, target=target)(measure)


for _name, _f in SUMS.items():
    _register(f"sum/{_name}", _f, program(_f), SUM_SHAPE, target=3)
for _name, _f in ELEMENTARY.items():
    _register(f"elementary/{_name}", _f, program(_f), SMALL)
for _name, _f in FUNCTIONS.items():
    _register(f"function/{_name}", _f, program(_f), LARGE, -4.0, target=4)
    _register(f"function/{_name}_plain", _f, plain(_name), LARGE, -4.0)
    _register(f"function/{_name}_tables", _f, program(_f, TABLES), LARGE, -4.0)
