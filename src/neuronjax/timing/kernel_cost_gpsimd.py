"""GpSimdE and the sequencers in kernels.

A documented instruction takes 150 cycles to start and what its formula says [V26, ISA];
others are software, counted as in `cost_gpsimd`. Registers and barriers are
instructions of the sequencers.
"""

from __future__ import annotations

from math import ceil

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import software_cycles
from neuronjax.timing.cost_layout import latency_seconds
from neuronjax.timing.kernel_constants import REGISTER_CYCLES
from neuronjax.timing.kernel_cost_vector import per_partition
from neuronjax.timing.kernel_price import (
    KernelPrice,
    on_engine,
    outputs,
    prices,
    tensors,
)
from neuronjax.timing.work import Core, Work

#: Indices that a group of instructions of nc_n_gather takes [ISA].
_GATHER_GROUP = 512


@prices("iota", "affine_select")
def per_element(i: KernelInstruction, core: Core) -> KernelPrice:
    """150 + N."""
    return on_engine(i, core, per_partition(i), i.name.upper())


@prices("tensor_partition_reduce", "sequence_bounds", "nonzero_with_count")
def in_software(i: KernelInstruction, core: Core) -> KernelPrice:
    """Not published: what a lane holds is read once."""
    item = max((o.dtype.itemsize for o in tensors(i)), default=4)
    cycles = per_partition(i) * software_cycles(item)
    return on_engine(i, core, cycles, i.name.upper())


@prices("local_gather")
def local_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    """An index at a time; see `assumptions.GATHER_INDEX`."""
    item = outputs(i)[0].dtype.itemsize
    elements = int(i.attributes.get("elements", 1))
    per_index = a.GATHER_INDEX.value + elements / max(1.0, 4 / item)
    cycles = int(i.attributes.get("valid", per_partition(i))) * per_index
    return on_engine(i, core, cycles, "LOCAL_GATHER")


@prices("nc_n_gather")
def nc_n_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    """A group of instructions for 512 indices [ISA]; an index as of local_gather."""
    n = outputs(i)[0].free
    starts = (ceil(n / _GATHER_GROUP) - 1) * a.GPSIMD_START.value
    return on_engine(i, core, n * a.GATHER_INDEX.value + starts, "N_GATHER")


@prices("topk")
def topk(i: KernelInstruction, core: Core) -> KernelPrice:
    """4 n + K [ISA]."""
    n, k = int(i.attributes.get("n", per_partition(i))), outputs(i)[0].free
    return on_engine(i, core, a.TOPK_PASSES.value * n + k, "TOPK")


@prices("register_move", "register_load", "register_store", "core_barrier")
def on_sequencer(i: KernelInstruction, core: Core) -> KernelPrice:
    """A few cycles; what is in memory has to come first."""
    spent = REGISTER_CYCLES.value / core.spec.sync.clock_hz
    latency = latency_seconds(core, "sync")
    memories = {x.storage.memory for x in i.inputs if isinstance(x, Access)}
    if any(memory.endswith("hbm") for memory in memories):
        latency += a.HBM_LATENCY.value
    work = Work(
        queue="sync", seconds=spent, latency_seconds=latency, opcode=i.name.upper()
    )
    return KernelPrice(
        queue="sync", source=work, seconds=spent, latency_seconds=latency
    )
