"""Mistakes that Python finds while a kernel is traced name the line and the remedy."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import legacy
from neuronjax.nki.legacy import language as older

X = np.ones((8, 8), np.float32)
# Types would say what is wrong before the kernel does.
load: Any = nl.load
older_load: Any = older.load
tensor_copy: Any = nisa.tensor_copy


def _compared(x):
    if load(x) > 0:
        return x
    return x


def _branched(x):
    return x if load(x) else 2


def _by_numpy(x):
    return np.exp(load(x))


def _summed_by_numpy(x):
    return np.sum(load(x))


def _misspelled(x):
    tensor_copy(dst=load(x), source=x)


def _older_branch(x):
    return x if older_load(x) > 0 else 2


def _older_numpy(x):
    return np.exp(older_load(x))


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [
        (nki.jit(_compared), "nl.where"),
        (nki.jit(_branched), "nl.where"),
        (nki.jit(_by_numpy), "nki.language"),
        (nki.jit(_summed_by_numpy), "nki.language"),
        (nki.jit(_misspelled), r"help\(nisa.tensor_copy\)"),
        (legacy.jit(_older_branch), "nl.where"),
        (legacy.jit(_older_numpy), "nki.language"),
    ],
)
def test_the_line_and_the_remedy_are_named(kernel, remedy):
    with pytest.raises(InvalidProgramError, match=remedy) as info:
        kernel(X)
    line = kernel.func.__code__.co_firstlineno
    assert info.value.location is not None
    path, _, found = info.value.location.rpartition(":")
    assert path == __file__
    assert line < int(found) <= line + 2


ONTO_VALUES = ["accumulate-onto-values"]


def test_other_errors_of_a_kernel_stay_as_they_are():
    def kernel(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        nki.jit(kernel)(X)


def test_a_kernel_shows_the_function_that_was_written():
    for jit in (nki.jit, legacy.jit):
        kernel = jit(_by_numpy)
        assert kernel.func is _by_numpy
        assert kernel.__globals__ is globals()
        assert kernel[2].func is _by_numpy


def test_names_of_files_of_both_styles():
    @nki.jit(target="trn2")
    def kernel(x):
        tile = nl.full_like(nl.load(x), 2.0)
        out = nl.ndarray((nl.par_dim(8), 8), x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(kernel(X), 2 * X)
    rows, columns = nl.mgrid[0:2, 0:3]
    assert (rows.shape, columns.shape) == ((2, 1), (1, 3))

    @nki.jit(target="trn2")
    def blocks(x):
        nl.ndarray((4, nl.par_dim(8), 8), x.dtype)

    with pytest.raises(InvalidProgramError, match="par_dim in dimension 1"):
        blocks(X)


@pytest.mark.parametrize("is_assigned", [True, False])
def test_loop_reduce_into_a_fresh_tile_and_as_a_value(is_assigned):
    """Twice over: the second time, the reduction begins anew."""

    @legacy.jit
    def kernel(x):
        out = older.ndarray((8, 2), dtype=x.dtype, buffer=older.shared_hbm)
        tile = older.load(x)
        for half in range(2):
            total = older.ndarray((8, 1), dtype=x.dtype, buffer=older.sbuf)
            turn = total
            for i in older.affine_range(4):
                column = tile[:, older.ds(half * 4 + i, 1)]
                turn = older.loop_reduce(column, op=np.maximum, loop_indices=[i])
                if is_assigned:
                    total[...] = turn
            older.store(out[:, half : half + 1], total if is_assigned else turn)
        return out

    x = -np.random.default_rng(0).random((8, 8)).astype(np.float32)
    expected = np.stack([x[:, :4].max(1), x[:, 4:].max(1)], axis=1)
    np.testing.assert_array_equal(kernel(x), expected)


def test_a_sum_over_turns_of_the_older_affine_range_is_found():
    def summed(range_of):
        def kernel(x):
            total = older.zeros((8, 4), dtype=x.dtype)
            for i in range_of(2):
                total[...] = older.add(total, older.load(x[:, i * 4 : i * 4 + 4]))
            out = older.ndarray((8, 4), dtype=x.dtype, buffer=older.shared_hbm)
            older.store(out, total)
            return out

        return [f.rule for f in nki.check(legacy.jit(kernel))(X).findings]

    assert summed(older.affine_range) == ["loop-carried-reduction"]
    assert summed(older.sequential_range) == []


def test_what_is_no_sum_of_turns_of_the_older_affine_range_is_found():
    def kernel(x):
        total = older.zeros((8, 4), dtype=x.dtype)
        for i in older.affine_range(2):
            total[...] = older.subtract(older.load(x[:, i * 4 : i * 4 + 4]), total)
        out = older.ndarray((8, 4), dtype=x.dtype, buffer=older.shared_hbm)
        older.store(out, total)
        return out

    found = nki.check(legacy.jit(kernel))(X).findings
    assert [f.rule for f in found] == ["loop-carried"]


@pytest.mark.parametrize(("fill", "rules"), [("zeros", []), ("ones", ONTO_VALUES)])
def test_products_are_added_to_zeros_of_the_older_style(fill, rules):
    def kernel(x):
        total = getattr(older, fill)((8, 8), dtype=np.float32, buffer=older.psum)
        for _ in older.affine_range(2):
            tile = older.load(x)
            total += older.matmul(tile, tile, transpose_x=True)
        out = older.ndarray((8, 8), dtype=x.dtype, buffer=older.shared_hbm)
        older.store(out, older.copy(total))
        return out

    found = nki.check(legacy.jit(kernel), target="trn2")(X).findings
    assert [f.rule for f in found] == rules


def test_benchmarks_predict_and_files_say_what_they_are(tmp_path):
    def kernel(x):
        out = older.ndarray(x.shape, dtype=x.dtype, buffer=older.shared_hbm)
        older.store(out, older.exp(older.load(x)))
        return out

    timed = legacy.benchmark(
        warmup=1,
        iters=2,
        save_neff_name="k.neff",
        save_trace_name="k.ntff",
        artifacts_dir=str(tmp_path),
        additional_compile_opt="--disable-dge",
    )(legacy.jit(kernel))
    np.testing.assert_allclose(timed(X), np.exp(X), rtol=1e-6)
    latency = timed.benchmark_result.nc_latency
    assert latency.predicted
    expected = timed.profile(X).total_seconds * 1e6
    assert latency.get_latency_percentile(99) == pytest.approx(expected)
    for name in ("k.neff", "k.ntff"):
        assert "emulator" in (tmp_path / name).read_text()
    bare = legacy.baremetal(legacy.jit(kernel))
    np.testing.assert_array_equal(bare(X), timed(X))


def test_a_partial_torch_harms_nothing(monkeypatch):
    @nki.jit
    def kernel(x, factor):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), factor))
        return out

    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    np.testing.assert_array_equal(kernel(X, 3.0), 3 * X)
