"""MX blocks by kernels of the host's processor: against the arithmetic on integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.execution.engines import tensor
from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.numerics.microscaling import MX_FORMATS, quantize_mx, to_codes
from neuronjax.numerics.mx_scales import BOUNDED
from tests.execution.host_kernels.test_fold import expected
from tests.oracles import data, floats

pytestmark = pytest.mark.skipif(
    not tensor.has_host_kernels(), reason="no kernels for this processor"
)


def any_bits(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of every exponent, Inf and NaN among them."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32)
    return bits.view(np.float32)


def near(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a few binades somewhere, zeros among them."""
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.integers(-126, 120) + rng.integers(-6, 7, shape))
    x = rng.standard_normal(shape) * size * rng.integers(0, 4, shape).clip(max=1)
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def assert_as_integers(x: np.ndarray, axis: int, name: str, rule: str) -> None:
    """Codes and scales are those of `quantize_mx`, which its own oracles prove."""
    from neuronjax.execution.host_kernels.quantize import quantize

    element = MX_FORMATS[name].element.name
    wanted = quantize_mx(x, name, axis=axis, scale_rule=rule)  # type: ignore[arg-type]
    codes, scales = jax.jit(lambda v: quantize(v, axis, element, rule))(x)
    for got, want in ((codes, wanted.elements), (scales, wanted.scales)):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(to_codes(want)))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.integers(0, 2),
    st.sampled_from(sorted(MX_FORMATS)),
    st.sampled_from(sorted(BOUNDED)),
    st.sampled_from([any_bits, near]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(0, 2**32 - 1),
)
def test_codes_and_scales(shape, axis, name, rule, draw, dtype, seed):
    x = jnp.asarray(draw(seed, tuple(shape))).astype(dtype)
    assert_as_integers(np.asarray(x), axis % len(shape), name, rule)


@pytest.mark.slow_except("ocp_floor-mxfp8_e4m3")
@pytest.mark.parametrize("name", sorted(MX_FORMATS))
@pytest.mark.parametrize("rule", BOUNDED)
def test_every_bfloat16_beside_a_largest(name, rule):
    """Every code up to 1, in blocks whose largest number is 1, 1.75 or 2^20."""
    every = np.arange(1 << 16, dtype=np.uint16).view(jnp.bfloat16).astype(np.float32)
    small = every[np.abs(every) <= 1]
    small = np.resize(small, (-(-small.size // 31), 31))
    for largest in (1.0, 1.75, 2.0**20):
        x = np.concatenate([small, np.full((len(small), 1), largest)], 1)
        x = x.astype(jnp.bfloat16)
        assert_as_integers(x, 1, name, rule)
        assert_as_integers(np.ascontiguousarray(x.T), 0, name, rule)


@pytest.mark.parametrize(("shape", "axis"), [((0, 40), 1), ((40, 0), 0), ((0, 3), 0)])
def test_nothing_is_quantized(shape, axis):
    x = np.zeros(shape, np.float32)
    assert_as_integers(x, axis, "mxfp8_e4m3", "ocp_floor")


@pytest.mark.slow
def test_a_batch_of_calls():
    from neuronjax.execution.host_kernels.quantize import quantize

    x = jnp.asarray(near(1, (3, 40, 50)))

    def call(v):
        return quantize(v, 0, "float8_e4m3fn", "ocp_floor")

    for got, want in zip(
        jax.vmap(call, 2)(x), zip(*(call(x[:, :, n]) for n in range(50)), strict=True)
    ):
        np.testing.assert_array_equal(np.asarray(got), np.stack(want))


@pytest.mark.slow_cases(
    "near-mxfp4_e2m1-orders0",
    "near-mxfp8_e4m3-orders0",
    "near-mxfp8_e5m2-orders0",
    "near-mxfp4_e2m1-orders1",
)
@pytest.mark.parametrize("orders", [(False, True), (True, False)])
@pytest.mark.parametrize("name", sorted(MX_FORMATS))
@pytest.mark.parametrize("draw", [near, data.cancelling, any_bits])
def test_a_contraction_of_blocks(name, draw, orders):
    """Elements times scales, in FP32's range and beyond, as cells take them."""
    rng = np.random.default_rng(3)
    if draw is data.cancelling:
        lhs, rhs = draw(rng, (2, 30, 96)), draw(rng, (2, 96, 40))
    else:
        lhs, rhs = draw(5, (2, 30, 96)), draw(6, (2, 96, 40))
    sides, wide = [], []
    for x, k_axis, first in ((lhs, 2, orders[0]), (rhs, 1, orders[1])):
        blocks = quantize_mx(x.astype(np.float32), name, axis=k_axis)
        wide.append(floats.flush(np.asarray(blocks.dequantize())))
        move = (k_axis == 1) != first
        turned = [
            jnp.swapaxes(v, 1, 2) if move else v
            for v in (blocks.elements, blocks.scales)
        ]
        sides.append((*turned, first))

    def call(a, a_scales, b, b_scales):
        return tensor.contract(
            Matrix(a, orders[0], a_scales),
            Matrix(b, orders[1], b_scales),
            FoldOrder(64, rows_per_cell=4),
            canonical=True,
        )

    got = np.asarray(jax.jit(call)(*sides[0][:2], *sides[1][:2]))
    with np.errstate(all="ignore"):
        floats.same_bits(got, expected(wide[0], wide[1], 64, 4))
