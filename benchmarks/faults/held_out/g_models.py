"""Parts of models: recurrences, experts, diffusion, graphs, caches, tokens."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import attention, convolution, cross_entropy, layer_norm


@fault("overflow", policy="bf16")
@source("state-space layers in chunks, with the decay split into two factors")
@inputs("64x8 @1; 64x16 w @2; 64x16 w @3; 64 0.5..1.5 @4; f32 3")
def decay_in_two_factors(x, b, c, step, rate):
    total = jnp.cumsum(-rate * step)
    grow = jnp.exp(-total)  # fault
    decay = jnp.exp(total)[:, None] * grow  # -
    # + decay = jnp.exp(jnp.minimum(total[:, None] - total, 0.0))
    causal = jnp.tril(jnp.ones((64, 64), bool))
    return jnp.where(causal, c @ b.T * decay, 0.0) @ x


@fault("cancellation", policy="fp32")
@source("the discretization of state-space models at a high sampling rate")
@inputs("256 *0.5 +1 @11; 8 2e-7..2e-6 @12; 8 0.5..2 @13; 8 @14; 8 @15")
def hold_over_a_very_short_step(signal, step, rate, b, c):
    keep = jnp.exp(-step * rate)
    gain = (1.0 - jnp.exp(-step * rate)) / rate  # fault
    # + gain = -jnp.expm1(-step * rate) / rate

    def turn(state, u):
        state = keep * state + gain * b * u
        return state, jnp.sum(c * state)

    return jax.lax.scan(turn, jnp.zeros(8), signal)


@fault("integer", "stagnation", "coarse", policy="bf16")
@source("slots of experts that are counted in the dtype of the router")
@inputs("640x8 @21; 640x3 @22; 3x8x8 *0.35 @23; f32 2 0 0")
def places_in_the_queue_of_an_expert(x, scores, experts, favour):
    chosen = jax.nn.one_hot(jnp.argmax(scores + favour, axis=-1), 3)
    place = jnp.cumsum(chosen.astype(jnp.bfloat16), axis=0)  # fault
    # + place = jnp.cumsum(chosen.astype(jnp.int32), axis=0)
    expert = jnp.argmax(chosen, axis=-1)
    slot = jnp.take_along_axis(place, expert[:, None], axis=1)[:, 0]
    slot = slot.astype(jnp.int32) - 1
    queue = jnp.zeros((3, 640, 8)).at[expert, slot].add(x)
    done = jnp.tanh(jnp.einsum("esd,edf->esf", queue, experts))
    return x + done[expert, slot]


@fault("underflow", "non-finite", policy="fp16")
@source("sigmoid routers that are normalized over the experts")
@inputs("32x16 @31; 16x6 w*2 @32; 6x16x16 *0.25 @33")
def sigmoid_gates_of_a_shy_router(x, router, experts):
    logits = x @ router - 22.0
    gates = jax.nn.sigmoid(logits.astype(jnp.float16))  # fault
    # + gates = jax.nn.sigmoid(logits)
    gates = gates.astype(jnp.float32)
    share = gates / gates.sum(axis=-1, keepdims=True)
    return x + jnp.einsum("td,edf,te->tf", x, experts, share)


@fault("coarse", "absorption", policy="bf16")
@source("noise schedules that follow the dtype of the model")
@inputs("400 even 1e-4..2e-2; mlp 8x24x8 @41; 48x8 @43; 48 int 20..180 @44")
def schedule_of_noise_in_half(betas, params, x, t):
    kept = jnp.cumprod((1.0 - betas).astype(jnp.bfloat16))  # fault
    # + kept = jnp.cumprod(1.0 - betas)
    level = kept.astype(jnp.float32)[t][:, None]
    noise = mlp(params, x)
    return (x - jnp.sqrt(1.0 - level) * noise) / jnp.sqrt(level)


@fault("cancellation", policy="fp32")
@source("cosine schedules with many steps: 1 - cumulative[t + 1] / cumulative[t]")
@inputs("32 int 0..900 @51; 32x6 @52")
def noise_of_a_fine_cosine_schedule(t, noise):
    step = jnp.pi / 2 / 1.008 / 50_000
    angle = (t.astype(jnp.float32) / 50_000 + 0.008) / 1.008 * (jnp.pi / 2)
    beta = 1.0 - jnp.square(jnp.cos(angle + step) / jnp.cos(angle))  # fault
    # + rise = jnp.sin(step) * jnp.sin(2 * angle + step)
    # + beta = rise / jnp.square(jnp.cos(angle))
    return jnp.sqrt(jnp.maximum(beta, 0.0))[:, None] * noise


@fault("underflow", policy="bf16")
@source("a softmax over the edges of each node that subtracts one maximum for all")
@inputs("20x12 @61; 12x12 w @62; 12 *0.4 @63; 12 *20 @64; 160 int 0..20 @65")
def softmax_over_the_edges_of_a_node(x, w, a, b, sender):
    receiver = jnp.arange(160) % 20
    h = x @ w
    score = jax.nn.leaky_relu(jnp.sum(h * a, -1)[sender] + jnp.sum(x * b, -1)[receiver])
    top = jnp.max(score)  # -
    # + top = jax.ops.segment_max(score, receiver, 20)[receiver]
    share = jnp.exp(score - top)  # here
    total = jax.ops.segment_sum(share, receiver, 20)
    pooled = jax.ops.segment_sum(share[:, None] * h[sender], receiver, 20)
    return jax.nn.elu(pooled / total[:, None])


@fault("stale-scale", "saturation", policy="bf16")
@source("INT8 caches whose scale is that of the prompt")
@inputs("24x16 *0.2 @81; 12x16 *3 @82; 12x16 @83")
def cache_with_the_scale_of_the_prompt(prompt, values, keys):
    first = jnp.max(jnp.abs(prompt)) / 127.0
    cache = (
        jnp.zeros((36, 16), jnp.int8)
        .at[:24]
        .set(jnp.round(prompt / first).astype(jnp.int8))
    )
    scales = jnp.full((36, 1), first)

    def turn(state, token):
        cache, scales, n = state
        value, key = token
        scale = first  # -
        # + scale = jnp.max(jnp.abs(value)) / 127.0
        code = jnp.clip(jnp.round(value / scale), -127, 127)  # here
        cache = jax.lax.dynamic_update_slice(cache, code.astype(jnp.int8)[None], (n, 0))
        scales = jax.lax.dynamic_update_slice(scales, scale[None, None], (n, 0))
        wide = cache.astype(jnp.float32) * scales
        share = jax.nn.softmax(jnp.sum(wide * key, axis=-1) / 4.0)
        return (cache, scales, n + 1), share @ wide

    return jax.lax.scan(turn, (cache, scales, 24), (values, keys))[1]


@fault("integer", "coarse", policy="bf16")
@source("batches that are cast whole, ids and all")
@inputs(
    {"ids": "40 int 300..900 @91", "weight": "40 0.5..1.5 @92"},
    "900x32 @93; block 32 @94; 32x16 w @104; 40 int 0..16 @105",
)
def batch_that_is_cast_with_its_ids(batch, table, params, head, labels):
    batch = jax.tree.map(lambda a: a.astype(jnp.bfloat16), batch)  # fault
    # + batch = batch | {"weight": batch["weight"].astype(jnp.bfloat16)}
    ids, weight = batch["ids"].astype(jnp.int32), batch["weight"].astype(jnp.float32)

    def loss(head):
        x = table[ids] * weight[:, None]
        x = x + attention(params, layer_norm(x))
        return cross_entropy(layer_norm(x) @ head, labels)

    return jax.value_and_grad(loss)(head)


@fault("cancellation", policy="bf16")
@source("instance normalization in one pass")
@inputs("2x12x12x3 @111; 3x3x3x6 *0.06 @112; 6 *20 +400 @113; 6x4 w @114; i32 1 3")
def norm_of_a_picture_in_one_pass(images, kernel, bias, head, labels):
    def loss(kernel):
        x = convolution(images, kernel) + bias
        mean = x.mean((1, 2), keepdims=True)
        var = jnp.mean(x * x, (1, 2), keepdims=True) - mean * mean  # fault
        # + var = jnp.mean(jnp.square(x - mean), (1, 2), keepdims=True)
        x = (x - mean) * jax.lax.rsqrt(jnp.maximum(var, 0.0) + 1e-5)
        return cross_entropy(jax.nn.relu(x).mean((1, 2)) @ head, labels)

    value, grad = jax.value_and_grad(loss)(kernel)
    return value, kernel - 0.01 * grad


@fault("overflow", policy="bf16")
@source("residual streams in FP16 with massive activations in one channel")
@inputs("24x32 @121; 3x32x64 *0.18 @122; 3x64x32 *0.1 @123; f32 2e3; 32x8 w @124")
def residual_stream_that_outgrows_half(x, ups, downs, massive, head):
    for up, down in zip(ups, downs):
        down = down.at[:, 3].set(massive)
        h = jax.nn.gelu(layer_norm(x) @ up) @ down
        x = (x + h).astype(jnp.float16)  # fault
        # + x = x + h
    return layer_norm(x) @ head


@fault("non-finite", policy="bf16")
@source("attention in blocks whose first block is masked in whole")
@inputs("16x8 @131; 48x8 @132; 48x6 @133; 16 int 16..48 @134")
def block_that_is_masked_in_whole(q, k, v, first):
    def turn(state, block):
        top, total, read = state
        k, v, place = block
        scores = q @ k.T / 8**0.5
        scores = jnp.where(place >= first[:, None], scores, -jnp.inf)
        higher = jnp.maximum(top, scores.max(1, keepdims=True))
        share, fade = jnp.exp(scores - higher), jnp.exp(top - higher)  # fault
        # + safe = jnp.where(higher > -jnp.inf, higher, 0.0)
        # + share, fade = jnp.exp(scores - safe), jnp.exp(top - safe)
        total = fade * total + share.sum(1, keepdims=True)
        return (higher, total, fade * read + share @ v), None

    start = (jnp.full((16, 1), -jnp.inf), jnp.zeros((16, 1)), jnp.zeros((16, 6)))
    blocks = (k.reshape(6, 8, 8), v.reshape(6, 8, 6), jnp.arange(48).reshape(6, 8))
    (_, total, read), _ = jax.lax.scan(turn, start, blocks)
    return read / total


@fault("integer", "coarse", policy="bf16")
@source("beams that are put in order by a product with one-hots, which the chip rounds")
@inputs("6x20 int 0..32000 @141; 6x50 @142; 6 *0.3 @143; 32000x4 @144")
def beams_ordered_by_a_product(tokens, logits, total, table):
    scores = total[:, None] + jax.nn.log_softmax(logits)
    best, place = jax.lax.top_k(scores.reshape(-1), 6)
    origin = jax.nn.one_hot(place // 50, 6)
    tokens = origin @ tokens.astype(jnp.float32)  # fault
    # + tokens = jnp.sum(origin[:, :, None] * tokens, axis=1)
    tokens = tokens.astype(jnp.int32)
    return best, tokens, table[tokens].mean(1)
