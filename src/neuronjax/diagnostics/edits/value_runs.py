"""Runs two programs and compares the values of the ops that are one another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from neuronjax.diagnostics.edits.alignment import AlignedPair, Alignment
from neuronjax.diagnostics.edits.flattening import FlatOp, FlatProgram
from neuronjax.diagnostics.faults.evidence import Seen
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.diagnostics.op_walk import Compared, ParallelWalk
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.ir.program import Op, Value

#: An execution of an op: which, in which iteration of the loops around it, and on which
#: device.
_Moment = tuple[FlatOp, tuple[int, ...], int]
_Arrays = list[np.ndarray]


@dataclass
class PairErrors:
    """How far the values of a pair are apart, all executions added up.

    Attributes:
        first: iterations of the first execution that differs; None where none does.
    """

    errors: Errors = field(default_factory=Errors)
    first: tuple[int, ...] | None = None
    order: int = 0


class _Notes:
    """A witness that hands on what every op made."""

    contractions: Mapping[Op, Cast] = {}
    hears_every_device: ClassVar[bool] = True

    def __init__(self, program: FlatProgram, heard: Any) -> None:
        self._ops = {o.path: o for o in program.ops}
        self._heard = heard
        self.results: _Arrays = []

    def saw(
        self,
        path: OpPath,
        iterations: tuple[int, ...],
        operands: Mapping[Value, Seen],
        results: Sequence[Seen],
        own: float,
        *,
        repeats: bool = False,
        device: int = 0,
    ) -> None:
        """After every op."""
        moment = (self._ops[path], iterations, device)
        self._heard(moment, [x.actual for x in results])

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Every device is heard."""

    def ended(self, results: Sequence[Seen]) -> None:
        """Keeps the results of main."""
        self.results = [x.actual for x in results]


def _nothing(path: OpPath, iterations: tuple[int, ...], found: Compared) -> None:
    """A walk of one program beside itself has no errors."""


def _run(
    side: Side, program: FlatProgram, arguments: Sequence[Any], heard: Any
) -> _Arrays:
    notes = _Notes(program, heard)
    walk = ParallelWalk(side, side, _nothing, isolates=False, witness=notes)
    walk.run(arguments)
    return notes.results


@dataclass
class PairedRuns:
    """Both programs on the same arguments.

    Attributes:
        sides: the programs before and after, lowered.
        tolerance: relative L2 error up to which values are the same; 0 for any bit.
    """

    alignment: Alignment
    sides: tuple[Side, Side]
    tolerance: float

    def run(self, arguments: tuple[Sequence[Any], Sequence[Any]]) -> tuple[Any, Any]:
        """The results of both; what differs is in `found` after it."""
        self.found: dict[AlignedPair, PairErrors] = {}
        self._known: dict[_Moment, _Arrays] = {}
        self._partner = {p.after: p for p in self.alignment.pairs}
        kept = {p.before for p in self.alignment.pairs}

        def before(moment: _Moment, made: _Arrays) -> None:
            if moment[0] in kept:
                self._known[moment] = made

        results = _run(self.sides[0], self.alignment.before, arguments[0], before)
        others = _run(self.sides[1], self.alignment.after, arguments[1], self._after)
        return results, others

    def _after(self, moment: _Moment, made: _Arrays) -> None:
        op, iterations, device = moment
        pair = self._partner.get(op)
        if pair is None:
            return
        known = self._known.pop((pair.before, iterations, device), None)
        if known is None:  # an iteration that the program before has not
            return
        sums = self.found.setdefault(pair, PairErrors(order=len(self.found)))
        errors = Errors()
        for x, y in zip(made, known, strict=True):
            if x.shape == y.shape:
                errors = errors + errors_of(x, y)
        sums.errors = sums.errors + errors
        is_off = errors.relative_l2 > self.tolerance
        if self.tolerance == 0:
            is_off = errors.differing > 0
        if sums.first is None and is_off:
            sums.first = iterations
