"""Limits of engines that depend on the core.

Source: nki.isa (tensor_copy, tensor_scalar, activation, rng, nc_transpose). If the user
leaves `engine` to the compiler, the front end has already chosen a legal one.
"""

from __future__ import annotations

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import KernelInstruction
from neuronjax.nki.limits.operands import free_size, tensor_inputs, text
from neuronjax.nki.limits.registry import broken, limit, missing

# Operator pairs of tensor_scalar on a scalar engine that has no ALU.
SCALED = frozenset({("multiply", "add"), ("multiply", None), ("add", None)})
# Most partitions and free elements that an engine transposes at once.
TRANSPOSES = {"tensor": 128, "vector": 32}


@limit("tensor_copy")
def scalar_engine_copies(i: KernelInstruction, core: CoreSpec) -> None:
    capability = "scalar_engine_exact_copy"
    if i.engine == "scalar" and capability not in core.capabilities:
        instead = "nisa.activation with op=nl.copy, or another engine"
        raise missing(i, core, "tensor_copy on ScalarE", capability, instead)


@limit("tensor_scalar")
def scalar_engine_operators(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse operators that GpSimd, or ScalarE of an earlier core, lacks."""
    ops = (i.attributes["op0"], i.attributes["op1"])
    shown = " and ".join(op for op in ops if op)
    if i.engine == "gpsimd" and "rsqrt" not in ops:
        raise broken(
            i, f"{shown} on GpSimd", "use vector or scalar; GpSimd takes only nl.rsqrt"
        )
    capable = "scalar_engine_alu" in core.capabilities
    if i.engine == "scalar" and not capable and ops not in SCALED:
        instead = "use engine=vector; this ScalarE only multiplies, adds, or does both"
        raise missing(i, core, f"{shown} on ScalarE", "scalar_engine_alu", instead)


@limit("activation", "activation_reduce")
def bias_is_a_vector(i: KernelInstruction, core: CoreSpec) -> None:
    """Refuse numbers as bias, and a bias of reciprocal, before NeuronCore-v3.

    In `i.forms` a bias is "-" if it is absent, and "f" or "i" if it is a number."""
    given = i.forms[2] if len(i.forms) > 2 else "-"
    if "scalar_bias" in core.capabilities:
        return
    if given in "fi":
        instead = f"a tile of shape ({i.outputs[0].shape[0]}, 1)"
        raise missing(i, core, "a number as bias", "scalar_bias", instead)
    if given != "-" and i.attributes["op"] == "reciprocal":
        raise missing(
            i, core, "reciprocal with a bias", "scalar_bias", "a separate add"
        )


@limit("rng")
def random_engines(i: KernelInstruction, core: CoreSpec) -> None:
    if i.engine == "gpsimd" and "gpsimd_random" not in core.capabilities:
        raise missing(i, core, "rng on GpSimd", "gpsimd_random", "engine vector")


@limit("nc_transpose")
def transposes_fit(i: KernelInstruction, core: CoreSpec) -> None:
    data = tensor_inputs(i)[0]
    assert data is not None
    most = TRANSPOSES[i.engine]
    if data.shape[0] > most or free_size(data) > most:
        other = ", or use engine tensor (SBUF to PSUM)" if i.engine == "vector" else ""
        raise broken(
            i,
            f"data {text(data)} on the {i.engine} engine",
            f"use at most [{most}, {most}]: transpose in pieces{other}",
        )
