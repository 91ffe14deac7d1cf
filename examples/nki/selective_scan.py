"""A selective scan (the recurrence of Mamba) as an NKI kernel.

    h[n, t] = exp(delta[t] a[n]) h[n, t-1] + delta[t] b[n, t] x[t]
    y[t] = sum over n of c[n, t] h[n, t]

for every channel. Channels lie on the partitions and time along the free axis, so that
VectorE's `tensor_tensor_scan` runs 128 recurrences at once. The profile of the first
version says that VectorE is the limit; the second gives a product to GpSimdE, and loads
b and c once instead of once per block of channels.

    python examples/nki/selective_scan.py --channels 256 --time 512
"""

from __future__ import annotations

import numpy as np
import typer

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

P = 128
Tile = nl.NkiTensor


def one_state(
    total: Tile,
    delta: Tile,
    drive: Tile,
    a: Tile,
    b: Tile,
    c: Tile,
    engine: nisa.engine = nisa.engine.vector,
) -> None:
    """Adds what one state contributes to `total` [128, time]."""
    decay, h = nl.ndarray(delta.shape, nl.float32), nl.ndarray(delta.shape, nl.float32)
    nisa.activation(decay, nl.exp, delta, scale=a)
    nisa.tensor_tensor(h, drive, b, nl.multiply, engine=engine)
    nisa.tensor_tensor_scan(h, decay, h, 0.0, nl.multiply, nl.add)
    nisa.tensor_tensor(h, h, c, nl.multiply)
    nisa.tensor_tensor(total, total, h, nl.add)


def everywhere(row: Tile) -> Tile:
    """A row [1, time] in HBM, on all partitions."""
    tile = nl.ndarray((P, row.shape[1]), nl.float32)
    nisa.dma_copy(tile, row.broadcast(0, P))
    return tile


def block(x: Tile, delta: Tile, a: Tile, i: int) -> tuple[Tile, Tile, Tile, Tile]:
    """The tiles of channels 128 i to 128 i + 127: delta, delta x, a, and a sum."""
    rows = slice(i * P, (i + 1) * P)
    deltas, drive = nl.load(delta[rows]), nl.load(x[rows])
    nisa.tensor_tensor(drive, drive, deltas, nl.multiply)
    return deltas, drive, nl.load(a[rows]), nl.zeros(deltas.shape, nl.float32)


@nki.jit(target="trn2")
def plain(x: Tile, delta: Tile, a: Tile, b: Tile, c: Tile) -> Tile:
    """x, delta [channels, time], a [channels, states], b, c [states, time], float32."""
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // P):
        deltas, drive, rates, total = block(x, delta, a, i)
        for n in range(a.shape[1]):
            b_n, c_n = everywhere(b[n : n + 1]), everywhere(c[n : n + 1])
            one_state(total, deltas, drive, rates[:, n : n + 1], b_n, c_n)
        nl.store(out[i * P :][:P], total)
    return out


@nki.jit(target="trn2")
def balanced(x: Tile, delta: Tile, a: Tile, b: Tile, c: Tile) -> Tile:
    """The same with the loop over states outside, and a product on GpSimdE."""
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    blocks = [block(x, delta, a, i) for i in range(x.shape[0] // P)]
    for n in range(a.shape[1]):
        b_n, c_n = everywhere(b[n : n + 1]), everywhere(c[n : n + 1])
        for deltas, drive, rates, total in blocks:
            rate = rates[:, n : n + 1]
            one_state(total, deltas, drive, rate, b_n, c_n, nisa.engine.gpsimd)
    for i, (*_, total) in enumerate(blocks):
        nl.store(out[i * P :][:P], total)
    return out


def reference(*arguments: np.ndarray) -> np.ndarray:
    """In float64, step by step."""
    x, delta, a, b, c = (v.astype(np.float64) for v in arguments)
    h, found = np.zeros(a.shape), np.zeros(x.shape)
    for t in range(x.shape[1]):
        drive = (delta[:, t] * x[:, t])[:, None] * b[:, t]
        h = np.exp(delta[:, t : t + 1] * a) * h + drive
        found[:, t] = h @ c[:, t]
    return found


def main(channels: int = 256, time: int = 512, states: int = 16) -> None:
    """Checks both kernels against NumPy and prints their profiles."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(channels, time)).astype(np.float32)
    delta = generator.uniform(0.01, 0.1, size=(channels, time)).astype(np.float32)
    a = -generator.uniform(0.5, 8, size=(channels, states)).astype(np.float32)
    b, c = generator.normal(size=(2, states, time)).astype(np.float32)
    arguments = (x, delta, a, b, c)
    expected = reference(*arguments)
    results = [kernel(*arguments) for kernel in (plain, balanced)]
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-5)
    assert results[0].tobytes() == results[1].tobytes()
    print("both are correct, and equal bit for bit\n")
    profiles = [nj.profile(kernel)(*arguments) for kernel in (plain, balanced)]
    for profile in profiles:
        print(profile)
    first, second = (p.timeline.total_seconds for p in profiles)
    print(f"balanced takes {second / first:.0%} of the time")
    assert second < first


if __name__ == "__main__":
    typer.run(main)
