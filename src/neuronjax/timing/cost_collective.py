"""Costs of collectives of programs and of kernels (`nki.collectives`).

CC-cores are the processors that run collectives. They work in parallel with the
engines, and wait only for the tensors that they read and write. In a kernel, a rank is
a logical NeuronCore. Its CC-cores run collectives in the kernel's order; collectives of
the rank's physical cores run one after the other (ASSUMPTION). Tensors in SBUF take as
long as tensors in HBM. If only a part of a buffer moves, and its length is known only
at run time, the whole buffer counts (ASSUMPTION). These costs do not include the wait
of a launch for all ranks: see `collectives.launch_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from neuronjax.errors import UnimplementedError
from neuronjax.hardware import Target
from neuronjax.ir.collective_set import (
    Collective,
    CollectivePermute,
    Groups,
    PartitionId,
    Reduction,
)
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import collectives
from neuronjax.timing.collectives import collective_time
from neuronjax.timing.cost_lanes import on_sequencer
from neuronjax.timing.cost_rules import KernelPrice, prices
from neuronjax.timing.kernel_operands import operand
from neuronjax.timing.work import Core, Work

#: Name of a collective of programs or kernels -> the collective of `timing.collectives`
#: that moves as many bytes.
OPS: Mapping[str, str] = MappingProxyType(
    {name: name for name in collectives.OPS}
    | {
        "all_gather_v": "all_gather",
        "all_to_all_v": "all_to_all",
        # ASSUMPTION: the whole buffer moves, since the sizes of its parts are unknown.
        "ragged_all_to_all": "all_to_all",
        "collective_permute_implicit": "collective_permute",
        # ASSUMPTION: DMA engines add while they move data, at the same rate.
        "collective_permute_implicit_reduce": "collective_permute",
    }
)


def collective_seconds(
    i: Collective, core: Core, target: Target, placement: Sequence[int] = ()
) -> float:
    """Return the seconds of a collective instruction of a program; 0 for `PartitionId`,
    which moves no data.

    `placement` has the logical core of each device; an empty `placement` puts device n
    on core n."""
    if isinstance(i, PartitionId):
        return 0.0
    operands = sum(v.type.size_bytes for v in i.operands)
    results = sum(b.type.size_bytes for b in i.results)
    time = collective_time(
        OPS[i.name],
        max(operands, results),
        i.pairs if isinstance(i, CollectivePermute) else i.groups,  # type: ignore
        target,
        placement=Placement.of(target, lnc=core.lnc, cores=placement),
        plan=i.plan if isinstance(i, Reduction) else None,
        lnc=core.lnc,
    )
    own = target.chip.collective_start_seconds
    return time.seconds + own if time.seconds else 0.0


# -- kernels ---------------------------------------------------------------------------


_RINGS = frozenset(
    {"collective_permute_implicit", "collective_permute_implicit_reduce"}
)
#: Collectives whose first input is the tensor; the other inputs are element counts.
_OF_ANY_LENGTH = frozenset({"all_gather_v", "all_to_all_v"})


prices("rank_id", "collective_permute_implicit_current_processing_rank_id")(
    on_sequencer
)


def collective(i: KernelInstruction, target: Target) -> KernelPrice:
    """Return the price of a collective in a kernel. Refuse one that has no model, or
    with ranks that the machine does not have."""
    op = OPS.get(i.name)
    if op is None:
        raise UnimplementedError(
            f"the time of nki.collectives.{i.name} is not known",
            op=f"nki.collectives.{i.name}",
            location=i.location,
            remedy="profile the kernel without this collective",
        )
    time = collective_time(
        op, _size(i), _kernel_groups(i), target, plan=i.attributes.get("plan")
    )
    work = Work(queue="cc", seconds=time.seconds, opcode=i.name.upper())
    return KernelPrice(work=work)


def _size(i: KernelInstruction) -> int:
    """Return the bytes of a rank's inputs or of its outputs, whichever are more. For a
    permute along rings (`_RINGS`), return the bytes of the largest output."""
    if i.name in _RINGS:
        return max(operand(x).bytes for x in i.outputs)
    read = [x for x in i.inputs if isinstance(x, Access)]
    if i.name in _OF_ANY_LENGTH:
        return max(operand(read[0]).bytes, operand(i.outputs[0]).bytes)
    return max(_bytes(read), _bytes(i.outputs))


def _bytes(accesses: Iterable[Access]) -> int:
    return sum(operand(x).bytes for x in accesses)


def _kernel_groups(i: KernelInstruction) -> Groups:
    if i.name == "collective_permute":
        return i.attributes["source_target_pairs"]
    if i.name in _RINGS:
        rings = [ring for channel in i.attributes["rings"] for ring in channel]
        return tuple(
            pair
            for ring in rings
            for pair in zip(ring, (*ring[1:], ring[0]), strict=True)
        )
    return i.attributes["groups"]
