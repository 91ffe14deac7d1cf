"""Models as Flax's examples and their users write them, and one train step of each.

Linen and NNX; convolutions, autoencoders, recurrences, attention with and without a
cache, batch statistics and dropout, graphs, reinforcement learning. `STEPS` maps names
to functions that return (step, arguments). Models of tests/zoo are not repeated. The
optimizer is SGD with momentum: its update is linear in the gradients and hides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn, nnx

from tests.zoo.program import cross_entropy, integers, parameters, train_step, uniform

PyTree = Any
Step = tuple[Callable[..., PyTree], tuple[PyTree, ...]]

SGD = optax.sgd(0.1, momentum=0.9, nesterov=True)


def _filled(model: nn.Module, *args: Any, **kwargs: Any) -> PyTree:
    """Variables of a Linen model; every collection."""
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    init = functools.partial(model.init, **kwargs)
    return parameters(jax.eval_shape(init, rngs, *args), seed=3)


def _trained(loss: Callable, params: PyTree, *batch: Any) -> Step:
    return train_step(loss, SGD), (params, SGD.init(params), *batch)


# ---- Convolutions.


class DigitsCNN(nn.Module):
    """Flax's MNIST example, narrower."""

    @nn.compact
    def __call__(self, x):
        for features in (6, 10):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(24)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def digits_cnn() -> Step:
    model, x = DigitsCNN(), uniform(1, (3, 12, 12, 1))
    loss = lambda params, x, y: cross_entropy(model.apply(params, x), y)  # noqa: E731
    return _trained(loss, _filled(model, x), x, integers(2, (3,), 10))


class UNet(nn.Module):
    """Down by a strided and up by a transposed convolution, a time embedding between.

    As in denoising diffusion: group norms, Swish and a skip connection.
    """

    @nn.compact
    def __call__(self, x, time):
        half = jnp.exp(-jnp.arange(4) * 1.5)
        angles = time[:, None] * half
        embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        first = nn.swish(nn.GroupNorm(2)(nn.Conv(8, (3, 3))(x)))
        down = nn.Conv(12, (3, 3), strides=(2, 2))(first)
        down = nn.swish(down + nn.Dense(12)(embedded)[:, None, None])
        up = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(down)
        resized = jax.image.resize(down, (*up.shape[:3], 12), "bilinear")
        return nn.Conv(1, (1, 1))(jnp.concatenate([up, first, resized], -1))


def denoising_unet() -> Step:
    model, x, time = UNet(), uniform(1, (2, 8, 8, 1)), jnp.array([3.0, 11.0])

    def loss(params, x, time, key):
        noise = jax.random.normal(key, x.shape)
        keep = jnp.cos(time / 20)[:, None, None, None]
        noisy = keep * x + jnp.sqrt(1 - keep**2) * noise
        predicted: Any = model.apply(params, noisy, time)
        return jnp.square(predicted - noise).mean(), ()

    return _trained(loss, _filled(model, x, time), x, time, jax.random.key(4))


class Normed(nn.Module):
    """Batch norm with running statistics, dropout, weight and instance norms."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(6, (3, 3), padding="VALID", use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.3, deterministic=not train)(x)
        x = nn.max_pool(nn.RMSNorm()(x), (2, 2), strides=(2, 2))
        return nn.WeightNorm(nn.Dense(5))(x.reshape(x.shape[0], -1))


def batch_norm_and_dropout() -> Step:
    model, x, y = Normed(), uniform(1, (4, 8, 8, 2)), integers(2, (4,), 5)
    variables = dict(_filled(model, x, train=True))
    params = variables.pop("params")

    def loss(params, statistics, x, y, key):
        logits, updated = model.apply(
            {"params": params, **statistics},
            x,
            train=True,
            rngs={"dropout": key},
            mutable=list(statistics),
        )
        return cross_entropy(logits, y)[0], updated

    return _trained(loss, params, variables, x, y, jax.random.key(2))


# ---- Autoencoders.


class VAE(nn.Module):
    """Kingma and Welling: a Gaussian code, a Bernoulli image."""

    @nn.compact
    def __call__(self, x, key):
        hidden = nn.relu(nn.Dense(16)(x))
        mean, log_variance = nn.Dense(3)(hidden), nn.Dense(3)(hidden)
        noise = jax.random.normal(key, mean.shape)
        code = mean + jnp.exp(0.5 * log_variance) * noise
        return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(16)(code))), mean, log_variance


def vae() -> Step:
    model, x, key = VAE(), jnp.abs(uniform(1, (5, 20))), jax.random.key(3)

    def loss(params, x, key):
        out: Any = model.apply(params, x, key)
        logits, mean, log_variance = out
        image = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
        divergence = -0.5 * (1 + log_variance - mean**2 - jnp.exp(log_variance)).sum(-1)
        return (image + divergence).mean(), {"kl": divergence}

    return _trained(loss, _filled(model, x, key), x, key)


# ---- Recurrences.


class Seq2Seq(nn.Module):
    """Flax's example: an LSTM reads, another one writes what it is told."""

    @nn.compact
    def __call__(self, source, lengths, target):
        encoder = nn.RNN(nn.LSTMCell(10), return_carry=True)
        carry, _ = encoder(nn.Embed(7, 6)(source), seq_lengths=lengths)
        decoder = nn.RNN(nn.LSTMCell(10))
        states = decoder(nn.Embed(7, 6)(target), initial_carry=carry)
        return nn.Dense(7)(states)


def seq2seq() -> Step:
    model = Seq2Seq()
    source, target = integers(1, (3, 6), 7), integers(2, (3, 4), 7)
    lengths = jnp.array([6, 3, 5])

    def loss(params, source, lengths, target):
        logits = model.apply(params, source, lengths, target[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, target[:, 1:])
        return each.mean(), logits.argmax(-1)

    params = _filled(model, source, lengths, target[:, :-1])
    return _trained(loss, params, source, lengths, target)


def bidirectional_gru() -> Step:
    """NNX: two GRUs, one backwards."""

    def make():
        rngs = nnx.Rngs(0)
        cells = [nnx.GRUCell(4, 6, rngs=rngs) for _ in range(2)]
        pair = nnx.Bidirectional(nnx.RNN(cells[0]), nnx.RNN(cells[1]))
        return nnx.List([pair, nnx.Linear(12, 1, rngs=rngs)])

    graphdef, params, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    params, x = parameters(params, 3), uniform(1, (3, 5, 4))
    rest = jax.tree.map(lambda r: jnp.zeros((), r.dtype), rest)

    def loss(params, rest, x):
        recurrent, head = nnx.merge(graphdef, params, rest, copy=True)
        out: Any = head(recurrent(x))
        return jnp.square(out - 1).mean(), ()

    return _trained(loss, params, rest, x)


# ---- Attention.


class Block(nn.Module):
    """Pre-norm attention and a gated feed-forward."""

    decode: bool = False

    @nn.compact
    def __call__(self, x, mask):
        attend = nn.MultiHeadDotProductAttention(num_heads=2, decode=self.decode)
        x = x + attend(nn.LayerNorm()(x), mask=mask)
        hidden = nn.LayerNorm()(x)
        return x + nn.Dense(8)(nn.silu(nn.Dense(20)(hidden)) * nn.Dense(20)(hidden))


class Transformer(nn.Module):
    """Two blocks with tied embeddings; rematerialised and scanned if told so."""

    decode: bool = False
    scanned: bool = False

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(11, 8)
        mask = None if self.decode else nn.make_causal_mask(tokens)
        x = embed(tokens)
        if self.scanned:
            layers = nn.scan(
                nn.remat(_ScannedBlock),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=2,
            )
            x, _ = layers()(x, mask)
        else:
            for _ in range(2):
                x = Block(self.decode)(x, mask)
        return embed.attend(nn.LayerNorm()(x))


class _ScannedBlock(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return Block()(x, mask), None


def transformer(scanned: bool = False) -> Step:
    model, tokens = Transformer(scanned=scanned), integers(1, (2, 6), 11)

    def loss(params, tokens):
        logits = model.apply(params, tokens[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return each.mean(), ()

    return _trained(loss, _filled(model, tokens[:, :-1]), tokens)


def causal_decode() -> Step:
    """Greedy decoding with Linen's cache, a token a step, in one scan."""
    model, prompt = Transformer(decode=True), integers(1, (2, 1), 11)
    params = _filled(Transformer(), prompt)
    cache = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((2, 6), int))
    cache = jax.tree.map(lambda c: jnp.zeros(c.shape, c.dtype), cache["cache"])

    def decode(params, cache, prompt):
        def one(state, _):
            cache, token = state
            logits, updated = model.apply(
                {**params, "cache": cache}, token, mutable=["cache"]
            )
            token = logits.argmax(-1)
            return (updated["cache"], token), (token, logits)

        return jax.lax.scan(one, (cache, prompt), None, length=6)

    return decode, (params, cache, prompt)


class Layer(nnx.Module):
    """NNX attention with dropout, and an MLP."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(
            num_heads=2, in_features=8, decode=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class Stack(nnx.Module):
    """Three layers whose parameters are stacked; scanned and rematerialised."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap
        def layers(rngs):
            return Layer(rngs)

        self.layers = layers(rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return nnx.remat(lambda layer, x: layer(x))(layer, x)

        return forward(self.dropout(x), self.layers)


def nnx_scan_and_remat() -> Step:
    """A model and an nnx.Optimizer, split and merged in the step."""

    def make():
        model = Stack(nnx.Rngs(0))
        return model, nnx.Optimizer(model, SGD, wrt=nnx.Param)

    graphdef, state = nnx.split(make())
    x = uniform(1, (2, 5, 8))

    def step(state, x):
        model, optimizer = nnx.merge(graphdef, state)
        loss = lambda model: jnp.square(model(x) - 1).mean()  # noqa: E731
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return step, (state, x)


# ---- Graphs.


class GraphAttention(nn.Module):
    """Edges weighted by a softmax over each receiver's neighbours."""

    @nn.compact
    def __call__(self, nodes, senders, receivers):
        count = nodes.shape[0]
        projected = nn.Dense(8)(nodes)
        edges = jnp.concatenate([projected[senders], projected[receivers]], -1)
        scores = nn.leaky_relu(nn.Dense(1)(edges))[:, 0]
        largest = jax.ops.segment_max(scores, receivers, count)
        weights = jnp.exp(scores - largest[receivers])
        total = jax.ops.segment_sum(weights, receivers, count)[receivers]
        messages = projected[senders] * (weights / total)[:, None]
        gathered = jax.ops.segment_sum(messages, receivers, count)
        degree = jnp.zeros(count).at[receivers].add(1.0)
        return nn.Dense(2)(nn.relu(gathered + nodes[:, :1] / (1 + degree[:, None])))


def graph_attention() -> Step:
    model, nodes = GraphAttention(), uniform(1, (6, 5))
    senders, receivers = integers(2, (14,), 6), integers(3, (14,), 6)
    receivers = receivers.at[:6].set(jnp.arange(6))  # nobody without neighbours
    labels = integers(4, (6,), 2)

    def loss(params, nodes, senders, receivers, labels):
        return cross_entropy(model.apply(params, nodes, senders, receivers), labels)

    batch = (nodes, senders, receivers)
    return _trained(loss, _filled(model, *batch), *batch, labels)


# ---- Reinforcement learning.


class ActorCritic(nn.Module):
    """Logits of 3 actions, and a value."""

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(16)(x))
        return nn.Dense(3)(x), nn.Dense(1)(x)[..., 0]


def ppo() -> Step:
    """Generalised advantages by a reverse scan, the clipped objective, an entropy."""
    model, states = ActorCritic(), uniform(1, (7, 4, 5))
    actions, rewards = integers(2, (7, 4), 3), uniform(3, (7, 4))
    old = -1.1 + uniform(4, (7, 4), 0.2)

    def advantages(values, rewards):
        def back(ahead, now):
            value, following, reward = now
            ahead = reward + 0.99 * following - value + 0.99 * 0.95 * ahead
            return ahead, ahead

        later = jnp.concatenate([values[1:], values[-1:]])
        start = jnp.zeros_like(values[0])
        return jax.lax.scan(back, start, (values, later, rewards), reverse=True)[1]

    def loss(params, states, actions, rewards, old):
        logits, values = model.apply(params, states)
        gains = jax.lax.stop_gradient(advantages(values, rewards))
        targets = jax.lax.stop_gradient(gains + values)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        logs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logs, actions[..., None], -1)[..., 0]
        ratio = jnp.exp(chosen - old)
        clipped = jnp.clip(ratio, 0.8, 1.2) * gains
        policy = -jnp.minimum(ratio * gains, clipped).mean()
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        return policy + 0.5 * jnp.square(values - targets).mean() - 0.01 * entropy, ()

    batch = (states, actions, rewards, old)
    return _trained(loss, _filled(model, states), *batch)


def double_q_learning() -> Step:
    """The online network chooses, a slow copy of it judges; Huber's loss."""
    model, states = ActorCritic(), uniform(1, (6, 5))
    following, rewards = uniform(2, (6, 5)), uniform(3, (6,))
    actions, done = integers(4, (6,), 3), integers(5, (6,), 2) == 1
    slow = _filled(model, states)
    params = jax.tree.map(lambda p: p * 1.25, slow)

    def loss(params, slow, states, actions, following, rewards, done):
        values = model.apply(params, states)[0][jnp.arange(6), actions]
        best = model.apply(params, following)[0].argmax(-1)
        judged = model.apply(slow, following)[0][jnp.arange(6), best]
        target = rewards + jnp.where(done, 0, 0.9 * judged)
        error = optax.huber_loss(values, jax.lax.stop_gradient(target), delta=0.5)
        return error.mean(), optax.incremental_update(params, slow, 0.05)

    batch = (states, actions, following, rewards, done)
    return _trained(loss, params, slow, *batch)


STEPS: dict[str, Callable[[], Step]] = {
    "digits_cnn": digits_cnn,
    "denoising_unet": denoising_unet,
    "batch_norm_and_dropout": batch_norm_and_dropout,
    "vae": vae,
    "seq2seq": seq2seq,
    "bidirectional_gru": bidirectional_gru,
    "transformer": transformer,
    "transformer_scanned": functools.partial(transformer, scanned=True),
    "causal_decode": causal_decode,
    "nnx_scan_and_remat": nnx_scan_and_remat,
    "graph_attention": graph_attention,
    "ppo": ppo,
    "double_q_learning": double_q_learning,
}
