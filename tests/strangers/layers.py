"""What small models share: norms, rotations, attention, a cache, a training step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tests.strangers.program import Call, PyTree

Array = jax.Array
Turn = Callable[[Array], Array]

#: What a logit is set to where a mask hides it; a row that is hidden is no NaN.
HIDDEN = -1e30


# ---- Programs.


def trained(model: nnx.Module, loss: Callable[..., Array], *batch: PyTree) -> Call:
    """Return a step of momentum on `loss(model, *batch)`, as NNX writes it."""
    descent = optax.sgd(0.1, momentum=0.9)
    graph, state = nnx.split((model, nnx.Optimizer(model, descent, wrt=nnx.Param)))

    def step(state: PyTree, *batch: PyTree) -> tuple[Array, PyTree]:
        model, optimizer = nnx.merge(graph, state)
        value, gradient = nnx.value_and_grad(loss)(model, *batch)
        optimizer.update(model, gradient)
        return value, nnx.state((model, optimizer))

    return step, (state, *batch)


def called(model: nnx.Module, *args: PyTree, method: str = "__call__") -> Call:
    """Return a call of a model that returns what it caches beside its result."""
    graph, state = nnx.split(model)

    def call(state: PyTree, *args: PyTree) -> tuple[PyTree, PyTree]:
        model = nnx.merge(graph, state)
        return getattr(model, method)(*args), nnx.state(model, nnx.Cache)

    return call, (state, *args)


def classification(model: nnx.Module, x: Array, labels: Array) -> Array:
    """Return the mean cross entropy of a model's logits."""
    return token_loss(model(x), labels)


def token_loss(logits: Array, labels: Array) -> Array:
    """Return the mean cross entropy over all leading axes."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# ---- Layers.


class RMSNorm(nnx.Module):
    """Division by the root of the mean square; a scale is `offset` and a parameter."""

    def __init__(self, width: int, offset: float = 0.0, epsilon: float = 1e-6):
        self.scale = nnx.Param(jnp.full((width,), 1.0 - offset))
        self.offset, self.epsilon = offset, epsilon

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        scale = self.offset + self.scale[...]
        return (wide * jax.lax.rsqrt(square + self.epsilon) * scale).astype(x.dtype)


class Scale(nnx.Module):
    """A learned factor for every channel, small at first: layer scale."""

    def __init__(self, width: int):
        self.gamma = nnx.Param(jnp.full((width,), 0.1))

    def __call__(self, x: Array) -> Array:
        return self.gamma[...] * x


class Einsum(nnx.Module):
    """A product with one tensor of parameters, written as a subscript."""

    def __init__(self, subscript: str, shape: tuple[int, ...], rngs: nnx.Rngs):
        initial = nnx.initializers.normal(shape[0] ** -0.5)
        self.w = nnx.Param(initial(rngs.params(), shape))
        self.subscript = subscript

    def __call__(self, x: Array) -> Array:
        return jnp.einsum(self.subscript, x, self.w[...])


class GatedMlp(nnx.Module):
    """Two projections up, one of which gates the other, and one down."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs, act=nnx.silu):
        linear = lambda m, n: nnx.Linear(m, n, use_bias=False, rngs=rngs)  # noqa: E731
        self.gate, self.up = linear(width, hidden), linear(width, hidden)
        self.down, self.act = linear(hidden, width), act

    def __call__(self, x: Array) -> Array:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Mlp(nnx.Module):
    """A perceptron of one hidden layer with GELU, four times as wide."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.down(nnx.gelu(self.up(x)))


class KeyValues(nnx.Module):
    """The keys and values of the tokens so far, and how many there are."""

    def __init__(self, batch: int, size: int, heads: int, head: int):
        self.k = nnx.Cache(jnp.zeros((batch, size, heads, head)))
        self.v = nnx.Cache(jnp.zeros((batch, size, heads, head)))
        self.used = nnx.Cache(jnp.zeros((), jnp.int32))

    def append(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Write new tokens behind the old ones, and return all."""
        start = (0, self.used[...], 0, 0)
        self.k[...] = jax.lax.dynamic_update_slice(self.k[...], k, start)
        self.v[...] = jax.lax.dynamic_update_slice(self.v[...], v, start)
        self.used[...] = self.used[...] + k.shape[1]
        return self.k[...], self.v[...]


class Attention(nnx.Module):
    """Attention of some query heads to fewer key heads, to `x` or to a context.

    Args:
        width: of the model; heads, kv_heads, head: their numbers and their width.
        qk_norm: a norm of every query and key.
        bias: whether the projections add one.
        cap: a logit stays within plus and minus this, by tanh.
        scale: of the logits; the default is head ** -0.5.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rngs: nnx.Rngs,
        *,
        kv_heads: int | None = None,
        head: int | None = None,
        qk_norm: Callable[[int], nnx.Module] | None = None,
        bias: bool = False,
        cap: float | None = None,
        scale: float | None = None,
    ):
        kv_heads, head = kv_heads or heads, head or width // heads
        self.q = Einsum("BTD,DNH->BTNH", (width, heads, head), rngs)
        self.k = Einsum("BSD,DKH->BSKH", (width, kv_heads, head), rngs)
        self.v = Einsum("BSD,DKH->BSKH", (width, kv_heads, head), rngs)
        self.out = Einsum("BTNH,NHD->BTD", (heads, head, width), rngs)
        zeros = jnp.zeros((heads, head))
        self.q_bias, self.out_bias = (
            (nnx.Param(zeros), nnx.Param(jnp.zeros(width))) if bias else (None, None)
        )
        self.q_norm, self.k_norm = (
            (qk_norm(head), qk_norm(head)) if qk_norm else (None, None)
        )
        self.groups, self.cap = (kv_heads, heads // kv_heads), cap
        self.scale = head**-0.5 if scale is None else scale

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        turn: Turn | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        cache: KeyValues | None = None,
    ) -> Array:
        """Attend; `mask` [B, T, S] says what is seen, `bias` [B, N, T, S] is added."""
        q, k, v = self.project(x, x if context is None else context)
        if turn is not None:
            q, k = turn(q), turn(k)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.attend(q, k, v, mask=mask, bias=bias)

    def project(self, x: Array, context: Array) -> tuple[Array, Array, Array]:
        """Return queries of `x`, keys and values of a context."""
        q, k, v = self.q(x), self.k(context), self.v(context)
        if self.q_bias is not None:
            q = q + self.q_bias[...]
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def attend(self, q, k, v, *, mask=None, bias=None) -> Array:
        """Return what the queries read, projected to the width of the model."""
        grouped = q.reshape(*q.shape[:2], *self.groups, q.shape[-1])
        logits = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, k) * self.scale
        if self.cap is not None:
            logits = self.cap * jnp.tanh(logits / self.cap)
        if bias is not None:
            logits = logits + bias.reshape(len(bias), *self.groups, *bias.shape[-2:])
        if mask is not None:
            logits = jnp.where(mask[:, None, None], logits, HIDDEN)
        weights = jax.nn.softmax(logits.astype(jnp.float32), axis=-1).astype(q.dtype)
        read = jnp.einsum("BKGTS,BSKH->BTKGH", weights, v).reshape(q.shape)
        out = self.out(read)
        return out if self.out_bias is None else out + self.out_bias[...]


class Block(nnx.Module):
    """A transformer's block of vision models: norms before, layer scale if wanted."""

    def __init__(
        self, width: int, heads: int, rngs: nnx.Rngs, *, scaled=False, mlp=Mlp
    ):
        self.norm1, self.norm2 = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.attention = Attention(width, heads, rngs, bias=True)
        self.mlp = mlp(width, rngs=rngs)
        self.scale1, self.scale2 = (
            (Scale(width), Scale(width)) if scaled else (lambda x: x, lambda x: x)
        )

    def __call__(self, x: Array, **how) -> Array:
        x = x + self.scale1(self.attention(self.norm1(x), **how))
        return x + self.scale2(self.mlp(self.norm2(x)))


# ---- Positions.


def angles(positions: Array, head: int, base: float = 1e4) -> Array:
    """Return [B, T, head / 2] angles of positions [B, T].

    The frequencies are constants: where a position is 2^30, as that of padding, a unit
    in the last place of a frequency is many turns.
    """
    frequency = jnp.asarray(base ** -(np.arange(0, head, 2) / head), jnp.float32)
    return jnp.einsum("BT,k->BTk", positions, frequency)


def turning(angle: Array) -> Turn:
    """Return what rotates the halves of every head of [B, T, N, H] by its angle."""
    sin, cos = jnp.sin(angle)[:, :, None], jnp.cos(angle)[:, :, None]

    def turn(x: Array) -> Array:
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turn


def seen(queries: Array, keys: Array, window: int | None = None) -> Array:
    """Return [B, T, S]: keys at or before a query, and within a window of it."""
    distance = queries[:, :, None] - keys[:, None, :]
    near = distance >= 0
    return near if window is None else near & (distance < window)


def grid(height: int, width: int) -> Array:
    """Return the [height * width, 2] rows and columns of an image's patches."""
    rows, columns = jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij")
    return jnp.stack([rows.ravel(), columns.ravel()], axis=-1)


def sinusoids(positions: Array, width: int) -> Array:
    """Return sines and cosines of [T] positions at `width / 2` frequencies."""
    steps = jnp.arange(width // 2) / (width // 2 - 1)
    angle = positions[:, None] * jnp.exp(-jnp.log(1e4) * steps)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
