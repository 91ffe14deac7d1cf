"""The kernels that tutorials teach, written anew, at small sizes, against NumPy."""

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.nki import isa as nisa, language as nl

F32 = np.float32
RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.normal(size=shape).astype(F32)


def loaded(source):
    tile = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


# ---- Tensor addition.


@nki.jit(target="trn2")
def add(a, b):
    """Tiles of 128 rows; programs of a grid share the columns."""
    rows, columns = a.shape
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    programs = nl.num_programs(0) if nl.program_ndim() else 1
    width = columns // programs
    own = nl.ds(nl.program_id(0) * width, width)
    for start in range(0, rows, 128):
        part = slice(start, min(start + 128, rows))
        x, y = loaded(a[part, own]), loaded(b[part, own])
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[part, own], src=x)
    return out


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("grid", [None, 2])
def test_tensor_addition(grid):
    a, b = (normal(200, 64).astype(np.float16) for _ in range(2))
    kernel = add if grid is None else add[grid]
    np.testing.assert_array_equal(kernel(a, b), a + b)


# ---- Transposition of the free dimensions.


@nki.jit(target="trn2")
def transpose_free(x, shape):
    """Each partition holds a matrix of `shape`, transposed column by column."""
    rows, columns = shape
    source = loaded(x)
    turned = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(rows):
        nisa.tensor_copy(
            dst=turned.ap([[rows * columns, x.shape[0]], [rows, columns]], offset=i),
            src=source[:, i * columns : (i + 1) * columns],
        )
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=turned)
    return out


def test_transpose_2d():
    x = RNG.integers(0, 99, (5, 12)).astype(np.int8)
    expected = x.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12)
    np.testing.assert_array_equal(transpose_free(x, (3, 4)), expected)


# ---- Average pooling.


@nki.jit(target="trn2")
def average_pool(x, window):
    """One access pattern of five dimensions, two of which are summed."""
    channels, height, width = x.shape
    tile = loaded(x)
    windows = tile.reshape(
        (channels, height // window, window, width // window, window)
    ).permute((0, 1, 3, 2, 4))
    pooled = nl.ndarray((channels, height // window, width // window), nl.float32)
    nisa.tensor_reduce(dst=pooled, op=nl.add, data=windows, axis=(3, 4))
    nisa.tensor_scalar(dst=pooled, data=pooled, op0=nl.multiply, operand0=1 / window**2)
    out = nl.ndarray(pooled.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, pooled)
    return out


def test_average_pooling():
    x = normal(6, 8, 12)
    expected = x.reshape(6, 4, 2, 6, 2).mean((2, 4))
    np.testing.assert_allclose(average_pool(x, 2), expected, rtol=1e-6, atol=1e-7)


# ---- Matrix multiplication, in its stages.


def _store(out, psum):
    tile = nl.ndarray(psum.shape, out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=psum)
    nisa.dma_copy(dst=out, src=tile)


@nki.jit(target="trn2")
def matmul_tiled(a, b):
    """One result tile after the other; operands are loaded for each."""
    (k, m), n = a.shape, b.shape[1]
    out = nl.ndarray((m, n), a.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, 64):
        for j in range(0, n, 128):
            psum = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
            for p in range(0, k, 128):
                left = loaded(a[p : p + 128, i : i + 64])
                right = loaded(b[p : p + 128, j : j + 128])
                nisa.nc_matmul(dst=psum, stationary=left, moving=right)
            _store(out[i : i + 64, j : j + 128], psum)
    return out


@nki.jit(target="trn2")
def matmul_hoisted(a, b):
    """A row of result tiles keeps its left operands."""
    (k, m), n = a.shape, b.shape[1]
    out = nl.ndarray((m, n), a.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, 64):
        lefts = [loaded(a[p : p + 128, i : i + 64]) for p in range(0, k, 128)]
        for j in range(0, n, 128):
            psum = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
            for p, left in zip(range(0, k, 128), lefts, strict=True):
                right = loaded(b[p : p + 128, j : j + 128])
                nisa.nc_matmul(dst=psum, stationary=left, moving=right)
            _store(out[i : i + 64, j : j + 128], psum)
    return out


@nki.jit(target="trn2")
def matmul_blocked_in_k(a, b):
    """Blocks of the contraction; partial results are added in SBUF."""
    (k, m), n = a.shape, b.shape[1]
    out = nl.ndarray((m, n), a.dtype, buffer=nl.shared_hbm)
    totals = [nl.zeros((64, n), nl.float32) for _ in range(0, m, 64)]
    for p in range(0, k, 128):
        left, right = loaded(a[p : p + 128]), loaded(b[p : p + 128])
        for total, i in zip(totals, range(0, m, 64), strict=True):
            psum = nl.ndarray((64, n), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=psum, stationary=left[:, i : i + 64], moving=right)
            nisa.tensor_tensor(dst=total, data1=total, data2=psum, op=nl.add)
    for total, i in zip(totals, range(0, m, 64), strict=True):
        nl.store(out[i : i + 64], total)
    return out


@pytest.mark.slow_except("matmul_tiled")
@pytest.mark.parametrize("kernel", [matmul_tiled, matmul_hoisted, matmul_blocked_in_k])
def test_stages_of_matmul_are_the_same_numbers(kernel):
    a = normal(256, 128).astype(ml_dtypes.bfloat16).astype(F32)
    b = normal(256, 256).astype(ml_dtypes.bfloat16).astype(F32)
    found = kernel(a, b)
    np.testing.assert_allclose(found, a.T.astype(float) @ b, rtol=1e-4, atol=1e-4)
    if kernel is not matmul_tiled:
        np.testing.assert_array_equal(found, matmul_tiled(a, b))


# ---- The scan of Mamba.


@nki.jit(target="trn2")
def mamba(delta, u, decay, b, c):
    """y = sum over states of c h, h[t] = exp(delta decay) h[t-1] + delta u b."""
    channels, length = delta.shape
    d, x = loaded(delta), loaded(u)
    rates = loaded(decay)
    total = nl.zeros((channels, length), nl.float32)
    driven = nl.multiply(d, x)
    for n in nl.affine_range(decay.shape[1]):
        kept = nl.ndarray(d.shape, nl.float32)
        nisa.activation(dst=kept, op=nl.exp, data=d, scale=rates[:, n : n + 1])
        into = nl.multiply(driven, nl.broadcast_to(loaded(b[n : n + 1]), d.shape))
        h = nl.ndarray(d.shape, nl.float32)
        nisa.tensor_tensor_scan(
            dst=h, data0=kept, data1=into, initial=0.0, op0=nl.multiply, op1=nl.add
        )
        seen = nl.multiply(h, nl.broadcast_to(loaded(c[n : n + 1]), d.shape))
        nisa.tensor_tensor(dst=total, data1=total, data2=seen, op=nl.add)
    out = nl.ndarray(delta.shape, delta.dtype, buffer=nl.shared_hbm)
    nl.store(out, total)
    return out


@pytest.mark.slow
def test_mamba_scan():
    delta, u, decay = abs(normal(32, 40)) * 0.2, normal(32, 40), -abs(normal(32, 3))
    b, c = normal(3, 40), normal(3, 40)
    h, expected = np.zeros((32, 3)), np.zeros((32, 40))
    for t in range(40):
        h = np.exp(delta[:, t, None] * decay) * h
        h += (delta[:, t] * u[:, t])[:, None] * b[:, t]
        expected[:, t] = h @ c[:, t]
    np.testing.assert_allclose(
        mamba(delta, u, decay, b, c), expected, rtol=1e-4, atol=1e-5
    )


# ---- Attention.


def _turned(tile):
    psum = nl.ndarray(tile.shape[::-1], tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=tile)
    return nl.copy(psum)


@nki.jit(target="trn2")
def attention(q, k, v):
    """q, k: [d, s], v: [s, d]; the scores of all keys at once."""
    d, s = q.shape
    scores = nl.matmul(loaded(q), loaded(k), transpose_x=True)
    weights = nl.softmax(nl.copy(scores))
    psum = nl.ndarray((s, d), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=_turned(weights), moving=loaded(v))
    out = nl.ndarray((s, d), q.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.copy(psum))
    return out


@nki.jit(target="trn2")
def flash_attention(q, k, v, block):
    """The same, block after block of keys, with a running maximum and sum."""
    d, s = q.shape
    queries = loaded(q)
    most, total = nl.full((s, 1), -1e30, nl.float32), nl.zeros((s, 1), nl.float32)
    result = nl.zeros((s, d), nl.float32)
    for start in nl.sequential_range(0, s, block):
        part = slice(start, start + block)
        scores = nl.copy(nl.matmul(queries, loaded(k[:, part]), transpose_x=True))
        newer = nl.maximum(most, nl.max(scores, 1, keepdims=True))
        weights, sums = (
            nl.ndarray((s, block), nl.float32),
            nl.ndarray((s, 1), nl.float32),
        )
        nisa.activation_reduce(
            dst=weights,
            op=nl.exp,
            data=scores,
            reduce_op=nl.add,
            reduce_res=sums,
            bias=nl.negative(newer),
        )
        shrink = nl.exp(nl.subtract(most, newer))
        psum = nl.ndarray((s, d), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=_turned(weights), moving=loaded(v[part]))
        nisa.scalar_tensor_tensor(
            dst=result,
            data=result,
            op0=nl.multiply,
            operand0=shrink,
            op1=nl.add,
            operand1=psum,
        )
        total, most = nl.add(nl.multiply(total, shrink), sums), newer
    out = nl.ndarray((s, d), q.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(result, nl.reciprocal(total)))
    return out


@pytest.mark.slow_cases("<lambda>")
@pytest.mark.parametrize("kernel", [attention, lambda *a: flash_attention(*a, 32)])
def test_attention(kernel):
    q, k, v = normal(32, 96) * 0.5, normal(32, 96) * 0.5, normal(96, 32)
    weights = np.exp(q.T.astype(float) @ k)
    expected = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(kernel(q, k, v), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_flash_attention_op_by_op_has_the_same_bits():
    q, k, v = normal(16, 32), normal(16, 32), normal(32, 16)
    compiled = flash_attention(q, k, v, 16)
    with jax.disable_jit():
        np.testing.assert_array_equal(flash_attention(q, k, v, 16), compiled)
