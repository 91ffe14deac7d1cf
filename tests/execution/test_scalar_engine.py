"""`transcendentals="scalar_engine"` in whole programs and in kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
import neuronjax.nki as nki
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.instruction_set import Activation
from neuronjax.ir.kernel_call import NkiKernel
from tests.oracles import piecewise

POLICY = nj.Policy(transcendentals="scalar_engine")
X = np.random.default_rng(0).normal(0, 2, (16, 48)).astype(np.float32)


def bits(tree) -> list[np.ndarray]:
    return [np.asarray(leaf).view(np.uint32) for leaf in jax.tree.leaves(tree)]


def assert_same(got, want) -> None:
    for a, b in zip(bits(got), bits(want), strict=True):
        np.testing.assert_array_equal(a, b)


def loss(w, x):
    """A normalisation, a gate, a softmax; their derivatives too."""

    def layer(x, _):
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        return jax.nn.silu(x @ w) + jnp.tanh(x), None

    x, _ = jax.lax.scan(layer, x, None, length=2)
    return -jnp.mean(jax.nn.log_softmax(x)[:, 0])


def emulated(function, policy=POLICY):
    return nj.jit(function, target="trn2", policy=policy)


@pytest.mark.slow
def test_compiled_is_op_by_op_with_gradients() -> None:
    w = np.random.default_rng(1).normal(0, 0.2, (48, 48)).astype(np.float32)
    step = emulated(jax.value_and_grad(loss))
    compiled = step(w, X)
    with jax.disable_jit():
        assert_same(step(w, X), compiled)
    outer = jax.jit(lambda w, x: step(w, x))(w, X)
    assert_same(outer, compiled)
    exact = emulated(jax.value_and_grad(loss), nj.Policy())(w, X)
    assert 0 < abs(float(compiled[0]) - float(exact[0])) < 1e-3
    np.testing.assert_allclose(compiled[1], exact[1], rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize(
    ("function", "name"),
    [(jnp.exp, "exp"), (jnp.tanh, "tanh"), (jax.lax.rsqrt, "rsqrt")],
)
def test_a_function_of_a_program_is_the_engines(function, name) -> None:
    x = np.abs(X)
    got = emulated(lambda x: function(x))(x)
    assert_same(got, piecewise.evaluate(name, x))


@pytest.mark.slow
def test_a_narrow_result_is_rounded_once() -> None:
    x = X.astype(jnp.bfloat16)
    got = emulated(lambda x: jnp.exp(x))(x)
    want = piecewise.evaluate("exp", x.astype(np.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.slow
def test_functions_that_the_engine_has_not_are_the_exact_ones() -> None:
    call = lambda x: jnp.cos(x) + jnp.log1p(jnp.abs(x))  # noqa: E731
    assert_same(emulated(call)(X), emulated(call, nj.Policy())(X))


@pytest.mark.slow
def test_a_rule_chooses_it_for_an_op() -> None:
    rule = nj.Rule(op="exponential", transcendentals="scalar_engine")
    call = lambda x: (jnp.exp(x), jnp.tanh(x))  # noqa: E731
    grown, bent = emulated(call, nj.Policy(rules=(rule,)))(X)
    assert_same(grown, emulated(lambda x: jnp.exp(x))(X))
    assert_same(bent, emulated(lambda x: jnp.tanh(x), nj.Policy())(X))


def test_the_label_is_modelled() -> None:
    compiled = emulated(lambda x: jnp.exp(x)).lower(X).compile()
    (found,) = [i for i in compiled.instructions if isinstance(i, Activation)]
    assert (found.transcendentals, found.label) == ("scalar_engine", "modelled")


# ---- Kernels.


@nki.jit(target="trn2")
def gated(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.activation(tile, nl.silu, tile)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.slow
def test_a_kernel_follows_the_policy() -> None:
    want = piecewise.evaluate("silu", X)
    assert_same(emulated(lambda x: gated(x))(X), want)


@pytest.mark.slow
def test_a_kernel_that_chooses_does_so_everywhere() -> None:
    want = piecewise.evaluate("silu", X)
    chosen = gated.with_transcendentals("scalar_engine")
    assert_same(chosen(X), want)
    assert_same(emulated(lambda x: chosen(x), nj.Policy())(X), want)
    with jax.disable_jit():
        assert_same(chosen(X), want)
    assert (bits(gated(X))[0] != bits(want)[0]).any()


@pytest.mark.slow
def test_a_kernel_under_the_host_is_exact() -> None:
    host = nj.Policy(transcendentals="host")
    assert_same(emulated(lambda x: gated(x), host)(X), gated(X))


def test_the_instruction_of_a_kernel_says_so() -> None:
    compiled = emulated(lambda x: gated(x)).lower(X).compile()
    (found,) = [i for i in compiled.instructions if isinstance(i, NkiKernel)]
    assert found.transcendentals == "scalar_engine"


def test_an_unknown_choice_of_a_kernel_names_the_legal_ones() -> None:
    with pytest.raises(InvalidProgramError, match="scalar_engine"):
        gated.with_transcendentals("host")
