"""Explicit axes, JAX's default: types that tell how an array lies, and `reshard`."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P, reshard, set_mesh

mesh = jax.make_mesh((4, 2), ("data", "model"))
set_mesh(mesh)
print(mesh.axis_types)

key_x, key_w = jax.random.split(jax.random.key(0))
x = jax.device_put(jax.random.normal(key_x, (8, 16)), NamedSharding(mesh, P("data")))
w = jax.device_put(jax.random.normal(key_w, (16, 32)), P(None, "model"))
print(jax.typeof(x), jax.typeof(w), jax.typeof(jnp.ones((8, 8))))
inside = set()


@jax.jit
def layer(x, w):
    hidden = jax.nn.gelu(x @ w)
    inside.update(map(str, (jax.typeof(x), jax.typeof(hidden))))
    scores = jnp.einsum("bf,df->bd", hidden, w, out_sharding=P("data"))
    return hidden, scores, reshard(scores.sum(0), P("model"))


hidden, scores, total = layer(x, w)
print(jax.typeof(hidden), jax.typeof(scores), jax.typeof(total))
print((hidden * 2 + 1).sum(), jnp.abs(scores).mean(), total.max())
picked = scores.at[jnp.array([0, 5])].get(out_sharding=P())
print(jax.typeof(picked), picked[0, :3], picked.sharding.is_fully_replicated)
gradient = jax.grad(lambda w: layer(x, w)[0].sum())(w)
print(jax.typeof(gradient), jnp.linalg.norm(gradient))
print(sorted(inside))
