"""Two cores of a logical one: barriers and exchanges, compiled and op by op."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import isa as nisa, language as nl
from tests.arrays import bits

BF16 = ml_dtypes.bfloat16


def both(kernel, *arguments):
    """The result of a compiled run, which is that of an op by op run."""
    found = kernel(*arguments)
    with jax.disable_jit():
        again = kernel(*arguments)
    np.testing.assert_array_equal(bits(found), bits(again))
    return np.asarray(found)


def data(*shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(np.float32).astype(dtype)


def load(x):
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


@nki.jit(target="trn2")
def through_shared_memory(a):
    """Each core squares its half; behind the barrier it reads the other's."""
    core = nl.program_id(0)
    half = a.shape[0] // 2
    squares = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    own = slice(core * half, (core + 1) * half)
    other = slice((1 - core) * half, (2 - core) * half)
    for step in range(2):
        tile = load((a, squares)[step][own])
        nisa.tensor_tensor(tile, tile, tile, nl.multiply)
        nisa.dma_copy(dst=squares[own], src=tile)
        nisa.core_barrier(squares, (0, 1))
        tile = load(squares[other])
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.core_barrier(squares, cores=[0, 1])
        nisa.dma_copy(dst=squares[other], src=tile)
        nisa.core_barrier(squares, (0, 1))
    return squares


@pytest.mark.slow
def test_barriers_order_what_both_cores_do_with_shared_memory():
    a = data(64, 8)
    once = a * a + np.float32(1)
    expected = once * once + np.float32(1)
    np.testing.assert_array_equal(both(through_shared_memory[2], a), expected)
    names = [i.name for i in through_shared_memory[2].trace(a).body.walk()]
    assert names.count("core_barrier") == 12


def exchange(rows, free, dtype, way=nisa.dma_engine.dma, turns=1):
    @nki.jit
    def kernel(a):
        core = nl.program_id(0)
        mine = load(a[core])
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        theirs = nl.ndarray((rows, free), a.dtype, nl.sbuf)
        for turn in range(turns):
            nisa.sendrecv(mine, theirs, 1 - core, 1 - core, turn, way)
            # The own tile changes at once; what was sent does not.
            nisa.tensor_scalar(mine, mine, nl.multiply, 2.0)
            nisa.tensor_tensor(mine, mine, theirs, nl.subtract)
        nisa.dma_copy(dst=out[core], src=mine)
        return out

    return kernel[2]


@pytest.mark.slow
def test_sendrecv_swaps_tiles():
    dtype = BF16
    a = data(2, 32, 12, dtype=dtype)
    expected = a.astype(np.float32)
    for _ in range(3):
        doubled = (expected * np.float32(2)).astype(dtype).astype(np.float32)
        expected = (doubled - expected[::-1]).astype(dtype).astype(np.float32)
    found = both(exchange(32, 12, dtype, turns=3), a)
    np.testing.assert_array_equal(bits(found), bits(expected.astype(dtype)))


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float32, 256), (BF16, 256), (np.uint8, 256)], ids=str
)
def test_gpsimd_moves_few_bytes_per_partition(dtype, most):
    way = nisa.dma_engine.gpsimd_dma
    a = np.zeros((2, 16, most), dtype)
    exchange(16, most, dtype, way).trace(a)
    b = np.zeros((2, 16, most + 1), dtype)
    with pytest.raises(InvalidProgramError, match=f"at most .*{most} elements"):
        exchange(16, most + 1, dtype, way).trace(b)


@pytest.mark.slow
def test_one_core_sends_and_gathers_in_place():
    """Slices of one tile: each core sends its half and receives the other."""

    @nki.jit
    def kernel(a):
        core, half = nl.program_id(0), a.shape[1] // 2
        tile = nl.ndarray(a.shape, a.dtype, nl.sbuf)
        own, other = (nl.ds(c * half, half) for c in (core, 1 - core))
        nisa.dma_copy(dst=tile[:, own], src=a[:, own])
        nisa.sendrecv(
            src=tile[:, own],
            dst=tile[:, other],
            send_to_rank=1 - core,
            recv_from_rank=1 - core,
            pipe_id=0,
        )
        out = nl.ndarray((2, *a.shape), a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[core], src=tile)
        return out

    a = data(16, 10)
    np.testing.assert_array_equal(both(kernel[2], a), np.stack([a, a]))


@nki.jit(target="trn2")
def in_a_device_loop(a, turns):
    """Both cores meet in a loop that the device counts."""
    core = nl.program_id(0)
    count = nisa.register_alloc()
    nisa.register_load(count, load(turns))
    mine, theirs = load(a[core]), nl.ndarray(a.shape[1:], a.dtype, nl.sbuf)
    total = nl.ndarray((2, *a.shape[1:]), a.dtype, buffer=nl.shared_hbm)
    for turn in nl.dynamic_range(1, count):
        nisa.sendrecv(mine, theirs, 1 - core, 1 - core, pipe_id=3)
        nisa.tensor_tensor(mine, mine, theirs, nl.add)
        number = nl.ndarray((1, 1), nl.int32, nl.sbuf)
        nisa.register_store(number, turn)
        nisa.tensor_tensor(mine[0:1, 0:1], mine[0:1, 0:1], number, nl.add)
        nisa.core_barrier(total, (0, 1))
    nisa.dma_copy(dst=total[core], src=mine)
    return total


@pytest.mark.slow
def test_cores_meet_inside_a_device_loop():
    a = data(2, 8, 6)
    expected = a.copy()
    for turn in range(1, 4):
        expected = expected + expected[::-1]
        expected[:, 0, 0] += np.float32(turn)
    found = both(in_a_device_loop[2], a, np.array([[4]], np.int32))
    np.testing.assert_array_equal(found, expected)


def waiting(before, **how):
    """A launch in which core 1 does something else."""

    @nki.jit(target=how.get("target", "trn2"))
    def kernel(a):
        core = nl.program_id(0)
        tile, other = load(a), load(a)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        before(core, tile, other, out)
        return out

    return kernel[how.get("cores", 2)]


def swap(core, tile, other, **changed):
    how = dict(send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.sendrecv(tile, other, **{**how, **changed})


def only_core_0_sends(core, tile, other, out):
    if core == 0:
        swap(core, tile, other)


def core_1_waits_for_a_barrier(core, tile, other, out):
    if core == 0:
        swap(core, tile, other)
    else:
        nisa.core_barrier(out, (0, 1))


def pipes_in_another_order(core, tile, other, out):
    swap(core, tile, other, pipe_id=core)
    swap(core, tile, other, pipe_id=1 - core)


def nobody_sends_to_core_1(core, tile, other, out):
    swap(core, tile, other, send_to_rank=0, recv_from_rank=core)


def shapes_differ(core, tile, other, out):
    width = 4 + core
    swap(core, tile[:, :width], other[:, :width])


def into_itself(core, tile, other, out):
    swap(core, tile[:, 0:4], tile[:, 3:7])


def dtypes_differ(core, tile, other, out):
    swap(core, tile, other.view(nl.int32))


def a_third_core(core, tile, other, out):
    swap(core, tile, other, send_to_rank=2)


def another_tuple(core, tile, other, out):
    nisa.core_barrier(out, (0, 2))


def loops_differ(core, tile, other, out):
    for _ in nl.dynamic_range(2 + core):
        nisa.core_barrier(out, (0, 1))


def its_own_error(core, tile, other, out):
    if core == 1:
        raise KeyError("mine")
    nisa.core_barrier(out, (0, 1))


def barrier(core, tile, other, out):
    nisa.core_barrier(out, (0, 1))


@pytest.mark.parametrize(
    ("before", "message", "how"),
    [
        (only_core_0_sends, r"0 is at nisa.sendrecv\(pipe_id=0\).*1 is at its end", {}),
        (core_1_waits_for_a_barrier, "1 is at nisa.core_barrier", {}),
        (pipes_in_another_order, "pipe_id=1.*the same order", {}),
        (nobody_sends_to_core_1, "core 1 receives from core 1.*sends to core 0", {}),
        (shapes_differ, r"src of core 1 is float32\[16, 5\], dst float32\[16, 4\]", {}),
        (into_itself, "elements in common", {}),
        (dtypes_differ, "equal shapes and dtypes", {}),
        (a_third_core, "send_to_rank=2", {}),
        (another_tuple, r"cores=\(0, 2\).*use cores=\(0, 1\)", {}),
        (loops_differ, "in different loops", {}),
        (barrier, "launch of 1 programs.*kernel\\[2\\]", dict(cores=1)),
        (barrier, "target trn2, trn3", dict(target="trn1")),
    ],
)
def test_cores_that_do_not_fit_are_named(before, message, how):
    kernel = waiting(before, **how)
    with pytest.raises(InvalidProgramError, match=f"(?s){message}") as raised:
        kernel.trace(data(16, 8))
    assert "test_cores.py" in str(raised.value)


def test_an_error_of_one_core_ends_the_other():
    with pytest.raises(KeyError, match="mine"):
        waiting(its_own_error)(data(16, 8))
    with pytest.raises(KeyError, match="mine"), jax.disable_jit():
        waiting(its_own_error)(data(16, 8))


def test_a_launch_of_one_core_waits_for_itself():
    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.core_barrier(out, (0))
        nisa.dma_copy(dst=out, src=a)
        return out

    a = data(4, 4)
    np.testing.assert_array_equal(both(kernel, a), a)
