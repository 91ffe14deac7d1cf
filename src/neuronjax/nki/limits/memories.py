"""Limits of memories: what each engine reaches, and inputs that may not both be in
PSUM.

Sources: `CoreSpec` (`reads` and `writes` of every engine); nki.isa, "Memory types".
That DMA does not reach PSUM is only advice: nki.isa.dma_copy names HBM and SBUF, and
reading from PSUM was removed in NKI 0.3.0 (nki/migration/index.rst), but earlier
kernels do it.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import KernelInstruction
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.ir.nki_spec import OFF_PSUM
from neuronjax.nki.limits.operands import LANES, operands, tensor_inputs, text
from neuronjax.nki.limits.registry import advice, broken, limit

# Instructions between cores, which do not read operands through lanes.
SYNCHRONIZING = frozenset({"core_barrier", "sendrecv"})


@limit()
def engines_reach_memories(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse an operand in a memory that the engine's `EngineSpec` does not list."""
    if i.engine in LANES and i.name not in SYNCHRONIZING:
        spec = getattr(core, i.engine)
        _check_memories(i, spec.reads, spec.writes)


@advice()
def dma_reaches_no_psum(i: KernelInstruction, core: CoreSpec) -> None:
    if i.engine == "dma":
        _check_memories(i, OFF_PSUM, OFF_PSUM)


def _check_memories(
    i: KernelInstruction, reads: tuple[str, ...], writes: tuple[str, ...]
) -> None:
    for operand in operands(i):
        legal = writes if operand.written else reads
        if operand.access.storage.memory not in legal:
            verb = "write" if operand.written else "read"
            engine = "DMA" if i.engine == "dma" else f"the {i.engine} engine"
            memories = ", ".join(m for m in legal if m != "private_hbm") or "no memory"
            raise broken(
                i,
                f"{operand.label} {text(operand.access)}, which {engine} cannot {verb}",
                f"{engine} can {verb} {memories}: move the data first, from PSUM to "
                "SBUF with nisa.tensor_copy, between HBM and SBUF with nisa.dma_copy",
            )


@limit(*(spec.name for spec in SPECS.values() if spec.one_in_psum))
def one_input_in_psum(i: KernelInstruction, core: CoreSpec) -> None:
    inputs = tensor_inputs(i)
    pair = [inputs[n] for n in SPECS[i.name].one_in_psum]
    both = [a for a in pair if a is not None and a.storage.memory == "psum"]
    if len(both) == 2:
        raise broken(
            i,
            f"both {text(both[0])} and {text(both[1])} are read at once",
            "copy one of them to SBUF first (nisa.tensor_copy)",
        )
