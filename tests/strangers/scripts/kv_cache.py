"""Inference with a KV cache under `set_mesh`: prefill, and a loop of decode steps."""

import dataclasses
import functools

import jax

jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.sharding import AxisType, PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Config:
    vocabulary: int = 32
    width: int = 16
    heads: int = 4
    length: int = 12
    mesh: jax.sharding.Mesh | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cache:
    keys: jax.Array
    values: jax.Array
    used: jax.Array


def new_cache(config, batch):
    shape = batch, config.heads, config.length, config.width // config.heads
    keys, values = (jnp.zeros(shape, out_sharding=P("x", "y")) for _ in range(2))
    return Cache(keys, values, jnp.zeros((), jnp.int32))


def new_weights(key, config):
    shapes = {
        "embedding": ((config.vocabulary, config.width), P(None, None)),
        "qkv": ((config.width, 3, config.heads, 4), P(None, None, "y", None)),
        "out": ((config.heads, 4, config.width), P("y", None, None)),
    }
    keys = dict(zip(shapes, random.split(key, len(shapes)), strict=True))
    return {
        name: jax.device_put(random.normal(keys[name], shape) / 2, spec)
        for name, (shape, spec) in shapes.items()
    }


@functools.partial(jax.jit, static_argnames="config", donate_argnames="cache")
def forward(tokens, weights, cache, config):
    x = weights["embedding"].at[tokens].get(out_sharding=P("x", None, None))
    q, k, v = jnp.einsum("btd,dche->cbhte", x, weights["qkv"])
    start = (0, 0, cache.used, 0)
    keys = jax.lax.dynamic_update_slice(cache.keys, k, start)
    values = jax.lax.dynamic_update_slice(cache.values, v, start)
    scores = jnp.einsum("bhte,bhse->bhts", q, keys) / 2
    place = cache.used + jnp.arange(tokens.shape[1])
    seen = jnp.arange(config.length)[None, :] <= place[:, None]
    mixed = jax.nn.softmax(jnp.where(seen, scores, -1e9)) @ values
    spec = P("x", None, None)
    x = x + jnp.einsum("bhte,hed->btd", mixed, weights["out"], out_sharding=spec)
    logits = jnp.einsum("btd,vd->btv", x, weights["embedding"])
    return logits[:, -1], Cache(keys, values, cache.used + tokens.shape[1])


if __name__ == "__main__":
    axes = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices(), axis_types=axes)
    config = Config(mesh=mesh)
    prompt = np.array([[3, 1, 4, 1], [2, 7, 1, 8]])
    with jax.set_mesh(config.mesh):
        weights = new_weights(random.key(0), config)
        cache = new_cache(config, len(prompt))
        tokens = jax.device_put(prompt, P("x", None))
        logits, cache = forward(tokens, weights, cache, config)
        print(jax.typeof(cache.keys), jax.typeof(logits), jnp.abs(logits).max())
        written = []
        for _ in range(5):
            token = logits.argmax(-1)[:, None]
            written.append(token)
            logits, cache = forward(token, weights, cache, config)
        print(np.array(jnp.concatenate(written, axis=-1)), int(cache.used))
    print(logits.sharding.spec, np.asarray(logits)[:, :3])
