"""The systolic array's sums as machine code, from LLVM's own representation.

    for t in tiles:  for pass in passes:
        sum = 0
        for p in cells of t:
            s = a[p, 0] * b[p, 0];  for j in 1 .. J-1: s = s + a[p, j] * b[p, j]
            sum = sum + s                    (J = 1: one fused multiply-add)
        total = sum, or total + sum

in FP32, every element of the result by itself, so that blocks, panels and threads
change no bit. A block's operands are packed into panels as wide as the registers that
hold a part of the result: `lanes` columns at a time, `rows` times `vectors` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from neuronjax.execution.host_kernels.code import (
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    VOID,
    Code,
    int64,
)
from neuronjax.execution.host_kernels.plan import FIELDS

Value = Any
WORD = 4  # bytes of a float

#: How an operand lies in memory: "float32", "bfloat16", or codes of 8 bits, of which a
#: table says what they are.
STORED = ("float32", "bfloat16", "table")


class RegisterTile(NamedTuple):
    """The part of a result that registers hold."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class FoldKind:
    """Which kernel.

    Attributes:
        lhs, rhs: of `STORED`.
        rows_per_cell: J.
        passes: 1, or 4 of high and low halves.
        in_range: that all products are exact is promised, where J > 1.
        narrow: for a row or two.
    """

    lhs: str
    rhs: str
    rows_per_cell: int
    passes: int
    in_range: bool
    narrow: bool

    @property
    def name(self) -> str:
        """Of the call's target."""
        parts = [self.lhs, self.rhs, str(self.rows_per_cell), str(self.passes)]
        parts += [word for word in ("in_range", "narrow") if getattr(self, word)]
        return "_".join(["neuronjax_fold", *parts])

    @property
    def tables(self) -> int:
        """How many operands follow lhs and rhs."""
        return (self.lhs == "table") + (self.rhs == "table")


def build(module: ir.Module, kind: FoldKind, registers: RegisterTile) -> ir.Function:
    """`void block(i64 index, ptr operands, ptr plan, ptr scratch)` of a kind.

    `operands` are the addresses of lhs, rhs, the result and the tables of lhs and rhs.
    """
    return _FoldBuilder(module, kind, registers).block()


def scratch_bytes(kind: FoldKind, registers: RegisterTile, plan: Any) -> int:
    """What one thread needs beside the operands."""
    halves = 2 if kind.passes == 4 else 1
    wide = -(-plan.block_n // registers.columns) * registers.columns
    high = -(-plan.block_m // registers.rows) * registers.rows
    depth = plan.cells * kind.rows_per_cell * halves
    tile = registers.rows * registers.columns
    return WORD * ((wide + high) * depth + 2 * tile) + 64 * 8


class _FoldBuilder:
    def __init__(
        self, module: ir.Module, kind: FoldKind, registers: RegisterTile
    ) -> None:
        self._module = module
        self._kind = kind
        self._registers = registers
        self._vector = ir.VectorType(F32, registers.lanes)
        self._integers = ir.VectorType(I32, registers.lanes)
        self._tile = registers.rows * registers.columns

    def _function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        function = ir.Function(self._module, kind, f"{self._kind.name}_{name}")
        function.linkage = "internal"
        return function

    # -- registers ---------------------------------------------------------------------

    def _cells(self, exact: bool) -> ir.Function:
        """`void (ptr a, ptr b, i64 cells, ptr out)`: the sum of some cells."""
        name = "exact_cells" if exact else "cells"
        function = self._function(name, VOID, (POINTER, POINTER, I64, POINTER))
        a, b, cells, out = function.args
        function.attributes.add("noinline")
        c, (rows, vectors, lanes) = Code.of(function), self._registers
        j = self._kind.rows_per_cell
        zero = ir.Constant(self._vector, [0.0] * lanes)

        def step(p: Value, sums: list[Value]) -> list[Value]:
            left = c.at(a, c.mul(p, int64(j * rows)), WORD)
            right = c.at(b, c.mul(p, int64(j * vectors * lanes)), WORD)
            columns = [
                c.read(self._vector, c.at(right, n * lanes, WORD))
                for n in range(j * vectors)
            ]
            out = []
            for r in range(rows):
                factors = [
                    c.splat(c.read(F32, c.at(left, i * rows + r, WORD)), lanes)
                    for i in range(j)
                ]
                for v in range(vectors):
                    pairs = [(factors[i], columns[i * vectors + v]) for i in range(j)]
                    out.append(_add_cell(c, sums[r * vectors + v], pairs, exact))
            return out

        sums = c.fold(cells, [zero] * (rows * vectors), step)
        for n, x in enumerate(sums):
            c.write(x, c.at(out, n * lanes, WORD))
        c.ret_void()
        return function

    # -- panels ------------------------------------------------------------------------

    def _pack(self, stored: str, width: int, half: str) -> ir.Function:
        """A panel of an operand's K tile, `width` rows or columns side by side.

        `void (ptr data, ptr table, i64 k_stride, i64 free_stride, i64 free, i64 cells,
        i64 k, i64 cell_stride, i64 row_stride, ptr out)`: `free` that there are, zeros
        stand for others, and for rows from k on.
        """
        name = f"pack_{stored}_{width}_{half}"
        function = self._function(name, VOID, (POINTER, POINTER, *[I64] * 7, POINTER))
        function.attributes.add("noinline")
        (
            data,
            table,
            k_stride,
            free_stride,
            free,
            cells,
            k,
            cell_stride,
            row_stride,
            out,
        ) = function.args
        c, j = Code.of(function), self._kind.rows_per_cell
        size = {"float32": 4, "bfloat16": 2, "table": 1}[stored]

        def rows(body: Any) -> None:
            with c.loop(cells) as p:
                for i in range(j):
                    row = c.add(c.mul(p, cell_stride), c.mul(int64(i), row_stride))
                    to = c.at(
                        out, c.add(c.mul(p, int64(j * width)), int64(i * width)), WORD
                    )
                    body(row, to)

        def element(row: Value, f: Value, to: Value) -> None:
            index = c.add(c.mul(row, k_stride), c.mul(f, free_stride))
            inside = c.icmp_signed("<", row, k)
            # What is not there is read from the first element and not used.
            address = c.at(data, c.select(inside, index, int64(0)), size)
            x = _half(c, _stored(c, stored, address, table), half)
            c.write(c.select(inside, x, F32(0.0)), c.at(to, f, WORD))

        whole = c.and_(
            c.icmp_signed("==", free_stride, int64(1)),
            c.icmp_signed("==", free, int64(width)),
        )
        with c.if_else(whole) as (contiguous, strided):
            with contiguous:
                rows(
                    lambda row, to: self._copy_row(
                        c,
                        stored,
                        half,
                        width,
                        size,
                        data,
                        table,
                        c.mul(row, k_stride),
                        c.icmp_signed("<", row, k),
                        to,
                    )
                )
            with strided:
                edge = c.icmp_signed("<", free, int64(width))
                with c.if_then(edge):
                    floats = c.mul(cells, int64(j * width))
                    with c.loop(floats) as n:
                        c.write(F32(0.0), c.at(out, n, WORD))
                with c.loop(free) as f:
                    rows(lambda row, to: element(row, f, to))
        c.ret_void()
        return function

    def _copy_row(
        self,
        c: Code,
        stored: str,
        half: str,
        width: int,
        size: int,
        data: Value,
        table: Value,
        start: Value,
        inside: Value,
        to: Value,
    ) -> None:
        """`width` elements that stand side by side."""
        lanes = self._registers.lanes
        start = c.select(inside, start, int64(0))
        if stored == "table" or width % lanes:
            for n in range(width):
                address = c.at(data, c.add(start, int64(n)), size)
                x = _half(c, _stored(c, stored, address, table), half)
                c.write(c.select(inside, x, F32(0.0)), c.at(to, n, WORD))
            return
        zeros = ir.Constant(self._vector, [0.0] * lanes)
        for n in range(0, width, lanes):
            address = c.at(data, c.add(start, int64(n)), size)
            if stored == "bfloat16":
                bits = c.read(ir.VectorType(I16, lanes), address, 2)
                bits = c.shl(
                    c.zext(bits, self._integers),
                    ir.Constant(self._integers, [16] * lanes),
                )
                x = c.bitcast(bits, self._vector)
            else:
                x = c.read(self._vector, address)
            x = _half(c, x, half)
            c.write(c.select(inside, x, zeros), c.at(to, n, WORD))

    def _distance(self) -> ir.Function:
        """`i32 (ptr panels, i64 floats)`: as `cell_fold._distance`."""
        function = self._function("distance", I32, (POINTER, I64))
        panels, floats = function.args
        c, lanes = Code.of(function), self._registers.lanes

        def constant(x: int) -> ir.Constant:
            return ir.Constant(self._integers, [x] * lanes)

        def step(n: Value, farthest: list[Value]) -> list[Value]:
            at = c.at(panels, c.mul(n, int64(lanes)), WORD)
            bits = c.and_(c.read(self._integers, at), constant(0x7FFFFFFF))
            bits = c.select(
                c.icmp_signed("<", bits, constant(0x00800000)),
                constant(0x3F800000),
                bits,
            )
            infinite = c.icmp_signed(">", bits, constant(0x7F800000))
            bits = c.select(infinite, constant(0x7F800000), bits)
            other = c.sub(constant(2 * 0x3F800000), bits)
            larger = c.select(c.icmp_signed(">", bits, other), bits, other)
            [before] = farthest
            return [c.select(c.icmp_signed(">", larger, before), larger, before)]

        [found] = c.fold(c.sdiv(floats, int64(lanes)), [constant(0)], step)
        name = f"llvm.vector.reduce.smax.v{lanes}i32"
        reduce = c.external(name, I32, self._integers)
        c.ret(c.ashr(c.call(reduce, [found]), I32(23)))
        return function

    # -- the result --------------------------------------------------------------------

    def _merge(self) -> ir.Function:
        """`void (ptr sums, ptr out, i64 stride, i64 rows, i64 columns, i1 first, i1
        last)`: adds sums to a result; the last ones as they leave PSUM."""
        function = self._function(
            "merge", VOID, (POINTER, POINTER, I64, I64, I64, I1, I1)
        )
        sums, out, stride, rows, columns, first, last = function.args
        c, (_, vectors, lanes) = Code.of(function), self._registers
        width = vectors * lanes

        def one(kind: Any, zero: Value, nan: Value, source: Value, to: Value) -> None:
            x = c.read(kind, source)
            known = c.read(kind, to)
            x = c.select(first, x, c.fadd(known, x))
            settled = c.fadd(x, zero)
            settled = c.select(c.fcmp_unordered("uno", settled, settled), nan, settled)
            c.write(c.select(last, settled, x), to)

        quiet = ir.Constant(I32, 0x7FC00000)
        with c.loop(rows) as r:
            source = c.at(sums, c.mul(r, int64(width)), WORD)
            to = c.at(out, c.mul(r, stride), WORD)
            is_whole = c.icmp_signed("==", columns, int64(width))
            with c.if_else(is_whole) as (whole, part):
                with whole:
                    nans = ir.Constant(self._integers, [0x7FC00000] * lanes)
                    zeros = ir.Constant(self._vector, [0.0] * lanes)
                    for v in range(vectors):
                        at = v * lanes
                        one(
                            self._vector,
                            zeros,
                            c.bitcast(nans, self._vector),
                            c.at(source, at, WORD),
                            c.at(to, at, WORD),
                        )
                with part, c.loop(columns) as n:
                    one(
                        F32,
                        F32(0.0),
                        c.bitcast(quiet, F32),
                        c.at(source, n, WORD),
                        c.at(to, n, WORD),
                    )
        c.ret_void()
        return function

    def _add_group(self) -> ir.Function:
        """`void (ptr sums, ptr total, i1 first)`: a group's sums to those before."""
        function = self._function("group", VOID, (POINTER, POINTER, I1))
        sums, total, first = function.args
        c, lanes = Code.of(function), self._registers.lanes
        with c.loop(self._tile // lanes) as n:
            at = c.mul(n, int64(lanes))
            x, to = c.read(self._vector, c.at(sums, at, WORD)), c.at(total, at, WORD)
            known = c.read(self._vector, to)
            c.write(c.select(first, x, c.fadd(known, x)), to)
        c.ret_void()
        return function

    # -- a block -----------------------------------------------------------------------

    def block(self) -> ir.Function:
        kind, (rows, _, _) = self._kind, self._registers
        columns, j = self._registers.columns, kind.rows_per_cell
        function = self._function("block", VOID, (I64, POINTER, POINTER, POINTER))
        index, operands, plan, scratch = function.args
        halves = ("high", "low") if kind.passes == 4 else ("whole",)
        pack_a = [self._pack(kind.lhs, rows, h) for h in halves]
        pack_b = [self._pack(kind.rhs, columns, h) for h in halves]
        self._exact = self._cells(True) if j == 1 or kind.in_range else None
        self._rounded = None
        if self._exact is None:
            self._exact, self._rounded = self._cells(True), self._cells(False)
            self._far = self._distance()
        self._merged, self._grouped = self._merge(), self._add_group()

        c = Code.of(function)
        p = {name: c.read(I64, c.at(plan, n, 8), 8) for n, name in enumerate(FIELDS)}
        lhs, rhs, out, lhs_table, rhs_table = (
            c.read(POINTER, c.at(operands, n, 8), 8) for n in range(5)
        )
        per = c.mul(p["blocks_m"], p["blocks_n"])
        batch, rest = c.sdiv(index, per), c.srem(index, per)
        m0 = c.mul(c.sdiv(rest, p["blocks_n"]), p["block_m"])
        n0 = c.mul(c.srem(rest, p["blocks_n"]), p["block_n"])
        height = c.smaller(p["block_m"], c.sub(p["m"], m0))
        width = c.smaller(p["block_n"], c.sub(p["n"], n0))
        panels_a = c.rounded_up(height, int64(rows))
        panels_b = c.rounded_up(width, int64(columns))
        depth = c.mul(p["cells"], int64(j))
        floats_a = c.mul(depth, int64(rows))
        floats_b = c.mul(depth, int64(columns))
        sums, total = scratch, c.at(scratch, self._tile, WORD)
        a_panels = c.at(scratch, 2 * self._tile, WORD)
        all_a = c.mul(panels_a, floats_a)
        b_panels = c.at(a_panels, c.mul(all_a, int64(len(halves))), WORD)
        all_b = c.mul(panels_b, floats_b)
        size = {"float32": 4, "bfloat16": 2, "table": 1}
        first_a = c.add(c.mul(batch, p["lhs_batch"]), c.mul(m0, p["lhs_free"]))
        first_b = c.add(c.mul(batch, p["rhs_batch"]), c.mul(n0, p["rhs_free"]))
        whole = c.add(c.mul(batch, p["m"]), m0)
        out = c.at(out, c.add(c.mul(whole, p["n"]), n0), WORD)

        def packed(
            packs: list[Any],
            data: Value,
            table: Value,
            stored: str,
            first: Value,
            strides: tuple[Value, Value],
            count: Value,
            free: Value,
            width: int,
            floats: Value,
            everything: Value,
            to: Value,
            k0: Value,
            left: Value,
        ) -> None:
            k_stride, free_stride = strides
            start = c.add(first, c.mul(k0, k_stride))
            with c.loop(count) as n:
                at = c.mul(n, int64(width))
                origin = c.at(data, c.add(start, c.mul(at, free_stride)), size[stored])
                there = c.smaller(int64(width), c.sub(free, at))
                for h, pack in enumerate(packs):
                    panel = c.add(c.mul(int64(h), everything), c.mul(n, floats))
                    c.call(
                        pack,
                        [
                            origin,
                            table,
                            k_stride,
                            free_stride,
                            there,
                            p["cells"],
                            left,
                            p["cell_stride"],
                            p["row_stride"],
                            c.at(to, panel, WORD),
                        ],
                    )

        with c.loop(p["tiles"]) as t:
            k0 = c.mul(t, p["k_tile"])
            left = c.smaller(p["k_tile"], c.sub(p["k"], k0))
            packed(
                pack_a,
                lhs,
                lhs_table,
                kind.lhs,
                first_a,
                (p["lhs_k"], p["lhs_free"]),
                panels_a,
                height,
                rows,
                floats_a,
                all_a,
                a_panels,
                k0,
                left,
            )
            packed(
                pack_b,
                rhs,
                rhs_table,
                kind.rhs,
                first_b,
                (p["rhs_k"], p["rhs_free"]),
                panels_b,
                width,
                columns,
                floats_b,
                all_b,
                b_panels,
                k0,
                left,
            )
            is_first = c.icmp_signed("==", t, int64(0))
            is_last = c.and_(
                c.icmp_signed("==", t, c.sub(p["tiles"], int64(1))),
                c.icmp_signed("!=", p["settles"], int64(0)),
            )
            in_range = None
            if self._rounded is not None:
                far = c.add(
                    c.call(self._far, [a_panels, all_a]),
                    c.call(self._far, [b_panels, all_b]),
                )
                in_range = c.icmp_signed("<=", far, I32(126 - 2 + 2 * 127))
            with c.loop(panels_b) as nb, c.loop(panels_a) as na:
                row, column = c.mul(na, int64(rows)), c.mul(nb, int64(columns))
                to = c.at(out, c.add(c.mul(row, p["n"]), column), WORD)
                there = (
                    c.smaller(int64(rows), c.sub(height, row)),
                    c.smaller(int64(columns), c.sub(width, column)),
                )
                for n in range(kind.passes):
                    high, low = divmod(n, 2)
                    a = c.at(
                        a_panels,
                        c.add(c.mul(na, floats_a), c.mul(int64(high), all_a)),
                        WORD,
                    )
                    b = c.at(
                        b_panels,
                        c.add(c.mul(nb, floats_b), c.mul(int64(low), all_b)),
                        WORD,
                    )
                    self._pass(c, p, a, b, sums, total, in_range)
                    c.call(
                        self._merged,
                        [
                            total,
                            to,
                            p["n"],
                            *there,
                            is_first if n == 0 else I1(0),
                            is_last if n == kind.passes - 1 else I1(0),
                        ],
                    )
        c.ret_void()
        return function

    def _pass(
        self,
        c: Code,
        p: dict[str, Value],
        a: Value,
        b: Value,
        sums: Value,
        total: Value,
        in_range: Value | None,
    ) -> None:
        """One pass of the array for one part of the result, its groups added up."""
        j, rows = self._kind.rows_per_cell, self._registers.rows
        columns = self._registers.columns

        def cells(a: Value, b: Value, count: Value, to: Value) -> None:
            if in_range is None:
                c.call(self._exact, [a, b, count, to])
                return
            with c.if_else(in_range) as (exact, rounded):
                with exact:
                    c.call(self._exact, [a, b, count, to])
                with rounded:
                    c.call(self._rounded, [a, b, count, to])

        one_group = c.icmp_signed(">=", p["group"], p["cells"])
        with c.if_else(one_group) as (alone, several):
            with alone:
                cells(a, b, p["cells"], total)
            with several, c.loop(c.rounded_up(p["cells"], p["group"])) as g:
                at = c.mul(g, p["group"])
                count = c.smaller(p["group"], c.sub(p["cells"], at))
                left = c.at(a, c.mul(at, int64(j * rows)), WORD)
                right = c.at(b, c.mul(at, int64(j * columns)), WORD)
                cells(left, right, count, sums)
                first = c.icmp_signed("==", g, int64(0))
                c.call(self._grouped, [sums, total, first])


def _add_cell(c: Code, total: Value, pairs: list[tuple], exact: bool) -> Value:
    """One cell's sum added to a running one.

    Exact products may be added by fused multiply-adds, which round as two operations
    do; others are rounded first. A cell of one row hands on its product unrounded.
    """
    (a, b), *rest = pairs
    if not rest:
        return c.fused(a, b, total)
    s = c.fmul(a, b)
    for a, b in rest:
        s = c.fused(a, b, s) if exact else c.fadd(s, c.fmul(a, b))
    return c.fadd(total, s)


def _stored(c: Code, stored: str, address: Value, table: Value) -> Value:
    """An element as a float."""
    if stored == "float32":
        return c.read(F32, address)
    if stored == "bfloat16":
        bits = c.shl(c.zext(c.read(I16, address, 2), I32), I32(16))
        return c.bitcast(bits, F32)
    code = c.zext(c.read(I8, address, 1), I64)
    return c.read(F32, c.at(table, code, WORD))


def _half(c: Code, x: Value, half: str) -> Value:
    """The upper 12 significant bits, or the rest; of Inf and NaN all and nothing."""
    if half == "whole":
        return x
    vector = isinstance(x.type, ir.VectorType)

    def constant(bits: int) -> Value:
        if vector:
            return ir.Constant(ir.VectorType(I32, x.type.count), [bits] * x.type.count)
        return I32(bits)

    kind = ir.VectorType(I32, x.type.count) if vector else I32
    bits = c.bitcast(x, kind)
    exponent = constant(0x7F800000)
    finite = c.icmp_signed("!=", c.and_(bits, exponent), exponent)
    high = c.bitcast(c.and_(bits, constant(0xFFFFF000)), x.type)
    if half == "high":
        return c.select(finite, high, x)
    zero = ir.Constant(x.type, [0.0] * x.type.count) if vector else F32(0.0)
    return c.select(finite, c.fsub(x, high), zero)
