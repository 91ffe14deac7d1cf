"""Reductions, scans and sliding windows.

Along the free axis VectorE reads N elements in N cycles, N / 2 where a sum or maximum
is in 16 bits [V26]; ScalarE sums what it copies. Along the partition axis no lane sees
another: TensorE adds with a column of ones, and for other folds turns the array first.
"""

from __future__ import annotations

from math import ceil, prod

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Pool,
    SelectAndScatter,
    TensorReduce,
    TensorTensorScan,
)
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import gpsimd, nbytes, software, software_cycles
from neuronjax.timing.cost_rules import Reading, columns, engine_work, rule, tiles_of
from neuronjax.timing.cost_tensor import Contraction, contraction_ways, transpose_works
from neuronjax.timing.cost_vector import BITWISE, is_half, speed_of_one
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.work import Core, Queue, Way, Work


def _work(
    core: Core,
    queue: Queue,
    i: Instruction,
    per_lane: int,
    cycles: float,
    *,
    extra: float = 0.0,
    opcode: str = "REDUCE",
    instructions: int = 1,
) -> Work:
    """One engine over `per_lane` elements in so many instructions or more; `extra`
    cycles for each that has to be."""
    tiles = max(instructions, tiles_of(per_lane))
    return engine_work(
        core,
        queue,
        per_lane * cycles + extra * instructions,
        tiles,
        opcode,
        performance_mode="2x" if cycles < 1 else "",
        sbuf_read_bytes=float(nbytes(i.operands)),
        sbuf_write_bytes=float(nbytes(i.results)),
    )


def _along_free_axis(
    i: TensorReduce, core: Core, per_lane: int, results: int = 1
) -> list[Way]:
    """Ways to fold what a lane has, to so many results.

    A pass of ScalarE leaves one sum in each partition's register [ISA], and is an
    instruction for every result.
    """
    source, target = i.operands[0].type.dtype, i.results[0].type.dtype
    halved = i.op in ("add", "maximum") and is_half(source) and is_half(target)
    cycles = (0.5 if halved else 1.0) * _strides(i)
    ways: list[Way] = [(_work(core, "vector", i, per_lane, cycles),)]
    if i.op == "add":
        work = _work(
            core,
            "scalar",
            i,
            per_lane,
            _strides(i),
            extra=a.REDUCE_IN_PASSING.value,
            opcode="ACTIVATE",
            instructions=results,
        )
        ways.append((work,))
    return ways


def _strides(i: TensorReduce) -> float:
    """Cycles per element where the folded elements do not lie next to each other.

    From 16 bytes on a stride halves the bandwidth [A2].
    """
    source = i.operands[0].type
    last = max((d for d, size in enumerate(source.shape) if size > 1), default=-1)
    folded = [d for d in i.axes if source.shape[d] > 1]
    if not folded or last in folded:
        return 1.0
    stride = prod(source.shape[max(folded) + 1 :]) * source.dtype.itemsize
    return a.STRIDED_ACCESS.value if stride >= a.STRIDE_BYTES.value else 1.0


def _ones(core: Core, rows: int, results: int, item_bytes: int) -> tuple[Way, ...]:
    """A column of ones times [rows, results]: the sum over partitions."""
    products = core.spec.products_per_cell_per_cycle
    passes = 1 / (products.fp32 * a.ONE_ZERO.value)
    cycles = 1.0 if item_bytes <= 2 else passes
    ones = Contraction(
        *(1, 1, results, rows, core.spec.k_tile),
        column_cycles=cycles,
        item_bytes=float(item_bytes),
        flops_per_k=0.0,  # the program asks for no matmul
    )
    return contraction_ways(ones, core)


def _across(core: Core, i: TensorReduce, rows: int, results: int) -> tuple[Way, ...]:
    """[rows <= 128, results] in FP32, folded over the partitions."""
    if i.op == "add":
        return _ones(core, rows, results, 4)
    turned = transpose_works(core, 1, rows, results, 4)[0]
    lanes = core.spec.partitions * core.lnc
    per_lane = ceil(results / lanes) * rows
    return ((*turned, _work(core, "vector", i, per_lane, 1)),)


@rule.register
def _(i: TensorReduce, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Along the free axis where rows fill the lanes, else over partitions too."""
    shape, dtype = i.operands[0].type.shape, i.operands[0].type.dtype
    elements, results = prod(shape), prod(i.results[0].type.shape)
    if not elements:
        return ((_work(core, "vector", i, columns((results,), core), 1),),)
    wide = dtype.kind in "iu" and dtype.itemsize >= 4 and i.op not in BITWISE
    if i.engine == "gpsimd" and wide and i.integer_path == "exact":
        return (software(core, i, elements),)
    lanes = core.spec.partitions
    first = min(i.axes, default=len(shape))
    rows = prod(shape[:first])
    trailing = {*i.axes} >= {*range(first, len(shape))}
    if trailing or rows >= lanes:
        per_lane = ceil(ceil(rows / lanes) * (elements // rows) / core.lnc)
        each = ceil(results / (min(rows, lanes) * core.lnc))
        whole = (
            *_along_free_axis(i, core, per_lane, each),
            gpsimd(core, i, per_lane * software_cycles(dtype.itemsize), "REDUCE"),
        )
        if rows >= lanes or rows == elements:
            return whole
        # Few, long rows: each may be folded over several partitions.
        across = _across(core, i, min(lanes, elements), results)[0]
        parts = _along_free_axis(i, core, columns(shape, core))
        return (*whole, *((*way, *across) for way in parts))
    return _along_partitions(i, core, elements // results, results)


def _along_partitions(
    i: TensorReduce, core: Core, length: int, results: int
) -> tuple[Way, ...]:
    """The reduced axis leads: its tiles are added up, then folded by the array."""
    lanes, item = core.spec.partitions, i.operands[0].type.dtype.itemsize
    tiles = ceil(length / lanes)
    per_lane = ceil(tiles * results / core.lnc)
    narrow = min(lanes, length)
    folded = _across(core, i, narrow, results)
    if tiles > 1:
        (first,) = _along_free_axis(i, core, per_lane)[0]
        folded = tuple((first, *way) for way in folded)
    # tensor_partition_reduce, which has no published cost.
    cycles = per_lane * software_cycles(item)
    folded = (*folded, gpsimd(core, i, cycles, "PARTITION_REDUCE"))
    if i.op != "add" or i.operands[0].type.dtype.kind in "iub":
        return folded
    return (*_ones(core, length, results, item), *folded)


@rule.register
def _(i: ReducingPass, core: Core, reading: Reading) -> tuple[Way, ...]:
    """N + 64 cycles, an instruction for every row of a lane [V26]; no performance mode
    (abs-max of 16 bits: N [RMQ, picture]). ScalarE adds; all folds from `activate2` on.
    Or a pass that writes all, and a reduction of that.
    """
    shape = i.results[0].type.shape
    per_lane = columns(shape, core)
    each = ceil(i.rows / (core.spec.partitions * core.lnc))
    extra = a.REDUCE_IN_PASSING.value
    one = _work(core, "vector", i, per_lane, 1, extra=extra, instructions=each)
    ways: list[Way] = [(one,), _in_two(i, core, reading, per_lane)]
    folds = {"add"}
    if "activate2" in core.spec.capabilities:
        folds |= {"maximum", "minimum"}
    if i.is_affine and i.fold in folds:
        work = _work(
            core, "scalar", i, per_lane, 1, extra=extra, opcode="ACTIVATE",
            instructions=each,
        )  # fmt: skip
        ways.append((work,))
    return tuple(ways)


def _in_two(i: ReducingPass, core: Core, reading: Reading, per_lane: int) -> Way:
    source, target = i.operands[0].type.dtype, i.results[0].type.dtype
    speed = speed_of_one(core, source, target, in_psum=bool(reading.in_psum))
    written = _work(core, "vector", i, per_lane, 1 / speed, opcode="TENSOR_SCALAR")
    return written, _work(core, "vector", i, per_lane, 1)


@rule.register
def _(i: TensorTensorScan, core: Core, reading: Reading) -> tuple[Way, ...]:
    """2 N cycles [V26]. Fewer rows than lanes are cut, scanned, and joined (N more)."""
    shape = i.operands[0].type.shape
    length = shape[i.axis] if shape else 1
    rows = prod(shape) // max(1, length)
    lanes = core.spec.partitions * core.lnc
    whole = ceil(rows / lanes) * length * 2
    cut = ceil(rows * length / lanes) * 3
    if i.engine == "gpsimd" and i.integer_path == "exact":
        return (software(core, i, rows * length),)
    each = ceil(rows / lanes) if whole <= cut else 1  # of its own for every row
    work = _work(
        core, "vector", i, min(whole, cut), 1, opcode="SCAN", instructions=each
    )
    return ((work,),)


@rule.register
def _(i: Pool, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Every window is read as an access pattern of its own."""
    per_lane = columns(i.results[0].type.shape, core) * prod(i.window.sizes)
    on_gpsimd = gpsimd(core, i, per_lane, "POOL")
    if i.engine == "gpsimd" and i.integer_path == "exact":
        return (on_gpsimd,)
    return ((_work(core, "vector", i, per_lane, 1, opcode="POOL"),), on_gpsimd)


@rule.register
def _(i: SelectAndScatter, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Per element of a window: its maximum, the comparison with it, the addition."""
    sources = i.operands[1].type.shape
    per_lane = columns(sources, core) * prod(i.window.sizes)
    work = _work(core, "vector", i, per_lane, 1 + 2 + 2, opcode="TENSOR_TENSOR")
    return ((work,),)
