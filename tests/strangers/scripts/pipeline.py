"""A pipeline: every device holds a layer and hands microbatches on by `ppermute`."""

import functools
import os

if "--xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

STAGES, MICROBATCHES = 4, 6
mesh = jax.make_mesh((STAGES,), ("stage",), devices=jax.devices()[:STAGES])
weights = jax.random.normal(jax.random.key(0), (STAGES, 8, 8)) / 3
batches = jax.random.normal(jax.random.key(1), (MICROBATCHES, 2, 8))


@functools.partial(
    jax.shard_map, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False
)
def pipelined(weights, batches):
    stage = lax.axis_index("stage")

    def tick(carry, time):
        arriving, done = carry
        fed = batches[jnp.minimum(time, MICROBATCHES - 1)]
        leaving = jnp.tanh(jnp.where(stage == 0, fed, arriving) @ weights[0])
        slot = time - (STAGES - 1)
        finished = (stage == STAGES - 1) & (slot >= 0)
        kept = done.at[jnp.maximum(slot, 0)].set(leaving)
        done = jnp.where(finished, kept, done)
        ring = [(i, (i + 1) % STAGES) for i in range(STAGES)]
        return (lax.ppermute(leaving, "stage", ring), done), None

    start = jnp.zeros_like(batches[0]), jnp.zeros_like(batches)
    (_, done), _ = lax.scan(tick, start, jnp.arange(MICROBATCHES + STAGES - 1))
    return lax.psum(done, "stage")


with jax.set_mesh(mesh):
    run = jax.jit(pipelined)
    out = run(jax.device_put(weights, P("stage")), batches)
    print(jax.typeof(out), out.sum())
straight = batches
for weight in weights:
    straight = jnp.tanh(straight @ weight)
print(straight.sum(), jnp.abs(jax.device_get(out) - straight).max() < 1e-5)
