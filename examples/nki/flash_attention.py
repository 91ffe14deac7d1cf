"""Compute flash attention (forward) as an NKI kernel, for one head.

For a tile of 128 queries, the kernel reads the keys in blocks of 512. The scores of a
block fill a PSUM bank. ScalarE turns them into weights and adds these; TensorE
transposes the weights in quarters and multiplies them with the values. When a block has
a larger maximum, the sums so far are scaled down. Each step waits for the step before.
With one tile at a time, the engines wait for each other; with several tiles, they have
work.

    python examples/nki/flash_attention.py --sequence 4096
"""

from __future__ import annotations

import time
from typing import NamedTuple

import ml_dtypes
import numpy as np
import typer

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

P, BLOCK = 128, 512
LOWEST = -30_000.0
Tile = nl.NkiTensor


class Running(NamedTuple):
    """What is known of a tile of queries after some blocks of keys.

    Attributes:
        queries: [width, 128].
        largest: the largest score, [128, 1].
        total: the sum of the weights, [128, 1].
        result: the weighted sum of the values, [128, width].
    """

    queries: Tile
    largest: Tile
    total: Tile
    result: Tile

    @classmethod
    def of(cls, queries: Tile) -> Running:
        """Before the first block."""
        largest = nl.full((P, 1), LOWEST, nl.float32)
        total = nl.zeros((P, 1), nl.float32)
        return cls(queries, largest, total, nl.zeros((P, queries.shape[0]), nl.float32))

    def scale_down(self, largest: Tile, negated: Tile) -> Tile:
        """The factor of what was summed before a new maximum, [128, 1]."""
        kept = nl.ndarray((P, 1), nl.float32)
        nisa.activation(kept, nl.exp, self.largest, bias=negated)
        nisa.tensor_copy(self.largest, largest)
        return kept


def scores_of(queries: Tile, keys: Tile) -> Tile:
    """Products of 128 queries and 512 keys, in a bank of PSUM."""
    scores = nl.ndarray((P, BLOCK), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(scores, queries, keys)
    return scores


def weights_of(running: Running, scores: Tile) -> tuple[Tile, Tile]:
    """A block's weights, and the factor of what was summed before."""
    scale = running.queries.shape[0] ** -0.5
    largest, negated = (nl.ndarray((P, 1), nl.float32) for _ in range(2))
    nisa.tensor_reduce(largest, nl.maximum, scores, axis=1)
    nisa.tensor_scalar(
        largest, largest, nl.multiply, scale, op1=nl.maximum, operand1=running.largest
    )
    nisa.tensor_scalar(negated, largest, nl.multiply, -1.0)
    kept = running.scale_down(largest, negated)
    weights, added = exponentials(scores, negated, scale)
    nisa.scalar_tensor_tensor(
        running.total, running.total, nl.multiply, kept, nl.add, added
    )
    return weights, kept


def add_values(running: Running, weights: Tile, kept: Tile, values: list[Tile]) -> None:
    """Adds the weighted values, four times [128, width]."""
    product = nl.ndarray(running.result.shape, nl.float32, buffer=nl.psum)
    for n, value in enumerate(values):
        turned = nl.ndarray((P, P), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(turned, weights[:, n * P : (n + 1) * P])
        nisa.nc_matmul(product, nl.copy(turned), value)
    nisa.scalar_tensor_tensor(
        running.result, running.result, nl.multiply, kept, nl.add, product
    )


def exponentials(scores: Tile, negated: Tile, scale: float) -> tuple[Tile, Tile]:
    """The weights of a block of scores in BF16, and their sums."""
    weights = nl.ndarray(scores.shape, nl.bfloat16)
    added = nl.ndarray((P, 1), nl.float32)
    nisa.activation_reduce(
        weights,
        nl.exp,
        scores,
        bias=negated,
        scale=scale,
        reduce_op=nl.add,
        reduce_res=added,
    )
    return weights, added


@nki.jit(target="trn2")
def attention(q: Tile, k: Tile, v: Tile, together: int = 4) -> Tile:
    """q, k [width, sequence] and v [sequence, width] -> float32 [sequence, width].

    width is at most 128, sequence a multiple of 512; `together` tiles of queries take
    turns.
    """
    width, sequence = q.shape
    out = nl.ndarray((sequence, width), nl.float32, buffer=nl.shared_hbm)
    keys = nl.load(k)
    values = [nl.load(v[n * P :][:P]) for n in range(sequence // P)]
    for first in range(0, sequence, together * P):
        rows = range(first, first + together * P, P)
        tiles = [Running.of(nl.load(q[:, nl.ds(row, P)])) for row in rows]
        for j in nl.sequential_range(sequence // BLOCK):
            block = keys[:, nl.ds(j * BLOCK, BLOCK)]
            some = values[j * BLOCK // P : (j + 1) * BLOCK // P]
            scores = [scores_of(tile.queries, block) for tile in tiles]
            weights = [weights_of(*pair) for pair in zip(tiles, scores)]
            for tile, (weight, kept) in zip(tiles, weights):
                add_values(tile, weight, kept, some)
        for row, tile in zip(rows, tiles):
            share = nl.ndarray((P, 1), nl.float32)
            nisa.reciprocal(share, tile.total)
            nisa.tensor_scalar(tile.result, tile.result, nl.multiply, share)
            nl.store(out[row:][:P], tile.result)
    return out


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Softmax attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q.T @ k / np.sqrt(q.shape[0])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ v / weights.sum(1, keepdims=True)


def main(sequence: int = 1024, width: int = 128) -> None:
    """Checks the kernel against NumPy and prints its profile."""
    generator = np.random.default_rng(0)
    q, k = generator.normal(size=(2, width, sequence)).astype(ml_dtypes.bfloat16)
    v = generator.normal(size=(sequence, width)).astype(ml_dtypes.bfloat16)
    start = time.perf_counter()
    found = attention(q, k, v)
    seconds = time.perf_counter() - start
    expected = reference(q, k, v)
    # The weights are rounded to BF16 before the second product.
    np.testing.assert_allclose(found, expected, atol=2**-8)
    error = np.abs(found - expected).max()
    print(f"correct: the largest error is {error:.1e}; emulated in {seconds:.1f} s\n")
    one, four = (nj.profile(attention)(q, k, v, together=n) for n in (1, 4))
    print(four)
    times = [1e6 * p.timeline.total_seconds for p in (one, four)]
    print("one tile of queries at a time: {:.0f} µs, four: {:.0f} µs".format(*times))


if __name__ == "__main__":
    typer.run(main)
