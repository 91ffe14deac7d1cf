"""What holds for every schedule, over programs that hypothesis makes.

Programs are built of instructions directly: chains and diamonds of matmuls, elementwise
work, reductions and transposes over shapes from one row to more than SBUF holds.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import Block, Buffer, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    Activation,
    DmaCopy,
    DotDimensions,
    Memset,
    NcMatmul,
    TensorReduce,
    TensorTensor,
)
from neuronjax.ir.program import TensorType
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import QUEUES, Core

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
#: Engines are chosen one step after the other, so tiny programs (some us) may end
#: earlier with one step more. Programs that matter may by 2 %.
SLACK = 2e-6
QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None)


class Builder:
    """Instructions in order, each written to a buffer of its own."""

    def __init__(self) -> None:
        self.arguments: list[Buffer] = []
        self.instructions: list = []
        self.count = 0

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
        self.count += 1
        return Buffer(self.count, TensorType(shape, dtype))

    def argument(self, shape: tuple[int, ...], dtype: np.dtype = BF16) -> Buffer:
        self.arguments.append(self.buffer(shape, dtype))
        return self.arguments[-1]

    def add(self, cls, operands, shape, dtype=BF16, engine="vector", **fields):
        result = self.buffer(shape, dtype)
        views = tuple(View(b) for b in operands)
        self.instructions.append(
            cls(operands=views, results=(result,), engine=engine, **fields)
        )
        return result

    def binary(self, op: str, x: Buffer, y: Buffer) -> Buffer:
        return self.add(TensorTensor, [x, y], x.type.shape, op=op)

    def exp(self, x: Buffer) -> Buffer:
        fields = dict(engine="scalar", function="exponential")
        return self.add(Activation, [x], x.type.shape, **fields)

    def row_sum(self, x: Buffer) -> Buffer:
        """Sums rows, and puts every sum in all of its row."""
        zero = self.add(Memset, [], (), engine="gpsimd", value=np.zeros((), np.float32))
        rows = x.type.shape[:-1]
        axes = (len(rows),)
        total = self.add(TensorReduce, [x, zero], rows, op="add", axes=axes)
        dims = (tuple(range(len(rows))),)
        fields = dict(engine="dma", kind="broadcast", parameters=dims)
        return self.add(DmaCopy, [total], x.type.shape, **fields)

    def transpose(self, x: Buffer) -> Buffer:
        shape = x.type.shape[::-1]
        fields = dict(engine="dma", kind="transpose", parameters=((1, 0),))
        return self.add(DmaCopy, [x], shape, **fields)

    def matmul(self, x: Buffer, y: Buffer) -> Buffer:
        shape = (x.type.shape[0], y.type.shape[1])
        dims = DotDimensions((), (), (1,), (0,))
        return self.add(NcMatmul, [x, y], shape, engine="tensor", dimensions=dims)

    def program(self, *results: Buffer) -> InstructionProgram:
        views = tuple(View(b) for b in results)
        block = Block(tuple(self.arguments), tuple(self.instructions), views)
        return InstructionProgram(block, {})


OPS = ("exp", "add", "scale", "softmax", "square", "turn", "matmul", "diamond")


def build(ops: list[str], rows: int, columns: int, inner: int = 256) -> Builder:
    """A chain of operations on [rows, columns]."""
    b = Builder()
    x = first = b.argument((rows, columns))
    for op in ops:
        shape = x.type.shape
        if op == "exp":
            x = b.exp(x)
        elif op == "add":
            x = b.binary("add", x, b.argument(shape))
        elif op == "scale":
            x = b.binary("multiply", x, b.row_sum(x))
        elif op == "softmax":
            x = b.exp(x)
            x = b.binary("divide", x, b.row_sum(x))
        elif op == "square":
            x = b.binary("multiply", x, x)
        elif op == "turn":
            x = b.transpose(x)
        elif op == "diamond":
            x = b.binary("add", b.exp(x), b.binary("multiply", x, x))
        else:
            x = b.matmul(x, b.argument((shape[1], inner)))
    b.last = x if x is not first else b.exp(x)  # type: ignore[attr-defined]
    return b


def times(ops: list[str], rows: int, columns: int, target: str = "trn2", lnc: int = 1):
    b = build(ops, rows, columns)
    machine = resolve_target(target)
    return schedule(b.program(b.last), Core.of(machine, lnc), machine)  # type: ignore[attr-defined]


chains = st.lists(st.sampled_from(OPS), min_size=1, max_size=7)
sizes = st.sampled_from([1, 3, 64, 128, 300, 1024, 4096, 16384])


@QUICK
@given(chains, sizes, sizes, st.sampled_from(["trn1", "trn2", "trn3"]))
def test_no_queue_works_longer_than_the_program(ops, rows, columns, target):
    timeline = times(ops, rows, columns, target)
    for queue in QUEUES:
        assert timeline.busy_seconds(queue) <= timeline.total_seconds * (1 + 1e-9)
    assert all(
        e.end_seconds <= timeline.total_seconds * (1 + 1e-9) for e in timeline.events
    )
    assert all(e.start_seconds >= 0 for e in timeline.events)
    for e in timeline.events:
        assert e.queue_seconds <= (e.end_seconds - e.start_seconds) * (1 + 1e-9)


@QUICK
@given(chains, sizes, sizes)
def test_consumers_start_after_the_first_tile_and_end_after_the_last(
    ops, rows, columns
):
    timeline = times(ops, rows, columns)
    fused = timeline.memory.main.fused
    number = {id(members[0]): n for n, members in enumerate(timeline.fused)}
    made = {v: s for s in fused.steps for v in s.results}
    works: dict[int, list] = {}
    for event in timeline.events:
        if event.queue != "dma" and event.name != "ACT_TABLE_LOAD":
            works.setdefault(event.instruction, []).append(event)
    for step in fused.steps:
        own = works.get(number.get(id(step.members[0]), -1), [])
        for value in fused.reads(step):
            before = made.get(value)
            theirs = works.get(number.get(id(before.members[0]), -1)) if before else []
            if own and theirs:
                tile = theirs[0].queue_seconds / theirs[0].pieces
                first = theirs[0].start_seconds + tile
                assert own[0].start_seconds >= first * (1 - 1e-9)
                assert own[-1].end_seconds >= theirs[-1].end_seconds * (1 - 1e-9)


@QUICK
@given(chains, sizes, sizes)
def test_dma_bytes_are_those_of_the_plan(ops, rows, columns):
    timeline = times(ops, rows, columns)
    assert timeline.hbm_read_bytes == timeline.memory.hbm_read_bytes
    assert timeline.hbm_write_bytes == timeline.memory.hbm_write_bytes


@QUICK
@given(chains, sizes, sizes)
def test_every_argument_is_read_and_the_result_written(ops, rows, columns):
    b = build(ops, rows, columns)
    machine = resolve_target("trn2")
    plan = plan_memory(b.program(b.last), Core.of(machine, 1))  # type: ignore[attr-defined]
    fused = plan.main.fused
    read, written = {}, {}
    for transfer in plan.main.transfers():
        side = read if transfer.is_read else written
        assert transfer.buffer is not None
        number = transfer.buffer.number
        side[number] = side.get(number, 0) + transfer.bytes
    for value in fused.arguments:
        assert read[value] >= fused.sizes[value]
    (result,) = fused.results
    assert sum(written.values()) >= fused.sizes[result]
    assert set(read) - set(fused.arguments) <= set(written)


@QUICK
@given(chains, sizes, sizes)
def test_the_same_program_has_the_same_schedule(ops, rows, columns):
    one, two = (times(ops, rows, columns) for _ in range(2))
    assert one.total_seconds == two.total_seconds
    first, second = (
        [
            (e.queue, e.start_seconds, e.end_seconds, e.name, e.instruction)
            for e in timeline.events
        ]
        for timeline in (one, two)
    )
    assert first == second


@QUICK
@given(chains, sizes, sizes, st.sampled_from(["rows", "columns"]))
def test_more_elements_are_never_cheaper(ops, rows, columns, which):
    small = times(ops, rows, columns).total_seconds
    more = (2 * rows, columns) if which == "rows" else (rows, 2 * columns)
    assert times(ops, *more).total_seconds >= 0.98 * small - SLACK


@QUICK
@given(chains, st.sampled_from([op for op in OPS if op != "matmul"]), sizes, sizes)
def test_more_operations_are_never_cheaper(ops, op, rows, columns):
    small = times(ops, rows, columns).total_seconds
    assert times([*ops, op], rows, columns).total_seconds >= 0.98 * small - SLACK


@QUICK
@given(chains, sizes, sizes)
def test_two_physical_cores_are_never_slower(ops, rows, columns):
    """But for what it takes them to begin and end together."""
    one = times(ops, rows, columns, lnc=1).scheduled_seconds
    assert times(ops, rows, columns, lnc=2).scheduled_seconds <= 1.02 * one + SLACK


@QUICK
@given(chains, sizes, sizes)
def test_faster_dma_is_never_slower(ops, rows, columns):
    b = build(ops, rows, columns)
    machine = resolve_target("trn2")
    chip = machine.chip
    faster = dataclasses.replace(
        chip,
        dma_engine_bytes_per_second=2 * chip.dma_engine_bytes_per_second,
        hbm_bytes_per_second=2 * chip.hbm_bytes_per_second,
    )
    program = b.program(b.last)  # type: ignore[attr-defined]
    one, two = (
        schedule(program, Core(c, 1), machine).total_seconds for c in (chip, faster)
    )
    assert two <= 1.02 * one + SLACK


@pytest.mark.slow
@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(chains, sizes, sizes, st.sampled_from(["trn1", "trn2", "trn3"]))
def test_properties_of_many_programs(ops, rows, columns, target):
    timeline = times(ops, rows, columns, target)
    for queue in QUEUES:
        assert timeline.busy_seconds(queue) <= timeline.total_seconds * (1 + 1e-9)
    assert timeline.hbm_read_bytes == timeline.memory.hbm_read_bytes
    assert timeline.hbm_write_bytes == timeline.memory.hbm_write_bytes
