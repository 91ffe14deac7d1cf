"""The rule of custom call `neuronjax.nki`: a kernel, traced for the program's chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from neuronjax.errors import InvalidProgramError
from neuronjax.ir import kernel_call
from neuronjax.ir.collective_set import DeviceMesh
from neuronjax.ir.instruction import Engine, Instruction
from neuronjax.ir.kernel_call import KernelFunction, NkiKernel
from neuronjax.ir.program import Op, TensorType
from neuronjax.lowering.context import Context
from neuronjax.lowering.spmd import alone


def nki_kernel(op: Op, context: Context) -> Iterator[Instruction]:
    """One instruction.

    Raises:
        InvalidProgramError: another process traced the kernel, or for this chip it
            returns other arrays.
    """
    text = str(op.attributes.get("backend_config", ""))
    kernel = kernel_call.find(text)
    if kernel is None:
        raise op.error(
            InvalidProgramError,
            f"calls the kernel {text!r}, which this process has not traced: a saved "
            "program holds a kernel's name and not its instructions",
            "capture the program again in this process, with the function that calls "
            "the kernel; or trace the same kernel for the same shapes and chip before "
            "loading, nj.jit(function).lower(*args)",
        )
    target = context.shared.target
    if kernel.program.target != target.name:
        kernel = kernel.for_target(target)
    _check_types(op, kernel)

    def made(op: Op, context: Context) -> Iterator[Instruction]:
        policy = context.policy
        yield context.whole(
            op,
            NkiKernel,
            _busiest(kernel),
            rounding=policy.rounding,
            kernel=kernel,
            transcendentals=policy.transcendentals,
        )

    if not kernel.devices:
        yield from made(op, context)
        return
    mesh = context.shared.mesh
    if mesh is None and kernel.devices == 1:
        yield from alone(op, context, made)
        return
    _check_devices(op, kernel, mesh)
    yield from made(op, context)


def _check_devices(op: Op, kernel: KernelFunction, mesh: DeviceMesh | None) -> None:
    if mesh is not None and mesh.size == kernel.devices:
        return
    found = f"a mesh of {mesh.size}" if mesh else "no mesh"
    raise op.error(
        InvalidProgramError,
        f"the collectives of the kernel {kernel.name} join {kernel.devices} devices, "
        f"and around its call is {found}",
        "call it inside jax.shard_map over all axes of neuronjax.make_mesh",
    )


def _check_types(op: Op, kernel: KernelFunction) -> None:
    declared = tuple(v.type for v in op.results)
    if declared != kernel.results:
        raise op.error(
            InvalidProgramError,
            f"the kernel {kernel.name} returns {_listed(kernel.results)} on "
            f"{kernel.program.target} and {_listed(declared)} where the program was "
            "captured",
            "capture the program for this chip",
        )


def _listed(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _busiest(kernel: KernelFunction) -> Engine:
    """The engine of most instructions, DMA left out, for an instruction has one."""
    engines = Counter[str](i.engine for i in kernel.program.body.walk())
    computing = [e for e, _ in engines.most_common() if e not in ("dma", "sync")]
    return computing[0] if computing else "dma"  # type: ignore[return-value]
