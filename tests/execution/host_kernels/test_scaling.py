"""Scaling by kernels of the host's processor: against NumPy, ml_dtypes and integers."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import neuronjax as nj
from neuronjax.execution.engines import tensor
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.rounding import cast
from tests.execution.host_kernels.test_quantize import any_bits, near

pytestmark = pytest.mark.skipif(
    not tensor.has_host_kernels(), reason="no kernels for this processor"
)
FORMATS = ("float8_e4m3", "float8_e5m2", "float8_e3m4", "float8_e4m3fn")
SCALES = np.array([1, 2.0**-9, 2.0**7, 2.0**-126, 2.0**127, np.inf], np.float32)


@functools.cache
def scaling():
    from neuronjax.execution.host_kernels import scaling

    return scaling


def flushed(x: np.ndarray) -> np.ndarray:
    """FP32 with subnormals as zeros."""
    x = x.astype(np.float32)
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)


def largest(x: np.ndarray) -> np.ndarray:
    """Of each row; a NaN is larger than all, and there is one."""
    found = np.abs(flushed(x)).max(axis=1)
    return np.where(np.isnan(found), np.float32(np.nan), found).view(np.uint32)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.one_of(st.integers(1, 200), st.sampled_from([16384, 16385, 70001])),
    st.sampled_from([any_bits, near]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(0, 2**32 - 1),
)
def test_the_largest_magnitude_of_each_row(outer, size, draw, dtype, seed):
    x = jnp.asarray(draw(seed, (outer, size))).astype(dtype)
    found = np.asarray(scaling().largest_magnitudes(x))
    np.testing.assert_array_equal(found.view(np.uint32), largest(np.asarray(x)))


@pytest.mark.parametrize("place", [0, 63, 64, 16383, 16384, 99999, 1099999])
@pytest.mark.parametrize("value", [-3.0, np.inf, -np.nan])
def test_the_largest_magnitude_is_found_at_every_place(place, value):
    """In vectors and behind them, in any part, by any thread."""
    x = np.full((1, 1100000), 0.5, np.float32)
    x[0, place] = value
    found = np.asarray(scaling().largest_magnitudes(jnp.asarray(x)))
    np.testing.assert_array_equal(found.view(np.uint32), largest(x))


@pytest.mark.slow_cases("float8_e4m3-False-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_every_bfloat16_times_a_scale(name, saturates, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(jnp.bfloat16)
    rows = jnp.asarray(np.broadcast_to(x, (len(SCALES), x.size))).astype(dtype)
    codes = scaling().scaled_codes(rows, jnp.asarray(SCALES), name, saturates)
    with np.errstate(all="ignore"):
        product = flushed(flushed(x) * SCALES[:, None])
    # Of Inf times 0 and NaN the host chooses the sign.
    sign = np.signbit(x.astype(np.float32))
    product = np.where(np.isnan(product), np.copysign(product, 0.5 - sign), product)
    fresh = np.isnan(product) & ~np.isnan(x.astype(np.float32))
    overflow = "saturate" if saturates else "ieee"
    wanted = cast(jnp.asarray(product), get_format(name), overflow=overflow)
    wanted, codes = np.asarray(wanted).view(np.uint8), np.asarray(codes)
    np.testing.assert_array_equal(codes[~fresh], wanted[~fresh])
    np.testing.assert_array_equal(codes[fresh] | 0x80, wanted[fresh] | 0x80)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.one_of(st.integers(1, 200), st.sampled_from([16384, 16385, 70001])),
    st.sampled_from(FORMATS),
    st.sampled_from([any_bits, near]),
    st.integers(-60, 60),
    st.integers(0, 2**32 - 1),
)
def test_scaled_codes_are_those_of_ml_dtypes(outer, size, name, draw, power, seed):
    x = draw(seed, (outer, size))
    scales = np.exp2(np.full(outer, power, np.float32))
    codes = scaling().scaled_codes(jnp.asarray(x), jnp.asarray(scales), name, False)
    with np.errstate(all="ignore"):
        product = flushed(flushed(x) * scales[:, None])
        wanted = product.astype(get_format(name).dtype)
    np.testing.assert_array_equal(np.asarray(codes), wanted.view(np.uint8))


@pytest.mark.slow
def test_vmap_equals_a_call_per_row():
    x = jnp.asarray(near(3, (3, 5, 700)))
    scale = jnp.exp2(jnp.arange(15, dtype=jnp.float32).reshape(3, 5))
    one = functools.partial(scaling().scaled_codes, element=FORMATS[0], saturates=False)
    found = jax.vmap(one)(x, scale)
    np.testing.assert_array_equal(found, jnp.stack([one(*v) for v in zip(x, scale)]))
    same = jax.vmap(one, (0, None))(x, scale[0])
    np.testing.assert_array_equal(same, jnp.stack([one(v, scale[0]) for v in x]))
    amax = jax.vmap(scaling().largest_magnitudes)(x)
    np.testing.assert_array_equal(amax, np.abs(x).max(axis=2))


@pytest.mark.slow
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_programs_have_the_same_bits_without(monkeypatch, dtype, overflow):
    """Compiled with kernels, without, and one instruction at a time."""
    policy = dataclasses.replace(nj.Policy.preset("fp8"), overflow=overflow)
    x = jnp.asarray(near(5, (40, 96))).astype(dtype)
    w = jnp.asarray(near(6, (96, 24))).astype(dtype)
    x = x.at[3, 7].set(0).at[0, 0].multiply(300)

    def train(w, x):
        return jnp.sum(jnp.sin((x @ w).astype(jnp.float32) * 1e-3))

    def run():
        call = nj.jit(jax.value_and_grad(train, (0, 1)), target="trn2", policy=policy)
        leaves = jax.tree.leaves(call(w, x))
        return [np.asarray(v).tobytes() for v in leaves]

    expected = run()
    with jax.disable_jit():
        assert run() == expected
    monkeypatch.setattr(choice, "enabled", False)
    assert run() == expected
