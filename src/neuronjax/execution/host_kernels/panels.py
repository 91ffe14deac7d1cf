"""Operands as registers take them: panels of a K tile in FP32.

A panel holds `width` rows or columns side by side, for cell after cell and row after
row of a cell, and zeros where there is none. Here what is stored becomes FP32: BF16,
codes of 8 bits by a table, blocks of 32 with a scale; and FP32 is split in high and low
halves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import (
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
from neuronjax.numerics.host_kernels.elements import SIZES

Value = Any
WORD = 4  # bytes of a float
#: Elements along K that share a scale.
BLOCK = 32


class PanelOperand(NamedTuple):
    """An operand in a kernel; strides are in elements.

    Attributes:
        stored: of `SIZES`.
        data: its first element, of the batch in work.
        table: of its codes, or anything.
        scales: E8M0 bytes, or None.
        k, free, scale_k, scale_free: strides of elements and scales.
    """

    stored: str
    data: Value
    table: Value
    scales: Value | None
    k: Value
    free: Value
    scale_k: Value
    scale_free: Value

    @property
    def name(self) -> str:
        return self.stored + ("_scaled" if self.scales is not None else "")


class PanelTile(NamedTuple):
    """What of an operand makes a panel.

    Attributes:
        k0, left: the tile's first row, and how many there are from there.
        first, there: the panel's first row or column, and how many there are.
        cells: of the tile.
        cell_stride, row_stride: between cells, and rows of a cell, in rows.
    """

    k0: Value
    left: Value
    first: Value
    there: Value
    cells: Value
    cell_stride: Value
    row_stride: Value


def pack(
    c: Code,
    x: PanelOperand,
    tile: PanelTile,
    width: int,
    half: str,
    rows_per_cell: int,
    lanes: int,
    out: Value,
) -> None:
    """Calls the function that makes a panel, which is written when first called.

    `half` is "whole", "high" or "low"; `out` takes cells * rows_per_cell * width
    floats.
    """
    scaled = x.scales is not None
    name = f"pack_{x.name}_{width}_{half}"
    function = c.module.globals.get(name)
    if function is None:
        kinds = [*[POINTER] * 4, *[I64] * (len(tile) + 4)]
        function = ir.Function(c.module, ir.FunctionType(VOID, kinds), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        _Packer(function, x.stored, scaled, width, half, rows_per_cell, lanes).write()
    scales = x.scales if scaled else x.data
    strides = (x.k, x.free, x.scale_k, x.scale_free)
    c.call(function, [x.data, x.table, scales, out, *tile, *strides])


class _Packer:
    def __init__(
        self,
        function: ir.Function,
        stored: str,
        scaled: bool,
        width: int,
        half: str,
        rows_per_cell: int,
        lanes: int,
    ) -> None:
        self._stored, self._scaled, self._half = stored, scaled, half
        self._width, self._j, self._lanes = width, rows_per_cell, lanes
        self._data, self._table, self._scales, self._out, *rest = function.args
        self._tile = PanelTile(*rest[:-4])
        self._k, self._free, self._scale_k, self._scale_free = rest[-4:]
        self._c = Code.of(function)

    def write(self) -> None:
        """The function's body."""
        c, there = self._c, self._tile.there
        whole = c.and_(
            c.icmp_signed("==", self._free, int64(1)),
            c.icmp_signed("==", there, int64(self._width)),
        )
        with c.if_else(whole) as (contiguous, strided):
            with contiguous:
                self._rows(self._copy_row)
            with strided, c.if_else(self._is_turned()) as (turned, other):
                with turned:
                    self._turn()
                with other:
                    with c.if_then(c.icmp_signed("<", there, int64(self._width))):
                        self._clear()
                    with c.loop(there) as f:
                        self._rows(lambda k, inside, to: self._one(k, inside, to, f))
        c.ret_void()

    # -- K along the memory ------------------------------------------------------------

    def _is_turned(self) -> Value:
        """Whether squares of the operand can be turned in registers: a whole panel, its
        rows side by side in memory in the order in which they are needed."""
        c, tile, lanes = self._c, self._tile, self._lanes
        if self._stored == "table" or self._scaled or self._width % lanes:
            return ir.Constant(I1, 0)
        between = (1, 1) if self._j == 1 else (self._j, 1)
        conditions = [
            c.icmp_signed("==", self._k, int64(1)),
            c.icmp_signed("==", tile.there, int64(self._width)),
            c.icmp_signed("==", tile.cell_stride, int64(between[0])),
            c.icmp_signed("==", tile.row_stride, int64(between[1])),
        ]
        return functools.reduce(c.and_, conditions)

    def _turn(self) -> None:
        """Squares of as many rows as lanes, then the rows that are left."""
        c, tile, lanes = self._c, self._tile, self._lanes
        squares = c.sdiv(tile.left, int64(lanes))
        with c.loop(squares) as s, c.loop(self._width // lanes) as g:
            row, column = (c.mul(n, int64(lanes)) for n in (s, g))
            k, free = c.add(tile.k0, row), c.add(tile.first, column)
            at = c.add(c.mul(row, int64(self._width)), column)
            self._turn_square(k, free, c.at(self._out, at, WORD))
        done = c.mul(squares, int64(lanes))
        zero = F32(0.0)
        with c.loop(c.mul(tile.cells, int64(self._j)), done) as row:
            inside = c.icmp_signed("<", row, tile.left)
            k = c.add(tile.k0, c.select(inside, row, int64(0)))
            with c.loop(self._width) as f:
                x = self._element(k, c.add(tile.first, f))
                at = c.add(c.mul(row, int64(self._width)), f)
                c.write(c.select(inside, x, zero), c.at(self._out, at, WORD))

    def _turn_square(self, k: Value, free: Value, out: Value) -> None:
        c, lanes = self._c, self._lanes
        rows = []
        for n in range(lanes):
            index = c.add(k, c.mul(c.add(free, int64(n)), self._free))
            x = self._vector(c.at(self._data, index, SIZES[self._stored]))
            rows.append(_half(c, x, self._half))
        for n, x in enumerate(_transposed(c, rows)):
            c.write(x, c.at(out, n * self._width, WORD))

    def _clear(self) -> None:
        c = self._c
        floats = c.mul(self._tile.cells, int64(self._j * self._width))
        with c.loop(floats) as n:
            c.write(F32(0.0), c.at(self._out, n, WORD))

    def _rows(self, body: Callable[[Value, Value, Value], None]) -> None:
        """`body(row of K, whether it is there, where it goes)`."""
        c, tile = self._c, self._tile
        with c.loop(tile.cells) as p:
            for j in range(self._j):
                row = c.add(
                    c.mul(p, tile.cell_stride), c.mul(int64(j), tile.row_stride)
                )
                inside = c.icmp_signed("<", row, tile.left)
                # What is not there is read from the first row, and not used.
                k = c.add(tile.k0, c.select(inside, row, int64(0)))
                at = c.add(
                    c.mul(p, int64(self._j * self._width)), int64(j * self._width)
                )
                body(k, inside, c.at(self._out, at, WORD))

    def _one(self, k: Value, inside: Value, to: Value, f: Value) -> None:
        c = self._c
        x = self._element(k, c.add(self._tile.first, f))
        c.write(c.select(inside, x, F32(0.0)), c.at(to, f, WORD))

    def _copy_row(self, k: Value, inside: Value, to: Value) -> None:
        """Elements that stand side by side."""
        c, lanes = self._c, self._lanes
        by_vectors = self._stored != "table" and not self._scaled
        if not by_vectors or self._width % lanes:
            for n in range(self._width):
                self._one(k, inside, to, int64(n))
            return
        zeros = ir.Constant(ir.VectorType(F32, lanes), [0.0] * lanes)
        start = c.add(c.mul(k, self._k), self._tile.first)
        for n in range(0, self._width, lanes):
            address = c.at(self._data, c.add(start, int64(n)), SIZES[self._stored])
            x = _half(c, self._vector(address), self._half)
            c.write(c.select(inside, x, zeros), c.at(to, n, WORD))

    def _vector(self, address: Value) -> Value:
        c, lanes = self._c, self._lanes
        if self._stored == "float32":
            return c.read(ir.VectorType(F32, lanes), address)
        integers = ir.VectorType(I32, lanes)
        bits = c.zext(c.read(ir.VectorType(I16, lanes), address, 2), integers)
        bits = c.shl(bits, ir.Constant(integers, [16] * lanes))
        return c.bitcast(bits, ir.VectorType(F32, lanes))

    def _element(self, k: Value, free: Value) -> Value:
        c = self._c
        index = c.add(c.mul(k, self._k), c.mul(free, self._free))
        x = self._as_float(c.at(self._data, index, SIZES[self._stored]))
        if self._scaled:
            block = c.sdiv(k, int64(BLOCK))
            at = c.add(c.mul(block, self._scale_k), c.mul(free, self._scale_free))
            x = _scaled(c, x, c.zext(c.read(I8, c.at(self._scales, at), 1), I32))
        return _half(c, x, self._half)

    def _as_float(self, address: Value) -> Value:
        c = self._c
        if self._stored == "float32":
            return c.read(F32, address)
        if self._stored == "bfloat16":
            bits = c.shl(c.zext(c.read(I16, address, 2), I32), I32(16))
            return c.bitcast(bits, F32)
        code = c.zext(c.read(I8, address, 1), I64)
        return c.read(F32, c.at(self._table, code, WORD))


def _transposed(c: Code, rows: list[Value]) -> list[Value]:
    """The columns of a square of vectors; halves change places, then their halves."""
    size = len(rows)
    if size == 1:
        return rows
    lanes, half = rows[0].type.count, size // 2
    swap = np.arange(lanes)
    low, high = swap % size < half, swap % size >= half
    first = np.where(low, swap, swap - half + lanes)
    second = np.where(high, swap + lanes, swap + half)
    pairs = [(rows[n], rows[n + half]) for n in range(half)]
    upper = [c.shuffled(a, b, first) for a, b in pairs]
    lower = [c.shuffled(a, b, second) for a, b in pairs]
    return _transposed(c, upper) + _transposed(c, lower)


def _scaled(c: Code, x: Value, scale: Value) -> Value:
    """x * 2^(scale - 127), NaN for a scale of 255.

    By two factors, for 2^-127 is no normal number; the first product is exact, and the
    second as near as FP32 comes to it, which is a zero below the smallest normal.
    """
    exponent = c.sub(scale, I32(127))
    half = c.ashr(exponent, I32(1))
    for part in (half, c.sub(exponent, half)):
        factor = c.shl(c.add(part, I32(127)), I32(23))
        x = c.fmul(x, c.bitcast(factor, F32))
    nan = c.bitcast(I32(0x7FC00000), F32)
    return c.select(c.icmp_signed("==", scale, I32(255)), nan, x)


def _half(c: Code, x: Value, half: str) -> Value:
    """The upper 12 significant bits, or the rest; of Inf and NaN all and nothing."""
    if half == "whole":
        return x
    exponent = c.like(x, 0x7F800000)
    bits = c.bitcast(x, exponent.type)
    finite = c.icmp_signed("!=", c.and_(bits, exponent), exponent)
    high = c.bitcast(c.and_(bits, c.like(x, 0xFFFFF000)), x.type)
    if half == "high":
        return c.select(finite, high, x)
    zero = c.bitcast(c.like(x, 0), x.type)
    return c.select(finite, c.fsub(x, high), zero)
