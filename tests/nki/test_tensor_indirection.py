"""`.indirect()`: gathers and scatters along the free dimension, against NumPy loops."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from tests.nki.test_matmul_kernels import left_fold
from tests.nki.test_microscaling import (
    E2M1,
    E4M3,
    loaded,
    operand,
    same as same_numbers,
    stored,
    x4,
)
from tests.nki.test_vector_instructions import normal, run, same
from tests.oracles import nki_isa as oracle

F32, BF16 = np.float32, ml_dtypes.bfloat16
LANES, TENSOR = 16, 32


def indices(partitions, columns, limit, dtype=np.uint32, seed=0):
    """Of every group another permutation: scattered elements do not meet."""
    generator = np.random.default_rng(seed)
    found = [generator.permutation(limit)[:columns] for _ in range(partitions)]
    return np.array(found).astype(dtype)


def distinct(partitions, columns, limit, group, dtype=np.int32, seed=0):
    """No offset twice in a group."""
    generator = np.random.default_rng(seed)
    index = np.zeros((partitions, columns), dtype)
    for first in range(0, partitions, group):
        rows = index[first : first + group]
        rows[...] = generator.permutation(limit)[: rows.size].reshape(rows.shape)
    return index


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "dtype", "count"),
    [
        (nisa.engine.vector, BF16, 48),
        (nisa.engine.scalar, BF16, 37),
    ],
    ids=["vector", "scalar"],
)
def test_copies_gather_and_scatter(engine, dtype, count):
    """Groups of 16 have offsets of their own; the last of 80 partitions too."""
    x, old = normal(80, 60, dtype=dtype), normal(80, 60, dtype=dtype, seed=1)
    source = indices(80, 3, 60, np.uint16)
    target = distinct(80, 3, 60, LANES)

    def body(dst, tiles):
        x, source, old, target = tiles
        nisa.tensor_copy(dst[0], x.indirect(source, count), engine=engine)
        nisa.tensor_copy(dst[1], old)
        scattered = dst[1].indirect(target, count)
        nisa.tensor_copy(scattered, dst[0], engine=engine)

    name = np.dtype(dtype).name
    shapes = [((80, count), name), ((80, 60), name)]
    found = run(body, x, source, old, target, outputs=shapes)
    expected = oracle.gathered(x, source, count, LANES)
    same(found[0], expected.astype(F32), dtype)
    expected = oracle.scattered(old, target, expected, LANES)
    same(found[1], expected.astype(F32), dtype)


@pytest.mark.slow
def test_instructions_gather():
    """Of a part of a tile, and of one in PSUM; unused offsets may be anything."""
    x, y = normal(32, 40), normal(32, 20, seed=1)
    index = indices(32, 2, 12)
    index[[12, 28], 1] = 2**31
    index[[5, 20], 1] = 0

    def body(dst, tiles):
        x, y, index = tiles
        psum = nl.ndarray((32, 40), nl.float32, nl.psum)
        nisa.tensor_copy(psum, x)
        part = x[:, 3:39:3]
        gathered = part.indirect(index, num_elem=20)
        nisa.activation(dst[0], nl.copy, psum.indirect(index, 20), scale=2.0)
        nisa.tensor_reduce(dst[1], nl.add, gathered, axis=1)
        nisa.tensor_tensor(dst[2], gathered, y, nl.multiply, engine=nisa.engine.gpsimd)

    tile = ((32, 20), nl.float32)
    shapes = [tile, ((32, 1), nl.float32), tile]
    found = run(body, x, y, index, outputs=shapes)
    part = oracle.gathered(x[:, 3:39:3], index, 20, LANES)
    same(found[0], 2 * oracle.gathered(x, index, 20, LANES))
    same(found[1], oracle.tensor_reduce(part, "add", 1))
    same(found[2], oracle.tensor_tensor(part, y, "multiply"))


@pytest.mark.slow
def test_matmuls_gather_and_scatter():
    """TensorE's groups are of 32 partitions, also those of its results in PSUM."""
    a, b = normal(64, 50, dtype=BF16), normal(64, 90, dtype=BF16, seed=1)
    left, right = indices(64, 1, 50), indices(64, 2, 90, seed=1)
    target = distinct(32, 2, 64, TENSOR, seed=2)

    def body(dst, tiles):
        a, b, left, right, target = tiles
        stationary, moving = a.indirect(left, 32), b.indirect(right, 60)
        wide = nl.ndarray((32, 64), nl.float32, nl.psum)
        nisa.memset(wide, 7)
        nisa.nc_matmul(wide.indirect(target, 60), stationary, moving, accumulate=False)
        nisa.tensor_copy(dst[0], wide)

    shapes = [((32, 64), nl.float32)]
    [found] = run(body, a, b, left, right, target, outputs=shapes)
    operands = [
        oracle.gathered(x, index, count, TENSOR).astype(F32)
        for x, index, count in ((a, left, 32), (b, right, 60))
    ]
    wide = np.full((32, 64), 7, F32)
    same(found, oracle.scattered(wide, target, left_fold(*operands), TENSOR))


@pytest.mark.slow
def test_mx_matmuls_gather_words_and_scales():
    a, a_scale = operand(64, 20, E4M3, seed=0)
    b, b_scale = operand(64, 24, E2M1, seed=1)
    left, right = indices(64, 1, 20), indices(64, 1, 24, seed=1)

    @nki.jit
    def kernel(a, a_scale, b, b_scale, left, right):
        pairs = []
        for x, scale, index, element, count in (
            (a, a_scale, left, E4M3, 18),
            (b, b_scale, right, E2M1, 30),
        ):
            index = loaded(index)
            words = loaded(x, x4(element)).indirect(index, count)
            pairs.append((words, loaded(scale).indirect(index, count)))
        out = nl.ndarray((18, 30), nl.float32, nl.psum)
        (stationary, left_scale), (moving, right_scale) = pairs
        nisa.nc_matmul_mx(out, stationary, moving, left_scale, right_scale)
        return (stored(out),)

    arguments = [oracle.pack_x4(a), oracle.place_scales(a_scale)]
    arguments += [oracle.pack_x4(b), oracle.place_scales(b_scale)]
    arguments = [np.pad(x, ((0, 64 - len(x)), (0, 0))) for x in arguments]
    [found] = kernel.with_target("trn3")(*arguments, left, right)
    values = []
    for x, scale, index, count in ((a, a_scale, left, 18), (b, b_scale, right, 30)):
        words = x.reshape(64, -1, 4)
        picks = [oracle.offsets(index, p, count, TENSOR) for p in range(64)]
        words = np.stack([row[pick] for row, pick in zip(words, picks, strict=True)])
        codes = np.stack([scale[g][picks[8 * g]] for g in range(8)])
        values.append(oracle.dequantize_mx(words.reshape(64, -1), codes))
    with np.errstate(all="ignore"):
        same_numbers(found, oracle.nc_matmul_mx(*values))


def test_offsets_that_do_not_exist_are_refused():
    """Those of the 17th partition on are another group's, except for TensorE."""

    def kernel(partitions, count, matmul=False):
        index = nl.ndarray((partitions, 1), nl.uint32)
        nisa.memset(index, 0)
        tile = nl.ndarray((partitions, 8), nl.bfloat16)
        nisa.memset(tile, 1)
        view = tile.indirect(index, count)
        if matmul:
            out = nl.ndarray((8, count), nl.float32, nl.psum)
            nisa.nc_matmul(out, tile, view)
        else:
            nisa.tensor_copy(nl.ndarray(view.shape, nl.bfloat16), view)

    trace = nki.jit(kernel).with_target("trn3").trace
    trace(32, 16)
    trace(32, None)
    trace(8, 8)
    trace(32, 32, True)
    for arguments in ((32, 17), (24, 9), (48, 17, True)):
        with pytest.raises(InvalidProgramError, match="a smaller num_elem") as error:
            trace(*arguments)
        assert "test_tensor_indirection.py" in str(error.value)
    with pytest.raises(InvalidProgramError, match="use 1 to 8"):
        trace(8, 9)


def test_an_offset_out_of_bounds_is_named():
    def kernel(index):
        offsets = nl.ndarray((16, 1), nl.int32)
        nisa.dma_copy(offsets, index)
        tile, dst = nl.ndarray((16, 8), nl.float32), nl.ndarray((16, 4), nl.float32)
        nisa.memset(tile, 1)
        nisa.tensor_copy(dst, tile.indirect(offsets, 4))
        out = nl.ndarray((16, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, dst)
        return out

    run = nki.jit(kernel).with_target("trn3")
    index = np.zeros((16, 1), np.int32)
    index[4:] = -1
    assert (np.asarray(run(index)) == 1).all()
    index[3] = 8
    with pytest.raises(InvalidProgramError, match="runtime index"):
        run(index)
