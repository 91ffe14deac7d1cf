"""Limits of partitions and dimensions that hold for every tile.

Sources: nki/guides/architecture/trainium_inferentia2_arch.rst, "Data Access" (start
partitions, four free dimensions, no stride between partitions); later guides do not
repeat them. The guide's 16-bit strides are not checked, because a partition of a later
chip has more elements than they can address.
"""

from __future__ import annotations

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import KernelInstruction, Storage
from neuronjax.nki.limits.operands import (
    LANES,
    OperandAccess,
    free_size,
    operands,
    partition_elements,
    start_partition,
    text,
)
from neuronjax.nki.limits.registry import broken, limit

FREE_DIMENSIONS = 4
# (number of partitions, first partitions that are legal for at most that many).
STARTS = ((32, (0, 32, 64, 96)), (64, (0, 64)), (128, (0,)))


def check_partitions(storage: Storage, core: CoreSpec) -> None:
    """Refuse an allocation beyond the core's partitions."""
    if not storage.on_chip:
        return
    most = core.partitions
    first = storage.address[0] if storage.address else 0
    if not 0 <= first <= most - storage.shape[0]:
        where = f" from partition {first}" if storage.address else ""
        raise InvalidProgramError(
            f"{storage.shape[0]} partitions{where} in {storage.memory}, shape "
            f"{storage.shape}",
            op="ndarray",
            location=storage.location,
            remedy=f"the first dimension may be at most {most}: put the rest into the "
            "free dimensions or more tiles",
        )


@limit()
def partitions_are_reachable(i: KernelInstruction, core: CoreSpec) -> None:
    if i.engine not in LANES:
        return
    for operand in operands(i):
        if operand.access.storage.on_chip:
            _check_start(i, operand)
            _check_dimensions(i, operand)


def _check_start(i: KernelInstruction, operand: OperandAccess) -> None:
    access = operand.access
    stride, count = access.pattern[0]
    if count > 1 and stride != partition_elements(access):
        raise broken(
            i,
            f"{operand.label} {text(access)} has a stride of "
            f"{stride / partition_elements(access):g} partitions",
            "use adjacent partitions; only nisa.dma_copy may skip partitions",
        )
    start = start_partition(access)
    legal = next((s for most, s in STARTS if count <= most), (0,))
    if start in legal or _is_scale(i, operand):
        return
    nearest = min(legal, key=lambda s: abs(s - start))
    raise broken(
        i,
        f"{operand.label} {text(access)} starts at partition {start}",
        f"let {count} partitions start at {' or '.join(map(str, legal))} (nearest: "
        f"{nearest}); nisa.dma_copy may start at any partition",
    )


def _is_scale(i: KernelInstruction, operand: OperandAccess) -> bool:
    if i.name == "quantize_mx":
        return operand.written and operand.label != "dst"
    late = operand.label not in ("dst", "input 0", "input 1")
    return i.name == "nc_matmul_mx" and late


def _check_dimensions(i: KernelInstruction, operand: OperandAccess) -> None:
    merged: list[tuple[int, int]] = []  # contiguous neighbours count as one
    for stride, count in operand.access.pattern[1:]:
        if count == 1:
            continue
        if merged and merged[-1][0] == stride * count:
            merged[-1] = (stride, merged[-1][1] * count)
        else:
            merged.append((stride, count))
    if len(merged) > FREE_DIMENSIONS:
        raise broken(
            i,
            f"{operand.label} {text(operand.access)} has {len(merged)} free dimensions "
            "that do not follow one another in memory",
            f"use at most {FREE_DIMENSIONS}: split the instruction, or copy to a dense "
            "tile first",
        )


@limit()
def free_size_fits(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse more elements per partition than VectorE, ScalarE or GpSimd can access.

    No limit holds for PSUM with BF16: the published figure is for other chips, and
    smaller than a partition."""
    if i.engine not in ("vector", "scalar", "gpsimd"):
        return
    most = {"sbuf": core.max_free_sbuf_elements}
    if "bf16_psum" not in core.capabilities:
        most["psum"] = core.max_free_psum_elements
    for operand in operands(i):
        allowed = most.get(operand.access.storage.memory)
        size = free_size(operand.access)
        if allowed is not None and size > allowed:
            raise broken(
                i,
                f"{operand.label} {text(operand.access)} has {size} elements per "
                "partition",
                f"use at most {allowed}: split the free dimension",
            )
