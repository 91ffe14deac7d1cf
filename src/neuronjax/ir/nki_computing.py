"""Rows of the NKI instructions that compute, see `nki_instructions`."""

from __future__ import annotations

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.ir.alu_operators import (
    ALU,
    BINARY_ARITHMETIC,
    BITVEC,
    REDUCTIONS,
    UNARY_ARITHMETIC,
)
from neuronjax.ir.nki_spec import (
    ENGINE,
    SBUF,
    checked,
    column,
    command,
    flag,
    lanes,
    note,
    number,
    operator,
    out,
    result,
    row,
    state,
    tensor,
)

_FUNCTIONS = frozenset(ACTIVATION_FUNCTIONS)
_ARITHMETIC = ALU - BITVEC
_ACCUMULATED = frozenset(
    {"add", "multiply", "maximum", "minimum", "max", "min", "mult"}
)
_MAXIMUM = frozenset({"maximum", "max"})
_ADD = frozenset({"add"})
_PARTITION_REDUCTIONS = _MAXIMUM | {"add", "average", "bitwise_or", "bitwise_and"}
_SCALAR_REDUCTIONS = frozenset({"add", "maximum", "minimum", "abs_max", "abs_min"})

_INDEX = ("uint16", "uint32")
_FP8_X4 = ("float8_e5m2_x4", "float8_e4m3fn_x4")
_X4 = (*_FP8_X4, "float4_e2m1fn_x4")
_SCALES = ("float8_e8m0fnu", "uint8")

_LEFT = "whether the operand is on the left"

_TENSOR_ENGINE = (
    row(
        "nc_matmul",
        "tensor",
        out("dst", ("psum",), text="[M, N]"),
        tensor("stationary", SBUF, text="[K, M]; [K, 2, M] in double-row mode"),
        tensor("moving", SBUF, text="[K, N]; [K, 2, N] in double-row mode"),
        flag("is_transpose", "pass the bits of stationary through a one-hot moving"),
        flag("is_stationary_onezero", "a hint about time alone"),
        flag("is_moving_onezero", "likewise"),
        note("accumulate", "add to dst; None does so where a matmul wrote it before"),
        note("tile_position", "first row and column of the array that are used"),
        note("tile_size", "rows and columns of the array that are used"),
        note("perf_mode", "`matmul_perf_mode.double_row`: two FP8 products per cell"),
        label="modelled",
        gathered=(0, 1),
    ),
    row(
        "nc_matmul_mx",
        "tensor",
        out("dst", ("psum",), dtypes=("float32", "bfloat16"), text="[M, N], M even"),
        tensor("stationary", SBUF, dtypes=_X4, text="[P, M], P a multiple of 32"),
        tensor("moving", SBUF, dtypes=_X4, text="[P, N]"),
        tensor("stationary_scale", SBUF, dtypes=_SCALES, text="see `quantize_mx`"),
        tensor("moving_scale", SBUF, dtypes=_SCALES, text="likewise"),
        note("tile_position", "(start_row, 0) in row tiling mode"),
        note("tile_size", "(32, 64 or 128 rows, 128) in row tiling mode"),
        note("accumulate", "add to dst; None does so where something wrote it before"),
        label="modelled",
        capability="mx_matmul",
        instead="nisa.nc_matmul",
        gathered=tuple(range(16)),
    ),
    row(
        "nc_transpose",
        "tensor vector",
        out(text="of the dtype of data; in PSUM on TensorE"),
        tensor("data", text="in SBUF on TensorE"),
        ENGINE,
        reads="part",  # rows without a value become such columns
    ),
)

_SCALAR_ENGINE = (
    lanes(
        "activation",
        "scalar",
        out(),
        tensor("data", like="dst"),
        column("scale", fp32=True),
        column("bias"),
        operator("op", _FUNCTIONS, "an activation function"),
        checked("reduce_op", _ADD),
        command("idle reset reduce reset_reduce"),
        state("reduce", optional=True),
        result(),
        label="modelled",
        gathered=(0,),
    ),
    lanes(
        "activation_reduce",
        "scalar",
        out(),
        tensor("data", like="dst"),
        column("scale", fp32=True),
        column("bias"),
        operator("op", _FUNCTIONS, "an activation function"),
        operator("reduce_op", _ADD),
        state("reduce"),
        out("reduce_res", elements=1, text="takes the sums"),
        label="modelled",
        gathered=(0,),
    ),
    lanes(
        "activate2",
        "scalar",
        out(),
        tensor("data", like="dst"),
        column("imm0"),
        column("imm1"),
        column("relu_param", "slope of prelu"),
        operator("op", _FUNCTIONS, "an activation function"),
        note("op0", "multiply, add, subtract or bypass"),
        note("op1", "add, subtract or bypass; the pair must be a legal one"),
        flag("reverse0", "whether imm0 is on the left"),
        flag("reverse1", "whether imm1 is on the left"),
        command("idle reset reset_reduce reduce"),
        operator("reduce_op", _SCALAR_REDUCTIONS, optional=True),
        state("reduce", optional=True),
        result(),
        label="modelled",
        capability="activate2",
        instead="nisa.activation after nisa.tensor_scalar",
        gathered=(0,),
    ),
)

_ELEMENTWISE = (
    lanes(
        "tensor_tensor",
        "vector gpsimd",
        out(),
        tensor("data1", like="dst"),
        tensor("data2", like="dst"),
        operator("op", ALU - UNARY_ARITHMETIC - {"invert"}, "a binary operator"),
        ENGINE,
        one_in_psum=(0, 1),
        gathered=(0,),
    ),
    lanes(
        "tensor_scalar",
        "vector scalar gpsimd",
        out(),
        tensor("data", like="dst"),
        column("operand0", fp32=True),
        column("operand1", fp32=True),
        operator("op0", ALU, "an operator of bits or of arithmetic"),
        operator("op1", ALU, "of the same kind as op0, or None", optional=True),
        flag("reverse0", _LEFT),
        flag("reverse1", _LEFT),
        ENGINE,
        gathered=(0,),
    ),
    lanes(
        "scalar_tensor_tensor",
        "vector",
        out(),
        tensor("data", like="dst"),
        column("operand0"),
        tensor("operand1", like="dst"),
        operator("op0", _ARITHMETIC, "an operator of arithmetic"),
        operator("op1", BINARY_ARITHMETIC, "an operator of arithmetic"),
        flag("reverse0", _LEFT),
        flag("reverse1", _LEFT),
        one_in_psum=(0, 2),
    ),
    lanes(
        "reciprocal",
        "vector",
        out(),
        tensor("data", like="dst"),
        label="modelled",
    ),
    lanes(
        "exponential",
        "vector",
        out(),
        tensor("src", like="dst"),
        column("max_value", "subtracted first", fp32=True),
        command("idle reset_reduce reduce load_reduce", loads="reduce_init"),
        state("reduce", optional=True),
        column("reduce_init", "what load_reduce loads"),
        result(),
        label="modelled",
        capability="vector_exponential",
        instead="nisa.activation with op=nl.exp",
        gathered=(0,),
    ),
)

_REDUCTIONS = (
    lanes(
        "tensor_reduce",
        "vector",
        out(text="one element per row that is kept"),
        tensor("data"),
        operator("op", REDUCTIONS, "a reduction"),
        note("axis", "the reduced axes: the last ones, never axis 0"),
        note("keepdims", "whether dst keeps them as 1; the elements are the same"),
        flag("negate", "whether the result changes its sign; not of bits"),
        label="modelled",
        gathered=(0,),
    ),
    row(
        "tensor_partition_reduce",
        "gpsimd",
        out("dst", SBUF, text="one partition, as many elements as one of data"),
        tensor("data", SBUF),
        operator("op", _PARTITION_REDUCTIONS),
        label="modelled",
    ),
    lanes(
        "tensor_scalar_reduce",
        "vector",
        out(),
        tensor("data", like="dst"),
        column("operand0"),
        operator("op0", _ARITHMETIC, "an operator of arithmetic"),
        operator("reduce_op", _ACCUMULATED),
        command("reset_reduce reduce load_reduce", loads="reduce_init"),
        note("reverse0", "not supported by the instruction"),
        note("reduce_res_negate", "whether what reduce_res takes changes its sign"),
        state("reduce"),
        column("reduce_init", "what load_reduce loads"),
        result(),
        label="modelled",
        gathered=(0,),
    ),
    row(
        "tensor_scalar_cumulative",
        "vector",
        out(text="no 32-bit integers"),
        tensor("src", text="no 32-bit integers", like="dst"),
        column("imm0", fp32=True),
        operator("op0", _ARITHMETIC, "an operator of arithmetic"),
        operator("op1", _ACCUMULATED | {"subtract"}),
        command("reset_reduce reduce load_reduce", loads="imm1"),
        state("reduce"),
        column("imm1", "what load_reduce loads", fp32=True),
        gathered=(0,),
    ),
    lanes(
        "tensor_tensor_scan",
        "vector",
        out(),
        tensor("data0", like="dst"),
        tensor("data1", like="dst"),
        column("initial", "dst[-1]"),
        operator("op0", BINARY_ARITHMETIC, "an operator of arithmetic"),
        operator("op1", BINARY_ARITHMETIC, "an operator of arithmetic"),
        flag("reverse0", "whether the operands of op0 change places"),
        flag("reverse1", "whether the operands of op1 change places"),
        one_in_psum=(0, 1),
    ),
    lanes(
        "bn_stats",
        "vector",
        out(elements=6),
        tensor("data", text="at most 512 elements per partition"),
        label="modelled",
    ),
    lanes(
        "bn_aggr",
        "vector",
        out(elements=2),
        tensor("data", text="(count, mean, variance * count) again and again"),
        label="modelled",
    ),
    lanes(
        "max8",
        "vector",
        out(elements=8),
        tensor("src", text="8 to 16,384 elements per partition"),
    ),
    lanes(
        "nc_find_index8",
        "vector",
        out(elements=8, dtypes=_INDEX),
        tensor("data", text="8 to 16,384 elements per partition"),
        tensor("vals", elements=8),
    ),
    lanes(
        "nc_match_replace8",
        "vector",
        out(),
        tensor("data", text="8 to 16,384 per partition", like="dst"),
        tensor("vals", elements=8),
        number("imm"),
        out(
            "dst_idx",
            elements=8,
            dtypes=_INDEX,
            optional=True,
            text="takes where they were",
        ),
    ),
)


COMPUTING = (*_TENSOR_ENGINE, *_SCALAR_ENGINE, *_ELEMENTWISE, *_REDUCTIONS)
