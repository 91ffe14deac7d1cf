"""Casts and scales the operands of a contraction before TensorE reads them.

The policy decides the format by role: an operand that carries a gradient is a
cotangent, one from a checkpoint is a weight, and any other one is forward. FP8
operands are scaled per tensor by a power of two, with explicit instructions. Integers
that are multiplied with floats, or give floats, are read as numbers: TensorE takes no
integers, so they are first written in BF16 if it holds them all, else in FP32.

A weight is what a checkpoint holds, prepared before the program runs (MXFP4 elements,
compressed sparse values). A program does not say which operand that is. The operand
that counts as the weight descends, through casts and movement, from the argument that a
`Rule` names by `param`; else from a program argument inside a pytree
("params/head/kernel"). If both operands do, the right one counts, as in `x @ w`. If
none does, the right operand of a contraction without gradients counts if it is an
argument.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from neuronjax.errors import PrecisionIgnoredWarning, UnsupportedError, warn_once
from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import (
    ReadAmax,
    RecordAmax,
    ScaleFromAmax,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.ir.program import Op, Value
from neuronjax.lowering import sparsity
from neuronjax.lowering.context import Context
from neuronjax.lowering.moves import converted, filled
from neuronjax.lowering.psum import MatmulOperand, check_operand
from neuronjax.numerics.float_format import FP8, get_format
from neuronjax.numerics.microscaling import (
    MX_FORMATS,
    ON_DEVICE_FORMATS,
    ON_DEVICE_INPUTS,
)


def prepare_operands(op: Op, context: Context) -> tuple[MatmulOperand, MatmulOperand]:
    """Cast and scale both operands of a contraction as the policy says."""
    weight = _weight_index(op, context)
    lhs, rhs = (
        _prepare(op, context, value, is_weight=i == weight)
        for i, value in enumerate(op.operands)
    )
    return compatible(op, context, lhs, rhs)


def _weight_index(op: Op, context: Context) -> int | None:
    facts = [context.fact(value) for value in op.operands]
    is_backward = any(fact.cotangent for fact in facts)
    facts = [f._replace(parameter="") if f.cotangent else f for f in facts]
    pattern = context.param_pattern
    if pattern is not None:
        paths = [(i, f.parameter) for i, f in enumerate(facts) if f.parameter]
        named = [i for i, path in paths if re.search(pattern, path)]
        if named:
            return named[-1]
    inside = [i for i, fact in enumerate(facts) if "/" in fact.parameter]
    if inside:
        return inside[-1]
    return 1 if facts[1].parameter and not is_backward else None


def _is_to_be_kept(op: Op, context: Context) -> bool:
    """Return whether the program asks for uncast operands, and the policy obeys."""
    asked = {"HIGH", "HIGHEST"}.intersection(op.attributes.get("precision_config", ()))
    obeyed = context.policy.dot_precision
    if asked and obeyed == "auto":
        warn_once(
            op.location.source or "",
            f"{op.name} asks for precision={max(asked)}, and the policy casts its "
            f"operands to {context.policy.auto_cast_type} all the same. To choose, set "
            "dot_precision to 'obeyed' or 'ignored', in the policy or a Rule",
            PrecisionIgnoredWarning,
        )
    return bool(asked) and obeyed == "obeyed"


def compatible(
    op: Op, context: Context, lhs: MatmulOperand, rhs: MatmulOperand
) -> tuple[MatmulOperand, MatmulOperand]:
    """Return operands in formats that TensorE multiplies, with the policy's sparsity.
    Refuse the two E4M3 formats in one contraction."""
    if {lhs.format, rhs.format} >= {"float8_e4m3", "float8_e4m3fn"}:
        raise op.error(
            UnsupportedError,
            "one operand is float8_e4m3, the other is float8_e4m3fn",
            "give both operands the same E4M3 variant",
        )
    lhs, rhs = _same_width(context, lhs, rhs), _same_width(context, rhs, lhs)
    if context.policy.sparsity is None:
        return lhs, rhs
    return sparsity.marked(op, context, lhs, rhs, _weight_index(op, context))


def as_float(context: Context, value: Any) -> View:
    """Return an operand as floats; integers in the narrowest format that holds them."""
    view = context.view(value)
    dtype = view.type.dtype
    if dtype.kind not in "iub":
        return view
    wanted = get_format("bfloat16" if dtype.itemsize == 1 else "float32")
    return converted(context, view, wanted.dtype)


def _prepare(
    op: Op, context: Context, value: Value, *, is_weight: bool
) -> MatmulOperand:
    policy, view = context.policy, as_float(context, value)
    dtype = view.type.dtype.name
    chip_fp8 = context.shared.target.chip.forward_fp8
    role = "weight" if is_weight else "forward"
    if context.fact(value).cotangent:
        role = "cotangent"
    wanted = policy.operand_dtype(role, chip_fp8=chip_fp8)
    is_mx = wanted in MX_FORMATS
    is_uncast = policy.auto_cast == "none" or (dtype != "float32" and not is_mx)
    if is_uncast or _is_to_be_kept(op, context):
        return MatmulOperand(view, dtype)
    if is_mx:
        context.require("mx_matmul", f"microscaling ({wanted})")
        if wanted not in ON_DEVICE_FORMATS or dtype in ON_DEVICE_INPUTS:
            return MatmulOperand(view, wanted)
    cast = (wanted, policy.scaling, policy.rounding, policy.overflow)
    key = (view.buffer.number, *cast)
    if key not in context.memo:
        context.memo[key] = _cast(context, view, wanted)
    return context.memo[key]


def _cast(context: Context, view: View, wanted: str) -> MatmulOperand:
    inverse = None
    if wanted in FP8 and context.policy.scaling != "none":
        check_operand(context, wanted)
        view, inverse = scale(context, view, wanted)
    return MatmulOperand(rounded(context, view, wanted), wanted, inverse)


def rounded(context: Context, view: View, wanted: str) -> View:
    """Return a float operand in another format, rounded as the policy says."""
    is_tf32, held = wanted == "tfloat32", wanted
    if wanted in MX_FORMATS:
        held = ON_DEVICE_INPUTS[0]
    else:
        check_operand(context, wanted)
    storage = get_format("float32" if is_tf32 else held).dtype
    if view.type.dtype == storage and not is_tf32:
        return view
    is_exact = storage.itemsize > view.type.dtype.itemsize
    return context.computed(
        TensorCopy,
        (view,),
        view.type.shape,
        storage,
        engine="vector",
        write_format=wanted if is_tf32 else None,
        rounding="rne" if is_exact else context.policy.rounding,
        overflow=context.policy.overflow,
    )


def _same_width(
    context: Context, operand: MatmulOperand, other: MatmulOperand
) -> MatmulOperand:
    """Widen an operand if the other is TF32 or FP32, which pair with nothing else."""
    wide = ("float32", "tfloat32")
    if operand.format in wide or other.format not in wide:
        return operand
    view = converted(context, operand.view, np.float32)
    return operand._replace(view=view, format=other.format)


# -- scaling ---------------------------------------------------------------------------

# "current" scales by the amax of the tensor itself. "delayed" records that amax for
# later steps and scales by the largest of previous steps, so the cast does not wait for
# the amax.


def scale(context: Context, view: View, format: str) -> tuple[View, View]:
    """Return a float32 tensor scaled into a format's range, and the inverse scale."""
    amax = _amax(context, view)
    if context.policy.scaling == "delayed":
        amax = _previous_amax(context, amax)
    factor, inverse = (context.temporary((), np.float32) for _ in range(2))
    results = (factor, inverse)
    context.emit(
        context.make(ScaleFromAmax, (amax,), results, engine="vector", format=format)
    )
    shape, operands = view.type.shape, (view, View(factor))
    fields: dict[str, Any] = dict(engine="vector", op="multiply")
    scaled = context.computed(TensorScalar, operands, shape, np.float32, **fields)
    return scaled, View(inverse)


def _amax(context: Context, view: View) -> View:
    shape = view.type.shape
    fields: dict[str, Any] = dict(engine="vector", op="abs")
    magnitude = context.computed(TensorTensor, (view,), shape, np.float32, **fields)
    amax = context.temporary((), np.float32)
    operands = (magnitude, filled(context, (), np.float32, 0))
    fields = dict(engine="vector", op="maximum", axes=tuple(range(len(shape))))
    context.emit(context.make(TensorReduce, operands, (amax,), **fields))
    return View(amax)


def _previous_amax(context: Context, amax: View) -> View:
    slot = context.shared.amax_slots
    context.shared.amax_slots += 1
    context.emit(context.make(RecordAmax, (amax,), (), engine="vector", slot=slot))
    return context.computed(ReadAmax, (), (), np.float32, engine="vector", slot=slot)
