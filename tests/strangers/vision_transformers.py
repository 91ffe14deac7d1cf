"""Vision transformers in Flax NNX: what is typical of each, tiny, one step of each."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tests.strangers.layers import (
    Array,
    Attention,
    Block,
    GatedMlp,
    Mlp,
    Turn,
    classification,
    grid,
    trained,
    turning,
)
from tests.strangers.program import Call, stranger
from tests.zoo.program import integers, uniform

IMAGES, LABELS = uniform(1, (2, 16, 16, 3)), integers(2, (2,), 10)
WIDTH = 16


class Patches(nnx.Module):
    """A convolution of 4 x 4 whose stride is its size."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(3, WIDTH, (4, 4), strides=4, padding="VALID", rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.conv(x).reshape(len(x), -1, WIDTH)


def learned(rngs: nnx.Rngs, *shape: int) -> nnx.Param:
    """Return parameters that are small at first."""
    return nnx.Param(nnx.initializers.normal(0.1)(rngs.params(), shape))


def in_front(tokens: nnx.Param, x: Array) -> Array:
    """Put learned tokens before those of every image."""
    first = jnp.broadcast_to(tokens[...], (len(x), *tokens.shape))
    return jnp.concatenate([first, x], axis=1)


# ---- ViT.


class Vit(nnx.Module):
    """A class token, and positions that were learned for another size of image."""

    def __init__(self, rngs: nnx.Rngs):
        self.patches = Patches(rngs)
        self.first = learned(rngs, 1, WIDTH)
        self.first_place, self.places = (
            learned(rngs, 1, WIDTH),
            learned(rngs, 3, 3, WIDTH),
        )
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.blocks = nnx.List([Block(WIDTH, 2, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        places = jax.image.resize(self.places[...], (4, 4, WIDTH), "bicubic")
        places = jnp.concatenate([self.first_place[...], places.reshape(-1, WIDTH)])
        x = self.dropout(in_front(self.first, self.patches(x)) + places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@stranger("flax")
def vit() -> Call:
    """ViT: positions resized to a larger image, one step."""
    return trained(Vit(nnx.Rngs(0)), classification, IMAGES, LABELS)


# ---- DINOv3.


def axial_turn(height: int, width: int, head: int, first: int) -> Turn:
    """Return a rotation by row and column of all tokens but the first ones."""
    size = jnp.array([height, width])
    places = 2 * (grid(height, width) + 0.5) / size - 1
    period = 100.0 ** (jnp.arange(head // 4) / (head // 4))
    angle = 2 * jnp.pi * places[:, :, None] / period
    turn = turning(angle.reshape(1, height * width, head // 2))
    return lambda x: jnp.concatenate([x[:, :first], turn(x[:, first:])], axis=1)


class Dino(nnx.Module):
    """A class token, register tokens, axial rotation, layer scale, gated layers."""

    REGISTERS = 3

    def __init__(self, rngs: nnx.Rngs):
        self.patches = Patches(rngs)
        self.first = learned(rngs, 1 + self.REGISTERS, WIDTH)
        mlp = partial(GatedMlp, hidden=24)
        self.blocks = nnx.List(
            [Block(WIDTH, 2, rngs, scaled=True, mlp=mlp) for _ in range(2)]
        )
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.prototypes = nnx.Linear(WIDTH, 12, use_bias=False, rngs=rngs)

    def __call__(self, images: Array) -> Array:
        """Return the class token's logits of prototypes."""
        rows, columns = images.shape[1] // 4, images.shape[2] // 4
        turn = axial_turn(rows, columns, WIDTH // 2, 1 + self.REGISTERS)
        x = in_front(self.first, self.patches(images))
        for block in self.blocks:
            x = block(x, turn=turn)
        return self.prototypes(self.norm(x)[:, 0])


def balanced(logits: Array) -> Array:
    """Return the teacher's assignments after three rounds of Sinkhorn and Knopp."""
    share = jnp.exp(logits / 0.5).T
    share = share / jnp.sum(share)
    for _ in range(3):
        share = share / jnp.sum(share, axis=1, keepdims=True) / len(share)
        share = share / jnp.sum(share, axis=0, keepdims=True) / share.shape[1]
    return (share * share.shape[1]).T


@stranger("flax")
def dinov3() -> Call:
    """DINOv3: registers, axial rotation, a student and its moving teacher."""
    graph, student = nnx.split(Dino(nnx.Rngs(0)))
    _, teacher = nnx.split(Dino(nnx.Rngs(1)))

    def step(student, teacher, images):
        target = balanced(nnx.merge(graph, teacher)(images))

        def loss(student):
            crop = nnx.merge(graph, student)(images[:, 2:14, :12])
            return optax.softmax_cross_entropy(crop / 0.1, target).mean()

        value, gradient = jax.value_and_grad(loss)(student)
        student = jax.tree.map(lambda p, g: p - 0.01 * g, student, gradient)
        return value, student, optax.incremental_update(student, teacher, 0.01)

    return step, (student, teacher, uniform(1, (4, 16, 16, 3)))


# ---- SAM 2.


def windows(x: Array, size: int) -> tuple[Array, tuple[int, ...]]:
    """Return [windows, size, size, C] and the padded shape they came from."""
    pad = [(0, 0), *((0, -n % size) for n in x.shape[1:3]), (0, 0)]
    x = jnp.pad(x, pad)
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // size, size, width // size, size, channels)
    return x.swapaxes(2, 3).reshape(-1, size, size, channels), (batch, height, width)


def unwindowed(x: Array, padded: tuple[int, ...], height: int, width: int) -> Array:
    """Return the image that `windows` cut up, without its padding."""
    size, channels = x.shape[1], x.shape[-1]
    batch, rows, columns = padded[0], padded[1] // size, padded[2] // size
    x = x.reshape(batch, rows, columns, size, size, channels).swapaxes(2, 3)
    return x.reshape(*padded, channels)[:, :height, :width]


class HieraBlock(nnx.Module):
    """Attention in windows with relative positions; queries may be pooled by two."""

    def __init__(self, inputs, outputs, window, rngs, *, pooled=False):
        self.norm1 = nnx.LayerNorm(inputs, rngs=rngs)
        self.norm2 = nnx.LayerNorm(outputs, rngs=rngs)
        self.qkv = nnx.Linear(inputs, 3 * outputs, rngs=rngs)
        self.out = nnx.Linear(outputs, outputs, rngs=rngs)
        self.mlp = Mlp(outputs, rngs)
        self.skip = nnx.Linear(inputs, outputs, rngs=rngs) if pooled else None
        self.rows, self.columns = (
            learned(rngs, 2 * window - 1, outputs // 2) for _ in range(2)
        )
        self.window, self.stride = window, 2 if pooled else 1

    def __call__(self, x: Array) -> Array:
        pool = lambda x: nnx.max_pool(x, (2, 2), strides=(2, 2))  # noqa: E731
        y = self.norm1(x)
        if self.skip is not None:
            x = pool(self.skip(y))
        y, padded = windows(y, self.window)
        q, k, v = jnp.split(self.qkv(y), 3, axis=-1)
        q = pool(q) if self.skip is not None else q
        y = self.out(self.attend(q, k, v))
        padded = (padded[0], *(n // self.stride for n in padded[1:]))
        x = x + unwindowed(y, padded, *x.shape[1:3])
        return x + self.mlp(self.norm2(x))

    def attend(self, q: Array, k: Array, v: Array) -> Array:
        """Return what [W, h, w, C] queries read of the keys of their window."""
        heads = lambda x: x.reshape(*x.shape[:3], 2, -1)  # noqa: E731
        q, k, v = heads(q), heads(k), heads(v)
        logits = jnp.einsum("whvnc,wklnc->wnhvkl", q, k) * q.shape[-1] ** -0.5
        here = self.stride * np.arange(q.shape[1])
        apart = here[:, None] - np.arange(self.window) + self.window - 1
        rows, columns = self.rows[...][apart], self.columns[...][apart]
        logits = logits + jnp.einsum("whvnc,hkc->wnhvk", q, rows)[..., None]
        logits = logits + jnp.einsum("whvnc,vlc->wnhvl", q, columns)[..., None, :]
        weights = nnx.softmax(logits, axis=(-2, -1))
        read = jnp.einsum("wnhvkl,wklnc->whvnc", weights, v)
        return read.reshape(*read.shape[:3], -1)


class Hiera(nnx.Module):
    """Blocks of two stages, and a pyramid from the coarse one to the fine one."""

    def __init__(self, rngs: nnx.Rngs):
        self.patches = nnx.Conv(3, 8, (7, 7), strides=2, padding=3, rngs=rngs)
        self.places, self.tile = learned(rngs, 4, 4, 8), learned(rngs, 2, 2, 8)
        self.blocks = nnx.List(
            [HieraBlock(8, 8, 3, rngs), HieraBlock(8, WIDTH, 4, rngs, pooled=True)]
        )
        self.fine = nnx.Conv(8, WIDTH, (1, 1), rngs=rngs)
        self.coarse = nnx.Conv(WIDTH, WIDTH, (1, 1), rngs=rngs)

    def __call__(self, images: Array) -> list[Array]:
        x = self.patches(images)
        x = x + jax.image.resize(self.places[...], (8, 8, 8), "bicubic")
        x = x + jnp.tile(self.tile[...], (4, 4, 1))
        fine = self.blocks[0](x)
        coarse = self.coarse(self.blocks[1](fine))
        above = jnp.repeat(jnp.repeat(coarse, 2, axis=1), 2, axis=2)
        return [self.fine(fine) + above, coarse]


class FourierPlaces(nnx.Module):
    """Positions in the unit square as sines of random projections."""

    def __init__(self, rngs: nnx.Rngs):
        self.projection = nnx.Variable(rngs.params.normal((2, WIDTH // 2)))

    def __call__(self, places: Array) -> Array:
        angle = 2 * jnp.pi * ((2 * places - 1) @ self.projection[...])
        return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class TwoWayBlock(nnx.Module):
    """Tokens attend to tokens and to the image, then the image to the tokens."""

    def __init__(self, rngs: nnx.Rngs):
        self.own, self.read, self.told = (Attention(WIDTH, 2, rngs) for _ in range(3))
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(4)])
        self.mlp = Mlp(WIDTH, rngs)

    def __call__(self, tokens, image, token_places, image_places):
        norm1, norm2, norm3, norm4 = self.norms
        tokens = norm1(tokens + self.own(tokens + token_places))
        where = image + image_places
        tokens = norm2(tokens + self.read(tokens + token_places, where))
        tokens = norm3(tokens + self.mlp(tokens))
        image = norm4(image + self.told(where, tokens + token_places))
        return tokens, image


class Sam2(nnx.Module):
    """An image and points in it become masks, and how good each one is."""

    MASKS = 3

    def __init__(self, rngs: nnx.Rngs):
        self.encoder, self.places = Hiera(rngs), FourierPlaces(rngs)
        self.kinds = nnx.Embed(3, WIDTH, rngs=rngs)
        self.tokens = learned(rngs, 1 + self.MASKS, WIDTH)
        self.blocks = nnx.List([TwoWayBlock(rngs) for _ in range(2)])
        self.up = nnx.ConvTranspose(WIDTH, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.up_norm = nnx.LayerNorm(8, rngs=rngs)
        self.lateral = nnx.Conv(WIDTH, 8, (1, 1), rngs=rngs)
        self.up_again = nnx.ConvTranspose(8, 4, (2, 2), strides=(2, 2), rngs=rngs)
        self.networks = nnx.List(
            [
                nnx.Sequential(Mlp(WIDTH, rngs), nnx.Linear(WIDTH, 4, rngs=rngs))
                for _ in range(self.MASKS)
            ]
        )
        self.quality = nnx.Linear(WIDTH, self.MASKS, rngs=rngs)

    def __call__(self, images: Array, points: Array, kinds: Array):
        """Return masks [B, M, H, W] of points [B, P, 2]; kind 0 is no point."""
        fine, coarse = self.encoder(images)
        batch, height, width, _ = coarse.shape
        centre = (grid(height, width) + 0.5) / jnp.array([height, width])
        image_places = jnp.broadcast_to(
            self.places(centre), (batch, height * width, WIDTH)
        )
        known = (kinds > 0)[..., None]
        prompts = jnp.where(known, self.places(points), 0) + self.kinds(kinds)
        token_places = in_front(self.tokens, prompts)
        tokens, image = token_places, coarse.reshape(batch, -1, WIDTH)
        for block in self.blocks:
            tokens, image = block(tokens, image, token_places, image_places)
        image = self.up(image.reshape(coarse.shape)) + self.lateral(fine)
        image = nnx.gelu(self.up_again(nnx.gelu(self.up_norm(image))))
        filters = jnp.stack(
            [net(tokens[:, 1 + i]) for i, net in enumerate(self.networks)], axis=1
        )
        masks = jnp.einsum("bmc,bhwc->bmhw", filters, image)
        return masks, nnx.sigmoid(self.quality(tokens[:, 0]))


POINTS, KINDS = 0.5 + uniform(4, (2, 3, 2), 0.5), jnp.array([[1, 2, 0], [1, 1, 2]])


@stranger("flax")
def sam2() -> Call:
    """SAM 2: windows, pooled queries, the best of three masks, one step."""

    def loss(model, images, points, kinds, truth):
        masks, quality = model(images, points, kinds)
        truth = jnp.broadcast_to(truth[:, None], masks.shape)
        focal = optax.sigmoid_focal_loss(masks, truth, alpha=0.25).mean((2, 3))
        share = nnx.sigmoid(masks)
        both = jnp.sum(share * truth, axis=(2, 3))
        dice = 1 - (2 * both + 1) / (jnp.sum(share + truth, axis=(2, 3)) + 1)
        each = 20 * focal + dice
        either = jnp.sum(jnp.maximum(share, truth), axis=(2, 3))
        overlap = jax.lax.stop_gradient(both / either)
        best = jnp.argmin(each, axis=1, keepdims=True)
        chosen = jnp.take_along_axis(each, best, axis=1)
        return chosen.mean() + jnp.mean((quality - overlap) ** 2)

    truth = (uniform(5, (2, 16, 16)) > 0).astype(jnp.float32)
    return trained(Sam2(nnx.Rngs(0)), loss, IMAGES, POINTS, KINDS, truth)


# ---- V-JEPA 2.


@dataclasses.dataclass(frozen=True)
class Clip:
    """How many tubes of a video there are in time, height and width."""

    frames: int = 2
    rows: int = 3
    columns: int = 3

    def turn(self, which: Array) -> Turn:
        """Return a rotation by frame, row and column of tokens [B, T]."""
        plane = self.rows * self.columns
        at = (which // plane, which % plane // self.columns, which % self.columns)
        frequency = 1.0 / 1e4 ** (jnp.arange(2) / 2)
        turns = [turning(jnp.einsum("bt,f->btf", n, frequency)) for n in at]

        def turn(x: Array) -> Array:
            parts = jnp.split(x, 3, axis=-1)
            turned = [turn(part) for turn, part in zip(turns, parts, strict=True)]
            return jnp.concatenate(turned, axis=-1)

        return turn


CLIP = Clip()


class Encoder(nnx.Module):
    """Tubes of a video, and blocks that see some of them."""

    def __init__(self, rngs: nnx.Rngs):
        self.tubes = nnx.Conv(
            3, 24, (2, 4, 4), strides=(2, 4, 4), padding="VALID", rngs=rngs
        )
        self.blocks = nnx.List([Block(24, 2, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(24, rngs=rngs)

    def __call__(self, video: Array, which: Array) -> Array:
        x = self.tubes(video).reshape(len(video), -1, 24)
        x = jnp.take_along_axis(x, which[..., None], axis=1)
        for block in self.blocks:
            x = block(x, turn=CLIP.turn(which))
        return self.norm(x)


class Predictor(nnx.Module):
    """What tokens that are not seen would be, from those that are."""

    def __init__(self, rngs: nnx.Rngs):
        self.encoder = Encoder(rngs)
        self.enter = nnx.Linear(24, 24, rngs=rngs)
        self.unknown = learned(rngs, 1, 24)
        self.block = Block(24, 2, rngs)
        self.leave = nnx.Linear(24, 24, rngs=rngs)

    def __call__(self, video: Array, context: Array, hidden: Array) -> Array:
        known = self.enter(self.encoder(video, context))
        unknown = jnp.broadcast_to(self.unknown[...], (*hidden.shape, 24))
        which = jnp.concatenate([context, hidden], axis=1)
        order = jnp.argsort(which, axis=1)
        x = jnp.concatenate([known, unknown], axis=1)
        x = jnp.take_along_axis(x, order[..., None], axis=1)
        sorted_places = jnp.take_along_axis(which, order, axis=1)
        x = self.block(x, turn=CLIP.turn(sorted_places))
        back = jnp.argsort(order, axis=1)[:, context.shape[1] :]
        return self.leave(jnp.take_along_axis(x, back[..., None], axis=1))


@stranger("flax")
def vjepa2() -> Call:
    """V-JEPA 2: tubes of a video guessed from others, one step."""
    graph, state = nnx.split(Encoder(nnx.Rngs(1)))

    def loss(model, target, video, context, hidden):
        every = jnp.broadcast_to(jnp.arange(18), (len(video), 18))
        truth = nnx.merge(graph, target)(video, every)
        truth = jnp.take_along_axis(truth, hidden[..., None], axis=1)
        guess = model(video, context, hidden)
        return jnp.mean(jnp.abs(guess - jax.lax.stop_gradient(truth)))

    places = jnp.stack([(5 * jnp.arange(18)) % 18, (7 * jnp.arange(18) + 3) % 18])
    video = uniform(1, (2, 4, 12, 12, 3))
    context, hidden = places[:, :11], places[:, 11:]
    return trained(Predictor(nnx.Rngs(0)), loss, state, video, context, hidden)
