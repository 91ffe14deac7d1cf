"""Matmul kernels against left folds written out in NumPy."""

from __future__ import annotations

import functools

import jax
import ml_dtypes
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from tests.arrays import bits
from tests.execution.kernels.rolled import bodies

K_TILE = 128


def data(*shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    scale = np.exp2(generator.integers(-4, 5, shape))
    return (generator.standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def left_fold(a, b):
    """Down the rows: products of short significands are exact in FP32."""
    total = np.zeros((a.shape[1], b.shape[1]), np.float32)
    for row, column in zip(a, b, strict=True):
        total = total + row[:, None] * column
    return total


def pair_fold(a, b):
    """Double row, [K, 2, M]: the pair in a cell first."""
    total = np.zeros((a.shape[2], b.shape[2]), np.float32)
    for row, column in zip(a, b, strict=True):
        pair = row[0][:, None] * column[0] + row[1][:, None] * column[1]
        total = total + pair
    return total


def halves(x):
    high = (x.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    return high, x - high


def tiles(a, b, fold=left_fold, tile=K_TILE):
    """PSUM: the tiles' results, added in FP32 in order, pass by pass."""
    total = None
    for k in range(0, len(a), tile):
        x, y = a[k : k + tile], b[k : k + tile]
        wide = [v.astype(np.float32) for v in (x, y)]
        passes = [wide]
        if x.dtype == np.float32:
            passes = [(p, q) for p in halves(wide[0]) for q in halves(wide[1])]
        for p, q in passes:
            # Of FP32 operands every 32 rows are one sum.
            rows = 32 if len(passes) == 4 else len(p)
            starts = range(0, len(p), rows)
            groups = [fold(p[s : s + rows], q[s : s + rows]) for s in starts]
            part = functools.reduce(np.add, groups)
            total = part if total is None else total + part
    return total


@nki.jit
def tiled(lhsT, rhs, tile_n=64):
    """Tutorial style: loads inside, PSUM accumulates by itself."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((m, n), nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 64):
        for j in nl.affine_range(n // tile_n):
            acc = nl.ndarray((64, tile_n), nl.float32, buffer=nl.psum)
            for step in nl.affine_range(k // 128):
                rows = slice(step * 128, (step + 1) * 128)
                a = nl.load(lhsT[rows, i * 64 : (i + 1) * 64])
                b = nl.load(rhs[rows, j * tile_n : (j + 1) * tile_n])
                nisa.nc_matmul(acc, a, b)
            tile = nl.ndarray(acc.shape, nl.float32)
            nisa.tensor_copy(tile, acc)
            nl.store(out[i * 64 : (i + 1) * 64, j * tile_n : (j + 1) * tile_n], tile)
    return out


FORMATS = [
    ml_dtypes.bfloat16,
    np.float16,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e5m2,
    np.float32,
]


@pytest.mark.slow_except("bfloat16")
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: np.dtype(d).name)
def test_tiles_accumulate_in_order(dtype):
    a, b = data(512, 128, dtype=dtype), data(512, 128, dtype=dtype, seed=1)
    found = tiled(a, b)
    np.testing.assert_array_equal(bits(found), bits(tiles(a, b)))
    assert bodies(tiled.plan(a, b).nodes) <= 10


@pytest.mark.slow
def test_op_by_op_and_rolled_are_equal():
    a, b = (data(256, 128, dtype=ml_dtypes.bfloat16, seed=s) for s in (0, 1))
    with jax.disable_jit():
        eager = tiled(a, b)
    np.testing.assert_array_equal(bits(eager), bits(tiled(a, b)))


@nki.jit
def blocked(lhsT, rhs):
    """Blocks of K are added up in SBUF, in the order of the blocks."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((m, 2, n // 2), lhsT.dtype)
    nisa.memset(total, 0.0)
    for block in range(k // 256):
        a = nl.ndarray((128, 2, m), lhsT.dtype)
        b = nl.ndarray((128, 2, n), rhs.dtype)
        for t in range(2):
            rows = nl.ds((2 * block + t) * 128, 128)
            nisa.dma_copy(a[:, t], lhsT[rows])
            nisa.dma_copy(b[0:128, t, 0:n], rhs[rows])
        for j in range(2):
            acc = nl.ndarray((m, n // 2), nl.float32, buffer=nl.psum)
            for t in range(2):
                columns = slice(j * n // 2, (j + 1) * n // 2)
                nisa.nc_matmul(acc, a[:, t], b[:, t, columns], accumulate=t > 0)
            nisa.tensor_tensor(total[:, j], total[:, j], acc, nl.add)
    nl.store(out, total.reshape((m, n)))
    return out


@pytest.mark.slow
def test_blocks_round_where_they_are_stored():
    dtype = ml_dtypes.bfloat16
    a, b = data(1024, 64, dtype=dtype), data(1024, 96, dtype=dtype, seed=1)
    total = np.zeros((64, 96), np.float32)
    for k in range(0, 1024, 256):
        part = tiles(a[k : k + 256], b[k : k + 256])
        total = np.asarray(total + np.asarray(part)).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(bits(blocked(a, b)), bits(total.astype(dtype)))


@nki.jit(target="trn2")
def double_row(lhsT, rhs):
    a, b = nl.load(lhsT), nl.load(rhs)
    acc = nl.ndarray((a.shape[2], b.shape[2]), nl.float32, buffer=nl.psum)
    mode = nisa.matmul_perf_mode.double_row
    nisa.nc_matmul(acc, a, b, perf_mode=mode)
    nisa.nc_matmul(acc, a, b, perf_mode=mode)
    out = nl.ndarray(acc.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, acc)
    return out


@pytest.mark.slow
def test_double_row_adds_the_pair_first():
    a = data(128, 2, 48, dtype=ml_dtypes.float8_e4m3)
    b = data(128, 2, 80, dtype=ml_dtypes.float8_e5m2, seed=1)
    fold = pair_fold(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(bits(double_row(a, b)), bits(fold + fold))


@nki.jit
def psum_in_bf16(lhsT, rhs, accumulate):
    a, b = nl.load(lhsT), nl.load(rhs)
    acc = nl.ndarray((a.shape[1], b.shape[1]), nl.bfloat16, buffer=nl.psum)
    nisa.memset(acc, 1.0)
    nisa.nc_matmul(acc, a, b, accumulate=accumulate)
    out = nl.ndarray(acc.shape, nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(out, acc)
    return out


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("accumulate", [None, True, False])
def test_accumulate_adds_to_earlier_values_in_psum(accumulate):
    """None accumulates, for the tile was written before."""
    dtype = ml_dtypes.bfloat16
    a, b = data(64, 32, dtype=dtype), data(64, 40, dtype=dtype, seed=1)
    part = left_fold(a.astype(np.float32), b.astype(np.float32))
    start = np.float32(0 if accumulate is False else 1)
    found = psum_in_bf16(a, b, accumulate)
    np.testing.assert_array_equal(bits(found), bits((start + part).astype(dtype)))


@nki.jit
def transposes(a, identity):
    x, one = nl.load(a), nl.load(identity)
    results = []
    for how in ("transpose", "vector", "matmul"):
        memory = nl.sbuf if how == "vector" else nl.psum
        t = nl.ndarray((x.shape[1], x.shape[0]), a.dtype, buffer=memory)
        if how == "matmul":
            nisa.nc_matmul(t, x, one, is_transpose=True)
        else:
            nisa.nc_transpose(t, x)
        out = nl.ndarray(t.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        results.append(out)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_transposes_move_bits(dtype):
    a = data(24, 32, dtype=dtype)
    a[0, :3] = [np.nan, np.inf, -0.0]
    identity = np.eye(24, dtype=np.float32).astype(dtype)
    for found in transposes.with_target("trn2")(a, identity):
        np.testing.assert_array_equal(bits(found), bits(a.T.copy()))
    # NeuronCore-v2 multiplies: every column meets the NaN and Inf times zero.
    first = transposes.with_target("trn1")(a, identity)[0]
    assert not np.isfinite(first[0:2].astype(np.float32)).any()
    np.testing.assert_array_equal(bits(first[3:]), bits(a.T[3:].copy()))
