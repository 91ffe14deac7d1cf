"""Expert parallelism: tokens travel to their expert and back by `all_to_all`."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
EXPERTS, TOKENS, WIDTH, CAPACITY = 4, 32, 8, 8
mesh = jax.make_mesh((EXPERTS,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
keys = jax.random.split(jax.random.key(7), 3)
x = jax.random.normal(keys[0], (TOKENS, WIDTH))
router = jax.random.normal(keys[1], (WIDTH, EXPERTS))
weights = jax.random.normal(keys[2], (EXPERTS, WIDTH, WIDTH)) / 3


def moe(x, router, weights):
    probability = jax.nn.softmax(x @ router)
    gate, choice = probability.max(-1), probability.argmax(-1)
    chosen = jax.nn.one_hot(choice, EXPERTS, dtype=jnp.int32)
    position = (jnp.cumsum(chosen, 0) * chosen).sum(-1) - 1
    slots = jnp.zeros((EXPERTS, CAPACITY, WIDTH)).at[choice, position].set(x)
    arrived = lax.all_to_all(slots, "expert", 0, 0, tiled=True)
    worked = jax.nn.gelu(arrived.reshape(-1, WIDTH) @ weights[0]).reshape(slots.shape)
    back = lax.all_to_all(worked, "expert", 0, 0, tiled=True)
    used = lax.psum(chosen.sum(0), "expert")
    return gate[:, None] * back[choice, position], used


mapped = jax.shard_map(
    moe,
    mesh=mesh,
    in_specs=(P("expert"), P(), P("expert")),
    out_specs=(P("expert"), P()),
)
with jax.set_mesh(mesh):
    x = jax.device_put(x, P("expert"))
    out, used = jax.jit(mapped)(x, router, weights)
print(out.sharding.spec, used, out.sum(), jnp.abs(out).max())
dense = jax.nn.gelu(jnp.einsum("td,edf->tef", x, weights))
probability = jax.nn.softmax(x @ router)
best = jnp.take_along_axis(dense, probability.argmax(-1)[:, None, None], 1)[:, 0]
print(jnp.abs(best * probability.max(-1)[:, None] - out).max() < 1e-5)
