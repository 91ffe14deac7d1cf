"""Matmul kernels in NKI against native `jnp.dot`: the cost of emulation by tiles.

Both multiply BF16 matrices of 1024 x 1024 into BF16 and add in FP32. `tiled` loads two
tiles before every matmul; `blocked` blocks all three dimensions, like the optimised
kernel of the vendor's tutorial. `compile` is tracing, re-rolling and XLA of the tiled
kernel, in seconds. The host's kernels are compiled before the measurement. The large
kernels are measured once, in their first call.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from benchmarks.harness import Effort, Result, Samples, compare_calls, row
from examples.nki.flash_attention import attention
from neuronjax import nki

SIZE = 1024
RATIO, COMPILE_SECONDS = 4.0, 10.0


@nki.jit
def tiled(lhs_t: Any, rhs: Any) -> Any:
    """lhs_t.T @ rhs, tile by tile, with loads inside."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    for i in range(m // 128):
        for j in range(n // 512):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for step in range(k // 128):
                a = nl.load(lhs_t[nl.ds(128 * step, 128), nl.ds(128 * i, 128)])
                b = nl.load(rhs[nl.ds(128 * step, 128), nl.ds(512 * j, 512)])
                nisa.nc_matmul(acc, a, b)
            tile = nl.ndarray(acc.shape, out.dtype)
            nisa.tensor_copy(tile, acc)
            nl.store(out[nl.ds(128 * i, 128), nl.ds(512 * j, 512)], tile)
    return out


# Number of tiles in a block along M, N and K.
M_TILES, N_TILES, K_TILES = 4, 2, 4


@nki.jit
def blocked(lhs_t: Any, rhs: Any) -> Any:
    """lhs_t.T @ rhs in blocks of all dimensions, added up in SBUF."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    columns, rows = 512 * N_TILES, 128 * M_TILES
    for block_n in range(n // columns):
        results = [nl.zeros((128, N_TILES, 512), out.dtype) for _ in range(m // 128)]
        for block_k in range(k // (128 * K_TILES)):
            b = _block(rhs, block_k, nl.ds(block_n * columns, columns))
            for block_m in range(m // rows):
                a = _block(lhs_t, block_k, nl.ds(block_m * rows, rows))
                mine = results[block_m * M_TILES : (block_m + 1) * M_TILES]
                _multiply(mine, a, b)
        for tile, result in enumerate(results):
            at = out[nl.ds(128 * tile, 128), nl.ds(block_n * columns, columns)]
            nl.store(at, result.reshape((128, columns)))
    return out


def _block(source: Any, block_k: int, columns: Any) -> Any:
    tiles = nl.ndarray((128, K_TILES, columns.size), source.dtype)
    for t in range(K_TILES):
        first = (block_k * K_TILES + t) * 128
        nisa.dma_copy(tiles[:, t], source[nl.ds(first, 128), columns])
    return tiles


def _multiply(results: list[Any], a: Any, b: Any) -> None:
    for n_tile in range(N_TILES):
        for m_tile, result in enumerate(results):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for t in range(K_TILES):
                stationary = a[:, t, nl.ds(128 * m_tile, 128)]
                nisa.nc_matmul(acc, stationary, b[:, t, nl.ds(512 * n_tile, 512)])
            at = result[:, n_tile]
            nisa.tensor_tensor(at, at, acc, nl.add)


def operands(*shapes: tuple[int, int]) -> list[jax.Array]:
    """Return matrices of BF16."""
    generator = np.random.default_rng(0)
    return [
        jnp.asarray(generator.standard_normal(shape, np.float32), jnp.bfloat16)
        for shape in shapes
    ]


SQUARES = ((SIZE, SIZE),) * 2


def native(lhs_t: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return the same product computed by XLA."""
    total = jnp.dot(lhs_t.T, rhs, preferred_element_type=jnp.float32)
    return total.astype(lhs_t.dtype)


def matmul(kernel: nki.Kernel, effort: Effort) -> Result:
    """Measure run time over that of native `jnp.dot` of the same operands."""
    sizes = {"m": SIZE, "k": SIZE, "n": SIZE, "dtype": "bfloat16", "on": "trn3"}
    return compare_calls(
        jax.jit(native), kernel, operands(*SQUARES), effort, sizes=sizes
    )


row("nki/matmul_1024_tiled", target=RATIO)(functools.partial(matmul, tiled))
row("nki/matmul_1024_blocked", target=RATIO)(functools.partial(matmul, blocked))


@row("nki/compile", target=COMPILE_SECONDS)
def compile_seconds(effort: Effort) -> Result:
    """Measure the first call of the tiled kernel: tracing, re-rolling and XLA."""
    arguments = operands(*SQUARES)
    first_call(tiled, arguments)  # verifies the dots
    jax.clear_caches()
    return first_call(tiled, arguments)


@row("nki/matmul_4096_8192_8192", target=300.0)
def large_matmul(effort: Effort) -> Result:
    """Measure the first call of the tiled kernel on large matrices."""
    return first_call(tiled, operands((8192, 4096), (8192, 8192)))


@row("nki/flash_attention_4096", target=30.0)
def flash_attention(effort: Effort) -> Result:
    """Measure the first call of the example: one head of 128, 4,096 tokens."""
    length, width = 4096, 128
    shapes = ((width, length), (width, length), (length, width))
    return first_call(attention, operands(*shapes))


def first_call(kernel: nki.Kernel, arguments: list[jax.Array]) -> Result:
    """Measure the seconds of a call that traces, compiles and runs."""
    fresh = nki.jit(kernel.function, target=kernel.target)
    start = time.perf_counter()
    jax.block_until_ready(fresh(*arguments))
    return Result(value=Samples((time.perf_counter() - start,)), unit="s")
