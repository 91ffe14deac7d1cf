"""Reductions and maps by any computation.

Against the StableHLO reference interpreter, which folds from the left as we do.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.conformance import bits, modules
from tests.conformance.modules import LEAST, LONG, PAIR, ZERO, block, constant, ints, op
from tests.oracles import data, floats

I32 = np.int32


def reductions() -> list[modules.Form]:
    rng = np.random.default_rng(7)
    x, y = ints(rng, 3, 4, 5), ints(rng, 3, 4, 5)
    text = lambda axes, region, inits, results: (  # noqa: E731
        f'"stablehlo.reduce"({inits}) <{{dimensions = array<i64{axes}>}}> {region} : '
        f"{results}"
    )
    pair = "(tensor<3x4x5xi32>, tensor<3x4x5xi32>, tensor<i32>, tensor<i32>) -> "
    one = "(tensor<3x4x5xi32>, tensor<i32>) -> "
    captured = block(
        "%x %y", op("%p", "multiply", "%x", "%q") + op("%s", "add", "%p", "%y"), "%s"
    )
    exchanged = block(
        "%a %b %x %y",
        op("%s", "add", "%a", "%y") + op("%t", "xor", "%b", "%x"),
        "%t %s",
    )
    types = "tensor<4xi32>, tensor<4xi32>"
    return [
        modules.form(
            "two",
            (x, y),
            ("tensor<4xi32>",) * 2,
            ZERO
            + LEAST
            + "%r:2 = "
            + text(": 2, 0", PAIR, "%0, %1, %z, %least", f"{pair}({types})"),
        ),
        modules.form(
            "exchanged",
            (x, y),
            ("tensor<4xi32>",) * 2,
            ZERO
            + LEAST
            + "%r:2 = "
            + text(": 0, 2", exchanged, "%0, %1, %z, %least", f"{pair}({types})"),
        ),
        modules.form(
            "captured",
            (x, y[0, 0, 0]),
            ("tensor<3x5xi32>",),
            ZERO
            + op("%q", "negate", "%1")
            + "%r = "
            + text(": 1", captured, "%0, %z", f"{one}tensor<3x5xi32>"),
        ),
        modules.form(
            "no_axis",
            (x,),
            (x,),
            ZERO + "%r = " + text("", LONG, "%0, %z", f"{one}tensor<3x4x5xi32>"),
        ),
        modules.form(
            "empty",
            (x[:, :0],),
            ("tensor<3x5xi32>",),
            LEAST
            + "%r = "
            + text(
                ": 1",
                LONG,
                "%0, %least",
                "(tensor<3x0x5xi32>, tensor<i32>) -> tensor<3x5xi32>",
            ),
        ),
        modules.form(
            "nothing_left",
            (x[:0],),
            ("tensor<0x5xi32>",),
            ZERO
            + "%r = "
            + text(
                ": 1",
                LONG,
                "%0, %z",
                "(tensor<0x4x5xi32>, tensor<i32>) -> tensor<0x5xi32>",
            ),
        ),
    ]


@pytest.mark.slow
def test_reductions_are_those_of_the_reference():
    forms = reductions()
    text, arrays = modules.module(forms)
    outputs, expected = modules.run(text, *arrays), modules.reference(text, *arrays)
    for name, got, want in zip(modules.labels(forms), outputs, expected, strict=True):
        floats.same_bits(got, want, name)


@pytest.mark.slow
def test_a_body_may_accumulate_in_a_wider_dtype():
    x = data.normal(np.random.default_rng(8), (40, 3)).astype(ml_dtypes.bfloat16)
    region = block("%x %y", op("%s", "subtract", "%x", "%y", dtype="f32"), "%s", "f32")
    text = (
        constant("%z", 0.5, "bf16")
        + f'%r = "stablehlo.reduce"(%0, %z) <{{dimensions = array<i64: 0>}}> {region}'
        " : (tensor<40x3xbf16>, tensor<bf16>) -> tensor<3xf32>"
    )
    form = modules.form("wider", (x,), ("tensor<3xf32>",), text)
    text, arrays = modules.module([form])
    expected = np.full(3, 0.5, np.float32)
    for row in x.astype(np.float32):
        expected = floats.subtract(expected, row)
    floats.same_bits(modules.run_both_ways(text, *arrays)[0], expected, "wider")


@pytest.mark.slow
def test_reductions_of_jax():
    rng = np.random.default_rng(9)
    x = data.special(rng, (4, 33))
    n = ints(rng, 4, 33)
    small = n.astype(np.int8)

    def program(x, n, small):
        mask = n > 0
        return (
            *(
                f(v, axis=a)
                for f in (jnp.argmax, jnp.argmin)
                for v in (x, n)
                for a in (0, 1)
            ),
            *(f(mask, axis=1) for f in (jnp.all, jnp.any, jnp.argmax)),
            *(
                jnp.max(v)
                for v in (small, small.astype(jnp.uint8), n.astype(jnp.uint32))
            ),
            jnp.bitwise_xor.reduce(n, axis=0),
            lax.reduce((n, mask), (np.int32(0), True), both, (0,)),
            jnp.sum(n[:, :0], axis=1),
        )

    def both(a, b):
        return lax.cond(b[1], lambda: a[0] ^ b[0], lambda: a[0]), a[1] & b[1]

    arguments = (x, n, small)
    bits.assert_same(nj.jit(program)(*arguments), jax.jit(program)(*arguments))


def test_a_reduction_by_any_body_is_one_left_fold():
    n = ints(np.random.default_rng(12), 4, 33)
    program = nj.jit(lambda n: lax.reduce(n, I32(1), lambda a, b: a * 3 + b, (1,)))
    expected = np.ones(4, I32)
    for column in n.T:
        expected = expected * I32(3) + column
    floats.same_bits(program(n), expected, "fold")


@pytest.mark.slow
def test_stochastic_bodies_draw_for_every_step_and_element():
    x = np.full((64, 64), 2.0**-9, ml_dtypes.bfloat16)
    policy = nj.Policy(auto_cast="matmult", rounding="stochastic", seed=1)

    def program(x):
        return lax.reduce(x, np.ones((), x.dtype), lambda a, b: (a + b) * 1, (0,))

    step = nj.jit(program, policy=policy).with_rounding_seed(3)
    out = np.asarray(bits.same_both_ways(step, x)).astype(np.float32)
    assert len(set(out)) > 4
    assert abs(out.mean() - 1.125) < 0.02


def test_maps_run_any_body():
    rng = np.random.default_rng(11)
    x, y, scale = ints(rng, 3, 4), ints(rng, 3, 4), ints(rng)
    text = """
      func.func private @twice(%v: tensor<i32>) -> tensor<i32> {
        %t = stablehlo.add %v, %v : tensor<i32>
        func.return %t : tensor<i32>
      }
      func.func public @main(%0: tensor<3x4xi32>, %1: tensor<3x4xi32>, %2: tensor<i32>)
          -> tensor<3x4xi32> {
        %r = "stablehlo.map"(%0, %1) <{dimensions = array<i64: 0, 1>}> ({
        ^bb0(%x: tensor<i32>, %y: tensor<i32>):
          %a = func.call @twice(%x) : (tensor<i32>) -> tensor<i32>
          %b = func.call @twice(%y) : (tensor<i32>) -> tensor<i32>
          %c = stablehlo.multiply %a, %2 : tensor<i32>
          %p = stablehlo.compare LT, %b, %c, SIGNED :
              (tensor<i32>, tensor<i32>) -> tensor<i1>
          %d = stablehlo.select %p, %a, %b : tensor<i1>, tensor<i32>
          stablehlo.return %d : tensor<i32>
        }) : (tensor<3x4xi32>, tensor<3x4xi32>) -> tensor<3x4xi32>
        func.return %r : tensor<3x4xi32>
      }
    """
    with np.errstate(over="ignore"):
        a, b = x + x, y + y
        expected = np.where(b < a * scale, a, b)
    floats.same_bits(modules.run_both_ways(text, x, y, scale)[0], expected, "map")
