"""Sums in all orders, and FP32 products in all ways, that a chip may use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np

from neuronjax.testing.silicon.cases import fused, toward_zero

Fold = Callable[[np.ndarray], np.ndarray]
F32 = np.float32


def left(terms: np.ndarray) -> np.ndarray:
    """Return ((x[0] + x[1]) + x[2]) + ... along the last axis, in FP32."""
    return np.add.accumulate(terms, axis=-1, dtype=F32)[..., -1]


def tiled(terms: np.ndarray, within: Fold = left, size: int = 128) -> np.ndarray:
    """Return the sum of tiles' sums, added from left to right as in PSUM; `within` sums
    a tile of `size` terms."""
    sums = [within(terms[..., s : s + size]) for s in range(0, terms.shape[-1], size)]
    return left(np.stack(sums, axis=-1))


def _lanes(count: int, terms: np.ndarray) -> np.ndarray:
    """Return the sum of `count` sums; each sum adds every `count`-th element."""
    lanes = [left(terms[..., i::count]) for i in range(min(count, terms.shape[-1]))]
    return left(np.stack(lanes, axis=-1))


def _neighbours(terms: np.ndarray) -> np.ndarray:
    """Return the sum by a tree of neighbours; an odd last term moves up a level."""
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        summed = terms[..., 0:even:2] + terms[..., 1:even:2]
        terms = np.concatenate([summed, terms[..., even:]], axis=-1)
    return terms[..., 0]


def _halves(terms: np.ndarray) -> np.ndarray:
    """Return the sum by a tree that adds the second half of the terms to the first."""
    while terms.shape[-1] > 1:
        half = -(-terms.shape[-1] // 2)
        second = terms[..., half:]
        summed = terms[..., : second.shape[-1]] + second
        terms = np.concatenate([summed, terms[..., second.shape[-1] : half]], axis=-1)
    return terms[..., 0]


def wide(terms: np.ndarray) -> np.ndarray:
    """Return the sum in float64, rounded to FP32."""
    return terms.astype(np.float64).sum(axis=-1).astype(F32)


def _cut(terms: np.ndarray) -> np.ndarray:
    total = terms[..., 0].astype(F32)
    for i in range(1, terms.shape[-1]):
        total = toward_zero(total.astype(np.float64) + terms[..., i])
    return total


_TILES = (512, 256, 128, 64, 32, 1024, 2048)
FOLDS: Mapping[str, Fold] = {
    "left fold": left,
    "right fold": lambda terms: left(terms[..., ::-1]),
    **{f"tiles of {n}": functools.partial(tiled, size=n) for n in _TILES},
    **{f"{n} lanes": functools.partial(_lanes, n) for n in (2, 4, 8, 16, 32)},
    "tree of neighbours": _neighbours,
    "tree of halves": _halves,
    "float64, rounded once": wide,
    "left fold toward zero": _cut,
}
"""Name -> a fold of the last axis, FP32 [..., n] -> [...]."""


def folds_of(count: int) -> dict[str, Fold]:
    """Return the folds for `count` numbers, without tiled folds of a single tile."""
    sizes = {name: int(name.rpartition(" ")[2]) for name in FOLDS if "tiles" in name}
    return {name: f for name, f in FOLDS.items() if sizes.get(name, 0) < count}


# -- FP32 operands of TensorE ----------------------------------------------------------

Parts = tuple[np.ndarray, np.ndarray]


def _masked(kept: int, x: np.ndarray) -> Parts:
    """Return FP32 `x` cut off to `kept` significant bits, and what was cut off."""
    mask = np.uint32(0xFFFFFFFF << (24 - kept) & 0xFFFFFFFF)
    upper = (x.view(np.uint32) & mask).view(F32)
    return upper, x - upper


def _nearest(kept: int, x: np.ndarray) -> Parts:
    """Return FP32 rounded to `kept` significant bits, and the difference."""
    drop = np.uint32(24 - kept)
    bits = x.view(np.uint32)
    odd = (bits >> drop) & np.uint32(1)
    raised = bits + odd + np.uint32((1 << (24 - kept - 1)) - 1)
    upper = (raised >> drop << drop).view(F32)
    return upper, x - upper


def _passes(
    split: Callable[[np.ndarray], Parts],
    pairs: tuple[tuple[int, int], ...],
    x: np.ndarray,
    y: np.ndarray,
) -> list[np.ndarray]:
    """Return the FP32 products of each pass; the operands broadcast."""
    a, b = split(x), split(y)
    return [a[i] * b[j] for i, j in pairs]


_HH, _HL, _LH, _LL = (0, 0), (0, 1), (1, 0), (1, 1)
_SPLITS = {
    "12 bits cut": functools.partial(_masked, 12),
    "12 bits rounded": functools.partial(_nearest, 12),
    "11 bits rounded": functools.partial(_nearest, 11),
    "8 bits rounded": functools.partial(_nearest, 8),
}
_ORDERS = {
    "hh hl lh ll": (_HH, _HL, _LH, _LL),
    "ll lh hl hh": (_LL, _LH, _HL, _HH),
    "hh hl lh": (_HH, _HL, _LH),
    "hh": (_HH,),
}

PRODUCTS: Mapping[str, Callable[[np.ndarray, np.ndarray], list[np.ndarray]]] = {
    **{
        f"{split}: {order}": functools.partial(_passes, _SPLITS[split], _ORDERS[order])
        for split in _SPLITS
        for order in _ORDERS
    },
    "one product, rounded": lambda x, y: [x * y],
}
"""Name -> a function from two FP32 operands to the products of every pass."""


def fused_fold(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sums of x[k, m] * y[k, n], by fused multiply-adds in ascending k."""
    total = np.zeros((x.shape[1], y.shape[1]), F32)
    for row, other in zip(x, y, strict=True):
        total = fused(row[:, None], other[None, :], total)
    return total


def products(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x[k, m] * y[k, n] as [m, n, k], FP32; exact for narrow operands."""
    return x.T[:, None, :] * y.T[None, :, :]
