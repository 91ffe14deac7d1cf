"""Kernels in the calling style of SDK release 2.26, against NumPy."""

import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.nki import legacy as nki
from neuronjax.nki.legacy import isa as nisa
from neuronjax.nki.legacy import language as nl

F32 = np.float32
RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.normal(size=shape).astype(F32)


def test_index_arrays_masks_and_operators():
    @nki.jit
    def kernel(x, y):
        rows, columns = x.shape
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for p in nl.affine_range(-(-rows // 128)):
            i_p = p * 128 + nl.arange(128)[:, None]
            i_f = nl.arange(columns)[None, :]
            tile = nl.load(x[i_p, i_f], mask=(i_p < rows))
            row = nl.load(y[0:1, :])
            tile = 2.0 * tile - nl.square(tile) / (1 + row)  # type: ignore[operator]
            tile += 0.25
            nl.store(out[i_p, i_f], value=tile, mask=(i_p < rows))
        return out

    x, y = normal(150, 24), abs(normal(1, 24))
    np.testing.assert_allclose(
        kernel(x, y), 2 * x - x * x / (1 + y) + 0.25, rtol=2e-6, atol=1e-6
    )


def test_blocks_and_accumulation_in_psum():
    @nki.jit
    def kernel(a, b):
        k, m = a.shape
        out = nl.ndarray((m, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
        lhs = nl.ndarray((k // 128, nl.par_dim(128), m), dtype=a.dtype)
        for i in nl.affine_range(k // 128):
            lhs[i] = nl.load(a[i * 128 : (i + 1) * 128, :])
        psum = nl.zeros((m, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
        for i in nl.affine_range(k // 128):
            rhs = nl.load(b[nl.ds(i * 128, 128), :])
            psum += nisa.nc_matmul(lhs[i, :, 0:m], rhs)
        nl.store(out, value=nl.copy(psum, dtype=out.dtype))
        return out

    a, b = normal(256, 64), normal(256, 96)
    program = kernel.trace(a, b)
    assert [i.name for i in program.body.items].count("nc_matmul") == 2
    np.testing.assert_allclose(kernel(a, b), a.T @ b, rtol=2e-5, atol=2e-5)


def test_instructions_return_tiles():
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        most = nisa.tensor_reduce(np.max, tile, axis=(1,), negate=True)
        grown = nisa.activation(nl.exp, tile, bias=most)
        total = nisa.tensor_reduce(np.add, grown, axis=[1])
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.tensor_scalar(grown, np.multiply, nisa.reciprocal(total)))
        turned = nl.ndarray(x.shape[::-1], dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(turned, nisa.tensor_copy(nisa.nc_transpose(tile)))
        return out, turned

    x = normal(32, 40)
    softmax = np.exp(x - x.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    out, turned = kernel(x)
    np.testing.assert_allclose(out, softmax, rtol=4e-6)
    np.testing.assert_array_equal(turned, x.T)


def test_causal_selection_and_iota():
    @nki.jit
    def kernel(x):
        i_p, i_f = nl.mgrid[0:16, 0:16]
        kept = nisa.affine_select(i_p >= i_f, nl.load(x), -5.0)
        number = nisa.iota(3 + 2 * i_p - i_f, dtype=nl.float32)
        outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2)]
        nl.store(outs[0], kept)
        nl.store(outs[1], number)
        return outs

    x = normal(16, 16)
    i, j = np.indices((16, 16))
    kept, number = kernel(x)
    np.testing.assert_array_equal(kept, np.where(i >= j, x, F32(-5)))
    np.testing.assert_array_equal(number, 3 + 2 * i - j)


def test_rows_by_index_and_a_reduction_over_windows():
    @nki.jit
    def kernel(table, rows, image):
        i_f = nl.arange(8)[None, :]
        picked = nl.load(table[nl.load(rows), i_f])
        out = nl.ndarray((16, 8), dtype=table.dtype, buffer=nl.shared_hbm)
        nl.store(out, picked)
        p, i, di, j, dj = nl.mgrid[0:4, 0:3, 0:2, 0:4, 0:2]
        pooled = nl.sum(nl.load(image)[p, 2 * i + di, 2 * j + dj], axis=[2, 4])
        pooled = pooled / 4  # type: ignore[operator]
        small = nl.ndarray((4, 3, 4), dtype=image.dtype, buffer=nl.shared_hbm)
        nl.store(small, value=pooled)
        return out, small

    table, image = normal(100, 8), normal(4, 6, 8)
    rows = RNG.integers(0, 100, (16, 1)).astype(np.int32)
    out, small = kernel(table, rows, image)
    np.testing.assert_array_equal(out, table[rows[:, 0]])
    pooled = image.reshape(4, 3, 2, 4, 2).mean((2, 4))
    np.testing.assert_allclose(small, pooled, rtol=1e-6, atol=1e-7)


def test_loop_reduce_and_launch_grids():
    def kernel(x):
        out = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        at = nl.program_id(0) * 2
        total = nl.zeros((2, 8), dtype=nl.float32)
        for k in nl.affine_range(3):
            tile = nl.load(x[k, at : at + 2])
            total[:, :] = nl.loop_reduce(tile, op=np.add, loop_indices=[k])
        nl.store(out[at : at + 2], total)
        return out

    x = normal(3, 4, 8)
    found = nki.jit(kernel)[nl.spmd_dim(1, nl.nc(2))](x)
    np.testing.assert_allclose(found, x.sum(0), rtol=1e-6, atol=1e-6)


def test_what_is_not_there_is_named():
    def triangle(x):
        i_p, i_f = nl.mgrid[0:8, 0:8]
        return nl.square(nl.load(x), mask=(i_p > i_f))

    def beyond(x):
        return nl.load(x[nl.arange(9)[:, None], nl.arange(8)[None, :]])

    def dynamic(x):
        return nisa.tensor_copy_dynamic_src(nl.load(x))

    x = normal(8, 8)
    with pytest.raises(UnsupportedError, match="no box"):
        nki.simulate_kernel(triangle, x)
    with pytest.raises(InvalidProgramError, match="indices 0 to 8 of dimension 0"):
        nki.simulate_kernel(beyond, x)
    with pytest.raises(UnsupportedError, match="scalar_offset"):
        nki.simulate_kernel(dynamic, x)
    with pytest.raises(UnsupportedError, match="profile"):
        _ = nki.benchmark(warmup=1)(triangle).benchmark_result
