"""The array's fold: the spelled-out multiply-add, and the fast dot against the scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution.engines import array_fold, dot_verdicts
from neuronjax.execution.engines.array_fold import Matrix
from neuronjax.execution.engines.host_cache import HostCache
from tests.oracles import floats

MINUS_ZERO = np.float32(-0.0)


def bf16_values(generator: np.random.Generator, count: int) -> np.ndarray:
    """Values of 8 significant bits over all of FP32's exponents, and special ones."""
    bits = generator.integers(0, 1 << 32, count, np.uint32) & np.uint32(0xFFFF0000)
    values = bits.view(np.float32)
    special = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, 2.0**-126, 2.0**127])
    values[: special.size] = special
    return floats.flush(np.where(np.isnan(values), np.float32(1), values))


def test_fused_is_a_fused_multiply_add_over_the_whole_range():
    generator = np.random.default_rng(0)
    a, b = (bf16_values(generator, 200_000) for _ in range(2))
    total = floats.flush(generator.integers(0, 1 << 32, a.size, np.uint32).view("f4"))
    total = np.where(np.isnan(total), np.float32(0), total)
    # Half of the totals are near the product, so that sums cancel and underflow.
    with np.errstate(all="ignore"):
        near = floats.flush(-(a * b) * np.float32(1 + 2.0**-9))
    near = np.where(np.isfinite(near), near, np.float32(2.0**-120))
    total[::2] = near[::2]
    # Some have overflowed before, and meet products of either sign, up to 2^256.
    total[1::8], total[3::8] = np.inf, -np.inf
    got = np.asarray(jax.jit(array_fold.fused)(a, b, total, MINUS_ZERO))
    with np.errstate(all="ignore"):
        expected = floats.fma(a, b, total)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (a[~same][:3], b[~same][:3], total[~same][:3])


@pytest.mark.slow_except("shape0-True-False", "shape2-True-True")
@pytest.mark.parametrize("lhs_k_first", [False, True])
@pytest.mark.parametrize("rhs_k_first", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 40, 1), (1, 5, 128, 3), (3, 8, 100, 70)])
def test_a_verified_dot_equals_the_scan(shape, lhs_k_first, rhs_k_first):
    """On data of a trained network's magnitudes, not on the probe itself."""
    batch, m, k, n = shape
    generator = np.random.default_rng(1)
    lhs = generator.standard_normal((batch, m, k), np.float32)
    rhs = generator.standard_normal((batch, k, n), np.float32)
    mask = np.uint32(0xFFFF0000)
    lhs, rhs = ((x.view(np.uint32) & mask).view(np.float32) for x in (lhs, rhs))
    a = Matrix(jnp.asarray(lhs.swapaxes(1, 2) if lhs_k_first else lhs), lhs_k_first)
    b = Matrix(jnp.asarray(rhs if rhs_k_first else rhs.swapaxes(1, 2)), rhs_k_first)
    if not dot_verdicts.is_left_fold(a, b):
        pytest.skip("this host's dot is another sum for this shape: the scan is used")
    fast = np.asarray(jax.jit(array_fold.pinned)(a, b)) + np.float32(0)
    slow = np.asarray(jax.jit(array_fold.scanned)(a, b, MINUS_ZERO)) + np.float32(0)
    np.testing.assert_array_equal(fast.view(np.uint32), slow.view(np.uint32))


def test_every_probe_has_an_ordinary_first_row_and_column():
    """A product with a single row or column must not be zero, or nothing is tested."""
    shape = dot_verdicts.Shape(1, 1, 16, 64, False, False)
    for corner in range(dot_verdicts.CORNERS):
        lhs, rhs = dot_verdicts.probe(shape, corner)
        assert np.asarray(lhs.array)[0, 0].any()
        assert np.asarray(rhs.array)[0, 0].any()


def test_a_refused_dot_gives_the_same_bits(monkeypatch):
    x = jax.random.normal(jax.random.key(0), (9, 300))
    w = jax.random.normal(jax.random.key(1), (300, 7))
    fast = nj.jit(lambda x, w: x @ w, policy="bf16")(x, w)
    monkeypatch.setattr(dot_verdicts, "enabled", False)
    slow = nj.jit(lambda x, w: jnp.matmul(x, w), policy="bf16")(x, w)
    np.testing.assert_array_equal(np.asarray(fast), np.asarray(slow))


def test_verdicts_are_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path))
    cache = HostCache("dot", bool)
    monkeypatch.setattr(dot_verdicts, "_VERDICTS", cache)
    ones = Matrix(jnp.ones((1, 3, 20)), k_first=False)
    columns = Matrix(jnp.ones((1, 20, 64)), k_first=True)
    verdict = dot_verdicts.is_left_fold(ones, columns)
    assert f'"1x3x20x64NT": {str(verdict).lower()}' in cache.path.read_text()
    cache.path.write_text("{ cut short")
    cache.forget()
    assert dot_verdicts.is_left_fold(ones, columns) == verdict


@pytest.mark.parametrize("lhs_is_column", [False, True])
def test_a_zero_row_takes_no_part_beside_huge_columns(lhs_is_column):
    """XLA moves a factor to the smaller operand, where it overflowed: 0 x inf."""
    zeros = np.full((1, 16, 20), -0.0, np.float32)
    huge = np.full((1, 1, 20), 2.0**80, np.float32)
    pair = (Matrix(jnp.asarray(zeros), False), Matrix(jnp.asarray(huge), False))
    lhs, rhs = pair if lhs_is_column else pair[::-1]
    got = np.asarray(jax.jit(array_fold.scanned)(lhs, rhs, MINUS_ZERO))
    np.testing.assert_array_equal(got, np.zeros(got.shape, np.float32))
