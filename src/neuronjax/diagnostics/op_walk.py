"""A walk over a captured program that executes several lowerings side by side.

Every *lane* is one run: of the reference, of the actual program on its own values
(accumulation), of the actual program with every op on the reference's values
(isolation), or of a baseline. Op by op, each lane executes the instructions that its
lowering made of the op. Equal functions of the same arrays are computed once, and
arrays with equal bits become one array, so that two programs that differ in one op take
little longer than one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.distances import remembering
from neuronjax.diagnostics.executors import RoundingKey
from neuronjax.diagnostics.faults.perturbation import (
    is_exact,
    perturbed,
    selects,
    unit_of,
)
from neuronjax.diagnostics.faults.recorder import Witness
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.faults.whole_numbers import unheld
from neuronjax.diagnostics.joint_execution import executed_together
from neuronjax.diagnostics.lane_errors import Compared, LaneErrors
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.reference_substitution import (
    Substituted,
    declared,
    handed_on,
    substituted,
)
from neuronjax.diagnostics.turns import KEPT, Memory
from neuronjax.diagnostics.walk import Keys, Lanes, OpWalk, Spans, Views, count_ops
from neuronjax.errors import InternalError
from neuronjax.execution import stages
from neuronjax.ir.algebra_set import HostCall
from neuronjax.ir.instruction import Instruction, View
from neuronjax.ir.instruction_set import NcMatmul
from neuronjax.ir.program import Op, Value

# A function that receives the errors of every op: (path, iterations, errors).
Heard = Callable[[OpPath, tuple[int, ...], Compared], None]
_NONE = Errors()
#: A cast with at least this roundoff hides the rounding to FP32: the roundoff of BF16
#: and FP16 is at least 2^13 times that of FP32, and tables show two digits.
COARSE_CAST = 2.0**-11
_FLOAT32 = 2.0**-24
#: Lanes that take the reference's branches, and repeat loops as often as the reference.
_FED = frozenset({"rounded", "isolated", "perturbed"})


class ParallelWalk(OpWalk):
    """One pass over the program.

    Args:
        reference, actual: the lowerings that are compared.
        baseline: a third lowering to compare both with, or None.
        heard: receives the errors of every op.
        isolates: whether the actual ops are also run on the reference's values.
        replaced: ops that the reference executes for the actual lane.
        witness: observes the values of both runs; with a wider reference, also the
            values of a run on perturbed data.
        stage: name of this walk in the progress display.
        draw: number of the random perturbation of the data.
        is_again: whether an earlier walk has run the program's host calls that only
            read values, such as prints; this walk then skips them.
    """

    def __init__(
        self,
        reference: Side,
        actual: Side,
        heard: Heard,
        baseline: Side | None = None,
        isolates: bool = True,
        replaced: frozenset[OpPath] = frozenset(),
        witness: Witness | None = None,
        stage: str = "running",
        draw: int = 0,
        is_again: bool = False,
    ) -> None:
        super().__init__()
        self._draw, self._is_again = draw, is_again
        self.reference, self.actual, self.heard = reference, actual, heard
        self._replaced, self._witness, self._stage = replaced, witness, stage
        self.shares = witness is None or not witness.hears_every_device
        self._memory = Memory()
        wide = reference.executor.is_wide
        is_rounded, looks = wide and isolates, wide and witness is not None
        self._lanes = LaneErrors(
            Lane("reference", reference),
            Lane("actual", actual),
            rounded=Lane("rounded", reference) if is_rounded else None,
            isolated=Lane("isolated", actual) if isolates else None,
            baseline=Lane("baseline", baseline) if baseline else None,
            perturbed=Lane("perturbed", reference) if looks else None,
            memory=self._memory,
        )
        # Lane -> the lanes of the same device.
        self._beside = dict.fromkeys(self._lanes, self._lanes)
        self._begun: set[OpPath] = set()
        self._count = count_ops(actual, actual.program.main)

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """Execute main on arrays of declared dtypes; return results of `actual`."""
        lanes = [*self._lanes]
        for lane in lanes:
            enter = lane.side.executor.enter
            lane.take([enter(a) for a in arguments], lane.side.program.main.arguments)
        self._lanes.feed(arguments)
        if (lane := self._lanes.perturbed) is not None:
            for view in self.reference.program.main.arguments:
                if unit := unit_of(view.type.dtype):
                    array = np.asarray(lane.arrays[view.number])
                    lane.arrays[view.number] = perturbed(array, unit, self._draw)
        with remembering():
            self.main(lanes)
        results = self.actual.program.main.results
        if self._witness is not None:
            views = {lane: lane.side.program.main.results for lane in lanes}
            seen = (
                self._lanes.seen(lambda lane, n=n: views[lane][n], lanes)
                for n in range(len(results))
            )
            self._witness.ended([*seen])
        return self._lanes.actual.read(results)

    # -- methods of OpWalk -------------------------------------------------------------

    def repeated(
        self, op: Op | None, done: Lane, lane: Lane, values: Iterable[Any]
    ) -> None:
        """Copy an op's errors from `done` to `lane`, which has the same values."""
        if op is None or lane.name != "actual":
            return
        self._beside[lane].take(op, self._beside[done])
        if self._witness is not None:
            self._witness.repeated(op, done.device, lane.device)

    def on_device(self, device: int) -> Iterable[Lane]:
        lanes = self._lanes.on_device(device)
        self._beside.update(dict.fromkeys(lanes, lanes))
        return lanes

    def leader(self, name: str) -> str:
        """Return the name of the lane whose branches lane `name` takes."""
        return "reference" if name in _FED else name

    def decision(self, lane: Lane, view: View, op: Op, what: str) -> int:
        [array] = lane.read([view])
        value = np.asarray(array)
        if value.shape:
            raise InternalError(f"{what} is decided by a number that is no scalar")
        return int(value)

    def decided(self, op: Op, lanes: Lanes, decisions: Mapping[Lane, int]) -> None:
        """Record an error of `op` if the run and the reference take different branches,
        or repeat a loop a different number of times."""
        by_name = {lane.name: n for lane, n in reversed([*decisions.items()])}
        if "actual" not in by_name or "reference" not in by_name:
            return
        pair = np.asarray([by_name["actual"]]), np.asarray([by_name["reference"]])
        error = _NONE if pair[0] == pair[1] else errors_of(*pair)
        found = Compared(isolation=_NONE, accumulation=error, device=lanes[0].device)
        self.heard(OpPath(self.calls, op), self.position.iterations, found)

    def cut(self, value: Any, part: tuple[slice, ...]) -> Any:
        if isinstance(value, Substituted):
            return Substituted(self.cut(value.declared, part), value.wide[part])
        return np.asarray(value)[part]

    def joined(
        self, values: Sequence[Any], join: Callable[[Sequence[Any]], np.ndarray]
    ) -> Any:
        whole = join([*map(np.asarray, map(declared, values))])
        if not any(isinstance(value, Substituted) for value in values):
            return whole
        enter = self.reference.executor.enter
        wide = (x.wide if isinstance(x, Substituted) else enter(x) for x in values)
        return Substituted(whole, join([*wide]))

    def leaf(
        self, path: OpPath, spans: Spans, views: Views, keys: Keys, lanes: Lanes
    ) -> None:
        self._say(path)
        self._memory.begin(path, self.position.iterations)
        bundles = [*dict.fromkeys(self._beside[lane] for lane in lanes)]
        rows: dict[str, list[Lane]] = {}
        for lane in lanes:
            rows.setdefault(lane.name, []).append(lane)
        repeats = not self._replaced and all(b.repeats(path.op, lanes) for b in bundles)
        moves = not self._replaced and all(b.moves(spans, lanes) for b in bundles)
        alone = None
        if len(bundles) == 1 and not (repeats or moves or self._replaced):
            # In a loop, small arrays are left to separate lanes, which reuse results of
            # the previous iteration; see `turns`.
            least = KEPT + 1 if self.position.iterations else 1
            alone = executed_together(bundles[0], spans, lanes, least)
        for name, row in rows.items() if alone is None else ():
            if (repeats or moves) and name in ("rounded", "isolated"):
                continue  # these lanes get the reference's result
            self._execute_row(row, path, spans, views, keys)
        for bundle in bundles:
            own = [lane for lane in bundle if lane in lanes]
            found = bundle.compare(path.op, views, own, repeats, moves, alone)
            self._look(path, views, bundle, own, found, repeats)
            self.heard(path, self.position.iterations, found)

    def _execute_row(
        self, row: Lanes, path: OpPath, spans: Spans, views: Views, keys: Keys
    ) -> None:
        """Execute an op in the lanes of `row`, which all have the same name."""
        name, side, op = row[0].name, row[0].side, path.op
        if name == "rounded" and self._casts_coarsely(op):
            numbers = [views[side][value].buffer.number for value in op.results]
            for lane in row:  # "rounded" and the reference have the same buffers
                arrays = self._beside[lane].reference.arrays
                lane.arrays.update((number, arrays[number]) for number in numbers)
        elif name == "actual" and self._substitutes(op, path, views, row):
            self._substitute(row, path, spans, views, keys)
        elif name == "perturbed":
            assert self._witness is not None
            cast = self._witness.contractions.get(op)
            moves = functools.partial(self._moved_operands, cast)
            self._execute(row, spans[side].instructions, keys, moves)
        else:
            self._execute(row, spans[side].instructions, keys)

    def _say(self, path: OpPath) -> None:
        self._begun.add(path)
        turns = "".join(f", iteration {n + 1}" for n in self.position.iterations[-1:])
        where = f"op {len(self._begun)} of {self._count}{turns}"
        stages.stage(f"{self._stage}, {where}")

    def _casts_coarsely(self, op: Op) -> bool:
        """Return whether the cast of the operands hides an earlier rounding to FP32."""
        cast = None if self._witness is None else self._witness.contractions.get(op)
        if cast is None or cast.unit < COARSE_CAST:
            return False
        return all(unit_of(v.type.dtype) <= _FLOAT32 for v in op.operands)

    def _moved_operands(
        self, cast: Cast | None, lane: Lane, i: Instruction, operands: list[Any]
    ) -> list[Any]:
        """Return `operands`, perturbed by the roundoff of `cast` if `i` is a
        contraction. Whole numbers stay unchanged, since they count as exact data. If
        the cast rounds whole numbers, or numbers that the contraction only selects, no
        operand is perturbed: errors of the cast are then no uncertainty of the data."""
        if cast is None or cast.unit <= _FLOAT32 or not isinstance(i, NcMatmul):
            return operands
        exact = self._beside[lane].reference.read(i.operands)
        if not cast.is_scaled:
            if unheld(exact, cast) or selects(i.dimensions, exact):
                return operands
        return [
            perturbed(x, cast.unit, self._draw)
            if unit_of(v.type.dtype) and not is_exact(r)
            else x
            for x, r, v in zip(operands, exact, i.operands, strict=True)
        ]

    def _execute(
        self,
        row: Lanes,
        instructions: Sequence[Instruction],
        keys: Keys,
        moves: Callable[..., list[Any]] | None = None,
    ) -> None:
        side = row[0].side
        for i in instructions:
            is_host = isinstance(i, HostCall)
            if self._is_again and is_host and i.function.kind == "debug":
                continue
            given = [lane.read(i.operands) for lane in row]
            if self._replaced:
                given = [[*map(declared, x)] for x in given]
            if moves is not None:
                given = [moves(y, i, x) for y, x in zip(row, given, strict=True)]
            if side.joins(i):
                arrays, run = [x for own in given for x in own], side.executor.exchange
                made = self._once(run, i, given, arrays, side, keys[side])
            else:
                run = side.executor.execute
                made = [
                    self._once(run, i, own, own, side, self.own_key(lane, keys))
                    for lane, own in zip(row, given, strict=True)
                ]
            for lane, results in zip(row, made, strict=True):
                lane.take(results, i.results)

    def _once(
        self,
        run: Callable[..., Any],
        i: Instruction,
        operands: Any,
        arrays: Sequence[Any],
        side: Side,
        key: RoundingKey,
    ) -> Any:
        called = self.position.iterations if isinstance(i, HostCall) else ()
        what = (side.executor.identity(i, key, self.position), called)
        make = functools.partial(run, i, operands, key, self.position)
        return self._memory.once(what, arrays, make)

    # -- explanations ------------------------------------------------------------------

    def _substitutes(self, op: Op, path: OpPath, views: Views, row: Lanes) -> bool:
        """Return whether an op is replaced, or reads what a replaced op has changed."""
        if not self._replaced:
            return False
        known = views[self.actual]
        reads = [known[v].buffer.number for v in op.operands if v in known]
        arrays = (lane.arrays.get(number) for lane in row for number in reads)
        return path in self._replaced or any(isinstance(x, Substituted) for x in arrays)

    def _substitute(
        self, row: Lanes, path: OpPath, spans: Spans, views: Views, keys: Keys
    ) -> None:
        """Execute the actual program's instructions, then replace their results by
        values that include the effect of the replaced ops."""
        op, actual, enter = path.op, self.actual, self.reference.executor.enter
        known, is_replaced = views[actual], path in self._replaced
        at = {v: known[v].buffer.number for v in (*op.operands, *op.results)}
        narrow, wide = [], []
        for lane in row:
            given = {value: lane.arrays[at[value]] for value in op.operands}
            narrow.append({value: enter(declared(x)) for value, x in given.items()})
            held = {v: x.wide for v, x in given.items() if isinstance(x, Substituted)}
            wide.append(narrow[-1] | held)
        expected = self._referred(row, op, wide, spans, views, keys)
        rounded = expected
        if not is_replaced:
            rounded = self._referred(row, op, narrow, spans, views, keys)
        self._execute(row, spans[actual].instructions, keys)
        written = {b.number for i in spans[actual].instructions for b in i.results}
        for lane, best, plain in zip(row, expected, rounded, strict=True):
            for n, value in enumerate(op.results):
                if at[value] not in written:  # an earlier value's buffer
                    continue
                found = np.asarray(best[n])
                if not is_replaced:
                    own = np.asarray(enter(lane.arrays[at[value]]))
                    found = handed_on(own, found, np.asarray(plain[n]))
                dtype = value.type.dtype
                if is_float(dtype):
                    found = substituted(found, dtype, self.reference.executor)
                lane.arrays[at[value]] = found

    def _referred(
        self,
        row: Lanes,
        op: Op,
        operands: Sequence[Mapping[Value, Any]],
        spans: Spans,
        views: Views,
        keys: Keys,
    ) -> list[list[Any]]:
        """Return the reference's results on the operands of each lane of `row`."""
        side, others = self.reference, []
        known = views[side]
        for lane, given in zip(row, operands, strict=True):
            arrays = dict(self._beside[lane].reference.arrays)
            arrays |= {known[v].buffer.number: x for v, x in given.items()}
            others.append(Lane("replaced", side, arrays, lane.device))
        self._execute(others, spans[side].instructions, keys)
        return [lane.read([known[v] for v in op.results]) for lane in others]

    def _look(
        self,
        path: OpPath,
        views: Views,
        bundle: LaneErrors,
        lanes: Lanes,
        found: Compared,
        repeats: bool,
    ) -> None:
        if self._witness is None or not {bundle.reference, bundle.actual} <= {*lanes}:
            return

        def seen(value: Value) -> Seen:
            return bundle.seen(lambda lane: views[lane.side][value], lanes, value)

        self._witness.saw(
            path,
            self.position.iterations,
            {v: seen(v) for v in path.op.operands if v in views[self.reference]},
            [seen(v) for v in path.op.results],
            0.0 if found.isolation is None else found.isolation.relative_l2,
            repeats=repeats,
            device=found.device,
        )
