"""Compute a matrix product as an NKI kernel, tiled and then blocked.

The first version loads both tiles in every step: it is correct, and DMA is its limit.
The second keeps a column block of the right side and a row block of the left one in
SBUF, and stores whole rows. Both add in the same order, so the bits are the same.

    python examples/nki/matmul.py --size 1024
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import typer

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

P, COLUMNS = 128, 512  # rows of the array; columns of a PSUM bank in FP32


@nki.jit(target="trn2")
def tiled(lhs_t: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs_t [k, m] and rhs [k, n] -> lhs_t.T @ rhs, [m, n] in lhs_t's dtype."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // P):
        for j in nl.affine_range(n // COLUMNS):
            total = nl.ndarray((P, COLUMNS), nl.float32, buffer=nl.psum)
            for step in nl.affine_range(k // P):
                left = nl.load(lhs_t[step * P :][:P, nl.ds(i * P, P)])
                right = nl.load(rhs[step * P :][:P, nl.ds(j * COLUMNS, COLUMNS)])
                nisa.nc_matmul(total, left, right)
            tile = nl.copy(total, dtype=out.dtype)
            nl.store(out[i * P :][:P, nl.ds(j * COLUMNS, COLUMNS)], tile)
    return out


@nki.jit(target="trn2")
def blocked(lhs_t: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """The same; every operand is loaded once while SBUF holds the right side."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    steps = k // P
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    right = [nl.load(rhs[step * P :][:P]) for step in range(steps)]
    for i in nl.affine_range(m // P):
        left = [nl.load(lhs_t[s * P :][:P, nl.ds(i * P, P)]) for s in range(steps)]
        rows = nl.ndarray((P, n), out.dtype)
        for j in nl.affine_range(n // COLUMNS):
            columns = nl.ds(j * COLUMNS, COLUMNS)
            total = nl.ndarray((P, COLUMNS), nl.float32, buffer=nl.psum)
            for step in range(steps):
                nisa.nc_matmul(total, left[step], right[step][:, columns])
            nisa.tensor_copy(rows[:, columns], total)
        nl.store(out[i * P :][:P], rows)
    return out


def main(size: int = 1024) -> None:
    """Checks both kernels against NumPy and prints their profiles."""
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, size, size)).astype(ml_dtypes.bfloat16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    lhs_t = np.ascontiguousarray(a.T)
    results = [kernel(lhs_t, b) for kernel in (tiled, blocked)]
    np.testing.assert_allclose(
        results[0].astype(np.float32), expected, rtol=1e-2, atol=0.1
    )
    assert results[0].tobytes() == results[1].tobytes()
    print("both are correct, and equal bit for bit\n")
    profiles = [nj.profile(kernel)(lhs_t, b) for kernel in (tiled, blocked)]
    for profile in profiles:
        print(profile)
    first, second = (p.timeline.total_seconds for p in profiles)
    print(f"blocked takes 1/{first / second:.1f} of the time")
    assert second < first


if __name__ == "__main__":
    typer.run(main)
