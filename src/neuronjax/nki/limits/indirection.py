"""Limits of tensor indirection: which operands may be `.indirect()` views.

`InstructionSpec.gathered` lists them by instruction. Base partitions are checked if the
user fixed the addresses; otherwise the allocator chooses them.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.nki.limits.operands import start_partition, tensor_inputs, text
from neuronjax.nki.limits.registry import broken, limit, missing

QUADRANT = 32


# The dst of these instructions may also be scattered.
TAKES = tuple(spec.name for spec in SPECS.values() if spec.gathered)


def _is_gathered(access: Access | None) -> bool:
    dynamic = access.dynamic if access is not None else None
    return dynamic is not None and dynamic.kind == "indirect"


@limit()
def operands_may_be_indirect(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse illegal `.indirect()` views, by core, instruction, engine and operand."""
    inputs = tensor_inputs(i)
    gathered = [n for n, a in enumerate(inputs) if _is_gathered(a)]
    scattered = [a for a in i.outputs if _is_gathered(a)]
    if not gathered and not scattered:
        return
    if "indirect" not in core.capabilities:
        raise missing(
            i, core, "an .indirect() view", "indirect", "nisa.local_gather or a DMA"
        )
    if i.name not in TAKES:
        raise broken(
            i,
            "an .indirect() view",
            f"only {', '.join(TAKES)} take such a view: use nisa.tensor_copy first",
        )
    takes = SPECS[i.name]
    engines = takes.gathering_engines or takes.engines
    if i.engine not in engines:
        raise broken(
            i,
            f"an .indirect() view on the {i.engine} engine",
            f"use engine {' or '.join(engines)}",
        )
    for n in gathered:
        if n not in takes.gathered:
            raise broken(
                i,
                f"input {n} {text(inputs[n])} is an .indirect() view",  # type: ignore[arg-type]
                f"only inputs {', '.join(map(str, takes.gathered))} and dst may be such"
                " a view: copy this input first",
            )
    views = [a for a in i.accesses if _is_gathered(a)]
    _check_offsets(i, views)
    _check_places(i, views)
    for access in scattered:
        if i.engine == "scalar" and access.storage.memory == "psum":
            raise broken(
                i, f"ScalarE scatters to {text(access)}", "use VectorE, or dst in SBUF"
            )


def _check_offsets(i: KernelInstruction, gathered: list[Access]) -> None:
    """Refuse an index that is too short: offset n is at [n % group, n // group]."""
    for access in gathered:
        dynamic, index, (partitions, count) = access.dynamic, access.index, access.shape
        assert dynamic is not None
        assert index is not None
        group, columns = dynamic.group, index.size // partitions
        # A last group of fewer partitions can use only the first column of the index.
        most = partitions % group or group * columns
        if count > most:
            raise broken(
                i,
                f"{text(access)} needs {count} offsets; in each group of {group} "
                f"partitions, the {i.engine} engine reads only {most} from an index of "
                f"shape ({partitions}, {columns})",
                "give a smaller num_elem, or an index with more columns",
            )


def _check_places(i: KernelInstruction, gathered: list[Access]) -> None:
    for access in gathered:
        index = access.index
        if index is None or index.storage.address is None:
            continue
        start = start_partition(index)
        if start % QUADRANT:
            raise broken(
                i,
                f"the index {text(index)} starts at partition {start}",
                f"start at a multiple of {QUADRANT}",
            )


@limit("nc_matmul", "nc_matmul_mx")
def gathering_matmuls(i: KernelInstruction, core: CoreSpec) -> None:
    stationary, moving, *_ = tensor_inputs(i)
    if not any(map(_is_gathered, (stationary, moving, i.outputs[0]))):
        return
    if i.attributes["tile_position"] != (0, 0):
        raise broken(
            i, "an .indirect() view in a tile of TensorE", "use tile_position (0, 0)"
        )
    if i.attributes.get("is_transpose") and _is_gathered(moving):
        remedy = "make only stationary an .indirect() view"
        raise broken(i, "is_transpose with an .indirect() view as moving", remedy)
