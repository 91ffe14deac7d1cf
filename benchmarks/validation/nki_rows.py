"""Published times of NKI kernels, compared with the schedule of the traced kernel.

The kernels are in `tests.nki.published_kernels`; a row names one, its arguments and its
time. No constant of the model was fitted to a row. The same times are rows of `rows`,
where JAX programs replace the kernels.
"""

from __future__ import annotations

import functools
import statistics
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.hardware import resolve_target
from neuronjax.timing.kernel_schedule import schedule_kernel
from neuronjax.timing.kernel_timeline import kernel_timeline
from neuronjax.timing.work import QUEUES, Queue
from tests.nki import published_kernels

MS, US = 1e-3, 1e-6
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One published time of a kernel.

    Attributes:
        name: name of the row.
        chip: the chip; one physical core is used.
        seconds: published time.
        source: the source page; keys as in `rows`.
        kernel: its name in `tests.nki.published_kernels`.
        shapes: shapes of its arguments.
        dtype: data type of all arguments.
        options: its static arguments.
    """

    name: str
    chip: str
    seconds: float
    source: str
    kernel: str
    shapes: tuple[Shape, ...]
    dtype: Any
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


_MATRICES = ((8192, 4096), (8192, 8192))


def _matmul(
    chip: str, source: str, stage: str, kernel: str, ms: float, **options: Any
) -> KernelRow:
    dtype = jnp.bfloat16 if chip == "trn1" else jnp.float32
    return KernelRow(
        name=f"{'BF16' if chip == 'trn1' else 'FP32'} matmul, {stage}",
        chip=chip,
        seconds=ms * MS,
        source=source,
        kernel=kernel,
        shapes=_MATRICES,
        dtype=dtype,
        options=options,
    )


def _mamba(channels: int, kernel: str, us: float) -> KernelRow:
    tokens, states = 512, 16
    wide, narrow = (channels, tokens), (states, tokens)
    return KernelRow(
        name=f"Mamba S512 C{channels}, {kernel[-2:]}",
        chip="trn1",
        seconds=us * US,
        source="MAM",
        kernel=kernel,
        shapes=(wide, wide, (channels, states), narrow, narrow),
        dtype=jnp.float32,
    )


def _ladder(stage: str, kernel: str, mfu: float, **options: Any) -> KernelRow:
    """Return a row of a 2048^3 matmul, from its share of trn2's 78.6 BF16 TFLOPS."""
    return KernelRow(
        name=f"BF16 matmul of 2048, {stage}",
        chip="trn2",
        seconds=2 * 2048**3 / 78.6e12 / mfu,
        source="NAT",
        kernel=kernel,
        shapes=((2048, 2048), (2048, 2048)),
        dtype=jnp.bfloat16,
        options=options,
    )


LADDER = (
    _ladder("single buffers", "ladder_single_buffers", 0.16),
    _ladder("resident", "ladder_resident", 0.595),
    _ladder("resident, two accumulators", "ladder_resident", 0.83, accumulators=2),
    _ladder("loads sunk", "ladder_sunk_loads", 0.895),
)
"""Always 1,024 matmuls: what overlaps decides (NAT: logs of awslabs/nki-autotune)."""

ROWS: tuple[KernelRow, ...] = (
    _matmul("trn1", "MM", "tiled", "matmul_tiled", 51.80),
    _matmul("trn1", "MM", "loads hoisted", "matmul_hoisted", 42.96),
    _matmul("trn1", "MM", "free dimensions blocked", "matmul_block_free", 22.07),
    _matmul("trn1", "MM", "all blocked", "matmul_block_all", 6.97),
    _matmul("trn2", "KO", "tiled", "matmul_tiled", 39.89),
    _matmul("trn2", "KO", "loads hoisted", "matmul_hoisted", 28.20),
    # The published blocks of 16 tiles of M would take 224 KiB of a partition.
    _matmul("trn2", "KO", "all blocked (M by 8)", "matmul_block_all", 28.30, in_m=8),
    *LADDER,
    _mamba(256, "mamba_v1", 172.93),
    _mamba(4096, "mamba_v1", 2340),
    _mamba(4096, "mamba_v2", 1610),
)

#: Published kernels without a row, and the reason.
UNEXPRESSED: Mapping[str, str] = MappingProxyType(
    {
        "KO FP32 matmul, free dimensions blocked, 28.41 ms": "as written it holds 322"
        " KiB in each partition of SBUF, which has 208; the vendor's compiler must have"
        " moved loads",
    }
)
#: Explanations of the larger errors.
NOTES: tuple[str, ...] = (
    "BF16 matmul on trn1, all but the last: published at some 100 GB/s of DMA. Rows of"
    " 1 KiB, 16 KiB apart, lie in two of HBM's 16 channels, as far as 512 bytes in a"
    " row are one's; of the left matrix's of 256 B, which the first stage loads for"
    " every product, the model takes half of that.",
    "Single buffers: 1.33 us for each of 1,024 turns, little more than one ring takes"
    " to issue their two loads (1.2). In the model a load waits until the matmul before"
    " has read its buffer, and is then issued, moves and is signalled: 2.8 us. Either"
    " such tiles get a second buffer, or descriptors are made before the wait.",
    "Mamba v2: the product of delta and u does not depend on the state; a compiler that"
    " moves it out of the loop leaves VectorE 8 of 10 cycles per element. The model"
    " takes the kernel as it is written.",
)


@dataclass(frozen=True)
class KernelPrediction:
    """A row and the time that the model predicts for it.

    Attributes:
        row: the published measurement.
        seconds: predicted time.
        busy_seconds: predicted busy time of each queue.
        instructions: number of instructions of the traced kernel.
        notes: notes of its timeline: assumptions and the critical path.
    """

    row: KernelRow
    seconds: float
    busy_seconds: dict[Queue, float]
    instructions: int
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """The relative error: predicted / published - 1."""
        return self.seconds / self.row.seconds - 1

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        return {
            "name": self.row.name,
            "chip": self.row.chip,
            "source": self.row.source,
            "published_seconds": self.row.seconds,
            "predicted_seconds": self.seconds,
            "error": self.error,
            "busy_seconds": self.busy_seconds,
            "instructions": self.instructions,
            "notes": list(self.notes),
        }


@functools.cache
def predict(row: KernelRow) -> KernelPrediction:
    """Return the model's prediction for a row's kernel; deterministic."""
    kernel = getattr(published_kernels, row.kernel).with_target(row.chip)
    arguments = [jax.ShapeDtypeStruct(shape, row.dtype) for shape in row.shapes]
    schedule = schedule_kernel(
        kernel.trace(*arguments, **row.options), resolve_target(row.chip)
    )
    timeline = kernel_timeline(schedule)
    busy: dict[Queue, float] = {q: timeline.busy_seconds(q) for q in QUEUES}
    return KernelPrediction(
        row,
        timeline.total_seconds,
        {q: s for q, s in busy.items() if s},
        len(schedule.priced),
        timeline.notes,
    )


def table(predictions: Iterable[KernelPrediction]) -> str:
    """Return a line for each prediction, and the median error, as text."""
    lines = [
        f"{'':38}{'chip':6}{'published':>12}{'predicted':>12}{'error':>8}"
        "  fullest queue"
    ]
    errors = []
    for p in predictions:
        fullest = max(p.busy_seconds, key=p.busy_seconds.__getitem__)
        share = p.busy_seconds[fullest] / p.seconds
        errors.append(abs(p.error))
        lines.append(
            f"{p.row.name:38}{p.row.chip:6}{p.row.seconds / US:9,.0f} us"
            f"{p.seconds / US:9,.0f} us{p.error:+8.0%}  {fullest} {share:.0%}"
        )
    if errors:
        lines.append(
            f"median error of {len(errors)} kernels: {statistics.median(errors):.0%}"
        )
    return "\n".join(lines)


def notes() -> str:
    """Return the explanations of errors and the omitted kernels, as text."""
    lines = [textwrap.fill(note, 88, subsequent_indent="  ") for note in NOTES]
    lines += [f"Not expressed: {name}: {why}" for name, why in UNEXPRESSED.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(map(predict, ROWS)))
