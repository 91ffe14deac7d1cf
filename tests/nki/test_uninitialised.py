"""Reads of what nothing wrote: found, counted, and not seen where there are none."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels.running import FreshMemory
from neuronjax.hardware import resolve_target
from neuronjax.nki.limits.initialised import UnwrittenWarning, surely_writes
from neuronjax.nki.limits.programs import checked
from neuronjax.nki.stored_kernel import StoredKernel


def trace(body, *args):
    program = nki.jit(body).with_target("trn2").trace(*args)
    return checked(program, resolve_target("trn2").core)


def tile(*shape, dtype="float32", memory=nl.sbuf):
    return nl.ndarray(shape, dtype, memory)


def refused(body, count, *args):
    with pytest.raises(InvalidProgramError, match=count) as found:
        trace(body, *args)
    lines = re.findall(r"test_uninitialised.py:(\d+)", str(found.value))
    assert len(lines) == 2, found.value
    return lines


def test_reading_an_unwritten_tile_is_refused():
    def kernel():
        t = nl.ndarray((16, 8), "float32")
        nisa.tensor_copy(tile(16, 8), t)

    read, allocated = refused(kernel, "all 128 elements were never written")
    assert int(read) == int(allocated) + 1


def test_a_part_was_written():
    def kernel():
        t = tile(16, 8)
        nisa.memset(t[:, ::2], 0)
        nisa.memset(t[:, 1:3], 0)
        nisa.tensor_copy(tile(16, 8), t)

    refused(kernel, r"48 of 128 elements")


def test_partitions_that_nothing_wrote_pass_through_lanes():
    """As in kernels that work on 128 partitions whatever the size."""

    def kernel():
        t = tile(64, 8)
        nisa.memset(t[:40], 1)
        twice = tile(64, 8)
        nisa.memset(twice, 0)
        nisa.tensor_tensor(twice, t, t, nl.add)
        total = tile(64, 1)
        nisa.activation_reduce(tile(64, 8), nl.copy, twice, nl.add, total)
        out = nl.ndarray((64, 1), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out, total)
        return out

    with pytest.warns(UnwrittenWarning, match=r"stored: .*24 of 64 elements"):
        found = np.asarray(nki.jit(kernel)())
    np.testing.assert_array_equal(found[:40], np.full((40, 1), 16, np.float32))
    with pytest.warns(UnwrittenWarning):
        findings = nki.check(kernel, target="trn2")().findings
    assert any("192 of 512 elements" in f.message for f in findings)


def test_what_passed_through_lanes_is_not_contracted():
    def kernel(rows, columns):
        t = tile(64, 8, dtype="bfloat16")
        nisa.memset(t[:40, :columns], 1)
        copy = tile(64, 8, dtype="bfloat16")
        nisa.tensor_copy(copy, t)
        out = tile(8, 8, memory=nl.psum)
        nisa.nc_matmul(out, copy[:rows], copy[:rows])

    trace(kernel, 40, 8)
    with pytest.raises(
        InvalidProgramError,
        match=r"192 of 512 elements were computed by \S+:\d+ from unwritten",
    ):
        trace(kernel, 64, 8)
    refused(kernel, "352 of 512", 40, 4)  # columns are of the same lanes


def test_groups_of_a_block_are_written_together():
    def kernel(rows):
        t = tile(64, 16, dtype="bfloat16")
        nisa.memset(t[:rows], 1)
        words, scales = tile(64, 4, dtype="float8_e5m2_x4"), tile(64, 4, dtype="uint8")
        nisa.quantize_mx(words, t, scales)

    program = nki.jit(kernel).with_target("trn3").trace(32)
    checked(program, resolve_target("trn3").core)
    with pytest.raises(InvalidProgramError, match="480 of 1,024"):
        checked(nki.jit(kernel).with_target("trn3").trace(34), None)


def test_parts_that_make_up_the_whole():
    def kernel():
        t = tile(16, 8, 4)
        for n in range(8):
            nisa.memset(t[:, n], 0)
        nisa.tensor_copy(tile(16, 32), t.reshape((16, 32)))
        nisa.tensor_copy(tile(16, 8, 4), t)

    trace(kernel)


@pytest.mark.parametrize(("last", "missing"), [(8, 0), (7, 16)])
def test_other_dtypes_are_counted_in_bytes(last, missing):
    def kernel():
        t = tile(16, 4)
        halves = t.view("uint16")
        for n in range(last):
            nisa.memset(halves[:, n : n + 1], 0)
        nisa.tensor_copy(tile(16, 4), t)

    if missing:
        # Half of the last element: rounded up to whole elements.
        refused(kernel, r"8 of 64 elements")
    else:
        trace(kernel)


def test_accumulating_onto_nothing():
    def kernel():
        a, c = nl.zeros((8, 8), "bfloat16"), tile(8, 8, memory=nl.psum)
        nisa.nc_matmul(c, a, a, accumulate=True)

    refused(kernel, "nc_matmul.*all 64 elements")


def test_a_predicated_copy_reads_its_dst():
    def kernel():
        a, p = nl.zeros((8, 8), "float32"), nl.zeros((8, 8), "uint8")
        nisa.tensor_copy_predicated(tile(8, 8), a, p)

    refused(kernel, "tensor_copy_predicated.*all 64")


def test_an_index_is_read_too():
    def kernel(a):
        out = tile(8, 4)
        nisa.dma_copy(
            out, a.ap([[4, 8], [1, 4]], vector_offset=tile(8, 1, dtype="uint32"))
        )

    with pytest.raises(InvalidProgramError, match="all 8 elements"):
        trace(kernel, np.zeros((16, 4), np.float32))


def test_private_hbm():
    def kernel():
        scratch = nl.ndarray((32, 8), "float32", buffer=nl.private_hbm)
        nisa.dma_copy(scratch[0:16], nl.zeros((16, 8), "float32"))
        nisa.dma_copy(tile(16, 8), scratch[0:16])
        nisa.dma_copy(tile(16, 8), scratch[8:24])

    refused(kernel, "64 of 128")


def test_a_result_that_nothing_writes():
    def kernel(a):
        return nl.ndarray((4, 4), "float32", buffer=nl.shared_hbm), a

    with pytest.raises(InvalidProgramError, match=r"result 0.*never written"):
        trace(kernel, np.zeros((4, 4), np.float32))


def loop(count, before, inside, after):
    def kernel(n):
        t = tile(8, 4)
        if before:
            nisa.memset(t, 0)
        for _ in nl.dynamic_range(n):
            if inside == "read":
                nisa.tensor_copy(tile(8, 4), t)
            nisa.memset(t, 1)
        if after:
            nisa.tensor_copy(tile(8, 4), t)

    def counted():
        if count is None:
            register = nisa.register_alloc(3)
            kernel(register)
        else:
            kernel(count)

    return counted


def test_loops_of_the_device():
    # The first turn reads what only its end writes.
    refused(loop(3, False, "read", False), "all 32")
    trace(loop(3, True, "read", False))
    trace(loop(3, False, "write", True))
    # It may turn: in the program's favour, and `nki.check` reports it.
    body = loop(None, False, "write", True)
    trace(body)
    assert [f.rule for f in check(body)] == ["maybe-unwritten"]
    assert not check(loop(3, False, "write", True))
    assert not check(loop(None, True, "write", True))


def check(body):

    return nki.check(nki.jit(body), target="trn2")().findings


def test_runtime_offsets_count_as_writes_of_anything():
    def kernel():
        t = tile(8, 16)
        for i in nl.dynamic_range(4):
            nisa.memset(t[:, nl.ds(i, 1)], 0)
        nisa.tensor_copy(tile(8, 16), t)

    trace(kernel)

    def unwritten():
        t = tile(8, 16)
        for i in nl.dynamic_range(4):
            nisa.tensor_copy(tile(8, 1), t[:, nl.ds(i, 1)])

    refused(unwritten, "all 8 elements")


def test_engine_state_and_constants_have_values():
    def kernel():
        t, r = nl.zeros((8, 8), "float32"), tile(8, 1)
        nisa.activation(
            t,
            nl.exp,
            t,
            reduce_op=nl.add,
            reduce_res=r,
            reduce_cmd=nisa.reduce_cmd.reduce,
        )

    trace(kernel)


def test_unwritten_elements_are_refused_op_by_op():
    @nki.jit
    def kernel():
        t = tile(16, 8)
        nisa.memset(t[:, :4], 0)
        out = nl.ndarray((16, 8), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        return out

    for eager in (False, True):
        with (
            jax.disable_jit(eager),
            pytest.raises(InvalidProgramError, match="64 of 128"),
        ):
            kernel()


@pytest.mark.parametrize("seed", range(4))
def test_against_a_map_kept_in_numpy(seed):
    """Random writes and reads of boxes: refused exactly where NumPy says so."""
    generator = np.random.default_rng(seed)
    written = np.zeros((32, 12, 6), bool)

    def boxes():
        bounds = [sorted(generator.choice(n + 1, 2, replace=False)) for n in (12, 6)]
        steps = generator.integers(1, 3, 2)
        return tuple(slice(int(a), int(b), int(s)) for (a, b), s in zip(bounds, steps))

    plan = [(boxes(), bool(generator.integers(0, 2))) for _ in range(40)]
    expected = None
    for n, (box, reads) in enumerate(plan):
        at = (slice(None), *box)
        if reads and not written[at].all():
            expected = n, int((~written[at]).sum())
            break
        if not reads:
            written[at] = True

    def kernel(steps):
        t = tile(32, 12, 6)
        for box, reads in steps:
            view = t[(slice(None), *box)]
            if reads:
                nisa.tensor_copy(tile(*view.shape), view)
            else:
                nisa.memset(view, 0)

    assert expected is not None
    number, missing = expected
    trace(lambda: kernel(plan[:number]))
    with pytest.raises(
        InvalidProgramError, match=rf"(^|\D){missing} of|all {missing} "
    ):
        trace(lambda: kernel(plan[: number + 1]))


def stored_in_turns(start, cleared):
    def kernel(x, count):
        out = nl.ndarray((8, 4), "float32", buffer=nl.shared_hbm)
        if cleared:
            nisa.dma_copy(out, x)
        turns = nisa.register_alloc(0)
        nisa.register_load(turns, nl.load(count))
        for i in nl.dynamic_range(start, turns):
            row = nl.ndarray((1, 4), "float32")
            nisa.dma_copy(row, x[nl.ds(i, 1)])
            nisa.dma_copy(out[nl.ds(i, 1)], row)
        return out

    return nki.jit(kernel, target="trn2")


def test_what_is_written_whatever_the_run_does_and_what_may_not_be():
    arrays = np.ones((8, 4), np.float32), np.array([[8]], np.int32)
    for cleared in (True, False):
        program = stored_in_turns(0, cleared).trace(*arrays)
        assert surely_writes(program) == cleared


@pytest.mark.slow
def test_another_memory_shows_what_nothing_wrote():
    arrays = np.ones((8, 4), np.float32), np.array([[8]], np.int32)
    other = FreshMemory(of_floats=2.0, of_integers=3, shared=False)
    found = []
    for start in (0, 6):
        stored = StoredKernel(stored_in_turns(start, False).traced(*arrays))
        found += [stored(*arrays), stored.in_memory(other)(*arrays)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isnan(found[2][:6]).all()
    assert (found[3][:6] == 2.0).all()
    np.testing.assert_array_equal(found[2][6:], found[3][6:])
