"""Programs of many devices, bit for bit: against one device at a time, and op by op.

The reference runs every shard alone on one emulated device and folds the gradients with
the messages of `tests.oracles.collectives`, in the tree of the same algorithm.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from tests.conformance import bits
from tests.oracles import collectives as oracle
from tests.oracles.collective_channels import all_reduce_around

TARGET = "trn2.48xlarge"
RNG = np.random.default_rng(0)
PARAMS = {
    "w1": RNG.standard_normal((12, 24), np.float32) / 4,
    "w2": RNG.standard_normal((24, 3), np.float32) / 5,
}
X = RNG.standard_normal((16, 12), np.float32)
Y = RNG.standard_normal((16, 3), np.float32)
DEVICES = 8


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


def gradients(params, x, y):
    """As they go over the wire: BF16."""
    grads = jax.grad(loss)(params, x, y)
    return jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)


def update(params, grads):
    return jax.tree.map(
        lambda p, g: p - 0.125 * g.astype(jnp.float32) / DEVICES, params, grads
    )


def parallel_step(params, x, y):
    grads = jax.tree.map(lambda g: lax.psum(g, "dp"), gradients(params, x, y))
    return update(params, grads)


def on_mesh(function, policy, *, specs=(P(), P("dp"), P("dp")), out=P()):
    mesh = nj.make_mesh((DEVICES,), ("dp",))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False
    )
    return nj.jit(mapped, target=TARGET, policy=policy)


def policy_of(algorithm):
    return dataclasses.replace(nj.Policy.preset("bf16"), collective_algorithm=algorithm)


def reduced(x, name):
    """The all-reduce of x[device, ...]; kangaring has two cycles, there and back."""
    algorithm, groups = oracle.Algorithm(name=name, ranks_per_chip=4), [range(DEVICES)]
    if name != "kangaring":
        return oracle.all_reduce(x, groups, algorithm)
    algorithm = dataclasses.replace(algorithm, listed=True)
    there_and_back = [range(DEVICES), range(DEVICES)[::-1]]
    return all_reduce_around(x, groups, algorithm, lambda group: there_and_back)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "kangaring", "rdh", "mesh"])
def test_data_parallel_is_the_shards_one_after_the_other(algorithm):
    policy = policy_of(algorithm)
    step = on_mesh(parallel_step, policy)
    got = bits.same_both_ways(step, PARAMS, X, Y)

    alone = nj.jit(gradients, target=TARGET, policy=policy)
    shards = [
        alone(PARAMS, x, y)
        for x, y in zip(np.split(X, DEVICES), np.split(Y, DEVICES), strict=True)
    ]
    summed = jax.tree.map(lambda *g: reduced(np.stack(g), algorithm)[0], *shards)
    want = nj.jit(update, target=TARGET, policy=policy)(PARAMS, summed)
    bits.assert_same(got, want)


@pytest.mark.slow
def test_algorithms_differ_in_bits():
    outs = [
        on_mesh(parallel_step, policy_of(a))(PARAMS, X, Y) for a in ("ring", "mesh")
    ]
    assert not np.array_equal(outs[0]["w1"], outs[1]["w1"])


@pytest.mark.slow
def test_stochastic_rounding_differs_among_devices_and_is_the_same_op_by_op():
    policy = nj.Policy(auto_cast="matmult", rounding="stochastic", seed=3)

    def products(params, x):
        return (x @ params["w1"]).astype(jnp.bfloat16)

    step = on_mesh(products, policy, specs=(P(), P()), out=P("dp"))
    step = step.with_rounding_seed(4)
    out = np.asarray(bits.same_both_ways(step, PARAMS, X), np.float32)
    parts = np.split(out, DEVICES)
    assert all((parts[0] != part).any() for part in parts[1:])
    assert all(np.allclose(parts[0], part, rtol=0.05, atol=0.1) for part in parts)


def _scan(x):
    def body(carry, row):
        total = lax.psum(jnp.tanh(carry * row), "dp")
        return carry / 2 + total / 8, total

    return lax.scan(body, x, jnp.arange(5.0) + 1)


def _while(x):
    def grows(state):
        return lax.pmax(jnp.abs(state[1]).max(), "dp") < 40

    def body(state):
        return state[0] + 1, state[1] * 1.5 + lax.axis_index("dp")

    return lax.while_loop(grows, body, (0, x))


def _branches(x):
    total = lax.psum(x.sum(), "dp")
    return lax.cond(
        total > 0, lambda x: x - lax.pmean(x, "dp"), lambda x: lax.pmax(x, "dp") * x, x
    )


def _ring_shift(x):
    @jax.jit
    def shifted(x):
        return lax.ppermute(x, "dp", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])

    return shifted(shifted(x)) * 2 + x


@pytest.mark.slow_except("_ring_shift")
@pytest.mark.parametrize("function", [_scan, _while, _branches, _ring_shift])
def test_collectives_in_loops_branches_and_calls(function):
    outs = {
        _scan: (P("dp"), P(None, "dp")),
        _while: (P(), P("dp")),
        _branches: P("dp"),
        _ring_shift: P("dp"),
    }[function]
    step = on_mesh(function, "fp32", specs=(P("dp"),), out=outs)
    got = bits.same_both_ways(step, X[:, :4])
    named = jax.vmap(function, axis_name="dp")
    if function is _while:  # jax.vmap would go on for devices that have stopped
        return
    want = named(X[:, :4].reshape(DEVICES, 2, 4))
    flat = jax.tree.leaves(want)
    for a, b in zip(jax.tree.leaves(got), flat, strict=True):
        b = np.asarray(b)
        if function is _scan and a.ndim == 3:
            b = np.moveaxis(b, 0, 1)
        np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-5, atol=1e-5)


DELAYED = nj.Policy(
    auto_cast="matmult", auto_cast_type="fp8", scaling="delayed", amax_history_length=3
)


def two_steps(step, *args):
    """Results and history after two steps; compiled and op by op have the same bits."""
    both = []
    for disabled in (False, True):
        results, history = None, step.init_amax_history(*args)
        with jax.disable_jit(disabled):
            for _ in range(2):
                results, history = step.with_amax_history(history)(*args)
        both.append((results, history))
    bits.assert_same(*both)
    return both[0]


@pytest.mark.slow
def test_delayed_scaling_takes_the_largest_amax_of_all_devices():
    step = on_mesh(parallel_step, DELAYED)
    _, history = two_steps(step, PARAMS, X, Y)
    alone = nj.jit(gradients, target=TARGET, policy=DELAYED)
    start, rows = alone.init_amax_history(PARAMS, X[:2], Y[:2]), []
    for x, y in zip(np.split(X, DEVICES), np.split(Y, DEVICES), strict=True):
        _, found = alone.with_amax_history(start)(PARAMS, x, y)
        rows.append(np.asarray(found[0]))
    np.testing.assert_array_equal(history[1], np.max(rows, axis=0))
    assert (np.min(rows, axis=0) < np.max(rows, axis=0)).any()


@pytest.mark.slow
def test_delayed_scaling_in_loops_and_branches_that_hold_collectives():
    def function(w, x):
        def turn(total, row):
            wide = jnp.tanh(row[None] @ w).sum()
            used = lax.cond(wide > 0, lambda: wide, lambda: (row[None] @ w).sum())
            return total + lax.psum(used, "dp"), None

        return lax.scan(turn, jnp.float32(0), x)[0]

    step = on_mesh(function, DELAYED, specs=(P(), P("dp")))
    _, history = two_steps(step, PARAMS["w1"], X)
    assert history[0].max() == np.abs(X).max()
