"""Prices of regions (`fused`): the work of each step, and the time between tiles.

A `Way` is one way to execute a step: a sequence of `Work`, each of one engine. Ways are
chosen so that the region's busiest queue has little work. As in a software pipeline,
a tile starts whenever the busiest queue has done its work for the previous tile. Prices
do not depend on start times, which `schedule` finds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.program import TensorType
from neuronjax.timing.access import ValueAccess
from neuronjax.timing.assumptions import MOST_PIECES
from neuronjax.timing.cost import ways
from neuronjax.timing.cost_dma import dma_times
from neuronjax.timing.cost_rules import Reading
from neuronjax.timing.engines.lanes import shared_ports
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion
from neuronjax.timing.instruction_kinds import kind_of
from neuronjax.timing.layout import tiles_at_a_time
from neuronjax.timing.masks import MaskedScores
from neuronjax.timing.memory_plan import BlockPlan, Movement, Unit
from neuronjax.timing.work import Core, Way, Work

#: Fields of `Work` that are proportional to the size of the tensors.
_PROPORTIONAL = (
    *("seconds", "flops", "hardware_flops", "transpose_flops"),
    *("sbuf_read_bytes", "sbuf_write_bytes", "psum_read_bytes", "psum_write_bytes"),
)


@dataclass(slots=True, eq=False)
class PricedStep:
    """A step with the way in which it is executed.

    Attributes:
        way: the sequence of `Work` that executes the step, each of one engine.
        reads: values in memory that the step reads.
        is_barrier: whether a reader of the step's results waits until the step has
            processed its last tile.
    """

    step: FusedStep
    way: Way
    reads: tuple[int, ...]
    is_barrier: bool


@dataclass(slots=True, eq=False)
class PricedMove:
    """A transfer between HBM and SBUF (`Movement`) with its times.

    Attributes:
        seconds: the time that the transfer occupies the DMA engines.
        latency: the seconds from the transfer's end until a consumer can start.
        first_reader: for a load, the index of the first step that reads the value (0 if
            no step does); for a store, the index of the step that computes the value
            (-1 if no step does).
    """

    movement: Movement
    seconds: float
    latency: float
    first_reader: int


@dataclass(slots=True, eq=False)
class PricedUnit:
    """A unit (a region and its transfers) with prices.

    Attributes:
        pieces: the number of parts that are scheduled one after the other, at most
            `MOST_PIECES`; a piece is one tile or several tiles.
        interval: the seconds from the start of one piece to the start of the next.
        tables: ScalarE's function tables, in order of first use.
        block: the prices of one row block, if the unit completes each block of rows
            before the next; else None.
        blocks: the number of row blocks, set only in `block`.
        sources: only set in `block`: maps the `id` of a `Work` for one row block to
            the `Work` for all row blocks together.
    """

    steps: list[PricedStep] = field(default_factory=list)
    loads: list[PricedMove] = field(default_factory=list)
    stores: list[PricedMove] = field(default_factory=list)
    pieces: int = 1
    interval: float = 0.0
    tables: tuple[str, ...] = ()
    blocks: int = 1
    block: PricedUnit | None = None
    sources: dict[int, Work] = field(default_factory=dict)

    def load_groups(self) -> list[tuple[bool, list[PricedMove]]]:
        """Return the groups of loads that start together, in the order of their starts.

        A group is a pair (whether its loads are streamed, the loads). Of a streamed
        load, a tile needs only a part."""
        groups: dict[tuple[bool, int], list[PricedMove]] = {}
        for move in self.loads:
            streams = self.pieces > 1 and not move.movement.is_whole
            key = (streams, 0 if streams else move.first_reader)
            groups.setdefault(key, []).append(move)
        return [(key[0], groups[key]) for key in sorted(groups)]


class Pricing:
    """The prices of units (regions with their transfers) on one core; each unit is
    priced once."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._ways: dict[tuple, tuple[Way, ...]] = {}
        self._units: dict[int, PricedUnit] = {}

    def unit(self, plan: BlockPlan, unit: Unit) -> PricedUnit:
        found = self._units.get(id(unit))
        if found is None:
            found = self._units[id(unit)] = self._price(plan, unit)
        return found

    def _price(self, plan: BlockPlan, unit: Unit) -> PricedUnit:
        fused, region = plan.fused, unit.region
        options = [
            ((),)
            if unit.by_dma or step.form == "register"
            else self._options(plan, unit, n)
            for n, step in enumerate(region.steps)
        ]
        options = self._unmasked(fused, region, options)
        most = max((w.tiles for found in options for w in found[0]), default=1)
        together = tiles_at_a_time(fused, region, self.core)
        tiles = ceil(region.tiles(self.core) / together)
        tiles = most if region.is_lone_matmul else tiles
        out = PricedUnit(pieces=min(int(MOST_PIECES.value), tiles, most))
        load: dict[str, float] = {}
        chosen = self._choose(options, out.pieces)
        for step, way in zip(region.steps, chosen, strict=True):
            self._add(load, way)
            is_whole = step.form in ("reduce", "other") or step.reduces
            is_barrier = together > 1 or is_whole
            out.steps.append(PricedStep(step, way, fused.reads(step), is_barrier))
        tables = (work.table for way in chosen for work in way)
        out.tables = tuple(dict.fromkeys(filter(None, tables)))
        self._moves(out, unit)
        moved = sum([m.seconds for m in out.loads if not m.movement.is_whole])
        moved += sum([m.seconds for m in out.stores])
        load["dma"] = load.get("dma", 0.0) + moved
        out.interval = max(load.values()) / out.pieces
        if unit.blocks > 1:
            out.block = _block(out, unit.blocks)
        return out

    def moves(self, unit: Unit) -> PricedUnit:
        """Return the prices of a unit's transfers alone. The unit is control flow or a
        collective, whose steps are priced elsewhere."""
        found = self._units.get(id(unit))
        if found is None:
            found = self._units[id(unit)] = PricedUnit()
            self._moves(found, unit)
        return found

    def _unmasked(
        self, fused: Fused, region: TiledRegion, options: list[tuple[Way, ...]]
    ) -> list[tuple[Way, ...]]:
        """Return `options` (by step, the ways to execute it) without the work for
        blocks of attention scores that a mask hides completely.

        ASSUMPTION: the compiler skips such blocks as attention kernels do, with the
        block sizes of nki-library."""
        masked = next((s.masked for s in region.steps if s.masked), None)
        if masked is None:
            return options
        return [
            _scaled(found, _share(fused, step, masked))
            for step, found in zip(region.steps, options, strict=True)
        ]

    def _options(self, plan: BlockPlan, unit: Unit, n: int) -> tuple[Way, ...]:
        fused, psum, step = plan.fused, plan.from_psum, unit.region.steps[n]
        key: list[Any] = [kind_of(step.instruction), step.form, step.reduces]
        in_psum, turned = [], []
        for position, value in enumerate(step.operands):
            seen = fused.access[value]
            roots = seen.roots
            key += [
                fused.types[value],
                seen.is_scalar,
                fused.types[roots[0]].dtype if roots else None,
            ]
            if roots and roots[0] in psum:
                in_psum.append(position)
            if (n, position) in unit.turned:
                turned.append(position)
        stays = bool(step.results) and step.results[0] in psum
        results = tuple([fused.types[v] for v in step.results])
        seen_type = fused.types[step.seen] if step.seen >= 0 else None
        key += [results, seen_type, tuple(in_psum), tuple(turned), stays]
        frozen = tuple(key)
        found = self._ways.get(frozen)
        if found is None:
            found = self._find(fused, step, in_psum, turned, stays)
            self._ways[frozen] = found
        return found

    def _find(
        self,
        fused: Fused,
        step: FusedStep,
        in_psum: list[int],
        turned: list[int],
        stays: bool,
    ) -> tuple[Way, ...]:
        instruction, scalars = priced(fused, step)
        reading = Reading(scalars, frozenset(in_psum), frozenset(turned))
        found = ways(instruction, self.core, reading)
        # ASSUMPTION: compilers and kernels only use GpSimdE if they must.
        others = [way for way in found if all(w.queue != "gpsimd" for w in way)]
        found = tuple(others) or found
        if stays:  # drop the last `Work`, the copy out of PSUM
            kept = [way[:-1] if len(way) > 1 else way for way in found]
            found = tuple(dict.fromkeys(kept))
        return found

    def _choose(self, options: list[tuple[Way, ...]], pieces: int) -> list[Way]:
        """Choose one way for every step, so that the busiest queue has little work.

        `options` has, by step, the ways to execute it. The choice is greedy: steps with
        a single way come first, then steps with several ways, the longest first."""
        load: dict[str, float] = {}
        chosen: list[Way] = [found[0] for found in options]
        longest = [sum(work.seconds for work in way) for way in chosen]
        order = sorted(
            range(len(options)), key=lambda n: (len(options[n]) > 1, -longest[n], n)
        )
        for n in order:
            found = options[n]
            if len(found) > 1:
                chosen[n] = min(found, key=lambda way: self._after(load, way, pieces))
            self._add(load, chosen[n])
        return chosen

    def _after(self, load: dict[str, float], way: Way, pieces: int) -> float:
        """Return a cost by which `_choose` compares the ways to execute a step: the
        seconds of the busiest queue once `way` is added to `load` (seconds by queue),
        plus 1 / `pieces` (`PricedUnit.pieces`) of the seconds in which one tile passes
        through all engines of `way`."""
        load = dict(load)
        self._add(load, way)
        through = sum(w.seconds / w.tiles + w.latency_seconds for w in way)
        return max(load.values(), default=0.0) + through / pieces

    def _moves(self, out: PricedUnit, unit: Unit) -> None:
        readers: dict[int, int] = {}
        for n, p in enumerate(out.steps):
            for value in p.reads:
                readers.setdefault(value, n)
        writers = {v: n for n, p in enumerate(out.steps) for v in p.step.results}
        for movement in unit.movements:
            seconds, latency = dma_times(movement.transfer, self.core)
            if movement.transfer.is_read:
                first = readers.get(movement.value, 0)
                out.loads.append(PricedMove(movement, seconds, latency, first))
            else:
                writer = writers.get(movement.value, -1)
                out.stores.append(PricedMove(movement, seconds, latency, writer))

    def _add(self, load: dict[str, float], way: Way) -> None:
        for work in way:
            for queue in (work.queue, *shared_ports(work, self.core)):
                load[queue] = load.get(queue, 0.0) + work.seconds


def _block(whole: PricedUnit, blocks: int) -> PricedUnit:
    out = PricedUnit(tables=whole.tables, blocks=blocks)
    for p in whole.steps:
        way = tuple(
            dataclasses.replace(
                work, seconds=work.seconds / blocks, tiles=ceil(work.tiles / blocks)
            )
            for work in p.way
        )
        out.sources.update(zip(map(id, way), p.way, strict=True))
        out.steps.append(dataclasses.replace(p, way=way))
    out.loads, out.stores = (
        [dataclasses.replace(m, seconds=m.seconds / blocks) for m in moves]
        for moves in (whole.loads, whole.stores)
    )
    return out


def _share(fused: Fused, step: FusedStep, masked: MaskedScores) -> float:
    def scores(value: int) -> bool:
        return value >= 0 and masked.has_shape(fused.types[value].shape)

    if scores(step.seen):
        return masked.computed
    contracts = step.form == "matmul" and any(map(scores, step.operands))
    return masked.contracted if contracts else 1.0


def _scaled(found: tuple[Way, ...], share: float) -> tuple[Way, ...]:
    if share == 1.0:
        return found

    def part(work: Work) -> Work:
        scaled = {name: getattr(work, name) * share for name in _PROPORTIONAL}
        tiles = max(1, round(work.tiles * share))
        return dataclasses.replace(work, tiles=tiles, **scaled)

    return tuple(tuple(map(part, way)) for way in found)


def priced(fused: Fused, step: FusedStep) -> tuple[Instruction, frozenset[int]]:
    """Return the instruction that is priced for a step, and the positions of its scalar
    operands (one element, or one per row).

    An operand of this instruction has the shape that an engine reads through the access
    pattern, and the dtype of the tensor in memory."""
    i, types, access = step.instruction, fused.types, fused.access
    if step.form in ("control", "collective", "other", "matmul", "reduce"):
        operands = [
            _seen(types, access, v, view.type.shape)
            for v, view in zip(step.operands, i.operands, strict=False)
        ]
        shapes = [b.type.shape for b in i.results]
        results = [
            Buffer(v, TensorType(s, types[v].dtype))
            for v, s in zip(step.results, shapes, strict=False)
        ]
        return _with(i, operands, results), frozenset()
    shape = types[step.seen].shape
    operands, scalars = [], set()
    for position, value in enumerate(step.operands):
        seen = access[value]
        last_is_one = prod(types[value].shape[-1:]) == 1 < prod(shape[-1:])
        if not seen.roots or seen.is_scalar or last_is_one:
            scalars.add(position)
        operands.append(_seen(types, access, value, shape))
    dtype = types[step.results[0]].dtype if step.results else types[step.seen].dtype
    results = [Buffer(step.seen, TensorType(shape, dtype))]
    return _with(i, operands, results), frozenset(scalars)


def _seen(
    types: list[TensorType],
    access: list[ValueAccess],
    value: int,
    shape: tuple[int, ...],
) -> View:
    roots = access[value].roots
    dtype = types[roots[0]].dtype if roots else types[value].dtype
    return View(Buffer(value, TensorType(shape, dtype)))


def _with(i: Instruction, operands: list[View], results: list[Buffer]) -> Instruction:
    return dataclasses.replace(i, operands=tuple(operands), results=tuple(results))
