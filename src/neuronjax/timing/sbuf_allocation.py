"""The choice of values that stay in SBUF between the regions of a program's block.

The regions (`TiledRegion`) are visited once, in order. Values that later regions read
stay while they fit. The value with the furthest next use is evicted first, and is saved
to HBM if HBM does not have it. Whole operands (`TiledRegion.whole`, which every tile of
rows needs completely) that do not fit beside the tiles are loaded again for each block
of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import ceil

from neuronjax.ir.instruction import Buffer
from neuronjax.ir.instruction_set import LocalGather
from neuronjax.ir.kernel_call import NkiKernel
from neuronjax.timing.assumptions import CARRY_SHARE, RESIDENT_SHARE
from neuronjax.timing.division import copies, divide, working_bytes
from neuronjax.timing.fused import Fused, TiledRegion, output_bytes
from neuronjax.timing.layout import (
    addressed_bytes,
    contracts_late,
    meets_little,
    parts_read,
    psum_results,
    replaces_slice,
    row_bytes,
    source_of_updates,
)
from neuronjax.timing.memory_plan import BlockPlan, Movement, SbufContents, Unit
from neuronjax.timing.tiling import needed_bytes
from neuronjax.timing.work import Core, Reason, Transfer

_NEVER = 1 << 60


class SbufAllocation:
    """The allocation of SBUF for a block, region by region."""

    def __init__(
        self,
        core: Core,
        fused: Fused,
        regions: list[TiledRegion],
        capacity: int,
        resident: frozenset[int],
        categories: Mapping[int, str | None] | None,
        plan_inner: Callable[[Unit], None],
        *,
        is_nested: bool,
    ) -> None:
        self.core, self.fused, self.capacity = core, fused, capacity
        self.plan_inner = plan_inner
        self.units = [Unit(region) for region in regions]
        self.results = fused.roots(fused.results)
        kept = (v for n, v in enumerate(fused.results) if n in resident)
        self.kept_results = fused.roots(kept)
        self.output_bytes = output_bytes(fused)
        self.is_nested = is_nested
        self.argument = {v: n for n, v in enumerate(fused.arguments)}
        self.categories = categories or {}
        self.next_use = self._uses()
        self.last_use = {value: units[0] for value, units in self.next_use.items()}
        self.sbuf = SbufContents()
        carried = {v: fused.sizes[v] for v, n in self.argument.items() if n in resident}
        for value, size in carried.items():
            self.sbuf.add(value, size, _NEVER)
        self.always = frozenset(self.sbuf)
        self.in_hbm: dict[int, tuple[int, int]] = {
            v: (0, len(regions)) for v, n in self.argument.items() if n not in resident
        }
        self.updated: dict[int, int] = {}
        #: Values that need no memory: a reader takes each tile when it is computed.
        self.passed_on: set[int] = set()
        #: Values that are written directly into a slice of a tensor in HBM, so that the
        #: update of this slice moves nothing.
        self.in_place: set[int] = set()
        self.from_psum: set[int] = set()
        self.bound: set[int] = set()

    def run(self) -> BlockPlan:
        for n, unit in enumerate(self.units):
            self._unit(n, unit)
        self._copy_arguments()
        return BlockPlan(
            self.fused,
            self.units,
            self.in_hbm,
            self.from_psum,
            self.updated,
            self.last_use,
        )

    def _copy_arguments(self) -> None:
        """Plan copies within HBM for results of the block that are an argument or an
        access pattern of an argument, since a result has memory of its own.

        A loop's carry is not copied if it is unchanged or stays in SBUF."""
        arguments = self.fused.arguments
        unit = Unit(TiledRegion())
        for n, value in enumerate(self.fused.results):
            roots = self.fused.access[value].roots
            passed = self.is_nested and n < len(arguments) and value == arguments[n]
            kept = all(r in self.kept_results for r in roots)
            if passed or kept or not set(roots) & set(arguments):
                continue
            size = self.fused.sizes[value]
            turned = self.fused.access[value].transposes
            self._move(unit, roots[0], size, "copy", True, False, turned)
            self._move(unit, value, size, "copy", False, False)
        if unit.movements:
            self.units.append(unit)

    def _uses(self) -> dict[int, list[int]]:
        """Return, for each value, the indices of the units that read the value, in
        descending order."""
        uses: dict[int, list[int]] = {}
        for n in range(len(self.units) - 1, -1, -1):
            region = self.units[n].region
            for value in (*region.whole, *region.streamed):
                uses.setdefault(value, []).append(n)
        return uses

    def _next(self, value: int, after: int) -> int:
        uses = self.next_use.get(value)
        while uses and uses[-1] <= after:
            uses.pop()
        return uses[-1] if uses else _NEVER

    def _unit(self, n: int, unit: Unit) -> None:
        region, fused = unit.region, self.fused
        is_kernel = isinstance(region.steps[0].instruction, NkiKernel)
        if is_kernel or region.form in ("control", "collective"):
            self._control(n, unit)
            return
        if region.form == "other" and self._addressed(n, unit):
            return
        self.from_psum |= psum_results(fused, region)
        in_array = self._mark_layouts(unit)
        unit.copies = copies(fused, region, self.core)
        turned = {region.steps[n] for n, position in unit.turned if position == 0}
        working = working_bytes(fused, region, self.core, turned)
        whole = sum(needed_bytes(fused, region, v) for v in region.whole)
        whole *= unit.copies
        room = self.capacity - working
        fits = whole <= room
        self._make_room(n, unit, room - (whole if fits else 0), region.whole)
        if sum(step.form == "matmul" for step in region.steps) > 1:
            given = fused, region, self.core, whole, working // 2
            unit.passes, unit.blocks = divide(*given, fits)
            room = room if fits else 0
        elif not fits:
            rows = max(1.0, room * RESIDENT_SHARE.value)
            blocks = ceil(region.lhs_bytes / rows)
            unit.passes = max(1, min(region.tiles(self.core), blocks))
        parts = parts_read(fused, region)
        streams = n == 0 and region.is_lone_matmul  # no earlier region can hide a load
        for value in (*region.whole, *region.streamed):
            if value not in self.sbuf:
                batches = region.batches.get(value, 1)
                is_whole = fits and value in region.whole and batches <= 2
                is_whole = is_whole and not streams
                times = 1
                if value in region.whole:
                    # Only one core needs each part of the batch.
                    times = unit.copies if batches == 1 else 1
                    times *= 1 if fits else unit.passes
                part, turned = parts.get(value, (1.0, False))
                turned = turned and value not in in_array
                self._read(unit, value, times, (part, turned), is_whole)
        for value in region.whole if fits else ():
            is_read_again = self._next(value, n) != _NEVER
            if region.batches.get(value, 1) <= 2 and is_read_again:
                self._keep(n, value)
        self._write_results(n, unit, room - (whole if fits else 0))
        used = min(self.capacity, working + (whole if fits else room))
        others = self.sbuf.besides(region.whole)
        unit.sbuf_bytes = min(self.capacity, used + others)

    def _mark_layouts(self, unit: Unit) -> set[int]:
        """Set `unit.turned` to the operands of matmuls that TensorE has to transpose
        first, and return the tensors in memory that are transposed.

        A computed value has the layout that its readers need, with one exception: its
        rows stay on the partitions if it is a result of the block, or if it depends on
        a step that needs them there (a reduction along rows, a scalar per row). A value
        from HBM has the layout of its tensor. A value is transposed once for all its
        readers in the region."""
        region, bound, reads = unit.region, self.bound, self.fused.reads
        turned: set[int] = set()
        found: dict[tuple[int, int], None] = {}
        for n, step in enumerate(region.steps):
            if step.form != "matmul":
                if (
                    step.binds_rows
                    or not bound.isdisjoint(reads(step))
                    or not self.results.isdisjoint(step.results)
                ):
                    bound.update(step.results)
                continue
            for position in range(min(2, len(step.operands))):
                is_late = contracts_late(self.fused, step, position)
                access = self.fused.access[step.operands[position]]
                for root in access.roots:
                    turns = is_late and root in bound
                    if root not in region.inside and root not in self.sbuf:
                        turns = is_late != access.transposes
                    if turns and root not in turned:
                        found[n, position] = None
                        turned.add(root)
        unit.turned = tuple(found)
        return turned

    def _read(
        self,
        unit: Unit,
        value: int,
        times: int,
        part: tuple[float, bool] | None,
        whole: bool,
    ) -> None:
        if value in self.passed_on:
            return
        fraction, turned = part or (1.0, False)
        size = ceil(self.fused.sizes[value] * fraction) * times
        if size:
            reason = self._reason(value, value in unit.region.whole)
            self._move(unit, value, size, reason, True, whole, turned)

    def _reason(self, value: int, is_whole: bool) -> Reason:
        position = self.argument.get(self.updated.get(value, value))
        if value in self.fused.constants:
            return "constant"
        if position is None:
            return "spill_reload"
        category = self.categories.get(position)
        if category is None:
            return "weight" if is_whole else "input"
        return "weight" if category == "parameters" else "input"

    def _move(
        self,
        unit: Unit,
        value: int,
        size: int,
        reason: Reason,
        is_read: bool,
        whole: bool,
        turned: bool = False,
    ) -> None:
        type_ = self.fused.types[value]
        transfer = Transfer(
            buffer=Buffer(value, type_),
            bytes=size,
            row_bytes=row_bytes(type_, self.fused.sizes[value], size),
            reason=reason,
            is_read=is_read,
            transposes=turned and "dma_transpose" in self.core.spec.capabilities,
        )
        unit.movements.append(Movement(transfer, value, whole))

    def _save(self, n: int, unit: Unit, value: int, reason: Reason) -> None:
        if value in self.in_hbm:
            return
        size = self.fused.sizes[value]
        if reason == "output":
            size = self.output_bytes.get(value, size)
        if size:
            self._move(unit, value, size, reason, False, whole=False)
        self._lies_in_hbm(n, value)

    def _lies_in_hbm(self, n: int, value: int) -> None:
        last = len(self.units) if value in self.results else n
        self.in_hbm[value] = (n, max(last, self.last_use.get(value, n)))

    def _takes_place(self, n: int, value: int, source: int) -> None:
        """Record that `value`, a result of unit `n`, is in HBM from unit `n` on. If no
        later unit reads `source`, the tensor that unit `n` updates, `value` takes over
        its memory: only `source` counts during unit `n`, only `value` in later units.
        The memory of the block's arguments and results is not taken over."""
        self._lies_in_hbm(n, value)
        if source in self.argument or source in self.results:
            return
        if source in self.in_hbm and self._next(source, n) == _NEVER:
            _, last = self.in_hbm[value]
            self.in_hbm[value] = (n + 1, last)

    def _make_room(
        self, n: int, unit: Unit, room: float, needed: Collection[int]
    ) -> None:
        """Remove from SBUF the values that no unit from `n` on reads, then evict values
        until the remaining ones fit in `room` bytes. Values in `needed` do not count,
        and are not evicted."""
        self.sbuf.expire(n - 1)
        total = self.sbuf.besides(needed)
        if total <= room:
            return
        candidates = [v for v in self.sbuf if v not in needed and v not in self.always]
        self._evict(n, unit, candidates, total, room, after=n - 1)

    def _evict(
        self,
        n: int,
        unit: Unit,
        values: list[int],
        total: int,
        room: float,
        *,
        after: int,
    ) -> None:
        """Evict some of `values`, the one with the furthest next use first, until the
        `total` bytes in SBUF have become at most `room`."""
        for value in sorted(values, key=lambda v: (-self._next(v, after), v)):
            if total <= room:
                break
            total -= self.sbuf.remove(value)
            self._save(n, unit, value, "spill_save")

    def _keep(self, n: int, value: int, size: int | None = None) -> None:
        size = self.fused.sizes[value] if size is None else size
        last = max(n, self.last_use.get(value, n))
        self.sbuf.add(value, size, _NEVER if value in self.kept_results else last)

    def _write_results(self, n: int, unit: Unit, room: float) -> None:
        """Plan where the results of `unit` are. Results of the block are saved to HBM.
        Values that later units read stay in SBUF, or are saved to HBM if SBUF has no
        room for them."""
        fused = self.fused
        for step in unit.region.steps:
            for value in step.results:
                later = self._next(value, n)
                is_result = value in self.results
                if is_result and value not in self.kept_results:
                    self._save(n, unit, value, "output")
                if later == _NEVER and value not in self.kept_results:
                    continue
                if not is_result and self._passes_on(n, value, later):
                    self.passed_on.add(value)
                    continue
                if self._fits(n, unit, fused.sizes[value], later, room):
                    self._keep(n, value)
                elif value not in self.in_hbm:
                    self._save(n, unit, value, "spill_save")
                    self._place(value)

    def _place(self, value: int) -> None:
        """Add a saved value to `in_place` if a step that reads it copies it into a
        slice of a tensor, as when a scan stacks its results."""
        uses = () if value in self.results else self.next_use.get(value, ())
        steps = (self.units[n].region.steps[0] for n in uses)
        if any(replaces_slice(self.fused, s, value, self.sbuf) for s in steps):
            self.in_place.add(value)
            del self.in_hbm[value]

    def _passes_on(self, n: int, value: int, later: int) -> bool:
        """Return whether `value`, computed by unit `n`, needs no memory, since its only
        reader, unit `later`, takes each tile as soon as the tile is computed."""
        if later == _NEVER or len(self.next_use[value]) != 1:
            return False
        steps, fused = self.units[later].region.steps, self.fused
        if len(steps) != 1:
            return False
        if replaces_slice(fused, steps[0], value, self.sbuf):
            return True
        is_next = later == n + 1 and not self.units[n].region.has_matmul
        return is_next and meets_little(fused, steps[0], value, self.capacity / 2)

    def _fits(self, n: int, unit: Unit, size: int, later: int, room: float) -> bool:
        room = min(room, self.capacity * RESIDENT_SHARE.value)
        if size > room:
            return False
        total = self.sbuf.total + size
        movable = self.sbuf.keys() - self.always
        worse = [v for v in movable if self._next(v, n) > later]
        if total - sum(self.sbuf[v] for v in worse) > room:
            return False
        self._evict(n, unit, worse, total, room, after=n)
        return True

    def _addressed(self, n: int, unit: Unit) -> bool:
        """Plan `unit` if it gathers or updates slices of a tensor; return whether it is
        planned.

        An update is planned in place: only the slices move. If the old tensor is still
        needed, the copy that preserves it is not counted. The transfer of the slices is
        an "output" if the block returns the updated tensor, else an "update" if the
        tensor is an argument, else a "spill_save"."""
        (step,) = unit.region.steps
        moved = addressed_bytes(step.instruction)
        is_gather = isinstance(step.instruction, LocalGather)
        target = self.fused.access[step.operands[0]].roots if step.operands else ()
        if moved is None or len(target) != 1:
            return False
        (source,), (result, *_) = target, step.results
        if source in self.sbuf:
            return not is_gather and self._in_place(n, unit, source, result)
        unit.by_dma = True
        read, written = moved
        for value in (*unit.region.whole, *unit.region.streamed):
            if value == source:
                continue
            if value in self.in_place:
                self.in_place.remove(value)
                written = 0
            elif value not in self.sbuf:
                self._read(unit, value, 1, None, whole=False)
        if read:
            reason = self._reason(source, is_whole=True)
            self._move(unit, source, read, reason, True, False)
        if is_gather:
            self._write_results(n, unit, self.capacity)
            return True
        is_result, origin = result in self.results, self.updated.get(source, source)
        is_argument = origin in self.argument
        if is_argument:
            self.updated[result] = origin
        reason = "output" if is_result else "update" if is_argument else "spill_save"
        if written:
            self._move(unit, result, written, reason, False, False)
        self._takes_place(n, result, source)
        return True

    def _in_place(self, n: int, unit: Unit, source: int, result: int) -> bool:
        """Plan an update that overwrites slices of `source` in SBUF; return True. If a
        later unit reads the old `source`, plan nothing and return False."""
        if self._next(source, n) != _NEVER:
            return False
        unit.by_dma = True
        for value in (*unit.region.whole, *unit.region.streamed):
            if value not in self.sbuf:
                self._read(unit, value, 1, None, whole=False)
        if result in self.results and result not in self.kept_results:
            self._save(n, unit, result, "output")
        if source in self.always:  # the result reuses the carry's memory
            self._keep(n, result, 0)
        else:
            self.sbuf.remove(source)
            self._keep(n, result)
        return True

    def _control(self, n: int, unit: Unit) -> None:
        self.plan_inner(unit)
        (step,) = unit.region.steps
        carried = sum(self.fused.sizes[step.results[p]] for p in unit.resident)
        needed = self.fused.roots(
            value for n, value in enumerate(step.operands) if n in unit.resident
        )
        self._make_room(n, unit, self.capacity * CARRY_SHARE.value - carried, needed)
        for position, value in enumerate(step.operands):
            for root in self.fused.access[value].roots:
                if position not in unit.resident:
                    self._save(n, unit, root, "spill_save")
                elif root not in self.sbuf:
                    self._read(unit, root, 1, None, whole=True)
        for position, value in enumerate(step.results):
            if position in unit.resident:
                if value in self.results and value not in self.kept_results:
                    self._save(n, unit, value, "output")
                if self._next(value, n) != _NEVER or value in self.kept_results:
                    self._keep(n, value)
            elif self.fused.access[value].roots == (value,):
                source = source_of_updates(self.fused, unit, position)
                self._takes_place(n, value, source)
                self._place(value)
        unit.sbuf_bytes = min(self.capacity, self.sbuf.total + carried)
