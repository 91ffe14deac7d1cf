"""Auto axes: shardings of a jitted function, and constraints inside of it."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = mesh_utils.create_device_mesh((2, 4))
mesh = Mesh(devices, axis_names=("data", "model"))
rows = NamedSharding(mesh, P("data", None))
generator = np.random.default_rng(0)
x = jax.device_put(generator.normal(size=(16, 8)).astype(np.float32), rows)
w = generator.normal(size=(8, 12)).astype(np.float32)


def forward(x, w):
    hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P("data", "model"))
    return hidden, hidden.sum(axis=1)


with mesh:
    hidden, sums = jax.jit(forward)(x, w)
print(hidden.sharding.spec, hidden.shape, hidden.addressable_shards[3].data.shape)
print(hidden.sum(), sums.max())

step = jax.jit(
    jax.grad(lambda w, x: (jnp.sin(x @ w) ** 2).mean()),
    in_shardings=(NamedSharding(mesh, P(None, "model")), rows),
    out_shardings=NamedSharding(mesh, P("model")),
    donate_argnums=0,
)
gradient = step(jnp.asarray(w), x)
print(gradient.sharding.spec, gradient.std(), len(gradient.sharding.device_set))
print((gradient.T @ gradient).trace(), jax.jit(lambda g: g * 2)(gradient).sharding.spec)
