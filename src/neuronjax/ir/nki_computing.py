"""The rows of the table `nki_instructions` for instructions that compute."""

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.ir.alu_operators import (
    ALU,
    BINARY_ARITHMETIC,
    BITVEC,
    REDUCTIONS,
    UNARY_ARITHMETIC,
)
from neuronjax.ir.nki_spec import (
    ADD,
    ENGINE,
    FP8_X4,
    MAXIMUM,
    SBUF,
    SCALES,
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
_ACCUMULATED = frozenset({"add", "multiply", "maximum", "minimum"})
_PARTITION_REDUCTIONS = MAXIMUM | {"add", "average", "bitwise_or", "bitwise_and"}
_SCALAR_REDUCTIONS = frozenset({"add", "maximum", "minimum", "abs_max", "abs_min"})

_INDEX = ("uint16", "uint32")
_X4 = (*FP8_X4, "float4_e2m1fn_x4")

#: Limits of the tensors that are searched for values.
_SEARCHED = {"counts": range(8, 16_385), "text": "8 to 16,384 elements per partition"}
_PLACE, _MAYBE = "tuple[int, ...]", "bool | None"
_WORDS = ("int32", "uint32")

_TENSOR_ENGINE = (
    row(
        "nc_matmul",
        "tensor",
        "dst, stationary, moving, is_stationary_onezero=False, "
        "is_moving_onezero=False, is_transpose=False, accumulate=None, "
        "tile_position=(), tile_size=(), perf_mode=matmul_perf_mode.none, name=None",
        "dst = stationary.T @ moving, or dst += ...; the sum is over the partitions.",
        out("dst", ("psum",), text="[M, N]"),
        tensor("stationary", SBUF, text="[K, M]; [K, 2, M] in double-row mode"),
        tensor("moving", SBUF, text="[K, N]; [K, 2, N] in double-row mode"),
        flag(
            "is_transpose",
            "if True, stationary's bits are copied, and moving must be one-hot",
        ),
        flag(
            "is_stationary_onezero",
            "a hint that stationary has only 0 and 1; it changes only the time",
        ),
        flag("is_moving_onezero", "the same hint as is_stationary_onezero, for moving"),
        note("accumulate", "True adds; None adds if dst was written before", _MAYBE),
        note(
            "tile_position", "first row and column of the array that are used", _PLACE
        ),
        note("tile_size", "how many rows and columns of the array are used", _PLACE),
        note("perf_mode", "`matmul_perf_mode.double_row`: two FP8 products per cell"),
        label="modelled",
        gathered=(0, 1),
    ),
    row(
        "nc_matmul_mx",
        "tensor",
        "dst, stationary, moving, stationary_scale, moving_scale, tile_position=None, "
        "tile_size=None, accumulate=None, name=None",
        "dst = stationary.T @ moving, or dst += ..., with dequantized operands.",
        out("dst", ("psum",), dtypes=("float32", "bfloat16"), text="[M, N], M even"),
        tensor("stationary", SBUF, dtypes=_X4, text="[P, M], P a multiple of 32"),
        tensor("moving", SBUF, dtypes=_X4, text="[P, N]"),
        tensor("stationary_scale", SBUF, dtypes=SCALES, text="see `quantize_mx`"),
        tensor("moving_scale", SBUF, dtypes=SCALES, text="see `quantize_mx`"),
        note("tile_position", "(start_row, 0) in row tiling mode", f"{_PLACE} | None"),
        note(
            "tile_size",
            "(rows, 128), with 32, 64 or 128 rows, in row tiling mode",
            f"{_PLACE} | None",
        ),
        note("accumulate", "True adds; None adds if dst was written before", _MAYBE),
        label="modelled",
        capability="mx_matmul",
        instead="nisa.nc_matmul",
        gathered=tuple(range(16)),
    ),
    row(
        "nc_transpose",
        "tensor vector",
        "dst, data, engine=engine.unknown, name=None",
        "dst = data.T, where free dimensions count as one.",
        out(text="of the dtype of data; in PSUM if TensorE transposes"),
        tensor("data", text="in SBUF if TensorE transposes"),
        ENGINE,
        reads="part",  # unwritten rows become unwritten columns
    ),
)

_SCALAR_ENGINE = (
    lanes(
        "activation",
        "scalar",
        "dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, "
        "reduce_cmd=reduce_cmd.idle, name=None",
        "dst = op(data * scale + bias), in FP32; the accumulators can sum dst.",
        out(),
        tensor("data", like="dst"),
        column("scale", fp32=True),
        column("bias"),
        operator("op", _FUNCTIONS, "an activation function"),
        checked("reduce_op", ADD),
        command("idle reset reduce reset_reduce"),
        state("reduce", optional=True),
        result(),
        label="modelled",
        gathered=(0,),
    ),
    lanes(
        "activation_reduce",
        "scalar",
        "dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None",
        "dst = op(data * scale + bias); reduce_res is dst's sum per partition.",
        out(),
        tensor("data", like="dst"),
        column("scale", fp32=True),
        column("bias"),
        operator("op", _FUNCTIONS, "an activation function"),
        operator("reduce_op", ADD),
        state("reduce"),
        out("reduce_res", elements=1, text="receives the sums"),
        label="modelled",
        gathered=(0,),
    ),
    lanes(
        "activate2",
        "scalar",
        "dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, "
        "reverse1=False, reduce_op=None, reduce_res=None, reduce_cmd=reduce_cmd.idle, "
        "name=None",
        "dst = op((data <op0> imm0) <op1> imm1); the accumulators can reduce dst.",
        out(),
        tensor("data", like="dst"),
        column("imm0"),
        column("imm1"),
        column("relu_param", "slope of prelu below 0"),
        operator("op", _FUNCTIONS, "an activation function"),
        note("op0", "multiply, add, subtract or bypass"),
        note("op1", "add, subtract or bypass; not every pair (op0, op1) is legal"),
        flag("reverse0", "whether imm0 is on the left of op0"),
        flag("reverse1", "whether imm1 is on the left of op1"),
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
        "dst, data1, data2, op, engine=engine.unknown, name=None",
        "dst = data1 <op> data2, in FP32; GpSimd is exact for 32-bit integers.\n\nBy "
        "default GpSimd executes `nl.power`, and ops whose operands are all 32-bit "
        "integers, unless an operand is in PSUM.",
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
        "dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, "
        "reverse1=False, engine=engine.unknown, name=None",
        "dst = (data <op0> operand0) <op1> operand1, with one operand per partition.",
        out(),
        tensor("data", like="dst"),
        column("operand0", fp32=True),
        column("operand1", fp32=True),
        operator("op0", ALU, "a bitwise or arithmetic operator"),
        operator(
            "op1", ALU, "an operator of the same kind as op0, or None", optional=True
        ),
        flag("reverse0", "whether operand0 is on the left of op0"),
        flag("reverse1", "whether operand1 is on the left of op1"),
        ENGINE,
        gathered=(0,),
    ),
    lanes(
        "scalar_tensor_tensor",
        "vector",
        "dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, "
        "name=None",
        "dst = (data <op0> operand0) <op1> operand1; operand1 is a whole tile.",
        out(),
        tensor("data", like="dst"),
        column("operand0"),
        tensor("operand1", like="dst"),
        operator("op0", _ARITHMETIC, "an arithmetic operator"),
        operator("op1", BINARY_ARITHMETIC, "an arithmetic operator"),
        flag("reverse0", "whether operand0 is on the left of op0"),
        flag("reverse1", "whether operand1 is on the left of op1"),
        one_in_psum=(0, 2),
    ),
    lanes(
        "reciprocal",
        "vector",
        "dst, data, name=None",
        "dst = 1 / data on VectorE, in FP32.",
        out(),
        tensor("data", like="dst"),
        label="modelled",
    ),
    lanes(
        "exponential",
        "vector",
        "dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, "
        "reduce_init=0.0, name=None",
        "dst = exp(src - max_value) on VectorE, whose accumulators can sum dst.",
        out(),
        tensor("src", like="dst"),
        column("max_value", "subtracted from src", fp32=True),
        command("idle reset_reduce reduce load_reduce", loads="reduce_init"),
        state("reduce", optional=True),
        column("reduce_init", "the value that load_reduce loads"),
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
        "dst, op, data, axis, negate=False, keepdims=False, name=None",
        "Reduces the last free axes of a tile on VectorE, in FP32 or on bit patterns.",
        out(text="one element per index of the axes that are kept"),
        tensor("data"),
        operator("op", REDUCTIONS, "a reduction"),
        note(
            "axis",
            "the axes to reduce: the last axes, never axis 0",
            "int | Sequence[int]",
        ),
        note("keepdims", "whether dst keeps the reduced axes, with size 1", "bool"),
        flag("negate", "whether to negate the result; must be False for bitwise ops"),
        label="modelled",
        gathered=(0,),
    ),
    row(
        "tensor_partition_reduce",
        "gpsimd",
        "dst, op, data, name=None",
        "Reduces a tile over its partitions on GpSimdE.",
        out("dst", SBUF, text="one partition, sized as a partition of data"),
        tensor("data", SBUF),
        operator("op", _PARTITION_REDUCTIONS),
        label="modelled",
    ),
    lanes(
        "tensor_scalar_reduce",
        "vector",
        "dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False, "
        "reduce_cmd=reduce_cmd.reset_reduce, reduce_init=None, "
        "reduce_res_negate=False, name=None",
        "dst = data <op0> operand0; VectorE's accumulators reduce dst.",
        out(),
        tensor("data", like="dst"),
        column("operand0"),
        operator("op0", _ARITHMETIC, "an arithmetic operator"),
        operator("reduce_op", _ACCUMULATED),
        command("reset_reduce reduce load_reduce", loads="reduce_init"),
        note("reverse0", "must be False: the instruction does not support it", "bool"),
        note("reduce_res_negate", "whether reduce_res is negated", "bool"),
        state("reduce"),
        column("reduce_init", "the value that load_reduce loads"),
        result(),
        label="modelled",
        gathered=(0,),
    ),
    row(
        "tensor_scalar_cumulative",
        "vector",
        "dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce, "
        "name=None",
        "register = op1(op0(src, imm0), register); dst = every value of the register.",
        out(never=_WORDS, text="no 32-bit integers"),
        tensor("src", never=_WORDS, text="no 32-bit integers", like="dst"),
        column("imm0", fp32=True),
        operator("op0", _ARITHMETIC, "an arithmetic operator"),
        operator("op1", _ACCUMULATED | {"subtract"}),
        command("reset_reduce reduce load_reduce", loads="imm1"),
        state("reduce"),
        column("imm1", "the value that load_reduce loads", fp32=True),
        gathered=(0,),
    ),
    lanes(
        "tensor_tensor_scan",
        "vector",
        "dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, "
        "name=None",
        "dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i]) along the free axis.",
        out(),
        tensor("data0", like="dst"),
        tensor("data1", like="dst"),
        column("initial", "dst[i - 1] for i = 0"),
        operator("op0", BINARY_ARITHMETIC, "an arithmetic operator"),
        operator("op1", BINARY_ARITHMETIC, "an arithmetic operator"),
        flag("reverse0", "whether to swap the operands of op0"),
        flag("reverse1", "whether to swap the operands of op1"),
        one_in_psum=(0, 1),
    ),
    lanes(
        "bn_stats",
        "vector",
        "dst, data, name=None",
        "(count, mean, variance * count) of even, then odd elements of each partition.",
        out(elements=6),
        tensor(
            "data",
            counts=range(513),
            text="at most 512 elements per partition; for more, one bn_stats per "
            "piece and one bn_aggr for all pieces",
        ),
        label="modelled",
    ),
    lanes(
        "bn_aggr",
        "vector",
        "dst, data, name=None",
        "mean and variance per partition of what several `bn_stats` wrote.",
        out(elements=2),
        tensor(
            "data",
            counts=range(0, 1 << 31, 3),
            text="rows of triples (count, mean, variance * count): a multiple of 3 "
            "elements per partition",
        ),
        label="modelled",
    ),
    lanes(
        "max8",
        "vector",
        "dst, src, name=None",
        "The 8 largest values of every partition, in descending order.",
        out(elements=8),
        tensor("src", **_SEARCHED),
    ),
    lanes(
        "nc_find_index8",
        "vector",
        "dst, data, vals, name=None",
        "Indices in data of 8 values per partition; all bits 1 if data lacks a value.",
        out(elements=8, dtypes=_INDEX),
        tensor("data", **_SEARCHED),
        tensor("vals", elements=8),
    ),
    lanes(
        "nc_match_replace8",
        "vector",
        "dst, data, vals, imm, dst_idx=None, name=None",
        "dst = data with the first match of each of 8 values replaced by imm.",
        out(),
        tensor("data", like="dst", **_SEARCHED),
        tensor("vals", elements=8),
        number("imm"),
        out(
            "dst_idx",
            elements=8,
            dtypes=_INDEX,
            optional=True,
            text="receives the indices of the replaced elements",
        ),
    ),
)


COMPUTING = (*_TENSOR_ENGINE, *_SCALAR_ENGINE, *_ELEMENTWISE, *_REDUCTIONS)
