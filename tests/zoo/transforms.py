"""One small program per feature of JAX: derivative rules, control flow, random numbers,
order statistics, indexing, integers.

Every function takes float32 x of [B, 19] (other inputs are made of it) unless its
`arguments` say otherwise, and most return the gradient as well as the value, so that
the transposed programs are covered too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from tests.zoo.program import Function, Program, PyTree, Size, integers, uniform

_ROWS: dict[Size, int] = {"tiny": 3, "small": 24}
_COLUMNS = 19

Arguments = Callable[[int, int], tuple[PyTree, ...]]


def _with_gradient(fn: Callable[..., jax.Array]) -> Function:
    """fn, and the gradient of a weighted sum of its output in its first argument."""

    def both(x: jax.Array, *rest: PyTree) -> tuple[jax.Array, jax.Array]:
        out, pullback = jax.vjp(lambda x: fn(x, *rest), x)
        weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        return out, pullback(weights)[0]

    return both


# ---- Derivative rules.


@jax.custom_vjp
def _straight_through(x: jax.Array) -> jax.Array:
    return jnp.round(x * 8) / 8


def _straight_through_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _straight_through(x), jnp.abs(x) <= 0.5


def _straight_through_backward(inside: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(inside, g, 0.0),)


_straight_through.defvjp(_straight_through_forward, _straight_through_backward)


@jax.custom_jvp
def _log1pexp(x: jax.Array) -> jax.Array:
    return jnp.log1p(jnp.exp(x))


@_log1pexp.defjvp
def _log1pexp_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return _log1pexp(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


# ---- Control flow.


def _cond(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x * x - 1, x)


def _switch(x: jax.Array) -> jax.Array:
    branches = (jnp.tanh, jnp.exp, lambda x: x @ x.T @ x)
    return jax.lax.switch((x.sum() > 0).astype(jnp.int32) + 1, branches, x)


def _cond_in_scan(x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jax.lax.cond(
            row[0] > 0, lambda: carry * 0.5 + row, lambda: carry - row / 3
        )
        return carry, carry

    return jax.lax.scan(step, x[0], x, reverse=True)[1]


def _fori_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 5, lambda i, y: jnp.sin(y) + x / (i + 1.0), x)


def _while_loop(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Newton's square roots; the trip count depends on the data."""

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        count, root = state
        return (count < 50) & (jnp.abs(root * root - target).max() > 1e-5)

    def improve(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, root = state
        return count + 1, 0.5 * (root + target / root)

    target = 1.5 + x
    return jax.lax.while_loop(unfinished, improve, (jnp.int32(0), target))


def _while_batched(x: jax.Array) -> jax.Array:
    """A while loop under vmap: rows finish at different times."""

    def halve(row: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda r: jnp.abs(r).sum() > 1, lambda r: r / 3, row)

    return jax.vmap(halve)(x)


# ---- Random numbers. `data` is the raw data of a key.


def _random(implementation: str, data: jax.Array, x: jax.Array) -> dict:
    keys = jax.random.split(jax.random.wrap_key_data(data, impl=implementation), 6)
    return {
        "normal": jax.random.normal(keys[0], x.shape),
        "uniform": jax.random.uniform(keys[1], x.shape, minval=-2.0, maxval=3.0),
        "categorical": jax.random.categorical(keys[2], x),
        "bernoulli": jax.random.bernoulli(keys[3], jnp.abs(x)),
        "randint": jax.random.randint(keys[4], x.shape, 0, 1000),
        "bfloat16": jax.random.normal(keys[5], x.shape, jnp.bfloat16),
        "folded": jax.random.key_data(jax.random.fold_in(keys[5], 7)),
    }


def _more_random(key: jax.Array, x: jax.Array) -> dict:
    keys = jax.random.split(key, 5)
    return {
        "truncated_normal": jax.random.truncated_normal(keys[0], -2.0, 2.0, x.shape),
        "gumbel": jax.random.gumbel(keys[1], x.shape),
        "exponential": jax.random.exponential(keys[2], x.shape),
        "permutation": jax.random.permutation(keys[3], x.shape[1]),
        "bits": jax.random.bits(keys[4], x.shape),
    }


# ---- Order statistics and prefixes.


def _sort(x: jax.Array) -> dict:
    coarse = jnp.round(x * 4)
    return {
        "sort": jnp.sort(x, axis=-1),
        "descending": jnp.sort(x, axis=0, descending=True),
        "argsort": jnp.argsort(coarse, axis=-1, stable=True),
        "lexicographic": jax.lax.sort((coarse, x), num_keys=2),
        "top_k": jax.lax.top_k(coarse, 4),
        "argmax": jnp.argmax(coarse, axis=-1),
        "argmin": jnp.argmin(coarse, axis=0),
        "median": jnp.median(x, axis=-1),
    }


def _prefixes(x: jax.Array) -> jax.Array:
    parts = (
        jnp.cumsum(x, axis=-1),
        jnp.cumprod(1 + x / 8, axis=-1),
        jax.lax.cummax(x, axis=1),
        jax.lax.cumlogsumexp(x, axis=1, reverse=True),
    )
    return jnp.stack(parts)


def _reductions(x: jax.Array) -> dict:
    return {
        "sum": x.sum(),
        "mean": x.mean(axis=0),
        "var": x.var(axis=-1),
        "prod": (1 + x / 16).prod(axis=-1),
        "max": x.max(axis=-1),
        "min": x.min(axis=(0, 1)),
        "any": (x > 0.9).any(axis=0),
        "all": (x > -0.9).all(axis=1),
        "logsumexp": jax.nn.logsumexp(x, axis=-1),
        "norm": jnp.linalg.norm(x, axis=-1),
        "count": jnp.count_nonzero(x > 0, axis=-1),
        "bfloat16": x.astype(jnp.bfloat16).sum(axis=-1),
    }


# ---- Losses and layers.


def _one_hot_cross_entropy(x: jax.Array) -> jax.Array:
    labels = jax.nn.one_hot(jnp.argmax(-x, axis=-1), x.shape[-1])
    return optax.softmax_cross_entropy(x * 4, labels)


def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(3 * x, axis=-1) + jax.nn.log_softmax(x, axis=0)


def _layer_norm(x: jax.Array) -> jax.Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * 1.25 + 0.5


def _activations(x: jax.Array) -> jax.Array:
    kinds = (
        jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.sigmoid, jax.nn.softplus,
        jax.nn.elu, jax.nn.selu, jax.nn.leaky_relu, jax.nn.relu6, jax.nn.mish,
        functools.partial(jax.nn.gelu, approximate=False),
    )  # fmt: skip
    return jnp.stack([kind(x * 3) for kind in kinds])


def _elementwise(x: jax.Array) -> jax.Array:
    positive = jnp.abs(x) + 0.25
    return jnp.stack(
        [
            jnp.exp2(x), jnp.expm1(x), jnp.log(positive), jnp.log1p(x * 0.5),
            jnp.log2(positive), jnp.sqrt(positive), jax.lax.rsqrt(positive),
            jnp.cbrt(positive), jnp.sin(x * 9), jnp.cos(x * 9), jnp.tan(x),
            jnp.arctan2(x, positive), jnp.arctan(x), jnp.sinh(x), jnp.cosh(x),
            jnp.tanh(x), jnp.arcsinh(x), jnp.arctanh(x / 2), jnp.arcsin(x / 2),
            jax.scipy.special.erf(x), jax.scipy.special.erfc(x),
            jax.scipy.special.erfinv(x / 2), positive**x, x**3, jnp.hypot(x, 2.0),
            jnp.clip(x, -0.5, 0.5), jnp.maximum(x, 0.1), jnp.logaddexp(x, 1.0),
            jnp.sinc(x),
        ]
    )  # fmt: skip


def _rounding(x: jax.Array) -> jax.Array:
    y = x * 5
    return jnp.stack(
        [
            jnp.floor(y), jnp.ceil(y), jnp.round(y), jnp.trunc(y), jnp.sign(y),
            jnp.abs(y), jnp.mod(y, 1.5), jnp.remainder(y, -0.75), jnp.fmod(y, 2.0),
            jnp.floor_divide(y, 0.7), jnp.nextafter(y, 9.0), jnp.copysign(y, -1.0),
            jnp.nan_to_num(y / jnp.round(y)), jnp.where(jnp.isfinite(1 / y), y, 0),
            jax.lax.reduce_precision(y, 5, 2), jnp.ldexp(y, 3), jnp.frexp(y)[0],
        ]
    )  # fmt: skip


# ---- Indexing.


def _embedding(table: jax.Array, indices: jax.Array) -> jax.Array:
    return jnp.tanh(table[indices])


def _decode(
    cache: jax.Array, position: jax.Array, query: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One step of a decoder: write to the cache at `position`, attend up to it."""
    start = (0, position, 0)
    cache = jax.lax.dynamic_update_slice(cache, query[:, None] * 0.5, start)
    scores = jnp.einsum("bd,btd->bt", query, cache) / 4
    seen = jnp.arange(cache.shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    recent = jax.lax.dynamic_slice_in_dim(cache, position - 1, 2, axis=1)
    return cache, jnp.einsum("bt,btd->bd", weights, cache) + recent.mean(axis=1)


def _decode_arguments(seed: int, rows: int) -> tuple[PyTree, ...]:
    cache, query = uniform(seed, (rows, 6, 16)), uniform(seed + 1, (rows, 16))
    return cache, jnp.int32(3), query


def _shapes(x: jax.Array) -> jax.Array:
    padded = jax.lax.pad(x, 0.5, ((1, 2, 1), (-1, 1, 0)))
    rolled = jnp.roll(jnp.flip(padded, axis=1), 3, axis=0)
    tiled = jnp.concatenate([jnp.tile(rolled, (1, 2)), padded[:, ::2]], axis=1)
    return jnp.pad(tiled, ((1, 0), (0, 1)), mode="edge").swapaxes(0, 1)[1:-1]


def _scatters(x: jax.Array) -> dict:
    rows = jnp.argsort(x, axis=-1)[0] % x.shape[0]
    columns = jnp.arange(x.shape[1]) // 2
    at = x.at[rows, columns]
    return {
        "set": at.set(2.0),
        "add": at.add(0.3),
        "multiply": at.multiply(1.1),
        "min": at.min(0.0),
        "max": at.max(0.0),
        "segment_sum": jax.ops.segment_sum(x.T, columns, num_segments=_COLUMNS),
        "take_along": jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1),
    }


# ---- Types.


def _low_precision(x: jax.Array) -> dict:
    """bfloat16 and float16 parameters, with float32 accumulation asked for."""
    low, half = x.astype(jnp.bfloat16), x.astype(jnp.float16)
    product = jnp.einsum("ij,kj->ik", low, low, preferred_element_type=jnp.float32)
    return {
        "bfloat16": low @ low.T + jnp.tanh(low).sum(axis=-1),
        "float16": jax.nn.softmax(half @ half.T, axis=-1),
        "accumulated": product,
        "mixed": (low * 3).astype(jnp.float32) + half.astype(jnp.float32),
        "float8": x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
    }


def _integer(x: jax.Array) -> dict:
    i = (x * 1000).astype(jnp.int32)
    u = jax.lax.bitcast_convert_type(x, jnp.uint32)
    odd = (i & 1) == 1
    return {
        "arithmetic": i * 7919 - 13 + (i // 7) % 5,
        "shifts": (u >> 3) ^ (u << 5) | ~u,
        "arithmetic_shift": i >> 2,
        "bits": jax.lax.population_count(u) + jax.lax.clz(u),
        "bool": (odd | (x > 0.5)) & ~(i < -500) ^ odd,
        "narrow": i.astype(jnp.int8) + jnp.int8(100),
        "power": i**2,
        "sign": jnp.sign(i) * jnp.abs(i),
        "sum": i.sum(axis=-1),
        "dot": i @ i.T,
        "clip": jnp.clip(i, -100, 100).astype(jnp.float32),
    }


# ---- Linear and batched operations.


def _contractions(x: jax.Array) -> jax.Array:
    batched = jnp.einsum("bi,bj->bij", x, x)
    chain = jnp.einsum("bij,bjk->bik", batched, batched)
    wide = jnp.einsum("bij,cij->bc", batched, chain)  # contracts over 361
    return jax.vmap(lambda row: jnp.outer(row, row) @ row)(x) + wide.sum()


def _second_order(x: jax.Array) -> jax.Array:
    def energy(row: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(row[:, None] * row[None, :]))

    return jax.vmap(lambda row: jax.jacrev(jax.grad(energy))(row) @ row)(x)


# ---- The table.


def _x(seed: int, rows: int) -> tuple[jax.Array, ...]:
    return (uniform(seed, (rows, _COLUMNS)),)


def _key_and_x(implementation: str, seed: int, rows: int) -> tuple[PyTree, ...]:
    key = jax.random.key(seed, impl=implementation)
    return jax.random.key_data(key), *_x(seed, rows)


def _table_and_indices(seed: int, rows: int) -> tuple[PyTree, ...]:
    return uniform(seed, (11, 6)), integers(seed, (rows, 7), 11)


_DIFFERENTIABLE = {
    "custom_vjp": _straight_through,
    "custom_jvp": _log1pexp,
    "cond": _cond,
    "switch": _switch,
    "cond_in_scan": _cond_in_scan,
    "fori_loop": _fori_loop,
    "prefixes": _prefixes,
    "one_hot_cross_entropy": _one_hot_cross_entropy,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "activations": _activations,
    "elementwise": _elementwise,
    "shapes": _shapes,
    "contractions": _contractions,
    "second_order": _second_order,
}
_FORWARD = {
    "while_loop": _while_loop,
    "while_batched": _while_batched,
    "sort": _sort,
    "reductions": _reductions,
    "rounding": _rounding,
    "scatters": _scatters,
    "low_precision": _low_precision,
    "integer": _integer,
}
_TABLE: dict[str, tuple[Function, Arguments]] = {
    **{name: (_with_gradient(fn), _x) for name, fn in _DIFFERENTIABLE.items()},
    **{name: (fn, _x) for name, fn in _FORWARD.items()},
    **{
        f"random_{name}": (
            functools.partial(_random, name),
            functools.partial(_key_and_x, name),
        )
        for name in ("threefry2x32", "rbg")
    },
    "random_typed_key": (
        _more_random,
        lambda seed, rows: (jax.random.key(seed), *_x(seed, rows)),
    ),
    "embedding": (_with_gradient(_embedding), _table_and_indices),
    "decode": (_decode, _decode_arguments),
}


def _make(
    name: str, seed: int, size: Size = "tiny"
) -> tuple[Function, tuple[PyTree, ...]]:
    fn, arguments = _TABLE[name]
    return fn, arguments(seed, _ROWS[size])


PROGRAMS = tuple(
    Program(name=f"transform_{name}", make=functools.partial(_make, name))
    for name in _TABLE
)
