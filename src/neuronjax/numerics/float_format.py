"""Number formats as data: every float and integer format of the NeuronCore engines.

A `FloatFormat` or `IntFormat` has the fields that define a format; limits, special
codes and the storage width are derived. Codes are unsigned integers of `width` bits,
right aligned, with the sign as the top bit; exponents are unbiased powers of two.
Arrays are handled in `rounding`. The formats are those of the NKI data type list, as
`ml_dtypes` names them; their limits follow IEEE 754-2019, OCP OFP8 1.0 and OCP
Microscaling (MX) 1.0.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection, Iterator
from typing import Any, Literal

import ml_dtypes
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.shown import Shown

NanEncoding = Literal["ieee", "all_ones", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FloatFormat(Shown):
    """One binary floating-point format.

    Attributes:
        name: the `ml_dtypes` name; "tfloat32" for the one format without a dtype.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the mantissa field, without the implicit bit.
        bias: the number that is subtracted from the exponent field.
        has_inf: whether there is an Inf; if not, an overflow gives NaN if that exists,
            else the largest finite value.
        nan: "ieee": an all-ones exponent field with a non-zero mantissa; "all_ones":
            the code whose exponent and mantissa bits are all ones; "none": no NaN.
        signed: whether there is a sign bit.
        has_zero: whether exponent field 0 holds zero and the subnormals.
        dtype: the dtype that stores the format. Its mantissa may be wider (tfloat32 is
            kept in float32); the low bits are then zero.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_inf: bool
    nan: NanEncoding
    dtype: np.dtype[Any]
    signed: bool = True
    has_zero: bool = True

    @property
    def mlir_name(self) -> str:
        """Return MLIR's name: "bf16", "f8E4M3FN"; "tf32" for a dot algorithm."""
        prefix, _, bits = self.name.partition("float")
        return f"{prefix}f{bits.replace('_', '').upper()}"

    @property
    def flag_name(self) -> str:
        """Return the name in flags and policies: "bf16", "fp8_e4m3"."""
        return self.name.replace("float", "fp" if self.name[0] == "f" else "f")

    @property
    def has_dtype(self) -> bool:
        """Return whether `ml_dtypes` or NumPy has a dtype of this name."""
        return self.name == self.dtype.name

    @property
    def width(self) -> int:
        """Return the number of bits of a code."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def code_count(self) -> int:
        """Return the number of codes, NaNs included."""
        return 1 << self.width

    @property
    def storage_bits(self) -> int:
        """Return the bits of one element in a NumPy array of `dtype` (8 for float4)."""
        return 8 * self.dtype.itemsize

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Return the unsigned integer dtype that holds one code."""
        return np.dtype(f"uint{self.storage_bits}")

    @property
    def padding_bits(self) -> int:
        """Return how many low bits of the storage are unused (13 for tfloat32)."""
        return ml_dtypes.finfo(self.dtype).nmant - self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Return the exponent of the smallest normal value."""
        return int(self.has_zero) - self.bias

    @property
    def max_exponent(self) -> int:
        """Return the exponent of the largest finite value (OCP MX calls it emax)."""
        return math.frexp(self.max_finite)[1] - 1

    @property
    def max_code(self) -> int:
        """Return the code of the largest finite value."""
        codes = 1 << (self.exponent_bits + self.mantissa_bits)
        reserved = {"ieee": 1 << self.mantissa_bits, "all_ones": 1, "none": 0}
        return codes - reserved[self.nan] - 1

    @property
    def overflow_code(self) -> int:
        """Return the code of +Inf, or of its substitute (see `has_inf`)."""
        return self.max_code if self.nan == "none" else self.max_code + 1

    @property
    def nan_code(self) -> int:
        """Return the code onto which a NaN's sign is xor-ed: in IEEE formats the quiet
        NaN without payload, in a format without NaN the code of -0. In such a format, a
        NaN becomes a zero of the opposite sign, as in ml_dtypes (but not in XLA)."""
        if self.nan == "none":
            return 1 << (self.width - 1)
        quiet_bit = 1 << (self.mantissa_bits - 1) if self.nan == "ieee" else 0
        return self.overflow_code | quiet_bit

    @property
    def max_finite(self) -> float:
        """Return the largest finite value."""
        return self.value(self.max_code)

    @property
    def min_normal(self) -> float:
        """Return the smallest positive normal value."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """Return the smallest positive value; e8m0 has no subnormals."""
        return self.value(int(self.has_zero))

    @property
    def eps(self) -> float:
        """Return the step from 1 to the next value; 1.0 for e8m0."""
        return math.ldexp(1.0, -self.mantissa_bits)

    def codes(self) -> Iterator[tuple[int, float]]:
        """Return every code with its value, in the order of the codes; NaNs included.

        Raises:
            InvalidProgramError: the format has more than 16 bits.
        """
        if self.width > 16:
            raise InvalidProgramError(
                f"{self.name} has {self.code_count} codes, too many to enumerate",
                remedy="enumerate a format of 16 bits or fewer, or call value(code)",
            )
        return ((code, self.value(code)) for code in range(self.code_count))

    def value(self, code: int) -> float:
        """Return the exact value of a `width`-bit code, in plain Python."""
        negative = self.signed and code >> (self.width - 1)
        magnitude = code & ((1 << (self.exponent_bits + self.mantissa_bits)) - 1)
        return -self._magnitude(magnitude) if negative else self._magnitude(magnitude)

    def __repr__(self) -> str:
        bits = f"{int(self.signed)}+{self.exponent_bits}+{self.mantissa_bits} bits"
        limits = f"{self.min_subnormal:.4g} to {self.max_finite:.6g}"
        return f"<neuronjax.FloatFormat {self.name}: {bits}, {limits}>"

    def _magnitude(self, code: int) -> float:
        if code > self.max_code:
            is_inf = self.has_inf and code == self.overflow_code
            return math.inf if is_inf else math.nan
        field, mantissa = divmod(code, 1 << self.mantissa_bits)
        is_normal = field > 0 or not self.has_zero
        significand = mantissa + (is_normal << self.mantissa_bits)
        exponent = max(field - self.bias, self.min_exponent)
        return math.ldexp(significand, exponent - self.mantissa_bits)


def _format(
    name: str,
    exponent_bits: int,
    mantissa_bits: int,
    dtype: Any,
    nan: NanEncoding = "ieee",
    **more: bool,
) -> FloatFormat:
    """Return a format of bias 2^(exponent_bits - 1) - 1; IEEE formats have Inf."""
    return FloatFormat(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=(1 << (exponent_bits - 1)) - 1,
        has_inf=nan == "ieee",
        nan=nan,
        dtype=np.dtype(dtype),
        **more,
    )


FLOAT32 = _format("float32", 8, 23, np.float32)
TFLOAT32 = _format("tfloat32", 8, 10, np.float32)
BFLOAT16 = _format("bfloat16", 8, 7, ml_dtypes.bfloat16)
FLOAT16 = _format("float16", 5, 10, np.float16)
FLOAT8_E5M2 = _format("float8_e5m2", 5, 2, ml_dtypes.float8_e5m2)
# The chips' own E4M3 (FP8_EXP4), Trn1 to Trn3: largest value 240.
FLOAT8_E4M3 = _format("float8_e4m3", 4, 3, ml_dtypes.float8_e4m3)
# OCP OFP8 E4M3: largest value 448. Native from Trn3 on.
FLOAT8_E4M3FN = _format("float8_e4m3fn", 4, 3, ml_dtypes.float8_e4m3fn, "all_ones")
FLOAT8_E3M4 = _format("float8_e3m4", 3, 4, ml_dtypes.float8_e3m4)
FLOAT4_E2M1FN = _format("float4_e2m1fn", 2, 1, ml_dtypes.float4_e2m1fn, "none")
# The scale of an MX block: only an exponent.
FLOAT8_E8M0FNU = _format(
    *("float8_e8m0fnu", 8, 0, ml_dtypes.float8_e8m0fnu, "all_ones"),
    signed=False,
    has_zero=False,
)

FORMATS: dict[str, FloatFormat] = {
    x.name: x for x in tuple(globals().values()) if isinstance(x, FloatFormat)
}
"""The formats above, in the same order."""

#: The 8-bit floats that NKI names. A cell of TensorE's array can compute two products
#: of such floats at a time, but only one product of float8_e3m4.
FP8 = (FLOAT8_E5M2.name, FLOAT8_E4M3.name, FLOAT8_E4M3FN.name)


@dataclasses.dataclass(frozen=True)
class IntFormat(Shown):
    """An integer format, in two's complement if signed.

    Attributes:
        width: bits of a code.
        signed: whether negative numbers exist.
    """

    width: int
    signed: bool

    @property
    def name(self) -> str:
        """Return the NumPy name: "int8"."""
        return f"{'int' if self.signed else 'uint'}{self.width}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype that stores the format."""
        return np.dtype(self.name)

    @property
    def code_count(self) -> int:
        """Return the number of codes."""
        return 1 << self.width

    @property
    def min(self) -> int:
        """Return the smallest value."""
        return -(self.code_count >> 1) if self.signed else 0

    @property
    def max(self) -> int:
        """Return the largest value."""
        return self.min + self.code_count - 1

    def value(self, code: int) -> int:
        """Return the value of a `width`-bit code."""
        return code - self.code_count if code > self.max else code


# The NKI data type list. 64-bit integers exist at the compiler's level only.
INTEGERS: dict[str, IntFormat] = {
    fmt.name: fmt
    for fmt in (IntFormat(w, signed) for signed in (True, False) for w in (8, 16, 32))
}


def get_format(name_or_dtype: Any) -> FloatFormat:
    """Return the format of a name ("bfloat16") or of anything that `np.dtype` accepts.

    Raises:
        InvalidProgramError: no such format; the message lists the nearest names.
    """
    name = _name_of(name_or_dtype)
    if name not in FORMATS:
        raise unknown(name, "a float format of the NeuronCore", FORMATS)
    return FORMATS[name]


def get_number_format(target: Any) -> FloatFormat | IntFormat:
    """Return the float or integer format of a name or dtype; return a format as it is.

    Raises:
        InvalidProgramError: no such format; the message lists the nearest names.
    """
    if isinstance(target, FloatFormat | IntFormat):
        return target
    name = _name_of(target)
    formats = FORMATS | INTEGERS
    if name not in formats:
        raise unknown(name, "a number format of the NeuronCore", formats)
    return formats[name]


def unknown(name: str, kind: str, known: Collection[str]) -> InvalidProgramError:
    """Return the error that `name` is not `kind`, with the nearest `known` names."""
    nearest = difflib.get_close_matches(name, known) or known
    remedy = f"use one of: {', '.join(nearest)}"
    return InvalidProgramError(f"{name!r} is not {kind}", remedy=remedy)


def _name_of(name_or_dtype: Any) -> str:
    if isinstance(name_or_dtype, str):
        return name_or_dtype
    try:
        return np.dtype(name_or_dtype).name
    except TypeError:
        return str(name_or_dtype)
