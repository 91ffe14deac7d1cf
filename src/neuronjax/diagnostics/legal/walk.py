"""One run of a lowered program on values that carry their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Their rules register themselves.
import neuronjax.diagnostics.legal.movement
import neuronjax.diagnostics.legal.orders
import neuronjax.diagnostics.legal.sums
import neuronjax.diagnostics.legal.windows
import neuronjax.diagnostics.tolerance.bounds
import neuronjax.diagnostics.tolerance.movement  # noqa: F401
from neuronjax.diagnostics.executors import Emulator, Signatures
from neuronjax.diagnostics.legal.arithmetic import legal
from neuronjax.diagnostics.legal.held import Executors, Held, exact, is_doubtful
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side
from neuronjax.diagnostics.reference64 import Reference64, is_float
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.errors import NeuronJaxError, UnsupportedError
from neuronjax.execution.interpreter import chosen_branch
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.ir.program import Op, Value

#: Called after every op, with what it made; what it returns takes the place of that.
Made = Callable[
    [OpPath, tuple[int, ...], Mapping[Value, Held]], Mapping[Value, Held] | None
]


class LegalWalk:
    """Goes through a program once.

    Args:
        side: the lowered program.
        model: how results are rounded.
        made: hears of every op outside of blocks of scalars.
        draw: makes of a value with errors one without, and says whether it has drawn,
            or an operand had; None to carry errors.
    """

    def __init__(
        self,
        side: Side,
        model: ErrorModel,
        made: Made | None = None,
        draw: Callable[[Held, bool], Held] | None = None,
    ) -> None:
        signatures = Signatures()
        self._side, self._model, self._made, self._draw = side, model, made, draw
        self._lane = Lane("legal", side)
        self._at = Executors(
            model,
            Reference64(side.program, signatures),
            Emulator(side.program, signatures),
            self._scalars,
        )
        self._calls: tuple[Op, ...] = ()
        self._iterations: tuple[int, ...] = ()

    @property
    def kept_in_float32(self) -> set[str]:
        """Names of instructions that have no rule in double precision."""
        return self._at.reference.kept_in_float32

    def run(self, arguments: Sequence[Any]) -> list[Held]:
        """The results of main.

        Args:
            arguments: arrays of the declared dtypes, without errors; or `Held`.

        Raises:
            UnimplementedError: an instruction without a rule.
            UnsupportedError: a loop or a branch depends on numbers that are closer
                than their bounds.
        """
        main = self._side.program.main
        self._lane.take([self._entered(a) for a in arguments], main.arguments)
        with np.errstate(all="ignore"):
            self._region(main)
        return self._lane.read(main.results)

    def _entered(self, array: Any) -> Held:
        if isinstance(array, Held):
            return array if self._draw is None else self._draw(array, False)
        plain = np.asarray(array)
        held = exact(plain, self._model) if is_float(plain.dtype) else plain
        return Held(held, plain.shape)

    def _region(self, block: Block) -> None:
        lowered = self._side.regions[block]
        for op, span in zip(lowered.region.ops, self._side.spans(block), strict=True):
            for i in span.instructions:
                self._step(op, i)
            self._tell(op, lowered.views)
            for number in span.frees:
                self._lane.arrays.pop(number, None)

    def _step(self, op: Op, i: Instruction) -> None:
        control = _CONTROL.get(type(i))
        if control is not None:
            control(self, op, i)
            return
        try:
            operands = self._lane.read(i.operands)
            results = legal(i, operands, self._at)
        except NeuronJaxError as error:
            if error.op == i.name and not error.location:
                source = OpPath(self._calls, op).source
                raise error.changed(location=source or None) from None
            raise
        if self._draw is not None:
            is_drawn = any(h.is_drawn for h in operands)
            results = [self._draw(h, is_drawn) for h in results]
        self._lane.take(results, i.results)

    def _tell(self, op: Op, views: Mapping[Value, Any]) -> None:
        if self._made is None:
            return
        at = {v: views[v].buffer.number for v in op.results if v in views}
        arrays = self._lane.arrays
        found = {v: arrays[n] for v, n in at.items() if n in arrays}
        path = OpPath(self._calls, op)
        for value, held in (self._made(path, self._iterations, found) or {}).items():
            known = held if self._draw is None else self._draw(held, False)
            arrays[at[value]] = known

    def _scalars(self, block: Block, x: Sequence[Held]) -> list[Held]:
        """A block of scalar instructions, on whole tensors."""
        arrays = dict(zip((b.number for b in block.arguments), x, strict=True))
        for i in block.instructions:
            given = [arrays[v.buffer.number] for v in i.operands]
            made = legal(i, given, self._at)
            arrays.update(zip((b.number for b in i.results), made, strict=True))
        return [arrays[v.buffer.number] for v in block.results]

    # -- control -----------------------------------------------------------------------

    def _decided(self, op: Op, view: Any, what: str) -> np.ndarray:
        [held] = self._lane.read([view])
        if is_doubtful(held) and not held.is_exact:
            raise UnsupportedError(
                f"{what} depends on numbers that are closer than their bounds",
                op=op.name,
                location=OpPath(self._calls, op).source or None,
                remedy="bound a part of the program before it, or after it",
            )
        return held.values

    def _loop(self, op: Op, i: Loop) -> None:
        outer, lane = self._iterations, self._lane
        carry, iteration = lane.read(i.operands), 0
        while True:
            self._iterations = (*outer, iteration)
            lane.take(carry, i.condition.arguments)
            self._region(i.condition)
            goes_on = self._decided(op, i.condition.results[0], "how often a loop runs")
            lane.leave(i.condition)
            if not bool(goes_on):
                break
            lane.take(carry, i.body.arguments)
            self._region(i.body)
            carry = lane.leave(i.body)
            iteration += 1
        self._iterations = outer
        lane.take(carry, i.results)

    def _branch(self, op: Op, i: Branch) -> None:
        index = self._decided(op, i.operands[0], "which branch is taken")
        block = i.branches[int(chosen_branch(i, index))]  # type: ignore[arg-type]
        self._region(block)
        self._lane.take(self._lane.leave(block), i.results)

    def _call(self, op: Op, i: Call) -> None:
        block = self._side.program.functions[i.callee]
        self._lane.take(self._lane.read(i.operands), block.arguments)
        outer, self._calls = self._calls, (*self._calls, op)
        self._region(block)
        self._calls = outer
        self._lane.take(self._lane.leave(block), i.results)


_CONTROL: dict[type, Callable[..., None]] = {
    Loop: LegalWalk._loop,
    Branch: LegalWalk._branch,
    Call: LegalWalk._call,
}
