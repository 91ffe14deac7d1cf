"""Arrays of 4 bits packed by a kernel of the host's processor: against ml_dtypes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import neuronjax as nj
from neuronjax.numerics.casting import cast
from neuronjax.numerics.float_format import FLOAT4_E2M1FN, get_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.choice import exportable
from neuronjax.numerics.microscaling import MXArray, quantize_mx
from neuronjax.numerics.widening import from_codes

pytestmark = pytest.mark.skipif(
    not choice.usable(), reason="no kernels for this processor"
)
FP4 = FLOAT4_E2M1FN.name
pack = functools.partial(from_codes, fmt=FLOAT4_E2M1FN)


def codes(x) -> np.ndarray:
    return np.asarray(x).view(np.uint8)


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(4).integers(0, 16, shape, np.uint8))


@pytest.mark.slow_except("shape0", "shape5", "shape10", "shape17")
@pytest.mark.parametrize(
    "shape",
    [
        *((n,) for n in (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 65, 16383, 16385, 100001)),
        (),
        (3, 5),
        (7, 0),
        (129, 257),
    ],
)
def test_pack_keeps_codes_of_every_size(shape):
    given = drawn(*shape)
    for call in (pack, jax.jit(pack)):
        np.testing.assert_array_equal(codes(call(given)), given)
    with jax.disable_jit():
        np.testing.assert_array_equal(codes(pack(given)), given)


def test_pack_keeps_every_pair_of_codes():
    pairs = np.stack(np.meshgrid(np.arange(16), np.arange(16)), -1).astype(np.uint8)
    np.testing.assert_array_equal(codes(jax.jit(pack)(pairs)), pairs)


def test_a_kernel_is_called_and_none_is_exported():
    text = jax.jit(pack).lower(drawn(8)).as_text()
    assert "neuronjax_nibbles" in text
    with nj.exportable():
        exported = export.export(jax.jit(functools.partial(cast, dtype=FP4)))(
            jax.ShapeDtypeStruct((33,), jnp.float32)
        )
    assert "custom_call" not in exported.mlir_module()
    x = jnp.asarray(np.random.default_rng(0).standard_normal(33, np.float32))
    np.testing.assert_array_equal(codes(exported.call(x)), codes(cast(x, FP4)))


@pytest.mark.slow_cases("rne", "half_away")
@pytest.mark.parametrize("rounding", ["rne", "rtz", "half_away"])
def test_every_number_of_16_bits_and_beside_it(rounding):
    every = np.arange(1 << 16, dtype=np.uint16)
    high = every.astype(np.uint32) << 16
    lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    wide = np.concatenate([high | low for low in lows])
    inputs = every.view(jnp.bfloat16), every.view(np.float16), wide.view(np.float32)
    call = jax.jit(functools.partial(cast, dtype=FP4, rounding=rounding))
    for x in inputs:
        found = codes(call(x))
        with exportable():
            np.testing.assert_array_equal(found, codes(call(x)))
        if rounding == "rne":
            with np.errstate(all="ignore"):
                wanted = x.astype(np.float32).astype(ml_dtypes.float4_e2m1fn)
            np.testing.assert_array_equal(found, codes(wanted))


@pytest.mark.slow
def test_transformations():
    given = drawn(6, 5, 33)
    np.testing.assert_array_equal(
        codes(jax.vmap(pack, 1, 2)(given)), np.moveaxis(given, 1, 2)
    )
    turned = jax.jit(lambda x: pack(x.T))(given)
    np.testing.assert_array_equal(codes(turned), given.T)
    scanned = jax.lax.scan(lambda n, v: (n, pack(v)), 0, given)[1]
    np.testing.assert_array_equal(codes(scanned), given)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("a",))
    part = jax.sharding.PartitionSpec("a")
    sharded = jax.shard_map(pack, mesh=mesh, in_specs=part, out_specs=part)
    np.testing.assert_array_equal(codes(jax.jit(sharded)(given)), given)
    donated = jax.jit(pack, donate_argnums=0)(given + jnp.uint8(0))
    np.testing.assert_array_equal(codes(donated), given)
    grad = jax.grad(lambda x: jnp.sum(cast(x, FP4).astype(jnp.float32)))
    np.testing.assert_array_equal(grad(jnp.float32([0.3, -9, 2])), [1, 0, 1])


@pytest.mark.slow_except("rne-shape0-1")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(33, 65), (64, 7), (1, 1), (96, 128)])
@pytest.mark.parametrize("rounding", ["rne", "stochastic"])
def test_blocks(shape, axis, rounding):
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    seed = 5 if rounding == "stochastic" else None

    @jax.jit
    def quantize(x: jax.Array) -> MXArray:
        return quantize_mx(x, "mxfp4_e2m1", axis=axis, rounding=rounding, seed=seed)

    found = quantize(x)
    with exportable():
        wanted = quantize(x)
    np.testing.assert_array_equal(codes(found.elements), codes(wanted.elements))
    np.testing.assert_array_equal(codes(found.scales), codes(wanted.scales))
    element = get_format(found.elements.dtype)
    np.testing.assert_array_equal(
        codes(from_codes(jnp.asarray(codes(found.elements)), element)),
        codes(found.elements),
    )
