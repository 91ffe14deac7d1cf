"""The emulator's own right kernels are within bounds that NumPy references give."""

from __future__ import annotations

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.diagnostics.tolerance import error_bounds
from tests.nki.test_tutorials import flash_attention, matmul_blocked_in_k, matmul_tiled

F32 = np.float32


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def _attended(q, k, v):
    scores = q.T @ k
    weights = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return weights / np.sum(weights, axis=1, keepdims=True) @ v


@nki.jit(target="trn2")
def rmsnorm(x):
    """x / sqrt(mean(x^2) + eps), by the rsqrt of ScalarE."""
    tile = nl.load(x)
    squares, sums = nl.ndarray(x.shape, nl.float32), nl.ndarray((128, 1), nl.float32)
    nisa.activation_reduce(
        dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=sums
    )
    means = nl.add(nl.multiply(sums, 1 / x.shape[1]), 1e-5)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(tile, nl.rsqrt(means)))
    return out


def _normed(x):
    return x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)


CASES = {
    "matmul": (matmul_tiled, lambda a, b: a.T @ b, [(512, 64), (512, 128)]),
    "blocks of K": (matmul_blocked_in_k, lambda a, b: a.T @ b, [(512, 64), (512, 64)]),
    "flash attention": (
        lambda *x: flash_attention(*x, 32),
        _attended,
        [(32, 96), (32, 96), (96, 32)],
    ),
    "rmsnorm": (rmsnorm, _normed, [(128, 700)]),
}


@pytest.mark.slow_cases("flash attention", "matmul", "blocks of K")
@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_is_within(name):
    kernel, reference, shapes = CASES[name]
    inputs = [_normal(*shape) for shape in shapes]
    found = kernel(*inputs)
    for functions in ("emulated", "silicon"):
        verdict = error_bounds(reference, inputs, functions=functions).check(found)
        assert verdict, verdict


@pytest.mark.slow
def test_a_kernel_that_leaves_a_tile_of_k_out_is_not():
    a, b = _normal(512, 64), _normal(512, 128)
    tolerance = error_bounds(lambda a, b: a.T @ b, [a, b])
    assert not tolerance.check(matmul_tiled(a[:384], b[:384]))


def test_a_kernel_that_counts_one_column_too_few_is_not():
    x = _normal(128, 700)
    right = rmsnorm(x)
    shrunk = right * F32(np.sqrt(699 / 700))
    tolerance = error_bounds(_normed, [x], functions="emulated")
    assert tolerance.check(right)
    assert not tolerance.check(shrunk)
