"""The probes: what each gives a chip, and the instructions it has it execute.

A probe is a kernel of a few instructions that isolates one thing the vendor does not
document: one order, one rounding, one engine's subnormals. Data, from which the kernels
of both styles are made (`kernel_text`). The first decide most, as time may run out.

    inputs   "spread 128 64 low=-2 narrow": a maker of `files/inputs.py`, the shape,
             its arguments; its dtype is FP32, BF16 if narrow, or the maker's own
    steps    "out 128 1: tensor_reduce(op=nl.add, data=x, axis=1)": a tile, FP32 unless
             its dtype is named, and the instruction that makes it; what TensorE makes
             is in PSUM, where a second instruction with the same tile adds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.numerics.float_format import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16

CHIPS = ("trn1", "trn2", "trn3")
Tiles = dict[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True, kw_only=True)
class ProbeStep:
    """One instruction and the tiles that it makes.

    Attributes:
        tiles: shape and dtype by name; the first is dst.
        call: the instruction with its arguments but dst.
    """

    tiles: Tiles
    call: str

    @property
    def dst(self) -> str:
        """The tile that the instruction returns in the older style."""
        return next(iter(self.tiles))

    @property
    def in_psum(self) -> bool:
        """Whether TensorE writes it."""
        return self.call.startswith("nc_matmul") or "tensor_engine" in self.call


@dataclass(frozen=True, kw_only=True)
class SiliconProbe:
    """One kernel.

    Attributes:
        name: of the kernel, and of its results.
        inputs: by name: the dtype, and how `files/inputs.py` makes its bits.
        steps: the instructions.
        outputs: the tiles that come back.
        chips: where it can run.
        stochastic: whether it is for the runtime's stochastic rounding.
    """

    name: str
    inputs: Mapping[str, tuple[str, Mapping[str, Any]]]
    steps: tuple[ProbeStep, ...]
    outputs: tuple[str, ...] = ("out",)
    chips: tuple[str, ...] = CHIPS
    stochastic: bool = False

    @property
    def tiles(self) -> Tiles:
        """Shape and dtype of every tile that is made."""
        return {n: tile for step in self.steps for n, tile in step.tiles.items()}


_DTYPES = {"codes": "float8_e4m3", "integers": "int32", "order_left": "bfloat16"}


def _probe(
    name: str, inputs: Mapping[str, str], *steps: str, **more: Any
) -> SiliconProbe:
    made = {key: read_input(how) for key, how in inputs.items()}
    return SiliconProbe(
        name=name, inputs=made, steps=tuple(map(_read_step, steps)), **more
    )


def read_input(text: str) -> tuple[str, dict[str, Any]]:
    """The dtype and the maker's arguments, "shape" among them."""
    maker, *words = text.split()
    how: dict[str, Any] = {"make": maker, "shape": [int(w) for w in words if _is(w)]}
    for word in words[len(how["shape"]) :]:
        key, _, value = word.partition("=")
        how[key] = int(value) if value else True
    narrow = "bfloat16" if "narrow" in how else "float32"
    return _DTYPES.get(maker, narrow), how


def _read_step(text: str) -> ProbeStep:
    tiles, _, call = text.partition(": ")
    return ProbeStep(tiles=dict(map(_read_tile, tiles.split(", "))), call=call)


def _read_tile(text: str) -> tuple[str, tuple[tuple[int, ...], str]]:
    name, *words = text.split()
    dtype = [w for w in words if not _is(w)] or ["float32"]
    return name, (tuple(int(w) for w in words if _is(w)), dtype[0])


def _is(word: str) -> bool:
    return word.isdigit()


VECTOR_SUMS = (128, 513, 1000, 127, 512, 4096)
SCALAR_SUMS = (128, 1000)
TENSOR_SUMS = (128, 64)
TENSOR_TILES = (256, 512, 2048)
FUNCTIONS = tuple(f for f in ACTIVATION_FUNCTIONS if f != "prelu")

# Fraction bits, exponent of the smallest normal, power of two that is not reached.
_FLOATS = {
    f.name: f"bits={f.mantissa_bits} low={f.min_exponent} high={f.max_exponent + 1}"
    for f in (BFLOAT16, FLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
}
_NARROWER = ("bfloat16", "float8_e4m3", "int32")
CASTS: Mapping[str, tuple[str, ...]] = {
    "vector": (*_FLOATS, "int32", "int8", "uint8", "int16"),
    "scalar": _NARROWER,
    "gpsimd": _NARROWER,
    "dma": ("bfloat16", "float16", "float8_e4m3"),
}
_COPIES = {
    "vector": "tensor_copy(src=x, engine=nisa.vector_engine)",
    "scalar": "activation(op=nl.copy, data=x)",
    "gpsimd": "tensor_copy(src=x, engine=nisa.gpsimd_engine)",
    "dma": "dma_copy(src=x_in)",
}
_PRODUCT = "nc_matmul(stationary=x, moving=y)"


def _both(how: str) -> dict[str, str]:
    return dict.fromkeys("xy", how)


def _matmul(m: int, n: int, *calls: str) -> tuple[str, ...]:
    """Matmuls that add in PSUM, and the copy from there."""
    added = (f"acc {m} {n}: {call}" for call in calls or (_PRODUCT,))
    return (*added, f"out {m} {n}: tensor_copy(src=acc)")


def _tiled(tiles: int) -> tuple[str, ...]:
    """The same of operands that lie side by side, 32 columns each."""
    parts = (f"[:, {32 * t}:{32 * t + 32}]" for t in range(tiles))
    calls = (f"nc_matmul(stationary=x{p}, moving=y{p})" for p in parts)
    return _matmul(32, 32, *calls)


def _sums() -> Iterator[SiliconProbe]:
    reduce = "tensor_reduce(op=nl.add, data=x, axis=1)"
    for n in VECTOR_SUMS:
        given = {"x": f"spread 128 {n}"}
        yield _probe(f"vector_sum_{n}", given, f"out 128 1: {reduce}")
    for k in TENSOR_SUMS:
        given = _both(f"spread {k} 64 narrow")
        yield _probe(f"tensor_sum_{k}", given, *_matmul(64, 64))
    step = "out 128 64: tensor_reduce(op=nl.add, data=x, axis=2)"
    yield _probe("vector_order", {"x": "order_rows 128 64 128"}, step)
    given = {"x": "order_left 128 128", "y": "order_left 128 128 sign=-1"}
    yield _probe("tensor_order", given, *_matmul(128, 128))
    given = {"x": "spread 1 128", "y": "spread 1 512"}
    yield _probe("fp32_product", given, *_matmul(128, 512))
    for k in TENSOR_TILES:
        given = _both(f"spread 128 {k // 4} narrow")
        yield _probe(f"tensor_tiles_{k}", given, *_tiled(k // 128))
    yield _probe("fp32_sum_128", _both("spread 128 64"), *_matmul(64, 64))
    yield _probe("psum_sum_16", _both("spread 1 512 narrow"), *_tiled(16))
    paired = f"{_PRODUCT[:-1]}, perf_mode=nisa.matmul_perf_mode.double_row)"
    given = _both("codes 128 2 64 largest=119")  # float8_e4m3 ends at 240, code 119
    yield _probe("fp8_pairs", given, *_matmul(64, 64, paired), chips=CHIPS[1:])
    call = "activation_reduce(op=nl.copy, data=x, reduce_op=nl.add, reduce_res=out)"
    for n in SCALAR_SUMS:
        given = {"x": f"spread 128 {n}"}
        yield _probe(f"scalar_sum_{n}", given, f"copy 128 {n}, out 128 1: {call}")
    step = "out 1 256: tensor_partition_reduce(op=nl.add, data=x)"
    yield _probe("partition_sum_128", {"x": "spread 128 256"}, step)


def _casts() -> Iterator[SiliconProbe]:
    for engine, dtypes in CASTS.items():
        for dtype in dtypes:
            floating = f"ties 128 64 {_FLOATS.get(dtype)}"
            how = floating if dtype in _FLOATS else "near_integers 128 64"
            step = f"out 128 64 {dtype}: {_COPIES[engine]}"
            yield _probe(f"cast_{engine}_{dtype}", {"x": how}, step)


def _subnormals() -> Iterator[SiliconProbe]:
    tiny, power = "subnormals 128 64", "powers 128 64 low=-3 high=3"
    for engine in ("vector", "gpsimd"):
        step = (
            "out 128 64: tensor_tensor(data1=x, data2=y, op=nl.multiply,"
            f" engine=nisa.{engine}_engine)"
        )
        yield _probe(f"subnormals_{engine}", {"x": tiny, "y": power}, step)
    given = {"x": tiny, "y": "powers 128 1 low=-3 high=3"}
    step = "out 128 64: activation(op=nl.copy, data=x, scale=y)"
    yield _probe("subnormals_scalar", given, step)
    given = {"x": "subnormals 1 128 narrow", "y": "powers 1 64 low=-3 high=3 narrow"}
    yield _probe("subnormals_tensor", given, *_matmul(128, 64))
    step = f"out 128 64 bfloat16: {_COPIES['dma']}"
    yield _probe("subnormals_dma", {"x": f"{tiny} coarse"}, step)


def _arithmetic() -> Iterator[SiliconProbe]:
    column = _both("spread 128 64") | {"c": "spread 128 1"}
    for name, call in {
        "fused_vector": "scalar_tensor_tensor(data=x, op0=nl.multiply, operand0=c,"
        " op1=nl.add, operand1=y)",
        "scan": "tensor_tensor_scan(data0=x, data1=y, initial=c, op0=nl.multiply,"
        " op1=nl.add)",
    }.items():
        given = column | {"x": "spread 128 64 low=-2 high=0"}
        yield _probe(name, given, f"out 128 64: {call}")
    given = {"x": "spread 128 64", "c": "spread 128 1", "y": "spread 128 1"}
    step = "out 128 64: activation(op=nl.copy, data=x, scale=c, bias=y)"
    yield _probe("fused_scalar", given, step)
    given = _both("spread 128 64")
    one = {"x": given["x"]}
    yield _probe("reciprocal", one, "out 128 64: reciprocal(data=x)")
    step = "out 128 64: tensor_tensor(data1=x, data2=y, op=nl.divide)"
    yield _probe("divide", given, step)
    yield _probe("statistics", one, "out 128 6: bn_stats(data=x)")
    given = {"x": "first_special 16 16", "y": "second_special 16 16"}
    for op in ("maximum", "minimum", "add"):
        step = f"out 16 16: tensor_tensor(data1=x, data2=y, op=nl.{op})"
        yield _probe(f"special_{op}", given, step)
    for engine, op, most in INTEGERS:
        step = (
            f"out 128 64 int32: tensor_tensor(data1=x, data2=y, op=nl.{op},"
            f" engine=nisa.{engine}_engine)"
        )
        given = _both(f"integers 128 64 most={most}")
        yield _probe(f"integers_{engine}_{op}", given, step)


INTEGERS = (("vector", "add", 31), ("gpsimd", "add", 31), ("gpsimd", "multiply", 15))
"""Engine, operator, bits of its operands."""


def _movement() -> Iterator[SiliconProbe]:
    turned = "turned 128 128: nc_transpose(data=x, engine=nisa.tensor_engine)"
    given = {"x": "patterns 128 128"}
    copied = "out 128 128: tensor_copy(src=turned)"
    yield _probe("transpose_tensor", given, turned, copied)
    step = "out 32 32: nc_transpose(data=x, engine=nisa.vector_engine)"
    yield _probe("transpose_vector", {"x": "patterns 32 32"}, step)


def _microscaling() -> Iterator[SiliconProbe]:
    x, y = (
        f"{s}q 32 16 float8_e4m3fn_x4, {s}s 4 16 uint8:"
        f" quantize_mx(src={s}, dst_scale={s}s)"
        for s in "xy"
    )
    product = "stationary=xq, moving=yq, stationary_scale=xs, moving_scale=ys"
    given = _both("spread 32 64 low=-8 high=8 narrow")
    rounded, of = {"x": "blocks 32 64 narrow"}, {"chips": CHIPS[2:]}
    yield _probe("mx_quantize", rounded, x, outputs=("xq", "xs"), **of)
    steps = (x, y, *_matmul(16, 16, f"nc_matmul_mx({product})"))
    outputs = ("out", "xq", "xs", "yq", "ys")
    yield _probe("mx_matmul", given, *steps, outputs=outputs, **of)


def _functions() -> Iterator[SiliconProbe]:
    for name in FUNCTIONS:
        step = f"out 128 512: activation(op=nl.{name}, data=x)"
        yield _probe(f"function_{name}", {"x": "sweep 128 512"}, step)


def _stochastic() -> Iterator[SiliconProbe]:
    for engine in ("vector", "scalar"):
        given = {"x": "fractions 128 768"}
        step = f"out 128 768 bfloat16: {_COPIES[engine]}"
        yield _probe(f"stochastic_{engine}", given, step, stochastic=True)


_FAMILIES = (
    *(_sums, _subnormals, _arithmetic, _casts, _movement, _microscaling),
    *(_functions, _stochastic),
)
PROBES: Mapping[str, SiliconProbe] = {
    p.name: p for family in _FAMILIES for p in family()
}
"""Every probe that is a kernel, by name, in the order in which they run."""

REDUCTIONS: Mapping[str, tuple[int, str]] = {
    f"all_reduce_{ranks}_{dtype}": (ranks, dtype)
    for ranks in (2, 4, 8, 16)
    for dtype in ("float32", "bfloat16")
}
"""Sums over ranks, which `files/ranks.py` runs: how many, and of which dtype."""
