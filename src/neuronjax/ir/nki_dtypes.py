"""The data types of NKI: names, storage, formats.

A `DType` is a str, as documented (`DType = str`). `carrier` is the dtype in which the
emulator keeps an element: for floats narrower than FP32 an integer of that width, so no
copy of XLA's can change a bit. `numeric` is the dtype that semantics use. Packed x4
types are opaque words of 4 elements (nki.api.shared, "Supported Data Types").
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import get_format

DType = str

#: The value of elements that are not selected; the documented digits of FP32's minimum.
FP32_MIN = -3.4028235e38
Kind = Literal["int", "uint", "float", "packed", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DTypeInfo:
    """One data type."""

    name: str  # the name in nki.language
    kind: Kind  # the meaning of its bits
    itemsize: int  # bytes of an element; a packed element counts as one
    carrier: np.dtype  # numpy dtype of the arrays that hold it
    #: The NumPy or ml_dtypes dtype of its values; float32 for tfloat32, the carrier for
    #: packed types.
    numeric: np.dtype
    elements: int = 1  # values in one element: 4 for packed types

    @property
    def is_float(self) -> bool:
        """Whether values are read as FP32 and rounded on write."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether values are integers or booleans."""
        return self.kind in ("int", "uint", "bool")


def _kept_in(carrier: str, name: str, kind: Kind, **more: Any) -> DTypeInfo:
    dtype = np.dtype(carrier)
    fields: dict[str, Any] = {"carrier": dtype, "numeric": dtype, **more}
    return DTypeInfo(name=name, kind=kind, itemsize=dtype.itemsize, **fields)


def _integer(name: str) -> DTypeInfo:
    return _kept_in(name, name, "uint" if name[0] == "u" else "int")


def _float(name: str) -> DTypeInfo:
    dtype = get_format(name).dtype
    is_wide = dtype == np.float32
    carrier = "float32" if is_wide else f"uint{8 * dtype.itemsize}"
    return _kept_in(carrier, name, "float", numeric=dtype)


def _packed(name: str, carrier: str) -> DTypeInfo:
    return _kept_in(carrier, name, "packed", elements=4)


_ALL = (
    _kept_in("uint8", "bool", "bool"),
    *map(_integer, ("int8", "int16", "int32", "uint8", "uint16", "uint32")),
    *map(_float, ("float32", "tfloat32", "bfloat16", "float16")),
    *map(_float, ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")),
    _packed("float8_e4m3fn_x4", "uint32"),
    _packed("float8_e5m2_x4", "uint32"),
    _packed("float4_e2m1fn_x4", "uint16"),
)
DTYPES: Mapping[str, DTypeInfo] = MappingProxyType({d.name: d for d in _ALL})
_ALIASES = MappingProxyType({"bool_": "bool", "fp32": "float32", "bf16": "bfloat16"})


def as_dtype(dtype: Any) -> DType:
    """Return the nki name of a dtype given as a name, or as anything NumPy understands;
    refuse a type that NKI lacks."""
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
    elif isinstance(dtype, type):
        name = _known_name(dtype)
    else:
        name = _numpy_name(dtype)
    if name not in DTYPES:
        raise InvalidProgramError(
            f"NKI has no dtype {dtype!r}",
            remedy=f"use one of nl.{', nl.'.join(DTYPES)}",
        )
    return name


def _numpy_name(dtype: Any) -> str:
    try:
        return np.dtype(dtype).name
    except TypeError:
        # torch.bfloat16 prints as "torch.bfloat16".
        return str(dtype).rpartition(".")[2]


_known_name = functools.cache(_numpy_name)


def info(dtype: DType) -> DTypeInfo:
    """Return the description of a dtype by its nki name."""
    return DTYPES[dtype]


def itemsize(dtype: DType) -> int:
    """Return the size of one element in bytes."""
    return DTYPES[dtype].itemsize
