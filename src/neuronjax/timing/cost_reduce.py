"""Cost rules for a program's reductions, scans and sliding windows.

Along the free axis, VectorE reduces the elements of each lane, or ScalarE sums them
while it copies. Along the partition axis, TensorE computes sums as a matmul by a column
of ones. For other operators TensorE transposes the tensor, and VectorE then reduces it
along the free axis. GpSimdE can reduce along either axis.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import Any

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Pool,
    SelectAndScatter,
    TensorReduce,
    TensorTensorScan,
)
from neuronjax.timing.cost_gpsimd import software
from neuronjax.timing.cost_rules import (
    Reading,
    columns,
    elementwise,
    lane_task,
    rule,
    stream,
    tiles_of,
    traffic_of,
)
from neuronjax.timing.cost_tensor import Contraction, contraction_ways, transpose_works
from neuronjax.timing.cost_vector import BITWISE, one_stream
from neuronjax.timing.engines.lanes import lane_work
from neuronjax.timing.engines.task import LaneStream, LaneTask, has
from neuronjax.timing.engines.tensor import column_cycles
from neuronjax.timing.passes import ReducingPass
from neuronjax.timing.work import Core, Queue, Way, Work


def _work(core: Core, i: Instruction, *tasks: LaneTask, opcode: str = "REDUCE") -> Work:
    first = tasks[0]
    tiles = max(first.folds, tiles_of(first.elements))
    return lane_work(core, *tasks, tiles=tiles, opcode=opcode, **traffic_of(i))


def _task(
    i: Instruction, per_lane: int, name: str = "tensor_reduce", **more: Any
) -> LaneTask:
    read = (stream(i.operands[0].type, per_lane),)
    written = (stream(i.results[0].type, 1),)
    fields = {"queue": "vector", "read": read, "written": written, **more}
    return LaneTask(name=name, **fields)


def _along_free_axis(
    i: TensorReduce, core: Core, per_lane: int, results: int = 1
) -> list[Way]:
    """Return the ways to reduce the `per_lane` elements of each lane to `results`
    results: on VectorE and, for sums, also on ScalarE.

    ScalarE needs one instruction for each result of a lane, since an instruction leaves
    one sum in each partition's register [ISA]."""
    task = _task(i, per_lane, ops=(i.op,))
    task = replace(task, read=(_strided(i, task.read[0]),))
    ways: list[Way] = [(_work(core, i, task),)]
    if i.op == "add":
        summed = replace(task, name="activation_reduce", queue="scalar", folds=results)
        ways.append((_work(core, i, summed, opcode="ACTIVATE"),))
    return ways


def _strided(i: TensorReduce, s: LaneStream) -> LaneStream:
    source = i.operands[0].type
    last = max((d for d, size in enumerate(source.shape) if size > 1), default=-1)
    folded = [d for d in i.axes if source.shape[d] > 1]
    if not folded or last in folded:
        return s
    stride = prod(source.shape[max(folded) + 1 :]) * source.dtype.itemsize
    return s._replace(contiguous=False, stride_bytes=stride)


def _ones(core: Core, rows: int, results: int, item_bytes: int) -> tuple[Way, ...]:
    """Return the ways to sum a tensor of shape [rows, results] over its first axis by a
    matmul with a column of ones. The first axis is on the partitions."""
    cycles = 1.0
    if item_bytes > 2:
        cycles = column_cycles(core, "fp32", zeros_and_ones=1)
    ones = Contraction(
        *(1, 1, results, rows, core.spec.k_tile),
        column_cycles=cycles,
        item_bytes=float(item_bytes),
        flops_per_k=0.0,  # the program has no matmul here
    )
    return contraction_ways(ones, core)


def _across(core: Core, i: TensorReduce, rows: int, results: int) -> tuple[Way, ...]:
    """Return the ways to reduce an FP32 tensor of shape [rows, results] over its first
    axis, which is on the partitions: `rows` is at most 128."""
    if i.op == "add":
        return _ones(core, rows, results, 4)
    turned = transpose_works(core, 1, rows, results, 4)[0]
    lanes = core.spec.partitions * core.lnc
    per_lane = ceil(results / lanes) * rows
    return ((*turned, _work(core, i, _task(i, per_lane).in_fp32())),)


@rule.register
def _(i: TensorReduce, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a reduction. The axes before the first reduced axis are on the partitions
    if the product of their sizes is 128 or more, or if all later axes are reduced. The
    reduction then is along the free axis, otherwise along the partition axis."""
    shape, dtype = i.operands[0].type.shape, i.operands[0].type.dtype
    elements, results = prod(shape), prod(i.results[0].type.shape)
    if not elements:
        return ((_work(core, i, _task(i, columns((results,), core)).in_fp32()),),)
    wide = dtype.kind in "iu" and dtype.itemsize >= 4 and i.op not in BITWISE
    if i.engine == "gpsimd" and wide and i.integer_path == "exact":
        return (software(core, i, elements),)
    if elements == results:  # each element is combined only with the initial value
        return one_stream(core, i, reading, "tensor_scalar", on_scalar=True)
    lanes = core.spec.partitions
    first = min(i.axes, default=len(shape))
    rows = prod(shape[:first])
    trailing = {*i.axes} >= {*range(first, len(shape))}
    if trailing or rows >= lanes:
        per_lane = ceil(ceil(rows / lanes) * (elements // rows) / core.lnc)
        each = ceil(results / (min(rows, lanes) * core.lnc))
        whole = (
            *_along_free_axis(i, core, per_lane, each),
            (_work(core, i, _task(i, per_lane, queue="gpsimd")),),
        )
        if rows >= lanes or rows == elements:
            return whole
        # The rows are few and long: each may be divided among several partitions.
        across = _across(core, i, min(lanes, elements), results)[0]
        parts = _along_free_axis(i, core, columns(shape, core))
        return (*whole, *((*way, *across) for way in parts))
    return _along_partitions(i, core, elements // results, results)


def _along_partitions(
    i: TensorReduce, core: Core, length: int, results: int
) -> tuple[Way, ...]:
    """Return the ways to reduce a tensor of shape [length, results] over its first
    axis, which is on the partitions."""
    lanes, item = core.spec.partitions, i.operands[0].type.dtype.itemsize
    tiles = ceil(length / lanes)
    per_lane = ceil(tiles * results / core.lnc)
    narrow = min(lanes, length)
    folded = _across(core, i, narrow, results)
    if tiles > 1:
        (first,) = _along_free_axis(i, core, per_lane)[0]
        folded = tuple((first, *way) for way in folded)
    task = _task(i, per_lane, "tensor_partition_reduce", queue="gpsimd")
    folded = (*folded, (_work(core, i, task, opcode="PARTITION_REDUCE"),))
    if i.op != "add" or i.operands[0].type.dtype.kind in "iub":
        return folded
    return (*_ones(core, length, results, item), *folded)


@rule.register
def _(i: ReducingPass, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price scalar operations and the reduction of each row of their result: one or two
    instructions of VectorE, or one of ScalarE.

    One instruction takes N + 64 cycles for each row of N elements in a lane [V26]
    (measured: N cycles for an abs-max of 16-bit elements [RMQ, picture]). ScalarE can
    compute sums and, if it has `activate2`, maxima and minima."""
    per_lane = columns(i.results[0].type.shape, core)
    each = ceil(i.rows / (core.spec.partitions * core.lnc))
    one = _task(i, per_lane, "tensor_scalar_reduce", folds=each)
    passed = lane_task(core, i, "vector", "tensor_scalar", reading)
    folded = _work(core, i, _task(i, per_lane).in_fp32())
    ways: list[Way] = [
        (_work(core, i, one),),
        (*elementwise(core, i, passed), folded),
    ]
    folds = {"add"}
    if has(core, "activate2"):
        folds |= {"maximum", "minimum"}
    if i.is_affine and i.fold in folds:
        task = replace(one, name="activation_reduce", queue="scalar")
        ways.append((_work(core, i, task, opcode="ACTIVATE"),))
    return tuple(ways)


@rule.register
def _(i: TensorTensorScan, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a scan along each row of a tensor. If rows are few, a row may be divided
    among several lanes: each lane scans its part of the row, and another instruction
    combines the parts."""
    shape = i.operands[0].type.shape
    length = shape[i.axis] if shape else 1
    rows = prod(shape) // max(1, length)
    lanes = core.spec.partitions * core.lnc
    if i.engine == "gpsimd" and i.integer_path == "exact":
        return (software(core, i, rows * length),)
    own = ceil(rows / lanes)  # rows per lane; each row takes an instruction
    whole = _task(i, own * length, "tensor_tensor_scan", folds=own)
    part = ceil(rows * length / lanes)
    scan = _task(i, part, "tensor_tensor_scan")
    join = _task(i, part, "tensor_scalar").in_fp32()
    ways: list[Way] = [(_work(core, i, whole, opcode="SCAN"),)]
    if 3 * part < 2 * own * length:
        ways.append((_work(core, i, scan, join, opcode="SCAN"),))
    return tuple(ways)


@rule.register
def _(i: Pool, core: Core, reading: Reading) -> tuple[Way, ...]:
    per_lane = columns(i.results[0].type.shape, core) * prod(i.window.sizes)
    task = _task(i, per_lane, "pool")
    queues: tuple[Queue, ...] = ("vector", "gpsimd")
    if i.engine == "gpsimd" and i.integer_path == "exact":
        queues = ("gpsimd",)
    return tuple(
        (_work(core, i, replace(task, queue=queue), opcode="POOL"),) for queue in queues
    )


@rule.register
def _(i: SelectAndScatter, core: Core, reading: Reading) -> tuple[Way, ...]:
    per_lane = columns(i.operands[1].type.shape, core) * prod(i.window.sizes)
    largest = _task(i, per_lane, "pool")
    both = replace(largest, name="tensor_tensor", read=largest.read * 2)
    return ((_work(core, i, largest, both, both, opcode="TENSOR_TENSOR"),),)
