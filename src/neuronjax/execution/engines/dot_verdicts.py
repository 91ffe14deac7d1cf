"""Which shapes XLA's pinned dot computes as a left fold, found out by trying.

A shape is used only after its dot was compared with the scanned fold, bit for bit, on
probe data that include products below 2^-126 and above 2^128, cancellation and signed
zeros. Verdicts are kept in a `HostCache`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution import stages
from neuronjax.execution.engines.array_fold import (
    Matrix,
    narrower_as_columns,
    padded,
    pinned,
    scanned,
)
from neuronjax.execution.engines.host_cache import HostCache
from neuronjax.numerics.portable import is_exportable


class Shape(NamedTuple):
    """What decides how XLA computes a pinned dot."""

    batch: int
    m: int
    k: int
    n: int
    lhs_k_first: bool
    rhs_k_first: bool

    @classmethod
    def of(cls, lhs: Matrix, rhs: Matrix) -> Shape:
        """The dot that `pinned` issues for these operands."""
        if narrower_as_columns(lhs.free, rhs.free):
            lhs, rhs = rhs, lhs
        n = padded(rhs.free)
        return cls(lhs.batch, lhs.free, lhs.k, n, lhs.k_first, rhs.k_first)

    def __str__(self) -> str:
        layout = "".join("T" if t else "N" for t in self[4:])
        return "x".join(map(str, self[:4])) + layout


_VERDICTS = HostCache("dot", bool)

# Seconds spent on verification by this process: reported apart in the benchmark.
spent_seconds = 0.0
verified = 0
# False compares whole programs with and without the fast path.
enabled = True


def is_left_fold(lhs: Matrix, rhs: Matrix) -> bool:
    """Whether `pinned` equals `scanned` on operands of these shapes, on this host."""
    if not enabled or is_exportable():
        return False
    shape = Shape.of(lhs, rhs)
    return _VERDICTS.find(str(shape), lambda: _verify(shape))


def _verify(shape: Shape) -> bool:
    global spent_seconds, verified
    verified += 1
    stages.stage(f"verifying dots, {verified} in this process")
    start = time.perf_counter()
    zero = jnp.float32(-0.0)  # an argument: unknown to the compiler
    fast, slow = jax.jit(pinned), jax.jit(scanned)
    # One after the other: of long sums each is hundreds of MB, and the first may do.
    probes = (probe(shape, corner) for corner in range(CORNERS))
    same = all(_equal(fast(*p), slow(*p, zero)) for p in probes)
    spent_seconds += time.perf_counter() - start
    stages.stage("emulating")
    return same


def _equal(fast: jax.Array, slow: jax.Array) -> bool:
    """Bit for bit; a zero sum is +0 whatever its sign was."""
    a, b = ((np.asarray(x) + np.float32(0)).view(np.uint32) for x in (fast, slow))
    return np.array_equal(a, b)


# Scales of rows and columns: ordinary sums; sums around 2^-122, with products below
# 2^-126; sums around 2^127, with products above 2^128.
SCALES = np.array([1.0, 2.0**-62, 2.0**63], np.float32)
CORNERS = len(SCALES)
DRAWN = 65_521  # normal deviates, over and over; a prime, so that rows differ


def probe(shape: Shape, corner: int) -> tuple[Matrix, Matrix]:
    """Operands of 8-bit significands whose magnitudes exercise the fold's corners.

    Args:
        shape: of the dot.
        corner: which scale the first row and column have.
    """
    batch, m, k, n, *k_first = shape
    generator = np.random.default_rng(corner)
    drawn = generator.standard_normal(DRAWN, np.float32)
    lhs = np.resize(drawn, (batch, m, k))
    rhs = np.resize(drawn[::-1], (batch, k, n))
    lhs[:, :, 3::7] *= np.float32(2.0**-30)  # lost in most sums, not in all
    lhs *= SCALES[(np.arange(m) + corner) % CORNERS][:, None]
    rhs *= SCALES[(np.arange(n) + corner) % CORNERS]
    rhs[:, 5::13, ::3] = np.float32(-0.0)
    lhs[:, 7::17, :] = np.float32(-0.0)
    mask = np.uint32(0xFFFF0000)
    lhs, rhs = ((x.view(np.uint32) & mask).view(np.float32) for x in (lhs, rhs))
    lhs_array = lhs.swapaxes(1, 2) if k_first[0] else lhs
    rhs_array = rhs if k_first[1] else rhs.swapaxes(1, 2)
    return (
        Matrix(jnp.asarray(lhs_array), k_first[0]),
        Matrix(jnp.asarray(rhs_array), k_first[1]),
    )
