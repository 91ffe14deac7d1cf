"""What is read off the program and its lines: numbers as they are written, constants,
values that masks are in, and elements that are masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.capture.trace import capture
from neuronjax.diagnostics.faults.masks import masked_values, unmasked
from neuronjax.diagnostics.faults.shares import Seen, share_of
from neuronjax.diagnostics.faults.units import path_units
from neuronjax.diagnostics.faults.written import numbers_of
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.ir.value_sources import ValueSources


def program_of(function, *shapes):
    types = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    names = tuple(f"x{n}" for n in range(len(shapes)))
    return capture(lambda *x: jax.tree.leaves(function(*x)), types, names).program


def find(program, name):
    return [op for op in program.walk() if op.name == f"stablehlo.{name}"]


def squared(x):
    return jnp.exp(x * (1 - 1e-5) + 2**4)


def scaled(x):
    return [
        jnp.exp(x) * 0.5 for _ in range(1)]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "factors", "others"),
    [(squared, {2, 4, 1 - 1e-5}, {1, 1e-5, 16}), (scaled, {0.5, 1}, set())],
)
def test_numbers_on_a_line(function, factors, others):
    [op] = find(program_of(function, (4,)), "exponential")
    found = [*numbers_of(op.location.source)]
    assert {x.value for x in found if x.is_factor} == factors
    assert {x.value for x in found if not x.is_factor} == others


def test_constants_are_known_in_calls_and_what_arguments_make_is_none():
    def function(x):
        return jnp.where(x > 0, x, -1e9), x + jnp.arange(4.0)

    program = program_of(function, (4,))
    graph = ValueSources(program)
    [choice] = find(program, "select")
    [total] = find(program, "add")
    ask = [graph.is_constant(v, CONSTANT) for v in choice.operands[1:]]
    assert ask == [False, True]
    assert [graph.is_constant(v, CONSTANT) for v in total.operands] == [False, True]


def test_a_mask_is_in_what_sums_make_of_a_choice():
    def function(x):
        scores = jnp.where(x > 0, x, -1e9)
        return jnp.exp(scores - x), jnp.sin(x)

    program = program_of(function, (4,))
    found = masked_values(ValueSources(program))
    names = {name: find(program, name)[0] for name in ("subtract", "sine")}
    assert names["subtract"].results[0] in found
    assert names["sine"].results[0] not in found


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ([1, -1e9, 2], 2),
        ([1, 1e9, 2], 3),  # a bonus is added to what is chosen
        ([1e7, -1e9, 2], 3),  # numbers of one array
        ([-1e9, -1e9], 2),
        ([1, -100, 2], 3),
    ],
)
def test_elements_that_stand_for_minus_infinity(numbers, kept):
    x = np.array(numbers, np.float32)
    seen = Seen(np.dtype("float32"), x.astype(np.float64), x)
    assert unmasked(seen, share_of(seen, 2**-24)).actual.size == kept


def test_a_mask_that_overflows_is_left_in():
    reference = np.array([1, -1e9])
    actual = np.array([1, -np.inf], np.float16)
    seen = Seen(np.dtype("float16"), reference, actual)
    assert unmasked(seen, share_of(seen, 2**-11)) is seen


def test_a_value_that_many_ops_rounded_has_all_roundoffs():
    def layers(x, w):
        for _ in range(6):
            x = jnp.tanh(x @ w).astype(jnp.bfloat16).astype(jnp.float32)
        return x

    program = program_of(layers, (2, 2), (2, 2))
    graph = ValueSources(program)
    units = path_units(graph, {})
    rounded = [v for v, op in graph.makers.items() if v.type.dtype == jnp.bfloat16]
    found = [6 * units[v] / 2.0**-8 for v in rounded]
    assert found == pytest.approx([2.5, 4.0, 5.5, 6.0, 6.0, 6.0])
