"""Clips of quantizers, for any way of writing one, and bounds that are meant."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import neuronjax as nj
from neuronjax.execution.probes.bounds import ends_of

X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
E4M3, E5M2 = jnp.float8_e4m3, jnp.float8_e5m2
SCALE = 1e3


def faults(function: Any, *args: Any, **options: Any) -> list[str]:
    _, statistics = nj.jit(function, collect=True, **options)(*args)
    return [kind for record in statistics.records for kind in record["faults"]]


def quantized(x):
    return jnp.clip(x * SCALE, -240, 240).astype(E4M3).astype(x.dtype) / SCALE


def by_minimum(x):
    return jnp.minimum(jnp.maximum(x * SCALE, -240), 240).astype(E4M3)


def by_clamp(x):
    return lax.clamp(-240.0, x * SCALE, 240.0).astype(E4M3)


def in_bfloat16(x):
    return quantized(x.astype(jnp.bfloat16))


def to_the_end_of_a_core_in_another_type(x):
    return jnp.clip(x * SCALE, -240, 240).astype(jnp.float8_e4m3fn)


def to_e5m2(x):
    return jnp.clip(x * 1e6, -57344, 57344).astype(E5M2)


def of_one_sign(x):
    return jnp.minimum(jnp.abs(x) * SCALE, 240).astype(E4M3)


def in_a_scan(x):
    return lax.scan(lambda c, row: (c + quantized(row), None), jnp.zeros(64), x)[0]


def on_devices(x):
    mesh, spec = nj.make_mesh((4,), ("d",)), PartitionSpec("d")
    local = lambda x: lax.psum(quantized(x), "d")  # noqa: E731
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(x)


def under_grad(x):
    return jax.grad(lambda x: jnp.sum(SCALE * jnp.tanh(quantized(x))))(x)


def to_int8(x, scale=0.01):
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8)


def clipped_before_it_is_rounded(x):
    return jnp.round(jnp.clip(x / 0.01, -128, 127)).astype(jnp.int8)


def kept_in_floats(x):
    return jnp.clip(jnp.round(x / 0.1), -7, 7) * 0.1


def straight_through(x):
    return x + lax.stop_gradient(kept_in_floats(x) - x)


def by_blocks(x, part=0.75):
    blocks = x.reshape(-1, 32)
    scale = jnp.abs(blocks).max(-1, keepdims=True) * part / 448
    return jnp.clip(blocks / scale, -448, 448).astype(jnp.float8_e4m3fn)


@pytest.mark.slow_except("by_clamp", "to_int8")
@pytest.mark.parametrize(
    "function",
    [
        quantized,
        by_minimum,
        by_clamp,
        in_bfloat16,
        to_the_end_of_a_core_in_another_type,
        to_e5m2,
        of_one_sign,
        in_a_scan,
        on_devices,
        under_grad,
        to_int8,
        clipped_before_it_is_rounded,
        kept_in_floats,
        straight_through,
        by_blocks,
    ],
    ids=lambda function: function.__name__,
)
def test_a_quantizer_that_clips_is_told(function):
    assert faults(function, X, target="trn3") == ["saturation"]


def scaled_by_amax(x):
    scale = jnp.abs(x).max() / 240
    return jnp.clip(x / scale, -240, 240).astype(E4M3)


def scaled_by_the_amax_of_short_rows(x):
    return by_blocks(x[:, :4], 1.0)


def scaled_int8(x):
    rows = x.reshape(-1, 4)
    return to_int8(rows, jnp.abs(rows).max(-1, keepdims=True) / 127)


def rectified(x):
    return jax.nn.relu6(10 * x).astype(E4M3)


def hard(x):
    return jax.nn.hard_tanh(10 * x).astype(E4M3)


def clipped_by_value(x):
    return x - 0.1 * jnp.clip(x, -0.1, 0.1)


def clipped_by_norm(x):
    return x - 0.1 * x * jnp.minimum(1, 1 / jnp.linalg.norm(x))


def nearest_place(x):
    return x[jnp.clip(jnp.round(10 * x[0]), 0, 15).astype(jnp.int32)]


def one_function_for_both(x):
    return jnp.clip(x, -0.1, 0.1), scaled_by_amax(x)


@pytest.mark.slow_except("scaled_by_the_amax_of_short_rows")
@pytest.mark.parametrize(
    "function",
    [
        scaled_by_amax,
        scaled_by_the_amax_of_short_rows,
        scaled_int8,
        rectified,
        hard,
        clipped_by_value,
        clipped_by_norm,
        nearest_place,
        one_function_for_both,
    ],
    ids=lambda function: function.__name__,
)
def test_a_bound_that_is_meant_is_no_fault(function):
    assert not faults(function, X, target="trn3")


@pytest.mark.slow
def test_a_cast_of_the_policy_after_a_bound_is_no_quantizer():
    policy = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")
    assert not faults(lambda x: jax.nn.relu6(10 * x) @ x, X, policy=policy)


@pytest.mark.slow
def test_what_a_clip_loses_is_counted():
    _, statistics = nj.jit(by_clamp, collect="quantize")(X)
    (record,) = statistics.records
    assert record["saturated"] == np.sum(np.abs(X * np.float32(SCALE)) > 248)
    assert (record["underflow"], record["elements"]) == (None, X.size)
    assert statistics.as_metrics()["quantize/saturated"] > 0.5


def test_the_ends_are_those_of_the_types():
    for dtype in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3,
    ):
        ends = {end.value for end in ends_of(np.dtype(dtype))}
        assert float(ml_dtypes.finfo(dtype).max) in ends
        for end in ends_of(np.dtype(dtype)):
            # Of a format without more numbers what is above its end is Inf or NaN.
            below = np.float32(end.limit * (1 - 1e-6)).astype(dtype)
            assert not np.isfinite(below) or float(below) == end.value
    assert {end.value for end in ends_of(np.dtype(np.int8))} == {127, 128}
    assert not ends_of(np.dtype(np.int32))
    assert not ends_of(np.dtype(np.float32))
