"""A pool that a turn writes and reads again is updated in place, with the same bits."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.execution.kernels import steps

TILES, COLUMNS = 24, 256


def softmax():
    """A new kernel, whose tiles live until all of them were summed."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, COLUMNS), nl.float32) for _ in range(TILES)]
        powers = [nl.ndarray((128, COLUMNS), nl.float32) for _ in range(TILES)]
        sums = nl.ndarray((128, TILES), nl.float32)
        for n in range(TILES):
            nisa.dma_copy(tiles[n], x[n])
            nisa.activation(powers[n], nl.exp, tiles[n])
            nisa.tensor_reduce(sums[:, n : n + 1], nl.add, powers[n], axis=1)
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, sums, axis=1)
        nisa.reciprocal(total, total)
        for n in range(TILES):
            nisa.tensor_scalar(tiles[n], powers[n], nl.multiply, total)
            nisa.tensor_tensor(powers[n], tiles[n], powers[n], nl.add)
            for half in (slice(0, COLUMNS // 2), slice(COLUMNS // 2, COLUMNS)):
                nisa.dma_copy(out[n, :, half], powers[n][:, half])
        return out

    return kernel


def compiled(x):
    return jax.jit(softmax().__call__).lower(x).compile()


@pytest.fixture
def x():
    generator = np.random.default_rng(0)
    return generator.standard_normal((TILES, 128, COLUMNS)).astype(np.float32)


def temporary_bytes(x):
    found = compiled(x).memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


@pytest.mark.slow
def test_there_is_one_copy_of_a_pool(x, monkeypatch):
    pool_bytes = 2 * x.nbytes  # tiles and powers
    assert temporary_bytes(x) < 1.1 * pool_bytes
    # What XLA makes where it sees an update and later reads of the array.
    monkeypatch.setattr(steps, "LONG_COPIED_BYTES", 1 << 40)
    assert temporary_bytes(x) > 2 * pool_bytes


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("least", [0, 1 << 40])
def test_bits_are_those_of_single_instructions(x, monkeypatch, least):
    monkeypatch.setattr(steps, "LONG_COPIED_BYTES", least)
    found = np.asarray(compiled(x)(x))
    with jax.disable_jit():
        expected = np.asarray(softmax()(x))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
