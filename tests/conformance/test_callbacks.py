"""Callbacks: `jax.debug` looks at emulated values, in order; others by the policy."""

from __future__ import annotations

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import neuronjax as nj

X = jnp.full((2, 2), 1.01)
# 1.01 is 1.0078125 in bf16, where the sum of two squares is exact in FP32.
BF16 = 2 * 1.0078125**2
DROP, HOST = nj.Policy(callbacks="drop"), nj.Policy(callbacks="host")


def printed(x):
    y = x @ x
    jax.debug.print("y {}", y[0, 0])
    return y


def lines(capfd) -> list[str]:
    jax.effects_barrier()
    return capfd.readouterr().out.splitlines()


def test_print_shows_emulated_values(capfd):
    assert nj.jit(printed, policy="bf16")(X)[0, 0] == BF16
    assert lines(capfd) == [f"y {BF16}"]


@pytest.mark.slow_cases("grad", "scan")
@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda f: jax.jit(f)(X), 1),
        (lambda f: jax.grad(lambda x: f(x).sum())(X), 1),
        (lambda f: jax.vmap(f)(jnp.stack([X, X, X])), 3),
        (lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0, jnp.stack([X, X])), 2),
        (lambda f: f.lower(X).compile()(X), 1),
    ],
    ids=["jit", "grad", "vmap", "scan", "compile"],
)
def test_print_in_transformations(capfd, call, count):
    call(nj.jit(printed, policy="bf16"))
    assert lines(capfd) == [f"y {BF16}"] * count


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_prints_are_in_the_order_of_the_program(capfd, ordered, eager):
    """Also in loops, branches and callees, and twice the same are two."""

    @jax.jit
    def inner(x):
        jax.debug.print("in", ordered=ordered)
        return x + 1

    def body(i, x):
        jax.debug.print("turn {}", i, ordered=ordered)
        even = lambda x: (jax.debug.print("even", ordered=ordered), x)[1]  # noqa: E731
        return inner(jax.lax.cond(i % 2 == 0, even, lambda x: x, x))

    def program(x):
        jax.debug.print("start", ordered=ordered)
        jax.debug.print("start", ordered=ordered)
        x = jax.lax.fori_loop(0, 3, body, x)
        jax.debug.callback(lambda x: print("end", x), x, ordered=ordered)
        return x

    with jax.disable_jit(eager):
        nj.jit(program)(jnp.float32(0))
    turns = ["turn 0", "even", "in", "turn 1", "in", "turn 2", "even", "in"]
    assert lines(capfd) == ["start", "start", *turns, "end 3.0"]


@pytest.mark.slow
def test_every_emulated_device_prints(capfd):
    def program(x):
        jax.debug.print("device {}", x)
        return jax.lax.psum(x, "i")

    nj.pmap(program, "i", devices=3)(jnp.arange(3.0))
    assert lines(capfd) == ["device 0.0", "device 1.0", "device 2.0"]


# -- callbacks that return -------------------------------------------------------------


def sine(x):
    return np.sin(x)


def pure(x):
    return jax.pure_callback(sine, x, x) + 1


def effectful(x):
    return io_callback(sine, x, x) + 1


def ordered(x):
    return io_callback(sine, x, x, ordered=True) + 1


RETURNING = pytest.mark.parametrize("function", [pure, effectful, ordered])


@RETURNING
def test_on_the_host(function):
    for call in (nj.jit(function, policy=HOST), jax.jit(nj.jit(function, policy=HOST))):
        np.testing.assert_array_equal(call(X), np.sin(X) + np.float32(1))


@RETURNING
def test_left_out_nobody_mistakes_the_result(function):
    assert np.isnan(nj.jit(function, policy=DROP)(X)).all()


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.int32, 2**31 - 1), (np.uint8, 255), (np.bool_, True)]
)
def test_left_out_of_other_types(dtype, value):
    x = jnp.zeros(3, dtype)
    found = nj.jit(lambda x: jax.pure_callback(sine, x, x), policy=DROP)(x)
    assert found.tolist() == [value] * 3


@pytest.mark.slow
def test_effects_are_in_order_and_left_out():
    seen = []

    def program(x):
        for n in range(4):
            io_callback(lambda x, n=n: seen.append((n, float(x))), None, x + n)
        return x

    nj.jit(program, policy=DROP)(jnp.float32(1))
    jax.effects_barrier()
    assert seen == []
    nj.jit(program, policy=HOST)(jnp.float32(1))
    jax.effects_barrier()
    assert seen == [(n, n + 1.0) for n in range(4)]


@RETURNING
def test_the_error_names_both_lines_and_the_ways_out(function):
    with pytest.raises(nj.UnsupportedError) as raised:
        nj.jit(function, policy="bf16")(X)
    defined, used = (f.__code__.co_firstlineno for f in (sine, function))
    assert f"sine ({__file__}:{defined})" in raised.value.what
    assert raised.value.location == f"{__file__}:{used + 1}"
    assert "EQX_ON_ERROR" not in str(raised.value)
    assert is_as_printed(raised.value, "bf16", "callbacks", "host")


@pytest.mark.slow_cases("None", "policy3")
@pytest.mark.parametrize(
    "policy",
    [None, "bf16", "bf16,seed=3", nj.Policy(seed=3), nj.Policy(seed=3, name="mine")],
)
def test_remedies_work_as_printed(policy):
    """Of linear algebra too: `jax.random.orthogonal` needs a QR."""

    def orthogonal(key):
        return jax.random.orthogonal(key, 2)

    key = jax.random.key(0)
    with pytest.raises(nj.UnsupportedError, match="qr") as raised:
        nj.jit(orthogonal, policy=policy)(key)
    changed = is_as_printed(raised.value, policy, "host_custom_calls", True)
    q = nj.jit(orthogonal, policy=changed)(key)
    np.testing.assert_allclose(q @ q.T, np.eye(2), atol=1e-5)


def is_as_printed(error, policy, field, value) -> nj.Policy:
    """The policy that the remedy is, evaluated."""
    text = error.remedy.partition("policy=")[2].partition("; or")[0]
    python, _, option = text.partition(" (--policy ")
    names = {"nj": nj, "dataclasses": dataclasses, "policy": policy}
    found = nj.Policy.resolve(eval(python, names))
    expected = dataclasses.replace(nj.Policy.resolve(policy), **{field: value})
    assert found == expected
    if option:
        assert nj.Policy.resolve(option.rstrip(")")) == expected
    else:
        assert isinstance(policy, nj.Policy)
    return found


def test_a_rule_allows_one():
    rule = nj.Rule(source="test_callbacks", callbacks="host")
    nj.jit(pure, policy=nj.Policy(rules=(rule,)))(X)


def test_check_says_that_the_compiler_would_refuse():
    for function in (printed, pure, ordered):
        [finding] = nj.check(function)(X).findings[:1]
        assert finding.rule == "host-callback"
        assert finding.severity == "error"
        assert "test_callbacks.py" in finding.location


def test_prints_change_neither_time_nor_bounds():
    silent = lambda x: x @ x  # noqa: E731
    seconds = [nj.profile(f)(X).timeline.total_seconds for f in (printed, silent)]
    assert seconds[0] == seconds[1]
    bounds = [nj.tolerance(f)(X).to_json_dict()["outputs"] for f in (printed, silent)]
    assert bounds[0] == bounds[1]
    assert not nj.compare(printed)(X).faults


@pytest.mark.slow
def test_equinox():
    eqx = pytest.importorskip("equinox")
    if os.environ.get("EQX_ON_ERROR", "raise") != "raise":
        pytest.skip("errors are turned off in this environment")

    def positive(x):
        return eqx.error_if(x, x < 0, "negative") * 2

    with pytest.raises(nj.UnsupportedError, match="EQX_ON_ERROR=nan") as raised:
        nj.jit(positive)(X)
    assert "equinox" in raised.value.what
    first = positive.__code__.co_firstlineno
    assert raised.value.location == f"{__file__}:{first + 1}"
    with nj.emulated(policy=HOST):
        doubled = eqx.filter_jit(positive)
        np.testing.assert_array_equal(doubled(X), 2 * X)
        with pytest.raises(RuntimeError, match="negative"):
            doubled(-X)
    dropped = nj.jit(positive, policy=DROP)
    np.testing.assert_array_equal(dropped(X), 2 * X)
    assert np.isnan(dropped(-X)).all()
