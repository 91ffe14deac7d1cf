"""VectorE and ScalarE in kernels: cycles by the published formulas [V26].

N elements per partition take N cycles where one tensor streams in, and where two do 2 N
or N, as `cost_vector` says of the chips; less in the performance modes, whose
conditions (dtypes, SBUF, innermost elements next to each other) are read off the access
patterns [A3, A4]. An innermost stride of 16 bytes or more halves an interface [A2].
What no page prices takes a cycle for every element that streams in.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.ir.kernel import KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import software_cycles
from neuronjax.timing.cost_scalar import IN_EVERY_TABLE
from neuronjax.timing.cost_vector import is_half, speed_of_one, streams_per_cycle
from neuronjax.timing.kernel_operands import KernelOperand
from neuronjax.timing.kernel_price import (
    KernelPrice,
    Rule,
    on_engine,
    outputs,
    per_partition,
    prices,
    streams,
    tensors,
)
from neuronjax.timing.work import Core

_SIMPLE = frozenset({"add", "subtract", "multiply"})
_HALVED_REDUCTIONS = frozenset({"add", "maximum", "max"})


def streamed_cycles(
    core: Core, read: Sequence[KernelOperand], written: Sequence[KernelOperand]
) -> float:
    """Cycles of an element of every stream in; a wide stride takes two [A2]."""
    longest = max(map(_one, (*read, *written)), default=0.0)
    return max(longest, sum(map(_one, read)) / streams_per_cycle(core))


def _one(o: KernelOperand) -> float:
    wide = o.free > 1 and o.stride_bytes >= a.STRIDE_BYTES.value and not o.contiguous
    return o.free * (a.STRIDED_ACCESS.value if wide else 1.0)


def _mode(speed: float) -> str:
    return f"{speed:.0f}x" if speed > 1 else ""


def _on_gpsimd(i: KernelInstruction, core: Core, opcode: str) -> KernelPrice:
    """Software of eight processors: bytes in or out of a lane, at its rate."""
    moved = sum(o.dtype.itemsize for o in streams(i))
    item = max(moved, *(o.dtype.itemsize for o in outputs(i)), 1)
    return on_engine(i, core, per_partition(i) * software_cycles(item), opcode)


# -- one stream ------------------------------------------------------------------------


def _speed(i: KernelInstruction, core: Core) -> float:
    """Elements per cycle of tensor_copy and tensor_scalar."""
    (out,), read = outputs(i)[:1], streams(i)[:1]
    if not read:
        return 1.0
    psum = out.in_psum or read[0].in_psum
    contiguous = out.contiguous and read[0].contiguous
    if i.engine == "scalar":
        fast = "scalar_perf_modes" in core.spec.capabilities and not psum
        return 2.0 if fast and is_half(read[0].dtype) and is_half(out.dtype) else 1.0
    if psum and not contiguous:
        return 1.0
    return float(
        speed_of_one(
            core, read[0].dtype, out.dtype, in_psum=psum, contiguous=contiguous
        )
    )


@prices("tensor_copy", "tensor_scalar")
def one_stream(i: KernelInstruction, core: Core) -> KernelPrice:
    opcode = i.name.upper()
    if i.engine == "gpsimd":
        return _on_gpsimd(i, core, opcode)
    speed = _speed(i, core)
    n = streamed_cycles(core, streams(i)[:1], outputs(i)[:1])
    cycles = per_partition(i) / speed if speed > 1 else n
    if any(o.is_dynamic for o in (*tensors(i), *outputs(i))):
        cycles = max(a.DYNAMIC_COPY_MINIMUM.value, cycles)
    name = opcode if i.engine == "vector" else "ACTIVATE"
    return on_engine(i, core, cycles, name, mode=_mode(speed))


@prices("memset")
def memset(i: KernelInstruction, core: Core) -> KernelPrice:
    """N, and N / 2 for zeros of 16 bits."""
    (out,) = outputs(i)
    zero = not any(i.parameters) and is_half(out.dtype)
    return on_engine(i, core, out.free * (0.5 if zero else 1.0), "MEMSET")


def _plain(opcode: str, factor: float = 1.0, extra: float = 0.0) -> Rule:
    """A rule of N cycles of the longest stream, times a factor, and some more."""

    def rule(i: KernelInstruction, core: Core) -> KernelPrice:
        n = max(map(_one, (*streams(i), *outputs(i))), default=1.0)
        return on_engine(i, core, n * factor + extra, opcode)

    return rule


prices("dropout")(_plain("DROPOUT"))
prices("nc_stream_shuffle")(_plain("SHUFFLE"))
prices("bn_stats")(_plain("BN_STATS"))
prices("bn_aggr")(_plain("BN_AGGR", 13 / 3))
prices("reciprocal")(_plain("RECIPROCAL", a.RECIPROCAL_PASSES.value))
prices("max8")(_plain("MAX8", extra=a.MAX8_EXTRA.value))
prices("nc_find_index8")(_plain("FIND_INDEX8"))
prices("nc_match_replace8")(_plain("MATCH_REPLACE8", extra=a.MAX8_EXTRA.value))
prices("tensor_scalar_cumulative")(
    _plain("TENSOR_SCALAR", extra=a.REDUCE_IN_PASSING.value)
)
prices("tensor_scalar_reduce")(_plain("TENSOR_SCALAR", extra=a.REDUCE_IN_PASSING.value))
prices("range_select")(_plain("RANGE_SELECT"))


@prices("exponential")
def exponential(i: KernelInstruction, core: Core) -> KernelPrice:
    """4 times ScalarE's rate, clocks included [A4]."""
    spec = core.spec
    ratio = a.EXPONENTIAL_SPEEDUP.value * spec.scalar.clock_hz / spec.vector.clock_hz
    cycles = per_partition(i) / ratio
    return on_engine(i, core, cycles, "EXPONENTIAL", mode=_mode(4))


@prices("quantize_mx")
def quantize_mx(i: KernelInstruction, core: Core) -> KernelPrice:
    n = max((o.free for o in tensors(i)), default=1)
    return on_engine(i, core, n / a.QUANTIZE_MX_RATE.value, "QUANTIZE_MX", mode="4x")


@prices("tensor_reduce")
def tensor_reduce(i: KernelInstruction, core: Core) -> KernelPrice:
    """N cycles, N / 2 for sums and maxima of 16 bits."""
    (data, *_), (out, *_) = tensors(i), outputs(i)
    halved = (
        i.attributes.get("op") in _HALVED_REDUCTIONS
        and is_half(data.dtype)
        and is_half(out.dtype)
    )
    cycles = _one(data) * (0.5 if halved else 1.0)
    return on_engine(i, core, cycles, "REDUCE", mode=_mode(2) if halved else "")


# -- several streams -------------------------------------------------------------------


@prices("tensor_tensor")
def tensor_tensor(i: KernelInstruction, core: Core) -> KernelPrice:
    """2 N on NeuronCore-v2, but N with an operand in PSUM, and of add, subtract and
    multiply in 16 bits [V26]; N of all from v3 on [A3]."""
    if i.engine == "gpsimd":
        return _on_gpsimd(i, core, "TENSOR_TENSOR")
    read, written = streams(i), outputs(i)
    modes = "vector_perf_modes" in core.spec.capabilities
    in_psum = any(o.in_psum for o in read)
    halves = all(is_half(o.dtype) for o in (*read, *written))
    contiguous = all(o.contiguous for o in (*read, *written))
    quick = not in_psum and halves
    quick = quick and (modes or (i.attributes.get("op") in _SIMPLE and contiguous))
    if in_psum or quick:
        cycles = max(map(_one, (*read, *written)))
    else:
        cycles = streamed_cycles(core, read, written)
    mode = _mode(2) if quick and modes else ""
    return on_engine(i, core, cycles, "TENSOR_TENSOR", mode=mode)


@prices("scalar_tensor_tensor")
def scalar_tensor_tensor(i: KernelInstruction, core: Core) -> KernelPrice:
    """2 N on NeuronCore-v2, but N of subtract and multiply in 16 bits, or with one
    tensor in PSUM; N from v3 on."""
    read, written = streams(i), outputs(i)
    ops = (i.attributes.get("op0"), i.attributes.get("op1"))
    even = all(o.free % 2 == 0 for o in written)
    halves = all(is_half(o.dtype) for o in (*read, *written)) and even
    if any(o.in_psum for o in read) or (halves and ops == ("subtract", "multiply")):
        cycles = max(map(_one, (*read, *written)))
    else:
        cycles = streamed_cycles(core, read, written)
    return on_engine(i, core, cycles, "SCALAR_TENSOR_TENSOR")


@prices("tensor_tensor_scan")
def tensor_tensor_scan(i: KernelInstruction, core: Core) -> KernelPrice:
    """Both operands stream in: 2 N cycles."""
    return on_engine(i, core, max(2.0 * per_partition(i), 1.0), "SCAN")


@prices("tensor_copy_predicated")
def tensor_copy_predicated(i: KernelInstruction, core: Core) -> KernelPrice:
    """2 N; N where source and predicate are in different memories, or one is none."""
    read = streams(i)
    split = len({o.memory for o in read}) > 1
    cycles = max(map(_one, read)) if split else streamed_cycles(core, read, outputs(i))
    return on_engine(i, core, cycles, "TENSOR_COPY_PREDICATED")


@prices("select_reduce")
def select_reduce(i: KernelInstruction, core: Core) -> KernelPrice:
    """Not published: as tensor_copy_predicated, and the fold of a reduction."""
    extra = a.REDUCE_IN_PASSING.value if len(i.outputs) > 1 else 0.0
    cycles = streamed_cycles(core, streams(i), outputs(i)) + extra
    return on_engine(i, core, cycles, "SELECT_REDUCE")


# -- ScalarE ---------------------------------------------------------------------------


@prices("activation", "activation_reduce", "activate2")
def activation(i: KernelInstruction, core: Core) -> KernelPrice:
    """N whatever the scale and bias [A2], and 64 to read accumulators [V26]."""
    function = str(i.attributes.get("op", ""))
    read, written = streams(i)[:1], outputs(i)
    cycles = streamed_cycles(core, read, written[:1])
    if len(written) > 1:
        cycles += a.REDUCE_IN_PASSING.value
    table = "" if function in IN_EVERY_TABLE else function
    return on_engine(i, core, cycles, "ACTIVATE", table=table)


# -- random numbers --------------------------------------------------------------------


@prices("rng", "rand2", "rand_set_state", "rand_get_state", "set_rng_seed")
def random_words(i: KernelInstruction, core: Core) -> KernelPrice:
    """Words per lane and cycle: 4 of XORWOW [A4], 1 before."""
    n = per_partition(i)
    if i.engine == "gpsimd":
        return on_engine(i, core, n, "RNG")
    xorwow = "xorwow" in core.spec.capabilities
    rate = (a.RANDOM_XORWOW if xorwow else a.UNPUBLISHED_RANDOM).value
    return on_engine(i, core, n / rate, "RNG")
