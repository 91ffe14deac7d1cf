"""Custom calls of the vendor's compiler: `QuantizeMX` and `__op$block_scaled_dot`."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
from tests.conformance import bits
from tests.oracles import floats, microscaling, tensor_engine as oracle

M, N, K = 5, 7, 96
X, W = (
    a.astype(ml_dtypes.bfloat16) for a in oracle.adversarial("normal", (M, N, K), 1)
)
ELEMENT = "float8_e4m3fn"


def call(name: str, results, config, *operands):
    function = jax.ffi.ffi_call(
        name, results, custom_call_api_version=2, legacy_backend_config=config
    )
    return function(*operands)


def quantize(x, **config):
    """Four elements to a word along the last axis; scales as bytes."""
    *rest, k = x.shape
    results = [
        jax.ShapeDtypeStruct((*rest, k // 4), jnp.uint32),
        jax.ShapeDtypeStruct((*rest, k // 32), jnp.uint8),
    ]
    config = {"dtype": ELEMENT, "dim": -1, **config}
    return call("QuantizeMX", results, json.dumps(config), x)


def scaled_dot(lhs, rhs, lhs_scales, rhs_scales, dtype=jnp.float32, config=None):
    shape = (lhs.shape[0], rhs.shape[0])
    config = {"element_dtype": ELEMENT} if config is None else config
    config = json.dumps({"scaled_dot_backend_config": config})
    result = jax.ShapeDtypeStruct(shape, dtype)
    operands = (lhs, rhs, lhs_scales, rhs_scales)
    return call("__op$block_scaled_dot", result, config, *operands)


def emulated(function, target="trn3"):
    return nj.jit(function, target=target, policy="fp32")


@pytest.mark.slow
def test_quantize_mx_packs_four_elements_to_a_word():
    words, scales = bits.same_both_ways(emulated(quantize), jnp.asarray(X))
    codes, wanted = microscaling.quantize(X, "mxfp8_e4m3", rule="neuron")
    np.testing.assert_array_equal(np.asarray(words).view(np.uint8), codes)
    np.testing.assert_array_equal(scales, wanted)


@pytest.mark.slow
def test_a_product_of_packed_operands():
    def program(x, w):
        (a, sa), (b, sb) = quantize(x), quantize(w)
        return scaled_dot(a, b, sa, sb), scaled_dot(a, b, sa, sb, jnp.bfloat16)

    wide, narrow = bits.same_both_ways(emulated(program), *map(jnp.asarray, (X, W)))
    sides = (oracle.quantize(a, "mxfp8_e4m3", rule="neuron") for a in (X, W))
    wanted = oracle.matmul_mx(*sides)
    floats.same_bits(np.asarray(wide), wanted)
    floats.same_bits(np.asarray(narrow, np.float32), floats.round_to(wanted, "bf16"))


@pytest.mark.slow
def test_dimension_numbers_of_the_call():
    """Contracting the first axis of both sides is the same product."""
    lhs, rhs = (oracle.quantize(a, "mxfp8_e4m3") for a in (X, W))
    element = np.dtype(ml_dtypes.float8_e4m3fn)
    arrays = [
        *(jnp.asarray(s.codes.view(element)).T for s in (lhs, rhs)),
        *(jnp.asarray(s.scales).T for s in (lhs, rhs)),
    ]
    config = {"lhs_contracting_dimensions": [0], "rhs_contracting_dimensions": [0]}

    def program(a, b, sa, sb):
        result = jax.ShapeDtypeStruct((M, N), jnp.float32)
        text = json.dumps(config)
        return call("__op$block_scaled_dot", result, text, a, b, sa, sb)

    out = bits.same_both_ways(emulated(program), *arrays)
    floats.same_bits(np.asarray(out), oracle.matmul_mx(lhs, rhs))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "float8_e4m3"}, "float8_e4m3fn or float8_e5m2"),
        ({"block_size": 16}, "block_size=16"),
        ({"scale_method": "MEAN"}, "scale_method='MEAN'"),
    ],
)
def test_quantizations_that_the_compiler_refuses(config, message):
    step = emulated(lambda x: quantize(x, **config))
    with pytest.raises(nj.InvalidProgramError, match=message):
        step(jnp.asarray(X))


def test_products_that_the_compiler_refuses():
    a, s = jnp.zeros((4, 8), jnp.uint32), jnp.zeros((4, 1), jnp.uint8)
    cases = [
        (dict(config={}), "packed elements of ''"),
        (
            dict(config={"element_dtype": ELEMENT, "lhs_contracting_dimensions": [3]}),
            "3",
        ),
    ]
    for options, message in cases:
        step = emulated(lambda a, s, o=options: scaled_dot(a, a, s, s, **o))
        with pytest.raises(nj.InvalidProgramError, match=message):
            step(a, s)
    with pytest.raises(nj.UnsupportedError, match="trn2 has no microscaling"):
        emulated(lambda a, s: scaled_dot(a, a, s, s), "trn2")(a, s)
    with pytest.raises(nj.UnsupportedError, match="calls 'Other', which no NeuronCore"):
        emulated(lambda a: call("Other", jax.ShapeDtypeStruct((4,), a.dtype), "", a))(a)
