"""FP8 roles: cotangents are e5m2, everything else the chip's e4m3, by data flow.

The oracle is a count made by hand for each small network: how many matmuls have two
forward operands, and how many have exactly one cotangent. Section 4 of the design.
"""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.oracles import contraction, data, floats

FORWARD = {"trn1": "float8_e4m3", "trn2": "float8_e4m3", "trn3": "float8_e4m3fn"}
COTANGENT = "float8_e5m2"
_DEFINITION = re.compile(r"(%\d+):(?:\d+x)*([a-z]\w*)")
_MATMUL = re.compile(r"nc_matmul\((%\d+), (%\d+)\)")


def matmul_operands(text: str) -> list[tuple[str, str]]:
    """The dtypes of both operands of every matmul of an instruction listing."""
    dtypes = dict(_DEFINITION.findall(text))
    return [(dtypes[lhs], dtypes[rhs]) for lhs, rhs in _MATMUL.findall(text)]


def roles(function, *args, target="trn2") -> collections.Counter:
    """How many matmuls have so many cotangent operands."""
    emulated = nj.jit(function, target=target, policy="fp8")
    text = emulated.lower(*args).as_text("instructions")
    operands = matmul_operands(text)
    assert set(sum(operands, ())) <= {FORWARD[target], COTANGENT}, operands
    return collections.Counter(pair.count(COTANGENT) for pair in operands)


@pytest.fixture
def network():
    rng = np.random.default_rng(1)
    x = data.normal(rng, (5, 6))
    weights = [data.normal(rng, shape) for shape in ((6, 7), (7, 8), (8, 3))]
    return weights, x


def layer(x, w):
    return jnp.tanh(x @ w)


def loss(weights, x, layer=layer):
    for w in weights:
        x = layer(x, w)
    return jnp.sum(x * x)


@pytest.mark.parametrize("target", FORWARD)
def test_backward_matmuls_have_one_cotangent(network, target):
    counts = roles(jax.value_and_grad(loss), *network, target=target)
    # Backward: three weight gradients, and two to the layers' inputs.
    assert counts == {0: 3, 1: 5}


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_rematerialised_matmuls_are_forward(network, target):
    def rematted(weights, x):
        return loss(weights, x, jax.checkpoint(layer))

    counts = roles(jax.value_and_grad(rematted), *network, target=target)
    assert counts == {0: 6, 1: 5}


def test_a_rematerialised_block_of_layers(network):
    block = jax.checkpoint(lambda ws, x: layer(layer(x, ws[0]), ws[1]))

    def rematted(weights, x):
        return jnp.sum(layer(block(weights[:2], x), weights[2]) ** 2)

    counts = roles(jax.value_and_grad(rematted), *network)
    assert counts == {0: 5, 1: 5}


@pytest.mark.parametrize("remat", [False, True])
def test_layers_stacked_in_a_scan(remat):
    rng = np.random.default_rng(2)
    weights, x = data.normal(rng, (4, 6, 6)), data.normal(rng, (5, 6))
    body = jax.checkpoint(layer) if remat else layer

    def scanned(weights, x):
        return lax.scan(lambda c, w: (body(c, w), None), x, weights)[0].sum()

    counts = roles(jax.value_and_grad(scanned, (0, 1)), weights, x)
    assert counts == {0: 2 if remat else 1, 1: 2}


def test_a_vjp_whose_cotangent_is_an_argument_of_the_program(network):
    weights, x = network

    def pulled_back(weights, x, cotangent):
        out, vjp = jax.vjp(lambda ws: layer(layer(x, ws[0]), ws[1]), weights[:2])
        return out, vjp(cotangent)

    counts = roles(pulled_back, weights, x, np.ones((5, 8), np.float32))
    assert counts == {0: 2, 1: 3}


def test_attention_scores_contract_two_activations():
    rng = np.random.default_rng(3)
    q, k, v = (data.normal(rng, (2, 5, 4)) for _ in range(3))

    def attention(q, k, v):
        scores = jnp.einsum("bqd,bkd->bqk", q, k)
        return (jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) ** 2).sum()

    assert roles(jax.value_and_grad(attention, (0, 1, 2)), q, k, v) == {0: 2, 1: 4}


@pytest.mark.parametrize("total", [jnp.sum, jnp.mean])
def test_a_constant_broadcast_as_cotangent_is_one(total):
    """The gradient of a plain sum or mean: a constant meets x and w."""
    rng = np.random.default_rng(5)
    x, w = data.normal(rng, (5, 6)), data.normal(rng, (6, 7))
    counts = roles(jax.value_and_grad(lambda x, w: total(x @ w), (0, 1)), x, w)
    assert counts == {0: 1, 1: 2}


@pytest.mark.parametrize("remat", [False, True])
def test_a_constant_of_the_forward_pass_is_none(remat):
    """Also where the forward pass is repeated within the backward one."""
    w = data.normal(np.random.default_rng(6), (6, 7))

    def totals(w):
        return jnp.tanh(jnp.full((5, 6), 0.5) @ w)

    body = jax.checkpoint(totals) if remat else totals
    counts = roles(jax.value_and_grad(lambda w: (body(w) ** 2).sum()), w)
    assert counts == {0: 2 if remat else 1, 1: 1}


@pytest.mark.slow
def test_a_gradient_taken_outside_is_emulated_with_the_same_roles(network):
    """grad(nj.jit(f)) gives the bits of nj.jit(grad(f))."""
    inside = nj.jit(jax.value_and_grad(loss), target="trn2", policy="fp8")(*network)
    emulated = nj.jit(loss, target="trn2", policy="fp8")
    outside = jax.value_and_grad(emulated)(*network)
    for a, b in zip(jax.tree.leaves(inside), jax.tree.leaves(outside), strict=True):
        floats.same_bits(a, np.asarray(b), "grad outside against inside")


@pytest.mark.slow_except("trn2")
@pytest.mark.parametrize("target", FORWARD)
def test_the_gradient_is_that_of_an_e5m2_cotangent(target):
    """A linear layer's backward dots, value by value."""
    rng = np.random.default_rng(4)
    shapes = ((300, 5), (5, 260), (300, 260))
    x, w, cotangent = (data.normal(rng, shape) for shape in shapes)

    def program(x, w, cotangent):
        return jax.grad(lambda x, w: (x @ w * cotangent).sum(), (0, 1))(x, w)

    to_x, to_w = nj.jit(program, target=target, policy="fp8")(x, w, cotangent)
    e4m3 = "e4m3fn" if target == "trn3" else "e4m3"
    array = contraction.Array(
        lhs="e5m2", rhs=e4m3, scaled=True, double_row=target != "trn1"
    )
    expected = contraction.dot_general(cotangent, w, (((1,), (1,)), ((), ())), array)
    floats.same_bits(to_x, expected, "x")
    expected = contraction.dot_general(cotangent, x, (((0,), (0,)), ((), ())), array)
    floats.same_bits(to_w, expected.T, "w")
