"""Custom calls: microscaling of the vendor's compiler, calls to the host, and kernels.

Calls without an effect on values are passed through by name; any other call in a saved
program is an error.

`jax.nn.scaled_matmul` is also captured as `__op$block_scaled_dot`. Without dimension
numbers both sides contract their last axis, and the first of three axes is the batch.
FP8 elements come one by one, or four to a uint32 as `QuantizeMX` packs them. Source:
error codes NCC_EVRF036 to 058 of the Neuron compiler.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir import host_functions, kernel_call
from neuronjax.ir.collective_set import DeviceMesh
from neuronjax.ir.instruction import Engine, Instruction, View
from neuronjax.ir.instruction_set import BitcastCopy, DotDimensions
from neuronjax.ir.json_text import json_object
from neuronjax.ir.kernel_call import KernelFunction, NkiKernel
from neuronjax.ir.program import Op, TensorType
from neuronjax.lowering import microscaling
from neuronjax.lowering.algebra import host_call
from neuronjax.lowering.collective import ragged_all_to_all
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import CHLO_FUNCTIONS, constant_result, pass_through
from neuronjax.lowering.microscaling import QuantizedMatrix
from neuronjax.lowering.moves import MatrixView, into, matrix, reshaped, transposed
from neuronjax.lowering.psum import from_psum
from neuronjax.lowering.registry import RULES, lowers
from neuronjax.lowering.sorting import approx_top_k
from neuronjax.lowering.spmd import alone
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.microscaling import (
    BLOCK_SIZE,
    MX_FORMATS,
    ON_DEVICE_FORMATS,
    ON_DEVICE_INPUTS,
)

# -- kernels ---------------------------------------------------------------------------


def nki_kernel(op: Op, context: Context) -> Iterator[Instruction]:
    """Lower the call of a kernel, traced in this process, to one instruction."""
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

    mesh = context.shared.mesh
    if mesh is None and kernel.devices == 1:
        yield from alone(op, context, made)
        return
    if kernel.devices:
        _check_devices(op, kernel, mesh)
    yield from made(op, context)


def _check_devices(op: Op, kernel: KernelFunction, mesh: DeviceMesh | None) -> None:
    if mesh is not None and mesh.size == kernel.devices:
        return
    mesh_text = f"a mesh of {mesh.size}" if mesh else "no mesh"
    raise op.error(
        InvalidProgramError,
        f"the collectives of the kernel {kernel.name} join {kernel.devices} devices, "
        f"but its call is inside {mesh_text}",
        f"call it in jax.shard_map over all axes of a mesh of {kernel.devices} devices",
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
    engines = Counter[str](i.engine for i in kernel.program.body.walk())
    computing = [e for e, _ in engines.most_common() if e not in ("dma", "sync")]
    return computing[0] if computing else "dma"  # type: ignore[return-value]


_FORMATS = {mx.element.name: mx.name for mx in MX_FORMATS.values()}
_PACKED = 4  # FP8 elements in a uint32


@lowers("stablehlo.custom_call")
def custom_call(op: Op, context: Context) -> Iterable[Instruction]:
    name = _name(op)
    if name not in _RULES:
        raise op.error(
            UnsupportedError,
            f"calls {name!r}, which no NeuronCore has",
            "compute it outside the emulated function; or, if the program was saved "
            'for another platform, save it for "neuron"',
        )
    return _RULES[name](op, context)


def _block_scaled_dot(op: Op, context: Context) -> Instructions:
    if len(op.operands) != 4:
        raise _invalid(op, f"{len(op.operands)} operands", "pass lhs, rhs, 2 scales")
    context.require("mx_matmul", "microscaling (__op$block_scaled_dot)")
    config = _config(op)
    config = config.get("scaled_dot_backend_config", config)
    lhs, rhs, lhs_scales, rhs_scales = context.operands(op)
    d = _dimensions(op, config)
    element = config.get("element_dtype", "")
    a = _blocks(op, context, lhs, lhs_scales, d.lhs_batch, d.lhs_contract, element)
    b = _blocks(op, context, rhs, rhs_scales, d.rhs_batch, d.rhs_contract, element)
    yield from from_psum(
        context,
        lambda psum: [microscaling.multiply(context, a, b, psum)],
        [],
        context.results(op)[0],
    )


def _dimensions(op: Op, config: dict[str, Any]) -> DotDimensions:
    dimensions = []
    for side, value in (("lhs", op.operands[0]), ("rhs", op.operands[1])):
        rank = len(value.type.shape)
        if rank < 2:
            raise _invalid(op, f"{side} of rank {rank}", "use rank 2 or more")
        contract = tuple(config.get(f"{side}_contracting_dimensions", ()))
        batch = tuple(config.get(f"{side}_batch_dimensions", ()))
        if not contract:
            contract, batch = (rank - 1,), tuple(range(rank - 2))
        used = (*batch, *contract)
        if len(contract) != 1 or len(set(used)) != len(used):
            raise _invalid(op, f"dimensions {used} of {side}", "contract one axis")
        if not all(0 <= axis < rank for axis in used):
            raise _invalid(op, f"dimensions {used} of {side}", f"use axes below {rank}")
        dimensions += [batch, contract]
    return DotDimensions(dimensions[0], dimensions[2], dimensions[1], dimensions[3])


def _blocks(
    op: Op,
    context: Context,
    elements: View,
    scales: View,
    batch: tuple[int, ...],
    contract: tuple[int, ...],
    element: str,
) -> QuantizedMatrix:
    if elements.type.dtype == np.uint32:
        elements = _unpacked(op, context, elements, contract[0], element)
    if elements.type.dtype.name not in _FORMATS:
        raise _invalid(
            op, f"elements of {elements.type.dtype}", f"use {', '.join(_FORMATS)}"
        )
    dtype, shape = get_format("float8_e8m0fnu").dtype, scales.type.shape
    if scales.type.dtype != dtype:
        scales = context.computed(BitcastCopy, (scales,), shape, dtype, engine="dma")
    k, blocks = (v.type.shape[contract[0]] for v in (elements, scales))
    if -(-k // BLOCK_SIZE) != blocks:
        raise _invalid(
            op,
            f"{blocks} scales for {k} elements",
            f"give one scale for every {BLOCK_SIZE} elements",
        )
    source = matrix(context, elements, batch, contract)
    scale = matrix(context, scales, batch, contract)
    return QuantizedMatrix(source.view, scale.view, source.axis)


def _unpacked(op: Op, context: Context, words: View, axis: int, element: str) -> View:
    """Return a word's four elements as neighbours along `axis`, low byte first."""
    if element not in _FORMATS:
        raise _invalid(
            op, f"packed elements of {element!r}", f"use {', '.join(_FORMATS)}"
        )
    shape = words.type.shape
    split, dtype = (*shape, _PACKED), get_format(element).dtype
    view = context.computed(BitcastCopy, (words,), split, dtype, engine="dma")
    rank = len(shape)
    order = (*range(axis + 1), rank, *range(axis + 1, rank))
    long = (*shape[:axis], shape[axis] * _PACKED, *shape[axis + 1 :])
    return reshaped(context, transposed(context, view, order), long)


def _quantize_mx(op: Op, context: Context) -> Instructions:
    context.require("mx_matmul", "microscaling (QuantizeMX)")
    config = _config(op)
    [source] = context.operands(op)
    rank = len(source.type.shape)
    axis, element = config.get("dim", 0), config.get("dtype", "")
    legal = {
        "dtype": element in _ON_DEVICE,
        "dim": axis % rank in (rank - 1, rank - 2),
        "block_size": config.get("block_size", BLOCK_SIZE) == BLOCK_SIZE,
        "scale_method": config.get("scale_method", "EMAX") == "EMAX",
    }
    for field, is_legal in legal.items():
        if not is_legal:
            raise _invalid(op, f"{field}={config.get(field)!r}", f"use {_LEGAL[field]}")
    if source.type.dtype.name not in ON_DEVICE_INPUTS:
        raise _invalid(op, f"a {source.type.dtype} input", "use bfloat16 or float16")
    blocks = microscaling.quantized(
        context,
        MatrixView(source, axis % rank),
        _FORMATS[element],
        microscaling.device_scale_rule(context.policy),
        engine="vector",
    )
    packed, scales = context.results(op)
    yield from _packed(op, context, blocks, packed)
    if scales.type.dtype == np.uint8:
        yield context.make(BitcastCopy, (blocks.scales,), (scales,), engine="dma")
    else:
        yield into(context, blocks.scales, scales)


def _packed(
    op: Op, context: Context, blocks: QuantizedMatrix, result: Any
) -> Instructions:
    """Pack elements four to a uint32 along the blocked axis."""
    shape, axis = blocks.elements.type.shape, blocks.axis
    if shape[axis] % _PACKED:
        raise _invalid(
            op, f"an axis of {shape[axis]} elements", f"use a multiple of {_PACKED}"
        )
    split = (*shape[:axis], shape[axis] // _PACKED, _PACKED, *shape[axis + 1 :])
    view = reshaped(context, blocks.elements, split)
    order = (*(d for d in range(len(split)) if d != axis + 1), axis + 1)
    view = transposed(context, view, order)
    yield context.make(BitcastCopy, (view,), (result,), engine="dma")


# -- calls in programs of other origin -------------------------------------------------

# These calls say in which memory a value is or how it is sharded; no value changes.
_MEANINGLESS = (
    "LayoutConstraint",
    "Sharding",
    "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
)


def _chlo_function(op: Op, context: Context) -> Iterable[Instruction]:
    """Lower `mhlo.erf` and the like: CHLO's ops as older exports wrote them."""
    return _as_op(op, context, f"chlo.{_name(op).removeprefix('mhlo.')}", {})


def _top_k(op: Op, context: Context) -> Iterable[Instruction]:
    attributes = op.attributes.get("mhlo.attributes", {})
    if not attributes.get("largest", True):
        raise _invalid(op, "largest=False", "use largest=True on the negated operand")
    return _as_op(op, context, "chlo.top_k", {"k": attributes["k"]})


def _as_op(
    op: Op, context: Context, name: str, attributes: dict[str, Any]
) -> Iterable[Instruction]:
    return RULES[name](
        dataclasses.replace(op, name=name, attributes=attributes), context
    )


def _name(op: Op) -> str:
    return op.attributes["call_target_name"]


_ON_DEVICE = tuple(MX_FORMATS[name].element.name for name in ON_DEVICE_FORMATS)
_LEGAL = {
    "dtype": " or ".join(_ON_DEVICE),
    "dim": "the last axis or the axis before it",
    "block_size": str(BLOCK_SIZE),
    "scale_method": "'EMAX'",
}


_RULES: dict[str, Callable[[Op, Context], Iterable[Instruction]]] = {
    "__op$block_scaled_dot": _block_scaled_dot,
    "QuantizeMX": _quantize_mx,
    host_functions.CALL: host_call,
    kernel_call.CALL: nki_kernel,
    "ApproxTopK": approx_top_k,
    # `lax.empty`, whose contents are undefined: zeros.
    "AllocateBuffer": lambda op, c: [constant_result(c, c.results(op)[0], 0)],
    "mhlo.topk": _top_k,
    "ragged_all_to_all": ragged_all_to_all,
    **dict.fromkeys(_MEANINGLESS, pass_through),
    **dict.fromkeys((f"mhlo.{name}" for name in CHLO_FUNCTIONS), _chlo_function),
}


def _config(op: Op) -> dict[str, Any]:
    text = op.attributes.get("backend_config") or ""
    if not isinstance(text, str):
        return dict(text)
    if text in ("", "None"):
        return {}
    try:
        return json_object(text)
    except ValueError as error:
        raise _invalid(op, f"backend_config {text!r}", "use valid JSON") from error


def _invalid(op: Op, what: str, remedy: str) -> InvalidProgramError:
    return op.error(InvalidProgramError, f"{_name(op)} with {what}", remedy)
