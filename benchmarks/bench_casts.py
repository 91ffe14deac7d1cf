"""Casts of 2^24 float32 elements: ours over XLA's `astype`, stochastic over nearest.

Rounding is uint32 arithmetic that the compiler cannot shorten. XLA's own casts use
instructions of the processor for float16, and bit arithmetic for FP8 and FP4. Kernels
for the host's processor pack FP4 and round stochastically to 8 bits and fewer. Nearest
moves 80 MB and is limited by memory; a stochastic cast also hashes, with some fifteen
instructions for a vector of elements. Nearest even is compared with `astype` to the
same dtype, which gives the same values; stochastic rounding, random bits included, with
our nearest even.
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
    """Return normal deviates, mostly in the normal range of every format except FP4."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(ELEMENTS, np.float32))


def compare_casts(
    reference: Callable[[jax.Array], jax.Array],
    ours: Callable[[jax.Array], jax.Array],
    effort: Effort,
) -> Result:
    """Return the run-time ratio of two casts of the same elements."""
    sizes = {"elements": ELEMENTS, "dtype": "float32"}
    functions = jax.jit(reference), jax.jit(ours)
    return compare_calls(*functions, (argument(),), effort, sizes=sizes)


def nearest(name: str, effort: Effort) -> Result:
    """Measure nearest even over XLA's own conversion."""
    dtype = FORMATS[name].dtype
    return compare_casts(lambda x: x.astype(dtype), lambda x: cast(x, name), effort)


def stochastic(name: str, effort: Effort) -> Result:
    """Measure stochastic rounding, its random bits included, over nearest even."""
    return compare_casts(
        lambda x: cast(x, name),
        lambda x: cast(x, name, rounding="stochastic", seed=SEED),
        effort,
    )


@row("cast/e2m1_ms", target=20)
def e2m1(effort: Effort) -> Result:
    """Measure nearest even to FP4 in milliseconds, because XLA's own cast is slow."""
    call = jax.jit(lambda x: cast(x, NAMES["e2m1"]))
    (times,) = interleave((lambda: call(argument()),), effort)
    return Result(value=times.scaled(1e3), unit="ms", sizes={"elements": ELEMENTS})


# XLA's cast to float16 is an instruction of the processor.
TARGETS = {"float16": 1.2}
for _short, _name in NAMES.items():
    row(f"cast/{_short}", target=TARGETS.get(_short, 1.5))(
        functools.partial(nearest, _name)
    )
for _short, _name in NAMES.items():
    row(f"cast_stochastic/{_short}", target=1.5)(functools.partial(stochastic, _name))
