"""Published times of single instructions and transfers, against the time model.

`python -m benchmarks.validation.micro_rows` prints predicted against published, with
the error of each row and the median. A row that a constant was fitted to, or that is a
constant, is shown and not counted. Times were read from pictures of profiles, so that
two digits are what most of them are good for. Sources: DM, PG, KO, RMQ as in
`timing/assumptions.py` (KO, RMQ, MAM: the tutorials of the blocked FP32 matmul, of
RMSNorm with FP8 quantization, Trn2, and of the fused Mamba kernel, Trn1).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    NcMatmul,
    TensorCopy,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.timing import assumptions
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_rules import PLAIN, Reading
from neuronjax.timing.engines.dma import DmaTask, engines, moving_seconds
from neuronjax.timing.engines.lanes import lane_work
from neuronjax.timing.engines.task import LaneStream, LaneTask
from neuronjax.timing.engines.tensor import (
    ArrayTask,
    array_latency_seconds,
    load_seconds,
    multiply_seconds,
    seen_load_seconds,
)
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.work import Core, Work
from tests.timing.instructions import MATRICES, make

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
FP8 = np.dtype(ml_dtypes.float8_e4m3)
NS, US, MS = 1e-9, 1e-6, 1e-3
TRN1, TRN2, TRN3 = (Core(CHIPS[name], 1) for name in ("trn1", "trn2", "trn3"))


_IN_PSUM = Reading(in_psum=frozenset({0}))


def on(
    core: Core, queue: str, instruction: Instruction, reading: Reading = PLAIN
) -> Work:
    """The work of the way that begins on an engine."""
    found = ways(instruction, core, reading)
    return next(way[0] for way in found if way and way[0].queue == queue)


def first_byte_seconds(core: Core, *, is_read: bool) -> float:
    """From a trigger to the first byte's movement: the descriptor, then HBM."""
    issue = core.chip.hwdge_issue_seconds
    if issue is None:
        issue = core.chip.dma_start_seconds - assumptions.DMA_SEMAPHORE.value
    return issue + (assumptions.HBM_LATENCY.value if is_read else 0.0)


def duration(work: Work) -> float:
    """From an instruction's start to its result."""
    return work.seconds + work.latency_seconds


def _activation(n: int) -> Instruction:
    pair = ((128, n), BF16)
    return make(Activation, [pair], pair, engine="scalar", function="exponential")


def _identity() -> Instruction:
    pair = ((128, 1), FP32)
    return make(TensorTensor, [pair], pair, op="abs")


def _copy(n: int) -> Instruction:
    pair = ((128, n), FP32)
    return make(TensorCopy, [pair], pair)


def _tensor_tensor(n: int) -> Instruction:
    pair = ((128, n), FP32)
    return make(TensorTensor, [pair, pair], pair, op="add")


def _scalar_tensor_tensor() -> Work:
    """(data op scalar) op tensor, one tensor in PSUM."""
    summed, other = (LaneStream(memory, FP32, 512) for memory in ("psum", "sbuf"))
    task = LaneTask(
        name="scalar_tensor_tensor",
        queue="vector",
        read=(summed, other),
        written=(other,),
        ops=("multiply", "multiply"),
    )
    return lane_work(TRN2, task)


def _largest() -> Instruction:
    """|x| of 16-bit elements, and the maximum of each row: tensor_scalar_reduce."""
    pair = ((128, 16384), BF16)
    return make(ReducingPass, [pair], pair, fold="maximum", rows=128, is_affine=True)


def _to_fp8() -> Instruction:
    operands = [((128, 16384), BF16), ((128, 1), FP32)]
    return make(TensorScalar, operands, ((128, 16384), FP8), op="multiply")


def _mamba_on_vector() -> float:
    """16 states, 2 tiles of 128 channels: 4 products and sums and a scan of 512."""
    pair = ((128, 512), FP32)
    scan = make(TensorTensorScan, [pair, ((), FP32)], pair, op="add", axis=1)
    works = [on(TRN1, "vector", i) for i in (*[_tensor_tensor(512)] * 4, scan)]
    return 16 * 2 * sum(work.seconds for work in works)


def _moving(core: Core, size: int, piece: int = 1 << 20) -> float:
    """One DMA engine, whose transfer no other follows."""
    rate = core.chip.dma_engine_bytes_per_second
    return moving_seconds(core, DmaTask(bytes=size, piece=piece), rate)


def _matmul(moved: int, column_cycles: float = 1.0, packed: int = 1) -> ArrayTask:
    return ArrayTask(held=128, moved=moved, column_cycles=column_cycles, packed=packed)


def _interval(core: Core, task: ArrayTask) -> float:
    """From a matmul to the next, whose stationary operand is another."""
    return multiply_seconds(core, task) + seen_load_seconds(core, task)


def _big_matmul() -> Instruction:
    operands = [((4096, 8192), FP32), ((8192, 8192), FP32)]
    result = ((4096, 8192), FP32)
    return make(
        NcMatmul, operands, result, engine="tensor", dimensions=MATRICES, passes=4
    )


@dataclass(frozen=True)
class MicroRow:
    """One published time.

    Attributes:
        name: what was measured.
        chip: on which.
        published: seconds.
        source: page or picture.
        predicted: gives seconds.
        is_input: whether the model has it from this very row.
    """

    name: str
    chip: str
    published: float
    source: str
    predicted: Callable[[], float]
    is_input: bool = False

    @property
    def error(self) -> float:
        """Relative: 0.1 for 10 % too long."""
        return self.predicted() / self.published - 1


ROWS: tuple[MicroRow, ...] = (
    # ScalarE and VectorE.
    MicroRow(
        "ACT exp, N = 4096, BF16",
        "trn2",
        3.71 * US,
        "DM",
        lambda: duration(on(TRN2, "scalar", _activation(4096))),
    ),
    MicroRow(
        "ACT exp, N = 128, BF16",
        "trn2",
        0.40 * US,
        "DM",
        lambda: duration(on(TRN2, "scalar", _activation(128))),
    ),
    MicroRow(
        "ACT, N = 16384",
        "trn2",
        15.2 * US,
        "RMQ",
        lambda: duration(on(TRN2, "scalar", _activation(16384))),
    ),
    MicroRow(
        "Mamba C256, active VectorE of the kernel with scans",
        "trn1",
        0.9871 * 150.93 * US,
        "MAM",
        _mamba_on_vector,
    ),
    MicroRow(
        "ACT_TABLE_LOAD of exp",
        "trn2",
        1.28 * US,
        "DM",
        lambda: assumptions.TABLE_LOAD.value,
        is_input=True,
    ),
    MicroRow(
        "ACT identity, [128, 1], FP32",
        "trn1",
        159 * NS,
        "PG",
        lambda: duration(on(TRN1, "scalar", _identity())),
    ),
    MicroRow(
        "ACT identity, [128, 1], interval when dependent",
        "trn1",
        189 * NS,
        "PG",
        lambda: duration(on(TRN1, "scalar", _identity())),
    ),
    MicroRow(
        "DVE tensor_tensor, 64 lanes x 8192, FP32",
        "trn1",
        14_968 * NS,
        "PG",
        lambda: duration(on(TRN1, "vector", _tensor_tensor(8192))),
    ),
    MicroRow(
        "DVE abs-max, N = 16384, BF16",
        "trn2",
        17.25 * US,
        "RMQ",
        lambda: duration(on(TRN2, "vector", _largest())),
    ),
    MicroRow(
        "DVE tensor_scalar, N = 16384, BF16 to FP8",
        "trn2",
        8.8 * US,
        "RMQ",
        lambda: duration(on(TRN2, "vector", _to_fp8())),
        is_input=True,  # that the narrow write halves the mode is from here
    ),
    MicroRow(
        "DVE scalar_tensor_tensor, N = 512, PSUM: interval",
        "trn2",
        640 * NS,
        "RMQ",
        lambda: _scalar_tensor_tensor().seconds,
        is_input=True,
    ),
    MicroRow(
        "DVE scalar_tensor_tensor, N = 512, PSUM: duration",
        "trn2",
        720 * NS,
        "RMQ",
        lambda: duration(_scalar_tensor_tensor()),
    ),
    MicroRow(
        "DVE PSUM to SBUF, [128, 512], FP32",
        "trn2",
        690 * NS,
        "KO",
        lambda: duration(on(TRN2, "vector", _copy(512), _IN_PSUM)),
    ),
    # TensorE.
    MicroRow(
        "PE matmul, 96 moving columns, BF16: duration",
        "trn1",
        219 * NS,
        "PG",
        lambda: multiply_seconds(TRN1, _matmul(96)) + array_latency_seconds(TRN1),
    ),
    MicroRow(
        "PE matmul, 1 moving column, BF16: duration",
        "trn1",
        188 * NS,
        "PG",
        lambda: multiply_seconds(TRN1, _matmul(1)) + array_latency_seconds(TRN1),
        is_input=True,
    ),
    MicroRow(
        "PE LDWEIGHTS, 1 element",
        "trn1",
        67 * NS,
        "PG",
        lambda: load_seconds(TRN1, ArrayTask(held=1, moved=1, rows=1)),
    ),
    MicroRow(
        "PE FP32_LO_HI matmul, N = 512: interval",
        "trn2",
        430 * NS,
        "KO",
        lambda: multiply_seconds(TRN2, _matmul(512, 2)),
    ),
    MicroRow(
        "PE FP32_LO_HI matmul, N = 512: duration",
        "trn2",
        595 * NS,
        "KO",
        lambda: multiply_seconds(TRN2, _matmul(512, 2)) + array_latency_seconds(TRN2),
    ),
    MicroRow(
        "PE LDWEIGHTS, FP32",
        "trn2",
        190 * NS,
        "KO",
        lambda: load_seconds(TRN2, _matmul(512, 4)),
    ),
    MicroRow(
        "PE active, FP32 [4096, 8192] x [8192, 8192]",
        "trn2",
        28.16 * MS,
        "KO",
        lambda: on(TRN2, "tensor", _big_matmul()).seconds,
    ),
    MicroRow(
        "matmul of 512 columns in MXFP8, in a stream of them",
        "trn3",
        253.9 * NS,
        "MXB",
        lambda: _interval(TRN3, _matmul(512, 1, packed=4)),
        is_input=True,
    ),
    # DMA.
    MicroRow(
        "DMA of 32 KiB by one engine",
        "trn2",
        1_416 * NS,
        "DM",
        lambda: _moving(TRN2, 32768, 8192),
    ),
    MicroRow(
        "DMA of 2 KiB by one engine",
        "trn2",
        97 * NS,
        "DM",
        lambda: _moving(TRN2, 2048),
    ),
    MicroRow(
        "DMA of 32 KiB by 16 engines, first to last byte",
        "trn2",
        468 * NS,
        "DM",
        lambda: _moving(TRN2, 32768 // engines(TRN2)),
    ),
    MicroRow(
        "DMA of 32 KiB by one engine",
        "trn1",
        1_810 * NS,
        "PG",
        lambda: _moving(TRN1, 32768),
    ),
    MicroRow(
        "DMA of 4 bytes by one engine",
        "trn1",
        7 * NS,
        "PG",
        lambda: _moving(TRN1, 4),
        is_input=True,
    ),
    MicroRow(
        "DMA trigger to first byte, load [128, 128]",
        "trn2",
        739 * NS,
        "DM",
        lambda: first_byte_seconds(TRN2, is_read=True),
        is_input=True,
    ),
    MicroRow(
        "DMA trigger to start, load [4, 4096]",
        "trn2",
        1.0 * US,
        "DM",
        lambda: first_byte_seconds(TRN2, is_read=True),
    ),
    MicroRow(
        "DMA trigger to start, store",
        "trn2",
        0.6 * US,
        "DM",
        lambda: first_byte_seconds(TRN2, is_read=False),
    ),
    MicroRow(
        "DMA end to dependent ACT",
        "trn2",
        0.3 * US,
        "DM",
        lambda: assumptions.DMA_SEMAPHORE.value,
        is_input=True,
    ),
)


def median_error(rows: tuple[MicroRow, ...] = ROWS) -> float:
    """Of the rows that the model does not contain, sign left out."""
    return statistics.median(abs(row.error) for row in rows if not row.is_input)


def table(rows: tuple[MicroRow, ...] = ROWS) -> str:
    """Predicted against published, a line each."""
    lines = [f"{'':52}{'chip':6}{'published':>11}{'predicted':>11}{'error':>8}"]
    for row in rows:
        note = "  (input)" if row.is_input else ""
        lines.append(
            f"{row.name:52}{row.chip:6}{row.published / NS:9.0f}ns"
            f"{row.predicted() / NS:9.0f}ns{row.error:+8.0%}{note}"
        )
    lines.append(f"median error of {sum(not r.is_input for r in rows)} rows: ")
    lines[-1] += f"{median_error(rows):.1%}"
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
