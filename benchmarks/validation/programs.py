"""The programs of the published rows, written as a JAX user would write them.

Each function takes the arguments of a row and returns a function and the
`ShapeDtypeStruct`s to lower it with: no values. Published kernels that take the same
time for FP32 and BF16 operands contract in BF16, and so do these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import neuronjax as nj
from benchmarks.validation.rows import Row
from neuronjax.ir.instruction import InstructionProgram

Program = tuple[Callable[..., Any], tuple[Any, ...]]
BF16, FP32 = jnp.bfloat16, jnp.float32
FP8 = jnp.float8_e4m3
FP8_LARGEST = 240.0


def _struct(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


# -- matmuls ---------------------------------------------------------------------------


def matmul(m: int, k: int, n: int, dtype: str) -> Program:
    """Return a matrix multiplication with the result in the operands' dtype."""
    return jnp.matmul, (_struct(m, k, dtype=dtype), _struct(k, n, dtype=dtype))


def matmul_by_rows(m: int, k: int, n: int) -> Program:
    """Return a matmul whose weights have the contracted axis last."""
    structs = _struct(m, k, dtype=BF16), _struct(n, k, dtype=BF16)
    return lambda a, b: jnp.matmul(a, b.T), structs


def fp8_matmul(m: int, k: int, n: int) -> Program:
    """Return a matmul of FP8 values with a scale for each column of the weights."""

    def multiply(x: jax.Array, weights: jax.Array, scales: jax.Array) -> jax.Array:
        product = jnp.matmul(x, weights, preferred_element_type=FP32)
        return (product * scales).astype(BF16)

    structs = (
        _struct(m, k, dtype=FP8),
        _struct(k, n, dtype=FP8),
        _struct(n, dtype=FP32),
    )
    return multiply, structs


def mlp_fp32(rows: int, widths: tuple[int, ...]) -> Program:
    """Return layers of a matmul and a ReLU, in FP32."""

    def layers(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x

    weights = [_struct(a, b, dtype=FP32) for a, b in itertools.pairwise(widths)]
    return layers, (_struct(rows, widths[0], dtype=FP32), weights)


# -- norms -----------------------------------------------------------------------------


def _rms_norm(x: jax.Array, gamma: jax.Array | None = None) -> jax.Array:
    wide = x.astype(FP32)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normal = wide * lax.rsqrt(mean + 1e-6)
    if gamma is not None:
        normal = normal * gamma.astype(FP32)
    return normal.astype(x.dtype)


def _layer_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    wide = x.astype(FP32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(variance + 1e-5)
    return (normal * gamma + beta).astype(x.dtype)


def layernorm(rows: int, hidden: int) -> Program:
    """Return LayerNorm in FP32 with shift and scale."""
    vector = _struct(hidden, dtype=FP32)
    return _layer_norm, (_struct(rows, hidden, dtype=FP32), vector, vector)


def rmsnorm_fp8(rows: int, hidden: int, norm: bool) -> Program:
    """Return a cast from BF16 to FP8 with a scale per row, after RMSNorm if `norm`."""

    def quantized(x: jax.Array, gamma: jax.Array) -> tuple[jax.Array, jax.Array]:
        normal = _rms_norm(x, gamma) if norm else x
        largest = jnp.max(jnp.abs(normal), axis=-1, keepdims=True).astype(FP32)
        scale = jnp.maximum(largest, 1e-5) / FP8_LARGEST
        return (normal * (1 / scale).astype(x.dtype)).astype(FP8), scale

    return quantized, (_struct(rows, hidden), _struct(hidden))


def rmsnorm_qkv(rows: int, hidden: int, width: int, dtype: str) -> Program:
    """Return RMSNorm and the projection after it; gamma is part of the weights."""

    def projected(x: jax.Array, weights: jax.Array) -> jax.Array:
        return _rms_norm(x) @ weights

    return projected, (
        _struct(rows, hidden, dtype=dtype),
        _struct(hidden, width, dtype=dtype),
    )


# -- MLP of transformers ---------------------------------------------------------------


def _times_fp8(x: jax.Array, weights: jax.Array, scales: jax.Array) -> jax.Array:
    """Return the product of activations cast to FP8 and FP8 weights with scales."""
    product = jnp.matmul(x.astype(FP8), weights, preferred_element_type=FP32)
    return (product * scales).astype(x.dtype)


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
}


def mlp(
    rows: int, hidden: int, width: int, options: tuple[str, ...], fp8: bool = False
) -> Program:
    """Return a gated MLP in BF16, silu(x Wg) * (x Wu) Wd, with the given options.

    Args:
        rows: number of tokens of all sequences.
        hidden: width of the input and output.
        width: width of the hidden layer.
        options: "rms", "ln" or "rmsng" (without gain): a norm before it; "fa": add a
            residual first; "sa": also return that sum; "sg": no gate; "b": biases;
            "gelu" or "gelu_tanh": instead of silu.
        fp8: whether weights and the operands multiplied by them are FP8.
    """
    named = [_ACTIVATIONS[o] for o in options if o in _ACTIVATIONS]
    activation = named[0] if named else jax.nn.silu

    def layer(x: jax.Array, p: dict[str, jax.Array]) -> Any:
        total = x = x + p["residual"] if "fa" in options else x
        x = _normed(x, p, options)
        up = times(x, p, "up")
        if "sg" in options:
            inner = activation(up)
        else:
            inner = activation(times(x, p, "gate")) * up
        out = times(inner, p, "down")
        return (out, total) if "sa" in options else out

    def times(x: jax.Array, p: dict[str, jax.Array], name: str) -> jax.Array:
        product = _times_fp8(x, p[name], p[f"{name}_scale"]) if fp8 else x @ p[name]
        return product + p[f"{name}_bias"] if "b" in options else product

    sides = {"up": (hidden, width), "down": (width, hidden)}
    if "sg" not in options:
        sides["gate"] = (hidden, width)
    parameters = {n: _struct(*s, dtype=FP8 if fp8 else BF16) for n, s in sides.items()}
    if fp8:
        parameters |= {
            f"{n}_scale": _struct(s[1], dtype=FP32) for n, s in sides.items()
        }
    if "b" in options:
        parameters |= {f"{n}_bias": _struct(s[1]) for n, s in sides.items()}
    if "fa" in options:
        parameters["residual"] = _struct(rows, hidden)
    parameters |= _norm_parameters(hidden, options)
    return layer, (_struct(rows, hidden), parameters)


def _normed(
    x: jax.Array, p: dict[str, jax.Array], options: tuple[str, ...]
) -> jax.Array:
    if "rms" in options or "rmsng" in options:
        return _rms_norm(x, p.get("gamma"))
    return _layer_norm(x, p["gamma"], p["beta"]) if "ln" in options else x


def _norm_parameters(
    hidden: int, options: tuple[str, ...]
) -> dict[str, jax.ShapeDtypeStruct]:
    names = {"rms": ("gamma",), "ln": ("gamma", "beta")}
    found = (name for o in options for name in names.get(o, ()))
    return dict.fromkeys(found, _struct(hidden))


def qkv(rows: int, hidden: int, width: int, options: tuple[str, ...]) -> Program:
    """Return the projection of a transformer's queries, keys and values, in BF16.

    `options`: "fa" first adds the outputs of attention and the MLP, "rms" or "ln" is a
    norm before it, "b" adds a bias."""

    def project(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        x = x + p["attention"] + p["mlp"] if "fa" in options else x
        out = _normed(x, p, options) @ p["qkv"]
        return out + p["bias"] if "b" in options else out

    parameters = {"qkv": _struct(hidden, width), **_norm_parameters(hidden, options)}
    if "fa" in options:
        parameters |= {n: _struct(rows, hidden) for n in ("attention", "mlp")}
    if "b" in options:
        parameters["bias"] = _struct(width)
    return project, (_struct(rows, hidden), parameters)


# -- attention -------------------------------------------------------------------------


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """Return attention with scores and sums in FP32 and contractions in 16 bits."""
    half = BF16 if q.dtype == FP32 else q.dtype
    out_dtype = q.dtype
    q, k, v = (x.astype(half) for x in (q, k, v))
    d = q.shape[-1]
    scores = jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=FP32)
    scores = scores * (1 / np.sqrt(d))
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(half)
    out = jnp.einsum("bqk,bkd->bqd", weights, v, preferred_element_type=FP32)
    return out.astype(out_dtype)


def attention(
    keys: int, queries: int, d: int, dtype: str, causal: bool, batch: int
) -> Program:
    """Return one head of softmax attention, `batch` times."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _attend(q, k, v, causal)

    q = _struct(batch, queries, d, dtype=dtype)
    k = _struct(batch, keys, d, dtype=dtype)
    return attend, (q, k, k)


def attention_backward(heads: int, length: int, d: int, dtype: str) -> Program:
    """Return the gradients of causal attention, with scores computed again and every
    contraction in 16 bits."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(FP32) * (1 / np.sqrt(d))
        mask = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        return jnp.einsum("hqk,hkd->hqd", weights.astype(v.dtype), v)

    def backward(
        q: jax.Array, k: jax.Array, v: jax.Array, cotangent: jax.Array
    ) -> tuple[jax.Array, ...]:
        return jax.vjp(attend, q, k, v)[1](cotangent)

    x = _struct(heads, length, d, dtype=dtype)
    return backward, (x, x, x, x)


# -- others ----------------------------------------------------------------------------


def add(shape: tuple[int, ...], dtype: str) -> Program:
    """Return the sum of two tensors."""
    x = _struct(*shape, dtype=dtype)
    return jnp.add, (x, x)


def mamba(sequence: int, channels: int, states: int) -> Program:
    """Return the selective scan of a Mamba layer in FP32, one loop turn per token.

    h[t] = exp(delta[t] A) h[t - 1] + delta[t] u[t] B[t]; y[t] = C[t] h[t]."""

    def scan(
        delta: jax.Array, u: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array
    ) -> jax.Array:
        def turn(h: jax.Array, x: Any) -> tuple[jax.Array, jax.Array]:
            step, driven, b_now, c_now = x
            h = jnp.exp(step[:, None] * a) * h + driven[:, None] * b_now
            return h, jnp.sum(h * c_now, axis=-1)

        _, y = lax.scan(turn, jnp.zeros_like(a), (delta.T, (delta * u).T, b.T, c.T))
        return y.T

    channel = _struct(channels, sequence, dtype=FP32)
    state = _struct(states, sequence, dtype=FP32)
    return scan, (channel, channel, _struct(channels, states, dtype=FP32), state, state)


def resize_nearest(
    shape: tuple[int, int, int, int], size: tuple[int, int], dtype: str
) -> Program:
    """Return nearest-neighbour resizing of images [batch, height, width, channels]."""

    def resize(x: jax.Array) -> jax.Array:
        rows = np.arange(size[0]) * shape[1] // size[0]
        columns = np.arange(size[1]) * shape[2] // size[1]
        return x[:, rows[:, None], columns[None, :]]

    return resize, (_struct(*shape, dtype=dtype),)


def adaptive_average_pool(
    shape: tuple[int, int, int, int], size: int, dtype: str
) -> Program:
    """Return means of `size` x `size` regions of [batch, channel, height, width]."""

    def bounds(length: int) -> list[tuple[int, int]]:
        return [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]

    def pool(x: jax.Array) -> jax.Array:
        if shape[2] % size == 0 and shape[3] % size == 0:
            blocks = (*shape[:2], size, shape[2] // size, size, shape[3] // size)
            return x.reshape(blocks).mean(axis=(3, 5))
        regions = [
            x[:, :, top:bottom, left:right].mean(axis=(2, 3))
            for top, bottom in bounds(shape[2])
            for left, right in bounds(shape[3])
        ]
        return jnp.stack(regions, axis=-1).reshape(*shape[:2], size, size)

    return pool, (_struct(*shape, dtype=dtype),)


def select_and_scatter(shape: tuple[int, int, int, int], dtype: str) -> Program:
    """Return the gradient of max pooling: 3 x 3 windows, stride 2, padding of one."""

    def pool(x: jax.Array) -> jax.Array:
        window, strides = (1, 1, 3, 3), (1, 1, 2, 2)
        padding = ((0, 0), (0, 0), (1, 1), (1, 1))
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    def backward(x: jax.Array, cotangent: jax.Array) -> jax.Array:
        return jax.vjp(pool, x)[1](cotangent)[0]

    half = (*shape[:2], shape[2] // 2, shape[3] // 2)
    return backward, (_struct(*shape, dtype=dtype), _struct(*half, dtype=dtype))


PROGRAMS: dict[str, Callable[..., Program]] = {
    f.__name__: f
    for f in (
        matmul,
        matmul_by_rows,
        fp8_matmul,
        mlp_fp32,
        layernorm,
        rmsnorm_fp8,
        rmsnorm_qkv,
        mlp,
        qkv,
        attention,
        attention_backward,
        add,
        mamba,
        resize_nearest,
        adaptive_average_pool,
        select_and_scatter,
    )
}
"""By the names that rows give."""


def lowered(row: Row) -> InstructionProgram:
    """Return the instructions of a row's program on its chip; FP32 stays FP32."""
    function, structs = PROGRAMS[row.program](**row.arguments)
    program = nj.jit(function, target=row.chip, policy="fp32").lower(*structs)
    return program.captured.instructions
