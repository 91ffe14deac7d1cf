"""Models of what TensorE does with FP32 operands, against published distances of trn2.

    python -m benchmarks.fp32_models [--quick]

A model says how operands are split, which products one instruction adds in a cell, how
many rows make one sum, how many bits a sum has, and that PSUM adds what instructions
leave in FP32. NumPy computes each on parts of the inputs that the rows were measured
with (normal, seed 42; no corpus is needed) and gives the distance that the row would
have had, from FP32 NumPy as BLAS adds: fused multiply-adds down blocks of K. How long a
block is depends on the processor and is not known of the published rows, except that
K = 64 is one block of any; so a model is held against several. The last row knows no
NumPy: it is how far a product in K tiles of 64 rows is from the same in tiles of 128.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import results_file
from benchmarks.validate_numerics import CLOSE
from benchmarks.validation.numeric_rows import rounding

K_TILE = 128
FOUR = (("hh",), ("hl",), ("lh",), ("ll",))
LO_HI = (("hh", "hl"), ("lh", "ll"))
#: Blocks of K in OpenBLAS (its param.h): on Haswell, Zen, Cooper Lake and Sapphire
#: Rapids; on Sandy Bridge; on Skylake-X and others with AVX-512.
BLOCKS = (320, 384, 448)
FP32_BITS = 24
Matmul = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of matmuls of FP32 operands on the array.

    Attributes:
        name: the name in the policy, or the distinctive property.
        digits: significant bits of the high half.
        to_nearest: whether the high half is rounded; otherwise it is truncated.
        instructions: the products that each instruction adds in a cell, by high and low
            half of the left and right operand; PSUM adds the results of instructions.
        rows: number of rows in one sum; the sums of a tile are added in FP32.
        together: number of rows whose products are added exactly before the sum.
        bits: significant bits of a sum, None for unlimited.
        towards_zero: whether a sum is truncated instead of rounded.
    """

    name: str
    digits: int = 12
    to_nearest: bool = False
    instructions: tuple[tuple[str, ...], ...] = FOUR
    rows: int = K_TILE
    together: int = 1
    bits: int | None = FP32_BITS
    towards_zero: bool = False


MODELS: tuple[Model, ...] = (
    Model(name="fp32_4pass_rows32", rows=32),
    Model(name="fp32_4pass"),
    Model(name="low halves first", instructions=FOUR[::-1]),
    Model(name="three passes", instructions=FOUR[:3]),
    Model(name="two passes", instructions=FOUR[:2]),
    Model(name="halves of 8 bits", digits=8),
    Model(name="halves of 8 bits, to nearest", digits=8, to_nearest=True),
    Model(name="halves of 11 bits", digits=11),
    Model(name="halves of 11 bits, to nearest", digits=11, to_nearest=True),
    Model(name="halves of 12 bits, to nearest", to_nearest=True),
    Model(name="halves of 13 bits", digits=13),
    Model(name="two instructions", instructions=LO_HI),
    Model(name="one instruction", instructions=(sum(LO_HI, ()),)),
    Model(name="sums cut off", towards_zero=True),
    Model(name="sums of 25 bits", bits=25),
    Model(name="sums of 26 bits", bits=26),
    Model(name="exact sums", bits=None),
    Model(name="two instructions, exact", instructions=LO_HI, bits=None),
    Model(name="64 rows", rows=64),
    Model(name="16 rows", rows=16),
    Model(name="8 rows", rows=8),
    Model(name="32 rows, three passes", rows=32, instructions=FOUR[:3]),
    Model(name="32 rows, low halves first", rows=32, instructions=FOUR[::-1]),
    Model(name="32 rows, two instructions", rows=32, instructions=LO_HI),
    Model(name="no halves", digits=24, instructions=FOUR[:1]),
    Model(name="no halves, 4 together", digits=24, instructions=FOUR[:1], together=4),
)


def split(x: np.ndarray, model: Model) -> dict[str, np.ndarray]:
    """Return the high and the low half of FP32 numbers, exact in float64."""
    dropped = np.uint32(FP32_BITS - model.digits)
    bits = x.view(np.uint32)
    if model.to_nearest:
        odd = (bits >> dropped) & np.uint32(1)
        bits = bits + (np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1) + odd
    high = (bits >> dropped << dropped).view(np.float32).astype(np.float64)
    return {"h": high, "l": x - high}


def rounded(total: np.ndarray, model: Model) -> np.ndarray:
    """Return a running float64 sum as the array stores it."""
    if model.bits is None:
        return total
    if model.bits == FP32_BITS and not model.towards_zero:
        return total.astype(np.float32)
    mantissa, exponent = np.frexp(total)
    cut = np.trunc if model.towards_zero else np.rint
    return np.ldexp(cut(np.ldexp(mantissa, model.bits)), exponent - model.bits)


Pair = tuple[np.ndarray, np.ndarray]


def fold(pairs: Sequence[Pair], model: Model) -> np.ndarray:
    """Return the FP32 result of one instruction on a tile of [K, M] and [K, N]."""
    k = len(pairs[0][0])
    sums = []
    for start in range(0, k, model.rows):
        total = np.zeros((pairs[0][0].shape[1], pairs[0][1].shape[1]))
        stop = min(start + model.rows, k)
        for row in range(start, stop, model.together):
            at = slice(row, min(row + model.together, stop))
            # Exact in float64: products of halves have 24 bits.
            total = rounded(total + _added([a[at].T @ b[at] for a, b in pairs]), model)
        sums.append(total.astype(np.float32))
    return _added(sums)


def _added(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of the parts, added one after another."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _tiles(a: np.ndarray, rows: int = K_TILE) -> list[slice]:
    return [slice(k, k + rows) for k in range(0, len(a), rows)]


def fp32_matmul(
    a: np.ndarray, b: np.ndarray, model: Model, k_tile: int = K_TILE
) -> np.ndarray:
    """Return the FP32 product [M, N] of [K, M] and [K, N]."""
    left, right = split(a, model), split(b, model)
    return _added(
        [
            fold([(left[p[0]][at], right[p[1]][at]) for p in products], model)
            for at in _tiles(a, k_tile)
            for products in model.instructions
        ]
    )


def bf16_matmul(a: np.ndarray, b: np.ndarray, model: Model) -> np.ndarray:
    """Return the kernels' three products of BF16 halves, each an instruction."""
    cast = lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32)  # noqa: E731
    halves = [(cast(x), cast(x - cast(x))) for x in (a, b)]
    (ah, al), (bh, bl) = halves
    products = [(ah, bh), (ah, bl), (al, bh)]
    wide = [(x.astype(np.float64), y.astype(np.float64)) for x, y in products]
    return _added([fold([(x[at], y[at])], model) for at in _tiles(a) for x, y in wide])


def blas_matmul(a: np.ndarray, b: np.ndarray, block: int) -> np.ndarray:
    """Return the product as OpenBLAS adds: left folds over blocks of K, the last two of
    equal length."""
    plain = Model(name="", rows=len(a))
    parts, start = [], 0
    while start < len(a):
        left = len(a) - start
        size = block if left >= 2 * block else left
        if block < left < 2 * block:
            size = -(-(left // 2) // 16) * 16
        at = slice(start, start + size)
        pair = (a[at].astype(np.float64), b[at].astype(np.float64))
        parts.append(fold([pair], plain))
        start += size
    return _added(parts)


# ---- The rows: parts of what was measured.


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    np.random.seed(42)
    return [np.random.normal(size=shape).astype(np.float32) for shape in shapes]


def _plain(left: np.ndarray, right: np.ndarray) -> Callable[[Matmul, Matmul], Any]:
    return lambda matmul, _: matmul(left, right)


def _bmm(m: int, n: int) -> Callable[[Matmul, Matmul], Any]:
    left, right = _normal((16, 4096, 64), (16, 64, 4096))
    return _plain(left[0, :m].T, right[0, :, :n])


def _transposed(m: int, n: int) -> Callable[[Matmul, Matmul], Any]:
    left, right = _normal((2048, 4096), (2048, 10944))
    return _plain(left[:, :m], right[:, :n])


def _swiglu(m: int, n: int) -> Callable[[Matmul, Matmul], Any]:
    x, up, down, gate = _normal((4096, 1024), (1024, 3072), (3072, 1024), (1024, 3072))

    def program(matmul: Matmul, last: Matmul) -> np.ndarray:
        # silu is computed in float64, the best that ScalarE could achieve.
        g = matmul(x[:m].T, gate).astype(np.float64)
        active = (g / (1 + np.exp(-g))).astype(np.float32)
        hidden = active * matmul(x[:m].T, up)
        return last(np.ascontiguousarray(hidden.T), down[:, :n])

    return program


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the relative L2 distance."""
    wide = y.astype(np.float64)
    return float(np.linalg.norm(x - wide) / np.linalg.norm(wide))


@dataclass(frozen=True)
class Prediction:
    """A model's distances on one row: from float64, and from NumPy by block. For
    `between_tiles` both are the difference of two results of the model."""

    exact: float
    by_block: Mapping[int, float]


def _wide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64).T @ b.astype(np.float64)


def from_numpy(
    inputs: Callable[[int, int], Callable[[Matmul, Matmul], Any]],
    part: tuple[int, int],
    models: Sequence[Model],
    *,
    in_bf16: bool = False,
) -> list[Prediction]:
    """Return the distances of each model's results from NumPy's.

    Args:
        inputs: size of a part -> a program of two matmuls, of which the second is used
            for the last product.
        part: rows and columns of the result to compute.
        models: the models.
        in_bf16: whether the last matmul consists of three BF16 products.
    """
    program = inputs(*part)
    exact = program(_wide, _wide)
    blas = {}
    for block in BLOCKS:
        matmul = lambda a, b, block=block: blas_matmul(a, b, block)  # noqa: E731
        blas[block] = program(matmul, matmul)
    found = []
    for model in models:
        matmul = lambda a, b, model=model: fp32_matmul(a, b, model)  # noqa: E731
        halved = lambda a, b, model=model: bf16_matmul(a, b, model)  # noqa: E731
        result = program(matmul, halved if in_bf16 else matmul)
        by_block = {block: distance(result, ref) for block, ref in blas.items()}
        found.append(Prediction(distance(result, exact), MappingProxyType(by_block)))
    return found


def between_tiles(models: Sequence[Model]) -> list[Prediction]:
    """Return the largest difference of A.T @ A between K tiles of 128 and 64 rows."""
    a = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)
    found = []
    for model in models:
        long, short = (fp32_matmul(a, a, model, k) for k in (K_TILE, K_TILE // 2))
        apart = float(np.abs(long - short).max())
        found.append(Prediction(apart, dict.fromkeys(BLOCKS, apart)))
    return found


@dataclass(frozen=True)
class Row:
    """A published distance.

    Attributes:
        distance: relative L2 distance of the device from FP32 NumPy; for
            `between_tiles` the largest difference.
        digits: number of significant digits that were published.
        predicted: models -> the distances that they would have on this row.
    """

    name: str
    distance: float
    digits: int
    predicted: Callable[[Sequence[Model]], list[Prediction]]


def _row(name: str, found: float, digits: int, *how: Any, **also: bool) -> Row:
    return Row(name, found, digits, functools.partial(from_numpy, *how, **also))


ROWS: tuple[Row, ...] = (
    _row("K = 64", 1.8e-7, 2, _bmm, (256, 512)),
    _row("K = 2048", 3.987e-7, 4, _transposed, (64, 256)),
    _row("swiglu", 6.36e-7, 3, _swiglu, (32, 64)),
    _row("swiglu, BF16", 4.476e-6, 4, _swiglu, (32, 64), in_bf16=True),
    Row("K tiles of 64", 6.1035e-5, 5, between_tiles),
)


def verdict(by_row: Mapping[str, Prediction]) -> str:
    """Return the rows that exclude a model for any block length of BLAS, by more than a
    tenth and their own rounding; otherwise the block lengths with which it fits all."""
    off = {
        row.name: {
            block
            for block, predicted in by_row[row.name].by_block.items()
            if abs(predicted / row.distance - 1)
            > CLOSE + rounding(row.distance, row.digits)
        }
        for row in ROWS
    }
    always = [name for name, blocks in off.items() if len(blocks) == len(BLOCKS)]
    if always:
        return f"excluded by {', '.join(always)}"
    fitting = [
        str(b) for b in BLOCKS if all(b not in blocks for blocks in off.values())
    ]
    if fitting:
        return f"fits, in blocks of {', '.join(fitting)}"
    return "excluded by rows that differ with the block"


def measure(quick: bool) -> dict[str, Any]:
    """Return every model on every row; `quick` is the first row and a few models."""
    models = MODELS[::6] if quick else MODELS
    rows = ROWS[:1] if quick else ROWS
    columns = {row.name: row.predicted(models) for row in rows}
    entries = []
    for n, model in enumerate(models):
        mine = {name: column[n] for name, column in columns.items()}
        entries.append(
            {
                "name": model.name,
                "rows": {
                    name: {"exact": p.exact, "by_block": dict(p.by_block)}
                    for name, p in mine.items()
                },
                "verdict": "" if quick else verdict(mine),
            }
        )
    device = {row.name: row.distance for row in rows}
    return {"device": device, "blocks": BLOCKS, "entries": entries}


def show(found: Mapping[str, Any]) -> str:
    """Return predicted over measured distances, block by block, as text."""
    blocks = "/".join(map(str, found["blocks"]))
    lines = [f"{blocks:32}" + "".join(f"{name:>23}" for name in found["device"])]
    lines.append(
        f"{'measured':32}" + "".join(f"{d:23.3e}" for d in found["device"].values())
    )
    for entry in found["entries"]:
        cells = (
            "/".join(f"{p / d:.3f}" for p in entry["rows"][name]["by_block"].values())
            for name, d in found["device"].items()
        )
        texts = "".join(f"{cell:>23}" for cell in cells)
        lines.append(f"{entry['name']:32}{texts}  {entry['verdict']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(results_file.command("fp32_models", measure, show))
