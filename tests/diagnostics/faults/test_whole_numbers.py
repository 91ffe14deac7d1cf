"""Whole numbers that a policy's cast does not hold: positions, times and identifiers
that a matmul reads; and numbers as whole that it holds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.api.compare import compare
from neuronjax.diagnostics.faults.naming import OUT_OF_MATMUL
from neuronjax.policy import Policy, Rule
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line

FREQUENCIES = (1 / 10000 ** (np.arange(0, 32, 2) / 32)).astype(np.float32)
# Rows turn one half of the features, columns the other.
TURNS = np.zeros((2, 32), np.float32)
TURNS[0, :16] = TURNS[1, 16:] = FREQUENCIES


def weighed(phases, q):
    turned = q * jnp.cos(phases)
    return jax.nn.softmax(turned @ turned.T / 6)


def turned(places, q):
    phases = jnp.einsum("np,pd->nd", places.astype(jnp.float32), TURNS)  # here
    return weighed(phases, q)


def turned_by_each(places, q):
    return weighed((places.astype(jnp.float32)[:, :, None] * TURNS).sum(1), q)


def ages(times, groups, w):
    of_group = jax.nn.one_hot(groups, 8)
    mean = of_group.T @ times / of_group.sum(0)  # here
    return jnp.tanh(((times - mean[groups]) / 100)[:, None] * w)


def ages_since_the_first(times, groups, w):
    return ages(times - times[0], groups, w)


def identifiers(slots, table):
    found = jax.nn.one_hot(slots, 16) @ table.astype(jnp.float32)  # here
    return found.astype(jnp.int32)


def identifiers_indexed(slots, table):
    return table[slots]


PLACES = np.stack([np.arange(4000, 4064), np.arange(64)], 1)
TIMES = np.float32(100_000) + np.arange(64, dtype=np.float32) % 7
SLOTS = np.arange(40) * 7 % 16

CASES = [
    (turned, turned_by_each, [PLACES, normal(64, 32, scale=2)]),
    (turned, turned_by_each, [PLACES.astype(np.float32), normal(64, 32, scale=2)]),
    (ages, ages_since_the_first, [TIMES, np.arange(64) % 8, normal(4)]),
    (identifiers, identifiers_indexed, [SLOTS, 1001 + 97 * np.arange(16)]),
]


@pytest.mark.parametrize(
    ("faulty", "healthy", "arguments"),
    CASES,
    ids=["integers", "floats", "times", "identifiers"],
)
def test_the_contraction_is_named(faulty, healthy, arguments):
    assert_named("integer", faulty, healthy, arguments, policy="bf16")


def test_the_remedies_help():
    places, q = CASES[0][2]
    fault = compare(turned, policy="bf16")(places, q).faults[0]
    assert fault.remedy == OUT_OF_MATMUL
    place = marked_line(turned).rpartition("/")[2]
    rule = Rule(source=place, auto_cast="none")
    policy = dataclasses.replace(Policy.preset("bf16"), rules=(rule,))
    assert compare(turned, policy=policy)(places, q).faults == ()


@pytest.mark.parametrize(
    "counts",
    [
        np.arange(32 * 64).reshape(32, 64) * 37 % 256,
        np.arange(32 * 64).reshape(32, 64) * 37 % 901,
    ],
    ids=["pixels", "words"],
)
def test_numbers_that_are_weighed_are_data(counts):
    def classes(counts, w, v):
        return jax.nn.log_softmax(jax.nn.relu(counts.astype(jnp.float32) @ w) @ v)

    w, v = normal(64, 16, scale=0.02), normal(16, 8, scale=0.3)
    assert compare(classes, policy="bf16")(counts, w, v).faults == ()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_sum_over_devices_may_wrap_around(dtype):
    mesh = nj.make_mesh((4,), ("x",))

    def total(x):
        counts = jnp.sum(x > 0, axis=0).astype(dtype)
        total = jax.lax.psum(counts, "x")  # here
        return total.astype(jnp.float32)

    summed = jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P())
    report = compare(summed, target="trn2.48xlarge", policy="bf16")(normal(400, 8))
    told = [(fault.kind, fault.record.source) for fault in report.faults]
    line = marked_line(test_a_sum_over_devices_may_wrap_around)
    assert told == ([("integer", line)] if dtype == "int8" else []), str(report)
