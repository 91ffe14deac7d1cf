"""What is known of integers before a run, against what the program computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.capture.trace import capture
from neuronjax.diagnostics.facts import Fact, unknown
from neuronjax.diagnostics.loops import trip_count
from neuronjax.diagnostics.op_contexts import Settings, _Walker
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy

I8, I32 = np.int8, np.int32


def walked(function, *args, look=lambda site: iter(())) -> tuple[Fact, ...]:
    """What is known of the flat results of a function of unknown arguments."""
    program = capture(function, args, tuple(f"x{i}" for i in range(len(args)))).program
    settings = Settings(
        program=program,
        target=resolve_target("trn2"),
        policy=Policy(),
        sdk=(2, 32),
    )
    given = [unknown(value.type) for value in program.entry.body.arguments]
    results = _Walker(settings, look).function("main", given, "", 1, False).results
    return tuple(results)


# -- constants -------------------------------------------------------------------------

CONSTANTS = {
    "iota": lambda: lax.broadcasted_iota(I32, (3, 4), 1),
    "add": lambda: jnp.arange(5) + 7,
    "wraps": lambda: jnp.arange(5, dtype=I8) * I8(50),
    "subtract": lambda: 3 - jnp.arange(5),
    "negate": lambda: -jnp.arange(5),
    "remainder": lambda: lax.rem(jnp.arange(-5, 5), I32(3)),
    "modulo": lambda: jnp.arange(-5, 5) % 3,
    "divide": lambda: lax.div(jnp.arange(-5, 5), I32(3)),
    "floor_divide": lambda: jnp.arange(-5, 5) // 3,
    "minimum": lambda: jnp.minimum(jnp.arange(5), 2),
    "maximum": lambda: jnp.maximum(jnp.arange(5), 2),
    "clamp": lambda: lax.clamp(I32(1), jnp.arange(-5, 5), I32(3)),
    "compare": lambda: jnp.arange(5) >= 3,
    "where": lambda: jnp.where(jnp.arange(5) < 2, -1, jnp.arange(5)),
    "not": lambda: ~(jnp.arange(5) > 2),
    "and": lambda: jnp.arange(9) & 6,
    "or": lambda: jnp.arange(9) | 6,
    "convert": lambda: (jnp.arange(5) * 100).astype(I8),
    "bool": lambda: jnp.arange(3).astype(bool),
    "slice": lambda: jnp.arange(10)[1:9:3],
    "reverse": lambda: lax.rev(jnp.arange(6).reshape(2, 3), (1,)),
    "transpose": lambda: jnp.arange(6).reshape(2, 3).T,
    "concatenate": lambda: jnp.concatenate([jnp.arange(3), jnp.arange(2)]),
    "broadcast": lambda: jnp.broadcast_to(jnp.arange(3)[:, None], (3, 2)),
    "call": lambda: jax.jit(lambda x: x * 2)(jnp.arange(3)),
    "cond": lambda: lax.cond(
        jnp.int32(2) > 1, lambda: jnp.int32(1), lambda: jnp.int32(0)
    ),
}


@pytest.mark.slow_except("iota", "floor_divide", "or", "cond")
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_evaluated(name):
    (fact,) = walked(CONSTANTS[name])
    expected = np.asarray(CONSTANTS[name]())
    assert fact.value is not None
    assert fact.value.dtype == expected.dtype
    np.testing.assert_array_equal(fact.value, expected)
    assert (fact.low, fact.high) == (expected.min(), expected.max())


# -- bounds ----------------------------------------------------------------------------

BOUNDS = {
    "clip": (lambda x: jnp.clip(x, -3, 9), -3, 9),
    "clip_sum": (lambda x: jnp.clip(x, -3, 9) + jnp.clip(x, 0, 1), -3, 10),
    "product": (lambda x: jnp.clip(x, -3, 9) * 2 - 1, -7, 17),
    "remainder": (lambda x: lax.rem(x, I32(8)), -7, 7),
    "positive_remainder": (lambda x: lax.rem(jnp.maximum(x, 0), I32(8)), 0, 7),
    "mask": (lambda x: x & 15, 0, 15),
    "negated": (lambda x: -jnp.clip(x, -3, 9), -9, 3),
    "chosen": (lambda x: jnp.where(x > 5, jnp.clip(x, 1, 2), 7), 1, 7),
    "gathered": (lambda x: jnp.arange(3, 9)[jnp.clip(x, 0, 5)], 3, 8),
    "wraps": (lambda x: jnp.clip(x, 0, 100).astype(I8) * I8(2), -128, 127),
    "bool": (lambda x: x > 5, 0, 1),
    "decided": (lambda x: jnp.clip(x, 0, 5) < 6, 1, 1),
}


@pytest.mark.slow_cases("gathered")
@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold(name):
    function, low, high = BOUNDS[name]
    (fact,) = walked(function, jax.ShapeDtypeStruct((64,), I32))
    assert (fact.low, fact.high) == (low, high)
    generator = np.random.default_rng(0)
    for scale in (3, 20, 2**31 - 1):
        x = generator.integers(-scale, scale, 64, dtype=I32)
        assert fact.within(low, high)
        values = np.asarray(function(x))
        assert low <= values.min()
        assert values.max() <= high


def test_unknown_integers_have_the_bounds_of_their_dtype():
    for dtype, low, high in (("int8", -128, 127), ("uint16", 0, 65535), ("bool", 0, 1)):
        (fact,) = walked(lambda x: x, jax.ShapeDtypeStruct((3,), dtype))
        assert (fact.low, fact.high, fact.value) == (low, high, None)


def test_floats_are_known_or_not():
    known, given = walked(
        lambda x: (jnp.full(3, 2.5), x), jax.ShapeDtypeStruct((), "f4")
    )
    assert known.scalar == 2.5
    assert given.scalar is None


# -- loops -----------------------------------------------------------------------------

LOOPS = {
    "up": (lambda x: lax.fori_loop(2, 9, lambda i, c: c + i, x), 7),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, None), x, jnp.arange(6))[0], 6),
    "reverse": (
        lambda x: lax.scan(lambda c, y: (c + y, None), x, jnp.arange(6), reverse=True)[
            0
        ],
        6,
    ),
    "none": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1]), (9, x)
        ),
        0,
    ),
    "down": (
        lambda x: lax.while_loop(
            lambda c: c[0] >= 1, lambda c: (c[0] - 2, c[1]), (9, x)
        ),
        5,
    ),
    "not_equal": (
        lambda x: lax.while_loop(
            lambda c: c[0] != 8, lambda c: (c[0] + 2, c[1]), (0, x)
        ),
        4,
    ),
    "flipped": (
        lambda x: lax.while_loop(
            lambda c: 5 > c[0], lambda c: (c[0] + 1, c[1]), (0, x)
        ),
        5,
    ),
    "endless": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 5, lambda c: (c[0] - 1, c[1]), (0, x)
        ),
        None,
    ),
    "odd": (
        lambda x: lax.while_loop(
            lambda c: c[0] != 5, lambda c: (c[0] + 2, c[1]), (0, x)
        ),
        None,
    ),
    "dynamic": (lambda x: lax.fori_loop(0, x, lambda i, c: c + i, x), None),
    "doubling": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 9, lambda c: (c[0] * 2, c[1]), (1, x)
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_trip_counts(name):
    function, expected = LOOPS[name]
    found = []

    def look(site):
        if site.op.name == "stablehlo.while":
            operands = [site.fact(v) for v in site.op.operands]
            functions = site.settings.program.functions
            found.append(trip_count(site.op, operands, functions))
            assert site.loop == found[-1]
        return iter(())

    walked(function, jax.ShapeDtypeStruct((), I32), look=look)
    assert found == [expected]


def test_counters_have_bounds_in_the_body():
    seen = {}

    def look(site):
        if site.op.name == "stablehlo.multiply":
            seen["counter"] = site.fact(site.op.operands[0])
        return iter(())

    walked(
        lambda x: lax.fori_loop(3, 9, lambda i, c: c.at[i - 3].set(i * 2), x),
        jax.ShapeDtypeStruct((6,), I32),
        look=look,
    )
    assert (seen["counter"].low, seen["counter"].high) == (3, 8)
