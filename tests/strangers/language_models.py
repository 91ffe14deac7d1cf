"""Language models in Flax NNX: what is typical of each, tiny, steps and decoding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.strangers.layers import (
    Array,
    Attention,
    Einsum,
    GatedMlp,
    KeyValues,
    RMSNorm,
    angles,
    called,
    seen,
    token_loss,
    trained,
    turning,
)
from tests.strangers.program import Call, stranger
from tests.zoo.program import integers, uniform

WORDS, WIDTH = 40, 16
TOKENS = 1 + integers(1, (2, 12), WORDS - 1)
#: The position of a token of padding.
NOWHERE = 2**30


# ---- Qwen3: grouped queries with a norm each, padding, a cache.


class Qwen3Layer(nnx.Module):
    """Attention with norms of queries and keys, and a gated perceptron."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention = Attention(WIDTH, 4, rngs, kv_heads=2, head=8, qk_norm=RMSNorm)
        self.mlp = GatedMlp(WIDTH, 24, rngs)

    def __call__(self, x: Array, **how) -> Array:
        x = x + self.attention(self.norm1(x), **how)
        return x + self.mlp(self.norm2(x))


class Qwen3(nnx.Module):
    """Two layers whose caches know where a padded prompt begins."""

    def __init__(self, rngs: nnx.Rngs, batch: int, size: int):
        initial = nnx.initializers.normal(0.5)
        self.embedding = nnx.Param(initial(rngs.params(), (WORDS, WIDTH)))
        self.layers = nnx.List([Qwen3Layer(rngs) for _ in range(2)])
        self.caches = nnx.List([KeyValues(batch, size, 2, 8) for _ in range(2)])
        self.start = nnx.Cache(jnp.full((batch,), -1))
        self.norm = RMSNorm(WIDTH)
        self.head = Einsum("BTD,DV->BTV", (WIDTH, WORDS), rngs)

    def __call__(self, tokens: Array) -> Array:
        """Return logits of tokens [B, T]; token 0 is padding on the left."""
        valid = tokens != 0
        padding = jnp.sum(jnp.cumsum(valid, axis=-1) == 0, axis=-1)
        self.start[...] = jnp.where(self.start[...] < 0, padding, self.start[...])
        start, used = self.start[...][:, None], self.caches[0].used[...]
        here = used + jnp.arange(tokens.shape[1])[None]
        positions = jnp.where(valid, here - start, NOWHERE)
        there = jnp.arange(self.caches[0].k.shape[1])[None] - start
        mask = seen(here - start, there) & (there >= 0)[:, None]
        turn = turning(angles(positions, 8, 1e6))
        x = self.embedding[...][tokens]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = layer(x, turn=turn, mask=mask & valid[:, :, None], cache=cache)
        return self.head(self.norm(x))

    def generate(self, tokens: Array) -> Array:
        """Return three tokens after a prompt, the most probable ones."""
        out = [jnp.argmax(self(tokens)[:, -1:], axis=-1)]
        for _ in range(2):
            out.append(jnp.argmax(self(out[-1])[:, -1:], axis=-1))
        return jnp.concatenate(out, axis=1)


#: Two prompts, of six tokens and of three.
PROMPTS = TOKENS[:, :6].at[1, :3].set(0)


@stranger("flax")
def qwen3_prefill() -> Call:
    """Qwen3: a padded prompt fills the cache."""
    return called(Qwen3(nnx.Rngs(0), 2, 10), PROMPTS)


@stranger("flax")
def qwen3_generation() -> Call:
    """Qwen3: three tokens after a padded prompt, with a cache."""
    return called(Qwen3(nnx.Rngs(0), 2, 10), PROMPTS, method="generate")


# ---- Gemma-3: windows and two bases of rotation.

GEMMA_NORM = lambda width: RMSNorm(width, offset=1.0)  # noqa: E731


class Gemma3Layer(nnx.Module):
    """Norms before and after, attention in a window or to all, a gate of GELU."""

    def __init__(self, rngs: nnx.Rngs, *, is_global: bool):
        self.window, self.base = (None, 1e6) if is_global else (4, 1e4)
        #: Positions of global layers are eight times as dense.
        self.stretch = 8.0 if is_global else 1.0
        self.norms = nnx.List([GEMMA_NORM(WIDTH) for _ in range(4)])
        self.attention = Attention(
            WIDTH, 4, rngs, kv_heads=2, head=8, qk_norm=GEMMA_NORM, scale=0.25
        )
        self.mlp = GatedMlp(WIDTH, 24, rngs, act=nnx.gelu)

    def __call__(self, x: Array, positions: Array, keys: Array, image=None, cache=None):
        turn = turning(angles(positions / self.stretch, 8, self.base))
        mask = seen(positions, keys, self.window)
        if image is not None:
            mask = mask | (image[:, :, None] & image[:, None, :])
        before, after, between, last = self.norms
        read = self.attention(before(x), turn=turn, mask=mask, cache=cache)
        x = x + after(read)
        return x + last(self.mlp(between(x)))


class Gemma3(nnx.Module):
    """Two local layers and a global one, a scaled embedding, capped logits."""

    def __init__(self, rngs: nnx.Rngs, size: int):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.project = nnx.Linear(12, WIDTH, use_bias=False, rngs=rngs)
        self.layers = nnx.List([Gemma3Layer(rngs, is_global=i == 2) for i in range(3)])
        self.caches = nnx.List([KeyValues(2, size, 2, 8) for _ in range(3)])
        self.norm = GEMMA_NORM(WIDTH)

    def embedded(self, tokens: Array) -> Array:
        """Return embeddings that are as large as their width has it."""
        return self.embed(tokens) * jnp.sqrt(WIDTH).astype(jnp.float32)

    def logits(self, x: Array) -> Array:
        """Return logits that stay within plus and minus 30."""
        return 30.0 * jnp.tanh(self.embed.attend(self.norm(x)) / 30.0)

    def __call__(self, tokens: Array, patches: Array) -> Array:
        """Return logits; the tokens 0 stand for the patches of an image, in order."""
        image = tokens == 0
        which = jnp.clip(jnp.cumsum(image, axis=-1) - 1, 0)
        pooled = patches.reshape(*patches.shape[:2], 4, -1).mean(2)
        seen_patches = jnp.take_along_axis(self.project(pooled), which[..., None], 1)
        x = jnp.where(image[..., None], seen_patches, self.embedded(tokens))
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        for layer in self.layers:
            x = layer(x, positions, positions, image)
        return self.logits(x)

    def decode(self, token: Array) -> Array:
        """Return logits of one token behind those of the cache."""
        used, size = self.caches[0].used[...], self.caches[0].k.shape[1]
        here = jnp.full(token.shape, used)
        there = jnp.broadcast_to(jnp.arange(size), (len(token), size))
        x = self.embedded(token)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = layer(x, here, there, cache=cache)
        return self.logits(x)


@stranger("flax")
def gemma3() -> Call:
    """Gemma-3: an image among tokens, windows and global attention, one step."""

    def loss(model, tokens, patches):
        return token_loss(model(tokens[:, :-1], patches), tokens[:, 1:])

    tokens = TOKENS.at[:, 2:6].set(0)
    return trained(Gemma3(nnx.Rngs(0), 1), loss, tokens, uniform(3, (2, 4, 48)))


@stranger("flax")
def gemma3_generation() -> Call:
    """Gemma-3: seven tokens by scan, with caches and windows."""
    graph, state = nnx.split(Gemma3(nnx.Rngs(0), 8))

    def generate(state, token):
        def step(carry, _):
            model = nnx.merge(graph, carry[0])
            logits = model.decode(carry[1])
            return (nnx.state(model), jnp.argmax(logits, axis=-1)), logits

        (state, token), logits = jax.lax.scan(step, (state, token), length=7)
        return nnx.filter_state(state, nnx.Cache), token, logits

    return generate, (state, TOKENS[:, :1])


# ---- LLaDA: masked tokens, seen from both sides.


class Llada(nnx.Module):
    """Two layers without a causal mask; the last word is the mask."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(WORDS + 1, WIDTH, rngs=rngs)
        self.norms = nnx.List([RMSNorm(WIDTH) for _ in range(5)])
        self.attentions = nnx.List([Attention(WIDTH, 2, rngs) for _ in range(2)])
        self.mlps = nnx.List([GatedMlp(WIDTH, 24, rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        x = self.embed(tokens)
        turn = turning(angles(jnp.arange(tokens.shape[1])[None], 8, 5e5))
        for i in range(2):
            x = x + self.attentions[i](self.norms[2 * i](x), turn=turn)
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x))


@stranger("flax")
def llada() -> Call:
    """LLaDA: tokens masked at random are guessed, one step."""

    def loss(model, tokens, key):
        keys = jax.random.split(key)
        share = jax.random.uniform(keys[0], (len(tokens), 1), minval=0.1)
        masked = jax.random.uniform(keys[1], tokens.shape) < share
        logits = model(jnp.where(masked, WORDS, tokens))
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(logits), tokens[..., None], axis=-1
        )[..., 0]
        return -jnp.sum(jnp.where(masked, chosen / share, 0)) / tokens.size

    return trained(Llada(nnx.Rngs(0)), loss, TOKENS, jax.random.key(1))


@stranger("flax")
def llada_sampling() -> Call:
    """LLaDA: the surest of all masked tokens are kept, step by step."""
    graph, state = nnx.split(Llada(nnx.Rngs(0)))

    def sample(state, prompt, key):
        model, steps = nnx.merge(graph, state), 3
        tokens = jnp.pad(prompt, ((0, 0), (0, 6)), constant_values=WORDS)

        def keep(step, tokens):
            logits, masked = model(tokens), tokens == WORDS
            noise = jax.random.gumbel(jax.random.fold_in(key, step), logits.shape)
            guess = jnp.argmax(logits + 0.5 * noise, axis=-1)
            sure = jax.nn.softmax(logits)
            sure = jnp.take_along_axis(sure, guess[..., None], axis=-1)[..., 0]
            sure = jnp.where(masked, sure, -jnp.inf)
            _, best = jax.lax.top_k(sure, 6 // steps)
            kept = jax.vmap(lambda row, i: row.at[i].set(True))(
                jnp.zeros(tokens.shape, bool), best
            )
            return jnp.where(kept & masked, guess, tokens)

        return jax.lax.fori_loop(0, steps, keep, tokens)

    return sample, (state, TOKENS[:, :4], jax.random.key(1))


# ---- Mamba-2: a state space in chunks.


def segment_sums(x: Array) -> Array:
    """Return [..., T, T]: the sum of x after s up to t, or minus infinity."""
    total = jnp.cumsum(x, axis=-1)
    size = x.shape[-1]
    below = jnp.tril(jnp.ones((size, size), bool))
    return jnp.where(below, total[..., :, None] - total[..., None, :], -jnp.inf)


def chunked_scan(x, decay, b, c, state, chunk):
    """Return (outputs, last state) of h = exp(decay) h + b x, y = c h.

    Args:
        x: [B, L, H, P]; decay: [B, L, H]; b, c: [B, L, H, N].
        state: [B, H, P, N], before the first step.
        chunk: how many steps are one product of matrices.
    """
    split = lambda t: t.reshape(len(t), -1, chunk, *t.shape[2:])  # noqa: E731
    x, b, c = split(x), split(b), split(c)
    decay = jnp.moveaxis(split(decay), -1, 1)
    total = jnp.cumsum(decay, axis=-1)
    inside = jnp.einsum(
        "bclhn,bcshn,bhcls,bcshp->bclhp", c, b, jnp.exp(segment_sums(decay)), x
    )
    rest = jnp.exp(total[..., -1:] - total)
    states = jnp.einsum("bclhn,bhcl,bclhp->bchpn", b, rest, x)
    states = jnp.concatenate([state[:, None], states], axis=1)
    ends = jnp.pad(total[..., -1], ((0, 0), (0, 0), (1, 0)))
    states = jnp.einsum("bhzc,bchpn->bzhpn", jnp.exp(segment_sums(ends)), states)
    before = jnp.einsum("bclhn,bchpn,bhcl->bclhp", c, states[:, :-1], jnp.exp(total))
    y = inside + before
    return y.reshape(len(y), -1, *y.shape[3:]), states[:, -1]


class Mamba2Layer(nnx.Module):
    """Projections, a causal depthwise convolution, the scan and a gated norm."""

    HEADS, HEAD, STATE, TAPS = 4, 8, 6, 4

    def __init__(self, rngs: nnx.Rngs, batch: int):
        inner = self.HEADS * self.HEAD
        mixed = inner + 2 * self.STATE
        self.norm, self.gate_norm = RMSNorm(WIDTH), RMSNorm(inner)
        self.enter = nnx.Linear(
            WIDTH, inner + mixed + self.HEADS, use_bias=False, rngs=rngs
        )
        self.conv = nnx.Conv(
            mixed,
            mixed,
            (self.TAPS,),
            padding="VALID",
            feature_group_count=mixed,
            rngs=rngs,
        )
        self.a_log = nnx.Param(jnp.log(jnp.linspace(1.0, 8.0, self.HEADS)))
        self.step_bias = nnx.Param(jnp.linspace(-3.0, -1.0, self.HEADS))
        self.skip = nnx.Param(jnp.ones(self.HEADS))
        self.leave = nnx.Linear(inner, WIDTH, use_bias=False, rngs=rngs)
        self.taps = nnx.Cache(jnp.zeros((batch, self.TAPS - 1, mixed)))
        self.state = nnx.Cache(jnp.zeros((batch, self.HEADS, self.HEAD, self.STATE)))

    def __call__(self, x: Array, chunk: int) -> Array:
        inner, shape = self.HEADS * self.HEAD, (*x.shape[:2], self.HEADS)
        z, mixed, step = jnp.split(
            self.enter(self.norm(x)), [inner, 2 * inner + 2 * self.STATE], axis=-1
        )
        padded = jnp.concatenate([self.taps[...], mixed], axis=1)
        self.taps[...] = padded[:, 1 - self.TAPS :]
        mixed = nnx.silu(self.conv(padded))
        u, b, c = jnp.split(mixed, [inner, inner + self.STATE], axis=-1)
        u = u.reshape(*shape, self.HEAD)
        b, c = (jnp.broadcast_to(t[:, :, None], (*shape, self.STATE)) for t in (b, c))
        step = jax.nn.softplus(step + self.step_bias[...])
        decay = -jnp.exp(self.a_log[...]) * step
        y, self.state[...] = chunked_scan(
            u * step[..., None], decay, b, c, self.state[...], chunk
        )
        y = (y + self.skip[...][:, None] * u).reshape(*x.shape[:2], inner)
        return x + self.leave(self.gate_norm(y * nnx.silu(z)))


class Mamba2(nnx.Module):
    """Two layers, and the embedding once more as the head."""

    def __init__(self, rngs: nnx.Rngs, batch: int):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.layers = nnx.List([Mamba2Layer(rngs, batch) for _ in range(2)])
        self.norm = RMSNorm(WIDTH)

    def __call__(self, tokens: Array, chunk: int = 4) -> Array:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, chunk)
        return self.embed.attend(self.norm(x))

    def decode(self, tokens: Array) -> Array:
        """Return logits of tokens that come one by one."""
        each = [self(tokens[:, i : i + 1], 1) for i in range(tokens.shape[1])]
        return jnp.concatenate(each, axis=1)


@stranger("flax")
def mamba2() -> Call:
    """Mamba-2: chunks of a state space by einsum, one step."""

    def loss(model, tokens):
        return token_loss(model(tokens[:, :-1]), tokens[:, 1:])

    tokens = integers(1, (2, 13), WORDS)
    return trained(Mamba2(nnx.Rngs(0), 2), loss, tokens)


@stranger("flax")
def mamba2_decoding() -> Call:
    """Mamba-2: three tokens one by one, with the states of both layers."""
    return called(Mamba2(nnx.Rngs(0), 2), TOKENS[:, :3], method="decode")
