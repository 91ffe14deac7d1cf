"""What a chip cannot break: more work takes no less time, a better chip no more.

Small random programs, forward and backward. What is around a program is left out where
programs on one core and on two are compared.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax as nj

FP32 = jnp.float32
ALMOST = 0.99


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, FP32)


def mlp(batch, width, layers):
    def run(x, weights):
        for up, down in weights:
            x = x + jax.nn.gelu(x @ up) @ down
        return x

    weights = [(struct(width, 4 * width), struct(4 * width, width))] * layers
    return run, (struct(64 * batch, width), weights)


def attention(batch, width, layers):
    def run(x, weights):
        for qkv, out in weights:
            q, k, v = jnp.split(x @ qkv, 3, -1)
            scores = jnp.einsum("btd,bsd->bts", q, k) / width**0.5
            x = x + (jax.nn.softmax(scores, -1) @ v) @ out
        return x

    weights = [(struct(width, 3 * width), struct(width, width))] * layers
    return run, (struct(batch, 256, width), weights)


def convolutions(batch, width, layers, image=28):
    def run(x, weights):
        for w in weights:
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(
                lax.conv_general_dilated(
                    x, w, (1, 1), "SAME", dimension_numbers=dimensions
                )
            )
        return x.mean((1, 2))

    kernels = [struct(3, 3, width, width)] * layers
    return run, (struct(batch, image, image, width), kernels)


def programs() -> list[Any]:
    """Name, maker, its sizes, and whether the gradient is asked for."""
    chosen, found = random.Random(0), []
    for make in (mlp, attention, convolutions):
        for gradient in (False, True):
            for _ in range(5):
                widths = (32, 64) if make is convolutions else (128, 256, 512)
                sizes = {
                    "batch": chosen.choice((1, 4, 8)),
                    "width": chosen.choice(widths),
                    "layers": chosen.choice((1, 2)),
                }
                name = "-".join(map(str, (make.__name__, *sizes.values(), gradient)))
                found.append(pytest.param(make, sizes, gradient, id=name))
    return found


@functools.cache
def timeline(
    make: Callable[..., Any],
    gradient: bool,
    sizes: tuple[tuple[str, int], ...],
    target: str = "trn2",
    policy: str = "bf16",
) -> Any:
    run, arguments = make(**dict(sizes))
    step = run
    if gradient:
        step = jax.grad(lambda x, weights: jnp.sum(run(x, weights) ** 2), 1)
    return nj.profile(step, target=target, policy=policy)(*arguments).timeline


def larger(sizes: dict[str, int], what: str) -> tuple[tuple[str, int], ...]:
    return tuple({**sizes, what: 2 * sizes[what]}.items())


@pytest.mark.slow_except(
    "batch-mlp-4-256-1-False",
    "width-mlp-4-512-2-False",
    "layers-mlp-4-256-1-False",
    "layers-convolutions-1-32-1-True1",
)
@pytest.mark.parametrize(("make", "sizes", "gradient"), programs())
@pytest.mark.parametrize("what", ["batch", "width", "layers"])
def test_more_takes_no_less(make, sizes, gradient, what):
    one = timeline(make, gradient, tuple(sizes.items()))
    two = timeline(make, gradient, larger(sizes, what))
    assert two.total_seconds >= ALMOST * one.total_seconds


@pytest.mark.slow_except(
    "mlp-4-256-1-False",
    "convolutions-1-32-1-True0",
    "attention-1-512-2-True1",
    "attention-8-128-1-True1",
    "attention-8-256-1-False1",
    "convolutions-1-64-2-True1",
    "convolutions-1-32-1-True1",
)
@pytest.mark.parametrize(("make", "sizes", "gradient"), programs())
def test_twice_the_layers_take_about_twice_as_long(make, sizes, gradient):
    """Less of a forward pass: its input and its result move once."""
    one = timeline(make, gradient, tuple(sizes.items())).scheduled_seconds
    two = timeline(make, gradient, larger(sizes, "layers")).scheduled_seconds
    assert 1.2 * one < two < 2.6 * one


@pytest.mark.slow_except(
    "mlp-4-256-1-False",
    "mlp-8-128-2-True",
    "attention-1-512-2-True1",
    "convolutions-1-32-1-True1",
)
@pytest.mark.parametrize(("make", "sizes", "gradient"), programs())
def test_a_newer_chip_is_no_slower(make, sizes, gradient):
    """Two cores of trn2 against one of trn1."""
    newer = timeline(make, gradient, tuple(sizes.items()))
    older = timeline(make, gradient, tuple(sizes.items()), "trn1")
    assert newer.scheduled_seconds <= 1.01 * older.scheduled_seconds


@pytest.mark.parametrize(("make", "sizes", "gradient"), programs())
def test_bfloat16_is_hardly_ever_slower_than_float32(make, sizes, gradient):
    """Arrays are FP32: what is cast may cost a small program up to a tenth."""
    half = timeline(make, gradient, tuple(sizes.items()))
    full = timeline(make, gradient, tuple(sizes.items()), policy="fp32")
    assert half.total_seconds <= 1.1 * full.total_seconds


@pytest.mark.parametrize(("make", "sizes", "gradient"), programs())
def test_no_queue_works_longer_than_the_program_takes(make, sizes, gradient):
    found = timeline(make, gradient, tuple(sizes.items()))
    for queue in ("tensor", "vector", "scalar", "dma"):
        assert found.busy_seconds(queue) <= found.scheduled_seconds * 1.001


#: The most that twice of one takes: twice the width is four times the products, by an
#: array that is half as empty; twice the image four times the pixels.
GROWTH = {"batch": 2.4, "width": 3.0, "image": 5.0}


def images() -> list[Any]:
    """Sizes of a layer of convolutions, all that stays in SBUF when it is doubled."""
    sizes = itertools.product((1, 4, 8), (32, 64), (1, 2), (14, 28, 56))
    names = ("batch", "width", "layers", "image")
    found = [dict(zip(names, s, strict=True)) for s in sizes]
    return [
        pytest.param(s, gradient, id="-".join(map(str, (*s.values(), gradient))))
        for s in found
        for gradient in (False, True)
    ]


@pytest.mark.slow_except(
    "1-64-1-28-True", "4-64-1-56-True", "4-64-2-56-False", "8-32-2-28-False"
)
@pytest.mark.parametrize(("sizes", "gradient"), images())
def test_twice_the_convolution_takes_about_as_much_more(sizes, gradient):
    """No patches are made that would leave SBUF."""
    one = timeline(convolutions, gradient, tuple(sizes.items())).scheduled_seconds
    for what, most in GROWTH.items():
        two = timeline(convolutions, gradient, larger(sizes, what)).scheduled_seconds
        assert two < most * one, what
