"""Questions about sums: in engines and PSUM, of FP32 products, and within a cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from neuronjax.numerics.float_format import get_format
from neuronjax.testing.silicon import folds, probes
from neuronjax.testing.silicon.cases import ProbeCase, fused
from neuronjax.testing.silicon.question import Question, ask, each

F32 = np.float32
_VECTOR, _TENSOR = "sums in VectorE", "order of sums in TensorE"


def sums() -> Iterator[Question]:
    for engine, lengths, ours in (
        ("vector", probes.VECTOR_SUMS, "tiles of 512"),
        ("scalar", probes.SCALAR_SUMS, "left fold"),
    ):
        names = tuple(f"{engine}_sum_{n}" for n in lengths)
        rows = each(folds.folds_of(max(lengths)), lambda fold, c: fold(c["x"])[:, None])
        yield ask(f"{engine.capitalize()}E: sums", _VECTOR, names, rows, ours)
    columns = each(folds.folds_of(128), lambda fold, c: fold(c["x"].T)[None, :])
    yield ask("GpSimd: sums over partitions", _VECTOR, "partition_sum_128", columns)
    scans = {"product rounded, then sum": False, "multiply-add": True}
    yield ask("VectorE: running sums", "running sums", "scan", each(scans, _scan))
    yield ask("VectorE: bn_stats", _VECTOR, "statistics", each(_MOMENTS, _statistics))


def _scan(fuse: bool, case: ProbeCase) -> np.ndarray:
    x, y, state = case["x"], case["y"], case["c"][:, 0]
    states = np.empty_like(x)
    for i in range(x.shape[1]):
        a, b = x[:, i], y[:, i]
        state = fused(a, state, b) if fuse else a * state + b
        states[:, i] = state
    return states


Moments = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _statistics(moments: Moments, case: ProbeCase) -> np.ndarray:
    """Return the count, the mean and the sum of squared deviations of each row's even
    elements, then of its odd elements."""
    parts: list[np.ndarray] = []
    for half in (case["x"][:, ::2], case["x"][:, 1::2]):
        parts += [np.full(len(half), half.shape[1], F32), *moments(half)]
    return np.stack(parts, axis=1).astype(F32)


def _two_passes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = folds.left(x) / F32(x.shape[1])
    spread = x - mean[:, None]
    return mean, folds.left(spread * spread)


def _running(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, square = x[:, 0], np.zeros(len(x), F32)
    for n in range(1, x.shape[1]):
        off = x[:, n] - mean
        mean = mean + off / F32(n + 1)
        square = square + off * (x[:, n] - mean)
    return mean, square


def _two_sums(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total, count = folds.left(x), F32(x.shape[1])
    return total / count, folds.left(x * x) - total * total / count


def _wide_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    exact = x.astype(np.float64)
    return exact.mean(axis=1), exact.var(axis=1) * x.shape[1]


_MOMENTS: Mapping[str, Moments] = {
    "two passes": _two_passes,
    "running mean": _running,
    "sums of x and x * x": _two_sums,
    "float64, rounded once": _wide_moments,
}


def tensor_sums() -> Iterator[Question]:
    names = tuple(f"tensor_sum_{k}" for k in probes.TENSOR_SUMS)
    orders = folds.folds_of(128)
    tile = each(orders, lambda fold, c: fold(folds.products(c["x"], c["y"])))
    yield ask("TensorE: sums of a tile", _TENSOR, names, tile)
    across = {n: f for n, f in folds.folds_of(16).items() if "lanes" not in n}
    psum = each(across, lambda fold, c: fold(_tiles(c)))
    yield ask("PSUM: sums of tiles", "PSUM", "psum_sum_16", psum)
    names = tuple(f"tensor_tiles_{k}" for k in probes.TENSOR_TILES)
    within = {f"{name}, then PSUM": fold for name, fold in orders.items()}
    tiles = each(within, lambda fold, c: folds.tiled(_tiles(c), fold))
    tiles["one left fold through PSUM"] = lambda case: folds.left(_tiles(case))
    yield ask("TensorE: sums over tiles", _TENSOR, names, tiles)
    claim = "FP32 operands in TensorE"
    single = each(folds.PRODUCTS, lambda terms, c: folds.left(_passes(terms, c)))
    yield ask("TensorE: FP32 products", claim, "fp32_product", single)
    turned = lambda terms, c: np.swapaxes(_passes(terms, c), -1, -2)  # noqa: E731
    summed = {
        "by 32 rows": lambda terms, c: folds.left(
            folds.tiled(turned(terms, c), size=32)
        ),
        "pass by pass": lambda terms, c: folds.left(folds.left(turned(terms, c))),
        "row by row": lambda terms, c: folds.left(folds.left(_passes(terms, c))),
    }
    both = itertools.product(folds.PRODUCTS.items(), summed.items())
    table = {f"{name}, {order}": (terms, f) for (name, terms), (order, f) in both}
    passes = each(table, lambda entry, c: entry[1](entry[0], c))
    passes["multiply-adds"] = lambda case: folds.fused_fold(case["x"], case["y"])
    yield ask("TensorE: sums of FP32 products", claim, "fp32_sum_128", passes)
    two = {name: fold for name, fold in _CELLS.items() if name not in _OF_FOUR}
    pairs = each(two, lambda fold, c: fold(_pairs(c)))
    name = "TensorE: sums of two FP8 products"
    yield ask(name, "double-row FP8", "fp8_pairs", pairs)
    quads = each(_CELLS, lambda fold, c: fold(_quads(c)))
    yield ask("TensorE: sums of four MX products", "MX matmul", "mx_matmul", quads)


def _tiles(case: ProbeCase) -> np.ndarray:
    """Return the products [m, n, K] of matmuls, made for 32 values of k at a time."""
    parts = [
        folds.products(case["x"][:, s : s + 32], case["y"][:, s : s + 32])
        for s in range(0, case["x"].shape[1], 32)
    ]
    return np.concatenate(parts, axis=-1)


def _passes(terms: Callable, case: ProbeCase) -> np.ndarray:
    """Return the products of every pass, [m, n, K, passes], without K if K is 1."""
    x, y = case["x"].T[:, None, :], case["y"].T[None, :, :]
    stacked = np.stack(terms(x.copy(), y.copy()), axis=-1)
    return stacked[..., 0, :] if stacked.shape[-2] == 1 else stacked


def _pairs(case: ProbeCase) -> np.ndarray:
    """Return the two products of every cell, [m, n, K, 2]."""
    x, y = case["x"], case["y"]
    return np.stack([folds.products(x[:, r], y[:, r]) for r in range(2)], axis=-1)


def _quads(case: ProbeCase) -> np.ndarray:
    """Return the four scaled products of every cell, [m, n, K, 4]."""
    sides = []
    for side in "xy":
        words, scales = case[f"{side}q"], case[f"{side}s"]
        elements = np.ascontiguousarray(words).view(get_format("float8_e4m3fn").dtype)
        values = elements.reshape(*words.shape, 4).astype(F32)
        scale = np.exp2(scales.astype(np.float64) - 127).astype(F32)
        sides.append(values * np.repeat(scale, 8, axis=0)[..., None])
    x, y = (np.moveaxis(side, 1, 0) for side in sides)
    return x[:, None] * y[None, :]


def _one_by_one(terms: np.ndarray) -> np.ndarray:
    return terms.reshape(*terms.shape[:-2], -1)


_CELLS: Mapping[str, folds.Fold] = {
    "cell first, then rows": lambda t: folds.left(folds.left(t)),
    "cell as a tree, then rows": lambda t: folds.left(
        folds.left(t[..., ::2] + t[..., 1::2])
    ),
    "cell last to first, then rows": lambda t: folds.left(folds.left(t[..., ::-1])),
    "all one by one": lambda t: folds.left(_one_by_one(t)),
    "slot after slot": lambda t: folds.left(_one_by_one(np.swapaxes(t, -1, -2))),
    "a sum for each slot": lambda t: folds.left(folds.left(np.swapaxes(t, -1, -2))),
    "each cell in float64, then rows": lambda t: folds.left(folds.wide(t)),
    "float64, rounded once": lambda t: folds.wide(_one_by_one(t)),
}
# For cells of two numbers these orders give the same sums as "cell first, then rows".
_OF_FOUR = (*tuple(_CELLS)[1:3], "each cell in float64, then rows")
