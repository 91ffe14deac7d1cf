"""Stochastic rounding of float32 to BF16 and FP8, random bits included.

Numerics of 2^20 values in [1, 2): whether every result is a neighbour of its input, and
the mean error in units of its standard error, which exceeds 4 only for a biased method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort
from benchmarks.peers.blocks import as_values
from benchmarks.peers.casts import _GFLOAT, _PYCHOP, _jitted
from benchmarks.peers.contest import Entry, against
from neuronjax.numerics.float_format import FORMATS

NAMES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
SIZE = 2**20
SEED = 7


def values() -> np.ndarray:
    """Return float32 numbers in [1, 2) with random bits in the significand."""
    rng = np.random.default_rng(2)
    low = rng.integers(0, 2**23, SIZE, np.uint32)
    return (low | np.uint32(0x3F80_0000)).view(np.float32)


def _ours(name: str, x: np.ndarray) -> Callable[[], Any]:
    return _jitted(lambda x: nj.cast(x, name, rounding="stochastic", seed=SEED), x)


def _by_hand(name: str, x: np.ndarray) -> Callable[[], Any]:
    """Return what a JAX user writes for BF16: add random low bits, then truncate."""
    del name

    def round_up_or_down(x: jax.Array, key: jax.Array) -> jax.Array:
        noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + noise
        kept = bits & jnp.uint32(0xFFFF_0000)
        return jax.lax.bitcast_convert_type(kept, jnp.float32).astype(jnp.bfloat16)

    compiled, argument = jax.jit(round_up_or_down), jnp.asarray(x)
    return lambda: compiled(argument, jax.random.key(SEED))


def _torch(name: str, x: np.ndarray) -> Callable[[], Any]:
    """Return the same as `_by_hand` in PyTorch."""
    del name
    import torch

    argument = torch.from_numpy(x)

    def run() -> Any:
        noise = torch.randint(0, 2**16, argument.shape, dtype=torch.int32)
        kept = (argument.view(torch.int32) + noise) & -(2**16)
        return kept.view(torch.float32).to(torch.bfloat16)

    return run


def _gfloat(name: str, x: np.ndarray) -> Callable[[], Any]:
    import gfloat
    from gfloat import formats

    info, rng = getattr(formats, _GFLOAT[name]), np.random.default_rng(SEED)

    def run() -> Any:
        bits = rng.integers(0, 2**16, x.shape, np.int64)
        return gfloat.round_ndarray(
            info, x, gfloat.RoundMode.Stochastic, srbits=bits, srnumbits=16
        )

    return run


def _pychop(name: str, x: np.ndarray) -> Callable[[], Any]:
    import pychop

    pychop.backend("jax")
    exponent, significand = _PYCHOP[name]
    chop = pychop.Chop(exp_bits=exponent, sig_bits=significand, rmode=5)
    argument = jnp.asarray(x)
    return lambda: chop(argument)


PEERS: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    "jax.random.bits by hand": ("", _by_hand, NAMES[:1]),
    "torch by hand": ("torch", _torch, NAMES[:1]),
    "gfloat": ("gfloat", _gfloat, NAMES),
    "pychop": ("pychop", _pychop, ("bfloat16", "float8_e5m2")),
}


def quality(name: str, result: Any) -> dict[str, Any]:
    """Return how many results are no neighbours of their inputs, and the bias."""
    x, rounded = values(), as_values(result).astype(np.float64)
    step = 2.0 ** -(FORMATS[name].mantissa_bits)  # of the format, in [1, 2)
    below = np.floor(x / step) * step
    error = rounded - x
    deviation = error.std() / np.sqrt(error.size)
    return {
        "not_a_neighbour": int(
            (~np.isin(rounded - below, (0.0, step)) | (rounded < below)).sum()
        ),
        "bias_sigmas": float(error.mean() / deviation),
    }


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the comparison with every peer for every format that it supports."""
    del quick
    x = values()
    for name in NAMES:
        for peer, (module, cast, formats) in PEERS.items():
            if name not in formats:
                continue
            yield against(
                f"stochastic cast to {name}",
                peer,
                needs=module,
                pair=lambda n=name, c=cast: (_ours(n, x), c(n, x)),
                numerics=lambda n=name, c=cast: {
                    **quality(n, c(n, x)()),
                    "ours": quality(n, _ours(n, x)()),
                },
                effort=effort,
                sizes={"elements": SIZE},
            )
