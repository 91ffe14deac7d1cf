"""Convolutions of many groups, whose channels share the array: they cost little.

No public measurement has a convolution, so prices are compared with those of programs
that compute the same otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax as nj


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def seconds(function: Callable[..., Any], *args: Any) -> float:
    return nj.profile(function, policy="bf16")(*args).total_seconds


def passes(image: tuple[int, ...], kernel: tuple[int, ...], groups: int) -> list[float]:
    """Return the seconds of a convolution and of its gradients."""
    space = "HW"[: len(kernel)]
    layout = (f"N{space}C", f"{space}IO", f"N{space}C")
    channels = image[-1]
    weights = struct(*kernel, channels // groups, channels)

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        strides = (1,) * len(kernel)
        return lax.conv_general_dilated(
            x, w, strides, "SAME", dimension_numbers=layout, feature_group_count=groups
        )

    to_image = lambda y, w: jax.vjp(lambda x: convolve(x, w), y)[1](y)  # noqa: E731
    to_kernel = lambda y, w: jax.vjp(lambda v: convolve(y, v), w)[1](y)  # noqa: E731
    functions = (convolve, to_image, to_kernel)
    return [seconds(f, struct(*image), weights) for f in functions]


@pytest.mark.parametrize(
    ("image", "kernel", "groups"),
    [
        ((8, 112, 112, 96), (3, 3), 96),
        ((8, 56, 56, 96), (7, 7), 96),
        ((32, 7, 7, 768), (7, 7), 768),
        ((1, 2048, 1792), (4,), 1792),
        ((8, 14, 14, 512), (3, 3), 32),
    ],
)
def test_groups_cost_no_more_than_one_group(
    image: tuple[int, ...], kernel: tuple[int, ...], groups: int
) -> None:
    """The dense convolution with zeros off the diagonal computes the same."""
    dense = passes(image, kernel, 1)
    grouped = passes(image, kernel, groups)
    for one, all_of_them in zip(grouped, dense, strict=True):
        assert one < 2 * all_of_them


def test_a_depthwise_convolution_against_shifted_products() -> None:
    """It was 24 times the price of four products and their sum on VectorE."""
    length, channels, positions = 2048, 1792, 4

    def shifted(x: jax.Array, w: jax.Array) -> jax.Array:
        terms = (x[:, i : i + length] * w[i, 0] for i in range(positions))
        return sum(terms, jnp.zeros(()))

    padded = struct(1, length + positions - 1, channels)
    products = seconds(shifted, padded, struct(positions, 1, channels))
    for one in passes((1, length, channels), (positions,), channels):
        assert one < 1.5 * products
