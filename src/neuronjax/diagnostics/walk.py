"""A walk over a lowered program: regions, loops, branches, calls and meshes.

A walk executes a program op by op, on concrete values, and frees values after their
last use. A *lane* is one run; several lanes run side by side. On a mesh every lane
becomes one lane per device. An op without communication runs on the devices in turn,
and only once for devices with the same arrays; a collective gets all devices' arrays.

A subclass defines what values and ops are: `ParallelWalk` has arrays in lanes,
`LegalWalk` has values that carry their errors.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.executors import Position, RoundingKey
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side, Span
from neuronjax.execution.device_sharding import join_parts, part_at, places_of
from neuronjax.ir.collective_set import Split, Spmd
from neuronjax.ir.instruction import Block, Instruction, View
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.ir.program import Op
from neuronjax.ir.traversal import entries

Lanes = Sequence[Lane]
Blocks = Mapping[Side, Block]
Keys = Mapping[Side, RoundingKey]
Spans = Mapping[Side, Span]
Views = Mapping[Side, Mapping[Any, View]]
#: Side -> the loop, branch, call or mesh instruction of one op.
Controls = Mapping[Side, Any]


class OpWalk(abc.ABC):
    """One pass over the program.

    Attributes:
        position: the op that is being executed.
        calls: the calls that lead to this op, the outermost first.
        on_mesh: whether the op is inside of a mesh, so that every device executes it.
        shares: whether an op is executed once for all devices with the same operands.
    """

    shares = True

    def __init__(self) -> None:
        self.position = Position()
        self.calls: tuple[Op, ...] = ()
        self.on_mesh = False
        # Whether lanes of all devices of a mesh are executed together.
        self._is_joint = False
        # Device -> name of a lane -> the lane.
        self._devices: dict[int, dict[str, Lane]] = {}

    # -- methods of subclasses ---------------------------------------------------------

    @abc.abstractmethod
    def leaf(
        self, path: OpPath, spans: Spans, views: Views, keys: Keys, lanes: Lanes
    ) -> None:
        """Execute an op that runs no other ops.

        `views` has views of the region's values; `keys` are for stochastic rounding.
        The lanes are those of one device, or of all devices if the op communicates."""

    @abc.abstractmethod
    def decision(self, lane: Lane, view: View, op: Op, what: str) -> int:
        """Return the number that decides loop or branch `op`; errors name it `what`."""

    @abc.abstractmethod
    def cut(self, value: Any, part: tuple[slice, ...]) -> Any:
        """Return a part of `value`, with the errors of this part."""

    @abc.abstractmethod
    def joined(
        self, values: Sequence[Any], join: Callable[[Sequence[Any]], np.ndarray]
    ) -> Any:
        """Return one value, joined from `values` by `join`, a function of arrays."""

    @abc.abstractmethod
    def on_device(self, device: int) -> Iterable[Lane]:
        """Return new lanes of a device, with the names of the program's lanes."""

    def leader(self, name: str) -> str:
        """Return the name of the lane whose branches lane `name` takes."""
        return name

    def did(self, path: OpPath, views: Views, lanes: Lanes) -> None:
        """Observe that an op is done; the lanes have its results."""

    def repeated(
        self, op: Op | None, done: Lane, lane: Lane, values: Iterable[Any]
    ) -> None:
        """Observe that a lane takes values from `done`, the lane of another device.

        `op` is the op that `done` has executed; None for arguments of the mesh."""

    def decided(self, op: Op, lanes: Lanes, decisions: Mapping[Lane, int]) -> None:
        """Observe the decision of every lane for a loop or a branch."""

    # -- regions -----------------------------------------------------------------------

    def main(self, lanes: Lanes) -> None:
        sides = dict.fromkeys(lane.side for lane in lanes)
        blocks = {side: side.program.main for side in sides}
        keys = {side: side.executor.first_key for side in sides}
        with np.errstate(all="ignore"):  # Inf and NaN are data, not errors
            self._region(blocks, keys, lanes)

    def _region(self, blocks: Blocks, keys: Keys, lanes: Lanes) -> None:
        sides = dict.fromkeys(lane.side for lane in lanes)
        spans = {side: side.spans(blocks[side]) for side in sides}
        regions = {side: side.regions[blocks[side]] for side in sides}
        views = {side: region.views for side, region in regions.items()}
        for n, op in enumerate(next(iter(regions.values())).region.ops):
            own = {side: spans[side][n] for side in sides}
            parts = ((s, i) for s, span in own.items() for i in span.instructions)
            if self._is_joint and not any(s.joins(i) for s, i in parts):
                self._one_by_one(op, own, views, keys, lanes)
            else:
                self._op(op, own, views, keys, lanes)
            for lane in lanes:
                for number in own[lane.side].frees:
                    lane.arrays.pop(number, None)

    def _op(self, op: Op, spans: Spans, views: Views, keys: Keys, lanes: Lanes) -> None:
        control = {side: _control(span) for side, span in spans.items()}
        path = OpPath(self.calls, op)
        if None in control.values():
            self.position.path = path
            self.leaf(path, spans, views, keys, lanes)
        else:
            kind = type(next(iter(control.values())))
            _HANDLERS[kind](self, op, control, keys, lanes)
        self.did(path, views, lanes)

    def _one_by_one(
        self, op: Op, spans: Spans, views: Views, keys: Keys, lanes: Lanes
    ) -> None:
        self._is_joint = False
        done: dict[tuple[int, ...], Lanes] = {}
        for device in dict.fromkeys(lane.device for lane in lanes):
            own = [lane for lane in lanes if lane.device == device]
            same = _identity(spans, own) if self.shares else None
            if same is not None and same in done:
                self._repeat(op, spans, done[same], own)
                continue
            folded = {s: self._folded(s, key, device) for s, key in keys.items()}
            self._op(op, spans, views, folded, own)
            if same is not None:
                done[same] = own
        self._is_joint = True

    def _repeat(self, op: Op, spans: Spans, done: Lanes, lanes: Lanes) -> None:
        for lane, other in zip(lanes, done, strict=True):
            results = (b for i in spans[lane.side].instructions for b in i.results)
            made = {b.number for b in results} & other.arrays.keys()
            taken = {number: other.arrays[number] for number in made}
            lane.arrays.update(taken)
            self.repeated(op, other, lane, taken.values())

    # -- control -----------------------------------------------------------------------

    def _groups(
        self, lanes: Lanes, decide: Callable[[Lane], int]
    ) -> dict[int, list[Lane]]:
        """Return the lanes by decision. A lane gets what `decide` returns for its
        leader (see `leader`) on the first device."""
        first = {lane.name: lane for lane in reversed(lanes)}
        decided = {name: decide(lane) for name, lane in first.items()}
        groups: dict[int, list[Lane]] = {}
        for lane in lanes:
            groups.setdefault(decided[self.leader(lane.name)], []).append(lane)
        return groups

    def _loop(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        conditions = {s: i.condition for s, i in instructions.items()}
        bodies = {s: i.body for s, i in instructions.items()}
        keys = self._inner_keys(instructions, keys)
        carries = {lane: lane.held(instructions[lane.side].operands) for lane in lanes}
        outer, iteration, active = self.position.iterations, 0, list(lanes)
        trips: dict[Lane, int] = dict.fromkeys(lanes, 0)

        def goes_on(lane: Lane) -> int:
            [view] = conditions[lane.side].results
            return self.decision(lane, view, op, "how often a loop runs")

        while active:
            self.position.iterations = (*outer, iteration)
            _enter(conditions, carries, active)
            self._region(conditions, keys, active)
            left, active = active, self._groups(active, goes_on).get(1, [])
            for lane in left:
                lane.leave(conditions[lane.side])
            if not active:
                break
            _enter(bodies, carries, active)
            numbered = {s: self._folded(s, k, iteration) for s, k in keys.items()}
            self._region(bodies, numbered, active)
            for lane in active:
                carries[lane] = lane.leave(bodies[lane.side])
                trips[lane] += 1
            iteration += 1
        self.position.iterations = outer
        for lane in lanes:
            lane.take(carries[lane], instructions[lane.side].results)
        self.decided(op, lanes, trips)

    def _branch(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        def decide(lane: Lane) -> int:
            i = instructions[lane.side]
            index = self.decision(lane, i.operands[0], op, "which branch is taken")
            last = len(i.branches) - 1
            return index if 0 <= index <= last else last

        keys = self._inner_keys(instructions, keys)
        groups = self._groups(lanes, decide)
        for index, group in groups.items():
            blocks = {s: i.branches[index] for s, i in instructions.items()}
            self._region(blocks, keys, group)
            for lane in group:
                results = lane.leave(blocks[lane.side])
                lane.take(results, instructions[lane.side].results)
        taken = {lane: index for index, group in groups.items() for lane in group}
        self.decided(op, lanes, taken)

    def _call(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        blocks = {s: s.program.functions[i.callee] for s, i in instructions.items()}
        for lane in lanes:
            arguments = lane.held(instructions[lane.side].operands)
            lane.take(arguments, blocks[lane.side].arguments)
        outer, self.calls = self.calls, (*self.calls, op)
        self._region(blocks, self._inner_keys(instructions, keys), lanes)
        self.calls = outer
        for lane in lanes:
            lane.take(lane.leave(blocks[lane.side]), instructions[lane.side].results)

    def _spmd(self, op: Op, instructions: Controls, keys: Keys, lanes: Lanes) -> None:
        devices = range(next(iter(instructions.values())).mesh.size)
        for device in devices:
            if device not in self._devices:
                self._devices[device] = {x.name: x for x in self.on_device(device)}
        own = {lane: [self._devices[d][lane.name] for d in devices] for lane in lanes}
        cut: dict[tuple[int, Split], dict] = {}
        for lane in lanes:
            self._scatter(instructions[lane.side], lane, own[lane], cut)
        blocks = {s: i.body for s, i in instructions.items()}
        together = [own[lane][device] for device in devices for lane in lanes]
        self.on_mesh = self._is_joint = True
        self._region(blocks, self._inner_keys(instructions, keys), together)
        self.on_mesh = self._is_joint = False
        for lane in lanes:
            self._gather(instructions[lane.side], lane, own[lane])

    def _scatter(
        self, i: Spmd, lane: Lane, own: Lanes, cut: dict[tuple[int, Split], dict]
    ) -> None:
        """Store each device's parts of the operands in the device's lane. Devices with
        equal parts get one array. `cut` has the parts made for earlier lanes, by the id
        of the value and its split."""
        for value, buffer, split in zip(
            lane.read(i.operands), i.body.arguments, i.splits, strict=True
        ):
            places, known = places_of(split, i.mesh), (id(value), split)
            if known not in cut:
                shape, several = buffer.type.shape, len(set(places)) > 1
                cut[known] = {
                    p: self.cut(value, part_at(p, shape)) if several else value
                    for p in dict.fromkeys(places)
                }
            parts, first = cut[known], dict[Any, Lane]()
            for device, place in zip(own, places, strict=True):
                device.arrays[buffer.number] = part = parts[place]
                if first.setdefault(place, device) is not device:
                    self.repeated(None, first[place], device, [part])

    def _gather(self, i: Spmd, lane: Lane, own: Lanes) -> None:
        """Join the results of the devices. Of equal copies, take the first."""
        left = [device.read(i.body.results) for device in own]
        for device in own:
            device.leave(i.body)
        for n, (buffer, split) in enumerate(zip(i.results, i.joins, strict=True)):
            places = places_of(split, i.mesh)
            parts = {p: left[d][n] for d, p in reversed([*enumerate(places)])}
            order = sorted(parts)
            values = [parts[place] for place in order]
            join = functools.partial(join_parts, last=order[-1])
            whole = values[0] if len(values) == 1 else self.joined(values, join)
            lane.arrays[buffer.number] = whole

    def _inner_keys(self, instructions: Controls, keys: Keys) -> Keys:
        return {s: self._folded(s, keys[s], i.ordinal) for s, i in instructions.items()}

    def own_key(self, lane: Lane, keys: Keys) -> RoundingKey:
        """Return the key of `lane`. If all devices run together, fold the number of the
        lane's device into the key."""
        key = keys[lane.side]
        return self._folded(lane.side, key, lane.device) if self._is_joint else key

    @staticmethod
    def _folded(side: Side, key: RoundingKey, number: int) -> RoundingKey:
        return key.folded(number) if side.executor.stochastic else key


_HANDLERS: dict[type, Callable[..., None]] = {
    Loop: OpWalk._loop,
    Branch: OpWalk._branch,
    Call: OpWalk._call,
    Spmd: OpWalk._spmd,
}


def _control(span: Span) -> Instruction | None:
    first, *others = (*span.instructions, None)
    return first if len(others) == 1 and isinstance(first, tuple(_HANDLERS)) else None


def _identity(spans: Spans, lanes: Lanes) -> tuple[int, ...] | None:
    """Return the identities of the arrays that an op reads. Return None if every device
    must execute the op because it draws random bits or has no results."""
    if not any(i.results for span in spans.values() for i in span.instructions):
        return None
    if any(side.executor.stochastic for side in spans):
        return None
    return tuple(
        id(lane.arrays[number])
        for lane in lanes
        for i in spans[lane.side].instructions
        for number in sorted(lane.side.reads(i))
        if number in lane.arrays
    )


def _enter(blocks: Blocks, carries: Mapping[Lane, Any], lanes: Lanes) -> None:
    for lane in lanes:
        lane.take(carries[lane], blocks[lane.side].arguments)


def count_ops(side: Side, block: Block) -> int:
    """Return the number of ops if each loop runs once and every branch is taken."""
    controls = [_control(span) for span in side.spans(block)]
    inside = (
        count_ops(side, entry.block)
        for control in controls
        if control is not None
        for entry in entries(control, side.program.functions)
    )
    return controls.count(None) + sum(inside)
