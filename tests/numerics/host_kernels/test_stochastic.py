"""Stochastic casts by kernels of the host's processor: against XLA's, and a sum.

XLA's arithmetic on integers, which `exportable` leaves alone, has its own oracles; the
sum of the last test is one of Python's integers.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.numerics.casting import cast
from neuronjax.numerics.float_format import FORMATS, get_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.choice import exportable
from neuronjax.numerics.random_bits import random_bits

pytestmark = pytest.mark.skipif(
    not choice.usable(), reason="no kernels for this processor"
)
NARROW = [f.name for f in FORMATS.values() if f.signed and f.width <= 8]
OVERFLOWS = ("ieee", "saturate")
KEYS = (0, 7, 2**32 - 1)
LOW_BITS = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


def rounded(x: Any, seed: Any, name: str, overflow: Any = "ieee") -> jax.Array:
    return cast(x, name, rounding="stochastic", overflow=overflow, seed=seed)


def codes(x: Any) -> np.ndarray:
    return np.asarray(x).view(np.uint8)


def by_xla(function: Any, *args: Any) -> Any:
    with exportable():
        return jax.jit(function)(*args)


def assert_as_xla(function: Any, *args: Any) -> None:
    found = jax.jit(function)(*args)
    np.testing.assert_array_equal(codes(found), codes(by_xla(function, *args)))


def test_a_kernel_is_called():
    program = jax.jit(functools.partial(rounded, seed=3, name="float8_e5m2"))
    text = program.lower(jnp.ones(8, jnp.float32)).as_text()
    assert "neuronjax_stochastic_float32_float8_e5m2" in text
    with exportable():
        text = program.lower(jnp.ones(8, jnp.float32)).as_text()
    assert "custom_call" not in text


@pytest.mark.slow_except("float8_e5m2-ieee")
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", NARROW)
def test_every_number_of_16_bits_and_beside_it(name, overflow):
    every = np.arange(1 << 16, dtype=np.uint16)
    high = every.astype(np.uint32) << 16
    wide = np.concatenate([high | np.uint32(low) for low in LOW_BITS])
    one = functools.partial(rounded, name=name, overflow=overflow)
    inputs = every.view(jnp.bfloat16), every.view(np.float16), wide.view(np.float32)
    for x, key in itertools.product(map(jnp.asarray, inputs), KEYS[:2]):
        assert_as_xla(one, x, jnp.uint32(key))


@pytest.mark.slow_cases(
    "float8_e5m2-7",
    "float8_e4m3-7",
    "float4_e2m1fn-7",
    "float8_e4m3fn-7",
)
@pytest.mark.parametrize("key", KEYS[1:])
@pytest.mark.parametrize("name", NARROW)
def test_sums_beside_a_carry(name, key):
    """A fraction of a step that with the random bits comes to 1, nearly or exactly."""
    fmt = get_format(name)
    one = functools.partial(rounded, name=name)
    random = np.asarray(random_bits((70_000,), jnp.uint32(key)))
    missing = (2.0**32 - random.astype(np.float64)) / 2.0**32
    for exponent, ulps in itertools.product((-1, 0, 1), (-2, -1, 0, 1, 2)):
        binade = 2.0 ** (fmt.min_exponent + exponent)
        step = 2.0 ** (fmt.min_exponent + max(exponent, 0) - fmt.mantissa_bits)
        x = (binade + missing * step).astype(np.float32)
        x = (x.view(np.uint32) + np.uint32(ulps % 2**32)).view(np.float32)
        small = (missing * step).astype(np.float32)  # below the smallest code
        for numbers in (x, -x, small):
            assert_as_xla(one, jnp.asarray(numbers), jnp.uint32(key))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(NARROW),
    st.sampled_from([0, 1, 7, 15, 16, 17, 33, 1023, 1024, 1025, 2049, 16385, 70001]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(-20, 20),
    st.integers(0, 2**32 - 1),
)
def test_stochastic_kernel_matches_xla_at_every_size(name, size, dtype, power, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0**power).astype(np.float32)
    x[rng.random(size) < 0.01] = rng.choice([0, -0.0, np.inf, -np.inf, np.nan, -np.nan])
    x = jnp.asarray(x).astype(dtype)
    assert_as_xla(functools.partial(rounded, seed=seed, name=name), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float8_e4m3", "float4_e2m1fn"])
def test_transformations(name):
    x = jnp.asarray(np.random.default_rng(1).standard_normal((5, 7, 301), np.float32))
    keys = jnp.arange(5, dtype=jnp.uint32) + jnp.uint32(2**31)
    one = functools.partial(rounded, name=name)
    assert_as_xla(one, jnp.swapaxes(x, 0, 2), keys[0])
    assert_as_xla(lambda x, k: one(x.T, k), x, keys[0])
    assert_as_xla(jax.vmap(one), x, keys)
    assert_as_xla(jax.vmap(one, (2, None), 1), x, keys[0])
    assert_as_xla(jax.vmap(one, (None, 0)), x, keys)
    rows = jnp.stack([one(v, k) for v, k in zip(x, keys, strict=True)])
    np.testing.assert_array_equal(codes(jax.vmap(one)(x, keys)), codes(rows))

    def scanned(x, keys):
        return jax.lax.scan(lambda n, v: (n + 1, one(*v)), 0, (x, keys))[1]

    assert_as_xla(scanned, x, keys)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("a",))
    part = jax.sharding.PartitionSpec("a")
    sharded = jax.shard_map(
        lambda v, k: one(v, k[0]), mesh=mesh, in_specs=(part, part), out_specs=part
    )
    assert_as_xla(sharded, x, keys)
    with jax.disable_jit():
        alone = one(x, keys[1])
    np.testing.assert_array_equal(codes(alone), codes(jax.jit(one)(x, keys[1])))
    donated = jax.jit(one, donate_argnums=0)(x + jnp.float32(0), keys[1])
    np.testing.assert_array_equal(codes(donated), codes(alone))


@pytest.mark.slow
def test_gradients_are_straight_through():
    x = jnp.asarray([0.3, -7.0, 300.0, -1e6], jnp.float32)

    def loss(x, overflow):
        out = rounded(x, 5, "float8_e4m3", overflow)
        return jnp.sum(jnp.where(jnp.isfinite(out), out.astype(jnp.float32), 0.0))

    np.testing.assert_array_equal(jax.grad(loss)(x, "saturate"), [1, 1, 0, 0])
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss), static_argnums=1)(x, "ieee")[:2], [1, 1]
    )


@pytest.fixture
def avx2(monkeypatch):
    """Kernels as a processor without AVX-512 has them."""
    from neuronjax.numerics.host_kernels import compiled, nibbles
    from neuronjax.numerics.host_kernels.elements import ElementKind

    if not llvm.get_host_cpu_features().get("avx2"):
        pytest.skip("no AVX2")
    features = llvm.get_host_cpu_features()
    for feature in features:
        features[feature] &= not feature.startswith(("avx512", "avx10", "evex"))
    monkeypatch.setattr(compiled, "lanes", lambda: 8)
    monkeypatch.setattr(compiled.llvm, "get_host_cpu_name", lambda: "haswell")
    monkeypatch.setattr(compiled.llvm, "get_host_cpu_features", lambda: features)
    name = ElementKind.name.fget
    assert name is not None
    monkeypatch.setattr(ElementKind, "name", property(lambda k: f"avx2_{name(k)}"))
    monkeypatch.setattr(nibbles, "NAME", "avx2_nibbles")
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.slow_except("float8_e4m3")
@pytest.mark.usefixtures("avx2")
@pytest.mark.parametrize("name", NARROW)
def test_without_avx512(name):
    test_sums_beside_a_carry(name, 7)
    test_every_number_of_16_bits_and_beside_it(name, "ieee")


@pytest.mark.parametrize("name", NARROW)
def test_stochastic_rounding_matches_integer_arithmetic(name):
    """A step's fraction in units of 2^-32 and the random bits: their sum carries."""
    fmt = get_format(name)
    rng = np.random.default_rng(9)
    size = np.exp2(rng.integers(fmt.min_exponent - 8, fmt.max_exponent, 4000))
    x = (size * rng.uniform(1, 2, 4000) * 0.9).astype(np.float32)
    random = np.asarray(random_bits(x.shape, jnp.uint32(77)))
    found = codes(jax.jit(functools.partial(rounded, seed=77, name=name))(x))
    values = [v for _, v in itertools.islice(fmt.codes(), fmt.max_code + 1)]
    below = np.searchsorted(values, x.astype(np.float64), side="right") - 1
    for number, code, bits, got in zip(x, below, random, found, strict=True):
        step = values[code + 1] - values[code]
        units = int((float(number) - values[code]) / step * 2**32)
        assert got == code + ((units + int(bits)) >> 32)
