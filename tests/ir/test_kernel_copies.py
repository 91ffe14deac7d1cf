"""`tile[...] = nisa.activation(...)` is one instruction where that changes nothing."""

from collections import Counter

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax.nki import legacy as nki
from neuronjax.nki.legacy import isa as nisa, language as nl

X = np.random.default_rng(3).normal(size=(64, 96)).astype(np.float32)
ROWS, COLUMNS = X.shape


def counted(body, dtype=np.float32):
    """A kernel of (x tile, out tile) -> None between a load and a store, and its
    instructions by name."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((ROWS, COLUMNS), dtype=dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=x.dtype)
        tile[...] = nl.load(x)
        result = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=dtype)
        body(tile, result)
        nl.store(out, value=result)
        return out

    program = kernel.trace(X)
    return kernel, Counter(i.name for i in program.body.walk())


def in_place(tile, result):
    tile[...] = nisa.tensor_scalar(tile, np.multiply, 2.0)
    result[...] = nisa.activation(nl.exp, tile)


def by_index_arrays(tile, result):
    p, f = nl.arange(ROWS)[:, None], nl.arange(COLUMNS // 2)[None, :]
    for half in nl.affine_range(2):
        at = f + half * (COLUMNS // 2)
        result[p, at] = nisa.activation(nl.tanh, tile[p, at])


def by_operators(tile, result):
    result[...] = tile * tile


def by_functions(tile, result):
    result[...] = nl.copy(nl.exp(tile), dtype=np.float32)


def through_memory(tile, result):
    result[...] = nl.load(tile_source(tile))


def tile_source(tile):
    """HBM with what a tile holds."""
    room = nl.ndarray((ROWS, COLUMNS), dtype=np.float32, buffer=nl.private_hbm)
    nl.store(room, value=tile)
    return room


@pytest.mark.slow_cases("in_place-", "by_index_arrays-")
@pytest.mark.parametrize(
    ("body", "names"),
    [
        (in_place, {"tensor_scalar": 1, "activation": 1, "dma_copy": 2}),
        (by_index_arrays, {"activation": 2, "dma_copy": 2}),
        (by_operators, {"tensor_tensor": 1, "dma_copy": 2}),
        (by_functions, {"activation": 1, "tensor_copy": 1, "dma_copy": 2}),
        (through_memory, {"dma_copy": 4}),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_result_is_written_where_it_is_assigned(body, names):
    kernel, found = counted(body)
    assert found == names
    same_bits(kernel)


def another_type(tile, result):
    result[...] = nisa.activation(nl.exp, tile)


def read_twice(tile, result):
    grown = nisa.activation(nl.exp, tile)
    result[...] = grown
    result[...] = nisa.tensor_tensor(result, grown, np.add)


def declared_and_copied(tile, result):
    middle = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=np.float32)
    middle[...] = nisa.activation(nl.exp, tile)
    result[...] = middle


def asked_for(tile, result):
    result[...] = nisa.tensor_copy(tile)


def shifted(tile, result):
    """The destination overlaps the operand by half: written at once, it would change
    what is still to be read."""
    tile[:, 32:96] = nisa.tensor_scalar(tile[:, 0:64], np.multiply, 2.0)
    result[...] = nisa.activation(nl.exp, tile)


def to_another_memory(tile, result):
    turned = nl.ndarray((nl.par_dim(COLUMNS), ROWS), dtype=np.float32)
    turned[...] = nisa.nc_transpose(tile)
    result[...] = nisa.nc_transpose(turned)


def part_of_a_result(tile, result):
    grown = nisa.activation(nl.exp, tile)
    result[:, 0:48] = grown[:, 0:48]
    result[:, 48:96] = tile[:, 0:48]


def touched_between(tile, result):
    grown = nisa.activation(nl.exp, tile)
    result[...] = nisa.tensor_scalar(tile, np.add, 1.0)
    nl.store(tile_source(tile), value=result)
    result[...] = grown


@pytest.mark.slow_cases(
    "shifted--float32",
    "part_of_a_result--float32",
    "read_twice--float32",
    "another_type--bfloat16",
)
@pytest.mark.parametrize(
    ("body", "copies", "dtype"),
    [
        (another_type, 1, ml_dtypes.bfloat16),
        (read_twice, 1, np.float32),
        (declared_and_copied, 1, np.float32),
        (asked_for, 1, np.float32),
        (shifted, 1, np.float32),
        (to_another_memory, 2, np.float32),
        (part_of_a_result, 2, np.float32),
        (touched_between, 1, np.float32),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_copies_that_do_something_stay(body, copies, dtype):
    kernel, found = counted(body, dtype)
    assert found["tensor_copy"] == copies
    same_bits(kernel)


def same_bits(kernel):
    """Instruction by instruction every copy is made."""
    compiled = np.asarray(kernel(X))
    with jax.disable_jit():
        every = np.asarray(kernel(X))
    assert compiled.tobytes() == every.tobytes()


def test_a_tile_that_the_kernel_returns_to_is_not_lost():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        held = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=x.dtype)
        for turn in range(2):
            held[...] = nisa.tensor_scalar(nl.load(x), np.add, float(turn))
            nl.store(out[turn], value=held)
        return out

    np.testing.assert_array_equal(kernel(X), np.stack([X, X + 1]))
    names = Counter(i.name for i in kernel.trace(X).body.walk())
    assert names == {"dma_copy": 4, "tensor_scalar": 2}
