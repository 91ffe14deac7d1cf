"""Which shapes XLA's pinned dot computes as a left fold, found out by trying.

A shape is used only after its dot was compared with the scanned fold, bit for bit, on
probe data that include products below 2^-126 and above 2^128, cancellation and signed
zeros. Verdicts are kept by jaxlib, processor and thread count, in memory and in a file
of the user's cache directory
(`NEURONJAX_CACHE_DIR`, else `$XDG_CACHE_HOME/neuronjax`, else `~/.cache/neuronjax`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.engines.array_fold import (
    Matrix,
    narrower_as_columns,
    padded,
    pinned,
    scanned,
)


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


_LOCK = threading.Lock()
# Verification must not be traced into the program that asks for it; traces are local
# to a thread.
_WORKER = ThreadPoolExecutor(1, thread_name_prefix="neuronjax-verdict")

# Seconds spent on verification by this process: reported apart in the benchmark.
spent_seconds = 0.0
# False compares whole programs with and without the fast path.
enabled = True


def is_left_fold(lhs: Matrix, rhs: Matrix) -> bool:
    """Whether `pinned` equals `scanned` on operands of these shapes, on this host."""
    if not enabled:
        return False
    shape = Shape.of(lhs, rhs)
    with _LOCK:
        verdicts = _verdicts()
        if str(shape) not in verdicts:
            verdicts[str(shape)] = _WORKER.submit(_verify, shape).result()
            _save(verdicts)
        return verdicts[str(shape)]


def _verify(shape: Shape) -> bool:
    global spent_seconds
    start = time.perf_counter()
    zero = jnp.float32(-0.0)  # an argument: unknown to the compiler
    fast, slow = jax.jit(pinned), jax.jit(scanned)
    probes = [probe(shape, corner) for corner in range(CORNERS)]
    same = all(_equal(fast(*p), slow(*p, zero)) for p in probes)
    spent_seconds += time.perf_counter() - start
    return same


def _equal(fast: jax.Array, slow: jax.Array) -> bool:
    """Bit for bit; a zero sum is +0 whatever its sign was."""
    a, b = ((np.asarray(x) + np.float32(0)).view(np.uint32) for x in (fast, slow))
    return np.array_equal(a, b)


# Scales of rows and columns: ordinary sums; sums around 2^-122, with products below
# 2^-126; sums around 2^127, with products above 2^128.
SCALES = np.array([1.0, 2.0**-62, 2.0**63], np.float32)
CORNERS = len(SCALES)


def probe(shape: Shape, corner: int) -> tuple[Matrix, Matrix]:
    """Operands of 8-bit significands whose magnitudes exercise the fold's corners.

    Args:
        shape: of the dot.
        corner: which scale the first row and column have.
    """
    batch, m, k, n, *k_first = shape
    generator = np.random.default_rng(corner)
    lhs = generator.standard_normal((batch, m, k), np.float32)
    rhs = generator.standard_normal((batch, k, n), np.float32)
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


# -- the file --------------------------------------------------------------------------


@functools.cache
def _verdicts() -> dict[str, bool]:
    path = verdict_file()
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # no cache yet, or one cut short: it is built again
    return {k: v for k, v in loaded.items() if isinstance(v, bool)}


def _save(verdicts: dict[str, bool]) -> None:
    path = verdict_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, suffix=".json"
        ) as file:
            json.dump(verdicts, file, indent=0, sort_keys=True)
        os.replace(file.name, path)
    except OSError:
        return  # a read-only home costs time, not correctness


@functools.cache
def verdict_file() -> Path:
    """The cache file of this jaxlib, device, processor and thread count."""
    root = os.environ.get("NEURONJAX_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(root) if root else base / "neuronjax"
    return folder / f"dot-{host_fingerprint()}.json"


@functools.cache
def host_fingerprint() -> str:
    """A short hash of everything that may change the order of XLA's dot."""
    device = jax.devices()[0]
    parts = (
        jax.lib.__version__,
        device.platform,
        device.device_kind,
        platform.machine(),
        _processor(),
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0),
        os.environ.get("XLA_FLAGS", ""),
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags")
    return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))
