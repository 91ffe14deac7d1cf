"""States that stay where they were though something is added, and those that move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import neuronjax as nj

RNG = np.random.default_rng(0)
BF16 = jnp.bfloat16


def numbers(offset: float = 0.0, size: int = 256) -> np.ndarray:
    return (offset + RNG.normal(size=size)).astype(np.float32)


SMALL, LARGE, MOMENT = numbers(), numbers(10), 1 + numbers() ** 2


def faults(function: Any, *args: Any, **options: Any) -> list[str]:
    _, statistics = nj.jit(function, collect=True, **options)(*args)
    return [kind for record in statistics.records for kind in record["faults"]]


def bf16(*arrays: np.ndarray) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(x, BF16) for x in arrays)


def second_moment(v, g):
    return 0.999 * v + 0.001 * g * g


def momentum(m, g):
    return 0.9 * m + g


def first_moment(m, g):
    return 0.9 * m + 0.1 * g


def average(e, w):
    return 0.99 * e + 0.01 * w


def count(n, g):
    return n + 1, g


def update(w, g):
    return w - 1e-4 * g


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic in FP32 of what is kept in BF16."""

    def step(state, x):
        return function(state.astype(jnp.float32), x.astype(jnp.float32)).astype(BF16)

    return step


def in_a_scan(v, g):
    gradients = jnp.stack([g, g + 1])
    return lax.scan(lambda v, g: (second_moment(v, g), None), v, gradients)[0]


def that_may_be_skipped(v, g):
    finite = jnp.all(jnp.isfinite(g))
    return lax.cond(finite, lambda: second_moment(v, g), lambda: v)


def that_is_chosen(v, g):
    return jnp.where(jnp.isfinite(g), jnp.minimum(second_moment(v, g), 100), v)


def in_a_function(v, g):
    return jax.jit(second_moment)(v, g)


def with_a_given_decay(v, g):
    decay = jnp.minimum(0.999, g[0] ** 2 + 1).astype(BF16)
    return decay * v + 0.001 * jnp.square(g)


def on_devices(spec: PartitionSpec) -> Callable[..., Any]:
    def local(v, g):
        return second_moment(v, lax.pmean(g, "d"))

    def step(v, g):
        mesh, split = nj.make_mesh((4,), ("d",)), PartitionSpec("d")
        return jax.shard_map(local, mesh=mesh, in_specs=(spec, split), out_specs=spec)(
            v, g
        )

    return step


@pytest.mark.slow_except("second moment", "arithmetic in FP32")
@pytest.mark.parametrize(
    ("function", "state", "kind"),
    [
        pytest.param(second_moment, MOMENT, "absorption", id="second moment"),
        pytest.param(average, LARGE, "absorption", id="average"),
        pytest.param(count, np.float32(256), "absorption", id="count"),
        pytest.param(update, SMALL, "absorption", id="weights"),
        pytest.param(
            in_float32(second_moment), MOMENT, "absorption", id="arithmetic in FP32"
        ),
        pytest.param(in_float32(update), SMALL, "absorption", id="weights in FP32"),
        pytest.param(in_a_scan, MOMENT, "stagnation", id="scan"),
        pytest.param(that_may_be_skipped, MOMENT, "absorption", id="skipped"),
        pytest.param(that_is_chosen, MOMENT, "absorption", id="chosen"),
        pytest.param(in_a_function, MOMENT, "absorption", id="function"),
        pytest.param(with_a_given_decay, MOMENT, "absorption", id="given decay"),
        pytest.param(
            on_devices(PartitionSpec("d")), MOMENT, "absorption", id="devices"
        ),
        pytest.param(
            on_devices(PartitionSpec()), MOMENT[:64], "absorption", id="replicated"
        ),
    ],
)
def test_a_state_that_stays_is_told(function, state, kind):
    gradient = state + 0.01 * SMALL if function is average else SMALL
    assert faults(function, *bf16(state, gradient)) == [kind]


@pytest.mark.slow_except("momentum")
@pytest.mark.parametrize(
    ("function", "args"),
    [
        pytest.param(momentum, bf16(SMALL, LARGE), id="momentum"),
        pytest.param(first_moment, bf16(SMALL, LARGE), id="first moment"),
        pytest.param(second_moment, bf16(0 * SMALL, SMALL), id="first step"),
        pytest.param(second_moment, (MOMENT, SMALL), id="second moment in FP32"),
        pytest.param(average, (LARGE, LARGE), id="average of what stands"),
        pytest.param(
            in_float32(average), bf16(LARGE, LARGE), id="average that is cast"
        ),
        pytest.param(in_a_scan, (MOMENT, SMALL), id="scan in FP32"),
        pytest.param(count, (np.float32(256), SMALL), id="count in FP32"),
        pytest.param(
            lambda x, v: x * lax.rsqrt(v + 1e-5), bf16(SMALL, MOMENT), id="an epsilon"
        ),
        pytest.param(lambda x, w: x + jnp.tanh(w), bf16(SMALL, LARGE), id="a residual"),
        pytest.param(
            lambda c, x: jax.nn.sigmoid(x) * c + jnp.tanh(x),
            bf16(SMALL, LARGE),
            id="a gate",
        ),
    ],
)
def test_a_state_that_moves_is_no_fault(function, args):
    assert not faults(function, *args)


@pytest.mark.slow
@pytest.mark.parametrize("function", [update, in_float32(update), second_moment])
def test_what_rounds_stochastically_loses_nothing(function):
    policy = nj.Policy(rounding="stochastic")
    assert not faults(function, *bf16(SMALL, SMALL), policy=policy)


@pytest.mark.slow
def test_steps_of_a_state_are_counted():
    collect = nj.Collect(kinds=("update",))
    v, g = bf16(MOMENT, SMALL)
    after, statistics = nj.jit(second_moment, collect=collect)(v, g)
    (record,) = statistics.records
    updates = v.size - np.count_nonzero(1e-3 * SMALL**2 < 2.0**-22 * MOMENT)
    assert record["updates"] == pytest.approx(updates, abs=2)
    moved = int(jnp.sum(after != v))
    assert record["stagnant"] == record["updates"] - moved
