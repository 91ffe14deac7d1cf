"""Compile time of convolutions with different shapes, against native `jax.jit`.

A model of convolutions has few of equal shapes, so hardly any compilation is shared.
Compile time is trace + lower + XLA, of a new jit object with JAX's caches cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort, Result, compare_calls, interleave, ratio, row


class Layer(NamedTuple):
    """A convolution with SAME padding."""

    image: tuple[int, int, int, int]
    kernel: tuple[int, int]
    outputs: int
    stride: int = 1
    dilation: int = 1


LAYERS = (
    Layer((2, 16, 16, 3), (3, 3), 8),
    Layer((2, 16, 16, 8), (3, 3), 16, stride=2),
    Layer((2, 14, 14, 5), (5, 5), 7),
    Layer((1, 20, 12, 4), (1, 1), 9),
    Layer((2, 18, 18, 6), (3, 3), 10, dilation=2),
    Layer((3, 10, 10, 12), (2, 2), 6, stride=2),
    Layer((2, 11, 13, 7), (3, 3), 5),
    Layer((2, 24, 24, 3), (7, 7), 6, stride=2),
    Layer((4, 8, 8, 16), (3, 3), 24),
    Layer((1, 15, 15, 10), (1, 3), 11),
    Layer((1, 15, 15, 9), (3, 1), 4),
    Layer((2, 9, 9, 13), (4, 4), 8),
)
SIZES = {"convolutions": len(LAYERS)}


def arguments() -> tuple[list[jax.Array], list[jax.Array]]:
    """Return (kernels, images) of all layers."""
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(rng.standard_normal(shape, np.float32))  # noqa: E731
    kernels = [draw((*x.kernel, x.image[-1], x.outputs)) for x in LAYERS]
    return kernels, [draw(x.image) for x in LAYERS]


def loss(kernels: Sequence[jax.Array], images: Sequence[jax.Array]) -> jax.Array:
    """Return the sum of the squares of all results."""
    results = (
        jax.lax.conv_general_dilated(
            image,
            kernel,
            (layer.stride,) * 2,
            "SAME",
            rhs_dilation=(layer.dilation,) * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        for layer, kernel, image in zip(LAYERS, kernels, images, strict=True)
    )
    return sum((jnp.sum(out * out) for out in results), jnp.float32(0))


step = jax.grad(loss, argnums=(0, 1))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the step with a new jit object."""
    return jax.jit(lambda *args: function(*args)).lower(*arguments()).compile()


def emulated() -> Callable[..., Any]:
    """Return the emulated step as a new object."""
    return nj.jit(lambda *args: step(*args), policy="bf16")


@row("convolutions/compile", target=4)
def compile_time(effort: Effort) -> Result:
    """Measure the compile time of the gradients of twelve convolutions over native."""
    few = Effort(repetitions=effort.repetitions // 8, seconds=60.0, minimum=1)
    thunks = (lambda: compiled(step), lambda: compiled(emulated()))
    native, emulation = interleave(thunks, few, before=jax.clear_caches)
    return ratio(native, emulation, sizes=SIZES)


@row("convolutions/step")
def run_time(effort: Effort) -> Result:
    """Measure their run time over native; they are small, so copying counts."""
    functions = compiled(step), compiled(emulated())
    return compare_calls(*functions, arguments(), effort, sizes=SIZES)
