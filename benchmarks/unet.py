"""A step of diffusion by a UNet, whose program has more than 10,000 ops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.training import Step, train_step
from tests.strangers.vision_models import (
    Downsample,
    PixelAttention,
    ResBlock,
    Upsample,
    sinusoids,
)

WIDTHS, BLOCKS, TIME = (16, 32, 64), 2, 64
SHAPE = (2, 32, 32, 3)


class UNet(nnx.Module):
    """Two residual blocks per width on the way down, and three on the way up."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.time = nnx.Sequential(
            nnx.Linear(16, TIME, rngs=rngs), nnx.silu, nnx.Linear(TIME, TIME, rngs=rngs)
        )
        width = WIDTHS[0]
        self.stem = nnx.Conv(SHAPE[-1], width, (3, 3), rngs=rngs)
        kept, down, up = [width], [], []
        for n, wanted in enumerate(WIDTHS):
            for _ in range(BLOCKS):
                down.append(ResBlock(width, wanted, rngs, time=TIME))
                width = wanted
                kept.append(width)
            if n < len(WIDTHS) - 1:
                down.append(Downsample(width, rngs))
                kept.append(width)
        middle = [
            ResBlock(width, width, rngs, time=TIME),
            PixelAttention(width, rngs),
            ResBlock(width, width, rngs, time=TIME),
        ]
        for n, wanted in reversed([*enumerate(WIDTHS)]):
            for _ in range(BLOCKS + 1):
                up.append(ResBlock(width + kept.pop(), wanted, rngs, time=TIME))
                width = wanted
            if n:
                up.append(Upsample(width, rngs))
        self.down, self.middle, self.up = map(nnx.List, (down, middle, up))
        self.norm = nnx.GroupNorm(width, num_groups=4, rngs=rngs)
        self.head = nnx.Conv(width, SHAPE[-1], (3, 3), rngs=rngs)

    def __call__(self, images: jax.Array, time: jax.Array) -> jax.Array:
        time = self.time(sinusoids(time.astype(jnp.float32), 16))

        def of(layer: nnx.Module, x: jax.Array) -> jax.Array:
            return layer(x, time) if isinstance(layer, ResBlock) else layer(x)

        kept = [x := self.stem(images)]
        for layer in self.down:
            kept.append(x := of(layer, x))
        for layer in self.middle:
            x = of(layer, x)
        for layer in self.up:
            is_wider = isinstance(layer, ResBlock)
            x = of(layer, jnp.concatenate([x, kept.pop()], -1) if is_wider else x)
        return self.head(nnx.silu(self.norm(x)))


def step() -> tuple[Step, tuple[Any, ...]]:
    """Return a step under Adam, and its arguments."""
    graph, params, rest = nnx.split(UNet(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params: Any, images: Any, time: Any, noise: Any) -> jax.Array:
        net = nnx.merge(graph, params, rest, copy=True)
        return jnp.mean((net(images, time) - noise) ** 2)

    optimizer, rng = optax.adam(1e-3), np.random.default_rng(0)
    images, noise = rng.normal(size=(2, *SHAPE)).astype(np.float32)
    time = np.linspace(3, 700, SHAPE[0]).astype(np.int32)
    arguments = params, optimizer.init(params), images, time, noise
    return train_step(loss, optimizer), arguments
