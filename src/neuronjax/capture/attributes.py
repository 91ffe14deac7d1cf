"""Decodes MLIR attributes to plain Python values.

The MLIR class of an attribute decides how it is decoded; attributes that StableHLO
defines (dimension numbers, comparison directions, ...) are decoded by name and op. An
attribute without a decoder is an error, because dropping an attribute could change
numbers. A part of a mesh axis of the sdy dialect keeps the name that sdy prints,
"x:(1)2", and is refused where it is used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from neuronjax.errors import UnimplementedError
from neuronjax.ir.program import AxisGroups, Mesh, Sharding
from neuronjax.numerics.float_format import FORMATS

# Element types, by the name MLIR prints.
DTYPES: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"si{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "i4": np.dtype(ml_dtypes.int4),
    "ui4": np.dtype(ml_dtypes.uint4),
    "f64": np.dtype(np.float64),
    # No NeuronCore has these dtypes; they are refused where they enter the program.
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    **{f.mlir_name: f.dtype for f in FORMATS.values() if f.has_dtype},
    "index": np.dtype(np.int64),  # used by layouts
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}


@functools.cache
def element_dtype(name: str) -> np.dtype:
    """Return the dtype of an MLIR element type. Refuse a type that neither numpy nor
    ml_dtypes has."""
    dtype = DTYPES.get(name)
    if dtype is None:
        raise UnimplementedError(
            f"element type {name} is not known",
            remedy=f"known element types: {', '.join(DTYPES)}",
        )
    return dtype


def _elements(attribute: Any) -> np.ndarray:
    """Return a constant's value, with the exact element type and shape."""
    dtype = element_dtype(str(attribute.type.element_type))
    shape = tuple(attribute.type.shape)
    if attribute.is_splat:
        # This allocates nothing: a few bytes of a file can declare huge arrays.
        return np.broadcast_to(_scalar(attribute.get_splat_value(), dtype), shape)
    if dtype == np.bool_:
        return np.array(attribute, np.bool_).reshape(shape)
    try:
        return np.array(attribute).view(dtype).reshape(shape)
    except (TypeError, ValueError, BufferError):
        # jaxlib has no buffer protocol for bfloat16 and elements below 16 bits.
        return _printed_elements(str(attribute), dtype).reshape(shape)


_HEX = re.compile(r"^0x([0-9A-Fa-f]+)")
_BYTES = re.compile(r'^dense<"0x([0-9A-Fa-f]*)">')


def _printed_elements(text: str, dtype: np.dtype) -> np.ndarray:
    """Return the elements of a printed constant. MLIR prints many elements as bytes,
    and few elements as exact decimal numbers, with NaN and Inf in hexadecimal."""
    raw = _BYTES.match(text)
    if raw:
        return np.frombuffer(bytes.fromhex(raw.group(1)), dtype)
    numbers = re.findall(r"[-+.\w]+", text[len("dense<") : text.index(">")])
    return np.array([_number(n, dtype) for n in numbers], dtype)


_COMPLEX = re.compile(r"(dense<.*>) : tensor<(?:(.*)x)?complex<(f32|f64)>>", re.DOTALL)


def complex_elements(text: str) -> np.ndarray:
    """Return the value of a printed complex constant, with the same bits."""
    match = _COMPLEX.search(text)
    if match is None:
        raise UnimplementedError(f"constant {text[:60]} cannot be decoded")
    elements, sizes, part = match.groups()
    shape = tuple(map(int, sizes.split("x"))) if sizes else ()
    parts = _printed_elements(elements, element_dtype(part))
    numbers = parts.view(element_dtype(f"complex<{part}>"))
    one = numbers.size == 1
    return np.broadcast_to(numbers[0], shape) if one else numbers.reshape(shape)


def _number(text: str, dtype: np.dtype) -> Any:
    code = _HEX.match(text)
    return _coded(code, dtype) if code else np.array(float(text)).astype(dtype)[()]


def _coded(code: re.Match[str], dtype: np.dtype) -> Any:
    return np.array(int(code.group(1), 16), f"uint{dtype.itemsize * 8}").view(dtype)[()]


def _scalar(attribute: Any, dtype: np.dtype) -> Any:
    """Return a scalar attribute with exact bits (NaN payloads are printed in hex)."""
    match = _HEX.match(str(attribute))
    if match and dtype.kind not in "iub":
        return _coded(match, dtype)
    value = attribute.value
    if dtype.kind == "u":
        value %= 1 << (dtype.itemsize * 8)
    return np.array(value).astype(dtype)[()]


# Decoders by the class of the attribute.
_BY_CLASS: dict[type, Callable[[Any], Any]] = {
    ir.DenseI64ArrayAttr: tuple,
    ir.DenseI32ArrayAttr: tuple,
    ir.DenseBoolArrayAttr: tuple,
    ir.DenseF64ArrayAttr: tuple,
    ir.IntegerAttr: int,
    ir.BoolAttr: bool,
    ir.FloatAttr: float,
    ir.StringAttr: lambda a: a.value,
    ir.FlatSymbolRefAttr: lambda a: a.value,
    ir.TypeAttr: lambda a: str(a.value),
    ir.UnitAttr: lambda a: True,
    ir.ArrayAttr: lambda a: tuple([decode_attribute("", item, "") for item in a]),
    ir.DictAttr: lambda a: {
        (name := a[n].name): decode_attribute("", a[name], name) for n in range(len(a))
    },
    ir.DenseFPElementsAttr: _elements,
    ir.DenseIntElementsAttr: _elements,
}


def _fields(cls: type) -> Callable[[Any], dict[str, Any]]:
    """Return a decoder of a StableHLO struct into a dict of its fields."""
    names = [name for name, value in vars(cls).items() if isinstance(value, property)]

    def decode(attribute: Any) -> dict[str, Any]:
        struct = cls(attribute)
        values = {name: getattr(struct, name) for name in names}
        return {
            k: v if isinstance(v, int | str) else tuple(v) for k, v in values.items()
        }

    return decode


# -- meshes and shardings --------------------------------------------------------------


def meshes(operations: Iterable[Any]) -> dict[str, Mesh]:
    """Return the meshes among the operations of a module, by name."""
    return {
        op.attributes["sym_name"].value: _mesh_of(op.attributes["mesh"])
        for op in operations
        if op.operation.name == "sdy.mesh"
    }


def shardings_of(function: Any, attribute: str, count: int) -> tuple:
    """Return the sharding of each argument ("arg_attrs") or result ("res_attrs")."""
    if attribute not in function.attributes:
        return (None,) * count
    name, given = "sdy.sharding", function.attributes[attribute]
    return tuple(_sharding(d[name]) if name in d else None for d in given)


def _of_values(attribute: Any) -> tuple[Sharding, ...]:
    """Decode `[<@mesh, [{"x"}, {}]>, ...]`, one sharding for each value."""
    return tuple(map(_sharding, sdy.TensorShardingPerValueAttr(attribute).shardings))


def _sharding(attribute: Any) -> Sharding:
    """Decode `#sdy.sharding<@mesh, [{"x"}, {}]>`; ignore which dimensions are open."""
    sharding = sdy.TensorShardingAttr(attribute)
    dimensions = map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    return Sharding(
        mesh=_mesh(sharding.mesh_or_ref),
        dimensions=tuple(_axes(d.axes) for d in dimensions),
        replicated=_axes(sharding.replicated_axes),
        unreduced=_axes(sharding.unreduced_axes),
    )


def _groups(attribute: Any) -> Any:
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute):
        return _elements(attribute)
    groups = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
    return AxisGroups(_mesh(groups.mesh, stablehlo), _axes(groups.axes, stablehlo))


def _mesh(attribute: Any, dialect: Any = sdy) -> str | Mesh:
    mesh = attribute.maybe_downcast()
    if isinstance(mesh, ir.FlatSymbolRefAttr):
        return mesh.value
    return _mesh_of(attribute, dialect)


def _mesh_of(attribute: Any, dialect: Any = sdy) -> Mesh:
    mesh = dialect.MeshAttr(attribute)
    axes = map(dialect.MeshAxisAttr, mesh.axes)
    ids: Any = mesh.device_ids
    if isinstance(ids, ir.Attribute):
        ids = ir.DenseIntElementsAttr(ids)
    return Mesh(
        tuple((axis.name, axis.size) for axis in axes),
        tuple(map(int, () if ids is None else ids)),
    )


def _axes(references: Any, dialect: Any = sdy) -> tuple[str, ...]:
    return tuple(_axis(dialect.AxisRefAttr(a), dialect) for a in references)


def _axis(reference: Any, dialect: Any) -> str:
    part = reference.sub_axis_info
    if part is None:
        return reference.name
    part = dialect.SubAxisInfoAttr(part)
    return f"{reference.name}:({part.pre_size}){part.size}"


# -- attributes of StableHLO -----------------------------------------------------------


def _enum(attribute: Any) -> str:
    """Return the case of an enum: `#stablehlo<comparison_direction EQ>` -> "EQ"."""
    return str(attribute).rstrip(">").rsplit(" ", 1)[-1]


_ENUMS = (
    "comparison_direction compare_type rng_algorithm rng_distribution fft_type "
    "transpose_a"
).split()
_TEXTS = "algorithm result_accuracy channel_id output_operand_aliases sharding".split()
# Decoders by (op, attribute name), then by attribute name.
_BY_NAME: dict[tuple[str, str] | str, Callable[[Any], Any]] = {
    "dot_dimension_numbers": _fields(stablehlo.DotDimensionNumbers),
    ("stablehlo.gather", "dimension_numbers"): _fields(
        stablehlo.GatherDimensionNumbers
    ),
    ("stablehlo.convolution", "dimension_numbers"): _fields(
        stablehlo.ConvDimensionNumbers
    ),
    "scatter_dimension_numbers": _fields(stablehlo.ScatterDimensionNumbers),
    **dict.fromkeys(_ENUMS, _enum),
    **dict.fromkeys(_TEXTS, str),
    "replica_groups": _groups,
    "channel_handle": lambda a: stablehlo.ChannelHandle(a).handle,
    "in_shardings": _of_values,
    "out_shardings": _of_values,
    "manual_axes": lambda a: tuple(sdy.ManualAxesAttr(a)),  # type: ignore[arg-type]
}


def decode_attribute(op: str, attribute: Any, name: str) -> Any:
    """Decode the attribute `name` of the op `op`; refuse one without a decoder."""
    decoder = _BY_NAME.get((op, name)) or _BY_NAME.get(name)
    decoder = decoder or _BY_CLASS.get(type(attribute))
    if decoder is not None:
        return decoder(attribute)
    text = str(attribute)
    if text.startswith(("#stablehlo<", "#chlo<")):
        return _enum(attribute)
    if "." in name:  # a discardable attribute of some dialect: mhlo.*, sdy.*, jax.*
        return text
    raise UnimplementedError(f"attribute {name} = {text[:80]} cannot be decoded", op=op)
