"""Quantized matmuls of 1024^3, and the order in which a matmul adds.

The operands are normal deviates in FP32; every contender quantizes them in its own way
and multiplies. Numerics: the relative L2 distance of its result from the float64
product of the unquantized operands, and the number of elements that differ from ours.
Formats and scales are each contender's own, so results need not agree.

`accumulation` leaves quantization out: operands are BF16 and products exact, so only
the order and width of additions can differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort
from benchmarks.peers.blocks import as_values
from benchmarks.peers.contest import Entry, against

SIZE, SMALL = 1024, 64
Pair = tuple[np.ndarray, np.ndarray]
Thunk = Callable[[], Any]


@functools.cache
def operands(size: int, dtype: str = "float32") -> Pair:
    rng = np.random.default_rng(4)
    shape = (size, size)
    left, right = (
        rng.standard_normal(shape, np.float32)
        .astype(jnp.dtype(dtype))
        .astype(np.float32)
        for _ in range(2)
    )
    return left, right


def _jitted(function: Callable[..., Any], pair: Pair) -> Thunk:
    arrays = tuple(map(jnp.asarray, pair))
    compiled = jax.jit(function)
    return lambda: compiled(*arrays)


def _ours(policy: str, target: str, pair: Pair) -> Thunk:
    emulated = nj.jit(lambda x, w: x @ w, target=target, policy=policy)
    arrays = tuple(map(jnp.asarray, pair))
    return lambda: emulated(*arrays)


ours_fp8 = functools.partial(_ours, "fp8", "trn2")
ours_mxfp8 = functools.partial(_ours, "mxfp8", "trn3")
ours_bf16 = functools.partial(_ours, "bf16", "trn2")


# ---- FP8 with a scale per tensor.


def _native(pair: Pair) -> Thunk:
    return _jitted(jnp.matmul, pair)


def _astype(pair: Pair) -> Thunk:
    """Return the usual fake quantization: scale, cast, cast back, FP32 dot."""

    def fake(x: jax.Array) -> jax.Array:
        scale = jnp.max(jnp.abs(x)) / 448.0
        return (x / scale).astype(jnp.float8_e4m3fn).astype(jnp.float32) * scale

    return _jitted(lambda x, w: fake(x) @ fake(w), pair)


def _qwix_fp8(pair: Pair) -> Thunk:
    import qwix

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return qwix.dot(
            qwix.quantize(x, jnp.float8_e4m3fn), qwix.quantize(w, jnp.float8_e4m3fn)
        )

    return _jitted(product, pair)


def _torch_fp8(pair: Pair) -> Thunk:
    import torch

    x, w = map(torch.from_numpy, pair)

    def fake(x: Any) -> Any:
        scale = x.abs().max() / 448.0
        return (x / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale

    return lambda: fake(x) @ fake(w)


# ---- MXFP8.


def _qwix_mxfp8(pair: Pair) -> Thunk:
    import qwix

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        left = qwix.quantize(x, "mxfp8", channelwise_axes=(0,), tiled_axes={1: 32})
        right = qwix.quantize(w, "mxfp8", channelwise_axes=(1,), tiled_axes={0: 32})
        return qwix.dot(left, right)

    return _jitted(product, pair)


def _torch_mxfp8(pair: Pair) -> Thunk:
    import torch

    from benchmarks.peers import torch_mx

    x, w = map(torch.from_numpy, pair)
    return lambda: torch_mx.matmul(x, w, "e4m3")


# ---- Accumulation alone.


def _torch_fp32(pair: Pair) -> Thunk:
    import torch

    x, w = map(torch.from_numpy, pair)
    return lambda: x @ w


def _numpy(pair: Pair) -> Thunk:
    return lambda: pair[0] @ pair[1]


def _interpreter(pair: Pair) -> Thunk:
    from benchmarks.peers.interpreter import evaluator

    thunk = evaluator(jnp.matmul, *pair)
    return lambda: thunk()[0]


Table = dict[str, tuple[str, Callable[[Pair], Thunk], int]]
#: Task -> (ours, operands' dtype, peer -> (module, function, maximum size)).
TASKS: dict[str, tuple[Callable[[Pair], Thunk], str, Table]] = {
    "matmul, FP8": (
        ours_fp8,
        "float32",
        {
            "jax.jit in FP32": ("", _native, SIZE),
            "jnp.astype by hand": ("", _astype, SIZE),
            "qwix": ("qwix", _qwix_fp8, SIZE),
            "torch by hand": ("torch", _torch_fp8, SIZE),
        },
    ),
    "matmul, MXFP8": (
        ours_mxfp8,
        "float32",
        {
            "jax.jit in FP32": ("", _native, SIZE),
            "qwix": ("qwix", _qwix_mxfp8, SIZE),
            "torch, plain emulation": ("torch", _torch_mxfp8, SIZE),
        },
    ),
    "matmul of BF16 values, FP32 sums": (
        ours_bf16,
        "bfloat16",
        {
            "jax.jit in FP32": ("", _native, SIZE),
            "NumPy": ("", _numpy, SIZE),
            "torch": ("torch", _torch_fp32, SIZE),
            "StableHLO interpreter": ("jaxlib", _interpreter, SMALL),
        },
    ),
}


def numerics(ours: Thunk, theirs: Thunk, pair: Pair) -> dict[str, Any]:
    """Return the number of elements that differ, and both distances from float64."""
    exact = pair[0].astype(np.float64) @ pair[1].astype(np.float64)
    mine, other = as_values(ours()), as_values(theirs())

    def distance(x: np.ndarray) -> float:
        return float(np.linalg.norm(x - exact) / np.linalg.norm(exact))

    return {
        "compared": int(exact.size),
        "differ": int((mine != other).sum()),
        "relative_l2": distance(other),
        "ours_relative_l2": distance(mine),
    }


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the comparison with every peer in the three tasks."""
    for task, (ours, dtype, peers) in TASKS.items():
        for peer, (module, function, most) in peers.items():
            size = min(most, SIZE // 2 if quick else SIZE)
            pair = operands(size, dtype)
            yield against(
                task,
                peer,
                needs=module,
                pair=lambda o=ours, f=function, p=pair: (o(p), f(p)),
                numerics=lambda o=ours, f=function, p=pair: numerics(o(p), f(p), p),
                effort=effort,
                sizes={"m": size, "k": size, "n": size},
            )
