"""One program for one process or many: every process brings its part of the batch."""

import argparse
import os
import socket

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--coordinator", default=os.environ.get("COORDINATOR_ADDRESS"))
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--process", type=int, default=0)
args = parser.parse_args()
if args.coordinator is None:
    with socket.create_server(("localhost", 0)) as free:
        args.coordinator = f"localhost:{free.getsockname()[1]}"
try:
    jax.distributed.initialize(args.coordinator, args.processes, args.process)
    print("distributed", jax.distributed.is_initialized())
except RuntimeError as error:  # a backend has been started
    print("too late:", str(error)[:40])

from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("batch",))
print(jax.process_index(), jax.process_count(), mesh.size, jax.local_device_count())
over_batch = NamedSharding(mesh, P("batch"))
own = np.random.default_rng(jax.process_index()).normal(size=(16, 4))
batch = jax.make_array_from_process_local_data(over_batch, own.astype(np.float32))
table = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
lookup = jax.make_array_from_callback(
    table.shape, NamedSharding(mesh, P()), lambda index: table[index]
)
print(jax.typeof(batch), jax.typeof(lookup), batch.is_fully_addressable)


@jax.jit
def step(batch, lookup):
    scores = jax.nn.log_softmax(batch @ lookup.T)
    return scores.max(), -scores[:, 0].mean()


for value in step(batch, lookup):
    if jax.process_index() == 0:
        print(f"{value:.6f}", value.sharding.is_fully_replicated)
shards = [(shard.index, shard.data.shape) for shard in batch.addressable_shards]
print(f"{shards[-1]} {(batch * 2).sum()}")
