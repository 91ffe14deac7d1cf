"""Loops and branches for llvmlite's builder, and its types by short names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
POINTER = ir.PointerType()
VOID = ir.VoidType()

Value = Any


def int64(x: int) -> ir.Constant:
    """A constant index."""
    return ir.Constant(I64, x)


class Code(ir.IRBuilder):
    """A builder whose control flow reads as such."""

    @classmethod
    def of(cls, function: ir.Function) -> Code:
        """At the beginning of a function."""
        return cls(function.append_basic_block("entry"))

    def value(self, x: int | Value) -> Value:
        """An index, constant or not."""
        return int64(x) if isinstance(x, int) else x

    @contextlib.contextmanager
    def loop(self, stop: int | Value, start: int | Value = 0) -> Iterator[Value]:
        """The indices from start to stop, which may be none."""
        with self._loop(self.value(start), self.value(stop), []) as (index, _, _):
            yield index

    def fold(
        self,
        stop: int | Value,
        initial: Sequence[Value],
        step: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Values that a loop carries in registers."""
        with self._loop(int64(0), self.value(stop), initial) as (index, carried, next_):
            next_ += step(index, carried)
        return self._after

    @contextlib.contextmanager
    def _loop(self, start: Value, stop: Value, initial: Sequence[Value]) -> Iterator:
        before = self.block
        head, body, end = (
            self.append_basic_block(name) for name in ("head", "body", "end")
        )
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        carried = [self.phi(x.type) for x in initial]
        self.cbranch(self.icmp_signed("<", index, stop), body, end)
        self.position_at_end(body)
        following: list[Value] = []
        yield index, carried, following
        pairs = [(index, start, self.add(index, int64(1)))]
        pairs += zip(carried, initial, following, strict=True)
        for phi, first, next_ in pairs:
            phi.add_incoming(first, before)
            phi.add_incoming(next_, self.block)
        self.branch(head)
        self.position_at_end(end)
        self._after = carried

    def at(self, base: Value, index: int | Value, size: int = 1) -> Value:
        """The address of an element of so many bytes."""
        offset = self.value(index)
        if size != 1:
            offset = self.mul(offset, int64(size))
        return self.gep(base, [offset], source_etype=I8)

    def read(self, kind: Any, address: Value, align: int = 4) -> Value:
        """What is stored at an address."""
        return self.load(address, align=align, typ=kind)

    def numbers(self, base: Value, count: int) -> list[Value]:
        """The first integers of 64 bits at an address, as those of a plan."""
        return [self.read(I64, self.at(base, n, 8), 8) for n in range(count)]

    def pointers(self, base: Value, count: int) -> list[Value]:
        """The first addresses at an address, as those of operands."""
        return [self.read(POINTER, self.at(base, n, 8), 8) for n in range(count)]

    def write(self, value: Value, address: Value, align: int = 4) -> None:
        """Stores a value."""
        self.store(value, address, align=align)

    def smaller(self, a: Value, b: Value) -> Value:
        """The minimum of two indices."""
        return self.select(self.icmp_signed("<", a, b), a, b)

    def rounded_up(self, x: Value, by: Value) -> Value:
        """How many parts of `by` hold x."""
        return self.sdiv(self.add(x, self.sub(by, int64(1))), by)

    def splat(self, x: Value, lanes: int) -> Value:
        """A vector of equal lanes."""
        kind = ir.VectorType(x.type, lanes)
        one = self.insert_element(ir.Constant(kind, ir.Undefined), x, I32(0))
        mask = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)

    def shuffled(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """The lanes of two vectors that these numbers name, those of b after a's."""
        numbers = [int(n) for n in lanes]
        mask = ir.Constant(ir.VectorType(I32, len(numbers)), numbers)
        return self.shuffle_vector(a, b, mask)

    def like(self, x: Value, bits: int) -> ir.Constant:
        """A constant of 32 bits, for every lane where x is a vector."""
        if isinstance(x.type, ir.VectorType):
            return ir.Constant(ir.VectorType(I32, x.type.count), [bits] * x.type.count)
        return ir.Constant(I32, bits)

    def external(self, name: str, result: Any, *arguments: Any) -> ir.Function:
        """A function of the C library or an intrinsic, declared once."""
        known = self.module.globals.get(name)
        kind = ir.FunctionType(result, arguments)
        return ir.Function(self.module, kind, name) if known is None else known

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c of floats or vectors of them, rounded once."""
        lanes = a.type.count if isinstance(a.type, ir.VectorType) else 0
        name = f"llvm.fma.v{lanes}f32" if lanes else "llvm.fma.f32"
        return self.call(self.external(name, a.type, *[a.type] * 3), [a, b, c])
