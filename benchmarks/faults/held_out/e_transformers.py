"""Language models: positions, masks, routers, norms and sampling, in several layers."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal


def rms_norm(x, gain):
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * gain


def rotate(x, angles):
    left, right = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def _layers(seed, count, width, hidden):
    return [
        {
            "q": normal(seed + 10 * i, width, width, scale=1.5 * width**-0.5),
            "k": normal(seed + 10 * i + 1, width, width // 2, scale=1.5 * width**-0.5),
            "v": normal(seed + 10 * i + 2, width, width // 2, scale=width**-0.5),
            "o": normal(seed + 10 * i + 3, width, width, scale=width**-0.5),
            "gate": normal(seed + 10 * i + 4, width, hidden, scale=width**-0.5),
            "up": normal(seed + 10 * i + 5, width, hidden, scale=width**-0.5),
            "down": normal(seed + 10 * i + 6, hidden, width, scale=hidden**-0.5),
            "g1": normal(seed + 10 * i + 7, width, scale=0.1, shift=1.0),
            "g2": normal(seed + 10 * i + 8, width, scale=0.1, shift=1.0),
        }
        for i in range(count)
    ]


@fault("coarse", policy="bf16")
@source("reports of decoders whose position ids are cast to the dtype of activations")
@inputs(by=lambda: (_layers(100, 2, 32, 64), "48x32 @1", "f32 1201"))
def rotary_positions_in_the_dtype_of_tokens(layers, tokens, start):
    x = tokens.astype(jnp.bfloat16)
    place = start + jnp.arange(tokens.shape[0], dtype=jnp.float32)
    place = place.astype(x.dtype)  # fault
    frequency = 1e4 ** (-jnp.arange(4, dtype=jnp.float32) / 4)
    angles = place.astype(jnp.float32)[:, None] * frequency
    mask = jnp.tril(jnp.ones((48, 48), bool))
    for p in layers:
        h = rms_norm(x, p["g1"]).astype(jnp.bfloat16)
        q = (h @ p["q"]).astype(jnp.float32).reshape(-1, 4, 8).transpose(1, 0, 2)
        k = (h @ p["k"]).astype(jnp.float32).reshape(-1, 2, 8).transpose(1, 0, 2)
        v = (h @ p["v"]).reshape(-1, 2, 8).transpose(1, 0, 2)
        q, k = rotate(q, angles) * 8**-0.5, rotate(k, angles)
        k, v = jnp.repeat(k, 2, 0), jnp.repeat(v, 2, 0)
        scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k), -1e9)
        read = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)
        x = x + read.transpose(1, 0, 2).reshape(48, 32) @ p["o"]
        h = rms_norm(x, p["g2"]).astype(jnp.bfloat16)
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
    return x.astype(jnp.float32)


@fault("overflow", policy="fp16")
@source("reports of T5 in half precision whose gated layers are Inf")
@inputs(by=lambda: (_layers(200, 3, 32, 64), "24x32 *3 @2", "f32 24"))
def gated_layers_beyond_half(layers, tokens, gain):
    x = tokens
    mask = jnp.tril(jnp.ones((24, 24), bool))
    for p in layers:
        h = layer_norm(x)
        q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
        scores = q[:, :16] @ k.T / 4
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.concatenate([weights @ v, weights @ v], -1) @ p["o"]
        h = layer_norm(x) * gain
        gate = jax.nn.gelu(h @ p["gate"]).astype(jnp.float16)
        up = (h @ p["up"]).astype(jnp.float16)
        both = gate * (up * gain.astype(jnp.float16))  # fault
        # + both = gate * (up * jnp.float16(2**-10) * gain.astype(jnp.float16))
        down = (both @ p["down"].astype(jnp.float16)).astype(jnp.float32)
        # + down = down * 2.0**10
        x = x + 1e-3 * down
    return layer_norm(x)


@fault("coarse", "stagnation", policy="bf16")
@source("reports of mixtures of experts whose tokens overwrite one another")
@inputs("768x16 @3; 16x2 *0.3 @4; 2x16x32 *0.25 @5; 2x32x16 *0.2 @6; 768x16 @7")
def slots_of_experts_counted_in_bfloat16(x, router, up, down, target):
    probability = jax.nn.softmax(layer_norm(x) @ router)
    choice = jnp.argmax(x[:, :2], axis=-1)
    gate = jnp.take_along_axis(probability, choice[:, None], axis=-1)
    chosen = jax.nn.one_hot(choice, 2, dtype=jnp.float32)
    order = jnp.cumsum(chosen.astype(jnp.bfloat16), axis=0)  # fault
    # + order = jnp.cumsum(chosen, axis=0)
    slot = jnp.sum(order.astype(jnp.float32) * chosen, axis=-1).astype(jnp.int32) - 1
    buffer = jnp.zeros((2, 512, 16)).at[choice, slot].set(x, mode="drop")
    hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", buffer, up))
    worked = jnp.einsum("ecf,efd->ecd", hidden, down)
    out = x + gate * worked[choice, slot]
    return out, jnp.mean(jnp.square(out - target), axis=-1)


@fault("non-finite", policy="mxfp8", target="trn3")
@source("reports of NaN in encoders for batches with empty sequences")
@inputs(by=lambda: (_layers(300, 2, 32, 64), "4x16x32 @8", "i32 16 9 0 5"))
def rows_of_padding_without_a_key(layers, x, lengths):
    real = jnp.arange(16)[None, :] < lengths[:, None]
    for p in layers:
        h = rms_norm(x, p["g1"])
        q = h @ p["q"][:, :16] / 4
        scores = jnp.einsum("bqd,bkd->bqk", q, h @ p["k"])
        shifted = scores - jnp.max(scores, axis=-1, keepdims=True)
        grown = jnp.where(real[:, None, :], jnp.exp(shifted), 0.0)
        weights = grown / jnp.sum(grown, axis=-1, keepdims=True)  # fault
        # + weights = grown / jnp.maximum(jnp.sum(grown, -1, keepdims=True), 1e-9)
        read = jnp.einsum("bqk,bkd->bqd", weights, h @ p["v"])
        x = x + jnp.concatenate([read, read], -1) @ p["o"]
        h = rms_norm(x, p["g2"])
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
    pooled = jnp.sum(x * real[..., None], axis=1)
    return pooled / jnp.maximum(lengths, 1)[:, None]


@fault("cancellation", policy="fp32")
@source("reports of fused layer norms that take E[x^2] - E[x]^2 of massive activations")
@inputs(by=lambda: (_layers(400, 3, 32, 64), "24x32 @9", "24x1 *40 +1500 @10"))
def one_pass_variance_of_a_shifted_stream(layers, x, drift):
    mask = jnp.tril(jnp.ones((24, 24), bool))
    for i, p in enumerate(layers):
        h = layer_norm(x)
        scores = (h @ p["q"][:, :16]) @ (h @ p["k"]).T / 4
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        read = weights @ (h @ p["v"])
        x = x + jnp.concatenate([read, read], -1) @ p["o"]
        if i == 1:
            x = x + drift
        mean = jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.mean(x * x, axis=-1, keepdims=True) - mean * mean  # fault
        # + var = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
        h = (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["g2"]
        x = x + jax.nn.gelu(h @ p["up"]) @ p["down"]
    return layer_norm(x)


@fault("non-finite", policy="fp8")
@source("reports of blockwise attention whose first blocks are wholly masked")
@inputs(by=lambda: (_layers(500, 1, 32, 64), "64x32 @11", "i32 20"))
def blocks_of_keys_before_the_first_real_one(layers, x, padding):
    p = layers[0]
    h = rms_norm(x, p["g1"])
    q = h @ p["q"][:, :16] / 4
    keys = (h @ p["k"]).reshape(8, 8, 16)
    values = (h @ p["v"]).reshape(8, 8, 16)
    rows = jnp.arange(64)

    def turn(carry, block):
        top, total, read = carry
        k, v, start = block
        place = start + jnp.arange(8)
        seen = (place[None] <= rows[:, None]) & (place[None] >= padding)
        scores = jnp.where(seen, q @ k.T, -jnp.inf)
        new = jnp.maximum(top, jnp.max(scores, axis=-1))
        shrink = jnp.exp(top - new)  # here
        grown = jnp.where(seen, jnp.exp(scores - new[:, None]), 0.0)
        read = read * shrink[:, None] + grown @ v
        return (new, total * shrink + grown.sum(-1), read), None

    lowest = jnp.full(64, -jnp.inf)  # -
    # + lowest = jnp.full(64, -1e30)
    first = (lowest, jnp.zeros(64), jnp.zeros((64, 16)))
    (_, total, read), _ = jax.lax.scan(turn, first, (keys, values, 8 * jnp.arange(8)))
    read = jnp.where((rows >= padding)[:, None], read, 0.0)
    read = read / jnp.maximum(total, 1e-20)[:, None]
    x = x + jnp.concatenate([read, read], -1) @ p["o"]
    h = rms_norm(x, p["g2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


@fault("uniform", "coarse", policy="fp8")
@source("reports of routers that FP8 makes even: experts that differ by a small part")
@inputs(
    "64x32 *0.3 +1 @12; 32x1 *0.05 +1 @13; 32x6 *0.02 @14; 6x32x48 *0.15 @15; "
    "6x48x32 *0.15 @16"
)
def a_router_of_experts_that_hardly_differ(x, common, special, up, down):
    router = common + special  # -
    # + router = special - jnp.mean(special, axis=-1, keepdims=True)
    logits = x @ router  # here
    scaled = 4.0 * (logits - jnp.max(logits, axis=-1, keepdims=True))
    gates = jax.nn.softmax(scaled)
    hidden = jax.nn.gelu(jnp.einsum("td,edf->etf", layer_norm(x), up))
    worked = jnp.einsum("etf,efd->etd", hidden, down)
    mixed = jnp.einsum("te,etd->td", gates, worked)
    used = jnp.mean(gates, axis=0)
    return x + mixed, gates, 6 * jnp.sum(used * used)


@fault("stagnation", "absorption", policy="bf16")
@source("reports of nucleus sampling over large vocabularies in the dtype of logits")
@inputs("4x24 @17; 24x24 *0.2 @18; 24x1024 *0.05 @19; f32 0.9")
def a_nucleus_summed_in_bfloat16(x, w, unembed, share):
    h = layer_norm(jnp.tanh(layer_norm(x) @ w))
    logits = h @ unembed
    probability = jax.nn.softmax(logits)
    best, order = jax.lax.top_k(probability, 1024)

    def turn(total, p):
        total = (total + p).astype(jnp.bfloat16)  # fault
        # + total = total + p
        return total, total

    start = jnp.zeros(4, jnp.bfloat16)  # -
    # + start = jnp.zeros(4)
    _, running = jax.lax.scan(turn, start, best.T)
    kept = running.T.astype(jnp.float32) - best < share
    chosen = jnp.where(kept, best, 0.0)
    chosen = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
    return jnp.zeros_like(chosen).at[jnp.arange(4)[:, None], order].set(chosen)
