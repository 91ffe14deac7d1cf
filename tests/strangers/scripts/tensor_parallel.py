"""Tensor parallelism by hand: a `shard_map`, two matmuls and one `psum`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(-1, 4), ("dp", "tp"))
print(dict(mesh.shape), len(jax.local_devices()), jax.process_count())
specs = {"up": P(None, "tp"), "down": P("tp", None), "scale": P()}
keys = jax.random.split(jax.random.key(3), 3)
params = {
    "up": jax.random.normal(keys[0], (16, 64)) / 4,
    "down": jax.random.normal(keys[1], (64, 16)) / 8,
    "scale": jnp.ones(16),
}
params = jax.tree.map(
    lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), params, specs
)


@functools.partial(
    jax.shard_map, mesh=mesh, in_specs=(specs, P("dp")), out_specs=P("dp")
)
def block(params, x):
    normed = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * params["scale"]
    partial = jax.nn.silu(normed @ params["up"]) @ params["down"]
    return x + jax.lax.psum(partial, "tp")


@jax.jit
def loss(params, x):
    return (block(params, x) ** 2).mean()


x = jax.random.normal(keys[2], (8, 16))
y = jax.jit(block)(params, x)
print(y.sharding.spec, y.sum(), jnp.abs(block(params, x) - y).max() < 1e-5)
value, gradients = jax.jit(jax.value_and_grad(loss))(params, x)
print(value, {name: float(jnp.linalg.norm(g)) for name, g in gradients.items()})
