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

_INT, _BOOL, _FLOAT = (KIND_DTYPES[kind] for kind in "ibf")
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


# -- shapes of ops ---------------------------------------------------------------------


def _elementwise(arity: int, result: Any = None) -> Build:
    def build(name: str, dtype: np.dtype) -> Op:
        operands = [value(dtype, _N) for _ in range(arity)]
        return op(name, operands, [value(result or dtype, _N)])

    return build


def _with(
    operands: Sequence[tuple[int, ...]], result: tuple[int, ...], **attributes: Any
) -> Build:
    """All operands and the result of one dtype."""

    def build(name: str, dtype: np.dtype) -> Op:
        given = [value(dtype, *shape) for shape in operands]
        return op(name, given, [value(dtype, *result)], attributes)

    return build


def _binary_region(
    name: str, dtype: Any, result: Any = None, **attributes: Any
) -> Region:
    a, b, r = value(dtype), value(dtype), value(result or dtype)
    return Region((a, b), (op(name, [a, b], [r], attributes),), (r,))


def combiner(dtype: np.dtype) -> Region:
    """The region of a reduction that adds, or of booleans the one of `or`."""
    return _binary_region("stablehlo.or" if dtype == _BOOL else "stablehlo.add", dtype)


def _less(dtype: np.dtype) -> Region:
    return _binary_region("stablehlo.compare", dtype, _BOOL, comparison_direction="LT")


def _real(name: str, dtype: np.dtype) -> Op:
    """Complex in, float out."""
    return op(name, [value(dtype, _N)], [value(_FLOAT, _N)])


def _complex(name: str, dtype: np.dtype) -> Op:
    parts = [value(_FLOAT, _N), value(_FLOAT, _N)]
    return op(name, parts, [value(np.complex64, _N)])


def _abs(name: str, dtype: np.dtype) -> Op:
    return (_real if dtype.kind == "c" else _elementwise(1))(name, dtype)


def _compare(name: str, dtype: np.dtype) -> Op:
    kind = {"f": "FLOAT", "c": "FLOAT", "i": "SIGNED", "b": "UNSIGNED"}[dtype.kind]
    sides = [value(dtype, _N), value(dtype, _N)]
    direction = "EQ" if dtype.kind == "c" else "LT"
    attributes = {"comparison_direction": direction, "compare_type": kind}
    return op(name, sides, [value(_BOOL, _N)], attributes)


def _select(name: str, dtype: np.dtype) -> Op:
    operands = [value(_BOOL, _N), value(dtype, _N), value(dtype, _N)]
    return op(name, operands, [value(dtype, _N)])


def _convert(name: str, dtype: np.dtype) -> Op:
    return op(name, [value(np.float16, _N)], [value(dtype, _N)])


def _bitcast(name: str, dtype: np.dtype) -> Op:
    bits = f"uint{dtype.itemsize * 8}"
    return op(name, [value(dtype, _N)], [value(bits, _N)])


def _constant(name: str, dtype: np.dtype) -> Op:
    one = np.ones(_N, dtype)
    return op(name, [], [value(dtype, _N)], {"value": one})


def _dynamic(update: bool) -> Build:
    def build(name: str, dtype: np.dtype) -> Op:
        x, index = value(dtype, _N), value(_INT)
        if update:
            return op(name, [x, value(dtype, 2), index], [value(dtype, _N)])
        return op(name, [x, index], [value(dtype, 2)], {"slice_sizes": (2,)})

    return build


def _gather(name: str, dtype: np.dtype) -> Op:
    numbers = {
        "offset_dims": (),
        "collapsed_slice_dims": (0,),
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
        "start_index_map": (0,),
        "index_vector_dim": 1,
    }
    attributes = {"dimension_numbers": numbers, "slice_sizes": (1,)}
    operands = [value(dtype, _N), value(_INT, 2, 1)]
    return op(name, operands, [value(dtype, 2)], attributes)


def _scatter(name: str, dtype: np.dtype) -> Op:
    numbers = {
        "update_window_dims": (),
        "inserted_window_dims": (0,),
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "scattered_dims_to_operand_dims": (0,),
        "index_vector_dim": 1,
    }
    operands = [value(dtype, _N), value(_INT, 2, 1), value(dtype, 2)]
    attributes = {"scatter_dimension_numbers": numbers}
    return op(name, operands, [value(dtype, _N)], attributes, [combiner(dtype)])


def _reduce(name: str, dtype: np.dtype) -> Op:
    operands = [value(dtype, _N), value(dtype)]
    return op(name, operands, [value(dtype)], {"dimensions": (0,)}, [combiner(dtype)])


def _window(name: str, dtype: np.dtype) -> Op:
    operands = [value(dtype, _N), value(dtype)]
    attributes = {"window_dimensions": (2,)}
    return op(name, operands, [value(dtype, 3)], attributes, [combiner(dtype)])


def _select_and_scatter(name: str, dtype: np.dtype) -> Op:
    operands = [value(dtype, _N), value(dtype, 2), value(dtype)]
    prefer = _binary_region(
        "stablehlo.compare", dtype, _BOOL, comparison_direction="GE"
    )
    attributes = {"window_dimensions": (2,), "window_strides": (2,)}
    regions = [prefer, combiner(dtype)]
    return op(name, operands, [value(dtype, _N)], attributes, regions)


def _map(name: str, dtype: np.dtype) -> Op:
    operands = [value(dtype, _N), value(dtype, _N)]
    attributes = {"dimensions": (0,)}
    return op(name, operands, [value(dtype, _N)], attributes, [combiner(dtype)])


def _sort(name: str, dtype: np.dtype) -> Op:
    attributes = {"dimension": 0, "is_stable": True}
    x = value(dtype, _N)
    return op(name, [x], [value(dtype, _N)], attributes, [_less(dtype)])


def _top_k(name: str, dtype: np.dtype) -> Op:
    return op(name, [value(dtype, _N)], [value(dtype, 2), value(_INT, 2)], {"k": 2})


_DOT_NUMBERS = {
    "lhs_batching_dimensions": (),
    "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,),
    "rhs_contracting_dimensions": (0,),
}
_CONVOLUTION = {
    "dimension_numbers": {
        "input_batch_dimension": 0,
        "input_feature_dimension": 1,
        "input_spatial_dimensions": (2,),
        "kernel_output_feature_dimension": 0,
        "kernel_input_feature_dimension": 1,
        "kernel_spatial_dimensions": (2,),
        "output_batch_dimension": 0,
        "output_feature_dimension": 1,
        "output_spatial_dimensions": (2,),
    },
    "feature_group_count": 1,
    "batch_group_count": 1,
}


def _batch_norm(inputs: int, outputs: int) -> Build:
    """Operand 0 and the gradient have a batch axis, the rest only the feature axis."""

    def build(name: str, dtype: np.dtype) -> Op:
        shapes = [(_N, 2)] + [(2,)] * (inputs - 1)
        if name.endswith("grad"):
            shapes[-1] = (_N, 2)
        results = [value(dtype, _N, 2)] + [value(dtype, 2)] * (outputs - 1)
        attributes = {"epsilon": 1e-5, "feature_index": 1}
        operands = [value(dtype, *shape) for shape in shapes]
        fresh = [value(dtype, *r.type.shape) for r in results]
        return op(name, operands, fresh, attributes)

    return build


def _fft(name: str, dtype: np.dtype) -> Op:
    attributes = {"fft_type": "FFT", "fft_length": (_N,)}
    return op(name, [value(dtype, _N)], [value(dtype, _N)], attributes)


def _triangular_solve(name: str, dtype: np.dtype) -> Op:
    attributes = {
        "left_side": True,
        "lower": True,
        "unit_diagonal": False,
        "transpose_a": "NO_TRANSPOSE",
    }
    operands = [value(dtype, 2, 2), value(dtype, 2, 2)]
    return op(name, operands, [value(dtype, 2, 2)], attributes)


def _rng(name: str, dtype: np.dtype) -> Op:
    state, bits = value(np.uint64, 2), value(np.uint32, _N)
    attributes = {"rng_algorithm": "THREE_FRY"}
    return op(name, [state], [value(np.uint64, 2), bits], attributes)


def _while(name: str, dtype: np.dtype) -> Op:
    flag = value(_BOOL)
    body = (value(_BOOL), value(dtype, _N))
    condition = (value(_BOOL), value(dtype, _N))
    regions = [Region(condition, (), condition[:1]), Region(body, (), body)]
    x = value(dtype, _N)
    return op(name, [flag, x], [value(_BOOL), value(dtype, _N)], {}, regions)


def _case(predicate: np.dtype) -> Build:
    def build(name: str, dtype: np.dtype) -> Op:
        regions = []
        for _ in range(2):
            made = value(dtype, _N)
            constant = op(
                "stablehlo.constant", [], [made], {"value": np.ones(_N, dtype)}
            )
            regions.append(Region((), (constant,), (made,)))
        return op(name, [value(predicate)], [value(dtype, _N)], {}, regions)

    return build


def _custom_call(name: str, dtype: np.dtype) -> Op:
    shapes = ((2, 32), (2, 32), (2, 1), (2, 1))
    dtypes = ("float8_e5m2", "float8_e5m2", "float8_e8m0fnu", "float8_e8m0fnu")
    operands = [
        value(getattr(ml_dtypes, d), *s) for d, s in zip(dtypes, shapes, strict=True)
    ]
    attributes = {"call_target_name": "__op$block_scaled_dot", "backend_config": ""}
    return op(name, operands, [value(_FLOAT, 2, 2)], attributes)


def _composite(name: str, dtype: np.dtype) -> Op:
    attributes = {"name": "callee", "decomposition": "callee", "version": 0}
    return op(name, [value(dtype, _N)], [value(dtype, _N)], attributes)


def _dimension_size(name: str, dtype: np.dtype) -> Op:
    return op(name, [value(dtype, _N)], [value(_INT)], {"dimension": 0})


def _torch_index_select(name: str, dtype: np.dtype) -> Op:
    operands = [value(dtype, _N), value(_INT, 2)]
    return op(name, operands, [value(dtype, 2)], {"dim": 0, "batch_dims": 0})


# -- which ops -------------------------------------------------------------------------


def _group(kinds: str, build: Build, dialect: str, names: str) -> dict[str, Any]:
    return {f"{dialect}.{name}": (kinds, build) for name in names.split()}


_S, _C = "stablehlo", "chlo"
_MATRIX = (2, 2)

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
        result = _BOOL if operands.endswith("?") else None
        build = _elementwise(int(operands[0]), result)
        for name in names.split():
            yield f"{dialect}.{name}", (kinds, build)


LOCAL_SAMPLES: Mapping[str, tuple[str, Build]] = {
    **dict(_elementwise_samples()),
    **_group("fic", _abs, _S, "abs"),
    **_group("fibc", _compare, _S, "compare"),
    **_group("fibc", _select, _S, "select"),
    **_group("fibc", _convert, _S, "convert"),
    **_group("fi", _bitcast, _S, "bitcast_convert"),
    **_group("fibc", _constant, _S, "constant"),
    **_group("fic", _with((), (_N,), iota_dimension=0), _S, "iota"),
    **_group(
        "f",
        _with(((_N,),), (_N,), exponent_bits=5, mantissa_bits=10),
        _S,
        "reduce_precision",
    ),
    **_group("c", _real, _S, "real imag"),
    **_group("f", _complex, _S, "complex"),
    **_group("fibc", _map, _S, "map"),
    **_group("fibc", _with(((2, 2),), (4,)), _S, "reshape"),
    **_group(
        "fibc",
        _with(((_N,),), (2, _N), broadcast_dimensions=(1,)),
        _S,
        "broadcast_in_dim",
    ),
    **_group("fibc", _with(((_N,),), (2, _N), broadcast_sizes=(2,)), _S, "broadcast"),
    **_group("fibc", _with(((2, 3),), (3, 2), permutation=(1, 0)), _S, "transpose"),
    **_group(
        "fibc",
        _with(((_N,),), (2,), start_indices=(1,), limit_indices=(3,), strides=(1,)),
        _S,
        "slice",
    ),
    **_group(
        "fibc",
        _with(
            ((_N,), ()),
            (_N + 1,),
            edge_padding_low=(1,),
            edge_padding_high=(0,),
            interior_padding=(0,),
        ),
        _S,
        "pad",
    ),
    **_group("fibc", _with(((2,), (2,)), (4,), dimension=0), _S, "concatenate"),
    **_group("fibc", _with(((_N,),), (_N,), dimensions=(0,)), _S, "reverse"),
    **_group("fibc", _dynamic(False), _S, "dynamic_slice"),
    **_group("fibc", _dynamic(True), _S, "dynamic_update_slice"),
    **_group("fibc", _gather, _S, "gather"),
    **_group("fibc", _scatter, _S, "scatter"),
    **_group("fibc", _torch_index_select, _S, "torch_index_select"),
    **_group("fibc", _dimension_size, _S, "get_dimension_size"),
    **_group("fibc", _reduce, _S, "reduce"),
    **_group("fibc", _window, _S, "reduce_window"),
    **_group("fi", _select_and_scatter, _S, "select_and_scatter"),
    **_group("fib", _sort, _S, "sort"),
    **_group("fi", _top_k, _C, "top_k"),
    **_group(
        "fic",
        _with((_MATRIX, _MATRIX), _MATRIX, dot_dimension_numbers=_DOT_NUMBERS),
        _S,
        "dot_general",
    ),
    **_group("fic", _with((_MATRIX, _MATRIX), _MATRIX), _S, "dot"),
    **_group(
        "fic",
        _with(((1, 1, 4), (1, 1, 3)), (1, 1, 2), **_CONVOLUTION),
        _S,
        "convolution",
    ),
    **_group("fc", _with((_MATRIX,), _MATRIX, lower=True), _S, "cholesky"),
    **_group("fc", _triangular_solve, _S, "triangular_solve"),
    **_group("c", _fft, _S, "fft"),
    **_group("f", _batch_norm(3, 3), _S, "batch_norm_training"),
    **_group("f", _batch_norm(5, 1), _S, "batch_norm_inference"),
    **_group("f", _batch_norm(5, 3), _S, "batch_norm_grad"),
    **_group("i", _rng, _S, "rng_bit_generator"),
    **_group("fibc", _while, _S, "while"),
    **_group("fibc", _case(_INT), _S, "case"),
    **_group("fibc", _case(_BOOL), _S, "if"),
    **_group("f", _composite, _S, "composite"),
    **_group("f", _custom_call, _S, "custom_call"),
    **_group("fibc", _constant, _C, "constant"),
    **_group(
        "fi", _with(((_N,),), (_N,), value=np.ones((), np.float32)), _C, "constant_like"
    ),
    **_group("fibc", _compare, _C, "broadcast_compare"),
    **_group("fibc", _select, _C, "broadcast_select"),
}
"""Op -> the kinds of dtypes that StableHLO allows it, and how to make a sample."""
