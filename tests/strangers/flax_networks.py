"""Flax: networks of Linen and of NNX, one step of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, descent, stranger
from tests.zoo.program import cross_entropy, integers, uniform

KEY = jax.random.key(0)


def _linen(model, x, labels) -> Call:
    """A step of gradient descent on the cross entropy of a model of Linen."""
    loss = lambda v, x, y: cross_entropy(model.apply(v, x), y)[0]  # noqa: E731
    return descent(loss), (model.init(KEY, x), x, labels)


@stranger("flax")
def linen_mlp() -> Call:
    """Linen: perceptron, one step."""
    from flax import linen as nn

    model = nn.Sequential([nn.Dense(32), nn.gelu, nn.LayerNorm(), nn.Dense(10)])
    return _linen(model, uniform(1, (16, 8)), integers(2, (16,), 10))


@stranger("flax")
def linen_batch_norm() -> Call:
    """Linen: convolutions and batch norm, one step."""
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(8, (3, 3), strides=2)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            return nn.Dense(10)(x.mean((1, 2)))

    model, x = Net(), uniform(1, (4, 12, 12, 3))
    labels = integers(2, (4,), 10)
    variables = model.init(KEY, x)

    def loss(params, stats, x, labels):
        state = {"params": params, "batch_stats": stats}
        logits, new = model.apply(state, x, mutable=["batch_stats"])
        return cross_entropy(logits, labels)[0], new

    step = jax.value_and_grad(loss, has_aux=True)
    return step, (variables["params"], variables["batch_stats"], x, labels)


@stranger("flax")
def linen_lstm() -> Call:
    """Linen: an LSTM over a sequence, one step."""
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(12))(x)[:, -1])

    return _linen(Net(), uniform(1, (4, 7, 5)), integers(2, (4,), 10))


@stranger("flax")
def linen_attention() -> Call:
    """Linen: a causal attention block, one step."""
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            mask = nn.make_causal_mask(x[..., 0])
            x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
            return nn.Dense(10)(x.mean(1))

    return _linen(Net(), uniform(1, (3, 8, 16)), integers(2, (3,), 10))


@stranger("flax")
def linen_autoencoder() -> Call:
    """Linen: a variational autoencoder, one step."""
    from flax import linen as nn

    class VAE(nn.Module):
        @nn.compact
        def __call__(self, x, key):
            h = nn.relu(nn.Dense(16)(x))
            mean, log_var = nn.Dense(4)(h), nn.Dense(4)(h)
            z = mean + jnp.exp(log_var / 2) * jax.random.normal(key, mean.shape)
            kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), -1)
            return nn.Dense(20)(nn.relu(nn.Dense(16)(z))), kl

    model, x = VAE(), uniform(1, (8, 20))

    def loss(params, x, key):
        out, kl = model.apply(params, x, key)
        return jnp.mean(jnp.sum((out - x) ** 2, -1) + kl)

    return descent(loss), (model.init(KEY, x, KEY), x, KEY)


# ---- NNX.


def _nnx(model, x, labels) -> Call:
    """A step of gradient descent on a model of NNX, split into its parts."""
    from flax import nnx

    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, rest, x, labels):
        logits = nnx.merge(graph, params, rest)(x)
        return cross_entropy(logits, labels)[0]

    return descent(loss), (params, rest, x, labels)


@stranger("flax")
def nnx_mlp() -> Call:
    """NNX: perceptron, one step."""
    from flax import nnx

    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(8, 32, rngs=rngs), nnx.silu, nnx.Linear(32, 10, rngs=rngs)
    )
    return _nnx(model, uniform(1, (16, 8)), integers(2, (16,), 10))


@stranger("flax")
def nnx_cnn() -> Call:
    """NNX: convolutions, pooling, dropout and Adam through nnx.Optimizer."""
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 6, (3, 3), rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.head = nnx.Linear(6 * 25, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.avg_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
            return self.head(self.dropout(x.reshape(len(x), -1)))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3, eps=1e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state, x, labels):
        model, optimizer = nnx.merge(graph, state)
        loss = lambda m: cross_entropy(m(x), labels)[0]  # noqa: E731
        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value, nnx.state((model, optimizer))

    return step, (state, uniform(1, (4, 10, 10, 1)), integers(2, (4,), 10))


@stranger("flax")
def nnx_lstm() -> Call:
    """NNX: an LSTM over a sequence, one step."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.rnn = nnx.RNN(nnx.LSTMCell(5, 12, rngs=rngs))
            self.head = nnx.Linear(12, 10, rngs=rngs)

        def __call__(self, x):
            carry = jnp.zeros((len(x), 12)), jnp.zeros((len(x), 12))
            return self.head(self.rnn(x, initial_carry=carry)[:, -1])

    return _nnx(Net(nnx.Rngs(0)), uniform(1, (4, 7, 5)), integers(2, (4,), 10))


@stranger("flax")
def nnx_attention() -> Call:
    """NNX: attention with a cache, three tokens decoded."""
    from flax import nnx

    attention = nnx.MultiHeadAttention(2, 16, decode=True, rngs=nnx.Rngs(0))
    attention.init_cache((2, 4, 16))
    graph, state = nnx.split(attention)

    def decode(state, tokens):
        module, out = nnx.merge(graph, state), []
        for i in range(3):
            out.append(module(tokens[:, i : i + 1]))
        return jnp.concatenate(out, 1), nnx.state(module)

    return decode, (state, uniform(1, (2, 3, 16)))


@stranger("flax")
def nnx_gpt() -> Call:
    """NNX: a GPT of two layers, one step."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width, rngs):
            self.norm1, self.norm2 = (nnx.LayerNorm(width, rngs=rngs) for _ in "12")
            self.attention = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x):
            mask = nnx.make_causal_mask(x[..., 0])
            x = x + self.attention(self.norm1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class GPT(nnx.Module):
        def __init__(self, rngs):
            self.tokens = nnx.Embed(50, 16, rngs=rngs)
            self.places = nnx.Embed(12, 16, rngs=rngs)
            self.blocks = nnx.List([Block(16, rngs) for _ in range(2)])
            self.norm = nnx.LayerNorm(16, rngs=rngs)

        def __call__(self, tokens):
            x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[-1]))
            for block in self.blocks:
                x = block(x)
            return self.tokens.attend(self.norm(x))

    tokens = integers(1, (2, 13), 50)
    return _nnx(GPT(nnx.Rngs(0)), tokens[:, :-1], tokens[:, 1:])


@stranger("flax")
def nnx_lora() -> Call:
    """NNX: only the LoRA parameters of a layer, one step."""
    from flax import nnx

    model = nnx.LoRALinear(8, 10, lora_rank=2, rngs=nnx.Rngs(0))
    graph, lora, rest = nnx.split(model, nnx.LoRAParam, ...)

    def loss(lora, rest, x, labels):
        return cross_entropy(nnx.merge(graph, lora, rest)(x), labels)[0]

    return descent(loss), (lora, rest, uniform(1, (6, 8)), integers(2, (6,), 10))
