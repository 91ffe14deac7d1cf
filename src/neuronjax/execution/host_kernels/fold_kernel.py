"""The systolic array's sums as machine code, generated through LLVM.

    for t in tiles:  for pass in passes:
        for g in groups of cells of t:
            sum = 0
            for p in cells of g:
                s = a[p, 0] * b[p, 0];  for j in 1 .. J-1: s = s + a[p, j] * b[p, j]
                sum = sum + s                (J = 1: one fused multiply-add)
            tile = sum, or tile + sum
        total = tile, or total + tile    (the first one: tile, or start + tile)

in FP32. Every element of the result is computed independently, so blocks, panels and
threads change no bit. A block's operands are packed into panels as wide as the part of
the result that registers hold: `rows` times `vectors`, each of `lanes` columns.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from neuronjax.execution.host_kernels.panels import WORD, PanelOperand, PanelPacker
from neuronjax.numerics.host_kernels import elements, handler
from neuronjax.numerics.host_kernels.compiled import (
    F32,
    I1,
    I32,
    I64,
    POINTER,
    SIZES,
    VOID,
    Code,
    Processor,
    Value,
    as_floats,
    int64,
    shaped,
)

#: The fields of the plan that the kernel reads: a contraction [batch, m, k] x [batch,
#: k, n], and how it is cut into blocks. A pass of the array has `k_tile` rows in
#: `cells`, of which `group` form one sum. Row j of cell p of a K tile is its row `p *
#: cell_stride + j * row_stride`. `canonical` says whether zeros become +0 and NaNs one
#: bit pattern, as a sum leaves PSUM. Strides count elements; batch strides are
#: distances between matrices.
FOLD_FIELDS = (
    *("m", "n", "k", "k_tile", "tiles", "cells", "group"),
    *("cell_stride", "row_stride", "canonical"),
    *(
        f"{side}_{axis}"
        for side in ("lhs", "lhs_scale", "rhs", "rhs_scale")
        for axis in ("batch", "k", "free")
    ),
    *("block_m", "block_n", "blocks_m", "blocks_n"),
)


class RegisterTile(NamedTuple):
    """The part of a result that the registers hold."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclasses.dataclass(frozen=True)
class FoldKind:
    """The properties that select one kernel.

    Attributes:
        lhs, rhs: how operands are stored, keys of `compiled.SIZES`.
        rows_per_cell: the rows of K that one cell holds, J.
        passes: 1, or 4 for high and low halves.
        in_range: whether all products are known to be exact, for J > 1.
        narrow: whether the kernel is for one or two rows.
        lhs_scaled, rhs_scaled: whether blocks of 32 along K have E8M0 scales.
        started: whether an operand holds the sums to which the first tile is added.
    """

    lhs: str
    rhs: str
    rows_per_cell: int
    passes: int
    in_range: bool
    narrow: bool
    lhs_scaled: bool = False
    rhs_scaled: bool = False
    started: bool = False

    @property
    def name(self) -> str:
        """Return the name of the call's target."""
        return "_".join(["neuronjax_fold", *map(str, dataclasses.astuple(self))])

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the call's operands in order; the result follows them."""
        names: list[str] = []
        for side in ("lhs", "rhs"):
            scaled = getattr(self, f"{side}_scaled")
            names += [side, f"{side}_scales"] if scaled else [side]
        tables = (x for x in ("lhs", "rhs") if getattr(self, x) == "table")
        return (*names, *["start"] * self.started, *(f"{x}_table" for x in tables))


# Lanes -> rows in a cell -> rows of running sums, of two vectors each, in registers.
# The rest is for operands and products: AVX2 has 16 registers, the others 32.
_ROWS = {
    16: {1: 12, 2: 8, 4: 6},
    8: {1: 6, 2: 4, 4: 4},
    4: {1: 12, 2: 8, 4: 6},
}


def register_tile(kind: FoldKind, lanes: int) -> RegisterTile:
    if kind.narrow:
        return RegisterTile(rows=1, vectors=4, lanes=lanes)
    return RegisterTile(_ROWS[lanes][kind.rows_per_cell], vectors=2, lanes=lanes)


def write(
    module: ir.Module, lanes: int, kind: FoldKind, registers: RegisterTile
) -> str:
    """Return, as text, the module of one kind of kernel."""
    del lanes  # `registers` has the number of lanes
    block = _FoldBuilder(module, kind, registers).block()
    arguments = len(kind.operands)
    return handler.build(module, kind.name, block, arguments, 1, len(FOLD_FIELDS))


def scratch_bytes(registers: RegisterTile, depth: int, block: tuple[int, int]) -> int:
    """Return the memory per thread, besides the operands, for panels of this depth."""
    wide = -(-block[1] // registers.columns) * registers.columns
    high = -(-block[0] // registers.rows) * registers.rows
    tile = registers.rows * registers.columns
    return WORD * ((wide + high) * depth + tile) + 64 * 8


class _BlockOperand(NamedTuple):
    """One operand of a block: the `there` rows from row `first` on, in `panels` panels
    of `width` rows. A panel has `floats` floats, the panels of a half have `whole`."""

    operand: PanelOperand
    first: Value
    there: Value
    width: int
    panels: Value
    floats: Value
    whole: Value


class _FoldBuilder:
    def __init__(
        self, module: ir.Module, kind: FoldKind, registers: RegisterTile
    ) -> None:
        self._module = module
        self._kind = kind
        self._processor = Processor.of(module.triple)
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
        """Build `void (ptr a, ptr b, i64 cells, i64 group, ptr out)`, which adds up
        groups of cells, and then the sums of the groups in order."""
        name = "exact_cells" if exact else "cells"
        function = self._function(name, VOID, (POINTER, POINTER, I64, I64, POINTER))
        a, b, cells, group, out = function.args
        function.attributes.add("noinline")
        c, (rows, vectors, lanes) = Code.of(function), self._registers
        j = self._kind.rows_per_cell
        zero = ir.Constant(self._vector, [0.0] * lanes)

        def step(p: Value, sums: list[Value]) -> list[Value]:
            cell = c.add(first, p)
            left = c.at(a, c.mul(cell, int64(j * rows)), WORD)
            right = c.at(b, c.mul(cell, int64(j * vectors * lanes)), WORD)
            columns = [
                c.read(self._vector, c.at(right, n * lanes, WORD))
                for n in range(j * vectors)
            ]
            factors = self._factors(c, left, j * rows)
            out = []
            for r in range(rows):
                for v in range(vectors):
                    pairs = [
                        (factors[i * rows + r], columns[i * vectors + v])
                        for i in range(j)
                    ]
                    out.append(_add_cell(c, sums[r * vectors + v], pairs, exact))
            return out

        with c.loop(c.rounded_up(cells, group)) as g:
            first = c.mul(g, group)
            count = c.smaller(group, c.sub(cells, first))
            sums = c.fold(count, [zero] * (rows * vectors), step)
            is_first = c.icmp_signed("==", g, int64(0))
            for n, x in enumerate(sums):
                place = c.at(out, n * lanes, WORD)
                c.write(c.select(is_first, x, c.fadd(c.read(x.type, place), x)), place)
        c.ret_void()
        return function

    def _factors(self, c: Code, base: Value, count: int) -> list[Value]:
        """Return `count` consecutive numbers, each broadcast to a vector."""
        lanes = self._registers.lanes
        if self._processor.by_lane and count % lanes == 0:
            some = [
                c.read(self._vector, c.at(base, n, WORD))
                for n in range(0, count, lanes)
            ]
            return [c.shuffled(x, x, [n] * lanes) for x in some for n in range(lanes)]
        return [c.splat(c.read(F32, c.at(base, n, WORD)), lanes) for n in range(count)]

    def _distance(self) -> ir.Function:
        """Build `i32 (ptr panels, i64 floats)`, which is `array_fold.distance`."""
        function = self._function("distance", I32, (POINTER, I64))
        panels, floats = function.args
        c, lanes = Code.of(function), self._registers.lanes

        def step(n: Value, farthest: list[Value]) -> list[Value]:
            at = c.at(panels, c.mul(n, int64(lanes)), WORD)
            bits = elements.magnitude(c, c.read(self._integers, at))
            like = functools.partial(c.like, bits)
            small = c.icmp_signed("<", bits, like(elements.IMPLICIT))
            bits = c.select(small, like(0x3F800000), bits)
            infinite = c.icmp_signed(">", bits, like(elements.INFINITY))
            bits = c.select(infinite, like(elements.INFINITY), bits)
            other = c.sub(like(2 * 0x3F800000), bits)
            return [elements.larger(c, elements.larger(c, bits, other), farthest[0])]

        nothing = ir.Constant(self._integers, [0] * lanes)
        [found] = c.fold(c.sdiv(floats, int64(lanes)), [nothing], step)
        c.ret(c.ashr(elements.largest_lane(c, found), I32(23)))
        return function

    # -- the result --------------------------------------------------------------------

    def _merge(self) -> ir.Function:
        """Build `void (ptr sums, ptr before, ptr out, i64 stride, i64 rows, i64
        columns, i1 first, i1 last)`, which adds sums to earlier sums, if any. With
        `last` zeros become +0 and NaNs one NaN, as when they leave PSUM."""
        types = (POINTER, POINTER, POINTER, I64, I64, I64, I1, I1)
        function = self._function("merge", VOID, types)
        sums, before, out, stride, rows, columns, first, last = function.args
        c, registers = Code.of(function), self._registers
        with c.loop(rows) as r:
            source = c.at(sums, c.mul(r, int64(registers.columns)), WORD)
            of, to = (c.at(x, c.mul(r, stride), WORD) for x in (before, out))
            for n, lanes in c.strips(columns, registers.lanes):
                place = c.at(to, n, WORD)
                x = c.read(shaped(F32, lanes), c.at(source, n, WORD))
                old = c.read(x.type, c.at(of, n, WORD))
                x = c.select(first, x, c.fadd(old, x))
                settled = c.fadd(x, as_floats(c, c.like(x, 0)))
                is_nan = c.fcmp_unordered("uno", settled, settled)
                nan = as_floats(c, c.like(x, 0x7FC00000))
                settled = c.select(is_nan, nan, settled)
                c.write(c.select(last, settled, x), place)
        c.ret_void()
        return function

    # -- a block -----------------------------------------------------------------------

    def block(self) -> ir.Function:
        """Build `void (i64 index, ptr operands, ptr plan, ptr scratch)`. `operands`
        are the addresses of the kind's operands and of the result."""
        kind = self._kind
        function = handler.block(self._module, kind.name)
        index, operands, plan, scratch = function.args
        self._exact, self._rounded = self._cells(True), None
        # With one row per cell a fused multiply-add is right for any product, unless
        # the processor flushes before it rounds.
        looks = kind.rows_per_cell > 1 or self._processor.flushes_first
        if looks and not kind.in_range:
            self._rounded, self._far = self._cells(False), self._distance()
        self._merged = self._merge()
        self._c = c = Code.of(function)
        names = (*kind.operands, "out")
        p = dict(zip(FOLD_FIELDS, c.numbers(plan, len(FOLD_FIELDS)), strict=True))
        self._p = p
        where = dict(zip(names, c.pointers(operands, len(names)), strict=True))
        per = c.mul(p["blocks_m"], p["blocks_n"])
        batch, rest = c.sdiv(index, per), c.srem(index, per)
        m0 = c.mul(c.sdiv(rest, p["blocks_n"]), p["block_m"])
        n0 = c.mul(c.srem(rest, p["blocks_n"]), p["block_n"])
        row = c.add(c.mul(batch, p["m"]), m0)
        first = c.add(c.mul(row, p["n"]), n0)
        start = "start" if self._kind.started else "out"
        outs = [c.at(where[name], first, WORD) for name in (start, "out")]
        sides = (
            self._side(where, "lhs", batch, m0, "m"),
            self._side(where, "rhs", batch, n0, "n"),
        )
        self._tiles(sides, scratch, outs)
        c.ret_void()
        return function

    def _side(
        self, where: dict[str, Value], side: str, batch: Value, first: Value, axis: str
    ) -> _BlockOperand:
        c, p = self._c, self._p
        stored = getattr(self._kind, side)
        data = c.at(where[side], c.mul(batch, p[f"{side}_batch"]), SIZES[stored])
        scales = where.get(f"{side}_scales")
        if scales is not None:
            scales = c.at(scales, c.mul(batch, p[f"{side}_scale_batch"]))
        strides = (p[f"{side}_{x}"] for x in ("k", "free", "scale_k", "scale_free"))
        table = where.get(f"{side}_table", data)
        x = PanelOperand(stored, data, table, scales, *strides)
        registers = self._registers
        width = registers.rows if side == "lhs" else registers.columns
        there = c.smaller(p[f"block_{axis}"], c.sub(p[axis], first))
        panels = c.rounded_up(there, int64(width))
        depth = c.mul(p["cells"], int64(self._kind.rows_per_cell))
        floats = c.mul(depth, int64(width))
        return _BlockOperand(
            x, first, there, width, panels, floats, c.mul(panels, floats)
        )

    def _tiles(
        self, sides: tuple[_BlockOperand, ...], scratch: Value, outs: list[Value]
    ) -> None:
        """Loop over K tiles: pack panels, then add their products to the result."""
        c, p = self._c, self._p
        lhs, rhs = sides
        halves = ("high", "low") if self._kind.passes == 4 else ("whole",)
        left = c.at(scratch, self._tile, WORD)
        right = c.at(left, c.mul(lhs.whole, int64(len(halves))), WORD)
        with c.loop(p["tiles"]) as t:
            for side, to in ((lhs, left), (rhs, right)):
                self._packed(side, t, halves, to)
            is_first = c.icmp_signed("==", t, int64(0))
            is_last = c.and_(
                c.icmp_signed("==", t, c.sub(p["tiles"], int64(1))),
                c.icmp_signed("!=", p["canonical"], int64(0)),
            )
            in_range = None
            if self._rounded is not None:
                whole = [c.mul(x.whole, int64(len(halves))) for x in sides]
                far = c.add(
                    c.call(self._far, [left, whole[0]]),
                    c.call(self._far, [right, whole[1]]),
                )
                in_range = c.icmp_signed("<=", far, I32(126 - 2 + 2 * 127))
            with c.loop(rhs.panels) as nb, c.loop(lhs.panels) as na:
                row, column = (
                    c.mul(n, int64(x.width)) for n, x in ((na, lhs), (nb, rhs))
                )
                place = c.add(c.mul(row, p["n"]), column)
                start, to = (c.at(x, place, WORD) for x in outs)
                there = [
                    c.smaller(int64(x.width), c.sub(x.there, at))
                    for x, at in ((lhs, row), (rhs, column))
                ]
                for n in range(self._kind.passes):
                    a, b = (
                        c.at(
                            base,
                            c.add(c.mul(at, x.floats), c.mul(int64(half), x.whole)),
                            WORD,
                        )
                        for base, at, x, half in (
                            (left, na, lhs, n // 2),
                            (right, nb, rhs, n % 2),
                        )
                    )
                    self._pass(a, b, scratch, in_range)
                    first = is_first if n == 0 else I1(0)
                    last = is_last if n == self._kind.passes - 1 else I1(0)
                    given = [scratch, c.select(first, start, to), to, p["n"], *there]
                    first = I1(0) if self._kind.started else first
                    c.call(self._merged, [*given, first, last])

    def _packed(
        self, side: _BlockOperand, t: Value, halves: Sequence[str], to: Value
    ) -> None:
        """Write the panels of a K tile, those of the high half first."""
        c, p = self._c, self._p
        k0 = c.mul(t, p["k_tile"])
        with c.loop(side.panels) as n:
            at = c.mul(n, int64(side.width))
            for h, half in enumerate(halves):
                panel = c.add(c.mul(int64(h), side.whole), c.mul(n, side.floats))
                PanelPacker(
                    c=c,
                    operand=side.operand,
                    width=side.width,
                    half=half,
                    rows_per_cell=self._kind.rows_per_cell,
                    lanes=self._registers.lanes,
                    k0=k0,
                    left=c.smaller(p["k_tile"], c.sub(p["k"], k0)),
                    first=c.add(side.first, at),
                    there=c.smaller(int64(side.width), c.sub(side.there, at)),
                    **{x: p[x] for x in ("cells", "cell_stride", "row_stride")},
                    out=c.at(to, panel, WORD),
                ).write()

    def _pass(self, a: Value, b: Value, out: Value, in_range: Value | None) -> None:
        c, arguments = self._c, [a, b, self._p["cells"], self._p["group"], out]
        if in_range is None:
            c.call(self._exact, arguments)
            return
        with c.if_else(in_range) as (exact, rounded):
            with exact:
                c.call(self._exact, arguments)
            with rounded:
                c.call(self._rounded, arguments)


def _add_cell(c: Code, total: Value, pairs: list[tuple], exact: bool) -> Value:
    """Return a running sum plus the sum of one cell. Exact products may be added by
    fused multiply-adds, which then round as two operations do; other products are
    rounded first. A cell of one row always takes a fused multiply-add, by
    `_fused_first` if the product may be inexact."""
    (a, b), *rest = pairs
    if not rest:
        return c.fused(a, b, total) if exact else _fused_first(c, a, b, total)
    s = c.fmul(a, b)
    for a, b in rest:
        s = c.fused(a, b, s) if exact else c.fadd(s, c.fmul(a, b))
    return c.fadd(total, s)


def _fused_first(c: Code, a: Value, b: Value, total: Value) -> Value:
    """Return a * b + total, rounded first and then flushed, on a processor that flushes
    first. The same sum, 2^60 times larger, shows how the sum would be rounded. It
    overflows only where the sum is not one of the smallest numbers."""
    like = functools.partial(c.like, total)
    up, down = (as_floats(c, like((127 + n) << 23)) for n in (60, -60))
    large = c.fused(c.fmul(a, up), b, c.fmul(total, up))
    size = elements.magnitude(c, c.bitcast(large, like(0).type))
    is_smallest = c.icmp_signed("==", size, like((1 + 60) << 23))
    return c.select(is_smallest, c.fmul(large, down), c.fused(a, b, total))
