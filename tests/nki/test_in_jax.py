"""Kernels under JAX's own transformations: jit, vmap, grad, eval_shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.capture.host_calls import leaves
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.nki.trace import emit


def affine():
    """x * w + factor; a new kernel, for tests that give it a derivative."""

    @nki.jit(target="trn2")
    def affine_kernel(x, w, factor=0.5):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        t, u = nl.load(x), nl.load(w)
        nisa.tensor_tensor(t, t, u, nl.multiply)
        nisa.tensor_scalar(t, t, nl.add, factor)
        nl.store(out, t)
        return out

    return affine_kernel


@executes("test_key")
def key_bits(i: Signature, x: Operands, c: TileContext) -> Results:
    """An instruction that shows the key which random bits derive from."""
    return (jnp.full(i.outputs[0].shape, c.key),)


@nki.jit(target="trn2")
def keys(x):
    out = nl.ndarray(x.shape, nl.uint32, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, nl.uint32)
    emit("test_key", "vector", [t])
    nl.store(out, t)
    return out


def data(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def same(a, b):
    a, b = (np.asarray(v).view(np.uint32) for v in (a, b))
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_kernel_inside_jit_is_one_operation():
    kernel, x, w = affine(), data(128, 32), data(128, 32, seed=1)
    step = jax.jit(lambda x, w: jnp.sin(kernel(x + 1, w)))
    names = [e.primitive.name for e in leaves(jax.make_jaxpr(step)(x, w).jaxpr)]
    assert names == ["add", "nki_kernel", "sin"]
    same(jax.jit(kernel)(x, w), kernel(x, w))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (1, 0)])
def test_an_example_has_the_same_bits_alone_and_in_a_batch(axes):
    kernel = affine()
    x = jnp.moveaxis(data(3, 128, 16), 0, axes[0])
    w = data(128, 16, seed=1) if axes[1] is None else data(3, 128, 16, seed=1)
    mapped = jax.vmap(kernel, in_axes=axes)
    batch = mapped(x, w)
    same(jax.jit(mapped)(x, w), batch)
    with jax.disable_jit():
        same(mapped(x, w), batch)
    for n in range(3):
        alone = kernel(jnp.take(x, n, axes[0]), w if axes[1] is None else w[n])
        same(batch[n], alone)


@pytest.mark.slow
def test_vmap_of_vmap_inside_jit():
    kernel, x, w = affine(), data(2, 3, 128, 8), data(128, 8, seed=1)
    inner = jax.vmap(kernel, in_axes=(0, None))
    nested = jax.jit(jax.vmap(inner, in_axes=(0, None)))(x, w)
    same(nested[1, 2], kernel(x[1, 2], w))


@pytest.mark.slow
def test_without_a_derivative_the_error_names_the_remedy():
    kernel, x = affine(), data(128, 8)
    with pytest.raises(UnsupportedError, match=r"affine_kernel has no derivative") as e:
        jax.grad(lambda x: kernel(x, x).sum())(x)
    assert "kernel.defvjp(forward, backward)" in str(e.value)
    # What needs no gradient may pass through it.
    gradient = jax.grad(lambda x: (x * kernel(jax.lax.stop_gradient(x), x * 0)).sum())
    with pytest.raises(UnsupportedError):
        gradient(x)
    stopped = jax.lax.stop_gradient
    gradient = jax.grad(lambda x: (x * kernel(stopped(x), stopped(x))).sum())
    same(gradient(x), kernel(x, x))


def with_derivative():
    kernel = affine()

    def forward(x, w, factor):
        return kernel(x, w, factor), (x, w)

    def backward(factor, residuals, ct):
        x, w = residuals
        return kernel(ct, w, 0.0), kernel(ct, x, 0.0)

    kernel.defvjp(forward, backward, nondiff_argnums=2)
    return kernel


@pytest.mark.slow
def test_the_derivative_given_is_used():
    kernel, x, w = with_derivative(), data(128, 8), data(128, 8, seed=1)
    loss = lambda x, w: (kernel(x, w) ** 2).sum()  # noqa: E731
    dx, dw = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    plain = jax.grad(lambda x, w: ((x * w + 0.5) ** 2).sum(), argnums=(0, 1))(x, w)
    np.testing.assert_allclose(dx, plain[0], rtol=1e-5)
    np.testing.assert_allclose(dw, plain[1], rtol=1e-5)
    # Per example, and for another factor by its keyword.
    each = jax.vmap(jax.grad(loss), in_axes=(0, None))(jnp.stack([x, 2 * x]), w)
    same(each[0], jax.grad(loss)(x, w))
    value, pull = jax.vjp(lambda x: kernel(x, w, factor=2.0), x)
    same(value, kernel(x, w, 2.0))
    same(pull(jnp.ones_like(x))[0], kernel(jnp.ones_like(x), w, 0.0))
    # A kernel made of it has the same derivative.
    same(jax.grad(lambda x: kernel.with_target("trn1")(x, w).sum())(x), w)


def test_a_static_argument_must_be_named():
    kernel, x = affine(), data(128, 8)
    kernel.defvjp(lambda x, w, f: (kernel(x, w, f), ()), lambda r, ct: (ct, ct))
    with pytest.raises(InvalidProgramError, match=r"argument 2 \(factor\)") as e:
        jax.grad(lambda x: kernel(x, x).sum())(x)
    assert "nondiff_argnums=(2,)" in str(e.value)


def test_shapes_without_arrays():
    kernel, x = affine(), jax.ShapeDtypeStruct((128, 8), jnp.bfloat16)
    expected = jax.ShapeDtypeStruct((128, 8), jnp.float32)
    assert jax.eval_shape(kernel, x, x) == expected
    assert kernel.eval_shape(x, x) == expected
    assert len(kernel.trace(x, x).body.items) == 5
    with pytest.raises(InvalidProgramError, match="a type and not an array") as e:
        kernel(x, x)
    assert "eval_shape" in str(e.value)


def test_the_seed_may_be_traced():
    x = data(128, 4)
    drawn = jax.jit(lambda x, n: keys.with_seed(n)(x))
    same(drawn(x, 3), keys.with_seed(3)(x))
    assert (np.asarray(drawn(x, 4)) != np.asarray(drawn(x, 3))).any()


def test_a_numpy_argument_is_not_written_under_a_transformation():
    @nki.jit(target="trn2")
    def in_place(x, table):
        t = nl.load(x)
        nl.store(table, t)
        return x

    x, table = data(128, 4), np.zeros((128, 4), np.float32)
    in_place(x, table)
    same(table, x)
    with pytest.raises(InvalidProgramError, match="writes its argument 1"):
        jax.jit(lambda x: in_place(x, table))(x)
