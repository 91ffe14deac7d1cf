"""Data parallelism over as many devices as there are: gradients by `pmean`."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)


def main():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    jax.set_mesh(mesh)
    whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    keys = jax.random.split(jax.random.key(1), 3)
    params = {"w": jax.random.normal(keys[0], (4, 1)), "b": jnp.zeros(1)}
    params = jax.device_put(params, whole)
    x = jax.device_put(jax.random.normal(keys[1], (32, 4)), parts)
    y = x @ jnp.arange(4.0)[:, None] + jax.random.normal(keys[2], (32, 1)) / 10
    print(x.sharding.spec, y.sharding.spec, params["w"].sharding.is_fully_replicated)

    def loss(params, x, y):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        in_specs=(P(), P("data"), P("data")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    def train_step(params, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        value, gradient = jax.lax.pmean((value, gradient), "data")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    for step in range(5):
        params, value = train_step(params, x, y)
        print(step, f"{value:.5f}", params["w"].sharding.is_fully_replicated)
    print(params["w"].ravel(), jax.jit(loss)(params, x, y))


if __name__ == "__main__":
    main()
