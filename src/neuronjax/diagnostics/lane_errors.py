"""The errors between lanes, the runs of a program that a walk executes side by side.

Lanes with the same array have no error, and arrays with equal bits become one array. An
op that only repeats all elements equally often has the errors of its operand. If the
reference has wider floats, an op that changes no bit has no error on the reference's
operands, and lanes that continue with the reference's results do not execute the op.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.distances import Figures, figures, same_bits
from neuronjax.diagnostics.faults.shares import Seen, settings_of
from neuronjax.diagnostics.op_errors import Errors, errors_in, errors_of, steps_of
from neuronjax.diagnostics.parallel_runs import Executor, Fed, Lane, Side, Span
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.reference_substitution import Substituted, declared
from neuronjax.diagnostics.turns import Memory
from neuronjax.ir.instruction_set import DmaCopy
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.host_kernels.figures import Told

Lanes = Sequence[Lane]
Views = Mapping[Side, Mapping[Value, Any]]
#: Ops whose result repeats every element of the operand the same number of times.
REPEATS = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "transpose")
)


class Compared(NamedTuple):
    """The errors of one execution of an op on a device (0 outside of a mesh).

    Against the reference, `isolation` is the error on the reference's operands and
    `accumulation` the error in the run. Against the baseline, `expected` is the error
    of the reference and `actual` the error of the run. An error is None if one of the
    two lanes did not execute the op."""

    isolation: Errors | None = None
    accumulation: Errors | None = None
    expected: Errors | None = None
    actual: Errors | None = None
    device: int = 0

    def plus(self, other: Compared) -> Compared:
        pairs = zip(self[:4], other[:4], strict=True)
        sums = (b if a is None else a if b is None else a + b for a, b in pairs)
        return Compared(*sums, device=other.device)


@dataclass(eq=False)
class LaneErrors:
    """The lanes of a walk, by purpose, and their errors.

    Attributes:
        reference, actual: the lanes that are compared.
        rounded: the reference program, with each op run on the reference's values,
            rounded to the declared formats; `isolated` is compared with this lane. None
            unless the reference has wider floats.
        isolated: the actual program, with each op run on the reference's values,
            rounded to the declared formats.
        baseline: a third lane, with which `reference` and `actual` are compared.
        perturbed: the reference program on randomly perturbed data.
        memory: cached results of computations on the same arrays.
    """

    reference: Lane
    actual: Lane
    rounded: Lane | None = None
    isolated: Lane | None = None
    baseline: Lane | None = None
    perturbed: Lane | None = None
    memory: Memory = field(default_factory=Memory)
    _known: dict[Value, Compared] = field(default_factory=dict)
    #: Distances of the current op's results, for the walk's observer.
    asked: dict[Value, Figures] = field(default_factory=dict)

    def feed(self, arguments: Sequence[Any]) -> None:
        """Store the arguments of main in `isolated` and `rounded`, as `compare` stores
        the results of ops."""
        if self.isolated is None:
            return
        executor, theirs = self.reference.side.executor, self.reference.side.program
        pairs = self.isolated.side.program.main.arguments, theirs.main.arguments
        for array, ours, buffer in zip(arguments, *pairs, strict=True):
            fed = Fed(executor, self.reference.arrays[buffer.number], buffer.type.dtype)
            fed.given, fed.entered = array, fed.array  # rounding would change nothing
            self.isolated.arrays[ours.number] = fed
            if self.rounded is not None:
                self.rounded.arrays[buffer.number] = fed

    def on_device(self, device: int) -> LaneErrors:
        """Return new lanes with the same purposes for `device`."""
        own = {
            f.name: lane and Lane(lane.name, lane.side, device=device)
            for f in fields(self)
            if isinstance(lane := getattr(self, f.name), Lane | None)
        }
        return LaneErrors(**own, memory=self.memory)  # type: ignore[arg-type]

    def take(self, op: Op, other: LaneErrors) -> None:
        """Copy the errors of `op` from `other`, the lanes of another device."""
        own = {v: other._known[v] for v in op.results if v in other._known}
        self._known.update(own)

    def __iter__(self) -> Iterator[Lane]:
        """Yield the lanes in the order of execution.

        The reference is first, since other lanes can use its results. A reference with
        wider floats is later: NumPy computes it while XLA runs the lanes before it."""
        first, last = (self.reference, self.rounded), (self.isolated, self.actual)
        if self.reference.side.executor.is_wide:
            first, last = last, first
        lanes = (*first, *last, self.baseline, self.perturbed)
        return (lane for lane in lanes if lane is not None)

    def repeats(self, op: Op, lanes: Lanes) -> bool:
        """Return whether an op only repeats finite numbers with known errors, so that
        `rounded` and `isolated` need not be executed."""
        if op.name not in REPEATS or not self._may_skip(lanes):
            return False
        known = self._known.get(op.operands[0])
        errors = None if known is None else known.accumulation
        is_finite = errors is not None and errors.is_finite
        return is_finite and is_float(op.results[0].type.dtype)

    def moves(self, spans: Mapping[Side, Span], lanes: Lanes) -> bool:
        """Return whether an op changes no bit, so that `rounded` and `isolated` need
        not execute the op but get the reference's result."""
        executed = [i for span in spans.values() for i in span.instructions]
        are_moves = bool(executed) and all(isinstance(i, DmaCopy) for i in executed)
        return are_moves and self._may_skip(lanes)

    def _may_skip(self, lanes: Lanes) -> bool:
        needed = (self.reference, self.actual, self.isolated)
        is_wide = self.reference.side.executor.is_wide
        return is_wide and all(lane in lanes for lane in needed)

    def compare(
        self,
        op: Op,
        views: Views,
        lanes: Lanes,
        repeats: bool,
        moves: bool,
        alone: Errors | None,
    ) -> Compared:
        """Return the errors of `op`; store the reference's results in `isolated` and
        `rounded`, which compute the next ops from them. `alone` has the errors on
        the reference's operands, or is None if they are not known yet."""
        total = Compared()
        self.asked.clear()
        is_known = moves or alone is not None
        executed = [x for x in lanes if x is not self.isolated] if is_known else lanes
        for value in op.results:
            if repeats:
                found = self._repeated(value, op.operands[0])
            else:
                found = self._compared(value, views, executed)
            self._feed(views, value, lanes)
            if moves and not repeats:
                own = self._moved(value, found.accumulation or Errors(), views)
                found = found._replace(isolation=own)
            if alone is not None:
                found = found._replace(isolation=alone)
            self._known[value] = found
            total = total.plus(found)
        return total._replace(device=self.reference.device)

    def _moved(self, value: Value, own: Errors, views: Views) -> Errors:
        """Return the errors of `value` if the op that moves it reads the reference's
        operands. `own` are the errors of `value` in the run."""
        dtype = np.dtype(value.type.dtype)
        if not is_float(dtype):
            return Errors(elements=_size(value))
        largest = settings_of(dtype)[Told.LARGEST]
        if own.is_finite and own.sum_reference2 < largest**2:
            return own.without_error()
        lanes = self.isolated, self.rounded or self.reference
        pair = (x and x.array(views[x.side][value].buffer.number) for x in lanes)
        return errors_of(*map(np.asarray, pair))

    def _compared(self, value: Value, views: Views, lanes: Lanes) -> Compared:
        def errors(left: Lane | None, right: Lane | None) -> Errors | None:
            if left is None or right is None or not {left, right} <= {*lanes}:
                return None
            return self._errors(left, right, views, value)

        # `base` comes first: `_errors` may replace the reference's array by the
        # baseline's equal array, so that the later comparisons find the same array.
        base = errors(self.reference, self.baseline)
        return Compared(
            errors(self.isolated, self.rounded or self.reference),
            errors(self.actual, self.reference),
            base,
            errors(self.actual, self.baseline),
        )

    def _repeated(self, value: Value, operand: Value) -> Compared:
        times, known = _size(value) // max(1, _size(operand)), self._known[operand]
        own, expected, actual = (
            None if e is None else e.repeated(times)
            for e in (known.accumulation, known.expected, known.actual)
        )
        assert own is not None
        return Compared(own.without_error(), own, expected, actual)

    def _feed(self, views: Views, value: Value, lanes: Lanes) -> None:
        if self.isolated is None or self.isolated not in lanes:
            return
        executor, dtype = self.reference.side.executor, value.type.dtype
        number = views[self.reference.side][value].buffer.number
        reference = self.reference.arrays[number]

        make = functools.partial(Fed, executor, reference, dtype)
        fed = self.memory.once(("fed", dtype), [reference], make)
        at = views[self.actual.side][value].buffer.number
        self.isolated.arrays[at] = fed
        if self.rounded is not None:
            self.rounded.arrays[number] = fed

    def _errors(self, left: Lane, right: Lane, views: Views, value: Value) -> Errors:
        """Return the errors of `value` in `left` against `right`. If bits are equal,
        `left` may get the array of `right`. If the walk has an observer, put distances
        of the run from the reference in `asked`."""
        at, executor = views[left.side][value].buffer.number, left.side.executor
        ours = left.array(at)
        theirs = right.array(views[right.side][value].buffer.number)
        if ours is theirs:
            return Errors(elements=_size(value))
        about = executor, value.type.dtype, self.perturbed is not None
        measured = functools.partial(_measured, ours, theirs, *about)
        errors, found = self.memory.once(about, [ours, theirs], measured)
        if found is not None and left is self.actual and right is self.reference:
            self.asked[value] = found
        if errors is None and not executor.is_wide:
            left.arrays[at] = theirs
        return errors or Errors(elements=_size(value))

    def seen(
        self, view: Callable[[Lane], Any], lanes: Lanes, value: Value | None = None
    ) -> Seen:
        """Return the arrays of a value in `lanes`, from the buffer of `view(lane)`.
        Pass `value` if an op has just computed it, to include its distances."""

        def array(lane: Lane | None) -> Any:
            if lane is None or lane not in lanes:
                return None
            return np.asarray(declared(lane.arrays[view(lane).buffer.number]))

        dtype = view(self.actual).type.dtype
        moved = array(self.perturbed)
        return Seen(
            dtype,
            array(self.reference),
            array(self.actual),
            perturbed=() if moved is None else (moved,),
            found=None if value is None else self.asked.get(value),
        )


def _measured(
    ours: Any, theirs: Any, executor: Executor, dtype: Any, is_seen: bool
) -> tuple[Errors | None, Figures | None]:
    if isinstance(ours, Substituted):
        return errors_of(ours.wide, np.asarray(theirs)), None
    a, r = np.asarray(executor.leave(ours, dtype)), np.asarray(theirs)
    if same_bits(a, r):
        return None, None
    if not is_seen:
        return errors_of(a, r), None
    found = figures(a, r, {**steps_of(a.dtype), **settings_of(a.dtype)})
    return errors_in(found, a, r), found


def _size(value: Value) -> int:
    return math.prod(value.type.shape)
