"""`neuronjax.cast` costs what the chip's own conversion costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj

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


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_blocks_are_quantized_where_the_chip_can(dtype):
    """The instruction does not take float32: that is many others."""
    x = jax.ShapeDtypeStruct((512, 512), dtype)

    def quantize(x):
        found = nj.quantize_mx(x, "mxfp8_e4m3")
        return found.elements, found.scales

    def copy(x):
        return x.astype(jnp.float8_e4m3fn)

    took = nj.profile(quantize, target="trn3")(x)
    copied = nj.profile(copy, target="trn3")(x)
    ratio = took.timeline.scheduled_seconds / copied.timeline.scheduled_seconds
    if dtype == jnp.bfloat16:
        assert set(took.by_op()) == {"quantize_mx"}
        assert ratio < 2
    else:
        assert "quantize_mx" not in took.by_op()
        assert ratio > 5


def test_scales_are_multiplied_in_one_pass():
    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)

    def back_and_forth(x):
        return nj.quantize_mx(x, "mxfp8_e4m3").dequantize()

    profile = nj.profile(back_and_forth, target="trn3")(x)
    assert set(profile.by_op()) == {"quantize_mx", "tensor_tensor.multiply"}


def neuronjax_other(x):
    return jnp.tanh(jnp.exp(x))


def cast(x):
    return jnp.exp(jnp.tanh(x))


@pytest.mark.parametrize("own", [neuronjax_other, cast])
def test_functions_of_other_names_are_priced_as_they_are(own):
    apart = nj.profile(jax.jit(own), target="trn2")(MATRIX)
    assert {"activation.tanh", "activation.exponential"} <= set(apart.by_op())


def test_what_a_library_function_takes_is_of_the_line_that_calls_it():
    def function(x):
        chosen = jnp.where(x > 0, x, 0.5)  # the first line
        return nj.cast(jax.nn.silu(chosen @ x), "float8_e4m3")  # and the second

    lines = nj.profile(function, target="trn2")(MATRIX).by_source()
    assert len(lines) == 2
    assert all(__file__ in line for line in lines)
