"""Recurrent models: an LSTM under `lax.scan`, and a Mamba-style selective scan.

The selective scan comes in two forms that compute the same recurrence by different
programs: `lax.scan` over time, and `lax.associative_scan` (a tree of slices,
concatenations and pads).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

from tests.zoo.program import (
    Function,
    Program,
    PyTree,
    Size,
    cross_entropy,
    images_and_labels,
    integers,
    parameters,
    train_step,
    warm_state,
)

CLASSES = 7

# ---- LSTM.

_LSTM_HIDDEN: dict[Size, int] = {"tiny": 12, "small": 48}
_SEQUENCES: dict[Size, tuple[int, ...]] = {"tiny": (3, 5, 9), "small": (16, 24, 20)}


class LSTMClassifier(linen.Module):
    """An LSTM over [B, T, F], read out at the last step."""

    hidden: int

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        states: Any = linen.RNN(linen.OptimizedLSTMCell(self.hidden))(x)
        return linen.Dense(CLASSES)(states[:, -1])


def _lstm(seed: int, size: Size = "tiny") -> tuple[Function, tuple[PyTree, ...]]:
    model, optimizer = LSTMClassifier(_LSTM_HIDDEN[size]), optax.lion(1e-3)
    x, y = images_and_labels(seed, _SEQUENCES[size], CLASSES)
    params = parameters(jax.eval_shape(model.init, jax.random.key(0), x), seed)

    def loss(params: PyTree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, PyTree]:
        return cross_entropy(model.apply(params, x), y)

    state = warm_state(optimizer, params, seed)
    return train_step(loss, optimizer), (params, state, x, y)


# ---- Mamba (Gu and Dao 2023): a selective state space model.

Recurrence = Callable[[jax.Array, jax.Array], jax.Array]

_KERNEL = 4
#: (width E of the residual stream, inner width D, state N).
_MAMBA: dict[Size, tuple[int, int, int]] = {"tiny": (8, 12, 4), "small": (24, 48, 8)}
_MAMBA_TOKENS: dict[Size, tuple[int, int]] = {"tiny": (2, 11), "small": (4, 40)}


def sequential(decay: jax.Array, drive: jax.Array) -> jax.Array:
    """h[t] = decay[t] * h[t-1] + drive[t] along axis 1, one step at a time."""

    def step(h: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple:
        h = at[0] * h + at[1]
        return h, h

    time_major = (jnp.moveaxis(decay, 1, 0), jnp.moveaxis(drive, 1, 0))
    _, states = jax.lax.scan(step, jnp.zeros_like(drive[:, 0]), time_major)
    return jnp.moveaxis(states, 0, 1)


def associative(decay: jax.Array, drive: jax.Array) -> jax.Array:
    """The same recurrence as a parallel prefix."""

    def combine(left: tuple, right: tuple) -> tuple:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(combine, (decay, drive), axis=1)[1]


def causal_depthwise(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Each channel of x [B, T, D] convolved with its own past; kernel [K, 1, D]."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding=((_KERNEL - 1, 0),),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=x.shape[-1],
    )


def mamba_block(params: PyTree, x: jax.Array, recurrence: Recurrence) -> jax.Array:
    """One block, [B, T, E] -> [B, T, E]."""
    states = params["A_log"].shape[1]
    u, gate = jnp.split(x @ params["in"], 2, axis=-1)
    u = jax.nn.silu(causal_depthwise(u, params["conv"]))
    b, c, rate = jnp.split(u @ params["select"], (states, 2 * states), axis=-1)
    rate = jax.nn.softplus(rate * params["rate_scale"] + params["rate_bias"])
    decay = jnp.exp(rate[..., None] * -jnp.exp(params["A_log"]))
    hidden = recurrence(decay, (rate * u)[..., None] * b[:, :, None, :])
    y = jnp.einsum("btdn,btn->btd", hidden, c) + u * params["D"]
    return x + (y * jax.nn.silu(gate)) @ params["out"]


def _mamba_parameters(size: Size, seed: int) -> PyTree:
    width, inner, states = _MAMBA[size]
    shapes = {
        "embed": (CLASSES, width),
        "in": (width, 2 * inner),
        "conv": (_KERNEL, 1, inner),
        "select": (inner, 2 * states + 1),
        "rate_scale": (inner,),
        "rate_bias": (inner,),
        "A_log": (inner, states),
        "D": (inner,),
        "out": (inner, width),
    }
    is_shape = lambda s: isinstance(s, tuple)  # noqa: E731
    abstract = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape
    )
    return parameters(abstract, seed)


def _mamba(
    recurrence: Recurrence, seed: int, size: Size = "tiny"
) -> tuple[Function, tuple[PyTree, ...]]:
    params, optimizer = _mamba_parameters(size, seed), optax.adam(1e-3)

    def loss(params: PyTree, tokens: jax.Array) -> tuple[jax.Array, PyTree]:
        x = mamba_block(params, params["embed"][tokens[:, :-1]], recurrence)
        logits = x @ params["embed"].T
        return cross_entropy(
            logits.reshape(-1, CLASSES), tokens[:, 1:].reshape(math.prod(x.shape[:2]))
        )

    tokens = integers(seed, _MAMBA_TOKENS[size], CLASSES)
    state = warm_state(optimizer, params, seed)
    return train_step(loss, optimizer), (params, state, tokens)


PROGRAMS = (
    Program(name="lstm_lion", make=_lstm),
    Program(name="mamba_scan_adam", make=functools.partial(_mamba, sequential)),
    Program(name="mamba_associative_adam", make=functools.partial(_mamba, associative)),
)
