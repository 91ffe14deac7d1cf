"""Regions of steps that run as one loop over tiles of rows.

The leading dimensions of a tensor count its rows: dimensions of 4 and 8 make 32 rows.
A chain of steps that keeps the leading dimensions of its tensors is executed 128 rows
at a time on every physical core. Only a tile of each intermediate value is in SBUF, and
engines and DMA work on different tiles at the same time. An operand that every tile
needs completely (the weights of a matmul) stays in SBUF, or is loaded once for every
block of tiles (`division`). Attention's scores, softmax included, thus never leave the
core. `group` forms such regions greedily, in program order. Bytes are those of a
logical core.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from math import ceil, prod
from typing import Any

from neuronjax.errors import InternalError
from neuronjax.ir.instruction_set import DotDimensions, TensorReduce
from neuronjax.timing.access import rows_of
from neuronjax.timing.assumptions import RESIDENT_SHARE
from neuronjax.timing.fused import ALONE, Fused, FusedStep, TiledRegion
from neuronjax.timing.instruction_kinds import MATMULS
from neuronjax.timing.work import Core


def dimensions(step: FusedStep) -> DotDimensions:
    i = step.instruction
    if not isinstance(i, MATMULS):
        raise InternalError(f"{i.name} is no matmul")
    return i.dimensions


def needed_bytes(fused: Fused, region: TiledRegion, value: int) -> int:
    """Return the bytes of SBUF that `value` needs: all its bytes, or those of two parts
    if the batch of a matmul splits it into more than two parts."""
    parts = region.batches.get(value, 1)
    size = fused.sizes[value]
    return size if parts <= 2 else 2 * ceil(size / parts)


def _batch(fused: Fused, step: FusedStep) -> int:
    return prod(_side(fused, step, 0)[x] for x in dimensions(step).lhs_batch)


def group(fused: Fused, core: Core) -> list[TiledRegion]:
    """Return the regions into which the steps of a block are grouped, in an order that
    respects dependencies."""
    return _Grouping(fused, core).run()


def _leading(shape: tuple[int, ...], excluded: set[int]) -> int:
    return min((n for n in excluded if shape[n] != 1), default=len(shape))


def _own_rows(fused: Fused, step: FusedStep) -> frozenset[int]:
    """Return the numbers of rows (products of leading dimensions) into which a step's
    tensors can be divided if no other step restricts the choice."""
    if step.form == "matmul":
        return _matmul_rows(fused, step)[0]
    if step.form in ("reduce", "scan"):
        i: Any = step.instruction
        shape = i.operands[0].type.shape
        axes = i.axes if step.form == "reduce" else (i.axis,)
        return rows_of(shape, _leading(shape, set(axes)))
    if step.form in ALONE:
        return rows_of(())
    shape = fused.types[step.seen].shape
    if step.reduces:
        return rows_of(shape) & rows_of(fused.types[step.results[-1]].shape)
    return rows_of(shape)


def _matmul_rows(fused: Fused, step: FusedStep) -> tuple[frozenset[int], ...]:
    if step.sides is not None:
        return step.sides
    d = dimensions(step)
    lhs, rhs = (_side(fused, step, n) for n in (0, 1))
    result = fused.types[step.results[0]].shape
    free = len(lhs) - len(d.lhs_batch) - len(d.lhs_contract)
    left = rows_of(lhs, _leading(lhs, set(d.lhs_contract)))
    if set(d.lhs_contract) == set(range(len(lhs) - len(d.lhs_contract), len(lhs))):
        # The order of these rows does not matter, since it only permutes the result's
        # rows.
        left |= {prod(s for n, s in enumerate(lhs) if n not in d.lhs_contract)}
    others = set(range(len(rhs))) - set(d.rhs_batch)
    right = rows_of(rhs, _leading(rhs, others))
    batch = frozenset({prod(lhs[x] for x in d.lhs_batch), 1})
    step.sides = (rows_of(result, len(d.lhs_batch) + free), left, right & batch)
    return step.sides


def _contracted_rows(
    fused: Fused, step: FusedStep, inside: Collection[int] = ()
) -> frozenset[int]:
    """Return the number of rows of a matmul's operands, as a set of one number: the
    product of the lengths of the batch and contracted axes. Return an empty set if one
    of `inside` (values) is an operand that does not have these axes first, in order."""
    d = dimensions(step)
    sides = ((d.lhs_batch, d.lhs_contract), (d.rhs_batch, d.rhs_contract))
    rows = 1
    for n, (batch, contract) in enumerate(sides):
        shape, value = _side(fused, step, n), step.operands[n]
        leading = [x for x, size in enumerate(shape) if size != 1]
        wanted = [x for x in (*batch, *contract) if shape[x] != 1]
        rows = prod(shape[x] for x in wanted)
        if not any(r in inside for r in fused.access[value].roots):
            continue
        kept = fused.access[value].rows
        if leading[: len(wanted)] != wanted or (kept is not None and rows not in kept):
            return frozenset()
    return frozenset({rows})


def _side(fused: Fused, step: FusedStep, n: int) -> tuple[int, ...]:
    """Return the shape of a matmul's left (`n` = 0) or right (1) operand."""
    operands = step.operands
    position = n if len(operands) != 3 else 2 * n
    return fused.types[operands[min(position, len(operands) - 1)]].shape


def _operand_rows(fused: Fused, step: FusedStep, position: int) -> frozenset[int]:
    """Return the numbers of rows into which the operand of `step` at `position` can be
    divided in a region that computes both this operand and `step`."""
    value = step.operands[position]
    own = rows_of(fused.types[value].shape)
    if step.form == "matmul":
        has_pairs = len(step.operands) in (2, 4)
        side = position % 2 if has_pairs else int(position == 2)
        own = _matmul_rows(fused, step)[1 + side]
    kept = fused.access[value].rows
    return own if kept is None else own & kept


class _Grouping:
    """The grouping of a block's steps. A step joins the latest region that computes one
    of its operands. If no region does, the step joins the last region if both load the
    same tensor, or if both have a matmul of the same size (`_accompanies`). A step that
    cannot join a region starts a new one."""

    def __init__(self, fused: Fused, core: Core) -> None:
        self.fused, self.core = fused, core
        self.per_tile = core.rows_per_tile
        self.capacity = core.sbuf_bytes * RESIDENT_SHARE.value
        self.regions: list[TiledRegion] = []
        self.home: dict[int, int] = {}
        self._own_rows = cache(lambda step: _own_rows(fused, step))
        self._operand_rows = cache(
            lambda step: [
                _operand_rows(fused, step, n) for n in range(len(step.operands))
            ]
        )

    def run(self) -> list[TiledRegion]:
        for step in self.fused.steps:
            self._add(step)
        return self.regions

    def _add(self, step: FusedStep) -> None:
        found = self._place(step)
        if found is None:
            place, region = len(self.regions), TiledRegion()
            self.regions.append(region)
            candidates = self._own_rows(step)
        else:
            place, candidates = found
            region = self.regions[place]
        region.candidates, region.rows = candidates, max(candidates, default=1)
        region.steps.append(step)
        self._take_operands(region, step)
        region.inside.update(step.results)
        region.sums.update(step.sums)
        for value in step.results:
            self.home[value] = place

    def _place(self, step: FusedStep) -> tuple[int, frozenset[int]] | None:
        """Return the index of the region that `step` can join, and the numbers of rows
        into which the region with `step` can be divided; None if `step` must start a
        new region."""
        if step.form in ALONE or not self.regions:
            return None
        reads, home = self.fused.reads(step), self.home.get
        place = max([home(r, -1) for r in reads], default=-1)
        is_fed = place >= 0
        region = self.regions[place]  # the last region, if no region made an operand
        shares = is_fed or not region.streamed.keys().isdisjoint(reads)
        if not shares and not self._accompanies(region, step):
            return None
        rows = self._joined(region, step) if region.sums.isdisjoint(reads) else None
        return None if rows is None else (place % len(self.regions), rows)

    def _accompanies(self, region: TiledRegion, step: FusedStep) -> bool:
        """Return whether `step` is a batched matmul that can be tiled as `region` is,
        and whose result has as many elements as that of a matmul in `region`.

        For example, one matmul computes attention's scores, `step` their gradients."""
        if step.form != "matmul" or not dimensions(step).lhs_batch:
            return False
        sizes = self.fused.types
        size = prod(sizes[step.results[0]].shape)
        return (
            any(
                s.form == "matmul" and prod(sizes[s.results[0]].shape) == size
                for s in region.steps
            )
            and region.rows in _matmul_rows(self.fused, step)[0]
        )

    def _joined(self, region: TiledRegion, step: FusedStep) -> frozenset[int] | None:
        if region.form in ALONE:
            return None
        if step.form == "matmul":
            if self._accumulates(region, step):
                step.sums = tuple(step.results)
                return region.candidates & _contracted_rows(self.fused, step)
        elif (folded := self._folded(region, step)) is not None:
            step.sums = tuple(step.results[-1:])
            return folded
        rows = region.candidates & self._own_rows(step)
        access, outside = self.fused.access, region.inside.isdisjoint
        if not outside(self.fused.reads(step)):
            taken = self._operand_rows(step)
            for value, own in zip(step.operands, taken, strict=True):
                if not outside(access[value].roots):
                    rows = rows & own
        most = max(rows, default=1)
        if ceil(most / self.per_tile) < ceil(region.rows / self.per_tile):
            # Tiles may become fewer only in a region that has no matmul and no
            # fold, and keeps several rows.
            folds = any(s.form == "reduce" or s.reduces for s in region.steps)
            if most == 1 or region.has_matmul or folds:
                return None
        return rows

    def _accumulates(self, region: TiledRegion, step: FusedStep) -> bool:
        """Return whether `step` is computed as a sum over the tiles of `region`.

        A batched matmul that contracts the region's rows is such a sum if its operands
        would otherwise leave SBUF, as in kernels for gradients of attention. Neither
        the SBUF that the sums occupy nor the time of the additions is counted."""
        fused = self.fused
        if len(step.operands) != 2 or not dimensions(step).lhs_batch:
            return False
        if region.rows not in _contracted_rows(fused, step, region.inside):
            return False
        inside = region.inside.intersection(fused.reads(step))
        if max((fused.sizes[r] for r in inside), default=0) < self.capacity:
            return False
        shape = fused.types[step.results[0]].shape
        return 4 * prod(shape) // max(1, _batch(fused, step)) <= self.capacity

    def _folded(self, region: TiledRegion, step: FusedStep) -> frozenset[int] | None:
        """Return the numbers of rows into which `region` together with `step` can be
        divided; None if `step` is not a reduction over the rows of `region` that can
        take each tile as soon as the tile is computed.

        Such a reduction finds, for example, a tensor's largest magnitude before the
        tensor leaves SBUF. It folds the partitions' results after the last tile."""
        fold = next((m for m in step.members if isinstance(m, TensorReduce)), None)
        reads = self.fused.reads(step)
        if fold is None or region.rows == 1 or region.inside.isdisjoint(reads):
            return None
        shape = fold.operands[0].type.shape
        kept = [n for n, size in enumerate(shape) if n not in fold.axes and size != 1]
        rows = region.candidates & rows_of(shape, min(kept, default=len(shape)))
        for own in self._operand_rows(step)[:1]:
            rows &= own
        small = self.fused.sizes[step.results[-1]] <= self.capacity
        return rows if region.rows in rows and small else None

    def _parts(self, region: TiledRegion, step: FusedStep) -> int:
        if step.form != "matmul":
            return 1
        batch = _batch(self.fused, step)
        return batch if region.rows > batch and region.rows % batch == 0 else 1

    def _take_operands(self, region: TiledRegion, step: FusedStep) -> None:
        fused, rows, form = self.fused, region.rows, step.form
        always = form in ALONE
        for position, value in enumerate(step.operands):
            roots = fused.access[value].roots
            if form == "matmul" and position == 0 and not step.sums:
                region.has_matmul = True
                region.lhs_bytes += sum([fused.sizes[r] for r in roots])
            for root in roots:
                if root in region.inside or root in region.whole:
                    continue
                if always or (rows > 1 and rows in self._rows_outside(step, position)):
                    region.streamed.setdefault(root)
                else:
                    region.streamed.pop(root, None)
                    region.whole[root] = None
                    region.batches[root] = self._parts(region, step)

    def _rows_outside(self, step: FusedStep, position: int) -> frozenset[int]:
        """Return into how many rows the operand of `step` at `position` can be divided,
        so that a region loads some rows of it for each tile."""
        if step.form != "matmul":
            return self._operand_rows(step)[position]
        if step.sums:
            return _contracted_rows(self.fused, step)
        rows = _matmul_rows(self.fused, step)[0]
        if position == 0:  # the DMA engines gather rows from any layout
            return rows
        return rows & frozenset({_batch(self.fused, step)} - {1})
