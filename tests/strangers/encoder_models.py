"""Models of an encoder and a decoder in Flax NNX: uMT5, Whisper and Qwen3-VL, tiny."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.strangers.layers import (
    Array,
    Attention,
    Block,
    Einsum,
    GatedMlp,
    KeyValues,
    Mlp,
    RMSNorm,
    called,
    grid,
    seen,
    sinusoids,
    token_loss,
    trained,
    turning,
)
from tests.strangers.program import Call, stranger
from tests.zoo.program import integers, uniform

WORDS, WIDTH = 40, 16


# ---- uMT5: every layer learns a bias of its own for distances in buckets.


def bucket(distance: Array, *, both_sides: bool, buckets: int = 8, far: int = 16):
    """Return the bucket of key minus query: exact when near, logarithmic when far."""
    start = 0
    if both_sides:
        buckets //= 2
        start = jnp.where(distance > 0, buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1) / exact) / np.log(far / exact)
    large = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return start + jnp.where(
        distance < exact, distance, jnp.minimum(large, buckets - 1)
    )


class T5Attention(nnx.Module):
    """Attention without a scale, whose logits get a bias by distance."""

    def __init__(self, rngs: nnx.Rngs, *, both_sides: bool):
        self.attention = Attention(WIDTH, 2, rngs, scale=1.0)
        self.table = nnx.Embed(8, 2, rngs=rngs)
        self.both_sides = both_sides

    def __call__(self, x: Array, mask: Array) -> Array:
        places = jnp.arange(x.shape[1])
        distance = places[None, :] - places[:, None]
        bias = self.table(bucket(distance, both_sides=self.both_sides))
        bias = jnp.broadcast_to(bias.transpose(2, 0, 1), (len(x), 2, *distance.shape))
        return self.attention(x, mask=mask, bias=bias)


class T5Layer(nnx.Module):
    """Attention, in a decoder also to the encoder's result, and a gated layer."""

    def __init__(self, rngs: nnx.Rngs, *, decodes: bool):
        self.norms = nnx.List([RMSNorm(WIDTH) for _ in range(3)])
        self.own = T5Attention(rngs, both_sides=not decodes)
        self.cross = Attention(WIDTH, 2, rngs, scale=1.0) if decodes else None
        self.mlp = GatedMlp(WIDTH, 24, rngs, act=nnx.gelu)

    def __call__(self, x, mask, context=None, context_mask=None) -> Array:
        x = x + self.own(self.norms[0](x), mask)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), context, mask=context_mask)
        return x + self.mlp(self.norms[2](x))


class Umt5(nnx.Module):
    """One embedding for both halves, and a head of its own."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.encoder = nnx.List([T5Layer(rngs, decodes=False) for _ in range(2)])
        self.decoder = nnx.List([T5Layer(rngs, decodes=True) for _ in range(2)])
        self.norms = nnx.List([RMSNorm(WIDTH) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, source: Array, target: Array) -> Array:
        """Return logits of [B, T] targets; token 0 of a source is padding."""
        valid = jnp.broadcast_to(
            (source != 0)[:, None], (*source.shape, source.shape[1])
        )
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, valid)
        context = self.norms[0](x)
        places = jnp.broadcast_to(jnp.arange(target.shape[1]), target.shape)
        crossed = jnp.broadcast_to(
            (source != 0)[:, None], (*target.shape, source.shape[1])
        )
        y = self.embed(target)
        for layer in self.decoder:
            y = layer(y, seen(places, places), context, crossed)
        return self.head(self.norms[1](y))


@stranger("flax")
def umt5() -> Call:
    """uMT5: bias by buckets of distance, targets shifted to the right, one step."""

    def loss(model, source, target):
        shifted = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1]
        return token_loss(model(source, shifted), target)

    source = integers(1, (2, 14), WORDS).at[1, 10:].set(0)
    return trained(Umt5(nnx.Rngs(0)), loss, source, integers(2, (2, 9), WORDS))


# ---- Whisper: sound to text.


def log_mel(sound: Array, size: int = 16, bands: int = 8) -> Array:
    """Return [B, frames, bands]: logarithms of the power in overlapping frames."""
    hop = size // 2
    frames = (sound.shape[1] - size) // hop + 1
    which = hop * np.arange(frames)[:, None] + np.arange(size)
    window = jnp.asarray(np.hanning(size), jnp.float32)
    power = jnp.abs(jnp.fft.rfft(sound[:, which] * window)) ** 2
    edges = np.linspace(0, size // 2, bands + 2)[:, None]
    steps = np.arange(size // 2 + 1)
    rise = (steps - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - steps) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0, np.minimum(rise, fall)).astype(np.float32)
    logs = jnp.log10(jnp.maximum(power @ filters.T, 1e-10))
    return (jnp.maximum(logs, jnp.max(logs) - 8.0) + 4.0) / 4.0


class WhisperLayer(nnx.Module):
    """A decoder's layer: attention to tokens, to sound, and a perceptron."""

    def __init__(self, rngs: nnx.Rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(3)])
        self.own, self.cross = (Attention(WIDTH, 2, rngs, bias=True) for _ in range(2))
        self.mlp = Mlp(WIDTH, rngs)

    def __call__(self, x: Array, sound, mask: Array, cache=None) -> Array:
        """Decode; `sound` is the keys and values of what was heard."""
        x = x + self.own(self.norms[0](x), mask=mask, cache=cache)
        query, _, _ = self.cross.project(y := self.norms[1](x), y)
        x = x + self.cross.attend(query, *sound)
        return x + self.mlp(self.norms[2](x))


class Whisper(nnx.Module):
    """Two convolutions and blocks over frames, and a decoder with caches."""

    SIZE = 8

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(8, WIDTH, (3,), padding=1, rngs=rngs)
        self.conv2 = nnx.Conv(WIDTH, WIDTH, (3,), strides=2, padding=1, rngs=rngs)
        self.encoder = nnx.List([Block(WIDTH, 2, rngs) for _ in range(2)])
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.places = nnx.Embed(self.SIZE, WIDTH, rngs=rngs)
        self.decoder = nnx.List([WhisperLayer(rngs) for _ in range(2)])
        self.caches = nnx.List([KeyValues(2, self.SIZE, 2, 8) for _ in range(2)])
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])

    def heard(self, mel: Array) -> list[tuple[Array, Array]]:
        """Return the keys and values that every layer of the decoder attends to."""
        x = nnx.gelu(self.conv2(nnx.gelu(self.conv1(mel))))
        x = x + sinusoids(jnp.arange(x.shape[1]), WIDTH)
        for block in self.encoder:
            x = block(x)
        x = self.norms[0](x)
        return [(layer.cross.k(x), layer.cross.v(x)) for layer in self.decoder]

    def read(self, tokens: Array, sound, *, cached: bool) -> Array:
        """Return logits of tokens behind those of the caches, if they are used."""
        used = self.caches[0].used[...] if cached else 0
        here = used + jnp.arange(tokens.shape[1])
        there = jnp.arange(self.SIZE) if cached else here
        x = self.embed(tokens) + self.places(here)
        for layer, cache, keys in zip(self.decoder, self.caches, sound, strict=True):
            mask = seen(here[None], there[None])
            x = layer(x, keys, mask, cache if cached else None)
        return self.embed.attend(self.norms[1](x))

    def __call__(self, sound: Array, tokens: Array) -> Array:
        return self.read(tokens, self.heard(log_mel(sound)), cached=False)

    def transcribe(self, sound: Array, prompt: Array) -> Array:
        """Return three tokens after a prompt, the most probable ones."""
        keys, out = self.heard(log_mel(sound)), [prompt]
        for _ in range(3):
            logits = self.read(out[-1], keys, cached=True)[:, -1:]
            out.append(jnp.argmax(logits, axis=-1))
        return jnp.concatenate(out[1:], axis=1)


@stranger("flax")
def whisper() -> Call:
    """Whisper: frames of sound through convolutions, text read off them, one step."""

    def loss(model, sound, tokens):
        return token_loss(model(sound, tokens[:, :-1]), tokens[:, 1:])

    tokens = integers(2, (2, 7), WORDS)
    return trained(Whisper(nnx.Rngs(0)), loss, uniform(1, (2, 104)), tokens)


@stranger("flax")
def whisper_transcription() -> Call:
    """Whisper: three tokens with caches, cross attention computed once."""
    model, prompt = Whisper(nnx.Rngs(0)), integers(2, (2, 2), WORDS)
    return called(model, uniform(1, (2, 104)), prompt, method="transcribe")


# ---- Qwen3-VL: images among tokens, in three dimensions.

SECTIONS = (2, 1, 1)


def interleaved_angles(places: Array, head: int) -> Array:
    """Return [B, T, head / 2] angles of places [3, B, T]: time, row and column.

    The frequencies are dealt out in turn, and what remains is time's.
    """
    frequency = jnp.asarray(1e4 ** -(np.arange(0, head, 2) / head), jnp.float32)
    each = jnp.einsum("abt,k->abtk", places, frequency)
    angle = each[0]
    for axis in (1, 2):
        which = slice(axis, 3 * SECTIONS[axis], 3)
        angle = angle.at[..., which].set(each[axis][..., which])
    return angle


class VisionTower(nnx.Module):
    """Patches of two frames, places between learned ones, four patches a token."""

    def __init__(self, rngs: nnx.Rngs):
        self.patches = nnx.Conv(
            3, WIDTH, (2, 2, 2), strides=(2, 2, 2), padding="VALID", rngs=rngs
        )
        self.places = nnx.Embed(9, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(WIDTH, 2, rngs) for _ in range(3)])
        merger = lambda: nnx.Sequential(  # noqa: E731
            nnx.LayerNorm(4 * WIDTH, rngs=rngs),
            nnx.Linear(4 * WIDTH, 24, rngs=rngs),
            nnx.gelu,
            nnx.Linear(24, WIDTH, rngs=rngs),
        )
        self.merge, self.deep = merger(), nnx.List([merger() for _ in range(2)])

    def places_between(self, rows: int, columns: int) -> Array:
        """Return the four nearest of 3 x 3 learned places, weighted."""
        y, x = np.linspace(0, 2, rows), np.linspace(0, 2, columns)
        out = 0
        for dy in (0, 1):
            for dx in (0, 1):
                row, column = (
                    np.minimum(np.floor(n).astype(int) + d, 2)
                    for n, d in ((y, dy), (x, dx))
                )
                weight = np.outer(np.abs(1 - dy - y % 1), np.abs(1 - dx - x % 1))
                near = self.places(jnp.asarray(3 * row[:, None] + column))
                out = out + near * jnp.asarray(weight, jnp.float32)[..., None]
        return out

    def __call__(self, video: Array) -> tuple[Array, list[Array]]:
        """Return the tokens of an image, and what two layers say of them."""
        x = self.patches(video)[:, 0]
        batch, rows, columns, _ = x.shape
        x = x + self.places_between(rows, columns)
        # The four patches of a token lie side by side.
        beside = lambda t: (  # noqa: E731
            t.reshape(-1, rows // 2, 2, columns // 2, 2, t.shape[-1])
            .swapaxes(2, 3)
            .reshape(len(t), rows * columns, -1)
        )
        place = beside(grid(rows, columns).reshape(1, rows, columns, 2))
        frequency = jnp.asarray(1e4 ** -(np.arange(2) / 2), jnp.float32)
        turn = turning(jnp.einsum("bta,k->btak", place, frequency).reshape(1, -1, 4))
        x, deep = beside(x), []
        for i, block in enumerate(self.blocks):
            x = block(x, turn=turn)
            if i < len(self.deep):
                deep.append(self.deep[i](x.reshape(batch, -1, 4 * WIDTH)))
        return self.merge(x.reshape(batch, -1, 4 * WIDTH)), deep


class Qwen3Vl(nnx.Module):
    """A language model whose first layers are given more of an image."""

    def __init__(self, rngs: nnx.Rngs):
        self.vision = VisionTower(rngs)
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.attentions = nnx.List(
            [
                Attention(WIDTH, 4, rngs, kv_heads=2, head=8, qk_norm=RMSNorm)
                for _ in range(3)
            ]
        )
        self.mlps = nnx.List([GatedMlp(WIDTH, 24, rngs) for _ in range(3)])
        self.norms = nnx.List([RMSNorm(WIDTH) for _ in range(7)])
        self.head = Einsum("BTD,DV->BTV", (WIDTH, WORDS), rngs)

    def __call__(self, tokens: Array, video: Array, places: Array) -> Array:
        """Return logits; token 0 stands for a token of the image."""
        image, deep = self.vision(video)
        rows, columns = jnp.nonzero(tokens == 0, size=image.shape[0] * image.shape[1])
        put = lambda x: x.reshape(-1, WIDTH)  # noqa: E731
        x = self.embed(tokens).at[rows, columns].set(put(image))
        turn = turning(interleaved_angles(places, 8))
        order = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        mask = seen(order, order)
        for i in range(3):
            y = self.norms[2 * i](x)
            x = x + self.attentions[i](y, turn=turn, mask=mask)
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
            if i < len(deep):
                x = x.at[rows, columns].add(put(deep[i]))
        return self.head(self.norms[6](x))


@stranger("flax")
def qwen3_vl() -> Call:
    """Qwen3-VL: rotation in three dimensions, an image for many layers, one step."""

    def loss(model, tokens, video, places):
        return token_loss(model(tokens, video, places)[:, :-1], tokens[:, 1:])

    tokens = 1 + integers(1, (2, 10), WORDS - 1)
    tokens = tokens.at[0, 2:6].set(0).at[1, 4:8].set(0)
    rows, columns = np.divmod(np.arange(4), 2)
    places = np.broadcast_to(np.arange(10), (3, 2, 10)).copy()
    for example, start in ((0, 2), (1, 4)):
        image = start + np.stack([np.zeros(4, int), rows, columns])
        places[:, example, start : start + 4] = image
        places[:, example, start + 4 :] -= 2
    video = uniform(3, (2, 2, 8, 8, 3))
    return trained(Qwen3Vl(nnx.Rngs(0)), loss, tokens, video, jnp.asarray(places))
