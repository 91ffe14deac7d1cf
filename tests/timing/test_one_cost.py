"""A tile costs the same in a program and in a kernel.

The instruction of a program on a tensor of 128 rows is one tile, as in a kernel.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    Memset,
    NcMatmul,
    NcTranspose,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_rules import PLAIN, Reading
from neuronjax.timing.kernel_cost import Prices
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.work import Core, Work
from tests.timing.instructions import MATRICES, make

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
CORES = {name: Core(CHIPS[name], 1) for name in ("trn1", "trn2", "trn3")}
N = 512


def tile(columns: int = N, dtype: np.dtype = FP32, memory: str = "sbuf") -> Access:
    storage = Storage(0, memory, (128, columns), dtype.name)
    return Access(storage, dtype.name, 0, ((columns, 128), (1, columns)))


def kernel(name: str, engine: str, out: Access, *read: Access, **attributes):
    return KernelInstruction(
        name=name,
        engine=engine,
        outputs=(out,),
        inputs=read,
        parameters=(0,) if name == "memset" else (),
        attributes=attributes,
    )


def of_program(
    core: Core, queue: str, i: Instruction, reading: Reading = PLAIN
) -> Work:
    found = ways(i, core, reading)
    return next(way[0] for way in found if way and way[0].queue == queue)


def pairs(dtype: np.dtype):
    """Name, engine, instruction of a program and how it reads, the kernel's."""
    one, column = ((128, N), dtype), ((128,), dtype)
    full, narrow = tile(dtype=dtype), tile(1, dtype)
    scalars = Reading(frozenset({1}))
    psum = Reading(in_psum=frozenset({0}))
    copied = make(TensorCopy, [one], one)
    added = make(TensorTensor, [one, one], one, op="add")
    greatest = make(TensorTensor, [one, one], one, op="maximum")
    scaled = make(TensorScalar, [one, column], one, op="multiply")
    summed = make(TensorReduce, [one, ((), dtype)], column, op="add", axes=(1,))
    folded = make(ReducingPass, [one], one, fold="add", rows=128, is_affine=True)
    ran = make(TensorTensorScan, [one, ((), dtype)], one, op="add", axis=1)
    exp = make(Activation, [one], one, engine="scalar", function="exponential")
    zero = make(Memset, [], one, engine="gpsimd", value=np.zeros((), dtype))
    for engine in ("vector", "scalar", "gpsimd"):
        yield engine, copied, PLAIN, kernel("tensor_copy", engine, full, full)
        yield (
            engine,
            scaled,
            scalars,
            kernel("tensor_scalar", engine, full, full, narrow, op0="multiply"),
        )
    waiting = tile(dtype=dtype, memory="psum")
    yield "vector", copied, psum, kernel("tensor_copy", "vector", full, waiting)
    for engine in ("vector", "gpsimd"):
        yield (
            engine,
            added,
            PLAIN,
            kernel("tensor_tensor", engine, full, full, full, op="add"),
        )
        yield engine, zero, PLAIN, kernel("memset", engine, full)
    yield (
        "vector",
        greatest,
        PLAIN,
        kernel("tensor_tensor", "vector", full, full, full, op="maximum"),
    )
    yield (
        "vector",
        added,
        psum,
        kernel("tensor_tensor", "vector", full, waiting, full, op="add"),
    )
    yield (
        "vector",
        summed,
        PLAIN,
        kernel("tensor_reduce", "vector", narrow, full, op="add"),
    )
    yield (
        "vector",
        folded,
        PLAIN,
        kernel("tensor_scalar_reduce", "vector", full, full, narrow, op0="add"),
    )
    yield "vector", ran, PLAIN, kernel("tensor_tensor_scan", "vector", full, full, full)
    yield "scalar", exp, PLAIN, kernel("activation", "scalar", full, full, op="exp")


@pytest.mark.parametrize("chip", CORES)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_lanes(chip, dtype):
    core = CORES[chip]
    for engine, program, reading, tiled in pairs(dtype):
        mine, other = (
            of_program(core, engine, program, reading),
            Prices(core).price(tiled),
        )
        assert mine.seconds == pytest.approx(other.work.seconds), tiled.name
        assert mine.latency_seconds == pytest.approx(other.work.latency_seconds), (
            tiled.name
        )


@pytest.mark.parametrize("chip", CORES)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_the_array(chip, dtype):
    """A program has one matmul by itself: the load comes before it."""
    core = CORES[chip]
    i = make(
        NcMatmul,
        [((128, 128), dtype), ((128, N), dtype)],
        ((128, N), FP32),
        engine="tensor",
        dimensions=MATRICES,
        passes=4 if dtype == FP32 else 1,
    )
    summed = tile(memory="psum")
    tiled = kernel("nc_matmul", "tensor", summed, tile(128, dtype), tile(N, dtype))
    turned = kernel(
        "nc_transpose", "tensor", tile(128, dtype, "psum"), tile(128, dtype)
    )
    square = make(NcTranspose, [((128, 128), dtype)], ((128, 128), dtype))
    for program, other in (
        (i, Prices(core).price(tiled)),
        (square, Prices(core).price(turned)),
    ):
        mine = of_program(core, "tensor", program)
        assert mine.seconds == pytest.approx(other.work.seconds + other.load_seconds)
        assert mine.latency_seconds == pytest.approx(other.work.latency_seconds)
