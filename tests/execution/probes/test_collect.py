"""`nj.jit(..., collect=...)`: statistics beside the same bits, in any kind of program.

That one tensor is counted as defined is tested in tests/diagnostics; here a program of
many, compiled against op by op, with loops, branches, calls and devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec

import neuronjax as nj
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution.probes import accumulator
from neuronjax.execution.probes.collect import KINDS, Collect
from neuronjax.execution.probes.statistics import Statistics
from tests.conformance.bits import assert_same, op_by_op

UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")
W = jnp.asarray(np.random.default_rng(0).normal(size=(32, 32)), jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(16, 32)), jnp.float32)


def train_step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of 1e-8, far below the range of e5m2."""

    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.relu(x @ w) @ w) * 1e-6

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 1e-3 * gradient, value


def emulated(function: Callable[..., Any], collect: Any = True, **options: Any) -> Any:
    return nj.jit(function, collect=collect, **{"policy": UNSCALED, **options})


def records(statistics: Statistics, kind: str = "cast") -> list[dict[str, Any]]:
    return [r for r in statistics.records if r["kind"] == kind]


def summed(statistics: Statistics, counter: str, kind: str = "cast") -> int:
    return sum(r[counter] for r in records(statistics, kind))


# ---- The same bits, and the same counts op by op.


@pytest.mark.slow
def test_an_fp8_step_whose_gradients_underflow():
    step = emulated(train_step)
    (outputs, found) = step(W, X)
    assert_same(outputs, nj.jit(train_step, policy=UNSCALED)(W, X))
    backward = [r for r in records(found) if "transpose" in r["scope"]]
    assert backward
    assert all(r["format"] == "float8_e5m2" for r in backward)
    assert backward[0]["underflow"] == backward[0]["nonzero"] == X.size
    assert backward[0]["effective_bits"] == 0
    forward = [r for r in records(found) if r["format"] == "float8_e4m3"]
    assert {r["params"] for r in forward} >= {("x",), ("w",)}
    assert all(r["effective_bits"] > 3.7 for r in forward)
    (update,) = records(found, "update")
    assert (update["params"], update["updates"]) == (("w",), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "target"),
    [
        (UNSCALED, "trn2"),
        (nj.Policy.preset("fp8"), "trn2"),
        (nj.Policy.preset("mxfp8"), "trn3"),
        (nj.Policy(auto_cast="all", auto_cast_type="bf16"), "trn2"),
        (
            nj.Policy(
                auto_cast="matmult", auto_cast_type="bf16", rounding="stochastic"
            ),
            "trn2",
        ),
    ],
)
def test_compiled_is_op_by_op_and_measuring_changes_no_bit(policy, target):
    options: dict[str, Any] = dict(policy=policy, target=target)
    collect = Collect(kinds=tuple(KINDS), histogram=True)
    measured = emulated(train_step, collect, **options).with_rounding_seed(3)
    plain = nj.jit(train_step, **options).with_rounding_seed(3)
    outputs, found = measured(W, X)
    assert_same(outputs, plain(W, X))
    eager, again = op_by_op(measured, W, X)
    assert_same(outputs, eager)
    assert_same(dict(found.arrays), dict(again.arrays))
    for name in ("cast", "mx"):
        for record in records(found, name):
            assert sum(record["exponents"].values()) == record["nonzero"]


@pytest.mark.slow
def test_updates_that_rounding_swallows():
    def step(w: jax.Array, u: jax.Array) -> jax.Array:
        return w + u * 1e-4

    w, u = jnp.full((8, 16), 1, jnp.bfloat16), jnp.ones((8, 16), jnp.bfloat16)
    _, found = emulated(step, policy="fp32")(w, u.at[0].set(256))
    (record,) = records(found, "update")
    assert (record["updates"], record["stagnant"]) == (128, 112)
    assert record["format"] == "bfloat16"


# ---- Control flow.


@jax.jit
def product(x: jax.Array) -> jax.Array:
    return x @ W


def controlled(x: jax.Array, n: jax.Array) -> jax.Array:
    def body(i: jax.Array, x: jax.Array) -> jax.Array:
        x = lax.cond(i % 2 == 0, product, lambda x: x * 1.5, x)
        return x / (1 + jnp.max(jnp.abs(x)))

    return product(lax.fori_loop(0, n, body, x))


@pytest.mark.slow
def test_loops_branches_and_calls():
    """Seven iterations, in four of them the branch with the callee."""
    outputs, found = emulated(controlled, "cast")(X, 7)
    assert_same(outputs, nj.jit(controlled, policy=UNSCALED)(X, 7))
    of_x = [r for r in records(found) if r["shape"] == X.shape]
    assert sum(r["elements"] for r in of_x) == 5 * X.size


@pytest.mark.slow
def test_loops_branches_and_calls_op_by_op():
    step = emulated(controlled, "cast")
    outputs, found = step(X, 7)
    eager, again = op_by_op(step, X, 7)
    assert_same((outputs, dict(found.arrays)), (eager, dict(again.arrays)))


@pytest.mark.slow
def test_a_site_that_is_not_run_counts_nothing():
    def function(x: jax.Array, n: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, x: x @ W, x)

    _, found = emulated(function, Collect(histogram=True))(X, 0)
    assert summed(found, "elements") == 0
    assert found.records[0]["exponents"] == {}


def spmd_step(x: jax.Array) -> jax.Array:
    mesh = nj.make_mesh((4,), ("dp",))

    def local(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return lax.pmean(carry @ W, "dp") * 0.1 + carry, None

        return lax.scan(body, x, None, length=3)[0]

    spec = PartitionSpec("dp")
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec)(x)


@pytest.mark.slow
def test_devices_count_together():
    outputs, found = emulated(spmd_step, "cast")(X)
    assert_same(outputs, nj.jit(spmd_step, policy=UNSCALED)(X))
    of_x = [r for r in records(found) if r["shape"] == (4, 32)]
    assert sum(r["elements"] for r in of_x) == 3 * X.size


@pytest.mark.slow
def test_devices_count_the_same_op_by_op():
    outputs, found = emulated(spmd_step, "cast")(X)
    eager, again = op_by_op(emulated(spmd_step, "cast"), X)
    assert_same((outputs, dict(found.arrays)), (eager, dict(again.arrays)))


# ---- Training loops.


@pytest.mark.slow
def test_a_scan_of_the_user_carries_statistics():
    step = emulated(train_step, "cast")

    @jax.jit
    def train(w: jax.Array, start: Statistics) -> tuple:
        def body(carry: tuple, _: Any) -> tuple:
            (w, loss), found = step(carry[0], X)
            return (w, carry[1].merge(found)), loss

        return lax.scan(body, (w, start), None, length=3)

    start = step.init_statistics(W, X)
    assert summed(start, "elements") == 0
    (_, merged), _ = train(W, start)
    _, once = step(W, X)
    assert summed(merged, "elements") == 3 * summed(once, "elements")
    assert merged.records[0]["amax"] == once.records[0]["amax"]


@pytest.mark.slow
def test_delayed_scaling_keeps_its_place():
    policy = nj.Policy(
        auto_cast="matmult",
        auto_cast_type="fp8",
        scaling="delayed",
        amax_history_length=2,
    )
    step = emulated(lambda x: x @ W, "cast", policy=policy)
    history = step.init_amax_history(X)
    (_, found), history = step.with_amax_history(history)(X)
    assert float(history[0].max()) > 0
    assert summed(found, "elements") > 0


@pytest.mark.slow
def test_the_compiled_program_returns_them_too():
    step = emulated(lambda x: x @ W, "cast")
    _, found = step.lower(X).compile()(X)
    assert summed(found, "elements") == X.size + W.size


# ---- Selection.


@pytest.mark.slow
def test_patterns_select():
    collect = Collect(kinds=("cast",), param=r"^x$", scope=r"/jvp", source="test_coll")
    _, found = emulated(train_step, collect)(W, X)
    assert [r["params"] for r in found.records] == [("x",)]
    with pytest.raises(InvalidProgramError, match="selects no result"):
        emulated(train_step, Collect(op="quantize_mx"))(W, X)
    with pytest.raises(InvalidProgramError, match="collect="):
        emulated(train_step, 3)


# ---- What is refused.


def test_transformations_from_outside_are_refused():
    step = emulated(lambda x: jnp.sum(x @ W))
    with pytest.raises(UnsupportedError, match=r"grad cannot transform .* collects"):
        jax.grad(lambda x: step(x)[0])(X)
    with pytest.raises(UnsupportedError, match=r"vmap cannot transform .* collects"):
        jax.vmap(step)(X)
    with pytest.raises(UnsupportedError, match="inside another emulated"):
        nj.jit(lambda x: step(x)[0])(X)
    with pytest.raises(InvalidProgramError, match="collects no statistics"):
        nj.jit(train_step).init_statistics(W, X)


# ---- Off, it costs nothing.


def test_off_nothing_is_traced(monkeypatch):
    def refuse(*args: Any) -> Any:
        raise AssertionError("measured")

    for name in ("count_rounding", "merged", "as_arrays"):
        monkeypatch.setattr(accumulator, name, refuse)
    off, false = (
        str(jax.make_jaxpr(nj.jit(train_step, policy=UNSCALED, collect=c))(W, X))
        for c in (None, False)
    )
    assert off == false


@pytest.mark.slow
def test_off_loops_carry_nothing_more():
    def function(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, x: x @ W, x)

    def carried(collect: Any) -> int:
        jaxpr = jax.make_jaxpr(emulated(function, collect))(X)
        return max(len(e.outvars) for e in _equations(jaxpr.jaxpr) if _is_loop(e))

    # With statistics two arrays more for each of three sites: two casts and a matmul.
    # Without, what the program carries and the interpreter's counter.
    assert (carried(None), carried(True)) == (4, 4 + 2 * 3)


def _is_loop(equation: Any) -> bool:
    return equation.primitive.name == "while"


def _equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)
