"""One run of a lowered program on values that carry their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

# These modules register rules when they are imported.
import neuronjax.diagnostics.legal.orders
import neuronjax.diagnostics.legal.sums
import neuronjax.diagnostics.tolerance.bounds
import neuronjax.diagnostics.tolerance.movement  # noqa: F401
from neuronjax.diagnostics.legal.arithmetic import legal
from neuronjax.diagnostics.legal.exchange import correlated, exchanged
from neuronjax.diagnostics.legal.held import Executors, Held, drawn, is_doubtful
from neuronjax.diagnostics.legal.movement import moved_together, rearranged
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side
from neuronjax.diagnostics.reference64 import Reference64, is_float, run_scalars
from neuronjax.diagnostics.tolerance.drawn import Draw
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import exact
from neuronjax.diagnostics.walk import Keys, Lanes, OpWalk, Spans, Views
from neuronjax.errors import NeuronJaxError, UnsupportedError
from neuronjax.ir.instruction import Instruction, View
from neuronjax.ir.program import Op, Value

#: A function that gets the path of an op, the iterations of the loops around the op and
#: the results of the op, and may return other values for results.
Made = Callable[
    [OpPath, tuple[int, ...], Mapping[Value, Held]], Mapping[Value, Held] | None
]


class LegalWalk(OpWalk):
    """One execution of a program on values with errors.

    `made` is called after every op, except in scalar blocks and on a mesh of devices.
    `draw` adds random errors to values; if it is None, values carry scales of errors.
    """

    def __init__(
        self,
        side: Side,
        model: ErrorModel,
        made: Made | None = None,
        draw: Draw | None = None,
    ) -> None:
        super().__init__()
        self._side, self._model, self._made, self._draw = side, model, made, draw
        # Whether errors of different devices may be the same error.
        self._are_joint = False
        self._at = Executors(
            model,
            Reference64(side.program),
            side.executor,  # type: ignore[arg-type]
            lambda block, x: run_scalars(block, x, lambda i, y: legal(i, y, self._at)),
        )

    @property
    def kept_in_float32(self) -> set[str]:
        """Return the names of instructions that ran in FP32 in place of float64."""
        return self._at.reference.kept_in_float32

    def run(self, arguments: Sequence[Any]) -> list[Held]:
        """Return the main function's results; `arguments` are arrays or `Held`.

        Raises:
            UnimplementedError: an instruction has no rule.
            UnsupportedError: a number that decides a loop or branch may be wrong.
        """
        main, lane = self._side.program.main, Lane("legal", self._side)
        lane.take([self._entered(a) for a in arguments], main.arguments)
        self.main([lane])
        return lane.read(main.results)

    def _entered(self, array: Any) -> Held:
        if isinstance(array, Held):
            return array if self._draw is None else drawn(array, False, self._draw)
        plain = np.asarray(array)
        held = exact(plain, self._model) if is_float(plain.dtype) else plain
        return Held(held, plain.shape)

    def on_device(self, device: int) -> Iterable[Lane]:
        return [Lane("legal", self._side, device=device)]

    def leaf(
        self, path: OpPath, spans: Spans, views: Views, keys: Keys, lanes: Lanes
    ) -> None:
        """Compute the results of an op, and propagate or draw their errors."""
        for i in spans[self._side].instructions:
            try:
                self._step(i, lanes)
            except NeuronJaxError as error:
                if error.op == i.name and not error.location:
                    raise error.changed(location=path.source or None) from None
                raise

    def _step(self, i: Instruction, lanes: Lanes) -> None:
        given = [lane.read(i.operands) for lane in lanes]
        if self._side.joins(i):
            made = exchanged(i, given, self._at, are_joint=self._are_joint)
            self.repeated(None, lanes[0], lanes[0], (h for own in made for h in own))
        else:
            made = [legal(i, operands, self._at) for operands in given]
        if self._draw is not None:
            is_drawn = any(h.is_drawn for x in given for h in x)
            held = {id(h): h for results in made for h in results}
            # The error of a number that several devices receive is drawn once.
            once = {key: drawn(h, is_drawn, self._draw) for key, h in held.items()}
            made = [[once[id(h)] for h in results] for results in made]
        for lane, results in zip(lanes, made, strict=True):
            lane.take(results, i.results)

    def repeated(
        self, op: Op | None, done: Lane, lane: Lane, values: Iterable[Held]
    ) -> None:
        """Treat errors of devices as correlated if devices share inexact `values`."""
        self._are_joint |= any(not held.is_exact for held in values)

    def did(self, path: OpPath, views: Views, lanes: Lanes) -> None:
        """Call `made` with the results of an op, and store what `made` returns."""
        if self._made is None or self.on_mesh:
            return
        [lane], known = lanes, views[self._side]
        at = {v: known[v].buffer.number for v in path.op.results if v in known}
        arrays = {v: lane.arrays[n] for v, n in at.items() if n in lane.arrays}
        changed = self._made(path, self.position.iterations, arrays) or {}
        for value, held in changed.items():
            if self._draw is not None:
                held = drawn(held, False, self._draw)
            lane.arrays[at[value]] = held

    def decision(self, lane: Lane, view: View, op: Op, what: str) -> int:
        """Return the number in `view`; raise `UnsupportedError` if it may be wrong."""
        [held] = lane.read([view])
        if is_doubtful(held) and not held.is_exact:
            raise UnsupportedError(
                f"{what} depends on numbers that are equal within their errors",
                op=op.name,
                location=OpPath(self.calls, op).source or None,
                remedy="pass a function that ends before this op, or starts after it",
            )
        return int(held.values)

    def cut(self, value: Held, part: tuple[slice, ...]) -> Held:
        return rearranged(value, lambda v: v[part])

    def joined(
        self, values: Sequence[Held], join: Callable[[Sequence[Any]], np.ndarray]
    ) -> Held:
        parts = [correlated(h) for h in values] if self._are_joint else values
        return moved_together(parts, join, self._model)
