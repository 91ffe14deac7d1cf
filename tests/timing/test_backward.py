"""The backward pass' share: none, most, and inside of loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from neuronjax.api.profile import profile
from neuronjax.timing.backward import backward_share

W = jax.ShapeDtypeStruct((4, 512, 512), jnp.float32)
X = jax.ShapeDtypeStruct((512, 512), jnp.float32)


def share(function, *args) -> float:
    found = profile(function, policy="bf16")(*args)
    return backward_share(found.lowered.captured.instructions, found.timeline)


def listed(w, x):
    for layer in range(4):
        x = jnp.tanh(x @ w[layer])
    return x.sum()


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()


def test_a_forward_pass_has_none():
    assert share(listed, W, X) == 0
    assert share(scanned, W, X) == 0


@pytest.mark.parametrize("loss", [listed, scanned])
def test_two_of_three_matmuls_are_backward(loss):
    """Inside of the scan's body the name stack does not say so.

    Of all work it is less, for the forward pass saves what the backward pass reads.
    """
    assert 0.3 < share(jax.grad(loss), W, X) < 0.8


def test_rematerialisation_is_part_of_it():
    again = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))

    def loss(w, x):
        return jax.lax.scan(again, x, w)[0].sum()

    assert share(jax.grad(loss), W, X) > share(jax.grad(scanned), W, X)
