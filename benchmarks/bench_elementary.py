"""Elementary functions of one large array against XLA's: run time of a cached call.

2^22 float32 elements are 16 MiB in and out. XLA's own functions take about as long as
the memory does, so what the emulation does besides counts too: `plain` rows time the
function alone, without a program around it, the others a program of one instruction;
`tables` rows are those of `transcendentals="scalar_engine"`.
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
from neuronjax.numerics.elementary import UNARY
from neuronjax.numerics.exact import opaque_zero

ELEMENTS = 2**22
TARGET = 4
FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "exponential": jnp.exp,
    "tanh": jnp.tanh,
    "erf": jax.lax.erf,
}


def values() -> jax.Array:
    """Uniform in -4..4."""
    generator = np.random.default_rng(0)
    return jnp.asarray(generator.uniform(-4, 4, ELEMENTS).astype(np.float32))


def compare(
    name: str, wrap: Callable[[str], Callable[..., Any]], effort: Effort
) -> Result:
    """Ours over XLA's."""
    native = FUNCTIONS[name]
    sizes = {"elements": ELEMENTS, "dtype": "float32"}
    return compare_calls(
        jax.jit(lambda x: native(x)), wrap(name), (values(),), effort, sizes=sizes
    )


def program(name: str) -> Callable[..., Any]:
    """The emulated program."""
    function = FUNCTIONS[name]
    return nj.jit(lambda x: function(x), target="trn2", policy="fp32")


def tabulated(name: str) -> Callable[..., Any]:
    """The same with ScalarE's tables."""
    function = FUNCTIONS[name]
    policy = nj.Policy(transcendentals="scalar_engine")
    return nj.jit(lambda x: function(x), target="trn2", policy=policy)


def plain(name: str) -> Callable[..., Any]:
    """Our function alone."""
    return jax.jit(lambda x: UNARY[name](x, opaque_zero()))


for _name in FUNCTIONS:
    row(f"function/{_name}", target=TARGET)(functools.partial(compare, _name, program))
    row(f"function/{_name}_plain")(functools.partial(compare, _name, plain))
    row(f"function/{_name}_tables")(functools.partial(compare, _name, tabulated))
