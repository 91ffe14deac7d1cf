"""`price`: the cost of one kernel instruction; equal ones are priced once.

Rules read the work off access patterns, by the name of the instruction; what an engine
takes for it is in `engines`. One physical core; collectives are those of the machine
that it is in.
"""

from __future__ import annotations

from typing import Any

from neuronjax.errors import UnimplementedError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.kernel import ON_CHIP, Access, KernelInstruction
from neuronjax.timing import (
    cost_collective,
    kernel_cost_dma,
    kernel_cost_lanes,
    kernel_cost_tensor,
)
from neuronjax.timing.kernel_operands import first_partition
from neuronjax.timing.kernel_price import RULES, KernelPrice
from neuronjax.timing.work import Core

#: Importing them registers their rules.
FILES = (
    cost_collective,
    kernel_cost_dma,
    kernel_cost_lanes,
    kernel_cost_tensor,
)


class Prices:
    """Costs of instructions on one physical core."""

    def __init__(self, core: Core, target: Target | None = None) -> None:
        self.core = core
        self.target = target or resolve_target(core.chip.name)
        self._known: dict[Any, KernelPrice] = {}

    def price(self, i: KernelInstruction) -> KernelPrice:
        """The cost of an instruction; an UnimplementedError if there is no rule for
        it."""
        key = _key(i)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _priced(i, self.core, self.target)
        return found


def _priced(i: KernelInstruction, core: Core, target: Target) -> KernelPrice:
    rule = RULES.get(i.name)
    if i.engine == "cc" and rule is None:
        return cost_collective.collective(i, target)
    if rule is None:
        raise UnimplementedError(
            f"no time is known of nisa.{i.name}",
            op=f"nisa.{i.name}",
            location=i.location,
            remedy="profile the kernel without it",
        )
    return rule(i, core)


def _key(i: KernelInstruction) -> Any:
    """Equal for instructions that cost the same."""
    found: list[Any] = [i.name, i.engine, *i.attributes.items()]
    # Which partitions it starts at on chip decides which DMA engines move it.
    by_place = i.engine == "dma" or i.name == "device_print"
    for a in (*i.outputs, *i.inputs):
        if type(a) is Access:
            memory = a.storage.memory
            found += (memory, a.dtype, a.pattern, a.dynamic and a.dynamic.kind)
            if by_place and memory in ON_CHIP:
                found.append(first_partition(a))
    if i.name == "memset":
        found.append(any(i.parameters))
    return tuple(found)


def price(
    i: KernelInstruction, core: Core, target: Target | None = None
) -> KernelPrice:
    """The cost of one instruction on one physical core; see `Prices`."""
    return Prices(core, target).price(i)
