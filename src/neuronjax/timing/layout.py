"""The layout of a region's tensors in SBUF and PSUM, and how many bytes are live."""

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
    """Return the matmul results that other steps of the region read out of PSUM."""
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
    """Return whether an axis that is neither contracted nor a batch axis precedes the
    contracted axes of a matmul's operand at `position`."""
    d = dimensions(step)
    batch = (d.lhs_batch, d.rhs_batch)[position]
    contract = (d.lhs_contract, d.rhs_contract)[position]
    shape = fused.types[step.operands[position]].shape
    others = [n for n, s in enumerate(shape) if s > 1 and n not in batch]
    return bool(others) and others[0] not in contract


def parts_read(fused: Fused, region: TiledRegion) -> dict[int, tuple[float, bool]]:
    """Return, by tensor in memory, the fraction that a region reads, and whether any
    step reads the tensor transposed."""
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
    """Return the SBUF bytes of one row tile: the most bytes live at any of a region's
    steps.

    Whole rows of a value are live, but only one block of columns at a time if the value
    is a matmul's result, is computed from such a result, or is an operand that just one
    elementwise step reads. An elementwise result overwrites an operand that nothing
    reads later; a transposed operand needs separate memory. `turned` are the matmuls
    whose left operand is transposed first."""
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

    The number is 1 if no matmul reads a result of the region. It is also 1 if rows of a
    matmul's result are reduced, since one tile of attention scores is enough work.
    Otherwise the tiles have `ROWS_AT_A_TIME` rows together."""
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
    """Return the contiguous bytes of a tensor in a partition: those of a row (the last
    dimension), at least a 128th of the `whole` tensor, at most the `size` moved."""
    row = prod(type_.shape[-1:]) * type_.dtype.itemsize
    return max(1, min(size, max(row, ceil(whole / 128))))


def addressed_bytes(i: Instruction) -> tuple[int, int] | None:
    """Return how many bytes of operand 0 are read, and how many are written; None if
    the whole operand is used."""
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
    """Return whether `step` writes `value` into a slice of a tensor in HBM."""
    instruction = step.instruction
    if isinstance(instruction, LocalGather) or addressed_bytes(instruction) is None:
        return False
    target, update = (fused.access[v].roots for v in step.operands[:2])
    return update == (value,) and len(target) == 1 and target[0] not in in_sbuf


def source_of_updates(fused: Fused, unit: Unit, position: int) -> int:
    """Return the tensor in memory that is a loop's operand at `position`, if the loop
    only updates slices of it, and so can carry it in place; otherwise -1."""
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
    """Return whether `step` is a matmul of `value`, such as a cast weight, and an
    operand that fits in `room` bytes, so that `value` is read only once."""
    if step.form != "matmul" or len(step.operands) != 2:
        return False
    sides = [fused.access[v].roots for v in step.operands]
    others = {r for roots in sides for r in roots} - {value}
    return (value,) in sides and sum(fused.sizes[r] for r in others) <= room
