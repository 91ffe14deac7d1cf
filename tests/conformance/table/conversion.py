"""convert between all pairs of formats, bitcast_convert, reduce_precision.

FP8 formats are those that a chip has: trn2 the IEEE ones, trn3 E4M3FN beside.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Input
from tests.conformance.table.elementwise import FLOATS, INTEGERS, SIZE

DTYPES = (*FLOATS, *INTEGERS, "bool")
FP8 = {
    "trn2": ("float8_e4m3", "float8_e5m2", "float8_e3m4"),
    "trn3": ("float8_e4m3fn", "float8_e5m2"),
}
WITH_FP8 = (*FLOATS, "int8", "int32", "uint8", "bool")
PRECISIONS = ((8, 23), (8, 7), (5, 10), (5, 2), (4, 3), (3, 4), (8, 0), (2, 3))
#: (from, its shape, to)
BITCASTS = (
    ("float32", (8,), "int32"),
    ("float32", (8,), "uint32"),
    ("int32", (8,), "float32"),
    ("bfloat16", (8,), "uint16"),
    ("uint16", (8,), "bfloat16"),
    ("float16", (8,), "int16"),
    ("int16", (8,), "float16"),
    ("int8", (8,), "uint8"),
    ("uint32", (3, 4), "int32"),
    ("int32", (3, 4), "int8"),
    ("int32", (3, 4), "uint16"),
    ("float32", (5,), "uint8"),
    ("float32", (5,), "bfloat16"),
    ("uint8", (3, 4), "uint32"),
    ("int16", (3, 2), "int32"),
    ("uint8", (3, 4), "float32"),
    ("float16", (3, 2), "uint32"),
)


def converted(target: str, source: str, dtype: str) -> Case:
    function = functools.partial(lax.convert_element_type, new_dtype=jnp.dtype(dtype))
    inputs = (Input((SIZE,), source, "special"),)
    name = f"convert-{source}-{dtype}-{target}"
    return Case(name=name, function=function, inputs=inputs, target=target)


def conversions() -> Iterator[Case]:
    yield from (converted("trn2", a, b) for a in DTYPES for b in DTYPES if a != b)
    for target, formats in FP8.items():
        for narrow in formats:
            yield from (converted(target, narrow, wide) for wide in WITH_FP8)
            yield from (converted(target, wide, narrow) for wide in WITH_FP8)
        pairs = ((a, b) for a in formats for b in formats if a != b)
        yield from (converted(target, a, b) for a, b in pairs)


def bitcasts() -> Iterator[Case]:
    for source, shape, dtype in BITCASTS:
        yield Case(
            name=f"bitcast-{source}-{dtype}",
            function=functools.partial(
                lax.bitcast_convert_type, new_dtype=jnp.dtype(dtype)
            ),
            inputs=(Input(shape, source, "normal"),),
        )
    for narrow in FP8["trn2"]:
        for source, dtype in ((narrow, "uint8"), ("uint8", narrow)):
            yield Case(
                name=f"bitcast-{source}-{dtype}",
                function=functools.partial(
                    lax.bitcast_convert_type, new_dtype=jnp.dtype(dtype)
                ),
                inputs=(Input((SIZE,), source, "normal"),),
            )


def precisions() -> Iterator[Case]:
    for dtype in FLOATS:
        for exponent, mantissa in PRECISIONS:
            yield Case(
                name=f"reduce_precision-e{exponent}m{mantissa}-{dtype}",
                function=functools.partial(
                    lax.reduce_precision,
                    exponent_bits=exponent,
                    mantissa_bits=mantissa,
                ),
                # Without a mantissa there is no NaN: the interpreter makes infinities
                # of them, the host leaves them.
                inputs=(Input((SIZE,), dtype, "special" if mantissa else "spread"),),
            )


def by_chip(case: Case) -> str:
    return case.target


CASES = tuple(sorted([*conversions(), *bitcasts(), *precisions()], key=by_chip))
