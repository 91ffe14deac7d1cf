"""The dtypes that random programs hold, by target and 64-bit mode."""

from __future__ import annotations

from collections.abc import Mapping

#: Everywhere; the first of each are drawn most.
FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "uint32", "int8", "uint8", "int16", "uint16")
#: With 64-bit types on.
WIDE_INTEGERS = ("int64", "uint64")
#: Chip -> the floats of eight and four bits that its engines read and write.
SMALL_FLOATS: Mapping[str, tuple[str, ...]] = {
    "trn2": ("float8_e5m2", "float8_e4m3", "float8_e3m4"),
    "trn3": ("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn"),
}
TARGETS = tuple(SMALL_FLOATS)


def allowed(target: str, x64: bool) -> frozenset[str]:
    """What values of a program may be; results of other dtypes are not kept."""
    wide = WIDE_INTEGERS if x64 else ()
    return frozenset((*FLOATS, *SMALL_FLOATS[target], *INTEGERS, *wide, "bool"))
