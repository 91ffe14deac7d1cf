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


@pytest.mark.slow
@pytest.mark.parametrize(("target", "policy"), SETTINGS)
def test_an_exported_emulation_has_the_bits(target, policy):
    """And the pytrees; nothing in it belongs to this process."""
    emulated = nj.jit(layer, target=target, policy=policy)
    expected = emulated({"w": W}, X)
    exported = saved(jax.export.export(emulated)({"w": W}, X))
    assert "custom_call" not in exported.mlir_module()
    assert_same(exported.call({"w": W}, X), expected)


@pytest.mark.slow
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


@pytest.mark.slow
def test_trace_is_that_of_jax():
    traced = nj.jit(layer, policy="bf16").trace({"w": W}, X)
    assert isinstance(traced, jax.stages.Traced)
    assert traced.fun_name == "layer"
    assert jax.tree.structure(traced.out_info) == jax.tree.structure(layer({"w": W}, X))
    assert_same(
        traced.lower().compile()({"w": W}, X), nj.jit(layer, policy="bf16")({"w": W}, X)
    )


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow_cases("quantize", "fold")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: nj.jit(lambda x: x @ W, policy="bf16")(x),
        lambda x: nj.jit(lambda x: x @ W, target="trn3", policy="mxfp8")(x),
        lambda x: nj.cast(x, "float4_e2m1fn"),
    ],
    ids=["fold", "quantize", "cast"],
)
def test_an_export_that_cannot_be_names_the_way(function):
    """Under `jax.jit` nothing tells that it is for another machine."""
    with pytest.raises(nj.UnsupportedError, match=r"nj\.exportable\(\)") as raised:
        jax.export.export(jax.jit(function))(X)
    assert str(raised.value.location).startswith(__file__)
    with nj.exportable():
        exported = jax.export.export(jax.jit(function))(X)
    assert_same(saved(exported).call(X), jax.jit(function)(X))


@pytest.mark.parametrize("reduce", [jax.lax.psum, jax.lax.pmax, jax.lax.all_gather])
def test_an_axis_that_is_not_there(reduce):
    mesh, rows = nj.make_mesh((4,), ("dp",)), jax.P("dp")

    def over(x):
        return reduce(x, "tp")

    line = f"{__file__}:{over.__code__.co_firstlineno + 1}"
    on_mesh = jax.shard_map(over, mesh=mesh, in_specs=rows, out_specs=rows)
    for function in (on_mesh, over):
        with pytest.raises(nj.InvalidProgramError, match="axis 'tp'") as raised:
            nj.jit(function)(X)
        assert raised.value.location == line


def test_a_rank_that_is_not_there():
    def sent(x):
        return jax.lax.ppermute(x, "dp", [(0, 7)])

    with pytest.raises(
        nj.InvalidProgramError, match="device 7 is not in the mesh of 4"
    ):
        nj.pmap(sent, axis_name="dp", devices=4)(X[:4])


@pytest.mark.slow_cases("bare")
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["bare", "jit"])
def test_the_remedies_of_linear_transpose_work(around):
    def f(x):
        return x @ W

    emulated = around(nj.jit(f))
    y = emulated(X)
    with pytest.raises(nj.UnsupportedError, match=r"jax\.vjp") as raised:
        jax.linear_transpose(emulated, X)(y)
    assert str(raised.value.location).startswith(__file__)
    (by_vjp,) = jax.vjp(emulated, X)[1](y)
    transpose = nj.jit(lambda y: jax.linear_transpose(emulated, X)(y))
    assert_same(transpose(y), (by_vjp,))
    np.testing.assert_allclose(by_vjp, y @ W.T, rtol=1e-5, atol=1e-4)
