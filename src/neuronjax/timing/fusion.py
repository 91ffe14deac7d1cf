"""The fusion of a block's instructions into steps, as the compiler does it.

A step is one pass of an engine (or a matmul, a loop, a collective) over tensors that
exist in memory. Constants and access patterns (reshapes, broadcasts, slices, widening
casts) are not steps. ScalarE and VectorE execute several operations per pass (scale and
bias before an activation, two operations with scalars, a reduction or a cast of the
result), and read a matmul's result out of PSUM. `timing.cost` prices steps,
`timing.tiling` groups them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from math import prod

from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    BitcastCopy,
    DmaCopy,
    Im2col,
    Iota,
    Loop,
    Memset,
    Select,
    TensorCopy,
    TensorReduce,
    TensorTensorScan,
)
from neuronjax.ir.program import Location, TensorType
from neuronjax.timing.access import MOVEMENTS, ValueAccess, unchanged_carries, viewed
from neuronjax.timing.flattening import CONTROL, FlatNode, Flattening, swap
from neuronjax.timing.fused import Fused, FusedStep
from neuronjax.timing.instruction_kinds import ELEMENTWISE, MATMULS, is_kind, is_stored
from neuronjax.timing.masks import Masks, is_ramp
from neuronjax.timing.passes import folding_pass, operator as _op
from neuronjax.timing.patches import held_bytes, read_in_place, seen_as
from neuronjax.timing.work import Core

_CONSTANT = (*ELEMENTWISE, DmaCopy, Iota, Memset, TensorReduce, BitcastCopy)
_PURE = (*_CONSTANT, *MATMULS)
#: Operations that the scale and bias of an activation can do.
_AFFINE = frozenset({"multiply", "add", "subtract", "negate"})


def fuse(
    block: Block,
    functions: Mapping[str, Block],
    core: Core,
    call: Location | None = None,
) -> Fused:
    """Return the steps into which a block's instructions are fused for a core. If the
    block is a callee, `call` is the location of the call."""
    flat = Flattening(functions)
    arguments = tuple([flat.new(b.type) for b in block.arguments])
    results = flat.add(block, arguments, call)
    return _Fusion(flat.nodes, flat.types, arguments, results, core).run()


class _Fusion:
    """The fusion of one block. It first finds the instructions that are access patterns
    or constants, then makes steps of the other instructions."""

    def __init__(
        self,
        nodes: list[FlatNode],
        types: list[TensorType],
        arguments: tuple[int, ...],
        results: tuple[int, ...],
        core: Core,
    ) -> None:
        self.nodes, self.types, self.core = nodes, types, core
        self.arguments, self.results = arguments, results
        self.access: list[ValueAccess] = [ValueAccess((i,)) for i in range(len(types))]
        self.uses = [0] * len(types)
        self.sizes = [t.size_bytes for t in types]
        self.constants: set[int] = set()
        self.early = set(arguments)
        self.masks = Masks(types)
        self.step_of: dict[int, int] = {}
        self.steps: list[FusedStep | None] = []

    def run(self) -> Fused:
        swap(self.nodes, self.types, self.results)
        nodes = [node for node in self._alive() if not self._vanishes(node)]
        nodes.sort(key=self._is_late)
        for root in (r for v in self.results for r in self.access[v].roots):
            self.uses[root] += 1
        for node in nodes:
            self._add(node)
        steps = [step for step in self.steps if step is not None]
        return Fused(
            steps,
            self.types,
            self.access,
            self.arguments,
            self.results,
            frozenset(self.constants),
            self.uses,
            self.sizes,
        )

    def _alive(self) -> list[FlatNode]:
        """Return, in order, the nodes whose results are read, and the nodes that may
        have side effects."""
        read, kept = set(self.results), []
        for node in reversed(self.nodes):
            if read.isdisjoint(node.results) and is_kind(type(node.instruction), _PURE):
                continue
            read.update(node.operands)
            kept.append(node)
        return kept[::-1]

    def _is_late(self, node: FlatNode) -> bool:
        """Return the sort key of a node: False, so that it comes first, if the node
        computes scalars and reads no tensors but arguments; otherwise True."""
        early = self._roots(node.operands) <= self.early
        early = early and not any(self.types[v].shape for v in node.results)
        if early:
            self.early.update(node.results)
        return not (early and node.results)

    def _vanishes(self, node: FlatNode) -> bool:
        """Return whether a node needs no step: it is an access pattern or a constant.
        If it is neither, count the reads of its operands in `uses`."""
        i, access, operands = node.instruction, self.access, node.operands
        if isinstance(i, Memset) and is_stored(i) and not is_ramp(i.value):
            self.constants.add(node.results[0])
            return True
        roots = [access[v].roots for v in operands]
        if not any(roots) and is_kind(type(i), _CONSTANT):
            for value in node.results:
                access[value] = ValueAccess(())
            self.masks.add(node)
            return True
        if isinstance(i, Im2col):
            if read_in_place(i, self.core):
                access[node.results[0]] = seen_as(i, access[operands[0]])
                return True
            self.sizes[node.results[0]] = held_bytes(i)
        elif type(i) in MOVEMENTS:
            seen = viewed(i, operands, access, self.types, self.arguments)
            if seen is not None:
                access[node.results[0]] = seen
                return True
        if len(operands) > 1 and len(set(operands)) < len(operands):
            roots = [access[v].roots for v in dict.fromkeys(operands)]
        uses = self.uses
        for own in roots:
            for root in own:
                uses[root] += 1
        if isinstance(i, Loop):
            for n in unchanged_carries(i):
                access[node.results[n]] = access[operands[n]]
        return False

    def _scalars(
        self, values: Iterable[int], shape: tuple[int, ...]
    ) -> tuple[list[int], list[int]]:
        tensors, scalars = [], []
        all_are = len(shape) > 1 and shape[-1] == 1
        for value in values:
            roots, is_scalar, *_ = self.access[value]
            is_scalar = all_are or is_scalar or not roots
            (scalars if is_scalar else tensors).append(value)
        return tensors, scalars

    def _roots(self, values: Iterable[int]) -> set[int]:
        return {r for v in values for r in self.access[v].roots}

    def _add(self, node: FlatNode) -> None:
        i = node.instruction
        results = list(node.results)
        seen = results[0] if results else -1
        step = FusedStep(i, [i], node.operands, results, "other", seen)
        if is_kind(type(i), ELEMENTWISE):
            self._elementwise(step)
            return
        if isinstance(i, TensorReduce):
            step.form, step.binds_rows = "reduce", True
            if self._absorb_reduction(step):
                return
        elif isinstance(i, TensorTensorScan):
            step.form, step.binds_rows = "scan", True
        elif isinstance(i, MATMULS):
            step.form = "matmul"
        elif is_kind(type(i), CONTROL):
            step.form = "control"
        elif isinstance(i, Collective):
            step.form = "collective"
        self._place(step)

    def _place(self, step: FusedStep) -> None:
        for value in step.results:
            self.step_of[value] = len(self.steps)
        self.steps.append(step)

    def _elementwise(self, step: FusedStep) -> None:
        i = step.instruction
        access, shape = self.access, self.types[step.results[0]].shape
        if not shape and self.types[step.results[0]].dtype.kind in "iub":
            step.form = "register"
            self._place(step)
            return
        tensors, scalars = self._scalars(step.operands, shape)
        step.binds_rows = bool(tensors) and any([access[v].roots for v in scalars])
        roots = {access[v].roots for v in tensors}
        if isinstance(i, Select) and all(
            self.uses[r] == 1 for own in roots for r in own
        ):
            step.masked = self.masks.hidden_by(step.operands, shape)
        if isinstance(i, Activation):
            step.form = "activation"
        elif len(roots) > 1:
            step.form, step.slots = "tensor_tensor", 1
        elif len(tensors) > 1 and getattr(i, "op", "") == "multiply":
            self._square(step, tensors[0])
        else:
            step.form, step.slots = "tensor_scalar", 1
        if not (isinstance(i, TensorCopy) and self._absorb_cast(step)):
            for value in tensors:
                self._absorb(step, value)
        self._place(step)

    def _square(self, step: FusedStep, value: int) -> None:
        i = step.instruction
        step.instruction = Activation(
            operands=i.operands[:1],
            results=i.results,
            engine="scalar",
            function="square",
            location=i.location,
        )
        step.operands, step.form = (value,), "activation"

    def _single(self, value: int) -> FusedStep | None:
        root = self._whole(value)
        if root not in self.step_of or self.uses[root] != 1:
            return None
        step = self.steps[self.step_of[root]]
        return step if step is not None and step.results == [root] else None

    def _whole(self, value: int) -> int:
        access = self.access[value]
        if len(access.roots) != 1 or access.is_scalar or access.transposes:
            return -1
        root = access.roots[0]
        if root == value:
            return root
        same = prod(self.types[root].shape) == prod(self.types[value].shape)
        return root if same else -1

    def _absorb_cast(self, step: FusedStep) -> bool:
        (value,) = step.operands
        before = self._single(value)
        if before is None or before.form in ("control", "collective", "other"):
            return False
        before.members += step.members
        before.results = list(step.results)
        before.seen = step.seen if not before.reduces else before.seen
        self._drop(value)
        step.instruction, step.members = before.instruction, before.members
        step.operands, step.form = before.operands, before.form
        step.slots, step.reduces = before.slots, before.reduces
        step.binds_rows, step.masked = before.binds_rows, before.masked
        return True

    def _absorb(self, step: FusedStep, value: int) -> None:
        before = self._single(value)
        if before is None or before.reduces:
            return
        merged = _merged_form(before, step) or self._gate(before, step)
        if merged is None:
            return
        instruction, form, slots = merged
        if form == "logistic":
            inner = self._tensor(before)
            exponential = self._single(inner)
            assert exponential is not None
            self._drop(inner)
            before.members = exponential.members + before.members
            before.operands, form = exponential.operands, "activation"
        kept = [v for v in step.operands if v != value]
        if instruction is step.instruction or form == "tensor_tensor":
            operands = [*before.operands, *kept]
        else:
            operands = [*before.operands, *(v for v in kept if self.access[v].roots)]
        self._drop(value)
        step.members = before.members + step.members
        step.instruction, step.form, step.slots = instruction, form, slots
        step.operands = tuple(dict.fromkeys(operands))
        step.binds_rows = step.binds_rows or before.binds_rows
        step.masked = step.masked or before.masked

    def _drop(self, value: int) -> None:
        self.steps[self.step_of.pop(self.access[value].roots[0])] = None

    def _tensor(self, step: FusedStep) -> int:
        return next((v for v in step.operands if self.access[v].roots), -1)

    def _gate(
        self, before: FusedStep, step: FusedStep
    ) -> tuple[Instruction, str, int] | None:
        """Return one activation that replaces both steps if `before` is the logistic
        function of x and `step` multiplies it by x (SiLU), or `before` is 1 + exp(-x)
        and `step` divides by it (the logistic function); otherwise None.

        The result is the activation, its `FusedStep.form`, and its number of `slots`.
        If the form is "logistic", exp(-x) also becomes part of the activation."""
        i, inner = step.instruction, before.instruction
        if before.form == "activation" and isinstance(inner, Activation):
            others = {v for v in step.operands if v != before.results[0]}
            same = self._roots(before.operands) == self._roots(others)
            if _op(i) == "multiply" and inner.function == "logistic" and same:
                return dataclasses.replace(inner, function="silu"), "activation", 0
        if _op(i) == "divide" and _op(before.members[-1]) == "add":
            exponential = self._single(self._tensor(before))
            if before.form == "tensor_scalar" and exponential is not None:
                main = exponential.instruction
                is_exp = isinstance(main, Activation) and main.function == "exponential"
                if is_exp and _op(exponential.members[0]) == "negate":
                    made = dataclasses.replace(main, function="logistic")
                    return made, "logistic", 0
        return None

    def _absorb_reduction(self, step: FusedStep) -> bool:
        """Make a reduction part of the pass that writes its operand, and return True.
        Return False, and change nothing, if no such pass can also reduce."""
        i = step.instruction
        assert isinstance(i, TensorReduce)
        value = step.operands[0]
        shape = self.types[value].shape
        trailing = tuple(range(len(shape) - len(i.axes), len(shape)))
        if self.access[value].roots != (value,) or tuple(sorted(i.axes)) != trailing:
            return False
        place = self.step_of.get(value, -1)
        before = self.steps[place] if place >= 0 else None
        if before is None or before.reduces or before.results != [value]:
            return False
        adds = before.form == "activation" and i.op == "add"
        if not adds and before.form != "tensor_scalar":
            return False
        self.uses[value] -= 1
        if before.form == "tensor_scalar":
            before.instruction = folding_pass(before.instruction, before.members, i)
        before.members += step.members
        before.results = ([value] if self.uses[value] else []) + step.results
        before.reduces = before.binds_rows = True
        before.slots = 0
        for result in step.results:
            self.step_of[result] = place
        return True


def _merged_form(
    before: FusedStep, step: FusedStep
) -> tuple[Instruction, str, int] | None:
    """Return one pass that executes both steps, as (instruction, form as in
    `FusedStep`, number of scalar operations that still fit); None if no pass can."""
    forms = (before.form, step.form)
    scalar_first = before.form == "tensor_scalar" and not before.reduces
    if forms == ("tensor_scalar", "tensor_scalar") and before.slots:
        if _op(step.instruction) == "divide" and _op(before.members[-1]) == "add":
            return None  # may be part of a logistic function
        return before.instruction, "tensor_scalar", 0
    if scalar_first and step.form == "activation":
        if len(step.members) == 1 and all(_op(m) in _AFFINE for m in before.members):
            return step.instruction, "activation", 0
    if forms == ("tensor_scalar", "tensor_tensor") and before.slots and step.slots:
        return step.instruction, "tensor_tensor", 0
    return None
