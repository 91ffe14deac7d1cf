"""Published times of single instructions and transfers, against the time model.

`published_instructions.csv` has the times. `python -m benchmarks.validation.micro_rows`
prints predicted and published times, the error of each row and the median. Rows that
are constants of the model, or to which a constant was fitted, are shown but not
counted. Times were read from pictures of profiles, so most are good to two digits.
Sources: DM, PG, KO, RMQ as in `timing/assumptions.py` (KO, RMQ, MAM: the tutorials of
the blocked FP32 matmul, of RMSNorm with FP8 quantization, Trn2, and of the fused Mamba
kernel, Trn1).
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
NS = 1e-9
_IN_PSUM = Reading(in_psum=frozenset({0}))


def on(
    core: Core, queue: str, instruction: Instruction, reading: Reading = PLAIN
) -> Work:
    """Return the first work of the way to execute an instruction that starts on a
    queue."""
    found = ways(instruction, core, reading)
    return next(way[0] for way in found if way and way[0].queue == queue)


def first_byte_seconds(core: Core, *, is_read: bool) -> float:
    """Return the time from a trigger to the first byte: the descriptor, then HBM."""
    issue = core.chip.hwdge_issue_seconds
    if issue is None:
        issue = core.chip.dma_start_seconds - assumptions.DMA_SEMAPHORE.value
    return issue + (assumptions.HBM_LATENCY.value if is_read else 0.0)


def duration(work: Work) -> float:
    """Return the time from an instruction's start to its result."""
    return work.seconds + work.latency_seconds


def _lasts(
    core: Core, queue: str, instruction: Instruction, reading: Reading = PLAIN
) -> float:
    return duration(on(core, queue, instruction, reading))


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


def _scalar_tensor_tensor(core: Core) -> Work:
    """Return the work of (data op scalar) op tensor, with one tensor in PSUM."""
    summed, other = (LaneStream(memory, FP32, 512) for memory in ("psum", "sbuf"))
    task = LaneTask(
        name="scalar_tensor_tensor",
        queue="vector",
        read=(summed, other),
        written=(other,),
        ops=("multiply", "multiply"),
    )
    return lane_work(core, task)


def _largest() -> Instruction:
    """Return |x| of 16-bit elements and each row's maximum: tensor_scalar_reduce."""
    pair = ((128, 16384), BF16)
    return make(ReducingPass, [pair], pair, fold="maximum", rows=128, is_affine=True)


def _to_fp8() -> Instruction:
    """Return the instruction of a row whose narrow write halves VectorE's mode."""
    operands = [((128, 16384), BF16), ((128, 1), FP32)]
    return make(TensorScalar, operands, ((128, 16384), FP8), op="multiply")


def _mamba_on_vector(core: Core) -> float:
    """Return seconds for 16 states and 2 tiles of 128 channels: 4 products and sums and
    a scan of 512 for each."""
    pair = ((128, 512), FP32)
    scan = make(TensorTensorScan, [pair, ((), FP32)], pair, op="add", axis=1)
    works = [on(core, "vector", i) for i in (*[_tensor_tensor(512)] * 4, scan)]
    return 16 * 2 * sum(work.seconds for work in works)


def _moving(core: Core, size: int, piece: int = 1 << 20) -> float:
    """Return the time of a transfer by one DMA engine, without another after it."""
    rate = core.chip.dma_engine_bytes_per_second
    return moving_seconds(core, DmaTask(bytes=size, piece=piece), rate)


def _matmul(moved: int, column_cycles: float = 1.0, packed: int = 1) -> ArrayTask:
    return ArrayTask(held=128, moved=moved, column_cycles=column_cycles, packed=packed)


def _interval(core: Core, task: ArrayTask) -> float:
    """Return the time between two matmuls with different stationary operands."""
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
        chip: the chip.
        published: published seconds.
        source: the page or picture.
        predicted: predicted seconds.
        is_input: whether the model was given this time.
    """

    name: str
    chip: str
    published: float
    source: str
    predicted: float
    is_input: bool

    @property
    def error(self) -> float:
        """The relative error: 0.1 if the prediction is 10 % too long."""
        return self.predicted / self.published - 1


#: Names in the file -> predictions, as functions of the core and the row's numbers.
MODELS: Mapping[str, Callable[..., float]] = {
    "activation": lambda core, n: _lasts(core, "scalar", _activation(n)),
    "identity": lambda core: _lasts(core, "scalar", _identity()),
    "table_load": lambda core: assumptions.TABLE_LOAD.value,
    "add": lambda core, n: _lasts(core, "vector", _tensor_tensor(n)),
    "largest": lambda core: _lasts(core, "vector", _largest()),
    "to_fp8": lambda core: _lasts(core, "vector", _to_fp8()),
    "from_psum": lambda core, n: _lasts(core, "vector", _copy(n), _IN_PSUM),
    "fused": lambda core: duration(_scalar_tensor_tensor(core)),
    "fused_interval": lambda core: _scalar_tensor_tensor(core).seconds,
    "mamba": _mamba_on_vector,
    "matmul": lambda core, *a: (
        multiply_seconds(core, _matmul(*a)) + array_latency_seconds(core)
    ),
    "matmul_interval": lambda core, *a: multiply_seconds(core, _matmul(*a)),
    "mx_interval": lambda core, n: _interval(core, _matmul(n, packed=4)),
    "load": lambda core, *a: load_seconds(core, _matmul(*a)),
    "load_element": lambda core: load_seconds(core, ArrayTask(held=1, moved=1, rows=1)),
    "product": lambda core: on(core, "tensor", _big_matmul()).seconds,
    "dma": _moving,
    "dma_by_all": lambda core, size: _moving(core, size // engines(core)),
    "first_byte_read": lambda core: first_byte_seconds(core, is_read=True),
    "first_byte_written": lambda core: first_byte_seconds(core, is_read=False),
    "semaphore": lambda core: assumptions.DMA_SEMAPHORE.value,
}


def _row(given: Mapping[str, str]) -> MicroRow:
    model, *numbers = given["model"].split()
    return MicroRow(
        name=given["name"],
        chip=given["chip"],
        published=float(given["ns"]) * NS,
        source=given["source"],
        predicted=MODELS[model](Core(CHIPS[given["chip"]], 1), *map(int, numbers)),
        is_input=bool(given["input"]),
    )


_GIVEN = Path(__file__).with_name("published_instructions.csv").read_text()
ROWS: tuple[MicroRow, ...] = tuple(map(_row, csv.DictReader(_GIVEN.splitlines())))


def median_error(rows: tuple[MicroRow, ...] = ROWS) -> float:
    """Return the median magnitude of errors, without inputs of the model."""
    return statistics.median(abs(row.error) for row in rows if not row.is_input)


def table(rows: tuple[MicroRow, ...] = ROWS) -> str:
    """Return a line with predicted and published times for each row, as text."""
    lines = [f"{'':52}{'chip':6}{'published':>11}{'predicted':>11}{'error':>8}"]
    for row in rows:
        note = "  (input)" if row.is_input else ""
        lines.append(
            f"{row.name:52}{row.chip:6}{row.published / NS:9.0f}ns"
            f"{row.predicted / NS:9.0f}ns{row.error:+8.0%}{note}"
        )
    lines.append(f"median error of {sum(not r.is_input for r in rows)} rows: ")
    lines[-1] += f"{median_error(rows):.1%}"
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
