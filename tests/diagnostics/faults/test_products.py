"""Faults of matmuls whose casts lose more than matmuls of their format usually do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line


def weights_between(times):
    distance = jnp.abs(times[:, None] - times[None, :])
    return jax.nn.softmax(-distance / 200.0, axis=-1)


def looked_up_by_matmul(times, index):
    chosen = jax.nn.one_hot(index, len(times)) @ times  # here
    return weights_between(chosen)


def looked_up_by_index(times, index):
    return weights_between(times[index])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_matmul_that_only_looks_numbers_up_is_at_fault_for_rounding_them(wrap):
    times = np.cumsum(np.abs(normal(500, seed=1)) * 160).astype(np.float32)
    arguments = times, np.arange(380, 444, dtype=np.int32)
    report = compare(wrap(looked_up_by_matmul), policy="bf16")(*arguments)
    assert [f.kind for f in report.faults][:1] == ["coarse"], str(report)
    assert report.faults[0].record.short_op == "dot_general"
    assert not compare(wrap(looked_up_by_index), policy="bf16")(*arguments).faults


def embedded_by_matmul(table, index, weight):
    return jnp.tanh(jax.nn.one_hot(index, len(table)) @ table @ weight)


def test_an_embedding_may_be_looked_up_by_a_matmul():
    index = np.random.default_rng(2).integers(0, 40, 64)
    arguments = normal(40, 32, seed=3), index, normal(32, 16, seed=4) / 6
    arguments = [x.astype("i4" if x.dtype.kind == "i" else "f4") for x in arguments]
    assert not compare(embedded_by_matmul, policy="bf16")(*arguments).faults


def with_folded_units(x, units, weight):
    return jax.nn.silu(x @ (weight / units[:, None]))  # here


def with_units_removed(x, units, weight):
    return jax.nn.silu((x / units) @ weight)


def test_an_fp8_matmul_of_columns_in_different_units_is_at_fault():
    units = np.tile(10.0 ** np.arange(-6.0, 6.0), 4)
    arguments = normal(64, 48, seed=5) * units, units, normal(48, 32, seed=6) / 7
    arguments = [x.astype(np.float32) for x in arguments]
    faulty, healthy = with_folded_units, with_units_removed
    assert_named("underflow", faulty, healthy, arguments, policy="fp8")


def residual(a, x, b):
    return b - a @ x  # here


def exact_residual(a, x, b):
    return b - jnp.sum(a * x, axis=1)


def solved_with(residual):
    def solve(a, b):
        def sweep(x, _):
            return x + residual(a, x, b), None

        return lax.scan(sweep, jnp.zeros_like(b), None, length=300)[0]

    return solve


def test_the_residual_of_an_iteration_that_has_converged_is_at_fault():
    q, _ = np.linalg.qr(normal(64, 64, seed=7))
    a = (q * np.linspace(0.05, 1.7, 64)) @ q.T
    arguments = [a.astype(np.float32), (a @ normal(64, seed=8)).astype(np.float32)]
    report = compare(solved_with(residual), policy="bf16")(*arguments)
    first = report.faults[0]
    found = first.kind, first.record.source
    assert found == ("cancellation", marked_line(residual)), str(report)
    report = compare(solved_with(exact_residual), policy="bf16")(*arguments)
    assert not report.faults, str(report)
