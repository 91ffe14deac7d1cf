"""What the instructions of `nki.isa` compute, in NumPy, one element after the other.

Written from the public reference of NKI 0.6 alone. Tiles are arrays [partitions, ...]
in the dtype of the tile; every function returns what the instruction writes, in
FP32 (arithmetic) or in the integer dtype (bit vectors), before the one rounding on
write, which is `write`. Where the reference is silent, the choice is the behaviour
contract's: FP32 arithmetic without fused operations, subnormals of FP32 read and
written as zeros of their sign, left folds. Elementary functions are float64.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

F32 = np.float32
FP32_MIN = F32(-3.4028235e38)
_TINY = np.finfo(np.float32).tiny


def flush(x):
    """FP32, its subnormals zeros of their sign."""
    x = np.asarray(x, F32)
    return np.where(np.abs(x) < _TINY, np.copysign(F32(0), x), x)


def read(tile):
    """A tile as the engines read it: FP32."""
    return flush(np.asarray(tile).astype(F32))


def write(x, dtype):
    """The one rounding on write: to nearest even; integers saturate, NaN is 0."""
    dtype = np.dtype(dtype)
    x = flush(x)
    if dtype.kind not in "iu":
        return x.astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rounded = np.rint(np.where(np.isnan(x), 0, x).astype(np.float64))
    return np.clip(rounded, low, high).astype(np.int64).astype(dtype)


def _binary(function):
    return lambda a, b: flush(function(flush(a), flush(b)).astype(F32))


def _larger_magnitude(a, b):
    return np.where(np.abs(a) > np.abs(b), a, b)


def _smaller_magnitude(a, b):
    return np.where(np.abs(a) < np.abs(b), a, b)


#: Arithmetic operators: FP32 in, FP32 out; comparisons and logic give 0.0 and 1.0.
ARITHMETIC = {
    "add": _binary(lambda a, b: a + b),
    "subtract": _binary(lambda a, b: a - b),
    "multiply": _binary(lambda a, b: a * b),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "equal": _binary(lambda a, b: a == b),
    "not_equal": _binary(lambda a, b: a != b),
    "greater_equal": _binary(lambda a, b: a >= b),
    "greater": _binary(lambda a, b: a > b),
    "less_equal": _binary(lambda a, b: a <= b),
    "less": _binary(lambda a, b: a < b),
    "logical_and": _binary(lambda a, b: (a != 0) & (b != 0)),
    "logical_or": _binary(lambda a, b: (a != 0) | (b != 0)),
    "logical_xor": _binary(lambda a, b: (a != 0) ^ (b != 0)),
    "abs_max": _binary(_larger_magnitude),
    "abs_min": _binary(_smaller_magnitude),
}

#: Operators of one operand; the second is ignored.
UNARY = {
    "abs": lambda a: flush(np.abs(flush(a))),
    "square": lambda a: flush(flush(a) * flush(a)),
    "relu": lambda a: flush(np.maximum(flush(a), F32(0))),
}


def _shift(function):
    def shifted(a, b):
        bits = a.dtype.itemsize * 8
        unsigned = np.dtype(f"uint{bits}")
        amount = np.asarray(b).astype(np.int64)
        result = function(a.view(unsigned).astype(np.uint64), amount.astype(np.uint64))
        kept = result & np.uint64(2**bits - 1)
        return np.where(amount >= bits, 0, kept).astype(unsigned).view(a.dtype)

    return shifted


#: Bit vector operators: integers of one dtype.
BITVEC = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": _shift(lambda a, b: a << np.minimum(b, np.uint64(63))),
    "right_shift": _shift(lambda a, b: a >> np.minimum(b, np.uint64(63))),
}


def apply(op, a, b=None, *, reverse=False):
    """`a op b`, or `b op a`."""
    if op in UNARY:
        return UNARY[op](a)
    left, right = (b, a) if reverse else (a, b)
    return ARITHMETIC[op](left, right)


def _column(operand, tile):
    """A scalar, or one element per partition, beside a tile."""
    operand = read(operand)
    if operand.ndim == 0:
        return operand
    return operand.reshape(operand.shape[0], *[1] * (tile.ndim - 1))


def _rows(tile):
    return np.asarray(tile).reshape(tile.shape[0], -1)


def _fold(op, rows, start=None):
    """Left fold of every row, from `start` or from its first element."""
    total, first = (rows[:, 0], 1) if start is None else (start, 0)
    for i in range(first, rows.shape[1]):
        total = apply(op, total, rows[:, i])
    return total


# -- VectorE -------------------------------------------------------------------------


def tensor_tensor(a, b, op):
    if op in BITVEC:
        return BITVEC[op](a, b)
    return apply(op, read(a), read(b))


def tensor_scalar(
    data, op0, operand0, op1=None, operand1=None, reverse0=False, reverse1=False
):
    if op0 == "invert" or op0 in BITVEC:
        return _bits(_bits(data, op0, operand0), op1, operand1)
    x = read(data)
    x = apply(op0, x, _operand(operand0, x), reverse=reverse0)
    if op1 is not None:
        x = apply(op1, x, _operand(operand1, x), reverse=reverse1)
    return x


def _operand(operand, tile):
    return F32(0) if operand is None else _column(operand, tile)


def _bits(data, op, operand):
    if op is None:
        return data
    if op == "invert":
        return ~data
    return BITVEC[op](data, np.asarray(operand, data.dtype))


def scalar_tensor_tensor(
    data, op0, operand0, op1, operand1, reverse0=False, reverse1=False
):
    x = read(data)
    x = apply(op0, x, _column(operand0, x), reverse=reverse0)
    return apply(op1, x, read(operand1), reverse=reverse1)


def tensor_reduce(data, op, kept_axes, negate=False, tile=512):
    """Reduces all but the first `kept_axes` axes; sums in tiles of 512 elements.

    Each tile is a left fold from its own first element, the result the left fold of
    the tiles' (the contract's order of VectorE).
    """
    shape = data.shape[:kept_axes]
    flat = data.reshape(math.prod(shape), -1)
    if op in BITVEC:
        total = flat[:, 0]
        for i in range(1, flat.shape[1]):
            total = BITVEC[op](total, flat[:, i])
        return total.reshape(shape)
    flat = read(flat)
    step = tile if op in ("add", "multiply") else flat.shape[1]
    tiles = [flat[:, i : i + step] for i in range(0, flat.shape[1], step)]
    total = _fold(op, np.stack([_fold(op, t) for t in tiles], axis=1))
    return (flush(-total) if negate else total).reshape(shape)


def tensor_tensor_scan(data0, data1, initial, op0, op1, reverse0=False, reverse1=False):
    a, b = read(_rows(data0)), read(_rows(data1))
    state = np.broadcast_to(read(initial).reshape(-1), (a.shape[0],))
    out = np.empty_like(a)
    for i in range(a.shape[1]):
        inner = apply(op0, a[:, i], state, reverse=reverse0)
        state = out[:, i] = apply(op1, inner, b[:, i], reverse=reverse1)
    return out.reshape(data0.shape)


_IDENTITY = {
    "add": F32(0),
    "subtract": F32(0),
    "multiply": F32(1),
    "maximum": F32(-np.inf),
    "minimum": F32(np.inf),
    "abs_max": F32(0),
    "abs_min": F32(np.inf),
}


def register_after(values, register, command, op, init=None):
    """A lane's accumulator after an instruction that offers `values` [P, N] (FP32)."""
    if command in ("idle",):
        return register
    start = {
        "reset": lambda: np.full(values.shape[0], _IDENTITY[op], F32),
        "reset_reduce": lambda: np.full(values.shape[0], _IDENTITY[op], F32),
        "reduce": lambda: register,
        "load_reduce": lambda: np.broadcast_to(
            read(init).reshape(-1), (values.shape[0],)
        ),
    }[command]()
    return start if command == "reset" else _fold(op, _rows(values), start)


def tensor_scalar_reduce(data, op0, operand0, reduce_op, register, command, init=None):
    """The tile, and the accumulator's new value."""
    x = tensor_scalar(data, op0, operand0)
    return x, register_after(x, register, command, reduce_op, init)


def tensor_scalar_cumulative(data, op0, op1, imm0, register, command, imm1=None):
    """The running values, and the accumulator's new value; op1(new, register)."""
    rows = _rows(tensor_scalar(data, op0, imm0))
    state = {
        "reset_reduce": lambda: np.full(rows.shape[0], _IDENTITY[op1], F32),
        "reduce": lambda: register,
        "load_reduce": lambda: np.broadcast_to(
            read(imm1).reshape(-1), (rows.shape[0],)
        ),
    }[command]()
    out = np.empty_like(rows)
    for i in range(rows.shape[1]):
        state = out[:, i] = apply(op1, rows[:, i], state)
    return out.reshape(data.shape), state


def tensor_copy_predicated(dst, src, predicate, reverse=False):
    """What `dst` holds afterwards (FP32 where the dtypes differ)."""
    chosen = np.asarray(predicate) != 0
    return np.where(chosen != reverse, read(src), read(dst))


def select_reduce(predicate, on_true, on_false, register, command, reverse=False):
    chosen = (np.asarray(predicate) != 0) != reverse
    x = np.where(chosen, read(on_true), _column(on_false, on_true))
    return x, register_after(x, register, command, "maximum")


def range_select(data, op0, op1, bound0, bound1, register, command, start=0):
    rows = _rows(read(data))
    index = read(start + np.arange(rows.shape[1], dtype=np.int64))
    first = ARITHMETIC[op0](index[None], read(bound0).reshape(-1, 1))
    second = ARITHMETIC[op1](index[None], read(bound1).reshape(-1, 1))
    x = np.where((first != 0) & (second != 0), rows, FP32_MIN)
    after = register_after(x, register, command, "maximum")
    return x.reshape(data.shape), after


def bn_stats(data):
    """count, mean, variance * count of the even elements, then of the odd (float64)."""
    rows = _rows(read(data)).astype(np.float64)
    halves = (rows[:, ::2], rows[:, 1::2])
    return np.concatenate([_moments(half) for half in halves], axis=1)


def _moments(half):
    count = half.shape[1]
    if count == 0:
        return np.zeros((half.shape[0], 3))
    mean = half.mean(axis=1)
    spread = ((half - mean[:, None]) ** 2).sum(axis=1)
    return np.stack([np.full_like(mean, count), mean, spread], axis=1)


def bn_aggr(data):
    """mean and variance of the union of the groups (float64)."""
    groups = _rows(read(data)).astype(np.float64).reshape(data.shape[0], -1, 3)
    count, mean, spread = groups[..., 0], groups[..., 1], groups[..., 2]
    total = count.sum(axis=1)
    grand = (count * mean).sum(axis=1) / total
    between = (count * (mean - grand[:, None]) ** 2).sum(axis=1)
    return np.stack([grand, (spread.sum(axis=1) + between) / total], axis=1)


def max8(src):
    rows = _rows(read(src))
    return -np.sort(-rows, axis=1)[:, :8]


def nc_find_index8(data, vals, dtype=np.uint32):
    """First index of each value; duplicates of a value take later indices."""
    data, vals = _rows(read(data)), _rows(read(vals))
    out = np.full((data.shape[0], 8), np.iinfo(dtype).max, dtype)
    for p in range(data.shape[0]):
        used = set()
        for i in range(8):
            for n in np.flatnonzero(data[p] == vals[p, i]):
                if n not in used:
                    used.add(n)
                    out[p, i] = n
                    break
    return out


def nc_match_replace8(data, vals, imm, dtype=np.uint32):
    """The tile with the matches replaced, and their indices."""
    rows, vals = _rows(read(data)), _rows(read(vals))
    out = rows.copy()
    index = np.full((rows.shape[0], 8), np.iinfo(dtype).max, dtype)
    for p in range(rows.shape[0]):
        used = set()
        for i in range(7, -1, -1):
            for n in np.flatnonzero(rows[p] == vals[p, i]):
                if n not in used:
                    used.add(n)
                    out[p, n] = F32(imm)
                    index[p, i] = n
                    break
    return out.reshape(data.shape), index


def nc_stream_shuffle(dst, src, mask):
    out = np.array(dst)
    for p in range(out.shape[0]):
        source = mask[p % 32]
        if source != 255:
            out[p] = src[p // 32 * 32 + source]
    return out


def nc_transpose(data):
    return np.ascontiguousarray(_rows(data).T)


# -- GpSimdE -------------------------------------------------------------------------


def affine(pattern, offset, multiplier, partitions):
    """int32 values [partitions, elements] of `iota` and `affine_select`."""
    counts = [count for _, count in pattern]
    values = np.zeros(counts, np.int64)
    for axis, (step, count) in enumerate(pattern):
        shape = [1] * len(counts)
        shape[axis] = count
        values = values + step * np.arange(count).reshape(shape)
    channel = np.arange(partitions).reshape(-1, 1) * multiplier
    return (offset + channel + values.reshape(1, -1)).astype(np.int32)


def affine_select(pattern, multiplier, on_true, on_false, op="equal", offset=0):
    value = affine(pattern, offset, multiplier, on_true.shape[0])
    chosen = ARITHMETIC[op](np.sign(value).astype(F32), F32(0)) != 0
    rows = np.where(chosen, _rows(read(on_true)), F32(on_false))
    return rows.reshape(on_true.shape)


def tensor_partition_reduce(data, op):
    rows = np.asarray(data)
    if op in BITVEC:
        total = rows[0]
        for row in rows[1:]:
            total = BITVEC[op](total, row)
        return total[None]
    name = {"average": "add"}.get(op, op)
    total = read(rows[0])
    for row in rows[1:]:
        total = apply(name, total, read(row))
    if op == "average":
        total = flush(total / F32(rows.shape[0]))
    return total[None]


def local_gather(src, index, elements=1, valid=None):
    """Per group of 16 partitions; indices partition first; `elements` per index."""
    groups = src.shape[0] // 16
    rows = _rows(src)
    out = []
    for g in range(groups):
        part = slice(16 * g, 16 * g + 16)
        flat = np.asarray(index)[part].T.reshape(-1)[:valid]
        picks = flat.astype(np.int64)[:, None] + np.arange(elements)
        out.append(rows[part][:, picks.reshape(-1)])
    return np.concatenate(out)


def nc_n_gather(data, indices):
    rows, picks = _rows(data), _rows(indices).astype(np.int64)
    return np.take_along_axis(rows, picks, axis=1).reshape(indices.shape)


def sequence_bounds(segment_ids):
    """[1, 2, n]: where the run of the element's id begins and ends (exclusive)."""
    ids = np.asarray(segment_ids).reshape(-1).astype(np.int64)
    n = ids.size
    start, end = np.full(n, n), np.full(n, -1)
    for i in range(n):
        if ids[i]:
            where = np.flatnonzero(ids == ids[i])
            start[i], end[i] = where[0], where[-1] + 1
    return np.stack([start, end])[None]


def nonzero_with_count(dst, src, index_offset=0, padding=-1):
    out = np.array(dst)
    for p in range(0, src.shape[0], 16):
        found = np.flatnonzero(src[p] != 0)
        out[p] = padding
        out[p, : found.size] = found + index_offset
        out[p, -1] = found.size
    return out


def topk(src, k, n):
    """Of each 16-partition snake: the k largest, ascending, and their indices."""
    values, indices = [], []
    for g in range(src.shape[0] // 16):
        snake = src[16 * g : 16 * g + 16].T.reshape(-1)[:n].astype(F32)
        order = np.argsort(-snake, kind="stable")[:k][::-1]
        values += [snake[order]] * 16
        indices += [order] * 16
    return np.stack(values), np.stack(indices).astype(np.uint32)


# -- TensorE, DMA --------------------------------------------------------------------


def nc_matmul(stationary, moving):
    """[M, N] in float64, exactly summed: bounds the error of any order of addition."""
    left = np.asarray(stationary).astype(np.float64)
    right = np.asarray(moving).astype(np.float64)
    return left.T @ right.reshape(right.shape[0], -1)


def nc_matmul_in_order(stationary, moving):
    """[M, N] FP32: the left fold down the rows, exact products (16-bit operands)."""
    left, right = read(stationary), _rows(read(moving))
    total = np.zeros((left.shape[1], right.shape[1]), F32)
    for k in range(left.shape[0]):
        product = left[k][:, None].astype(np.float64) * right[k].astype(np.float64)
        total = flush((total.astype(np.float64) + product).astype(F32))
    return total


def dma_transpose(src):
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    return np.transpose(src, axes)


def dma_compute(sources):
    total = read(sources[0])
    for source in sources[1:]:
        total = flush(total + read(source))
    return total


def quantize_mx(src, element):
    """Elements [P, F] and scale bytes [P / 8, F / 4], groups of 8 x 4.

    The scale is 2^(floor(log2 amax) - (emax - 1)), 2^-127 for a group of zeros. The
    contract's: a group with a NaN or an Inf has scale 0xFF and elements of code 0.
    """
    emax = {"float8_e4m3fn": 8, "float8_e5m2": 15}[element]
    x = read(src).astype(np.float64)
    groups = x.reshape(x.shape[0] // 8, 8, x.shape[1] // 4, 4)
    amax = np.abs(groups).max(axis=(1, 3))
    bad = ~np.isfinite(amax)
    exponent = np.frexp(np.where(bad | (amax == 0), 1, amax))[1] - 1
    power = np.where(amax == 0, -127, np.maximum(exponent - (emax - 1), -127))
    power = np.where(bad, 128, power)
    groups = np.where(bad[:, None, :, None], 0, groups)
    scaled = groups * np.exp2(-power.astype(np.float64))[:, None, :, None]
    codes = scaled.astype(F32).astype(getattr(ml_dtypes, element))
    return codes.reshape(x.shape), (power + 127).astype(np.uint8)


def pack_x4(elements):
    """Words of four elements each, the first in the lowest bits: uint32 or uint16."""
    size = 4 if elements.dtype == ml_dtypes.float4_e2m1fn else 8
    codes = np.asarray(elements).view(np.uint8).astype(np.uint64) & (2**size - 1)
    quads = codes.reshape(codes.shape[0], -1, 4)
    words = sum(quads[..., j] << np.uint64(size * j) for j in range(4))
    return words.astype(np.uint32 if size == 8 else np.uint16)


def place_scales(scales, offset=0, partitions=None):
    """[P / 8, F] on partitions offset .. offset + 3 of every quadrant, else zeros."""
    total = scales.shape[0] * 8 if partitions is None else partitions
    out = np.zeros((total, scales.shape[1]), scales.dtype)
    for group in range(scales.shape[0]):
        out[group // 4 * 32 + offset + group % 4] = scales[group]
    return out


def dequantize_mx(elements, scales):
    """FP32 [P, F, 4] of elements [P, 4 F] and scale bytes [P / 8, F]."""
    partitions, free = elements.shape[0], elements.shape[1] // 4
    values = elements.astype(np.float64).reshape(partitions, free, 4)
    power = np.repeat(scales.astype(np.int64) - 127, 8, axis=0)[..., None]
    scaled = values * np.exp2(power.astype(np.float64))
    with np.errstate(over="ignore"):
        return np.where(power == 128, F32(np.nan), flush(scaled.astype(F32)))


def nc_matmul_mx(stationary, moving):
    """[M, N] FP32 of two operands of `dequantize_mx`: quads first, then partitions."""
    total = np.zeros((stationary.shape[1], moving.shape[1]), F32)
    for a, b in zip(stationary, moving, strict=True):
        cell = flush(a[:, None, 0] * b[None, :, 0])
        for j in range(1, 4):
            cell = flush(cell + flush(a[:, None, j] * b[None, :, j]))
        total = flush(total + cell)
    return total


# -- ScalarE -------------------------------------------------------------------------

_erf = np.vectorize(math.erf)
_PHI = 1 / math.sqrt(2 * math.pi)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softplus(x):
    return np.logaddexp(0, x)


def _gelu_slope(x):
    return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * _PHI * np.exp(-x * x / 2)


def _sigmoid_gelu_slope(x):
    s = _sigmoid(1.702 * x)
    return s + 1.702 * x * s * (1 - s)


#: Activation functions in float64; within their documented ranges.
ACTIVATIONS = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_dx": _gelu_slope,
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": _sigmoid_gelu_slope,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
}


def activation(data, op, scale=1.0, bias=0.0):
    """op(data * scale + bias): FP32 up to the function, which is float64."""
    x = read(data)
    x = apply("multiply", x, _column(scale, x))
    x = apply("add", x, _column(bias, x))
    return ACTIVATIONS[op](x.astype(np.float64))


# -- Tensor indirection --------------------------------------------------------------


def offsets(index, partition, count, group):
    """What partition `partition` finds: offset i is index[i % group, i // group]."""
    first = partition // group * group
    return [int(index[first + i % group, i // group]) for i in range(count)]


def gathered(tile, index, count, group):
    """A view that is read: one element per offset, of every partition."""
    rows = _rows(tile)
    picks = [offsets(index, p, count, group) for p in range(len(rows))]
    return np.stack([row[pick] for row, pick in zip(rows, picks, strict=True)])


def scattered(tile, index, values, group):
    """A view that is written, offset by offset; the rest stays."""
    rows = _rows(tile).copy()
    for p, row in enumerate(rows):
        for i, place in enumerate(offsets(index, p, values.shape[1], group)):
            row[place] = values[p, i]
    return rows.reshape(tile.shape)
