"""FSDP: parameters and moments lie in parts from the start, by `jax.eval_shape`."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))


def apply(params, x):
    hidden = jax.nn.relu(x @ params["in"]["kernel"] + params["in"]["bias"])
    return hidden @ params["out"]["kernel"]


def init(key):
    first, second = jax.random.split(key)
    params = {
        "in": {"kernel": jax.random.normal(first, (8, 32)) / 3, "bias": jnp.zeros(32)},
        "out": {"kernel": jax.random.normal(second, (32, 4)) / 6},
    }
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    return TrainState.create(apply_fn=apply, params=params, tx=tx)


def sharding_of(leaf):
    largest = max(range(leaf.ndim), key=lambda axis: leaf.shape[axis], default=None)
    if largest is None or leaf.shape[largest] % mesh.size:
        return NamedSharding(mesh, P())
    return NamedSharding(mesh, P(*[None] * largest, "fsdp"))


key = jax.random.PRNGKey(0)
abstract = jax.eval_shape(init, key)
shardings = jax.tree.map(sharding_of, abstract)
state = jax.jit(init, out_shardings=shardings)(key)
print(state.params["in"]["kernel"].sharding.spec, len(jax.tree.leaves(state)))


def train_step(state, batch):
    def loss(params):
        return jnp.mean((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


over_batch = NamedSharding(mesh, P("fsdp"))
step = jax.jit(
    train_step,
    in_shardings=(shardings, over_batch),
    out_shardings=(shardings, NamedSharding(mesh, P())),
    donate_argnums=0,
)
x = jax.random.normal(jax.random.key(1), (16, 8))
batch = jax.device_put({"x": x, "y": jnp.sin(x[:, :4])}, over_batch)
for _ in range(4):
    state, value = step(state, batch)
    print(int(state.step), f"{value:.6f}")
jax.tree.map(lambda leaf, like: None, state, abstract)
moment = state.opt_state[1][0].mu["out"]["kernel"]
print(moment.sharding.spec, jnp.linalg.norm(moment))
