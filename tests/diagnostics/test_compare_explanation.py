"""Ancestors of an op, and the search for the smallest set."""

import jax
import jax.numpy as jnp
import pytest

from neuronjax.capture.trace import capture
from neuronjax.diagnostics.first_divergence import MOST_TRIALS, ancestors, smallest_set


@pytest.mark.parametrize(
    ("count", "needed"), [(1, {0}), (5, {0}), (5, {2}), (5, {1, 3}), (20, {0, 2})]
)
def test_the_smallest_set_is_found(count, needed):
    found = smallest_set(range(count), lambda chosen: needed <= set(chosen))
    assert set(found) == needed


def test_a_set_that_is_too_large_to_be_searched_is_found_whole():
    needed = set(range(40))
    found = smallest_set(range(50), lambda chosen: needed <= set(chosen))
    assert needed <= set(found)


def test_no_set_explains():
    trials = []

    def explains(chosen):
        trials.append(chosen)
        return False

    assert smallest_set(range(1000), explains) == ()
    assert len(trials) <= MOST_TRIALS


def program_of(function, *shapes):
    types = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    names = tuple(f"x{n}" for n in range(len(shapes)))
    return capture(lambda *x: jax.tree.leaves(function(*x)), types, names).program


def find(program, name):
    return [op for op in program.walk() if op.name == f"stablehlo.{name}"]


def names_behind(program, name):
    return {op.name for op in ancestors(program, find(program, name)[0])}


def test_ancestors_leave_out_what_is_not_read():
    program = program_of(lambda x: (jnp.sin(jnp.exp(x)), jnp.cos(x)), (4,))
    behind = names_behind(program, "sine")
    assert "stablehlo.exponential" in behind
    assert "stablehlo.cosine" not in behind


def test_ancestors_reach_into_loops_and_calls():
    def function(x):
        inner = jax.jit(jnp.exp)
        out, _ = jax.lax.scan(lambda c, _: (inner(c), None), x, length=3)
        return jnp.sin(out) + jnp.cos(x)

    program = program_of(function, (4,))
    assert "stablehlo.exponential" in names_behind(program, "sine")
    assert "stablehlo.exponential" not in names_behind(program, "cosine")


def test_a_loop_carries_from_the_last_iteration():
    """What a carry becomes is an ancestor of what reads it at the start of the body."""

    def function(x):
        def body(carry, _):
            return (jnp.exp(carry), jnp.sin(carry))

        return jax.lax.scan(body, x, length=3)

    program = program_of(function, (4,))
    assert "stablehlo.exponential" in names_behind(program, "sine")
