"""The memory of a profile, which prints as the reports' table of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rich.table import Table

from neuronjax.report.profile_tables import memory_table
from neuronjax.report.quantities import binary
from neuronjax.report.tables import Displayed
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.kernel_timeline import KernelMemory
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.work import Core


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ShownMemory(Displayed, MemoryPlan):
    """A `MemoryPlan` that shows HBM and SBUF at their fullest.

    Attributes:
        core: the logical core that has them.
    """

    core: Core

    def __rich__(self) -> Table:
        return memory_table(self, self.core)

    def __repr__(self) -> str:
        hbm = f"{binary(self.hbm.bytes)} of {binary(capacity_bytes(self.core))}"
        sbuf = f"{binary(self.sbuf_peak_bytes)} of {binary(self.core.sbuf_bytes)}"
        return f"<neuronjax.MemoryPlan HBM {hbm}, SBUF {sbuf}>"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ShownKernelMemory(ShownMemory, KernelMemory):
    """The same of a kernel."""


def shown_memory(memory: MemoryPlan, core: Core) -> ShownMemory:
    """The same plan, to be shown."""
    shown = ShownKernelMemory if isinstance(memory, KernelMemory) else ShownMemory
    return shown(core=core, **{f.name: getattr(memory, f.name) for f in fields(memory)})
