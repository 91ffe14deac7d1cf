"""A chip that is none: the vendor's `nki`, in NumPy, with every choice a setting.

The kit's own run.py and kernels.py run on it, unchanged. It shares no code with
`neuronjax.testing.silicon`: sums are trees of indices, casts look up the neighbours in
the list of all numbers of a format, FP32 operands are split in float64. `Choices` names
each choice as the report does, so that a report can be held against it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import select
from tests.oracles import collectives, floats

F32 = np.float32
_TINY = F32(2.0**-126)
_NAMES = {1: "tensor", 5: "vector", 2: "scalar", 3: "gpsimd"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
    """What the chip does; the defaults are what neuronjax says."""

    vector_sum: str = "tiles of 512"
    scalar_sum: str = "left fold"
    partition_sum: str = "left fold"
    tensor_sum: str = "left fold"
    psum: str = "left fold"
    through_psum: bool = False
    split: str = "12 bits cut"
    passes: str = "hh hl lh ll"
    fp32: str = "by 32 rows"
    cell: str = "cell first, then rows"
    statistics: str = "two passes"
    fused: bool = False
    divide: str = "correctly rounded"
    reciprocal: str = "correctly rounded"
    rounding: str = "nearest even"
    overflow: str = "Inf"
    narrow_subnormals: str = "kept"
    integer_overflow: str = "nearest end"
    integer_nan: str = "0"
    subnormals: str = "signed zeros"
    dma_subnormals: str = "signed zeros"
    nan: str = "the NaN"
    zeros: str = "-0 is below +0"
    payload: str = "the first operand's"
    vector_integers: str = "by way of FP32"
    gpsimd_integers: str = "exact, lower 32 bits"
    transpose: str = "the same bits"
    scales: str = "neuron"
    random: str = "in proportion"
    function: str = "correctly rounded"
    ranks: str = "by size"


class Tile:
    """An array in some memory; slices are views."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key):
        return Tile(self.array[key])

    def __array__(self, dtype=None, copy=None):
        return self.array


def values(tile) -> np.ndarray:
    """FP32 [partitions, elements]."""
    array = tile.array if isinstance(tile, Tile) else np.asarray(tile)
    with np.errstate(invalid="ignore"):
        return array.reshape(len(array), -1).astype(F32)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


# -- Sums as trees ---------------------------------------------------------------------


def left(leaves):
    return functools.reduce(lambda a, b: (a, b), leaves)


def tree(order: str, leaves: list):
    """Nested pairs of indices."""
    word, _, number = order.rpartition(" ")
    if order == "left fold":
        return left(leaves)
    if order == "right fold":
        return left(leaves[::-1])
    if word == "tiles of":
        size = int(number)
        starts = range(0, len(leaves), size)
        return left([left(leaves[s : s + size]) for s in starts])
    if order.endswith(" lanes"):
        count = int(order.split()[0])
        return left([left(leaves[i::count]) for i in range(min(count, len(leaves)))])
    if len(leaves) == 1:
        return leaves[0]
    if order == "tree of neighbours":
        pairs = [tuple(leaves[i : i + 2]) for i in range(0, len(leaves), 2)]
        return tree(order, [p if len(p) == 2 else p[0] for p in pairs])
    assert order == "tree of halves"
    half = (len(leaves) + 1) // 2
    low, high = leaves[:half], leaves[half:]
    return tree(order, [*zip(low, high, strict=False), *low[len(high) :]])


def evaluate(node, terms):
    """A tree over the last axis; left spines are long, so without recursion there."""
    spine = []
    while isinstance(node, tuple):
        spine.append(node[1])
        node = node[0]
    total = terms[..., node]
    for other in reversed(spine):
        total = (total + evaluate(other, terms)).astype(F32)
    return total


def cut(exact: np.ndarray) -> np.ndarray:
    """FP32 of float64, toward zero."""
    near = exact.astype(F32)
    away = np.abs(near.astype(np.float64)) > np.abs(exact)
    return np.where(away, np.nextafter(near, F32(0)), near)


def fold(order: str, terms: np.ndarray) -> np.ndarray:
    if order == "float64, rounded once":
        return np.array(terms, np.longdouble).sum(axis=-1).astype(F32)
    if order == "left fold toward zero":
        total = terms[..., 0].astype(F32)
        for i in range(1, terms.shape[-1]):
            total = cut(np.float64(total) + np.float64(terms[..., i]))
        return total
    return evaluate(tree(order, list(range(terms.shape[-1]))), terms)


# -- Casts -----------------------------------------------------------------------------


@functools.cache
def grid(dtype: np.dtype) -> np.ndarray:
    """Every finite number of a float format from zero up, float64, by code."""
    count = 1 << (8 * dtype.itemsize - 1)
    codes = np.arange(count, dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        found = codes.astype(np.float64)
    return found[np.isfinite(found)]


def between(below, above, x, rounding, is_odd, negative):
    """Which of two neighbours, float64 magnitudes, a magnitude becomes."""
    middle = (below + above) / 2
    choose = {
        "nearest even": (x > middle) | ((x == middle) & is_odd),
        "nearest, half away": x >= middle,
        "toward zero": np.zeros(x.shape, bool),
        "down": negative,
        "to odd": ~is_odd,
    }[rounding]
    return np.where(x == below, below, np.where(choose, above, below))


def to_float(chip: Choices, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    table = grid(dtype)
    table = np.append(table, 2 * table[-1] - table[-2])
    exact = np.nan_to_num(np.abs(x.astype(np.float64)), nan=0, posinf=0)
    at = np.minimum(np.searchsorted(table, exact, side="right") - 1, len(table) - 2)
    used = [(exact <= table[-2], chip.rounding), (exact > table[-2], "nearest even")]
    found = np.zeros_like(exact)
    for mask, how in used:
        some = between(table[at], table[at + 1], exact, how, at % 2 == 1, x < 0)
        found = np.where(mask, some, found)
    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    tiny = (exact < smallest) & (exact > 0)
    if chip.narrow_subnormals != "kept" and smallest > 2.0**-126:
        found = np.where(tiny, 0, found)
    beyond = {"Inf": np.inf, "the largest": table[-2], "NaN": np.nan}[chip.overflow]
    found = np.where(found > table[-2], beyond, found)
    found = np.where(np.isfinite(x), np.copysign(found, x), x)
    if chip.narrow_subnormals == "zeros" and smallest > 2.0**-126:
        found = np.where(tiny, 0.0, found)
    with np.errstate(invalid="ignore", over="ignore"):
        return found.astype(dtype)


def to_integer(chip: Choices, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    exact = np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e30, neginf=-1e30)
    size = np.abs(exact)
    whole = np.floor(size)
    if chip.rounding == "down":
        whole, size = np.floor(exact), exact
        found = whole
    else:
        odd = np.mod(whole, 2) == 1
        some = between(whole, whole + 1, size, chip.rounding, odd, x < 0)
        found = np.copysign(some, exact)
    inside = (found >= info.min) & (found <= info.max)
    wrapped = np.vectorize(lambda v: int(v) % (1 << info.bits), otypes=[object])
    outside = {
        "nearest end": lambda: np.where(exact > 0, info.max, info.min),
        "lower bits": lambda: wrapped(np.trunc(exact)).astype(np.uint64).astype(dtype),
        "smallest": lambda: np.full(x.shape, info.min),
    }[chip.integer_overflow]()
    nan = {"0": 0, "smallest": info.min, "largest": info.max}[chip.integer_nan]
    found = np.where(inside, found, 0).astype(np.int64)
    found = np.where(inside, found, np.asarray(outside).astype(np.int64))
    return np.where(np.isnan(x), nan, found).astype(dtype)


def read(how: str, x: np.ndarray) -> np.ndarray:
    """Subnormals on the way in."""
    zero = {"signed zeros": 1, "zeros": 1, "read as zeros, written as is": 1}
    tiny = np.abs(x) < _TINY
    return np.where(tiny, np.copysign(F32(0), x), x) if how in zero else x


def written(how: str, x: np.ndarray) -> np.ndarray:
    """Subnormals on the way out."""
    if how in ("kept", "read as zeros, written as is"):
        return x
    x = np.where(np.abs(x) < _TINY, np.copysign(F32(0), x), x)
    return x + F32(0) if how == "zeros" else x


# -- The package -----------------------------------------------------------------------


class Isa:
    """`nki.isa`; dst is an array that is written."""

    tensor_engine, vector_engine, scalar_engine, gpsimd_engine = 1, 5, 2, 3
    matmul_perf_mode = types.SimpleNamespace(double_row="double_row")

    def __init__(self, chip: Choices, stochastic: bool):
        self.chip, self.stochastic = chip, stochastic
        self.random = np.random.default_rng(0)
        self.tiles: dict[int, list[np.ndarray]] = {}

    def run(self, kernel, *arrays):
        self.tiles = {}
        with np.errstate(all="ignore"):
            return _results(kernel(*map(Tile, arrays)))

    def write(self, dst, x):
        dtype = dst.dtype
        if dtype == F32:
            found = x.astype(F32)
        elif dtype.kind in "iu":
            found = to_integer(self.chip, x, dtype)
        elif self.stochastic:
            found = self.raised(x).astype(dtype)
        else:
            found = to_float(self.chip, x, dtype)
        dst.array[...] = found.reshape(dst.shape)

    def raised(self, x):
        """BF16 up by chance: of every fraction a share."""
        low = (bits(x) & np.uint32(0xFFFF0000)).view(F32)
        share = (bits(x) & np.uint32(0xFFFF)) / 65536
        share = {
            "in proportion": share,
            "in proportion, 8 random bits": np.floor(share * 256) / 256,
            "up or down equally often": np.full(x.shape, 0.5),
            "not at all": np.zeros(x.shape),
        }[self.chip.random]
        up = self.random.random(x.shape) < share
        return np.where(up, (bits(low) + np.uint32(0x10000)).view(F32), low)

    def dma_copy(self, dst, src):
        source = src.array if isinstance(src, Tile) else src
        if source.dtype == dst.dtype:
            dst.array[...] = source.reshape(dst.shape)
            return
        x = values(src)
        if self.chip.dma_subnormals != "kept":
            tiny = np.abs(x) < _TINY
            x = np.where(tiny, np.copysign(F32(0), x), x)
            if self.chip.dma_subnormals == "zeros":
                x = np.where(tiny, F32(0), x)
        self.write(dst, x)

    def tensor_copy(self, dst, src, engine=None):
        if src.dtype == dst.dtype:
            dst.array[...] = src.array
        else:
            self.write(dst, values(src))

    def tensor_reduce(self, dst, op, data, axis):
        dst.array[...] = fold(self.chip.vector_sum, data.array).reshape(dst.shape)

    def tensor_partition_reduce(self, dst, op, data):
        dst.array[...] = fold(self.chip.partition_sum, values(data).T)[None]

    def activation(self, dst, op, data, scale=None, bias=None):
        x = read(self.chip.subnormals, values(data))
        if bias is not None:
            x = self.combined(x, values(scale), values(bias))
        elif scale is not None:
            x = written(self.chip.subnormals, x * values(scale))
        self.write(dst, FUNCTIONS[op](self.chip, x) if op in FUNCTIONS else 0 * x)

    def activation_reduce(self, dst, op, data, reduce_op, reduce_res):
        self.tensor_copy(dst, data)
        total = fold(self.chip.scalar_sum, values(data))
        reduce_res.array[...] = total[:, None]

    def combined(self, a, b, c):
        if self.chip.fused:
            return floats.fma(*np.broadcast_arrays(a, b, c))
        return (a * b + c).astype(F32)

    def scalar_tensor_tensor(self, dst, data, op0, operand0, op1, operand1):
        c = values(operand0)
        dst.array[...] = self.combined(values(data), c, values(operand1))

    def tensor_tensor_scan(self, dst, data0, data1, initial, op0, op1):
        state = values(initial)[:, 0]
        for i in range(dst.shape[1]):
            state = self.combined(values(data0)[:, i], state, values(data1)[:, i])
            dst.array[:, i] = state

    def tensor_tensor(self, dst, data1, data2, op, engine=5):
        if dst.dtype.kind == "i":
            self.integers(dst, data1.array, data2.array, op, _NAMES[engine])
            return
        a, b = values(data1), values(data2)
        if op == "divide":
            dst.array[...] = self.quotient(a, b)
        elif op == "multiply":
            how = self.chip.subnormals
            dst.array[...] = written(how, read(how, a) * read(how, b))
        elif op == "add":
            dst.array[...] = self.special_sum(a, b)
        else:
            dst.array[...] = self.extreme(a, b, op)

    def quotient(self, a, b):
        exact = a.astype(np.float64) / b
        return {
            "correctly rounded": lambda: exact.astype(F32),
            "times the reciprocal": lambda: a * (1 / b.astype(np.float64)).astype(F32),
            "cut off": lambda: cut(exact),
        }[self.chip.divide]()

    def special_sum(self, a, b):
        with np.errstate(all="ignore"):
            total = a + b
        first, second = (a, b) if self.chip.payload == "the first operand's" else (b, a)
        chosen = np.where(np.isnan(first), bits(first), bits(second))
        payload = chosen | np.uint32(1 << 22)
        if self.chip.payload.startswith("0x"):
            payload = np.full(a.shape, int(self.chip.payload, 16), np.uint32)
        nan = np.isnan(a) | np.isnan(b)
        return np.where(nan, payload, bits(total)).view(F32)

    def extreme(self, a, b, op):
        larger = op == "maximum"
        first_wins = a > b if larger else a < b
        second_wins = b > a if larger else b < a
        negative = np.signbit(a) & np.signbit(b)
        if not larger:
            negative = np.signbit(a) | np.signbit(b)
        plain = np.where(first_wins, a, b)
        found = {
            "the NaN": np.where(np.isnan(a) | np.isnan(b), F32(np.nan), plain),
            "the number": np.where(np.isnan(b), a, np.where(np.isnan(a), b, plain)),
            "the first": np.where(second_wins, b, a),
            "the second": np.where(first_wins, a, b),
        }[self.chip.nan]
        zeros = {
            "-0 is below +0": np.where(negative, F32(-0.0), F32(0)),
            "the first": a,
            "the second": b,
        }[self.chip.zeros]
        return np.where((a == 0) & (b == 0), zeros, found)

    def integers(self, dst, a, b, op, engine):
        how = getattr(self.chip, f"{engine}_integers")
        exact = {"add": np.add, "multiply": np.multiply}[op](
            a.astype(np.int64), b.astype(np.int64)
        )
        if how == "by way of FP32":
            wide = {"add": np.add, "multiply": np.multiply}[op](F32(a), F32(b))
            exact = np.clip(np.rint(np.float64(wide)), -(2.0**31), 2.0**31 - 1)
        dst.array[...] = exact.astype(np.int64).astype(np.uint32).view(np.int32)

    def reciprocal(self, dst, data):
        exact = 1 / values(data).astype(np.float64)
        right = self.chip.reciprocal == "correctly rounded"
        dst.array[...] = exact.astype(F32) if right else cut(exact)

    def bn_stats(self, dst, data):
        for half in range(2):
            x = values(data)[:, half::2]
            n = F32(x.shape[1])
            if self.chip.statistics == "two passes":
                mean = fold("left fold", x) / n
                square = fold("left fold", (x - mean[:, None]) ** 2)
            elif self.chip.statistics == "sums of x and x * x":
                total = fold("left fold", x)
                mean = total / n
                square = fold("left fold", x * x) - total * total / n
            else:
                mean, square = x[:, 0].copy(), np.zeros(len(x), F32)
                for count in range(2, x.shape[1] + 1):
                    delta = x[:, count - 1] - mean
                    mean = mean + delta / F32(count)
                    square = square + delta * (x[:, count - 1] - mean)
            dst.array[:, 3 * half : 3 * half + 3] = np.stack(
                [np.full(len(x), n), mean, square], axis=1
            )

    def nc_transpose(self, dst, data, engine):
        x = data.array.T
        if self.chip.transpose == "by way of FP32":
            x = written("signed zeros", read("signed zeros", x))
            x = np.where(np.isnan(x), F32(np.nan), x)
        dst.array[...] = x

    # TensorE.

    def nc_matmul(self, dst, stationary, moving, perf_mode=None):
        x, y = stationary.array, moving.array
        if perf_mode:
            pairs = [self.products(x[:, r], y[:, r]) for r in range(2)]
            dst.array[...] = self.cells(np.stack(pairs, axis=-1))
            return
        if x.dtype == F32:
            by_rows = "tiles of 32" if self.chip.fp32 == "by 32 rows" else None
            self.accumulate(dst, self.fp32_passes(x, y), by_rows)
            return
        self.accumulate(dst, [self.products(x, y)])

    def products(self, x, y):
        how = self.chip.subnormals
        left_, right_ = (read(how, v.astype(F32)) for v in (x, y))
        found = left_.T[:, None, :] * right_.T[None, :, :]
        return written("zeros" if how.startswith("zeros") else how, found)

    def fp32_passes(self, x, y):
        """[m, n, K] of every pass; all of them in turn for one row."""
        parts = [self.halves(v) for v in (x, y)]
        names = self.chip.passes.split()
        terms = [
            parts[0]["hl".index(n[0])].T[:, None] * parts[1]["hl".index(n[1])].T[None]
            for n in names
        ]
        if self.chip.fp32 == "row by row":
            total = evaluate(left(list(range(len(terms)))), np.stack(terms, axis=-1))
            return [total]
        return terms

    def halves(self, x):
        keep = int(self.chip.split.split()[0])
        fraction, exponent = np.frexp(x.astype(np.float64))
        scaled = np.ldexp(fraction, keep)
        whole = np.trunc(scaled) if "cut" in self.chip.split else np.rint(scaled)
        upper = np.ldexp(whole, exponent - keep).astype(F32)
        return upper, x - upper

    def accumulate(self, dst, passes, order=None):
        """Every tile's sum, added to the earlier ones; by the address of dst."""
        key = dst.array.__array_interface__["data"][0]
        held = self.tiles.setdefault(key, [])
        if self.chip.through_psum:
            held += [np.moveaxis(p, -1, 0) for p in passes]
            terms = np.moveaxis(np.concatenate(held), 0, -1)
            total = fold("left fold", terms)
        else:
            held += [fold(order or self.chip.tensor_sum, p) for p in passes]
            total = fold(self.chip.psum, np.stack(held, axis=-1))
        how = self.chip.subnormals
        zero = "zeros" if how.startswith("zeros") else how
        dst.array[...] = written(zero, total + F32(0))

    def cells(self, terms):
        one = terms.reshape(*terms.shape[:-2], -1)
        turned = np.swapaxes(terms, -1, -2)
        rows = {
            "cell first, then rows": lambda: fold("left fold", terms),
            "cell as a tree, then rows": lambda: fold("tree of neighbours", terms),
            "cell last to first, then rows": lambda: fold("right fold", terms),
            "a sum for each slot": lambda: fold("left fold", turned),
            "all one by one": lambda: one,
            "slot after slot": lambda: turned.reshape(one.shape),
        }[self.chip.cell]()
        return fold("left fold", rows)

    def quantize_mx(self, dst, src, dst_scale):
        x = values(src).astype(np.float64)
        partitions, free = x.shape
        blocks = x.reshape(partitions // 8, 8, free // 4, 4)
        amax = np.abs(blocks).max(axis=(1, 3))
        amax = np.maximum(amax, 2.0**-200)
        exponent = {
            "ocp_floor": np.floor(np.log2(amax)) - 8,
            "neuron": np.floor(np.log2(amax)) - 7,
            "ceil": np.ceil(np.log2(amax)) - 8,
            "rceil": np.ceil(np.log2(amax / 448)),
        }[self.chip.scales]
        exponent = np.maximum(exponent, -127)
        dst_scale.array[...] = (exponent + 127).astype(np.uint8)
        scaled = blocks / np.exp2(exponent)[:, None, :, None]
        codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        dst.array[...] = codes.reshape(partitions, free).view(np.uint32)

    def nc_matmul_mx(self, dst, stationary, moving, stationary_scale, moving_scale):
        sides = []
        for words, scales in (
            (stationary, stationary_scale),
            (moving, moving_scale),
        ):
            codes = words.array.view(ml_dtypes.float8_e4m3fn)
            numbers = codes.reshape(*words.shape, 4).astype(F32)
            power = np.exp2(scales.array.astype(F32) - 127)
            sides.append(numbers * np.repeat(power, 8, axis=0)[:, :, None])
        terms = np.einsum("kmi,kni->mnki", *sides)
        dst.array[...] = self.cells(terms)


def _elementary(exact, host=None):
    def function(chip: Choices, x):
        if chip.function == "transcendentals=host":
            return np.asarray(jax.jit(host)(x))
        with np.errstate(all="ignore"):
            return exact(x.astype(np.float64)).astype(F32)

    return function


FUNCTIONS = {
    "copy": lambda chip, x: x,
    "exp": _elementary(np.exp, jnp.exp),
    "tanh": _elementary(np.tanh, jnp.tanh),
    "rsqrt": _elementary(lambda x: 1 / np.sqrt(x), jax.lax.rsqrt),
}

_TYPES = ("bfloat16", "float8_e4m3", "float8_e5m2")


def modules(chip: Choices, *, stochastic: bool) -> dict[str, types.ModuleType]:
    """`nki`, `nki.isa`, `nki.language`, and `ranks` of the kit."""
    package = types.ModuleType("nki")
    engines = Isa(chip, stochastic)
    package.jit = lambda kernel: functools.partial(engines.run, kernel)
    language = types.ModuleType("nki.language")
    vars(language).update({t: np.dtype(getattr(ml_dtypes, t)) for t in _TYPES})
    for name in ("float32", "float16", "int32", "int16", "int8", "uint8"):
        setattr(language, name, np.dtype(name))
    language.float8_e4m3fn_x4 = np.dtype(np.uint32)
    language.ndarray = lambda shape, dtype, buffer: Tile(np.zeros(shape, dtype))
    language.sbuf = language.psum = language.shared_hbm = None
    vars(language)["__getattr__"] = lambda name: name  # operators and functions
    isa = types.ModuleType("nki.isa")
    vars(isa).update(_members(engines))
    package.isa, package.language = isa, language
    ranks = types.ModuleType("ranks")
    ranks.all_reduce = lambda x, count: _all_reduce(chip, x)
    names = {"nki": package, "nki.isa": isa, "nki.language": language, "ranks": ranks}
    return names


def _members(isa: Isa) -> dict:
    return {n: getattr(isa, n) for n in dir(isa) if not n.startswith("_")}


def _results(found):
    tiles = found if isinstance(found, tuple) else (found,)
    return tuple(np.asarray(t.array) for t in tiles)


def _all_reduce(chip: Choices, x):
    name = chip.ranks
    if name == "by size":
        placement = Placement.of(resolve_target("trn2.48xlarge"))
        plan = select("all_reduce", x[0].nbytes, [range(len(x))], placement)
        name = plan.algorithm.removesuffix("_mesh")
    algorithm = collectives.Algorithm(name=name, ranks_per_chip=4)
    return collectives.all_reduce(x, [range(len(x))], algorithm)[0]


def run(kit: Path, results: Path, chip: Choices, name: str, only: str = "") -> int:
    """The kit's run.py on the chip, twice where rounding is stochastic; its status."""
    before = {**sys.modules}
    path, environment = [*sys.path], {**os.environ}
    status = 0
    try:
        for stochastic in (False, True):
            for module in ("kernels", "inputs"):
                sys.modules.pop(module, None)
            sys.modules.update(modules(chip, stochastic=stochastic))
            runner = load(kit)
            runner._run_stochastic = lambda *_: None
            arguments = ["--chip", name, "--results", str(results), "--only", only]
            more = ["--stochastic", "--more"] if stochastic else []
            status = runner.main([*arguments, *more])
    finally:
        for module in sys.modules.keys() - before.keys():
            if module.split(".")[0] in ("nki", "ranks", "kernels", "inputs"):
                del sys.modules[module]
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
    return status


def load(kit: Path) -> types.ModuleType:
    """run.py as a module."""
    spec = importlib.util.spec_from_file_location("silicon_run", kit / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
