"""Trip counts that a loop's condition says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.ir.instruction_set import Loop
from neuronjax.timing.trips import _count, static_trips, writers


def trips_of(function, *arguments):
    program = nj.jit(function, target="trn2").lower(*arguments).captured.instructions
    written = {}
    for block in (program.main, *program.functions.values()):
        written |= writers(block)
    return [
        static_trips(i, written, program.functions)
        for i in program.walk()
        if isinstance(i, Loop)
    ]


X = jax.ShapeDtypeStruct((12, 4), jnp.float32)


def test_a_scan_turns_as_often_as_its_input_is_long():
    assert trips_of(lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x), X) == [12]


def test_a_scan_backwards_too():
    scan = lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x, reverse=True)  # noqa: E731
    assert trips_of(scan, X) == [12]


def test_the_gradient_of_a_scan_has_two_loops():
    def f(x):
        return jnp.sum(lax.scan(lambda c, y: (jnp.tanh(c * y), c), x[0], x)[0])

    assert trips_of(jax.grad(f), X) == [12, 12]


@pytest.mark.parametrize(("low", "high"), [(0, 5), (3, 10), (7, 7), (9, 2)])
def test_a_fori_loop_turns_from_low_to_high(low, high):
    def f(x):
        return lax.fori_loop(low, high, lambda i, c: c + i, x)

    found = trips_of(f, X)
    assert found in ([max(0, high - low)], [])  # JAX may drop what never turns


def test_a_loop_on_values_has_no_count():
    def f(x):
        return lax.while_loop(lambda c: jnp.sum(c) < 10, lambda c: c * 2, x)

    assert trips_of(f, X) == [None]


def test_a_counter_with_a_step():
    def f(x):
        body = lambda c: (c[0] + 3, c[1] * 2)  # noqa: E731
        return lax.while_loop(lambda c: c[0] < 10, body, (1, x))

    assert trips_of(f, X) == [3]  # 1, 4, 7


def test_counting_down():
    def f(x):
        body = lambda c: (c[0] - 2, c[1] * 2)  # noqa: E731
        return lax.while_loop(lambda c: c[0] >= 0, body, (6, x))

    assert trips_of(f, X) == [4]  # 6, 4, 2, 0


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE"])
@pytest.mark.parametrize("start", [-3, 0, 4])
@pytest.mark.parametrize("limit", [-2, 0, 5])
@pytest.mark.parametrize("step", [-2, -1, 1, 3])
def test_counts_are_those_of_python(direction, start, limit, step):
    holds = {
        "LT": int.__lt__,
        "LE": int.__le__,
        "GT": int.__gt__,
        "GE": int.__ge__,
        "NE": int.__ne__,
    }[direction]
    value, turns = start, 0
    while holds(value, limit) and turns < 100:
        value, turns = value + step, turns + 1
    assert _count(start, limit, step, direction) == (turns if turns < 100 else None)
