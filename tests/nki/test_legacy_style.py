"""Kernels in the calling style of SDK release 2.26, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.nki import legacy as nki
from neuronjax.nki.legacy import compiler as ncc, isa as nisa, language as nl
from neuronjax.nki.limits.addresses import SpillWarning

F32 = np.float32
RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.normal(size=shape).astype(F32)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("shape", [(128, 128), (64, 40), (32, 96), (20, 20)])
def test_vector_engine_transposes_in_squares(shape):
    """The older compiler cuts what is larger than [32, 32]."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape[::-1], dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine))
        return out

    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(kernel(x), x.T)
    found = [i for i in kernel.trace(x).body.walk() if i.name == "nc_transpose"]
    squares = -(-shape[0] // 32) * -(-shape[1] // 32)
    assert [i.engine for i in found] == ["vector"] * squares


@pytest.mark.slow
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


@pytest.mark.slow
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

    def hint(x):
        return nl.load(x, rounding="up")

    x = normal(8, 8)
    with pytest.raises(UnsupportedError, match="no rectangle"):
        nki.simulate_kernel(triangle, x)
    with pytest.raises(InvalidProgramError, match="indices 0 to 8 of dimension 0"):
        nki.simulate_kernel(beyond, x)
    with pytest.raises(UnsupportedError, match="rounding='up'"):
        nki.simulate_kernel(hint, x)
    with pytest.raises(InvalidProgramError, match="not called"):
        _ = nki.benchmark(warmup=1)(triangle).benchmark_result


def blocks_in_psum(turns, buffer, apart=True):
    """Products in blocks of PSUM of a whole bank each, used in turns or all at once."""

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((turns, 128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
        x, y = nl.load(a), nl.load(b)
        psum = nl.ndarray((turns, nl.par_dim(128), 512), nl.float32, buffer=buffer)
        for i in nl.affine_range(turns):
            psum[i] = nisa.nc_matmul(x, y)
            if apart:
                nl.store(out[i], value=nl.multiply(psum[i], float(i)))
        for i in nl.affine_range(0 if apart else turns):
            nl.store(out[i], value=nl.multiply(psum[i], float(i)))
        return out

    return kernel


def check_blocks(kernel, turns):
    a, b = normal(16, 128), normal(16, 512)
    expected = np.arange(turns, dtype=F32)[:, None, None] * (a.T @ b)
    np.testing.assert_allclose(kernel(a, b), expected, rtol=2e-5, atol=2e-4)


BANKS = 8


@pytest.mark.slow
def test_blocks_of_psum_are_allocated_where_they_are_used():
    check_blocks(blocks_in_psum(2 * BANKS, nl.psum), 2 * BANKS)


@pytest.mark.slow
def test_what_does_not_fit_is_spilled_with_a_warning():
    kernel = blocks_in_psum(BANKS + 1, nl.psum, apart=False)
    with pytest.warns(SpillWarning, match="18,432 bytes per partition of PSUM"):
        check_blocks(kernel, BANKS + 1)
    check_blocks(blocks_in_psum(BANKS, nl.psum, apart=False), BANKS)


@pytest.mark.slow
def test_tiles_that_turn_in_two_banks():
    two = ncc.psum.mod_alloc(base_bank=3, num_bank_tiles=(2,))
    check_blocks(blocks_in_psum(5, two), 5)
    with pytest.raises(InvalidProgramError, match="overwrites"):
        check_blocks(blocks_in_psum(3, two, apart=False), 3)
    check_blocks(ncc.force_auto_alloc(blocks_in_psum(3, two, apart=False)), 3)


@pytest.mark.slow
def test_addresses_by_a_function():
    places = []

    def place(idx, pdim_size, fdim_size):
        places.append((idx, pdim_size, fdim_size))
        return idx[0] % 4, 0, 0

    check_blocks(blocks_in_psum(3, ncc.psum.alloc(place)), 3)
    assert places == [((i,), 128, 2048) for i in range(3)]
    with pytest.raises(InvalidProgramError, match="bank, partition, byte"):
        check_blocks(blocks_in_psum(3, ncc.psum.alloc(lambda **_: (0, 0))), 3)
    with pytest.raises(InvalidProgramError, match="1 counts of tiles for 2"):
        nki.simulate_kernel(two_dimensions, normal(8, 8))


def two_dimensions(x):
    where = ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,))
    nl.ndarray((2, 2, nl.par_dim(8), 8), nl.float32, buffer=where)
    return x


@pytest.mark.slow
def test_blocks_of_zeros_begin_to_live_at_their_first_use():
    @nki.jit
    def kernel(a, b):
        turns = 2 * BANKS
        out = nl.ndarray((turns, 128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
        x, y = nl.load(a), nl.load(b)
        psum = nl.zeros((turns, nl.par_dim(128), 512), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(turns):
            for _ in range(i % 2):
                psum[i] += nisa.nc_matmul(x, y)
            nl.store(out[i], value=psum[i])
        return out

    a, b = normal(16, 128), normal(16, 512)
    odd = (np.arange(2 * BANKS) % 2).astype(F32)[:, None, None]
    np.testing.assert_allclose(kernel(a, b), odd * (a.T @ b), rtol=2e-5, atol=2e-5)


def test_a_part_of_several_blocks_is_no_tile():
    def parts(x):
        t = nl.zeros((3, nl.par_dim(8), 8), nl.float32)
        assert t.shape == (3, 8, 8)
        assert t[1:3].shape == (2, 8, 8)
        t[...] = 1.0
        return t[:, 0:4]

    def together(x):
        return nl.exp(nl.zeros((3, nl.par_dim(8), 8), nl.float32))

    with pytest.raises(InvalidProgramError, match="a part of 3 blocks"):
        nki.simulate_kernel(parts, normal(8, 8))
    with pytest.raises(InvalidProgramError, match="3 blocks at once"):
        nki.simulate_kernel(together, normal(8, 8))


@pytest.mark.slow
def test_two_fp8_products_per_cell():
    @nki.jit(platform_target="trn2")
    def kernel(a, b):
        out = nl.ndarray((32, 48), dtype=nl.float32, buffer=nl.shared_hbm)
        product = nisa.nc_matmul(nl.load(a), nl.load(b), perf_mode="double_row_gen3")
        nl.store(out, value=product)
        return out

    def unknown(a, b):
        return nisa.nc_matmul(nl.load(a), nl.load(b), perf_mode="double_column")

    a, b = (
        RNG.integers(-4, 5, size=shape).astype(ml_dtypes.float8_e5m2)
        for shape in ((16, 2, 32), (16, 2, 48))
    )
    expected = np.einsum("krm,krn->mn", a.astype(F32), b.astype(F32))
    np.testing.assert_array_equal(kernel(a, b), expected)
    with pytest.raises(UnsupportedError, match="double_column"):
        nki.simulate_kernel(unknown, normal(8, 8), normal(8, 8))


def test_what_a_mask_leaves_out_has_no_value():
    def stored(x):
        _, i_f = nl.mgrid[0:8, 0:8]
        out = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.square(nl.load(x), mask=(i_f < 5)))
        return out

    def kept(x):
        i_p, i_f = nl.mgrid[0:8, 0:8]
        out = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((8, 8), x.dtype)
        tile[...] = nl.square(nl.load(x), mask=(i_p < 5) & (i_f < 3))
        nl.store(out, value=tile)
        return out

    x = normal(8, 8)
    with pytest.raises(InvalidProgramError, match="24 of 64 elements were never"):
        nki.simulate_kernel(stored, x)
    expected = np.zeros_like(x)
    expected[:5, :3] = x[:5, :3] ** 2
    np.testing.assert_array_equal(nki.simulate_kernel(kept, x), expected)


@pytest.mark.slow
def test_a_matmul_that_a_mask_leaves_out():
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((32, 48), dtype=a.dtype, buffer=nl.shared_hbm)
        x, y = nl.load(a), nl.load(b)
        psum = nl.zeros((32, 48), nl.float32, buffer=nl.psum)
        for i in range(3):
            psum += nisa.nc_matmul(x, y, mask=(i < 2))
        psum += nisa.nc_matmul(x, y, mask=(nl.arange(16)[:, None] < 7))
        psum += nisa.nc_matmul(x, y, mask=(nl.arange(48)[None, :] < 40))
        own = nl.copy(nisa.nc_matmul(x, y, mask=(nl.arange(48)[None, :] >= 40)))
        left, right = nl.arange(40)[None, :], 40 + nl.arange(8)[None, :]
        i = nl.arange(32)[:, None]
        nl.store(out[i, left], value=psum[i, left])
        nl.store(out[i, right], value=nl.add(psum[i, right], own[i, right]))
        return out

    a, b = normal(16, 32), normal(16, 48)
    expected = 3 * a.T @ b + a[:7].T @ b[:7]
    np.testing.assert_allclose(kernel(a, b), expected, rtol=2e-5, atol=2e-5)


def test_a_matmul_whose_mask_is_over_neither_operand():
    @nki.jit
    def kernel(a):
        return nisa.nc_matmul(nl.load(a), nl.load(a), mask=nl.arange(5)[None, :] < 3)

    with pytest.raises(UnsupportedError, match="mask="):
        kernel(normal(8, 8))


def test_copies_at_offsets_that_the_run_knows():
    @nki.jit
    def kernel(x, at):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile, index = nl.load(x), nl.load(at)
        copy = nl.zeros(x.shape, x.dtype)
        i_p, i_f = nl.mgrid[0:8, 0:4]
        piece = nisa.tensor_copy_dynamic_src(tile[i_p, index[0, 0] + i_f])
        nisa.tensor_copy_dynamic_dst(dst=copy[i_p, index[0, 1] + i_f], src=piece)
        nl.store(out, value=copy)
        return out

    x = normal(8, 16)
    expected = np.zeros_like(x)
    expected[:, 11:15] = x[:, 3:7]
    np.testing.assert_array_equal(kernel(x, np.array([[3, 11]], np.int32)), expected)


def test_rows_of_one_batch_with_a_mask_and_skipped_rows():
    @nki.jit
    def kernel(x, rows, fill):
        out = nl.ndarray((8, x.shape[2]), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0 : x.shape[2]]
        index = nl.load(rows)
        tile = nl.load(fill)
        chosen = nl.load(x[1, index, i_f], mask=(i_p < 6), mode=nisa.oob_mode.skip)
        tile[...] = chosen
        nl.store(out, value=tile)
        return out

    x, fill = normal(2, 20, 12), normal(8, 12)
    rows = RNG.permutation(20)[:8].reshape(8, 1).astype(np.int32)
    expected = fill.copy()
    expected[:6] = x[1, rows[:6, 0]]
    np.testing.assert_array_equal(kernel(x, rows, fill), expected)


@pytest.mark.slow
def test_six_free_dimensions_take_several_instructions():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x.reshape((4, 64)))
        every = nl.mgrid[(slice(4), *[slice(2)] * 6)]
        flat = sum(a * 2**n for n, a in enumerate(every[1:]))  # bits reversed
        halves = nl.multiply(tile[every[0], flat], 0.5)
        back = nl.ndarray((4, *[2] * 6), x.dtype)
        back[...] = halves
        nl.store(out, value=back)
        return out

    x = normal(4, 64)
    reversed_bits = x.reshape(4, *[2] * 6).transpose(0, 6, 5, 4, 3, 2, 1)
    np.testing.assert_array_equal(kernel(x), 0.5 * reversed_bits.reshape(4, 64))


def test_a_broadcast_tile_is_a_tile_of_its_own():
    """It can be assigned to, and the tile that it came from stays what it was."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((3, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        column, row = nl.load(x[:, 0:1]), nl.load(x[0:1, :])
        wide, tall = column.broadcast_to(x.shape), row.broadcast_to(x.shape)
        nl.store(out[0], value=wide)
        nl.store(out[1], value=tall)
        wide[...] = nl.load(x)
        nl.store(out[2], value=wide)
        return out

    x = normal(8, 6)
    columns, rows = np.repeat(x[:, :1], 6, 1), np.repeat(x[:1], 8, 0)
    np.testing.assert_array_equal(kernel(x), np.stack([columns, rows, x]))


@pytest.mark.parametrize("staged", [False, True], ids=["HBM", "SBUF"])
def test_dma_broadcasts_no_row(staged):
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        wide = nl.ndarray((nl.par_dim(128), x.shape[1]), dtype=x.dtype)
        row = nl.load(x[0:1, :]) if staged else x
        i_p, i_f = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
        nisa.dma_copy(dst=wide[i_p, i_f], src=row[i_p * 0, i_f])
        nl.store(out, value=wide)
        return out

    with pytest.raises(InvalidProgramError, match=r"dma_copy.*128 partitions.*IBCG901"):
        kernel(normal(4, 32))


def test_dma_transposes_no_fp32_in_sbuf():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape[::-1], dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nisa.dma_transpose(nl.load(x)))
        return out

    x = normal(32, 64)
    half = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(kernel(half), half.T)
    with pytest.raises(InvalidProgramError, match=r"dma_transpose.*float32 in SBUF"):
        kernel(x)


@pytest.mark.parametrize(
    ("dtype", "target", "engine"),
    [
        (F32, "trn2", "nc_transpose"),
        (F32, "trn1", "dma_transpose"),
        (ml_dtypes.bfloat16, "trn2", "dma_transpose"),
    ],
)
def test_fp32_that_is_loaded_transposed_passes_the_tensor_engine(dtype, target, engine):
    """As bmm v2 and its load_transpose2d of [KDA], whose counters are equal."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((130, 200), dtype=x.dtype, buffer=nl.shared_hbm)
        turned = nl.load_transpose2d(x[:, 0:128])
        rest = nl.load_transpose2d(x[:, 128:130])
        nl.store(out[0:128, :], value=turned)
        nl.store(out[128:130, :], value=rest)
        return out

    x = normal(200, 130).astype(dtype)
    targeted = kernel.with_target(target)
    names = [i.name for i in targeted.trace(x).body.walk()]
    assert {"nc_transpose", "dma_transpose"} & {*names} == {engine}
    np.testing.assert_array_equal(targeted(x), x.T)
