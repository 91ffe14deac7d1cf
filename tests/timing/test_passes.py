"""Costs of passes that fold their rows, of two tensors, of strides, and of scans."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction_set import TensorReduce, TensorTensor, TensorTensorScan
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_rules import PLAIN, Reading
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.work import Core
from tests.timing.instructions import make

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
V2, V3, V4 = (Core(CHIPS[name], 1) for name in ("trn1", "trn2", "trn3"))
N = 4096


def cycles(core, queue, instruction, reading=PLAIN):
    """Per element of a lane, of the quickest way that is this engine's alone."""
    found = [
        way
        for way in ways(instruction, core, reading)
        if {work.queue for work in way} == {queue}
    ]
    if not found:
        return None
    clock = getattr(core.spec, queue).clock_hz
    return min(sum(work.seconds for work in way) for way in found) * clock / N


def about(value):
    return pytest.approx(value, rel=0.05)


def reducing(fold, *, is_affine=True, rows=128, columns=N):
    pair = ((rows, columns), BF16)
    return make(ReducingPass, [pair], pair, fold=fold, rows=rows, is_affine=is_affine)


@pytest.mark.parametrize(
    ("core", "fold", "affine", "scalar"),
    [
        (V2, "add", True, 1),
        (V3, "add", True, 1),
        (V3, "maximum", True, None),  # a register of ScalarE only adds up [ISA]
        (V4, "maximum", True, 1),  # activate2
        (V4, "maximum", False, None),
        (V3, "add", False, None),
    ],
)
def test_who_folds_what_it_computes(core, fold, affine, scalar):
    i = reducing(fold, is_affine=affine)
    assert cycles(core, "vector", i) == about(1)
    assert cycles(core, "scalar", i) == (None if scalar is None else about(scalar))


def test_every_row_of_a_lane_is_an_instruction_of_its_own():
    few, many = (
        ways(reducing("add", rows=rows, columns=2**20 // rows), V3)
        for rows in (128, 2**17)
    )
    fused = [
        min(w.seconds for (w, *rest) in found if not rest) for found in (few, many)
    ]
    assert fused[1] > 5 * fused[0]
    # Rows of 8 elements: writing them and folding them all at once is quicker.
    assert len(many[0]) == 2


def test_a_quotient_by_a_number_per_row_is_a_scale_of_either_engine():
    pair = ((128, N), FP32)
    i = make(TensorTensor, [pair, ((128, 1), FP32)], pair, op="divide")
    queues = {way[-1].queue for way in ways(i, V3, Reading(frozenset({1})))}
    assert queues == {"scalar", "vector"}


@pytest.mark.parametrize(
    ("shape", "axes", "dtype", "expected"),
    [
        ((128, N), (1,), FP32, 1),
        ((128, 16, N // 16), (1,), FP32, 2),  # 1 KiB from element to element [A2]
        ((128, N // 2, 2), (1,), FP32, 1),  # 8 bytes
        ((128, N // 4, 4), (1,), FP32, 2),  # 16
        ((128, N // 4, 4), (1,), BF16, 1),
    ],
)
def test_folds_at_a_stride_take_twice_as_long(shape, axes, dtype, expected):
    kept = tuple(size for n, size in enumerate(shape) if n not in axes)
    operands = [(shape, dtype), ((), FP32)]
    i = make(TensorReduce, operands, (kept, FP32), op="add", axes=axes)
    assert cycles(V2, "vector", i) == about(expected)


def test_a_sum_of_scalar_is_an_instruction_per_result():
    operands = [((128, 16, N // 16), FP32), ((), FP32)]
    i = make(TensorReduce, operands, ((128, N // 16), FP32), op="add", axes=(1,))
    found = cycles(V2, "scalar", i)
    assert found is not None
    assert found > 5


def test_a_scan_is_an_instruction_per_row_of_a_lane():
    pair = ((128, 8, N // 8), FP32)
    i = make(TensorTensorScan, [pair, ((), FP32)], pair, op="add", axis=2)
    (way,) = ways(i, V2)
    assert way[0].tiles == 8
    assert cycles(V2, "vector", i) == pytest.approx(2, rel=0.1)
