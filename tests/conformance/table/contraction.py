"""dot_general and convolution: layouts, batches, dtypes, every window attribute."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Check, Exact, Input, Sum

#: name -> (lhs shape, rhs shape, dimension numbers of lax.dot_general)
DOTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "mk_kn": ((5, 7), (7, 6), (((1,), (0,)), ((), ()))),
    "km_kn": ((7, 5), (7, 6), (((0,), (0,)), ((), ()))),
    "mk_nk": ((5, 7), (6, 7), (((1,), (1,)), ((), ()))),
    "km_nk": ((7, 5), (6, 7), (((0,), (1,)), ((), ()))),
    "vector": ((7,), (7,), (((0,), (0,)), ((), ()))),
    "matrix_vector": ((5, 7), (7,), (((1,), (0,)), ((), ()))),
    "outer": ((5,), (6,), (((), ()), ((), ()))),
    "batch": ((3, 5, 7), (3, 7, 6), (((2,), (1,)), ((0,), (0,)))),
    "batch_last": ((5, 7, 3), (7, 6, 3), (((1,), (0,)), ((2,), (2,)))),
    "batch_middle": ((5, 3, 7), (7, 6, 3), (((2,), (0,)), ((1,), (2,)))),
    "two_batches": ((2, 3, 5, 4), (3, 2, 4, 6), (((3,), (2,)), ((0, 1), (1, 0)))),
    "two_contracted": ((5, 4, 3), (3, 4, 6), (((1, 2), (1, 0)), ((), ()))),
    "no_free": ((3, 7), (3, 7), (((1,), (1,)), ((0,), (0,)))),
    "two_free": ((2, 3, 4), (4, 5, 2), (((2,), (0,)), ((), ()))),
    "two_tiles": ((3, 200), (200, 4), (((1,), (0,)), ((), ()))),
    "k_is_one": ((5, 1), (1, 6), (((1,), (0,)), ((), ()))),
    "k_is_zero": ((5, 0), (0, 6), (((1,), (0,)), ((), ()))),
    "empty": ((0, 5), (5, 6), (((1,), (0,)), ((), ()))),
}
#: (lhs, rhs, preferred element type)
DOT_DTYPES = (
    ("float32", "float32", None),
    ("bfloat16", "bfloat16", None),
    ("float16", "float16", None),
    ("int32", "int32", None),
)
#: Of the first layout alone.
MORE_DOT_DTYPES = (
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
    ("int8", "int8", None),
    ("int8", "int8", "int32"),
    ("uint8", "uint8", "uint32"),
    ("uint8", "uint8", None),
    ("int16", "int16", "int32"),
    ("uint16", "uint16", None),
    ("uint32", "uint32", None),
    ("int8", "int8", "float32"),
    ("bool", "bool", None),
)
FP8_DOTS = {"trn2": ("float8_e4m3", "float8_e5m2"), "trn3": ("float8_e4m3fn",)}

#: name -> (lhs shape, rhs shape, keywords of lax.conv_general_dilated); the default
#: layout is batch and features first.
CONVOLUTIONS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "1d_strided": ((2, 3, 9), (4, 3, 3), dict(window_strides=(2,))),
    "1d_same": ((2, 3, 8), (4, 3, 4), dict(padding="SAME")),
    "1d_dilated": ((1, 2, 11), (3, 2, 3), dict(rhs_dilation=(3,))),
    "1d_transposed": (
        (1, 2, 5),
        (3, 2, 3),
        dict(lhs_dilation=(2,), padding=[(2, 1)]),
    ),
    "1d_causal": ((1, 2, 7), (2, 2, 3), dict(padding=[(2, 0)])),
    "2d": ((2, 3, 6, 5), (4, 3, 3, 2), {}),
    "2d_same": ((1, 3, 6, 5), (4, 3, 3, 3), dict(padding="SAME")),
    "2d_same_lower": ((1, 2, 5, 5), (3, 2, 2, 4), dict(padding="SAME_LOWER")),
    "2d_strided": ((1, 3, 7, 6), (2, 3, 3, 3), dict(window_strides=(2, 3))),
    "2d_pointwise": ((2, 5, 3, 4), (3, 5, 1, 1), {}),
    "2d_uneven_padding": (
        (1, 2, 4, 5),
        (3, 2, 3, 3),
        dict(padding=[(2, 0), (1, 3)]),
    ),
    "2d_negative_padding": (
        (1, 2, 7, 8),
        (3, 2, 3, 3),
        dict(padding=[(-1, 0), (0, -2)]),
    ),
    "2d_dilated": ((1, 2, 8, 9), (3, 2, 3, 2), dict(rhs_dilation=(2, 3))),
    "2d_both_dilated": (
        (1, 2, 5, 4),
        (3, 2, 2, 3),
        dict(lhs_dilation=(2, 3), rhs_dilation=(2, 1), window_strides=(1, 2)),
    ),
    "2d_groups": ((2, 6, 5, 5), (4, 3, 3, 3), dict(feature_group_count=2)),
    "2d_depthwise": ((2, 4, 5, 5), (4, 1, 3, 3), dict(feature_group_count=4)),
    "2d_multiplier": ((1, 3, 5, 5), (6, 1, 2, 2), dict(feature_group_count=3)),
    "2d_batch_groups": ((4, 3, 5, 5), (6, 3, 3, 3), dict(batch_group_count=2)),
    "2d_nhwc": (
        (2, 6, 5, 3),
        (3, 2, 3, 4),
        dict(dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ),
    "2d_mixed_layout": (
        (6, 2, 3, 5),
        (4, 3, 2, 3),
        dict(dimension_numbers=("HNCW", "OHWI", "NHWC"), rhs_dilation=(1, 1)),
    ),
    "3d": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {}),
    "3d_strided_same": (
        (1, 2, 4, 5, 5),
        (2, 2, 3, 3, 3),
        dict(window_strides=(1, 2, 2), padding="SAME"),
    ),
    "3d_ndhwc": (
        (1, 4, 4, 4, 3),
        (2, 2, 2, 3, 2),
        dict(dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
    ),
    "no_window": ((2, 3), (4, 3), {}),
    "one_position": ((2, 3, 3, 3), (4, 3, 3, 3), {}),
}


def _terms(products: int) -> Sum:
    """Every operand of FP32 is two parts, so a product has four terms."""
    return Sum(4 * products + 8)


def _check(dtype: str, products: int) -> Check:
    return _terms(products) if jnp.issubdtype(dtype, jnp.floating) else Exact()


def dot(name: str, lhs: str, rhs: str, preferred: str | None, target="trn2") -> Case:
    left, right, numbers = DOTS[name]
    function = functools.partial(lax.dot_general, dimension_numbers=numbers)
    wanted = None if preferred is None else jnp.dtype(preferred)
    contracted = 1
    for axis in numbers[0][0]:
        contracted *= left[axis]
    out = preferred or lhs
    kind = "digits" if jnp.issubdtype(out, jnp.floating) and lhs == "int8" else "normal"
    return Case(
        name=f"dot-{name}-{lhs}-{rhs}-{preferred or 'same'}-{target}",
        function=functools.partial(function, preferred_element_type=wanted),
        reference=function,
        inputs=(Input(left, lhs, kind), Input(right, rhs, kind)),
        check=_check(out, contracted) if kind == "normal" else Exact(),
        interpreter=0 not in left,  # it dies of an empty operand
        target=target,
    )


def dots() -> Iterator[Case]:
    yield from (dot(name, *dtypes) for dtypes in DOT_DTYPES for name in DOTS)
    for dtypes in MORE_DOT_DTYPES:
        yield from (dot(name, *dtypes) for name in ("mk_kn", "batch"))
    for target, formats in FP8_DOTS.items():
        for narrow in formats:
            for name in ("mk_kn", "two_tiles", "batch"):
                yield dot(name, narrow, narrow, "float32", target)


def convolution(name: str, dtype: str, preferred: str | None = None) -> Case:
    left, right, given = CONVOLUTIONS[name]
    spatial = len(left) - 2
    keywords = dict(window_strides=(1,) * spatial, padding=[(0, 0)] * spatial) | given
    function = functools.partial(lax.conv_general_dilated, **keywords)
    products = 1
    for size in right:
        products *= size
    out = preferred or dtype
    return Case(
        name=f"conv-{name}-{dtype}-{preferred or 'same'}",
        function=functools.partial(
            function,
            preferred_element_type=None if preferred is None else jnp.dtype(preferred),
        ),
        reference=function,
        inputs=(Input(left, dtype), Input(right, dtype)),
        check=_check(out, products),
        # It multiplies integers before it widens them.
        interpreter=(dtype, preferred) != ("int8", "int32"),
    )


def convolutions() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        yield from (convolution(name, dtype) for name in CONVOLUTIONS)
    for dtype in ("float16", "int32", "int8"):
        yield from (convolution(n, dtype) for n in ("1d", "2d_same", "2d_groups"))
    yield convolution("2d", "int8", "int32")
    yield convolution("2d", "bfloat16", "float32")


def einsums() -> Iterator[Case]:
    """What jax.numpy makes of dots: transposes, diagonals, sums before."""
    for text, shapes in {
        "ij,jk->ik": ((3, 4), (4, 5)),
        "bij,bjk->bki": ((2, 3, 4), (2, 4, 5)),
        "ij,ij->": ((3, 4), (3, 4)),
        "ijk,k->ji": ((2, 3, 4), (4,)),
        "abc,dbe->adce": ((2, 3, 4), (5, 3, 2)),
        "ii->i": ((4, 4),),
        "ij->j": ((3, 4),),
    }.items():
        yield Case(
            name=f"einsum-{text}",
            function=functools.partial(jnp.einsum, text),
            inputs=tuple(Input(shape) for shape in shapes),
            check=_terms(16),
        )


CASES = tuple(
    sorted([*dots(), *convolutions(), *einsums()], key=lambda case: case.target)
)
