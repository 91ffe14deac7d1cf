"""Train data-parallel on 8 emulated devices, in one process or several.

A small network learns by SGD with momentum in BF16, and products round stochastically.
Gradients travel as BF16 around a ring. The losses and the parameters have the same bits
on any number of processes and real devices, and after a restart from a checkpoint.

    python examples/distributed/train.py
    python examples/distributed/train.py --real-devices 4
    python examples/distributed/train.py --processes 2 --process 0 &
    python examples/distributed/train.py --processes 2 --process 1

With `--directory`, the state is saved every few steps, and a run continues from the
last state that was saved there. Every process must see the same directory.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import typer
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax as nj

TARGET = "trn2.48xlarge"
EMULATED, BATCH, WIDTH, CLASSES = 8, 64, 32, 4
RATE, MOMENTUM = 0.25, 0.75
POLICY = nj.Policy(
    auto_cast="matmult",
    auto_cast_type="bf16",
    rounding="stochastic",
    seed=1,
    collective_algorithm="ring",
)

State = dict[str, Any]

# -- the program -----------------------------------------------------------------------


def loss(params: State, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error of the examples of one device."""
    hidden = jax.nn.relu(x @ params["w1"]).astype(jnp.bfloat16)
    out = (hidden @ params["w2"].astype(jnp.bfloat16)).astype(jnp.float32)
    return jnp.mean((out - y) ** 2)


def one_device(state: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    """A step as one device takes it."""
    value, grads = jax.value_and_grad(loss)(state["params"], x, y)
    grads = jax.tree.map(lambda g: lax.psum(g.astype(jnp.bfloat16), "dp"), grads)
    momentum = jax.tree.map(
        lambda m, g: MOMENTUM * m + g.astype(jnp.float32) / EMULATED,
        state["momentum"],
        grads,
    )
    params = jax.tree.map(lambda p, m: p - RATE * m, state["params"], momentum)
    return dict(params=params, momentum=momentum), lax.pmean(value, "dp")


def train_step() -> nj.Emulated:
    """(state, examples, labels) -> (state, loss), examples and labels split over dp."""
    whole, split = PartitionSpec(), PartitionSpec("dp")
    mapped = jax.shard_map(
        one_device,
        mesh=nj.make_mesh((EMULATED,), ("dp",)),
        in_specs=(whole, split, split),
        out_specs=whole,
        check_vma=False,
    )
    return nj.jit(mapped, target=TARGET, policy=POLICY)


def initial_state() -> State:
    """The same in every process."""
    draw = np.random.default_rng(0).standard_normal
    params = dict(
        w1=draw((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5),
        w2=draw((WIDTH, CLASSES), np.float32) / np.float32(WIDTH**0.5),
    )
    return dict(params=params, momentum=jax.tree.map(np.zeros_like, params))


# -- the data --------------------------------------------------------------------------


@dataclasses.dataclass
class Stream:
    """Endless examples; `position` says how many were read, and is all its state."""

    position: int = 0

    def next(self, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
        """The next BATCH examples and labels; a process makes its own part alone."""
        part = BATCH // jax.process_count()
        start = self.position + part * jax.process_index()
        self.position += BATCH
        made = [_example(n) for n in range(start, start + part)]
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        x, y = (
            jax.make_array_from_process_local_data(sharding, np.stack(column))
            for column in zip(*made, strict=True)
        )
        return x, y


def _example(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A label, one-hot, and numbers of which one in CLASSES is larger by one."""
    label = number % CLASSES
    x = np.random.default_rng(number).standard_normal(WIDTH, np.float32)
    x[label::CLASSES] += 1
    return x, np.eye(CLASSES, dtype=np.float32)[label]


# -- the run ---------------------------------------------------------------------------


class Checkpoints:
    """State, step and data position in a directory; without one, nothing."""

    def __init__(self, directory: Path | None, every: int) -> None:
        self._manager = None
        if directory is not None:
            options = ocp.CheckpointManagerOptions(
                save_interval_steps=every,
                max_to_keep=2,
                enable_async_checkpointing=False,
            )
            self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def restore(self, state: State, mesh: Mesh) -> tuple[State, int, int]:
        """(state, steps done, data position) of the last save; else the beginning."""
        if self._manager is None or self._manager.latest_step() is None:
            return state, 0, 0
        everywhere = NamedSharding(mesh, PartitionSpec())
        types = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), state
        )
        step = self._manager.latest_step()
        found = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(types), data=ocp.args.JsonRestore()
            ),
        )
        return found["state"], found["data"]["step"], found["data"]["position"]

    def save(self, state: State, done: int, position: int) -> None:
        """Saves, if it is time to; whole or not at all, whenever the run is killed."""
        if self._manager is not None:
            data = dict(step=done, position=position)
            self._manager.save(
                done,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(data)
                ),
            )


def train(*, steps: int, directory: Path | None, save_every: int) -> State:
    """Trains on all real devices of all processes; prints the bits of every loss."""
    mesh = Mesh(np.asarray(jax.devices()), ("chips",))
    checkpoints = Checkpoints(directory, save_every)
    state, done, position = checkpoints.restore(initial_state(), mesh)
    data, step = Stream(position), train_step()
    with nj.real_devices(mesh):
        while done < steps:
            # The step number is the rounding seed: it survives a restart.
            state, value = step.with_rounding_seed(done)(state, *data.next(mesh))
            print(f"step {done} loss {float(value):.6f} {_hex(value)}", flush=True)
            done += 1
            checkpoints.save(state, done, data.position)
    return state


def _hex(value: jax.Array) -> str:
    return f"{int(np.asarray(value).view(np.uint32)):08x}"


def report(state: State) -> None:
    """Prints the SHA-256 of all bits of a state."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        found.update(np.asarray(leaf).tobytes())
    print(f"state {found.hexdigest()}", flush=True)


def main(
    steps: int = 12,
    processes: Annotated[int, typer.Option(help="how many there are")] = 1,
    process: Annotated[int, typer.Option(help="which one this is")] = 0,
    coordinator: Annotated[str, typer.Option(help="of process 0")] = "localhost:9876",
    real_devices: Annotated[int, typer.Option(help="of this process, on a CPU")] = 1,
    directory: Annotated[Path | None, typer.Option(help="of checkpoints")] = None,
    save_every: int = 4,
) -> None:
    """Trains; the last line is the digest of the state."""
    jax.config.update("jax_num_cpu_devices", real_devices)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, processes, process)
    report(train(steps=steps, directory=directory, save_every=save_every))


if __name__ == "__main__":
    typer.run(main)
