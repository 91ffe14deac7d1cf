"""A small model as text, and edits of one line of it, as people make them."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

MODEL = '''\
"""A block of a transformer with its training step."""
import jax
import jax.numpy as jnp

def norm(x, weight):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight

def attention(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    scores = q @ k.T
    scores = scores * 0.25
    mask = jnp.tril(jnp.ones((8, 8), bool))
    scores = jnp.where(mask, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1)
    return weights @ v

def feed_forward(p, x):
    hidden = x @ p["up"]
    hidden = jax.nn.silu(hidden)
    return hidden @ p["down"]

def model(p, x):
    h = x + attention(p, norm(x, p["norm"]))
    h = h + feed_forward(p, norm(h, p["norm"]))
    total = h + x + 0.5
    return total.astype(jnp.float32)

def loss(p, x):
    y = model(p, x)
    error = jnp.mean(jnp.abs(y) ** 2, axis=0)
    smooth = 0.0625 * jnp.sum(p["up"] ** 2)
    return jnp.sum(error) + smooth

def step(p, x):
    value, gradients = jax.value_and_grad(loss)(p, x)
    clipped = jax.tree.map(lambda g: jnp.clip(g, -1.0, 1.0), gradients)
    new = jax.tree.map(lambda p, g: p - 0.125 * g, p, clipped)
    return new, value
'''

#: What is edited: the text before and after, both in one line.
EDITS = {
    "epsilon": ("variance + 1e-5", "variance + 1e-6"),
    "scale": ("scores * 0.25", "scores * 0.125"),
    "scale_divided": ("scores * 0.25", "scores / 8.0"),
    "mask_value": ("scores, -1e9)", "scores, -1e4)"),
    "mask_diagonal": ("jnp.ones((8, 8), bool))", "jnp.ones((8, 8), bool), k=1)"),
    "mask_inverted": ("jnp.where(mask,", "jnp.where(~mask,"),
    "activation": ("jax.nn.silu", "jax.nn.gelu"),
    "activation_relu": ("jax.nn.silu", "jax.nn.relu"),
    "softmax_axis": ("softmax(scores, axis=-1)", "softmax(scores, axis=0)"),
    "mean_axis": ("** 2, axis=0)", "** 2, axis=1)"),
    "order_of_sum": ("h + x + 0.5", "h + (x + 0.5)"),
    "constant_of_sum": ("h + x + 0.5", "h + x + 0.75"),
    "dtype": ('hidden = x @ p["up"]', 'hidden = (x @ p["up"]).astype(jnp.bfloat16)'),
    "cast": ("total.astype(jnp.float32)", "total.astype(jnp.float16)"),
    "transposed": ("q @ k.T", "k @ q.T"),
    "wrong_weight": ('hidden @ p["down"]', 'hidden @ p["up"].T'),
    "penalty": ("0.0625 * jnp.sum", "0.03125 * jnp.sum"),
    "penalty_power": ('jnp.sum(p["up"] ** 2)', 'jnp.sum(jnp.abs(p["up"]))'),
    "clip": ("jnp.clip(g, -1.0, 1.0)", "jnp.clip(g, -0.5, 0.5)"),
    "learning_rate": ("0.125 * g", "0.25 * g"),
    "residual_left_out": ("h = h + feed_forward", "h = feed_forward"),
    "variance": ("centred * centred, axis", "x * x, axis"),
    "norm_twice": ("* weight", "* weight * weight"),
}


RECURRENT = """\
import functools
import jax
import jax.numpy as jnp
from jax import lax

def gate(p, name, x, h):
    return jax.nn.sigmoid(
        x @ p[name]["x"]
        + h @ p[name]["h"]
        + 0.1
    )

def cell(p, h, x):
    z = gate(p, "z", x, h)
    r = gate(p, "r", x, h)
    candidate = jnp.tanh(
        x @ p["c"]["x"] + (r * h) @ p["c"]["h"],
    )
    new = (1 - z) * h + z * candidate
    return new, new * 2.0

def encode(p, xs):
    start = jnp.zeros(8)
    _, states = lax.scan(
        functools.partial(cell, p),
        start,
        xs,
        reverse=False,
    )
    return states

def pool(states):
    weights = jax.nn.softmax(jnp.sum(states, axis=1))
    best = jnp.max(states, axis=0)
    mean = jnp.einsum("t,td->d", weights, states)
    return jnp.concatenate([mean, best])

def distance(a, b):
    gap = a - b
    squared = jnp.sum(jnp.square(gap))
    return jnp.sqrt(squared + 1e-3)

def step(p, xs):
    pooled = jax.vmap(lambda x: pool(encode(p, x)))(xs)
    pairs = jax.vmap(distance)(pooled[:-1], pooled[1:])
    hinge = jnp.maximum(1.5 - pairs, 0.0)
    order = jnp.argsort(pairs)
    ranked = pairs[order] * jnp.arange(1, 4) ** 0.5
    noise = jnp.roll(ranked, 1)
    return {"loss": jnp.mean(hinge), "ranked": ranked, "noise": noise}
"""

#: Edits that the finding was not built on.
OTHER_EDITS = {
    "gate_bias": ("        + 0.1", "        + 0.2"),
    "gate_input": ('+ h @ p[name]["h"]', '- h @ p[name]["h"]'),
    "gate_kind": ("return jax.nn.sigmoid(", "return jax.nn.hard_sigmoid("),
    "reset_gate": ('(r * h) @ p["c"]["h"]', '(z * h) @ p["c"]["h"]'),
    "candidate": ("candidate = jnp.tanh(", "candidate = jnp.sin("),
    "update": ("(1 - z) * h + z", "z * h + (1 - z)"),
    "output_scale": ("new * 2.0", "new * 4.0"),
    "start": ("jnp.zeros(8)", "jnp.ones(8)"),
    "start_dtype": ("weights, states)", "weights, states.astype(jnp.bfloat16))"),
    "reverse": ("reverse=False", "reverse=True"),
    "softmax_axis": ("states, axis=1)", "states[::-1], axis=1)"),
    "pooling": ("jnp.max(states", "jnp.min(states"),
    "contraction": ('"t,td->d", weights', '"t,td->d", 2 * weights'),
    "concatenated": ("[mean, best]", "[best, mean]"),
    "distance": ("jnp.square(gap)", "jnp.abs(gap)"),
    "distance_epsilon": ("squared + 1e-3", "squared + 1e-2"),
    "margin": ("1.5 - pairs", "1.25 - pairs"),
    "neighbours": ("pooled[:-1], pooled[1:]", "pooled[1:], pooled[:-1]"),
    "order": ("jnp.argsort(pairs)", "jnp.argsort(-pairs)"),
    "power": ("arange(1, 4) ** 0.5", "arange(1, 4) ** 0.25"),
    "shift": ("jnp.roll(ranked, 1)", "jnp.roll(ranked, 2)"),
    "reduction": ("jnp.mean(hinge)", "jnp.sum(hinge)"),
}


def edited_line(model: str, edit: tuple[str, str]) -> int:
    """The line that an edit is in."""
    [number] = [n for n, t in enumerate(model.splitlines(), 1) if edit[0] in t]
    return number


def step_of(text: str, path: Any) -> Callable[..., Any]:
    """The training step of a model's text, as if it were read from a file."""
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "model"}
    exec(compile(text, str(path), "exec"), names)
    return names["step"]


def arguments() -> tuple[Any, np.ndarray]:
    """Parameters and a batch of the block."""
    shapes = dict(q=(16, 16), k=(16, 16), v=(16, 16), up=(16, 32), down=(32, 16))
    return {n: _normal(*s) for n, s in shapes.items()} | {"norm": _normal(16)}, _normal(
        8, 16
    )


def recurrent_arguments() -> tuple[Any, np.ndarray]:
    """Parameters and a batch of the recurrent model."""
    p = {gate: {"x": _normal(4, 8), "h": _normal(8, 8)} for gate in "zrc"}
    return p, _normal(4, 5, 4)


def _normal(*shape: int) -> np.ndarray:
    draw = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (draw / 4).astype(np.float32)


MODELS = {
    "block": (MODEL, EDITS, arguments),
    "recurrent": (RECURRENT, OTHER_EDITS, recurrent_arguments),
}
