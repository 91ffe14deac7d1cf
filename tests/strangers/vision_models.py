"""Convolutional models in Flax NNX: what is typical of each, tiny, one step of each."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from tests.strangers.layers import (
    Array,
    Attention,
    Mlp,
    Scale,
    classification,
    sinusoids,
    trained,
)
from tests.strangers.program import Call, stranger
from tests.zoo.program import integers, uniform

KEY = jax.random.key(0)
IMAGES, LABELS = uniform(1, (2, 16, 16, 3)), integers(2, (2,), 10)


def _classifier(model: nnx.Module) -> Call:
    """Return a step on two images."""
    return trained(model, classification, IMAGES, LABELS)


class Normed(nnx.Module):
    """A convolution without bias, a batch norm and an activation."""

    def __init__(self, inputs, outputs, size, rngs, *, act=nnx.relu, **how):
        self.conv = nnx.Conv(
            inputs, outputs, (size, size), use_bias=False, rngs=rngs, **how
        )
        self.norm, self.act = nnx.BatchNorm(outputs, rngs=rngs), act

    def __call__(self, x: Array) -> Array:
        return self.act(self.norm(self.conv(x)))


def drop_path(x: Array, key: Array, rate: float) -> Array:
    """Drop the whole residual branch of some examples: stochastic depth."""
    kept = jax.random.bernoulli(key, 1 - rate, (len(x),) + (1,) * (x.ndim - 1))
    return jnp.where(kept, x / (1 - rate), 0)


# ---- VGG, ResNet, DenseNet.


class Vgg(nnx.Module):
    """Convolutions of 3 x 3 with max pooling between, and layers with dropout."""

    def __init__(self, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, kernel_size=(3, 3), padding="SAME", rngs=rngs)
        self.stages = nnx.List(
            [
                nnx.List([conv(inputs, outputs), conv(outputs, outputs)])
                for inputs, outputs in ((3, 8), (8, 12), (12, 16))
            ]
        )
        self.hidden = nnx.Linear(2 * 2 * 16, 24, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(24, 10, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        for stage in self.stages:
            for conv in stage:
                x = nnx.relu(conv(x))
            x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(len(x), -1)
        return self.head(self.dropout(nnx.relu(self.hidden(x))))


@stranger("flax")
def vgg() -> Call:
    """VGG: pairs of convolutions, max pooling and dropout, one step."""
    return _classifier(Vgg(nnx.Rngs(0)))


class Bottleneck(nnx.Module):
    """ResNet's block: 1 x 1, 3 x 3 with a stride, 1 x 1, and a shortcut."""

    def __init__(self, inputs, width, stride, rngs):
        same = lambda x: x  # noqa: E731
        outputs = 4 * width
        self.reduce = Normed(inputs, width, 1, rngs)
        self.spatial = Normed(width, width, 3, rngs, strides=stride, padding=1)
        self.expand = Normed(width, outputs, 1, rngs, act=same)
        self.shortcut = Normed(inputs, outputs, 1, rngs, act=same, strides=stride)

    def __call__(self, x: Array) -> Array:
        return nnx.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x))


class ResNet(nnx.Module):
    """A stem with a stride, max pooling over padding, and bottlenecks."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = Normed(3, 8, 7, rngs, strides=2, padding=3)
        self.blocks = nnx.List([Bottleneck(8, 4, 1, rngs), Bottleneck(16, 6, 2, rngs)])
        self.head = nnx.Linear(24, 10, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = nnx.max_pool(self.stem(x), (3, 3), strides=(2, 2), padding=((1, 1),) * 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


@stranger("flax")
def resnet() -> Call:
    """ResNet: bottlenecks with strides and batch norm, one step."""
    return _classifier(ResNet(nnx.Rngs(0)))


class DenseLayer(nnx.Module):
    """Norm and convolution of all that came before; the result is appended."""

    def __init__(self, inputs, growth, rngs):
        self.norm = nnx.BatchNorm(inputs, rngs=rngs)
        self.squeeze = Normed(inputs, 4 * growth, 1, rngs)
        self.grow = nnx.Conv(4 * growth, growth, (3, 3), use_bias=False, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        grown = self.grow(self.squeeze(nnx.relu(self.norm(x))))
        return jnp.concatenate([x, grown], axis=-1)


class DenseNet(nnx.Module):
    """Two dense blocks with a transition between them."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = Normed(3, 8, 3, rngs, strides=2)
        self.first = nnx.List([DenseLayer(8 + 4 * i, 4, rngs) for i in range(3)])
        self.transition = Normed(20, 10, 1, rngs)
        self.second = nnx.List([DenseLayer(10 + 4 * i, 4, rngs) for i in range(2)])
        self.norm = nnx.BatchNorm(18, rngs=rngs)
        self.head = nnx.Linear(18, 10, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = self.stem(x)
        for layer in self.first:
            x = layer(x)
        x = nnx.avg_pool(self.transition(x), (2, 2), strides=(2, 2))
        for layer in self.second:
            x = layer(x)
        return self.head(nnx.relu(self.norm(x)).mean((1, 2)))


@stranger("flax")
def densenet() -> Call:
    """DenseNet: concatenated layers and a transition, one step."""
    return _classifier(DenseNet(nnx.Rngs(0)))


# ---- EfficientNet, ConvNeXt.


class SqueezeExcite(nnx.Module):
    """Channels weighted by a small network of their means."""

    def __init__(self, width, squeezed, rngs):
        self.reduce = nnx.Conv(width, squeezed, (1, 1), rngs=rngs)
        self.expand = nnx.Conv(squeezed, width, (1, 1), rngs=rngs)

    def __call__(self, x: Array) -> Array:
        means = jnp.mean(x, axis=(1, 2), keepdims=True)
        return x * nnx.sigmoid(self.expand(nnx.silu(self.reduce(means))))


class MBConv(nnx.Module):
    """EfficientNet's block: wider, depthwise, squeeze and excite, narrower."""

    def __init__(self, inputs, outputs, size, stride, rngs):
        wide = 4 * inputs
        self.expand = Normed(inputs, wide, 1, rngs, act=nnx.silu)
        self.depthwise = Normed(
            wide,
            wide,
            size,
            rngs,
            act=nnx.silu,
            strides=stride,
            feature_group_count=wide,
        )
        self.excite = SqueezeExcite(wide, max(1, inputs // 4), rngs)
        self.project = Normed(wide, outputs, 1, rngs, act=lambda x: x)
        self.residual = inputs == outputs and stride == 1

    def __call__(self, x: Array, key: Array) -> Array:
        out = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + drop_path(out, key, 0.2) if self.residual else out


class EfficientNet(nnx.Module):
    """Blocks with kernels of 3 and of 5, some with a stride."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = Normed(3, 8, 3, rngs, act=nnx.silu, strides=2)
        plan = ((8, 8, 3, 1), (8, 12, 5, 2), (12, 12, 5, 1))
        self.blocks = nnx.List([MBConv(*row, rngs) for row in plan])
        self.top = Normed(12, 24, 1, rngs, act=nnx.silu)
        self.head = nnx.Linear(24, 10, rngs=rngs)
        self.rngs = nnx.Rngs(dropout=1)

    def __call__(self, x: Array) -> Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, self.rngs.dropout())
        return self.head(self.top(x).mean((1, 2)))


@stranger("flax")
def efficientnet() -> Call:
    """EfficientNet: depthwise convolutions, squeeze and excite, one step."""
    return _classifier(EfficientNet(nnx.Rngs(0)))


class ConvNextBlock(nnx.Module):
    """A depthwise convolution of 7 x 7, a norm, a perceptron and layer scale."""

    def __init__(self, width, rngs):
        self.depthwise = nnx.Conv(
            width, width, (7, 7), feature_group_count=width, rngs=rngs
        )
        self.norm = nnx.LayerNorm(width, epsilon=1e-6, rngs=rngs)
        self.mlp, self.scale = Mlp(width, rngs), Scale(width)

    def __call__(self, x: Array, key: Array) -> Array:
        out = self.scale(self.mlp(self.norm(self.depthwise(x))))
        return x + drop_path(out, key, 0.1)


class ConvNext(nnx.Module):
    """Patches, two stages with layer norms and a stride between, a head."""

    def __init__(self, rngs: nnx.Rngs):
        patches = partial(nnx.Conv, padding="VALID", rngs=rngs)
        self.stem = patches(3, 8, (4, 4), strides=4)
        self.norms = nnx.List([nnx.LayerNorm(n, rngs=rngs) for n in (8, 8, 12)])
        self.down = patches(8, 12, (2, 2), strides=2)
        self.blocks = nnx.List([ConvNextBlock(n, rngs) for n in (8, 12)])
        self.head = nnx.Linear(12, 10, rngs=rngs)
        self.rngs = nnx.Rngs(dropout=1)

    def __call__(self, x: Array) -> Array:
        x = self.norms[0](self.stem(x))
        x = self.blocks[0](x, self.rngs.dropout())
        x = self.down(self.norms[1](x))
        x = self.blocks[1](x, self.rngs.dropout())
        return self.head(self.norms[2](x.mean((1, 2))))


@stranger("flax")
def convnext() -> Call:
    """ConvNeXt: depthwise 7 x 7, layer scale and stochastic depth, one step."""
    return _classifier(ConvNext(nnx.Rngs(0)))


# ---- UNet and VAE: what latent diffusion is made of.


class ResBlock(nnx.Module):
    """Two convolutions after group norms; a time embedding between them if given."""

    def __init__(self, inputs, outputs, rngs, time=None):
        self.norm1 = nnx.GroupNorm(inputs, num_groups=4, rngs=rngs)
        self.norm2 = nnx.GroupNorm(outputs, num_groups=4, rngs=rngs)
        self.conv1 = nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(outputs, outputs, (3, 3), rngs=rngs)
        self.shortcut = nnx.Conv(inputs, outputs, (1, 1), rngs=rngs)
        self.time = nnx.Linear(time, outputs, rngs=rngs) if time else None

    def __call__(self, x: Array, time: Array | None = None) -> Array:
        h = self.conv1(nnx.silu(self.norm1(x)))
        if self.time is not None:
            h = h + self.time(nnx.silu(time))[:, None, None]
        return self.shortcut(x) + self.conv2(nnx.silu(self.norm2(h)))


class PixelAttention(nnx.Module):
    """Attention of every pixel to every pixel, by one head."""

    def __init__(self, width, rngs):
        self.norm = nnx.GroupNorm(width, num_groups=4, rngs=rngs)
        self.attention = Attention(width, 1, rngs, bias=True)

    def __call__(self, x: Array) -> Array:
        pixels = self.norm(x).reshape(len(x), -1, x.shape[-1])
        return x + self.attention(pixels).reshape(x.shape)


class Upsample(nnx.Module):
    """Nearest neighbours, twice as many, and a convolution."""

    def __init__(self, width, rngs):
        self.conv = nnx.Conv(width, width, (3, 3), rngs=rngs)

    def __call__(self, x: Array) -> Array:
        batch, height, width, channels = x.shape
        shape = (batch, 2 * height, 2 * width, channels)
        return self.conv(jax.image.resize(x, shape, "nearest"))


class Downsample(nnx.Module):
    """A convolution with a stride, padded below and at the right alone."""

    def __init__(self, width, rngs):
        self.conv = nnx.Conv(
            width, width, (3, 3), strides=2, padding="VALID", rngs=rngs
        )

    def __call__(self, x: Array) -> Array:
        return self.conv(jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0))))


class UNet(nnx.Module):
    """Down, attention, and up again with what was kept on the way."""

    def __init__(self, rngs: nnx.Rngs):
        self.time = nnx.Sequential(
            nnx.Linear(8, 16, rngs=rngs), nnx.silu, nnx.Linear(16, 16, rngs=rngs)
        )
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.enter = ResBlock(8, 8, rngs, time=16)
        self.down = Downsample(8, rngs)
        self.middle = ResBlock(8, 12, rngs, time=16)
        self.attention = PixelAttention(12, rngs)
        self.up = Upsample(12, rngs)
        self.leave = ResBlock(20, 8, rngs, time=16)
        self.norm = nnx.GroupNorm(8, num_groups=4, rngs=rngs)
        self.head = nnx.Conv(8, 3, (3, 3), rngs=rngs)

    def __call__(self, x: Array, time: Array) -> Array:
        time = self.time(sinusoids(time.astype(jnp.float32), 8))
        kept = self.enter(self.stem(x), time)
        x = self.attention(self.middle(self.down(kept), time))
        x = self.leave(jnp.concatenate([self.up(x), kept], axis=-1), time)
        return self.head(nnx.silu(self.norm(x)))


@stranger("flax")
def unet() -> Call:
    """UNet: the noise in an image at a random time, one step of diffusion."""

    def loss(model, images, key):
        keys = jax.random.split(key)
        time = jax.random.randint(keys[0], (len(images),), 0, 1000)
        noise = jax.random.normal(keys[1], images.shape)
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000))[time][
            :, None, None, None
        ]
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
        return jnp.mean((model(noisy, time) - noise) ** 2)

    return trained(UNet(nnx.Rngs(0)), loss, IMAGES[:, :8, :8], KEY)


class Vae(nnx.Module):
    """An encoder to means and variances, and a decoder."""

    def __init__(self, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, rngs=rngs)
        self.encoder = nnx.Sequential(
            conv(3, 8, (3, 3)),
            ResBlock(8, 8, rngs),
            Downsample(8, rngs),
            ResBlock(8, 12, rngs),
            PixelAttention(12, rngs),
            conv(12, 8, (3, 3)),
        )
        self.moments = conv(8, 8, (1, 1))
        self.decoder = nnx.Sequential(
            conv(4, 12, (3, 3)),
            PixelAttention(12, rngs),
            Upsample(12, rngs),
            ResBlock(12, 8, rngs),
            nnx.GroupNorm(8, num_groups=4, rngs=rngs),
            nnx.silu,
            conv(8, 3, (3, 3)),
        )

    def __call__(self, x: Array, key: Array) -> tuple[Array, Array]:
        mean, log_variance = jnp.split(self.moments(self.encoder(x)), 2, axis=-1)
        log_variance = jnp.clip(log_variance, -30, 20)
        noise = jax.random.normal(key, mean.shape)
        z = mean + jnp.exp(0.5 * log_variance) * noise
        divergence = mean**2 + jnp.exp(log_variance) - 1 - log_variance
        return self.decoder(z), 0.5 * jnp.sum(divergence, axis=(1, 2, 3))


@stranger("flax")
def vae() -> Call:
    """VAE: group norm, attention over pixels and upsampling, one step."""

    def loss(model, images, key):
        out, divergence = model(images, key)
        return jnp.mean((out - images) ** 2) + 1e-3 * jnp.mean(divergence)

    return trained(Vae(nnx.Rngs(0)), loss, IMAGES[:, :8, :8], KEY)
