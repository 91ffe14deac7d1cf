"""Casts of 2^24 float32 elements: ours over XLA's `astype`, stochastic over nearest.

The rounding is uint32 arithmetic that the compiler cannot shorten; XLA's own casts use
the processor's instructions for float16, and bit arithmetic of XLA's for FP8 and FP4.
FP4 is packed, and stochastic rounding to 8 bits and fewer done, by kernels of the
host's processor. Nearest moves 80 MB and is as fast as memory; a stochastic cast hashes
too, some fifteen instructions for a vector of elements.
Nearest even is compared with `astype` to the same dtype, which gives the same values;
stochastic rounding, random bits included, with our nearest even.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Effort, Result, compare_calls, interleave, row
from neuronjax.numerics.casting import cast
from neuronjax.numerics.float_format import FORMATS

ELEMENTS = 2**24
NAMES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e2m1": "float4_e2m1fn",
}
SEED = 7


@functools.cache
def argument() -> jax.Array:
    """Normal deviates: most lie in the normal range of every format but FP4."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(ELEMENTS, np.float32))


def compare_casts(
    reference: Callable[[jax.Array], jax.Array],
    ours: Callable[[jax.Array], jax.Array],
    effort: Effort,
) -> Result:
    """The run-time ratio of two casts of the same elements."""
    sizes = {"elements": ELEMENTS, "dtype": "float32"}
    functions = jax.jit(reference), jax.jit(ours)
    return compare_calls(*functions, (argument(),), effort, sizes=sizes)


def nearest(name: str, effort: Effort) -> Result:
    """Nearest even over XLA's own conversion."""
    dtype = FORMATS[name].dtype
    return compare_casts(lambda x: x.astype(dtype), lambda x: cast(x, name), effort)


def stochastic(name: str, effort: Effort) -> Result:
    """Stochastic rounding, its random bits included, over nearest even."""
    return compare_casts(
        lambda x: cast(x, name),
        lambda x: cast(x, name, rounding="stochastic", seed=SEED),
        effort,
    )


@row("cast/e2m1_ms", target=20)
def e2m1(effort: Effort) -> Result:
    """Nearest even to FP4, by itself: XLA's own cast is slow."""
    call = jax.jit(lambda x: cast(x, NAMES["e2m1"]))
    (times,) = interleave((lambda: call(argument()),), effort)
    return Result(value=times.scaled(1e3), unit="ms", sizes={"elements": ELEMENTS})


# XLA's cast to float16 is an instruction of the processor's.
TARGETS = {"float16": 1.2}
for _short, _name in NAMES.items():
    row(f"cast/{_short}", target=TARGETS.get(_short, 1.5))(
        functools.partial(nearest, _name)
    )
for _short, _name in NAMES.items():
    row(f"cast_stochastic/{_short}", target=1.5)(functools.partial(stochastic, _name))
