"""Compute RMSNorm as an NKI kernel: x / sqrt(mean(x^2) + epsilon) * weight, row by row.

ScalarE squares and adds a row in one pass, and computes the reciprocal of the root.
VectorE computes both products in one instruction: with the scalar of a lane, and with
the weight, which DMA has written to all 128 partitions.

    python examples/nki/rms_norm.py --rows 2048 --columns 1024
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import typer

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

P = 128


@nki.jit(target="trn2")
def rms_norm(
    x: nl.NkiTensor, weight: nl.NkiTensor, epsilon: float = 1e-6
) -> nl.NkiTensor:
    """x [rows, columns] and weight [1, columns] -> the shape and dtype of x."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    weights = nl.ndarray((P, columns), weight.dtype)
    nisa.dma_copy(weights, weight.broadcast(0, P))
    bias = nl.full((P, 1), epsilon, nl.float32)
    for i in nl.affine_range(rows // P):
        tile = nl.load(x[i * P :][:P])
        squares = nl.ndarray(tile.shape, nl.float32)
        total = nl.ndarray((P, 1), nl.float32)
        nisa.activation_reduce(
            squares, nl.square, tile, reduce_op=nl.add, reduce_res=total
        )
        scale = nl.ndarray((P, 1), nl.float32)
        nisa.activation(scale, nl.rsqrt, total, bias=bias, scale=1 / columns)
        nisa.scalar_tensor_tensor(tile, tile, nl.multiply, scale, nl.multiply, weights)
        nl.store(out[i * P :][:P], tile)
    return out


def main(rows: int = 2048, columns: int = 1024) -> None:
    """Checks the kernel against NumPy and prints its profile."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, columns)).astype(ml_dtypes.bfloat16)
    weight = generator.normal(size=(1, columns)).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float64)
    norm = np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    expected = wide / norm * weight.astype(np.float64)
    found = rms_norm(x, weight).astype(np.float64)
    # One rounding to BF16, of 8 significant bits.
    np.testing.assert_allclose(found, expected, rtol=2**-8)
    print("correct: every element is within one rounding to BF16\n")
    print(nj.profile(rms_norm)(x, weight))


if __name__ == "__main__":
    typer.run(main)
