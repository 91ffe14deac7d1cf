"""Run the classic data-parallel training loop of Flax on emulated Trainium devices.

A network learns which character follows eight others in Python's documentation. Three
lines differ from `pmap_example_jax.py`: an import, the list of devices, and the call
of pmap, which has a policy.

    python examples/pmap_example.py
"""

import functools
from collections.abc import Iterator
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from flax.training.train_state import TrainState

from neuronjax import local_device_count, pmap, replicate, unreplicate

DEVICES = range(local_device_count("trn2"))
CONTEXT, WIDTH, BATCH, STEPS = 8, 64, 256, 100


class Network(linen.Module):
    """[B, CONTEXT] bytes -> [B, 128] logits."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Embed(128, 16)(x).reshape(len(x), -1)
        return linen.Dense(128)(linen.relu(linen.Dense(WIDTH)(x)))


@functools.partial(pmap, axis_name="batch", devices=DEVICES, policy="bf16")
def train_step(
    state: TrainState, context: jax.Array, target: jax.Array
) -> tuple[TrainState, jax.Array]:
    def loss_of(params: dict) -> jax.Array:
        logits = state.apply_fn({"params": params}, context)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return losses.mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    loss = jax.lax.pmean(loss, axis_name="batch")
    return state.apply_gradients(grads=grads), loss


def shard(x: np.ndarray) -> np.ndarray:
    """[B, ...] -> [devices, B / devices, ...]."""
    return x.reshape(len(DEVICES), -1, *x.shape[1:])


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random windows of the text, and what follows them."""
    text = "\n".join(topics[name] for name in sorted(topics))
    data = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        starts = rng.integers(len(data) - CONTEXT, size=(BATCH, 1))
        window = data[starts + np.arange(CONTEXT + 1)]
        yield window[:, :-1], window[:, -1]


def main() -> None:
    network = Network()
    params = network.init(jax.random.key(0), jnp.zeros((1, CONTEXT), jnp.int32))
    state = TrainState.create(
        apply_fn=network.apply, params=params["params"], tx=optax.adam(1e-2)
    )
    state = replicate(state, DEVICES)
    for number, (context, target) in enumerate(batches(), 1):
        state, loss = train_step(state, shard(context), shard(target))
        if number % 20 == 0:
            print(f"step {unreplicate(state).step}: loss {unreplicate(loss):.3f}")


if __name__ == "__main__":
    main()
