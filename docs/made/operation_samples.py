"""A small program for every StableHLO and CHLO op of one device that can be emulated.

Used to find out which engines an op needs and which dtypes it takes, by lowering the
program. Kinds of dtypes are those that the StableHLO specification allows an op: "f"
floats, "i" integers, "b" booleans, "c" complex. Shapes are the smallest that are legal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.ir.program import (
    Function,
    Location,
    Op,
    Program,
    Region,
    TensorType,
    Value,
)

KIND_DTYPES: Mapping[str, np.dtype] = {
    "f": np.dtype(np.float32),
    "i": np.dtype(np.int32),
    "b": np.dtype(np.bool_),
    "c": np.dtype(np.complex64),
}
Build = Callable[[str, np.dtype], Op]

_BOOL, _FLOAT = (KIND_DTYPES[kind] for kind in "bf")
_N = 4  # elements along an axis


def value(dtype: Any, *shape: int) -> Value:
    """A new value."""
    return Value(0, TensorType(shape, np.dtype(dtype)))


def op(
    name: str,
    operands: Sequence[Value],
    results: Sequence[Value],
    attributes: Mapping[str, Any] | None = None,
    regions: Sequence[Region] = (),
) -> Op:
    """An op without a place in any file."""
    return Op(
        name,
        tuple(operands),
        tuple(results),
        attributes or {},
        tuple(regions),
        Location(),
    )


def program(build: Build, name: str, dtype: np.dtype) -> Program:
    """A program of one op; what it calls is the identity."""
    one = build(name, dtype)
    arguments = tuple(dict.fromkeys(one.operands))
    main = Function("main", Region(arguments, (one,), one.results))
    x = value(_FLOAT, _N)
    callee = Function("callee", Region((x,), (), (x,)))
    names = tuple(f"x{i}" for i in range(len(arguments)))
    return Program({"main": main, "callee": callee}, "main", names)


# -- samples of ops --------------------------------------------------------------------

#: What a signature calls a dtype; "x" is the one that is asked for.
_LETTERS: Mapping[str, np.dtype] = {
    **KIND_DTYPES,
    "h": np.dtype(np.float16),
    "q": np.dtype(np.uint64),
    "w": np.dtype(np.uint32),
    "e": np.dtype(ml_dtypes.float8_e5m2),
    "s": np.dtype(ml_dtypes.float8_e8m0fnu),
}


def _values(signature: str, dtype: np.dtype) -> list[Value]:
    """New values, "x4 i2,1 b": four of `dtype`, a column of integers, one boolean."""
    dtypes = {**_LETTERS, "x": dtype}
    return [
        value(dtypes[text[0]], *map(int, filter(None, text[1:].split(","))))
        for text in signature.split()
    ]


def _typed(
    signature: str, *regions: Callable[[np.dtype], Region], **attributes: Any
) -> Build:
    """An op by what it takes and gives, "x4 i > x2", its regions and attributes."""
    given, made = signature.split(">")

    def build(name: str, dtype: np.dtype) -> Op:
        sides = _values(given, dtype), _values(made, dtype)
        return op(name, *sides, attributes, [region(dtype) for region in regions])

    return build


def _binary_region(
    name: str, dtype: Any, result: Any = None, **attributes: Any
) -> Region:
    a, b, r = value(dtype), value(dtype), value(result or dtype)
    return Region((a, b), (op(name, [a, b], [r], attributes),), (r,))


def combiner(dtype: np.dtype) -> Region:
    """The region of a reduction that adds, or of booleans the one of `or`."""
    return _binary_region("stablehlo.or" if dtype == _BOOL else "stablehlo.add", dtype)


def _comparison(direction: str) -> Callable[[np.dtype], Region]:
    return lambda dtype: _binary_region(
        "stablehlo.compare", dtype, _BOOL, comparison_direction=direction
    )


def _abs(name: str, dtype: np.dtype) -> Op:
    return _typed("c4 > f4" if dtype.kind == "c" else "x4 > x4")(name, dtype)


def _compare(name: str, dtype: np.dtype) -> Op:
    kind = {"f": "FLOAT", "c": "FLOAT", "i": "SIGNED", "b": "UNSIGNED"}[dtype.kind]
    direction = "EQ" if dtype.kind == "c" else "LT"
    attributes = {"comparison_direction": direction, "compare_type": kind}
    return _typed("x4 x4 > b4", **attributes)(name, dtype)


def _constant(name: str, dtype: np.dtype) -> Op:
    return _typed("> x4", value=np.ones(_N, dtype))(name, dtype)


def _while(name: str, dtype: np.dtype) -> Op:
    condition, body = (tuple(_values("b x4", dtype)) for _ in range(2))
    regions = [Region(condition, (), condition[:1]), Region(body, (), body)]
    return op(name, _values("b x4", dtype), _values("b x4", dtype), {}, regions)


def _one(dtype: np.dtype) -> Region:
    """A block of a branch."""
    constant = _constant("stablehlo.constant", dtype)
    return Region((), (constant,), constant.results)


_GATHER = {
    "offset_dims": (),
    "collapsed_slice_dims": (0,),
    "operand_batching_dims": (),
    "start_indices_batching_dims": (),
    "start_index_map": (0,),
    "index_vector_dim": 1,
}
_SCATTER = {
    "update_window_dims": (),
    "inserted_window_dims": (0,),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "scattered_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}
_DOT = {
    "lhs_batching_dimensions": (),
    "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,),
    "rhs_contracting_dimensions": (0,),
}
_CONVOLUTION = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 1,
    "input_spatial_dimensions": (2,),
    "kernel_output_feature_dimension": 0,
    "kernel_input_feature_dimension": 1,
    "kernel_spatial_dimensions": (2,),
    "output_batch_dimension": 0,
    "output_feature_dimension": 1,
    "output_spatial_dimensions": (2,),
}
_SOLVE = {
    "left_side": True,
    "lower": True,
    "unit_diagonal": False,
    "transpose_a": "NO_TRANSPOSE",
}
_NORM = {"epsilon": 1e-5, "feature_index": 1}
_COMPOSITE = {"name": "callee", "decomposition": "callee", "version": 0}
_SCALED_DOT = {"call_target_name": "__op$block_scaled_dot", "backend_config": ""}


# -- which ops -------------------------------------------------------------------------


_ELEMENTWISE = """
stablehlo fic 1: negate sign
stablehlo ibfc 2: add multiply maximum minimum
stablehlo fic 2: subtract divide power remainder
stablehlo fc 2: atan2
stablehlo ib 2: and or xor
stablehlo ib 1: not
stablehlo i 2: shift_left shift_right_logical shift_right_arithmetic
stablehlo i 1: popcnt count_leading_zeros
stablehlo f 1: ceil floor round_nearest_afz round_nearest_even
stablehlo f 1?: is_finite
stablehlo fc 1: cbrt cosine exponential exponential_minus_one log log_plus_one
  logistic rsqrt sine sqrt tan tanh
stablehlo fib 3: clamp
stablehlo fibc 1: optimization_barrier
chlo fc 1: acos acosh asin asinh atan atanh cosh sinh tan square conj
chlo f 1: bessel_i1e digamma erf erf_inv erfc lgamma
chlo f 1?: is_inf is_neg_inf is_pos_inf
chlo f 2: next_after polygamma zeta broadcast_atan2 broadcast_next_after
  broadcast_polygamma broadcast_zeta
chlo i 2: mulhi broadcast_shift_left broadcast_shift_right_arithmetic
  broadcast_shift_right_logical
chlo ibfc 2: broadcast_add broadcast_multiply
chlo ibf 2: broadcast_maximum broadcast_minimum
chlo fi 2: broadcast_subtract broadcast_divide broadcast_power broadcast_remainder
chlo ib 2: broadcast_and broadcast_or broadcast_xor
"""
"""Dialect, kinds of dtypes, number of operands ("?": a boolean result), and the ops."""


def _elementwise_samples() -> Iterator[tuple[str, tuple[str, Build]]]:
    for head, names in re.findall(r"^(\w.*?):((?: .*\n)+)", _ELEMENTWISE, re.MULTILINE):
        dialect, kinds, operands = head.split()
        result = "b4" if operands.endswith("?") else "x4"
        build = _typed("x4 " * int(operands[0]) + f"> {result}")
        for name in names.split():
            yield f"{dialect}.{name}", (kinds, build)


_KINDS_AND_BUILDS: Mapping[str, tuple[str, Build]] = {
    "abs": ("fic", _abs),
    "compare": ("fibc", _compare),
    "select": ("fibc", _typed("b4 x4 x4 > x4")),
    "convert": ("fibc", _typed("h4 > x4")),
    "bitcast_convert": ("fi", _typed("x4 > w4")),
    "constant": ("fibc", _constant),
    "iota": ("fic", _typed("> x4", iota_dimension=0)),
    "reduce_precision": ("f", _typed("x4 > x4", exponent_bits=5, mantissa_bits=10)),
    "real": ("c", _typed("x4 > f4")),
    "imag": ("c", _typed("x4 > f4")),
    "complex": ("f", _typed("f4 f4 > c4")),
    "map": ("fibc", _typed("x4 x4 > x4", combiner, dimensions=(0,))),
    "reshape": ("fibc", _typed("x2,2 > x4")),
    "broadcast_in_dim": ("fibc", _typed("x4 > x2,4", broadcast_dimensions=(1,))),
    "broadcast": ("fibc", _typed("x4 > x2,4", broadcast_sizes=(2,))),
    "transpose": ("fibc", _typed("x2,3 > x3,2", permutation=(1, 0))),
    "slice": (
        "fibc",
        _typed("x4 > x2", start_indices=(1,), limit_indices=(3,), strides=(1,)),
    ),
    "pad": (
        "fibc",
        _typed(
            "x4 x > x5",
            edge_padding_low=(1,),
            edge_padding_high=(0,),
            interior_padding=(0,),
        ),
    ),
    "concatenate": ("fibc", _typed("x2 x2 > x4", dimension=0)),
    "reverse": ("fibc", _typed("x4 > x4", dimensions=(0,))),
    "dynamic_slice": ("fibc", _typed("x4 i > x2", slice_sizes=(2,))),
    "dynamic_update_slice": ("fibc", _typed("x4 x2 i > x4")),
    "gather": (
        "fibc",
        _typed("x4 i2,1 > x2", dimension_numbers=_GATHER, slice_sizes=(1,)),
    ),
    "scatter": (
        "fibc",
        _typed("x4 i2,1 x2 > x4", combiner, scatter_dimension_numbers=_SCATTER),
    ),
    "torch_index_select": ("fibc", _typed("x4 i2 > x2", dim=0, batch_dims=0)),
    "get_dimension_size": ("fibc", _typed("x4 > i", dimension=0)),
    "reduce": ("fibc", _typed("x4 x > x", combiner, dimensions=(0,))),
    "reduce_window": ("fibc", _typed("x4 x > x3", combiner, window_dimensions=(2,))),
    "select_and_scatter": (
        "fi",
        _typed(
            "x4 x2 x > x4",
            _comparison("GE"),
            combiner,
            window_dimensions=(2,),
            window_strides=(2,),
        ),
    ),
    "sort": ("fib", _typed("x4 > x4", _comparison("LT"), dimension=0, is_stable=True)),
    "chlo.top_k": ("fi", _typed("x4 > x2 i2", k=2)),
    "dot_general": ("fic", _typed("x2,2 x2,2 > x2,2", dot_dimension_numbers=_DOT)),
    "dot": ("fic", _typed("x2,2 x2,2 > x2,2")),
    "convolution": (
        "fic",
        _typed(
            "x1,1,4 x1,1,3 > x1,1,2",
            dimension_numbers=_CONVOLUTION,
            feature_group_count=1,
            batch_group_count=1,
        ),
    ),
    "cholesky": ("fc", _typed("x2,2 > x2,2", lower=True)),
    "triangular_solve": ("fc", _typed("x2,2 x2,2 > x2,2", **_SOLVE)),
    "fft": ("c", _typed("x4 > x4", fft_type="FFT", fft_length=(_N,))),
    "batch_norm_training": ("f", _typed("x4,2 x2 x2 > x4,2 x2 x2", **_NORM)),
    "batch_norm_inference": ("f", _typed("x4,2 x2 x2 x2 x2 > x4,2", **_NORM)),
    "batch_norm_grad": ("f", _typed("x4,2 x2 x2 x2 x4,2 > x4,2 x2 x2", **_NORM)),
    "rng_bit_generator": ("i", _typed("q2 > q2 w4", rng_algorithm="THREE_FRY")),
    "while": ("fibc", _while),
    "case": ("fibc", _typed("i > x4", _one, _one)),
    "if": ("fibc", _typed("b > x4", _one, _one)),
    "composite": ("f", _typed("x4 > x4", **_COMPOSITE)),
    "custom_call": ("f", _typed("e2,32 e2,32 s2,1 s2,1 > f2,2", **_SCALED_DOT)),
    "chlo.constant": ("fibc", _constant),
    "chlo.constant_like": ("fi", _typed("x4 > x4", value=np.ones((), np.float32))),
    "chlo.broadcast_compare": ("fibc", _compare),
    "chlo.broadcast_select": ("fibc", _typed("b4 x4 x4 > x4")),
}
"""By name, without the dialect if it is StableHLO's."""

LOCAL_SAMPLES: Mapping[str, tuple[str, Build]] = {
    **dict(_elementwise_samples()),
    **{
        name if "." in name else f"stablehlo.{name}": sample
        for name, sample in _KINDS_AND_BUILDS.items()
    },
}
"""Op -> the kinds of dtypes that StableHLO allows it, and how to make a sample."""
