"""Programs of many emulated devices, and a digest of their results on R real ones.

    python -m tests.distributed.carried --counts 1,2,4 data_parallel mixed ...

prints a JSON object: program -> digests, one for each number of real devices. With
`--processes` the last number counts, which is that of all devices of all processes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec as P

import neuronjax as nj
from neuronjax.execution.device_sharding import real_devices
from tests.conformance import bits

TARGET = "trn2.48xlarge"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 12), np.float32)
Y = RNG.standard_normal((16, 3), np.float32)
PARAMS = {
    "w1": RNG.standard_normal((12, 24), np.float32) / 4,
    "w2": RNG.standard_normal((24, 3), np.float32) / 5,
}
RING = nj.Policy(auto_cast="matmult", collective_algorithm="ring")
DELAYED = nj.Policy(
    auto_cast="matmult", auto_cast_type="fp8", scaling="delayed", amax_history_length=3
)
STOCHASTIC = nj.Policy(auto_cast="matmult", rounding="stochastic", seed=3)


class Program(NamedTuple):
    """A function of arrays of a device, how arrays are split, and arguments."""

    function: Callable[..., Any]
    mesh: dict[str, int]
    specs: tuple
    out: Any
    arguments: tuple
    policy: nj.Policy | str = "fp32"

    def emulated(self) -> nj.Emulated:
        mesh = nj.make_mesh(tuple(self.mesh.values()), tuple(self.mesh))
        mapped = jax.shard_map(
            self.function,
            mesh=mesh,
            in_specs=self.specs,
            out_specs=self.out,
            check_vma=False,
        )
        step = nj.jit(mapped, target=TARGET, policy=self.policy)
        if self.policy is DELAYED:
            history = step.init_amax_history(*self.arguments)
            return step.with_amax_history(history)
        return step.with_rounding_seed(5) if self.policy is STOCHASTIC else step


def _loss(params, x, y):
    return jnp.mean((jax.nn.relu(x @ params["w1"]) @ params["w2"] - y) ** 2)


def _data_parallel(params, x, y):
    grads = jax.tree.map(
        lambda g: g.astype(jnp.bfloat16), jax.grad(_loss)(params, x, y)
    )
    grads = jax.tree.map(lambda g: lax.psum(g, "dp").astype(jnp.float32), grads)
    return jax.tree.map(lambda p, g: p - g / 64, params, grads)


def _sharded_state(shard, x):
    """Weights in parts: gathered, used, and their gradient scattered again."""
    w = lax.all_gather(shard, "dp", tiled=True)
    grad = x.T @ (x @ w).astype(jnp.bfloat16)
    part = lax.psum_scatter(grad.astype(jnp.bfloat16), "dp", tiled=True)
    return shard - part.astype(jnp.float32) / 64


def _mixed(x, w, minor):
    """Collectives along either axis, and arrays split in every way."""
    rows = lax.psum(x @ w, "tp")
    both = lax.pmean(rows, ("dp", "tp"))
    turned = lax.all_to_all(minor, "tp", 1, 0, tiled=True)
    sent = lax.ppermute(x, "dp", [(0, 1), (1, 2), (3, 0)])
    whole = lax.all_gather(minor, ("dp", "tp"))
    largest = lax.pmax((x * 64).astype(jnp.int32), "dp")
    return rows, both, turned, sent, whole.max(0), largest, x[0, 0] > 0


def _loops(x):
    def body(carry, row):
        total = lax.psum(jnp.maximum(carry * row, carry), "dp")
        carry = lax.cond(carry.sum() > 0, lambda c: c / 2, lambda c: c * row, carry)
        return carry + total / 8, total

    def grows(state):  # of devices that disagree, the first one counts
        return state[1].max() + lax.psum(state[0], "dp") / 64 < 40

    def grow(state):
        return state[0] + 1, state[1] * 1.5 + lax.axis_index("dp")

    carry, totals = lax.scan(body, x, jnp.arange(5.0) + 1)
    return *lax.while_loop(grows, grow, (0, carry)), totals


def _stochastic(x, w):
    product = (x @ w).astype(jnp.bfloat16)
    return product, lax.psum(product, "dp")


def _narrow(x, f8, bf16, i8, flag):
    moved = [lax.ppermute(a, "dp", [(i, 7 - i) for i in range(8)]) for a in (f8, i8)]
    return *moved, lax.all_gather(flag, "dp"), lax.all_gather(f8, "dp"), x + 0, bf16


_DP = {"dp": 8}
_BYTES = RNG.integers(0, 256, (16, 5), np.uint8)
PROGRAMS: dict[str, Program] = {
    "data_parallel": Program(
        _data_parallel, _DP, (P(), P("dp"), P("dp")), P(), (PARAMS, X, Y), RING
    ),
    "delayed": Program(
        _data_parallel, _DP, (P(), P("dp"), P("dp")), P(), (PARAMS, X, Y), DELAYED
    ),
    "stochastic": Program(
        _stochastic,
        _DP,
        (P("dp"), P()),
        (P("dp"), P()),
        (X, PARAMS["w1"]),
        STOCHASTIC,
    ),
    "sharded_state": Program(
        _sharded_state, _DP, (P("dp"), P("dp")), P("dp"), (X[:8, :4], X[:, :8]), RING
    ),
    "mixed": Program(
        _mixed,
        {"one": 1, "dp": 4, "tp": 2},
        (P("dp", "tp"), P("tp"), P(("tp", "dp"), "one")),
        (
            P("dp"),
            P(),
            P(None, ("dp", "tp")),
            P("one", ("dp", "tp")),
            P(None, "tp"),
            P("tp"),
            P(),
        ),
        (X, PARAMS["w1"], X[:, :6]),
        "bf16",
    ),
    "loops": Program(_loops, _DP, (P("dp"),), (P(), P("dp"), P()), (X[:, :4],)),
    "narrow": Program(
        _narrow,
        _DP,
        (P("dp"),) * 5,
        (P("dp"), P("dp"), P(), P(), P(None, "dp"), P("dp")),
        (
            X,
            _BYTES.view(ml_dtypes.float8_e5m2),
            X.astype(ml_dtypes.bfloat16),
            _BYTES.view(np.int8),
            X > 0,
        ),
    ),
}


def digest(name: str, count: int) -> str:
    """Of a program's results on the first `count` devices."""
    program = PROGRAMS[name]
    with real_devices(Mesh(np.asarray(jax.devices()[:count]), ("chips",))):
        results = program.emulated()(*program.arguments)
        words = jax.tree.map(_words, results)
    if jax.process_count() > 1:
        words = multihost_utils.process_allgather(words, tiled=True)
    return bits.digest(words)


@jax.jit
def _words(x: jax.Array) -> jax.Array:
    """Its bits: XLA gathers FP8 numbers by way of FP16, which has other NaNs."""
    if x.dtype == jnp.bool_:
        return x
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{x.dtype.itemsize * 8}"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the digests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", default="1,2,4")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args(arguments)
    counts = [int(count) for count in options.counts.split(",")]
    jax.config.update("jax_num_cpu_devices", max(counts) // options.processes)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            options.coordinator, options.processes, options.process
        )
    print(json.dumps({p: [digest(p, n) for n in counts] for p in options.programs}))


if __name__ == "__main__":
    main()
