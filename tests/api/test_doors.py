"""JAX's own doors to a function: `trace`, `jax.export`, programs that are called."""

from __future__ import annotations

import inspect

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import neuronjax as nj
from neuronjax.errors import NeuronJaxError

X = jnp.asarray(np.random.default_rng(0).standard_normal((8, 40)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).standard_normal((40, 8)), jnp.float32)
SETTINGS = [("trn2", "bf16"), ("trn2", "fp8"), ("trn2", "fp32"), ("trn3", "mxfp8")]


def layer(params, x):
    return {"out": jax.nn.softmax(x @ params["w"]), "sum": x.sum()}


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def saved(exported):
    """As another process would have it."""
    return jax.export.deserialize(exported.serialize())


@pytest.mark.parametrize(("target", "policy"), SETTINGS)
def test_an_exported_emulation_has_the_bits(target, policy):
    """And the pytrees; nothing in it belongs to this process."""
    emulated = nj.jit(layer, target=target, policy=policy)
    expected = emulated({"w": W}, X)
    exported = saved(jax.export.export(emulated)({"w": W}, X))
    assert "custom_call" not in exported.mlir_module()
    assert_same(exported.call({"w": W}, X), expected)


def test_export_under_transformations():
    emulated = nj.jit(lambda w: layer({"w": w}, X)["out"][0, 0], policy="bf16")
    gradient = jax.jit(jax.grad(emulated))
    expected = gradient(W)
    with nj.exportable():
        exported = jax.export.export(gradient)(W)
    assert_same(saved(exported).call(W), expected)
    assert_same(gradient(W), expected)


def test_static_arguments_are_traced_and_exported():
    emulated = nj.jit(lambda x, n: x * n, static_argnames="n", policy="bf16")
    exported = saved(jax.export.export(emulated)(X, n=3))
    assert_same(exported.call(X), emulated(X, n=3))


def test_trace_is_that_of_jax():
    traced = nj.jit(layer, policy="bf16").trace({"w": W}, X)
    assert isinstance(traced, jax.stages.Traced)
    assert traced.fun_name == "layer"
    assert jax.tree.structure(traced.out_info) == jax.tree.structure(layer({"w": W}, X))
    assert_same(
        traced.lower().compile()({"w": W}, X), nj.jit(layer, policy="bf16")({"w": W}, X)
    )


def test_a_loaded_program_is_called():
    blob = jax.export.export(jax.jit(layer), platforms=["cpu"])({"w": W}, X).serialize()
    program = nj.load(blob, policy="bf16")
    expected = nj.jit(layer, policy="bf16")({"w": W}, X)
    for _ in range(2):
        assert_same(program({"w": W}, X), expected)
    assert_same(nj.jit(layer, policy="bf16").lower({"w": W}, X)({"w": W}, X), expected)


# -- refused, with a line and a remedy -------------------------------------------------


def doubled(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def with_pallas(x, **options):
    return pl.pallas_call(doubled, out_shape=x, **options)(x)


def test_the_remedy_of_pallas_works():
    with pytest.raises(nj.UnsupportedError, match=r"interpret=True"):
        nj.jit(with_pallas)(X)
    assert_same(nj.jit(lambda x: with_pallas(x, interpret=True))(X), 2 * X)


def scaled_constants(x):
    one = jnp.ones((1, 8, 1), jnp.float8_e8m0fnu)
    return jax.nn.scaled_matmul(x, x, one, one)


def scaled_arguments(x, scale):
    return jax.nn.scaled_matmul(x, x, scale, scale)


@pytest.mark.parametrize("function", [scaled_constants, scaled_arguments])
def test_scaled_matmul_on_an_older_chip_names_the_line(function):
    """Also of scales that are constants, which stand in front of the program."""
    x = jnp.ones((1, 8, 32), jnp.float8_e5m2)
    scale = jnp.ones((1, 8, 1), jnp.float8_e8m0fnu)
    count = len(inspect.signature(function).parameters)
    with pytest.raises(NeuronJaxError, match=r"float8_e8m0fnu.*trn2") as raised:
        nj.jit(function)(*(x, scale)[:count])
    first = function.__code__.co_firstlineno
    assert raised.value.location == f"{__file__}:{first + 1}"
