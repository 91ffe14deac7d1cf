"""A walk over a captured program that executes several lowerings of it side by side.

Every *lane* is one run: of the reference, of the actual program on its own values
(accumulation), of the actual program with every op fed the reference's values
(isolation), and of a baseline. Op by op each lane executes the instructions that its
lowering made of the op. What is the same function of the same arrays is computed once,
and arrays with equal bits become one array, so two programs that differ in one op cost
little more than one. Values are freed after their last use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.diagnostics.executors import Position, RoundingKey
from neuronjax.diagnostics.faults.perturbation import perturbed, unit_of
from neuronjax.diagnostics.faults.recorder import Witness
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.lane_errors import Compared, LaneErrors, Lanes, Views
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side, Span
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.reference_substitution import (
    Substituted,
    declared,
    handed_on,
    substituted,
)
from neuronjax.errors import InternalError
from neuronjax.execution import stages
from neuronjax.execution.interpreter import chosen_branch
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import Branch, Call, Loop, NcMatmul
from neuronjax.ir.program import Op, Value
from neuronjax.ir.traversal import entries

# Called after every op that any lane executed: (path, iterations, errors).
Heard = Callable[[OpPath, tuple[int, ...], Compared], None]
Blocks = Mapping[Side, Block]
Keys = Mapping[Side, RoundingKey]
Spans = Mapping[Side, Span]
#: The loop, branch or call that an op is on every side.
Controls = Mapping[Side, Any]
_NONE = Errors()
#: The roundoff of a cast beside which that of FP32 is nothing: BF16 and FP16 have 2^13
#: and more of FP32's, which a table of two digits does not show.
COARSE_CAST = 2.0**-11
_FLOAT32 = 2.0**-24


@dataclass
class ParallelWalk:
    """One pass over the program.

    Attributes:
        reference, actual: what is compared.
        baseline: a third lowering to measure both against, or None.
        heard: receives the errors.
        isolates: whether ops are also run on the reference's values.
        replaced: paths at which the actual lane executes the reference's instructions.
        witness: looks at the numbers; against a wider reference also at those of
            perturbed data.
        stage: what this is, to who waits for it.
    """

    reference: Side
    actual: Side
    heard: Heard
    baseline: Side | None = None
    isolates: bool = True
    replaced: frozenset[OpPath] = frozenset()
    witness: Witness | None = None
    stage: str = "running"

    def __post_init__(self) -> None:
        wide = self.reference.executor.is_wide
        reference, actual = self.reference, self.actual
        is_rounded, looks = wide and self.isolates, wide and self.witness is not None
        self._lanes = LaneErrors(
            Lane("reference", reference),
            Lane("actual", actual),
            rounded=Lane("rounded", reference) if is_rounded else None,
            isolated=Lane("isolated", actual) if self.isolates else None,
            baseline=Lane("baseline", self.baseline) if self.baseline else None,
            perturbed=Lane("perturbed", reference) if looks else None,
        )
        self._position = Position()
        self._calls: tuple[Op, ...] = ()
        self._done: dict[Hashable, tuple[Any, Any]] = {}
        self._begun: set[OpPath] = set()
        self._count = _count(actual, actual.program.main)

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """Executes main on arrays of the declared dtypes: the actual results."""
        lanes = [*self._lanes]
        for lane in lanes:
            enter = lane.side.executor.enter
            lane.take([enter(a) for a in arguments], lane.side.program.main.arguments)
        if self._lanes.perturbed is not None:
            self._perturb(self._lanes.perturbed)
        sides = dict.fromkeys(lane.side for lane in lanes)
        blocks = {side: side.program.main for side in sides}
        keys = {side: side.executor.first_key for side in sides}
        with np.errstate(all="ignore"):  # Inf and NaN are what is looked for
            self._region(blocks, keys, lanes)
        if self.witness is not None:
            views = {lane: lane.side.program.main.results for lane in lanes}
            count = len(self.actual.program.main.results)
            results = [
                self._lanes.seen(lambda lane, n=n: views[lane][n], lanes)
                for n in range(count)
            ]
            self.witness.ended(results)
        return self._lanes.actual.read(self.actual.program.main.results)

    def _perturb(self, lane: Lane) -> None:
        """Moves the arguments by what their formats cannot hold."""
        for view in self.reference.program.main.arguments:
            unit = unit_of(view.type.dtype)
            if unit:
                array = np.asarray(lane.arrays[view.number])
                lane.arrays[view.number] = perturbed(array, unit)

    # -- regions -----------------------------------------------------------------------

    def _region(self, blocks: Blocks, keys: Keys, lanes: Lanes) -> None:
        sides = dict.fromkeys(lane.side for lane in lanes)
        spans = {side: side.spans(blocks[side]) for side in sides}
        ops = next(iter(sides)).regions[blocks[next(iter(sides))]].region.ops
        for n, op in enumerate(ops):
            own = {side: spans[side][n] for side in sides}
            views = {side: side.regions[blocks[side]].views for side in sides}
            self._op(op, own, views, keys, lanes)
            for lane in lanes:
                for number in own[lane.side].frees:
                    lane.arrays.pop(number, None)

    def _op(self, op: Op, spans: Spans, views: Views, keys: Keys, lanes: Lanes) -> None:
        control = {side: _control(spans[side]) for side in spans}
        if None not in control.values():
            kind = type(next(iter(control.values())))
            _HANDLERS[kind](self, op, control, keys, lanes)
            return
        path = OpPath(self._calls, op)
        self._position.path = path
        self._say(path)
        self._done.clear()
        repeats = not self.replaced and self._lanes.repeats(op, lanes)
        for lane in lanes:
            if repeats and lane in (self._lanes.rounded, self._lanes.isolated):
                continue  # they are fed the reference's result
            if lane is self._lanes.rounded and self._casts_coarsely(op):
                self._share(op, views, lane)
                continue
            if lane is self._lanes.actual and self._substitutes(op, path, views):
                self._substitute(
                    op, spans, views, keys, is_replaced=path in self.replaced
                )
            elif lane is self._lanes.actual and path in self.replaced:
                self._replace(op, spans, views, keys)
            elif lane is self._lanes.perturbed:
                self._execute_perturbed(lane, op, spans[lane.side], keys)
            else:
                self._execute(lane, spans[lane.side].instructions, keys[lane.side])
        found = self._lanes.compare(op, views, lanes, repeats)
        self._look(path, views, lanes, found, repeats)
        self.heard(path, self._position.iterations, found)

    def _say(self, path: OpPath) -> None:
        """The op at hand, to who waits."""
        self._begun.add(path)
        turns = "".join(f", turn {n + 1}" for n in self._position.iterations[-1:])
        where = f"op {len(self._begun)} of {self._count}{turns}"
        stages.stage(f"{self.stage}, {where}")

    def _casts_coarsely(self, op: Op) -> bool:
        """Whether the policy casts a contraction's operands to so few digits that
        beside it nobody sees whether the reference's are rounded to FP32 before."""
        cast = None if self.witness is None else self.witness.contractions.get(op)
        if cast is None or cast.unit < COARSE_CAST:
            return False
        return all(unit_of(v.type.dtype) <= _FLOAT32 for v in op.operands)

    def _share(self, op: Op, views: Views, lane: Lane) -> None:
        """The reference's results for a lane of its side."""
        for value in op.results:
            number = views[lane.side][value].buffer.number
            lane.arrays[number] = self._lanes.reference.arrays[number]

    def _execute_perturbed(self, lane: Lane, op: Op, span: Span, keys: Keys) -> None:
        """Operands of contractions are moved by what the policy casts them to; FP32 is
        multiplied as it is."""
        assert self.witness is not None
        cast = self.witness.contractions.get(op)
        unit = 0.0 if cast is None else cast.unit
        unit = unit if unit > _FLOAT32 else 0.0
        executor, key = lane.side.executor, keys[lane.side]
        for i in span.instructions:
            operands = lane.read(i.operands)
            if unit and isinstance(i, NcMatmul):
                operands = [
                    perturbed(x, unit) if unit_of(v.type.dtype) else x
                    for x, v in zip(operands, i.operands, strict=True)
                ]
            results = executor.execute(i, operands, key, self._position)
            lane.take(results, i.results)

    def _execute(
        self, lane: Lane, instructions: Sequence[Instruction], key: RoundingKey
    ) -> None:
        executor = lane.side.executor
        for i in instructions:
            operands = [*map(declared, lane.read(i.operands))]
            same = (executor.identity(i, key, self._position), *map(id, operands))
            known = self._done.get(same)
            if known is None:
                results = executor.execute(i, operands, key, self._position)
                # The operands are kept, for their ids are the key.
                known = self._done[same] = (results, operands)
            lane.take(known[0], i.results)

    def _replace(self, op: Op, spans: Spans, views: Views, keys: Keys) -> None:
        """The reference's instructions on the actual values."""
        reference, actual = self.reference, self.actual
        executor, arrays = reference.executor, self._lanes.actual.arrays
        known = views[actual]
        at = {v: known[v].buffer.number for v in (*op.operands, *op.results)}
        given = {v: executor.enter(arrays[at[v]]) for v in op.operands}
        made = self._referred(op, given, spans[reference], views[reference], keys)
        # What later ops reuse of the actual lowering, a cast operand, is made as well.
        self._execute(self._lanes.actual, spans[actual].instructions, keys[actual])
        written = {b.number for i in spans[actual].instructions for b in i.results}
        for value, array in zip(op.results, made, strict=True):
            if at[value] in written:  # else it stands for another value
                arrays[at[value]] = executor.leave(array, value.type.dtype)

    def _substitutes(self, op: Op, path: OpPath, views: Views) -> bool:
        """Whether an op is replaced by a wide one, or reads what such a one made."""
        if not self.replaced or not self.reference.executor.is_wide:
            return False
        known, arrays = views[self.actual], self._lanes.actual.arrays
        reads = (known[v].buffer.number for v in op.operands if v in known)
        return path in self.replaced or any(
            isinstance(arrays.get(number), Substituted) for number in reads
        )

    def _substitute(
        self, op: Op, spans: Spans, views: Views, keys: Keys, *, is_replaced: bool
    ) -> None:
        """The actual instructions; their results as `reference_substitution` says."""
        reference, actual = self.reference, self.actual
        executor, arrays = reference.executor, self._lanes.actual.arrays
        known = views[actual]
        at = {v: known[v].buffer.number for v in (*op.operands, *op.results)}
        given = {value: arrays[at[value]] for value in op.operands}
        narrow = {value: executor.enter(declared(x)) for value, x in given.items()}
        wide = {
            value: x.wide if isinstance(x, Substituted) else narrow[value]
            for value, x in given.items()
        }
        expected = [
            self._referred(op, operands, spans[reference], views[reference], keys)
            for operands in ((wide,) if is_replaced else (wide, narrow))
        ]
        self._execute(self._lanes.actual, spans[actual].instructions, keys[actual])
        written = {b.number for i in spans[actual].instructions for b in i.results}
        for n, value in enumerate(op.results):
            if at[value] not in written:  # it stands for another value
                continue
            found, dtype = np.asarray(expected[0][n]), value.type.dtype
            if not is_replaced:
                own = np.asarray(executor.enter(arrays[at[value]]))
                found = handed_on(own, found, np.asarray(expected[1][n]))
            if is_float(dtype):
                leave = functools.partial(executor.leave, dtype=dtype)
                arrays[at[value]] = substituted(found, executor.enter, leave)
            else:
                arrays[at[value]] = found

    def _referred(
        self,
        op: Op,
        operands: Mapping[Value, Any],
        span: Span,
        views: Mapping[Value, Any],
        keys: Keys,
    ) -> list[Any]:
        """The reference's results on other operands."""
        lane = Lane("replaced", self.reference, dict(self._lanes.reference.arrays))
        for value, array in operands.items():
            lane.arrays[views[value].buffer.number] = array
        self._execute(lane, span.instructions, keys[self.reference])
        return lane.read([views[v] for v in op.results])

    def _look(
        self, path: OpPath, views: Views, lanes: Lanes, found: Compared, repeats: bool
    ) -> None:
        """Shows the witness an op that both runs execute."""
        pair = (self._lanes.reference, self._lanes.actual)
        if self.witness is None or not all(lane in lanes for lane in pair):
            return

        def seen(value: Value) -> Seen:
            return self._lanes.seen(lambda lane: views[lane.side][value], lanes)

        known = views[self.reference]
        self.witness.saw(
            path,
            self._position.iterations,
            {v: seen(v) for v in path.op.operands if v in known},
            [seen(v) for v in path.op.results],
            0.0 if found.isolation is None else found.isolation.relative_l2,
            repeats=repeats,
        )

    # -- control -----------------------------------------------------------------------

    def _follow(self, lanes: Lanes, decide: Callable[[Lane], int]) -> dict:
        """Lanes by what they decide; those that are fed follow the reference."""
        fed = (self._lanes.rounded, self._lanes.isolated, self._lanes.perturbed)
        groups: dict[int, list[Lane]] = {}
        for lane in lanes:
            leader = self._lanes.reference if lane in fed else lane
            groups.setdefault(decide(leader), []).append(lane)
        return groups

    def _loop(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        conditions = {s: i.condition for s, i in instructions.items()}
        bodies = {s: i.body for s, i in instructions.items()}
        keys = self._inner_keys(instructions, keys)
        carries = {lane: lane.read(instructions[lane.side].operands) for lane in lanes}
        outer, iteration, active = self._position.iterations, 0, list(lanes)
        trips: dict[Lane, int] = dict.fromkeys(lanes, 0)
        while active:
            self._position.iterations = (*outer, iteration)
            self._enter(conditions, carries, active)
            self._region(conditions, keys, active)
            active = self._follow(
                active, lambda lane: _decision(lane, conditions[lane.side])
            ).get(1, [])
            if not active:
                break
            self._enter(bodies, carries, active)
            numbered = {s: self._folded(s, k, iteration) for s, k in keys.items()}
            self._region(bodies, numbered, active)
            for lane in active:
                carries[lane] = lane.leave(bodies[lane.side])
                trips[lane] += 1
            iteration += 1
        self._position.iterations = outer
        for lane in lanes:
            lane.take(carries[lane], instructions[lane.side].results)
        self._control_errors(op, lanes, trips)

    def _enter(self, blocks: Blocks, carries: Mapping[Lane, Any], lanes: Lanes) -> None:
        for lane in lanes:
            lane.take(carries[lane], blocks[lane.side].arguments)

    def _branch(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        def decide(lane: Lane) -> int:
            i = instructions[lane.side]
            return int(chosen_branch(i, lane.read(i.operands)[0]))

        keys = self._inner_keys(instructions, keys)
        groups = self._follow(lanes, decide)
        for index, group in groups.items():
            blocks = {s: i.branches[index] for s, i in instructions.items()}
            self._region(blocks, keys, group)
            for lane in group:
                results = lane.leave(blocks[lane.side])
                lane.take(results, instructions[lane.side].results)
        taken = {lane: index for index, group in groups.items() for lane in group}
        self._control_errors(op, lanes, taken)

    def _control_errors(
        self, op: Op, lanes: Lanes, decisions: Mapping[Lane, int]
    ) -> None:
        """A loop that runs longer, or another branch, is an error of the op itself."""
        pair = (self._lanes.actual, self._lanes.reference)
        if not all(lane in lanes for lane in pair):
            return
        actual, expected = (np.asarray([decisions[lane]]) for lane in pair)
        error = _NONE if actual == expected else errors_of(actual, expected)
        self.heard(
            OpPath(self._calls, op),
            self._position.iterations,
            Compared(isolation=_NONE, accumulation=error),
        )

    def _call(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        blocks = {s: s.program.functions[i.callee] for s, i in instructions.items()}
        for lane in lanes:
            arguments = lane.read(instructions[lane.side].operands)
            lane.take(arguments, blocks[lane.side].arguments)
        outer, self._calls = self._calls, (*self._calls, op)
        self._region(blocks, self._inner_keys(instructions, keys), lanes)
        self._calls = outer
        for lane in lanes:
            results = lane.leave(blocks[lane.side])
            lane.take(results, instructions[lane.side].results)

    def _inner_keys(self, instructions: Controls, keys: Keys) -> Keys:
        return {s: self._folded(s, keys[s], i.ordinal) for s, i in instructions.items()}

    @staticmethod
    def _folded(side: Side, key: RoundingKey, number: int) -> RoundingKey:
        return key.folded(number) if side.executor.stochastic else key


_HANDLERS: dict[type, Callable[..., None]] = {
    Loop: ParallelWalk._loop,
    Branch: ParallelWalk._branch,
    Call: ParallelWalk._call,
}


def _control(span: Span) -> Instruction | None:
    """The loop, branch or call that an op is, if it is one."""
    first, *others = (*span.instructions, None)
    is_control = len(others) == 1 and isinstance(first, tuple(_HANDLERS))
    return first if is_control else None


def _count(side: Side, block: Block) -> int:
    """How many ops a walk executes at most, those of a loop once."""
    controls = [_control(span) for span in side.spans(block)]
    inside = (
        _count(side, entry.block)
        for control in controls
        if control is not None
        for entry in entries(control, side.program.functions)
    )
    return controls.count(None) + sum(inside)


def _decision(lane: Lane, condition: Block) -> int:
    """Whether the loop goes on."""
    [array] = lane.read(condition.results)
    value = np.asarray(array)
    if value.shape:
        raise InternalError("a loop condition that is no scalar")
    return int(value)
