"""MX blocks: quantize and dequantize a matrix along its last axis.

Numerics: the number of values that differ from ours under each of our scale rules, the
closest rule, and the result for a block with an Inf, whose scale is NaN by the
standard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Effort
from benchmarks.peers.contest import Entry, against
from neuronjax.numerics.microscaling import fake_quantize

FORMATS = ("mxfp8_e4m3", "mxfp4_e2m1")
RULES = ("ocp_floor", "neuron", "ceil", "rceil", "even")
BLOCK = 32


def matrix(elements: int) -> np.ndarray:
    """Return normal deviates whose rows have scales of 2^-6 to 2^6."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((elements // 1024, 1024), np.float32)
    powers = rng.integers(-6, 7, (x.shape[0], 1)).astype(np.float32)
    return x * np.exp2(powers)


def _ours(name: str, x: np.ndarray, rule: Any = "ocp_floor") -> Callable[[], Any]:
    function: Any = functools.partial(
        fake_quantize, format=name, axis=-1, scale_rule=rule
    )
    compiled, argument = jax.jit(lambda x: function(x)[0]), jnp.asarray(x)
    return lambda: compiled(argument)


def _torch(name: str, x: np.ndarray) -> Callable[[], Any]:
    import torch

    from benchmarks.peers import torch_mx

    argument, element = torch.from_numpy(x), name.rpartition("_")[2]
    return lambda: torch_mx.fake_quantize(argument, element)


def _qwix(name: str, x: np.ndarray) -> Callable[[], Any]:
    import qwix

    def both(x: jax.Array) -> jax.Array:
        quantized = qwix.quantize(
            x, name[:5], channelwise_axes=(0,), tiled_axes={1: BLOCK}
        )
        return qwix.dequantize(quantized)

    compiled, argument = jax.jit(both), jnp.asarray(x)
    return lambda: compiled(argument)


def _pychop(name: str, x: np.ndarray) -> Callable[[], Any]:
    import pychop

    return lambda: pychop.mx_quantize(x, format=name)


def _gfloat(name: str, x: np.ndarray) -> Callable[[], Any]:
    import gfloat
    from gfloat import formats

    info = getattr(formats, f"format_info_{name}")
    blocks = x.astype(np.float64).reshape(-1, BLOCK)

    def run() -> np.ndarray:
        rounded = [
            gfloat.quantize_block(info, block, gfloat.compute_scale_amax)
            for block in blocks
        ]
        return np.stack(rounded).reshape(x.shape)

    return run


#: Peer -> (module, function, maximum number of elements).
PEERS: dict[str, tuple[str, Callable[..., Any], int]] = {
    "torch, plain emulation": ("torch", _torch, 2**24),
    "qwix": ("qwix", _qwix, 2**24),
    "gfloat": ("gfloat", _gfloat, 2**13),
    "pychop": ("pychop", _pychop, 2**13),
}


def as_values(result: Any) -> np.ndarray:
    """Return the result of a peer as float32."""
    if type(result).__module__.startswith("torch"):
        result = result.float().numpy()
    return np.asarray(result).astype(np.float32)


def numerics(name: str, quantize: Callable[..., Any], x: np.ndarray) -> dict[str, Any]:
    """Return the scale rule that a peer follows, and its result for an Inf."""
    theirs = as_values(quantize(name, x)())
    differ = {
        rule: int((as_values(_ours(name, x, rule)()) != theirs).sum()) for rule in RULES
    }
    nearest = min(differ, key=differ.__getitem__)
    return {
        "compared": int(x.size),
        "differ": differ[nearest],
        "scale_rule": nearest,
        "differ_by_rule": differ,
        "block_with_inf": _with_inf(name, quantize),
        "ours_block_with_inf": _with_inf(name, _ours),
    }


def _with_inf(name: str, quantize: Callable[..., Any]) -> str:
    """Return the distinct values after quantizing a block of ones with an Inf."""
    x = np.ones((1, 1024), np.float32)
    x[0, 0] = np.inf
    try:
        found = as_values(quantize(name, x)())[0, :BLOCK]
    except (ValueError, OverflowError) as error:
        return f"{type(error).__name__}"
    return ", ".join(dict.fromkeys(f"{value:g}" for value in found))


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the comparison with every peer for both formats."""
    sizes = (2**20,) if quick else (2**20, 2**22)
    for name in FORMATS:
        for peer, (module, quantize, most) in PEERS.items():
            for size in sorted({min(size, most) for size in sizes}):
                x = matrix(size)
                yield against(
                    f"quantize and dequantize {name}",
                    peer,
                    needs=module,
                    pair=lambda n=name, q=quantize, x=x: (_ours(n, x), q(n, x)),
                    numerics=lambda n=name, q=quantize, x=x: numerics(n, q, x),
                    effort=effort,
                    sizes={"elements": size},
                )
