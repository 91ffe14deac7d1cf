"""`nki.check`: what it finds, what it does not, and how it is shown."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

check = nki.check

RESET, REDUCE = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce


def tile(*shape, dtype="float32", memory=nl.sbuf):
    t = nl.ndarray(shape, dtype, memory)
    nisa.memset(t, 0)
    return t


def rules(body, *args, target="trn2", grid=None):
    kernel = nki.jit(body)
    kernel = kernel[grid] if grid else kernel
    return [f.rule for f in check(kernel, target=target)(*args).findings]


def summed(range_of):
    def kernel():
        total = tile(8, 8)
        for _ in range_of(3):
            nisa.tensor_tensor(total, total, tile(8, 8), nl.add)

    return kernel


def test_turns_of_affine_range_depend_on_one_another():
    assert rules(summed(nl.affine_range)) == ["loop-carried"]
    assert not rules(summed(nl.sequential_range))
    assert not rules(summed(range))
    report = check(nki.jit(summed(nl.affine_range)), target="trn2")()
    assert report.findings[0].count == 2  # the first turn reads what the memset wrote


def test_turns_that_use_only_their_own():
    def kernel():
        once, scratch = tile(8, 8), nl.ndarray((8, 8), "float32")
        total = nl.ndarray((8, 8), "float32", nl.psum)
        for i in nl.affine_range(2):
            for j in nl.affine_range(2):
                nisa.tensor_copy(scratch, once)
                nisa.tensor_copy(tile(8, 8), scratch)
                nisa.nc_matmul(total, once, once, accumulate=i + j > 0)

    assert not rules(kernel)


def test_an_inner_loop_and_a_break():
    def kernel():
        t = tile(8, 8)
        for _ in nl.affine_range(2):
            for j in nl.affine_range(5):
                if j:
                    break
                nisa.tensor_copy(tile(8, 8), t)
        nisa.memset(t, 1)
        for _ in nl.affine_range(2):
            nisa.tensor_copy(tile(8, 8), t)

    assert not rules(kernel)
    program = nki.jit(kernel).with_target("trn2").trace()
    turns = [[t.turn for t in i.loops] for i in program.body.walk()]
    assert turns == [[], [0, 0], [0, 0], [1, 0], [1, 0], [], [0], [0], [1], [1]]


def onto_values(writer):
    def kernel():
        a = tile(8, 8, dtype="bfloat16")
        c = nl.ndarray((8, 8), "float32", nl.psum)
        if writer == "memset":
            nisa.memset(c, 0)
        else:
            nisa.nc_matmul(c, a, a)
        nisa.nc_matmul(c, a, a)

    return kernel


def test_accumulating_onto_what_another_engine_wrote():
    assert rules(onto_values("memset"), target="trn1") == ["accumulate-onto-values"]
    assert rules(onto_values("memset"), target="trn2") == ["accumulate-onto-values"]
    assert not rules(onto_values("memset"), target="trn3")
    assert not rules(onto_values("matmul"), target="trn1")


def exponentials(*commands):
    def kernel():
        t, r = tile(8, 8), nl.ndarray((8, 1), "float32")
        for command in commands:
            nisa.exponential(t, t, reduce_res=r, reduce_cmd=command)

    return kernel


def test_accumulators():
    idle = nisa.reduce_cmd.idle
    assert not rules(exponentials(RESET, REDUCE, REDUCE), target="trn3")
    found = rules(exponentials(REDUCE, RESET), target="trn3")
    assert found == ["accumulators-not-reset"]

    def clobbered():
        t, r = tile(8, 8), nl.ndarray((8, 1), "float32")
        nisa.exponential(t, t, reduce_res=r, reduce_cmd=RESET)
        nisa.exponential(t, t, reduce_cmd=idle)
        nisa.exponential(t, t, reduce_res=r, reduce_cmd=REDUCE)

    assert rules(clobbered, target="trn3") == ["accumulators-clobbered"]


def test_depends_on_cycles():
    def kernel(cycle):
        a, b = nisa.memset(tile(8, 8), 1), nisa.memset(tile(8, 8), 2)
        b.depends_on(a)
        if cycle:
            a.depends_on(b)

    assert not rules(kernel, False)
    assert set(rules(kernel, True)) == {"depends-on-cycle"}


def exchange(meets, same=False):
    def kernel():
        core = nl.program_id(0)
        out = nl.ndarray((2, 8, 8), "float32", buffer=nl.shared_hbm)
        seen = nl.ndarray((2, 8, 8), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out[0 if same else core], tile(8, 8))
        if same and core == 0:
            nisa.dma_copy(out[1], tile(8, 8))
        if meets:
            nisa.core_barrier(out, (0, 1))
        t = nl.ndarray((8, 8), "float32")
        nisa.dma_copy(t, out[0])
        nisa.dma_copy(seen[core], t)
        return seen

    return kernel


def test_cores_of_a_grid():
    assert not rules(exchange(True), grid=2)
    assert rules(exchange(False), grid=2) == ["cores-race"]
    assert set(rules(exchange(True, same=True), grid=2)) == {"cores-race"}


def scattered(meets, own=False):
    """Both cores clear a tensor, then core 1 writes where the run decides."""

    def kernel(row):
        core = nl.program_id(0)
        out = nl.ndarray((2, 8, 8), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out[core], tile(8, 8))
        if meets:
            nisa.core_barrier(out, (0, 1))
        at = nl.load(row)
        if core == 1 and not own:
            nisa.dma_copy(out.select(0, at), tile(8, 8))
        return out

    return kernel


def test_cores_that_go_where_the_run_decides():
    row = np.zeros((1, 1), np.int32)
    assert rules(scattered(False), row, grid=2) == ["cores-race"]
    assert not rules(scattered(True), row, grid=2)
    assert not rules(scattered(False, own=True), row, grid=2)


def test_results_in_part():
    def kernel():
        out = nl.ndarray((16, 8), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out[0:8], tile(8, 8))
        return out

    report = check(nki.jit(kernel), target="trn2")()
    assert [f.rule for f in report.findings] == ["result-in-part"]
    assert "64 of 128 elements" in report.findings[0].message


def test_documented_limits_that_earlier_releases_had_not():
    def kernel():
        out = nl.ndarray((8, 8), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile(8, 8, memory=nl.psum))
        t, p = tile(8, 8, dtype="bfloat16"), tile(8, 8, dtype="uint8")
        nisa.tensor_copy_predicated(t, tile(8, 8), p)
        return out

    report = check(nki.jit(kernel), target="trn2")()
    assert [f.rule for f in report.findings] == ["documented-limit"] * 2
    assert "nisa.tensor_copy" in report.findings[0].remedy


def test_errors_are_findings():
    def kernel():
        tile(200, 4)

    (found,) = check(kernel, target="trn2")().findings
    assert (found.rule, found.severity) == ("limit", "error")
    assert "200 partitions" in found.message


def test_a_clean_kernel_and_the_report():
    def kernel(a):
        t = nl.load(a)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    clean = check(nki.jit(kernel), target="trn3")(np.zeros((8, 8), np.float32))
    assert clean.ok
    assert str(clean) == "kernel on trn3: nothing found"

    report = check(nki.jit(onto_values("memset")), target="trn1")()
    text = str(report)
    assert not report.ok
    assert text.startswith(
        "kernel on trn1: 1 finding\n\nwarning accumulate-onto-values"
    )
    assert len(set(re.findall(r"test_hazards.py:(\d+)", text))) == 2
    assert "remedy: " in text
    assert "remedy: " in report._repr_html_()
    from rich.console import Console

    console = Console(record=True, width=80, file=io.StringIO())
    console.print(report)
    assert "accumulate-onto-values" in console.export_text()


@pytest.mark.parametrize("times", [1, 3])
def test_equal_findings_are_counted(times):
    def kernel():
        a, c = tile(8, 8, dtype="bfloat16"), nl.ndarray((8, 8), "float32", nl.psum)
        for _ in range(times):
            nisa.memset(c, 0)
            nisa.nc_matmul(c, a, a)

    (found,) = check(nki.jit(kernel), target="trn2")().findings
    assert found.count == times


def test_a_product_that_nothing_has_read_is_overwritten():
    def summed(flags):
        def kernel(x):
            a, total = nl.load(x), nl.ndarray((8, 8), "float32", nl.psum)
            for flag in flags:
                nisa.nc_matmul(total, a, a, accumulate=flag)
            out = nl.ndarray((8, 8), "float32", buffer=nl.shared_hbm)
            nl.store(out, nl.copy(total))
            nisa.nc_matmul(total, a, a, accumulate=False)  # it was read
            return out

        return kernel

    x = np.ones((8, 8), np.float32)
    assert rules(summed([False, False]), x) == ["product-unread"]
    assert not rules(summed([False, True]), x)
    assert not rules(summed([None, None]), x)


@pytest.mark.parametrize("memory", [nl.sbuf, nl.private_hbm, nl.shared_hbm])
def test_results_that_a_caller_cannot_reach(memory):
    def kernel(x):
        tile = nl.load(x)
        if memory is nl.sbuf:
            return tile
        out = nl.ndarray(x.shape, x.dtype, buffer=memory)
        nl.store(out, tile)
        return out

    found = rules(kernel, np.ones((8, 8), np.float32))
    assert found == ([] if memory is nl.shared_hbm else ["result-out-of-reach"])


def test_half_a_result_of_integers_is_unwritten():
    def kernel(x):
        out = nl.ndarray(x.shape, nl.int32, buffer=nl.shared_hbm)
        nl.store(out[:4], nl.load(x[:4]))
        return out

    assert rules(kernel, np.ones((8, 8), np.int32)) == ["result-in-part"]
