"""Vectorization of loops: all iterations are computed together, along a new last axis.

Every carry of such a loop is an unchanged value, a counter of the iterations, a tensor
of which each iteration replaces one slice, or a state. A state must be an FP32
recurrence whose other operands do not depend on the state: one scan then computes the
state for all iterations. Other loops are not rewritten.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from neuronjax.ir.instruction import Block, Buffer, Instruction, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Call,
    DmaCopy,
    Iota,
    Loop,
    Memset,
    TensorReduce,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.ir.program import TensorType
from neuronjax.ir.traversal import read_outside, walk
from neuronjax.timing.flattening import FlatNode, Flattening
from neuronjax.timing.instruction_kinds import ELEMENTWISE

_KNOWN = (*ELEMENTWISE, BitcastCopy, DmaCopy, Iota, Memset, TensorReduce)
#: The parameters of a `DmaCopy`: starts, ends, strides, or an order of axes.
Parameters = tuple[tuple[int, ...], ...]
#: Operators of the scan [ISA]; all commute, so the state can be either operand.
_SCANNED = frozenset({"add", "multiply", "maximum", "minimum"})


class _VectorizedValue(NamedTuple):
    """The buffer that replaces a value of a loop's body after vectorization. `turns`
    says whether the buffer has a last axis of one element per iteration; if not, the
    value is the same in all iterations."""

    buffer: Buffer
    turns: bool


def is_loop_of_slices(loop: Loop, functions: Mapping[str, Block]) -> bool:
    """Return whether a loop has only elementwise work, reductions and copies."""
    return all(
        isinstance(inner, (Call, *_KNOWN))
        for i in loop.body.instructions
        for inner in walk(i, functions)
    )


def composed(first: DmaCopy, then: DmaCopy) -> DmaCopy:
    """Return one transposition that replaces two, or a reshape if the two cancel."""
    order = tuple(first.parameters[0][p] for p in then.parameters[0])
    if order == tuple(range(len(order))):
        return dataclasses.replace(
            then, operands=first.operands, kind="reshape", parameters=()
        )
    return dataclasses.replace(then, operands=first.operands, parameters=(order,))


class LoopVectorization:
    """The vectorization of one loop over its iterations."""

    def __init__(
        self,
        loop: Loop,
        trips: int,
        functions: Mapping[str, Block],
        fresh: Iterator[int],
    ) -> None:
        self.loop, self.trips, self.fresh = loop, trips, fresh
        outside = tuple(read_outside(loop.body).values())
        body = dataclasses.replace(
            loop.body, arguments=(*loop.body.arguments, *outside)
        )
        flat = Flattening(functions)
        self.arguments = [flat.new(b.type) for b in body.arguments]
        self.results = flat.add(body, self.arguments)
        self.nodes, self.types = flat.nodes, flat.types
        self.maker = {v: node for node in self.nodes for v in node.results}
        self.given = [v.buffer for v in loop.operands] + list(outside)
        self.known: dict[int, _VectorizedValue] = {}
        self.out: list[Instruction] = []
        #: The constant integer scalars of the loop's body.
        self.constants = {
            node.results[0]
            for node in self.nodes
            if isinstance(node.instruction, Memset)
            and node.instruction.value.size == 1
            and node.instruction.value.dtype.kind in "iu"
        }
        self.indices = self._indices()
        self.stacked = self._stacked()

    def instructions(self) -> list[Instruction] | None:
        """Return the instructions that replace the loop; None if the loop has no state
        or cannot be vectorized."""
        states = self._states()
        if not states or any(self.types[v].dtype != np.float32 for v in states):
            return None
        pending = [n for n in self.nodes if not self.indices.issuperset(n.results)]
        while pending or states:
            left = [node for node in pending if not self._done(node)]
            found = next((v for v in states if self._scan(v)), None)
            if found is not None:
                del states[found]
            elif len(left) == len(pending):
                return None
            pending = left
        return self.out if self._write_results() else None

    def _indices(self) -> set[int]:
        """Return the integer scalars that depend only on the iteration number."""
        found = set()
        for value, result in zip(self.arguments, self.results, strict=False):
            node = self.maker.get(result)
            if value == result or node is None or not self._is_integer(value):
                continue
            if value in node.operands and _op(node) in ("add", "subtract"):
                found.add(value)
        for node in self.nodes:
            given = set(node.operands)
            if given & found and given <= found | self.constants:
                if all(map(self._is_integer, node.results)):
                    found.update(node.results)
        return found

    def _is_integer(self, value: int) -> bool:
        type_ = self.types[value]
        return type_.shape == () and type_.dtype.kind in "iub"

    def _stacked(self) -> dict[int, FlatNode]:
        """Return, by carry, the node that writes the current iteration's slice of the
        carry. Only carries that collect one slice per iteration, and that no other node
        reads, are in the result."""
        uses = Counter(value for node in self.nodes for value in node.operands)
        found = {}
        for value, result in zip(self.arguments, self.results, strict=False):
            node = self.maker.get(result)
            if node is None or node.operands[:1] != (value,) or uses[value] > 1:
                continue
            i = node.instruction
            if isinstance(i, DmaCopy) and i.kind == "dynamic_update_slice":
                update = self.types[node.operands[1]].shape
                if self._at_turn(node.operands[2:], value, update):
                    found[value] = node
        return found

    def _at_turn(
        self, indices: tuple[int, ...], value: int, sizes: tuple[int, ...]
    ) -> bool:
        """Return whether a slice of the tensor `value` is the current iteration's. The
        slice starts at `indices` and has the shape `sizes`; the first axis of the
        tensor must have one element per iteration."""
        shape = self.types[value].shape
        return (
            bool(shape)
            and indices[0] in self.indices
            and self.constants.issuperset(indices[1:])
            and sizes == (1, *shape[1:])
            and shape[0] == self.trips
        )

    def _states(self) -> dict[int, int]:
        """Return a dictionary from each state's value before an iteration to its value
        after it, and add unchanged carries to `known`. States are the changed carries
        except counters and tensors of which each iteration replaces one slice."""
        states = {}
        for n, value in enumerate(self.arguments):
            passes = n >= len(self.results) or self.results[n] == value
            if passes:
                self.known[value] = _VectorizedValue(self.given[n], turns=False)
            elif value not in self.indices and value not in self.stacked:
                states[value] = self.results[n]
        return states

    def _done(self, node: FlatNode) -> bool:
        """Emit instructions that compute a node for all iterations, if `known` has all
        its operands. Return False if the node has to be tried again, since an operand
        is missing or nothing could be emitted."""
        i, (result, *_) = node.instruction, node.results
        if result in self.known or node in self.stacked.values():
            return True
        if isinstance(i, DmaCopy) and i.kind == "dynamic_slice":
            return self._slice(node)
        found = [self.known.get(v) for v in node.operands]
        values = [v for v in found if v is not None]
        if len(values) < len(found):
            return False
        turns = any(v.turns for v in values)
        if turns:
            made = self._for_all_turns(i, values)
        else:
            shape = self.types[result].shape
            made = self._emit(i, [v.buffer for v in values], shape)
        if made is not None:
            self.known[result] = _VectorizedValue(made, turns)
        return made is not None

    def _slice(self, node: FlatNode) -> bool:
        source, *indices = node.operands
        i, value = node.instruction, self.known.get(source)
        assert isinstance(i, DmaCopy)
        if value is None or value.turns:
            return False
        if not self._at_turn(tuple(indices), source, tuple(i.parameters[0])):
            return False
        rest = self.types[source].shape[1:]
        order = (*range(1, len(rest) + 1), 0)
        turned = self._move(i, value.buffer, (*rest, self.trips), "transpose", (order,))
        made = self._move(i, turned, (1, *rest, self.trips), "reshape", ())
        self.known[node.results[0]] = _VectorizedValue(made, turns=True)
        return True

    def _for_all_turns(
        self, i: Instruction, values: list[_VectorizedValue]
    ) -> Buffer | None:
        shape = i.results[0].type.shape
        if isinstance(i, ELEMENTWISE):
            operands = [
                v.buffer if v.buffer.type.shape != shape and not v.turns
                else self._lifted(i, v)
                for v in values
            ]  # fmt: skip
            return self._emit(i, operands, (*shape, self.trips))
        if isinstance(i, TensorReduce) and not values[1].turns:
            return self._emit(i, [v.buffer for v in values], (*shape, self.trips))
        if isinstance(i, DmaCopy):
            parameters = _with_turns(i, len(shape), self.trips)
            if parameters is not None:
                operands = [self._lifted(i, v) for v in values]
                return self._emit(
                    i, operands, (*shape, self.trips), parameters=parameters
                )
        return None

    def _lifted(self, i: Instruction, value: _VectorizedValue) -> Buffer:
        if value.turns:
            return value.buffer
        shape = value.buffer.type.shape
        kept = tuple(range(len(shape)))
        return self._move(i, value.buffer, (*shape, self.trips), "broadcast", (kept,))

    def _scan(self, state: int) -> bool:
        """Emit a scan that computes a state for all iterations. Return False if the
        state is no recurrence, or depends on values that `known` does not have yet."""
        new = self.results[self.arguments.index(state)]
        steps = self._recurrence(state, new)
        if steps is None:
            return False
        last = steps[-1][0].instruction
        start = self.given[self.arguments.index(state)]
        data = [self._lifted(last, self.known[value]) for _, value in steps]
        shape = (*self.types[state].shape, self.trips)
        result = self._new(shape, self.types[state].dtype)
        operands = (View(data[0]), View(start), *map(View, data[1:]))
        self.out.append(
            TensorTensorScan(
                operands=operands,
                results=(result,),
                engine="vector",
                op=_op(steps[-1][0]),
                axis=len(shape) - 1,
                ordinal=last.ordinal,
                location=last.location,
            )
        )
        # The states before the iterations are the same buffer shifted by one element;
        # reading the buffer without the shift takes the same time.
        self.known[state] = self.known[new] = _VectorizedValue(result, turns=True)
        return True

    def _recurrence(self, state: int, new: int) -> list[tuple[FlatNode, int]] | None:
        """Return the one or two nodes that compute `new` from `state`, each with its
        operand that does not depend on `state`; None if `new` is computed otherwise,
        or from operands that are not in `self.known` yet."""
        node = self.maker.get(new)
        steps: list[tuple[FlatNode, int]] = []
        while node is not None and len(steps) < 2 and _op(node) in _SCANNED:
            others = [v for v in node.operands if v in self.known]
            inner = [v for v in node.operands if v not in self.known]
            if len(others) != 1 or len(inner) != 1:
                return None
            steps.insert(0, (node, others[0]))
            if inner[0] == state:
                return steps
            node = self.maker.get(inner[0])
        return None

    def _write_results(self) -> bool:
        for n, target in enumerate(self.loop.results):
            value, result = self.arguments[n], self.results[n]
            if value in self.indices:
                self._count(target)
            elif value in self.stacked:
                if not self._stack(self.stacked[value], target):
                    return False
            elif result == value:
                self._write(self.loop, self.given[n], target, "reshape", ())
            else:
                self._last(self.known[result], target)
        return True

    def _count(self, target: Buffer) -> None:
        count = np.full((), self.trips, target.type.dtype)
        self.out.append(
            Memset(operands=(), results=(target,), engine="gpsimd", value=count)
        )

    def _stack(self, node: FlatNode, target: Buffer) -> bool:
        update = self.known.get(node.operands[1])
        if update is None:
            return False
        rest = target.type.shape[1:]
        i = node.instruction
        whole = self._lifted(i, update)
        flat = self._move(i, whole, (*rest, self.trips), "reshape", ())
        order = (len(rest), *range(len(rest)))
        self._write(i, flat, target, "transpose", (order,))
        return True

    def _last(self, value: _VectorizedValue, target: Buffer) -> None:
        i = self.loop
        shape = value.buffer.type.shape
        rank = len(shape)
        part = ((0,) * (rank - 1) + (self.trips - 1,), shape, (1,) * rank)
        last = self._move(i, value.buffer, (*shape[:-1], 1), "slice", part)
        self._write(i, last, target, "reshape", ())

    def _new(self, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
        return Buffer(next(self.fresh), TensorType(shape, dtype))

    def _move(
        self,
        i: Instruction,
        source: Buffer,
        shape: tuple[int, ...],
        kind: str,
        parameters: Parameters,
    ) -> Buffer:
        target = self._new(shape, source.type.dtype)
        self._write(i, source, target, kind, parameters)
        return target

    def _write(
        self,
        i: Instruction,
        source: Buffer,
        target: Buffer,
        kind: str,
        parameters: Parameters,
    ) -> None:
        self.out.append(
            DmaCopy(
                operands=(View(source),),
                results=(target,),
                engine="dma",
                kind=kind,
                parameters=parameters,
                location=i.location,
            )
        )

    def _emit(
        self,
        i: Instruction,
        operands: list[Buffer],
        shape: tuple[int, ...],
        **changed: Parameters,
    ) -> Buffer:
        result = self._new(shape, i.results[0].type.dtype)
        self.out.append(
            dataclasses.replace(
                i, operands=tuple(map(View, operands)), results=(result,), **changed
            )
        )
        return result


def _op(node: FlatNode) -> str:
    i = node.instruction
    return i.op if isinstance(i, TensorTensor) and len(node.operands) == 2 else ""


def _with_turns(i: DmaCopy, rank: int, trips: int) -> Parameters | None:
    """Return the parameters (such as the permutation) of a copy whose tensors have one
    more axis, the last, for iterations; None for kinds that cannot have this axis."""
    if i.kind in ("reshape", "concatenate", "reverse"):
        return i.parameters if prod(i.results[0].type.shape) else None
    if i.kind in ("broadcast", "transpose"):
        return ((*i.parameters[0], rank),)
    if i.kind == "slice":
        starts, ends, strides = i.parameters
        return ((*starts, 0), (*ends, trips), (*strides, 1))
    if i.kind == "pad":
        return tuple((*p, 0) for p in i.parameters)
    return None
