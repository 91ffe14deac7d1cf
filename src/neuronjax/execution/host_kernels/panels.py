"""Operands in the form that registers need: panels of a K tile in FP32.

A panel holds `width` rows or columns side by side; along K it has cell after cell, and
in each its `rows_per_cell` rows. It has zeros beyond the end of the operand. Stored
elements become FP32 here: BF16, codes of 8 bits through a table, and blocks of 32 with
a scale. FP32 is split into high and low halves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import (
    F32,
    I8,
    I32,
    I64,
    Code,
    Value,
    as_floats,
    int64,
    stored_bits,
)

WORD = 4  # bytes of a float
#: Elements along K that share a scale.
BLOCK = 32


class PanelOperand(NamedTuple):
    """An operand in a kernel; strides count elements.

    Attributes:
        stored: how elements are stored, a key of `SIZES`.
        data: its first element, in the current batch.
        table: the values of its codes; unused unless `stored` is "table".
        scales: the E8M0 bytes, or None.
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


@dataclass(frozen=True)
class PanelPacker:
    """Writes the loops that pack one panel of cells * rows_per_cell * width floats.

    Attributes:
        half: "whole", "high" or "low".
        k0, left: the first row of the K tile, and how many rows remain from there.
        first, there: the panel's first row or column, and how many of `width` exist.
        cell_stride, row_stride: distances of cells, and of rows in a cell, in rows of
            K.
        out: where the panel is written.
    """

    c: Code
    operand: PanelOperand
    width: int
    half: str
    rows_per_cell: int
    lanes: int
    k0: Value
    left: Value
    first: Value
    there: Value
    cells: Value
    cell_stride: Value
    row_stride: Value
    out: Value

    @property
    def _by_vectors(self) -> bool:
        x = self.operand
        is_plain = x.stored != "table" and x.scales is None
        return is_plain and self.width % self.lanes == 0

    def write(self) -> None:
        """Write the loops at the position of the builder."""
        c, there = self.c, self.there
        whole = c.and_(
            c.icmp_signed("==", self.operand.free, int64(1)),
            c.icmp_signed("==", there, int64(self.width)),
        )
        with c.if_else(whole) as (contiguous, strided):
            with contiguous:
                self._rows(self._copy_row)
            with strided:
                if not self._by_vectors:
                    self._strided()
                    return
                with c.if_else(self._is_transposable()) as (squares, other):
                    with squares:
                        self._transpose()
                    with other:
                        self._strided()

    def _strided(self) -> None:
        """Copy element by element, one row or column of the panel after another."""
        c, there = self.c, self.there
        with c.if_then(c.icmp_signed("<", there, int64(self.width))):
            floats = c.mul(self.cells, int64(self.rows_per_cell * self.width))
            with c.loop(floats) as n:
                c.write(F32(0.0), c.at(self.out, n, WORD))
        with c.loop(there) as f:
            self._rows(lambda k, inside, to: self._one(k, inside, to, f))

    # -- K along the memory ------------------------------------------------------------

    def _is_transposable(self) -> Value:
        """Return whether squares of the operand can be transposed in registers. The
        panel must be whole, and its rows must be contiguous and in order along K."""
        c = self.c
        conditions = [
            c.icmp_signed("==", self.operand.k, int64(1)),
            c.icmp_signed("==", self.there, int64(self.width)),
            c.icmp_signed("==", self.cell_stride, int64(self.rows_per_cell)),
            c.icmp_signed("==", self.row_stride, int64(1)),
        ]
        return functools.reduce(c.and_, conditions)

    def _transpose(self) -> None:
        """Transpose squares of as many rows as lanes, and copy the remaining rows."""
        c, lanes = self.c, self.lanes
        squares = c.sdiv(self.left, int64(lanes))
        with c.loop(squares) as s, c.loop(self.width // lanes) as g:
            row, column = (c.mul(n, int64(lanes)) for n in (s, g))
            k, free = c.add(self.k0, row), c.add(self.first, column)
            at = c.add(c.mul(row, int64(self.width)), column)
            self._transpose_square(k, free, c.at(self.out, at, WORD))
        done = c.mul(squares, int64(lanes))
        with c.loop(c.mul(self.cells, int64(self.rows_per_cell)), done) as row:
            inside = c.icmp_signed("<", row, self.left)
            k = c.add(self.k0, c.select(inside, row, int64(0)))
            to = c.at(self.out, c.mul(row, int64(self.width)), WORD)
            with c.loop(self.width) as f:
                self._one(k, inside, to, f)

    def _transpose_square(self, k: Value, free: Value, out: Value) -> None:
        c, lanes = self.c, self.lanes
        rows = []
        for n in range(lanes):
            index = c.add(k, c.mul(c.add(free, int64(n)), self.operand.free))
            rows.append(_half(c, self._read(index, lanes), self.half))
        for n, x in enumerate(_transposed(c, rows)):
            c.write(x, c.at(out, n * self.width, WORD))

    def _rows(self, body: Callable[[Value, Value, Value], None]) -> None:
        """Write `body(row of K, whether it exists, where it goes)` for every row."""
        c = self.c
        with c.loop(self.cells) as p:
            for j in range(self.rows_per_cell):
                row = c.add(
                    c.mul(p, self.cell_stride), c.mul(int64(j), self.row_stride)
                )
                inside = c.icmp_signed("<", row, self.left)
                # For a missing row the first is read; the result is not used.
                k = c.add(self.k0, c.select(inside, row, int64(0)))
                at = c.add(
                    c.mul(p, int64(self.rows_per_cell * self.width)),
                    int64(j * self.width),
                )
                body(k, inside, c.at(self.out, at, WORD))

    def _one(self, k: Value, inside: Value, to: Value, f: Value) -> None:
        c = self.c
        x = self._element(k, c.add(self.first, f))
        c.write(c.select(inside, x, F32(0.0)), c.at(to, f, WORD))

    def _copy_row(self, k: Value, inside: Value, to: Value) -> None:
        c, lanes = self.c, self.lanes
        if not self._by_vectors:
            for n in range(self.width):
                self._one(k, inside, to, int64(n))
            return
        zeros = ir.Constant(ir.VectorType(F32, lanes), [0.0] * lanes)
        start = c.add(c.mul(k, self.operand.k), self.first)
        for n in range(0, self.width, lanes):
            x = _half(c, self._read(c.add(start, int64(n)), lanes), self.half)
            c.write(c.select(inside, x, zeros), c.at(to, n, WORD))

    def _element(self, k: Value, free: Value) -> Value:
        c, operand = self.c, self.operand
        index = c.add(c.mul(k, operand.k), c.mul(free, operand.free))
        x = self._read(index, 0)
        if operand.scales is not None:
            block = c.mul(c.sdiv(k, int64(BLOCK)), operand.scale_k)
            at = c.add(block, c.mul(free, operand.scale_free))
            x = _scaled(c, x, c.zext(c.read(I8, c.at(operand.scales, at), 1), I32))
        return _half(c, x, self.half)

    def _read(self, index: Value, lanes: int) -> Value:
        c, operand = self.c, self.operand
        if operand.stored == "table":
            code = c.zext(c.read(I8, c.at(operand.data, index), 1), I64)
            return c.read(F32, c.at(operand.table, code, WORD))
        return as_floats(c, stored_bits(c, operand.stored, operand.data, index, lanes))


def _transposed(c: Code, rows: list[Value]) -> list[Value]:
    """Return the columns of a square of vectors: swap halves recursively."""
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
    """Return x * 2^(scale - 127), or NaN for a scale of 255. Two factors are used
    because 2^-127 is not a normal number. The first product is exact; the second is
    rounded to FP32, and is zero below the smallest normal number."""
    exponent = c.sub(scale, I32(127))
    half = c.ashr(exponent, I32(1))
    for part in (half, c.sub(exponent, half)):
        factor = c.shl(c.add(part, I32(127)), I32(23))
        x = c.fmul(x, c.bitcast(factor, F32))
    nan = c.bitcast(I32(0x7FC00000), F32)
    return c.select(c.icmp_signed("==", scale, I32(255)), nan, x)


def _half(c: Code, x: Value, half: str) -> Value:
    """Return the upper 12 significant bits ("high") or the rest; Inf, NaN are high."""
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
