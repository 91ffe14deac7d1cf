"""Compute a softmax over rows as an NKI kernel: three passes of two engines per tile.

VectorE finds the row's maximum. ScalarE subtracts it, takes the exponential and adds
the results in the same pass. VectorE divides. ScalarE's `reduce_res` saves a pass over
the tile.

    python examples/nki/softmax.py --rows 1024 --columns 2048
"""

from __future__ import annotations

import numpy as np
import typer

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

P = 128


@nki.jit(target="trn2")
def softmax(x: nl.NkiTensor) -> nl.NkiTensor:
    """x [rows, columns], float32 -> the same shape; rows a multiple of 128."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // P):
        tile = nl.load(x[i * P :][:P])
        largest = nl.ndarray((P, 1), nl.float32)
        nisa.tensor_reduce(largest, nl.maximum, tile, axis=1, negate=True)
        total = nl.ndarray((P, 1), nl.float32)
        nisa.activation_reduce(
            tile, nl.exp, tile, bias=largest, reduce_op=nl.add, reduce_res=total
        )
        share = nl.ndarray((P, 1), nl.float32)
        nisa.reciprocal(share, total)
        nisa.tensor_scalar(tile, tile, nl.multiply, share)
        nl.store(out[i * P :][:P], tile)
    return out


def main(rows: int = 1024, columns: int = 2048) -> None:
    """Checks the kernel against NumPy and prints its profile."""
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    weights = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    expected = weights / weights.sum(1, keepdims=True)
    found = softmax(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    error = np.abs(found / expected - 1).max()
    print(f"correct: the largest relative error is {error:.1e}\n")
    print(nj.profile(softmax)(x))


if __name__ == "__main__":
    typer.run(main)
