"""`neuronjax.cast` costs what the chip's own conversion costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.ir.instruction_set import Call
from neuronjax.timing.library_calls import chip_instruction

MATRIX = jax.ShapeDtypeStruct((512, 512), jnp.float32)


def seconds(function, *args):
    return nj.profile(function, target="trn2")(*(args or (MATRIX,))).total_seconds


def converted(x):
    return x.astype(jnp.float8_e5m2)


@pytest.mark.parametrize(
    "options",
    [{}, {"overflow": "saturate"}, {"rounding": "stochastic", "seed": 3}],
    ids=str,
)
def test_a_cast_costs_as_a_conversion(options):
    def cast(x):
        return nj.cast(x, "float8_e5m2", **options)

    assert seconds(cast) == seconds(converted)
    assert seconds(jax.vmap(cast)) == seconds(converted)


def test_a_cast_to_integers_costs_as_a_conversion():
    assert seconds(lambda x: nj.cast(x, "int8")) == seconds(
        lambda x: x.astype(jnp.int8)
    )


def test_in_a_loop_and_under_a_gradient():
    def turns(rounded):
        def body(x, _):
            return rounded(x @ x), None

        return lambda x: jax.lax.scan(body, x, length=3)[0].sum()

    cast = turns(lambda x: nj.cast(x, "bfloat16").astype(jnp.float32))
    plain = turns(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32))
    assert seconds(cast) == seconds(plain)
    assert seconds(jax.grad(cast)) == seconds(jax.grad(plain))


def test_several_casts_of_one_program():
    def casts(x):
        return [nj.cast(x, name) for name in ("float8_e5m2", "float8_e4m3")]

    def conversions(x):
        return [x.astype(name) for name in (jnp.float8_e5m2, jnp.float8_e4m3)]

    assert seconds(casts) == seconds(conversions)


@pytest.mark.parametrize("callee", ["neuronjax_other", "cast", "my_neuronjax_cast"])
def test_other_functions_are_priced_as_they_are(callee):
    call = Call(operands=(), results=(), engine="sync", callee=callee)
    assert chip_instruction(call) is None
