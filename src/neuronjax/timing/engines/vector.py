"""Cycles of VectorE by the published formulas [V26].

N is the number of elements per lane. An instruction that reads one tensor takes N
cycles. An instruction that reads two tensors takes 2 N cycles on NeuronCore-v2, where a
lane reads one element per cycle [A2, V26], and N cycles from v3 on, where a lane reads
two elements per cycle [A3] (measured: 1.08 N for FP32 in AdamW on trn2). On v2 it also
takes N cycles if an operand is in PSUM or, for some operators, if all tensors are BF16
or FP16. From v3 on, a copy or tensor_scalar of BF16 or FP16 takes N / 4 cycles, or
N / 2 if a tensor is strided or in PSUM or if the result is FP8 (measured for
tensor_scalar) [A3]. An innermost stride of 16 bytes or more halves the rate [A2]. An
instruction without a published formula takes one cycle per element of a lane.
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
    """Return how many elements, of any dtype, a lane of VectorE reads per cycle."""
    widths = core.spec.vector.elements_per_cycle
    return widths.fp32 / core.spec.partitions if widths and widths.fp32 else 1.0


def _streamed(task: LaneTask, core: Core) -> float:
    """Return the cycles to read all operands of `task`: one operand at a time on
    NeuronCore-v2, two at a time on later cores."""
    read = sum(s.cycles for s in task.read)
    return max(longest(task.streams), read / streams_per_cycle(core))


def _speed_of_one(core: Core, source: np.dtype, target: np.dtype, plain: bool) -> int:
    """Return how many elements tensor_copy or tensor_scalar processes per lane and
    cycle: 1, 2 or 4.

    `source` and `target` are the dtypes of operand and result; `plain` says whether
    operand and result are contiguous and in SBUF."""
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
    """Return the cycles of an instruction that reads one tensor of N elements per lane.
    These are N / 4, N / 2 or N cycles, which dtypes and layout decide; at wide strides
    2 N cycles. The minimum is 600 cycles if an address is known only at run time."""
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
    """Return the cycles of tensor_tensor: N for N elements per lane if an operand is in
    PSUM or if all tensors are BF16 or FP16, otherwise the cycles to read all operands.

    Before NeuronCore-v3, BF16 and FP16 take N cycles only for add, subtract and
    multiply of contiguous tensors [V26]."""
    if any(s.in_psum for s in task.read):
        return Pace(longest(task.streams))
    modes = has(core, "vector_perf_modes")
    contiguous = all(s.contiguous for s in task.streams)
    simple = task.does_only(_SIMPLE) and contiguous
    if all(s.is_half for s in task.streams) and (modes or simple):
        return Pace(longest(task.streams), 2 if modes else 1)
    return Pace(_streamed(task, core))


def _scalar_tensor_tensor(task: LaneTask, core: Core) -> Pace:
    """Return the cycles of scalar_tensor_tensor: N for N elements per lane if an
    operand is in PSUM (measured [RMQ, picture]), or if all tensors are BF16 or FP16, N
    is even, and the operators are subtract, then multiply [V26]; otherwise the cycles
    to read all operands."""
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
    """Return the cycles for N random words per lane: N / 4 if the core has the
    generator XORWOW [A4], else N."""
    rate = a.RANDOM_XORWOW.value if has(core, "xorwow") else 1.0
    return Pace(task.elements / rate)


def _plain(factor: float = 1.0, extra: float = 0.0) -> Rule:
    def rule(task: LaneTask, core: Core) -> Pace:
        return Pace(longest(task.streams) * factor + extra * max(1, task.folds))

    return rule


def _reciprocal(task: LaneTask, core: Core) -> Pace:
    """Return the cycles of reciprocal: 8 per element of a lane (published) or, before
    NeuronCore-v3, 2.6 (fitted to a measurement)."""
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
