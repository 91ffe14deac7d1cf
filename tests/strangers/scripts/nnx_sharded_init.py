"""An NNX model whose parameters say how they lie: created in parts, and trained."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))


class Block(nnx.Module):
    def __init__(self, width, rngs):
        init = nnx.initializers.lecun_normal()
        split = nnx.with_partitioning
        self.up = nnx.Linear(
            width,
            4 * width,
            kernel_init=split(init, (None, "model")),
            bias_init=split(nnx.initializers.zeros_init(), ("model",)),
            rngs=rngs,
        )
        self.down = nnx.Linear(
            4 * width,
            width,
            use_bias=False,
            kernel_init=split(init, ("model", None)),
            rngs=rngs,
        )

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


@nnx.jit
def create():
    model = Block(8, nnx.Rngs(0))
    state = nnx.state(model)
    specs = nnx.get_partition_spec(state)
    nnx.update(model, jax.lax.with_sharding_constraint(state, specs))
    return model


@nnx.jit
def train_step(model, optimizer, x, y):
    value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return value


with jax.set_mesh(mesh):
    model = create()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    print(model.up.kernel[...].sharding.spec, model.down.kernel[...].sharding.spec)
    over_data = NamedSharding(mesh, P("data"))
    x = jax.device_put(jax.random.normal(jax.random.key(5), (8, 8)), over_data)
    for _ in range(3):
        print(f"{train_step(model, optimizer, x, jnp.sin(x)):.6f}")
    print(model.down.kernel[...].sharding.spec, model(x).sum())

    abstract = nnx.eval_shape(lambda: Block(8, nnx.Rngs(1)))
    definition, shapes = nnx.split(abstract)
    specs = nnx.get_partition_spec(shapes)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    state = jax.jit(
        lambda: nnx.split(Block(8, nnx.Rngs(1)))[1], out_shardings=shardings
    )()
    merged = nnx.merge(definition, state)
    print(merged.up.kernel[...].sharding.spec, jnp.abs(merged(x)).mean())
