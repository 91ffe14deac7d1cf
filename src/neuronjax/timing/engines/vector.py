"""Cycles of VectorE by the published formulas [V26].

N elements per lane take N cycles if one tensor streams in. Two tensors take 2 N on
NeuronCore-v2, which reads one element of a lane per cycle [A2, V26], and N from v3 on,
which reads two [A3] (measured: 1.08 N of FP32 in AdamW on trn2). If both have
16 bits or one is in PSUM, two tensors take N on v2, too. From v3 on, one tensor in 16
bits takes N / 4, or N / 2 if it is strided, in PSUM, or written in 8 bits (measured:
tensor_scalar to FP8) [A3]. An innermost stride of 16 bytes or more halves the rate
[A2]. Instructions without a published formula take a cycle per element that streams in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace, has, is_half, longest
from neuronjax.timing.work import Core

Rule = Callable[[LaneTask, Core], Pace]

_SIMPLE = frozenset({"add", "subtract", "multiply"})
_HALVED_REDUCTIONS = frozenset({"add", "maximum", "max"})


def streams_per_cycle(core: Core) -> float:
    """Return how many elements a lane of VectorE reads per cycle, of any dtype."""
    widths = core.spec.vector.elements_per_cycle
    return widths.fp32 / core.spec.partitions if widths and widths.fp32 else 1.0


def _streamed(task: LaneTask, core: Core) -> float:
    """Return the cycles of all input streams; cores after v2 read two at a time."""
    read = sum(s.cycles for s in task.read)
    return max(longest(task.streams), read / streams_per_cycle(core))


def _speed_of_one(core: Core, source: np.dtype, target: np.dtype, plain: bool) -> int:
    """Return the elements per lane and cycle of tensor_copy and tensor_scalar: 1, 2 or
    4. `plain` means that source and target are contiguous in SBUF."""
    if not has(core, "vector_perf_modes"):
        return 1
    widths = core.spec.vector.elements_per_cycle
    fits = is_half
    if widths is not None and widths.fp8 == widths.bf16:
        fits = _is_narrow_float
    if fits(source) and fits(target):
        return 4 if plain else 2
    return 2 if is_half(source) and _is_narrow_float(target) else 1


def _is_narrow_float(dtype: np.dtype) -> bool:
    return dtype.itemsize <= 2 and dtype.kind not in "iub"


def _one_stream(task: LaneTask, core: Core) -> Pace:
    """Return N / 4, N / 2 or N cycles for N elements per lane, by dtypes and layout;
    the minimum is 600 cycles if an address is dynamic."""
    least = a.MINIMUM_INTERVAL.value
    if any(s.is_dynamic for s in task.streams):
        least = a.DYNAMIC_COPY_MINIMUM.value
    ends = (*task.read[:1], *task.written[:1])
    psum = any(s.in_psum for s in ends)
    contiguous = all(s.contiguous for s in ends)
    speed = 1
    if len(ends) == 2 and (contiguous or not psum):
        plain = contiguous and not psum
        speed = _speed_of_one(core, ends[0].dtype, ends[1].dtype, plain)
    cycles = task.elements / speed if speed > 1 else longest(ends)
    return Pace(cycles, speed, least)


def _tensor_tensor(task: LaneTask, core: Core) -> Pace:
    """Return N cycles for N elements per lane if an operand is in PSUM or all tensors
    have 16 bits; otherwise the cycles of all input streams.

    Before NeuronCore-v3, tensors of 16 bits take N cycles only for add, subtract and
    multiply [V26]."""
    if any(s.in_psum for s in task.read):
        return Pace(longest(task.streams))
    modes = has(core, "vector_perf_modes")
    contiguous = all(s.contiguous for s in task.streams)
    simple = task.does_only(_SIMPLE) and contiguous
    if all(s.is_half for s in task.streams) and (modes or simple):
        return Pace(longest(task.streams), 2 if modes else 1)
    return Pace(_streamed(task, core))


def _scalar_tensor_tensor(task: LaneTask, core: Core) -> Pace:
    """Return N cycles for N elements per lane if an operand is in PSUM (measured [RMQ,
    picture]), or if an even number of 16-bit elements is subtracted, then multiplied
    [V26]; otherwise the cycles of all input streams."""
    halves = all(s.is_half for s in task.streams)
    even = all(s.free % 2 == 0 for s in task.written)
    quick = halves and even and task.ops == ("subtract", "multiply")
    if quick or any(s.in_psum for s in task.read):
        return Pace(longest(task.streams))
    return Pace(_streamed(task, core))


def _predicated(task: LaneTask, core: Core) -> Pace:
    split = len({s.memory for s in task.read}) > 1
    return Pace(longest(task.read) if split else _streamed(task, core))


def _select_reduce(task: LaneTask, core: Core) -> Pace:
    return Pace(_streamed(task, core) + task.folds * a.REDUCE_IN_PASSING.value)


def _reduce(task: LaneTask, core: Core) -> Pace:
    ends = (task.read[0], task.written[0])
    halved = task.does_only(_HALVED_REDUCTIONS) and all(s.is_half for s in ends)
    cycles = task.read[0].cycles
    return Pace(cycles / 2, 2) if halved else Pace(cycles)


def _memset(task: LaneTask, core: Core) -> Pace:
    (out,) = task.written
    return Pace(out.cycles * (0.5 if task.is_zero and out.is_half else 1.0))


def _exponential(task: LaneTask, core: Core) -> Pace:
    spec = core.spec
    ratio = a.EXPONENTIAL_SPEEDUP.value * spec.scalar.clock_hz / spec.vector.clock_hz
    return Pace(task.elements / ratio, 4)


def _quantize_mx(task: LaneTask, core: Core) -> Pace:
    elements = max((s.free for s in task.read), default=1)
    return Pace(elements / a.QUANTIZE_MX_RATE.value, 4)


def _random(task: LaneTask, core: Core) -> Pace:
    """Return N / 4 cycles for N random words per lane with XORWOW [A4], else N."""
    rate = a.RANDOM_XORWOW.value if has(core, "xorwow") else 1.0
    return Pace(task.elements / rate)


def _plain(factor: float = 1.0, extra: float = 0.0) -> Rule:
    def rule(task: LaneTask, core: Core) -> Pace:
        return Pace(longest(task.streams) * factor + extra * max(1, task.folds))

    return rule


def _reciprocal(task: LaneTask, core: Core) -> Pace:
    """Return 8 cycles per element (published); before NeuronCore-v3, 2.6 (measured)."""
    newer = has(core, "vector_perf_modes")
    passes = a.RECIPROCAL_PASSES if newer else a.RECIPROCAL_PASSES_V2
    return Pace(longest(task.streams) * passes.value)


_PLAIN = ("dropout", "nc_stream_shuffle", "nc_transpose", "nc_find_index8")
_PLAIN += ("bn_stats", "range_select", "pool")
#: Instructions of the random number generator.
RANDOM = frozenset("rng rand2 rand_set_state rand_get_state set_rng_seed".split())

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "tensor_copy": _one_stream,
        "tensor_scalar": _one_stream,
        "tensor_tensor": _tensor_tensor,
        "scalar_tensor_tensor": _scalar_tensor_tensor,
        "tensor_copy_predicated": _predicated,
        "select_reduce": _select_reduce,
        "tensor_tensor_scan": lambda task, core: Pace(2.0 * task.elements),
        "tensor_reduce": _reduce,
        "memset": _memset,
        "exponential": _exponential,
        "quantize_mx": _quantize_mx,
        **dict.fromkeys(RANDOM, _random),
        **dict.fromkeys(_PLAIN, _plain()),
        "bn_aggr": _plain(a.BN_AGGR_PASSES.value),
        "reciprocal": _reciprocal,
        "max8": _plain(extra=a.MAX8_EXTRA.value),
        "nc_match_replace8": _plain(extra=a.MAX8_EXTRA.value),
        "tensor_scalar_cumulative": _plain(extra=a.REDUCE_IN_PASSING.value),
        "tensor_scalar_reduce": _plain(extra=a.REDUCE_IN_PASSING.value),
    }
)
"""Name of a function of nki.isa -> the rule for its cycles."""
