"""More work is never cheaper, and a wider chip never slower."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    DmaCopy,
    DotDimensions,
    NcMatmul,
    NcTranspose,
    Sort,
    TensorCopy,
    TensorReduce,
    TensorTensor,
    TensorTensorScan,
    TopK,
)
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_dma import dma_times
from neuronjax.timing.work import Core, Transfer
from tests.timing.instructions import make

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
CHIP = st.sampled_from(["trn1", "trn2", "trn3", "trn4"])
SIZE = st.one_of(st.integers(1, 40), st.integers(1, 5000))
SHAPE = st.lists(SIZE, min_size=3, max_size=3).map(tuple)
BATCHED = DotDimensions((0,), (0,), (2,), (1,))


def matmul(shape: tuple[int, ...], dtype: np.dtype = BF16) -> Instruction:
    batch, m, n = shape
    k = 300
    passes = 4 if dtype == FP32 else 1
    operands = [((batch, m, k), dtype), ((batch, k, n), dtype)]
    fields = dict(dimensions=BATCHED, passes=passes)
    return make(NcMatmul, operands, ((batch, m, n), FP32), engine="tensor", **fields)


def deep(shape: tuple[int, ...]) -> Instruction:
    m, k, n = shape
    operands = [((1, m, k), BF16), ((1, k, n), BF16)]
    fields = dict(dimensions=BATCHED)
    return make(NcMatmul, operands, ((1, m, n), FP32), engine="tensor", **fields)


def unary(cls: type, **fields):
    return lambda shape: make(cls, [(shape, FP32)], (shape, FP32), **fields)


def add(shape: tuple[int, ...]) -> Instruction:
    return make(TensorTensor, [(shape, BF16)] * 2, (shape, BF16), op="add")


def reduced(axes: tuple[int, ...]):
    def build(shape: tuple[int, ...]) -> Instruction:
        kept = tuple(s for d, s in enumerate(shape) if d not in axes)
        operands = [(shape, FP32), ((), FP32)]
        return make(TensorReduce, operands, (kept, FP32), op="add", axes=axes)

    return build


def top(shape: tuple[int, ...]) -> Instruction:
    return make(TopK, [(shape, FP32)], ((*shape[:-1], 1), FP32), k=1)


def turned(shape: tuple[int, ...]) -> Instruction:
    back = shape[::-1]
    fields = dict(kind="transpose", parameters=((2, 1, 0),))
    return make(DmaCopy, [(shape, BF16)], (back, BF16), **fields)


BUILDERS = {
    "matmul": matmul,
    "matmul_fp32": lambda shape: matmul(shape, FP32),
    "deep_matmul": deep,
    "add": add,
    "copy": unary(TensorCopy),
    "tanh": unary(Activation, engine="scalar", function="tanh"),
    "transpose": unary(NcTranspose, engine="tensor"),
    "scan": unary(TensorTensorScan, op="add", axis=1),
    "sort": unary(Sort, dimension=1, descending=(False,), total=(True,)),
    "top": top,
    "reduce_last": reduced((2,)),
    "reduce_all": reduced((0, 1, 2)),
    "pad": unary(DmaCopy, kind="pad"),
}


def bottleneck(instruction: Instruction, core: Core) -> float:
    """The longest work of the way whose longest is the shortest."""
    found = ways(instruction, core)
    return min(max((w.seconds for w in way), default=0.0) for way in found)


def on_tensor(instruction: Instruction, core: Core) -> float:
    """The work of TensorE, on the way that has least of it."""
    return min(
        sum(w.seconds for w in way if w.queue == "tensor")
        for way in ways(instruction, core)
    )


EXAMPLES = pytest.mark.parametrize(
    "examples", [12, pytest.param(500, marks=pytest.mark.slow)]
)


def holds(check, examples: int, *strategies: st.SearchStrategy) -> None:
    """Runs a property on so many examples."""
    settings(max_examples=examples, deadline=None)(given(*strategies)(check))()


@EXAMPLES
@pytest.mark.parametrize("name", BUILDERS)
def test_more_work_is_never_cheaper(name, examples):
    def check(chip, shape, axis, more):
        never_cheaper(name, CHIPS[chip], shape, axis, more)

    holds(check, examples, CHIP, SHAPE, st.integers(0, 2), st.integers(1, 300))


def never_cheaper(name, chip, shape, axis, more):
    build = BUILDERS[name]
    grown = tuple(s + more * (d == axis) for d, s in enumerate(shape))
    # TensorE's time decides which operand of a matmul moves. The result's copies out of
    # PSUM follow from that, and with more rows they may be fewer.
    seconds = on_tensor if "matmul" in name else bottleneck
    for lnc in chip.lnc_options:
        core = Core(chip, lnc)
        before, after = seconds(build(shape), core), seconds(build(grown), core)
        assert after >= before * (1 - 1e-12)


def test_a_matmul_whose_operands_change_places_may_need_fewer_copies():
    found = [bottleneck(deep((129, k, 385)), Core(CHIPS["trn1"], 1)) for k in (1, 65)]
    assert found[1] < found[0]
    never_cheaper("deep_matmul", CHIPS["trn1"], (129, 1, 385), 1, 64)


@EXAMPLES
@pytest.mark.parametrize("name", BUILDERS)
def test_a_wider_chip_is_never_slower(name, examples):
    def check(shape):
        never_slower(name, shape)

    holds(check, examples, SHAPE)


def never_slower(name, shape):
    instruction = BUILDERS[name](shape)
    narrow, wide = CHIPS["trn2"], CHIPS["trn3"]
    assert bottleneck(instruction, Core(narrow, 2)) <= bottleneck(
        instruction, Core(narrow, 1)
    ) * (1 + 1e-12)
    assert bottleneck(instruction, Core(CHIPS["trn4"], 1)) <= bottleneck(
        instruction, Core(wide, 1)
    ) * (1 + 1e-12)


def transfer(size: int, row: int, *, transposes: bool = False) -> Transfer:
    return Transfer(
        buffer=None,
        bytes=size,
        row_bytes=row,
        reason="input",
        is_read=True,
        transposes=transposes,
    )


def dma_seconds(moved: Transfer, core: Core) -> float:
    return dma_times(moved, core)[0]


@settings(max_examples=60, deadline=None)
@given(CHIP, st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 10**6))
def test_transfers(chip, size, row, more):
    chip = CHIPS[chip]
    core = Core(chip, chip.lnc_default)
    seconds = dma_seconds(transfer(size, row), core)
    assert 0 < seconds <= dma_seconds(transfer(size + more, row), core) * (1 + 1e-9)
    assert dma_seconds(transfer(size, row + more), core) <= seconds * (1 + 1e-9)
    assert dma_seconds(transfer(size, row, transposes=True), core) >= seconds
    for field in ("hbm_bytes_per_second", "dma_engine_bytes_per_second"):
        double = dataclasses.replace(chip, **{field: 2 * getattr(chip, field)})
        assert dma_seconds(transfer(size, row), Core(double, core.lnc)) <= seconds


def test_a_long_transfer_reaches_the_published_rate():
    for name, rate in (("trn1", 272e9), ("trn2", 2.9e12 / 8), ("trn3", 528e9)):
        core = Core(CHIPS[name], 1)
        long = transfer(1 << 30, 1 << 16)
        reached = (1 << 30) / dma_seconds(long, core)
        assert reached == pytest.approx(rate, rel=0.01)
        assert dma_times(long, core)[1] == pytest.approx(1.3e-6)


def test_only_newer_dma_engines_transpose():
    turned = transfer(1 << 20, 4096, transposes=True)
    straight = transfer(1 << 20, 4096)
    fast = Core(CHIPS["trn2"], 1)
    assert dma_seconds(turned, fast) < 1.2 * dma_seconds(straight, fast)
    slow = Core(CHIPS["trn1"], 1)
    assert dma_seconds(turned, slow) > 10 * dma_seconds(straight, slow)
