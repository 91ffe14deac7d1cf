"""The layout of a region's tensors in SBUF and PSUM, and how many bytes are live.

A *region* is a series of steps that run tile by tile (`fused.TiledRegion`).
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import DmaCopy, LocalGather, LocalScatter, Loop
from neuronjax.ir.program import TensorType
from neuronjax.timing.assumptions import COLUMN_BLOCK_BYTES, ROWS_AT_A_TIME
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion
from neuronjax.timing.memory_plan import Unit, bytes_over
from neuronjax.timing.tiling import dimensions
from neuronjax.timing.work import Core

_BY_BLOCKS = frozenset({"tensor_scalar", "tensor_tensor", "activation"})
_READS_PSUM = frozenset({"tensor_scalar", "tensor_tensor", "activation", "reduce"})


def psum_results(fused: Fused, region: TiledRegion) -> set[int]:
    """Return the results of the region's matmuls that are not copied from PSUM to SBUF,
    because only elementwise steps and reductions of the region read them."""
    readers: dict[int, list[FusedStep]] = {}
    for step in region.steps:
        for value in step.operands:
            for root in fused.access[value].roots:
                readers.setdefault(root, []).append(step)
    found = set()
    for step in region.steps:
        if step.form != "matmul" or not step.results:
            continue
        (value, *_) = step.results
        read = readers.get(value, [])
        inside = len(read) == fused.uses[value]
        if read and inside and all(s.form in _READS_PSUM for s in read):
            found.add(value)
    return found


def contracts_late(fused: Fused, step: FusedStep, position: int) -> bool:
    """Return whether the first axis of a matmul's operand at `position` is one that the
    matmul does not contract; batch axes and axes of one element do not count. Such an
    operand has that axis on the partitions, where TensorE needs the contracted axes."""
    d = dimensions(step)
    batch = (d.lhs_batch, d.rhs_batch)[position]
    contract = (d.lhs_contract, d.rhs_contract)[position]
    shape = fused.types[step.operands[position]].shape
    others = [n for n, s in enumerate(shape) if s > 1 and n not in batch]
    return bool(others) and others[0] not in contract


def parts_read(fused: Fused, region: TiledRegion) -> dict[int, tuple[float, bool]]:
    """Return, for each tensor in memory that a region reads, the fraction that is read,
    and whether any step reads the tensor transposed."""
    parts: dict[int, dict[int, tuple[float, bool]]] = {}
    for step in region.steps:
        for value in step.operands:
            seen = fused.access[value]
            for root in seen.roots:
                parts.setdefault(root, {})[value] = (seen.part, seen.transposes)
    return {
        root: (
            min(1.0, sum(p for p, _ in seen.values())),
            any(t for _, t in seen.values()),
        )
        for root, seen in parts.items()
    }


def block_bytes(
    fused: Fused, region: TiledRegion, core: Core, turned: Collection[FusedStep] = ()
) -> int:
    """Return the SBUF bytes that a region needs for one tile of rows: the most that are
    live during any of its steps.

    Whole rows of a value are in SBUF, but only one block of columns at a time if the
    value is the result of a matmul, is computed from such a result, or is an operand
    that only one elementwise step reads. An elementwise result overwrites an operand
    that nothing reads later. A transposed operand needs separate memory; `turned` are
    the matmuls whose left operand is transposed first."""
    tiles = region.tiles(core)
    block = int(COLUMN_BLOCK_BYTES.value) * core.rows_per_tile
    in_psum, cut = psum_results(fused, region), set()
    alive: dict[int, list[int]] = {}
    for n, step in enumerate(region.steps):
        reads = fused.reads(step)
        for value in (*reads, *step.results):
            if value in region.inside or value in region.streamed:
                alive.setdefault(value, [n, n])[1] = n
        if step.form == "matmul" or any(v in cut for v in reads):
            cut.update(step.results)
    spans = []
    for value, (first, final) in alive.items():
        if value in in_psum:
            continue
        size = ceil(fused.sizes[value] / tiles)
        passes_by = region.steps[final].form in _BY_BLOCKS
        if value in cut or (first == final and passes_by):
            size = min(size, block)
        elif passes_by:  # the last reader overwrites the value
            final -= 1
        spans.append((first, final, size))
    for n, step in enumerate(region.steps):
        if step in turned:
            (root, *_) = fused.access[step.operands[0]].roots
            size = ceil(fused.sizes[root] / tiles)
            size = min(size, block) if root in cut else size
            spans.append((n, alive.get(root, [n, n])[1], size))
    return max(bytes_over(spans, len(region.steps)))


def tiles_at_a_time(fused: Fused, region: TiledRegion, core: Core) -> int:
    """Return how many row tiles a step processes before the next step starts.

    The number is 1 if no matmul of the region reads a value that the region computes.
    It is also 1 if a step reduces the rows of a matmul's result, as for attention
    scores, of which one tile is enough work. Otherwise it is the number of tiles that
    have `ROWS_AT_A_TIME` rows together."""
    made: set[int] = set()
    is_fed = False
    for step in region.steps:
        if step.form == "matmul":
            made.update(step.results)
            is_fed = is_fed or not region.inside.isdisjoint(fused.reads(step))
        elif made.intersection(fused.reads(step)):
            if step.reduces or step.form == "reduce":
                return 1
            made.update(step.results)
    return max(1, int(ROWS_AT_A_TIME.value) // core.spec.partitions) if is_fed else 1


def row_bytes(type_: TensorType, whole: int, size: int) -> int:
    """Return how many contiguous bytes a transfer of `size` bytes moves at a time, from
    or to a tensor of `whole` bytes: those of a row (the last dimension), but at least
    those of a partition (`whole` / 128), and at most `size`."""
    row = prod(type_.shape[-1:]) * type_.dtype.itemsize
    return max(1, min(size, max(row, ceil(whole / 128))))


def addressed_bytes(i: Instruction) -> tuple[int, int] | None:
    """Return (bytes read, bytes written) of operand 0 if `i` addresses only a part of
    it: a gather, a scatter or an update of a slice. Return None for other instructions.
    """
    if isinstance(i, DmaCopy) and i.kind == "dynamic_update_slice":
        return 0, i.operands[1].type.size_bytes
    if isinstance(i, LocalGather):
        return i.results[0].type.size_bytes, 0
    if isinstance(i, LocalScatter):
        moved = i.operands[-1].type.size_bytes
        return 0 if i.op == "assign" else moved, moved
    return None


def replaces_slice(
    fused: Fused, step: FusedStep, value: int, in_sbuf: Collection[int]
) -> bool:
    """Return whether `step` writes `value` into a slice of a tensor in HBM, which means
    that the tensor is not in the set `in_sbuf`."""
    instruction = step.instruction
    if isinstance(instruction, LocalGather) or addressed_bytes(instruction) is None:
        return False
    target, update = (fused.access[v].roots for v in step.operands[:2])
    return update == (value,) and len(target) == 1 and target[0] not in in_sbuf


def source_of_updates(fused: Fused, unit: Unit, position: int) -> int:
    """Return the number of the tensor that is the operand at `position` of the loop in
    `unit`, if the loop's body only updates slices of this tensor, so that the carry
    needs no further memory; otherwise return -1."""
    (step,) = unit.region.steps
    if not isinstance(step.instruction, Loop):
        return -1
    (body,) = unit.inner
    made = body.fused.access[body.fused.results[position]].roots
    given = fused.access[step.operands[position]].roots
    if len(made) != 1 or len(given) != 1:
        return -1
    updated = body.updated.get(made[0]) == body.fused.arguments[position]
    return given[0] if updated else -1


def meets_little(fused: Fused, step: FusedStep, value: int, room: float) -> bool:
    """Return whether `step` is a matmul that reads `value`, such as a cast weight, only
    once, since the other operand fits in `room` bytes."""
    if step.form != "matmul" or len(step.operands) != 2:
        return False
    sides = [fused.access[v].roots for v in step.operands]
    others = fused.roots(step.operands) - {value}
    return (value,) in sides and sum(fused.sizes[r] for r in others) <= room
