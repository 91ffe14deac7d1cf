"""What a loop moves: slices that are stacked or taken, results that stay on chip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax as nj

BF16, FP32 = jnp.bfloat16, jnp.float32
WIDTH, HEADS, LAYERS, BATCH, LENGTH = 512, 8, 6, 2, 512


def struct(*shape, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def bytes_of(profile):
    found = profile.metrics
    return found["hbm_read_bytes"], found["hbm_write_bytes"]


def profiled(function, *arguments, target="trn2", policy="bf16"):
    return nj.profile(function, target=target, policy=policy)(*arguments)


def running(x):
    """A state, and twice its tanh of every turn."""

    def turn(h, a):
        return jnp.tanh(h) * 0.9 + a, jnp.tanh(h) * 2

    return lax.scan(turn, jnp.zeros((128, 512), FP32), x)[1]


@pytest.mark.parametrize("turns", [8, 32, 48, 64])
def test_what_a_scan_stacks_is_written_once(turns):
    """On chip as a whole, or slice by slice, but for zeros that it begins with."""
    stacked = turns * 128 * 512 * 4
    profile = profiled(running, struct(turns, 128, 512, dtype=FP32), policy="fp32")
    read, written = bytes_of(profile)
    assert stacked <= written <= 3.1 * stacked
    assert stacked <= read <= 2 * stacked
    if turns <= 32:
        assert (read, written) == (stacked, stacked)


def norm(x):
    x = x.astype(FP32)
    centred = x - x.mean(-1, keepdims=True)
    return (centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)).astype(BF16)


def heads(x):
    return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)


def layer(h, weights):
    """Attention and an MLP, as a decoder has them."""
    qkv, out, up, down = weights
    q, k, v = map(heads, jnp.split(norm(h) @ qkv, 3, -1))
    scores = (q @ k.swapaxes(-1, -2)).astype(FP32) / 8
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jax.nn.softmax(scores, -1).astype(BF16) @ v
    h = h + mixed.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH) @ out
    return h + jax.nn.silu(norm(h) @ up) @ down


def loss(h):
    return jnp.sum(h.astype(FP32) ** 2)


def scanned(weights, x, wrap=lambda f: f):
    return loss(lax.scan(wrap(lambda h, w: (layer(h, w), None)), x, weights)[0])


def unrolled(weights, x):
    for n in range(LAYERS):
        x = layer(x, tuple(w[n] for w in weights))
    return loss(x)


@pytest.fixture(scope="module")
def gradients():
    shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
    shapes = (*shapes, (4 * WIDTH, WIDTH))
    weights = tuple(struct(LAYERS, *s) for s in shapes)
    x = struct(BATCH, LENGTH, WIDTH)
    functions = {
        "scanned": scanned,
        "unrolled": unrolled,
        "rematerialised": lambda w, x: scanned(w, x, jax.checkpoint),
    }
    return {name: profiled(jax.grad(f), weights, x) for name, f in functions.items()}


@pytest.mark.slow
def test_the_gradient_of_scanned_layers_costs_what_unrolled_ones_do(gradients):
    """Residuals of a turn are read and written a slice at a time."""
    one, two = gradients["scanned"], gradients["unrolled"]
    assert one.total_seconds == pytest.approx(two.total_seconds, rel=0.25)
    assert sum(bytes_of(one)) < 1.5 * sum(bytes_of(two))


@pytest.mark.slow
def test_rematerialisation_moves_less_and_takes_longer(gradients):
    plain, again = gradients["scanned"], gradients["rematerialised"]
    assert sum(bytes_of(again)) < sum(bytes_of(plain))
    assert again.timeline.busy_seconds("tensor") > plain.timeline.busy_seconds("tensor")


def test_a_weight_that_is_cast_goes_to_its_matmul_tile_by_tile():
    """It is larger than SBUF, and read once; nothing of it is written."""
    x, w = struct(8, 4096, dtype=FP32), struct(4096, 4096, dtype=FP32)
    read, written = bytes_of(profiled(jnp.matmul, x, w, target="trn1"))
    assert read == 4 * (8 + 4096) * 4096
    assert written == 4 * 8 * 4096


def test_a_cast_weight_that_is_read_again_is_written():
    x, w = struct(8, 4096, dtype=FP32), struct(4096, 4096, dtype=FP32)

    def twice(x, w):
        return jnp.tanh(x @ w) @ w

    read, _ = bytes_of(profiled(twice, x, w, target="trn1"))
    assert read > 4 * 4096 * 4096
