"""The figures of a profile, under the names of the vendor's profiler.

Names, units and formulas are those of the table `Summary` of Neuron Explorer's schema
7.4.0 (tools/neuron-explorer/profile-schema-reference.rst, SDK 2.32.0), without the
figures that the model cannot give. Times are in seconds; names in `_percent` are
fractions from 0 to 1, as in the vendor's JSON. All figures are of one logical core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neuronjax.errors import InvalidProgramError
from neuronjax.report.profile_usage import Usage, usage
from neuronjax.timing.engines.dma import engines, streaming_bytes_per_second
from neuronjax.timing.engines.tensor import peak_flops_per_second
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core, Queue

ENGINES: tuple[Queue, ...] = ("tensor", "vector", "scalar", "gpsimd", "sync")
#: A queue, and the names of its busy time and of its number of instructions.
QUEUE_METRICS: tuple[tuple[Queue, str, str], ...] = (
    *((e, f"{e}_engine_active_time", f"{e}_engine_instruction_count") for e in ENGINES),
    ("dma", "dma_active_time", "dma_transfer_count"),
    ("cc", "cc_op_active_time", "cc_op_count"),
)
PEAKS = ("bf16", "fp32", "fp8", "mx", "sparse")


@dataclass(frozen=True, kw_only=True)
class Roofs:
    """The peak rates of one logical core.

    Attributes:
        peak_flops: FLOP per second of the array, to which MFU refers.
        bf16_flops: FLOP per second of the array in BF16, to which HFU refers.
        hbm_bytes_per_second: rate of one HBM stack, to which MBU refers.
        dma_bytes_per_second: practical rate of the core's DMA engines.
        base_clock_hz: the clock of the cycle count; None if it is not published.
    """

    peak_flops: float
    bf16_flops: float
    hbm_bytes_per_second: float
    dma_bytes_per_second: float
    base_clock_hz: int | None


def roofs(core: Core, peak: str | float = "bf16") -> Roofs:
    """Return the peak rates of a core.

    MFU refers to `peak`: a class of dtypes, or a number of TFLOPS of one logical core.

    Raises:
        InvalidProgramError: an unknown class, or a class that the chip does not have.
    """
    chip = core.chip
    bf16 = peak_flops_per_second(core, "bf16")
    assert bf16 is not None
    # A stack serves as many cores as the largest logical core has [LNC]: on trn2 each
    # of four stacks serves two cores, on trn1 each of two serves one. The rate is the
    # same for LNC 1 and LNC 2 [PS].
    stacks = chip.cores_per_chip // max(chip.lnc_options)
    return Roofs(
        peak_flops=_peak(core, peak),
        bf16_flops=bf16,
        hbm_bytes_per_second=chip.hbm_bytes_per_second / stacks,
        dma_bytes_per_second=engines(core) * streaming_bytes_per_second(core),
        base_clock_hz=chip.base_clock_hz,
    )


def _peak(core: Core, peak: str | float) -> float:
    if not isinstance(peak, str):
        return float(peak) * 1e12
    if peak not in PEAKS:
        raise InvalidProgramError(
            f"peak {peak!r}", remedy=f"use {', '.join(PEAKS)}, or TFLOPS as a number"
        )
    flops = peak_flops_per_second(core, peak)
    if flops is None:
        held = [kind for kind in PEAKS if peak_flops_per_second(core, kind)]
        raise InvalidProgramError(
            f"{core.chip.name} has no {peak} matmuls", remedy=f"use one of {held}"
        )
    return flops


def metrics(
    timeline: Timeline, core: Core, peak: str | float = "bf16"
) -> dict[str, float]:
    """Return every figure of a timeline, by the vendor's name; see `METRICS`."""
    used = usage(timeline.events)
    roof = roofs(core, peak)
    total = timeline.total_seconds
    found: dict[str, float] = {
        "total_time": total,
        "around_time": timeline.around_seconds,
    }
    if roof.base_clock_hz is not None:
        found["neuroncore_cycle_count"] = round(total * roof.base_clock_hz)
    found |= dict(_array(used, total, roof))
    found |= dict(_queues(timeline, used, roof))
    found |= dict(_memories(used, total, roof))
    assert not found.keys() - METRICS.keys()
    return {name: found[name] for name in METRICS if name in found}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_Figures = Iterator[tuple[str, float]]


def _array(used: Usage, total: float, roof: Roofs) -> _Figures:
    bf16 = roof.bf16_flops * total
    yield "model_flops", used.flops
    yield "adjusted_hardware_flops", used.hardware_flops
    yield "adjusted_transpose_flops", used.transpose_flops
    yield "mfu_estimated_percent", _share(used.flops, roof.peak_flops * total)
    yield "hfu_estimated_percent", _share(used.hardware_flops, bf16)
    intensity = _share(used.flops, used.hbm_bytes)
    ratio = roof.peak_flops / roof.hbm_bytes_per_second
    yield "mm_arithmetic_intensity", intensity
    yield "peak_flops_bandwidth_ratio", ratio
    reachable = min(1.0, intensity / ratio) if used.hbm_bytes else 1.0
    yield "mfu_max_achievable_estimated_percent", reachable if used.flops else 0.0


def _queues(timeline: Timeline, used: Usage, roof: Roofs) -> _Figures:
    for queue, active, count in QUEUE_METRICS:
        busy = timeline.busy_seconds(queue)
        yield count, used.counts.get(queue, 0)
        yield active, busy
        yield f"{active}_percent", _share(busy, timeline.total_seconds)
    yield "matmul_instruction_count", used.opcode_counts.get("MATMUL", 0)
    yield "activate_instruction_count", used.opcode_counts.get("ACTIVATE", 0)
    yield "activate_instruction_time", used.opcode_seconds.get("ACTIVATE", 0.0)
    yield "dma_transfer_total_bytes", used.hbm_bytes
    moved = _share(used.hbm_bytes, used.counts.get("dma", 0))
    yield "dma_transfer_average_bytes", moved
    rate = _share(used.dma_bytes, timeline.busy_seconds("dma"))
    yield "dma_efficiency_percent", _share(rate, roof.dma_bytes_per_second)


def _memories(used: Usage, total: float, roof: Roofs) -> _Figures:
    read, write = used.hbm_read_bytes, used.hbm_write_bytes
    bandwidth = roof.hbm_bytes_per_second * total
    reloaded = used.read_bytes.get("spill_reload", 0)
    yield "mbu_estimated_percent", _share(read + write, bandwidth)
    yield "hbm_read_bytes", read
    yield "hbm_write_bytes", write
    yield "spill_save_bytes", used.write_bytes.get("spill_save", 0)
    yield "spill_reload_bytes", reloaded
    yield "useful_read_percent", _share(read - reloaded, read)
    yield "input_queue_bytes", used.read_bytes.get("input", 0)
    yield "weight_queue_bytes", used.read_bytes.get("weight", 0)
    yield "output_queue_bytes", used.write_bytes.get("output", 0)
    # The DMA engines write to SBUF the bytes that they read from HBM.
    yield "sbuf_read_bytes", used.sbuf_read_bytes + write
    yield "sbuf_write_bytes", used.sbuf_write_bytes + read
    yield "psum_read_bytes", used.psum_read_bytes
    yield "psum_write_bytes", used.psum_write_bytes


@dataclass(frozen=True)
class Metric:
    """The meaning of a figure.

    Attributes:
        unit: "s", "B", "FLOP", "FLOP/B", "count", "cycles", or "percent" (from 0 to 1).
        is_vendor: whether the vendor's profiler has the figure under this name.
    """

    unit: str
    meaning: str
    is_vendor: bool = True


_OF_AN_ENGINE = {
    "instruction_count": Metric("count", "tiles included"),
    "active_time": Metric("s", "without waiting"),
    "active_time_percent": Metric("percent", "of total_time"),
}
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "total_time": Metric("s", "from the first event to the last, plus around_time"),
        "around_time": Metric("s", "the part of total_time to begin and end a program"),
        "neuroncore_cycle_count": Metric("cycles", "total_time in base-clock cycles"),
        "model_flops": Metric("FLOP", "of the program's matmuls"),
        "adjusted_hardware_flops": Metric("FLOP", "executed, in BF16 equivalents"),
        "adjusted_transpose_flops": Metric("FLOP", "transposes, in BF16 equivalents"),
        "mfu_estimated_percent": Metric("percent", "model_flops / the peak"),
        "hfu_estimated_percent": Metric("percent", "executed FLOP / the BF16 peak"),
        "mm_arithmetic_intensity": Metric("FLOP/B", "model_flops per HBM byte"),
        "peak_flops_bandwidth_ratio": Metric(
            "FLOP/B", "below this intensity, HBM is the limit"
        ),
        "mfu_max_achievable_estimated_percent": Metric(
            "percent", "MFU if HBM were always busy, at the program's intensity"
        ),
        **{f"{e}_engine_{n}": m for e in ENGINES for n, m in _OF_AN_ENGINE.items()},
        "matmul_instruction_count": Metric("count", "tiles of moving operands"),
        "activate_instruction_count": Metric("count", "of ScalarE"),
        "activate_instruction_time": Metric("s", "of ScalarE"),
        "dma_active_time": Metric("s", "while a transfer is under way"),
        "dma_active_time_percent": Metric("percent", "of total_time"),
        "dma_transfer_count": Metric("count", "one per tensor that moves"),
        "dma_transfer_total_bytes": Metric("B", "both directions"),
        "dma_transfer_average_bytes": Metric("B", "per transfer"),
        "dma_efficiency_percent": Metric(
            "percent", "of the DMA engines' practical rate, while active", False
        ),
        "mbu_estimated_percent": Metric("percent", "HBM traffic / a stack's HBM rate"),
        "hbm_read_bytes": Metric("B", "by the DMA engines"),
        "hbm_write_bytes": Metric("B", "by the DMA engines"),
        "spill_save_bytes": Metric("B", "intermediates that SBUF has no room for"),
        "spill_reload_bytes": Metric("B", "spilled intermediates, read back"),
        "useful_read_percent": Metric("percent", "hbm_read_bytes without reloads"),
        "input_queue_bytes": Metric("B", "inputs that are read"),
        "weight_queue_bytes": Metric("B", "parameters that are read"),
        "output_queue_bytes": Metric("B", "results that are written"),
        "sbuf_read_bytes": Metric("B", "by engines and DMA"),
        "sbuf_write_bytes": Metric("B", "by engines and DMA"),
        "psum_read_bytes": Metric("B", "by VectorE and ScalarE"),
        "psum_write_bytes": Metric("B", "by TensorE"),
        "cc_op_count": Metric("count", "collectives"),
        "cc_op_active_time": Metric("s", "while a collective runs"),
        "cc_op_active_time_percent": Metric("percent", "of total_time"),
    }
)
"""Every figure of `metrics`."""
