"""Layers in training: attention, rotations, routing, recurrences, diffusion."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import layer_norm


@fault("coarse", "cancellation", policy="fp32")
@source("ports of differential attention under mixed precision")
@inputs(
    "40x32 @1; 32x16 w @2; 32x16 w @3; 32x16 *0.001 @4; f32 1; 32x32 w @5; 40x32 @6"
)
def difference_of_two_rounded_attentions(x, wq, wk, shift, strength, wv, y):
    causal = jnp.tril(jnp.ones((40, 40), jnp.bfloat16))

    def weights(q, k):
        scores = jnp.where(causal > 0, q @ k.T / 4.0, -1e9)
        return jax.nn.softmax(scores).astype(jnp.bfloat16)  # fault
        # + return jax.nn.softmax(scores)

    def loss(wv):
        h = layer_norm(x)
        first, second = weights(h @ wq, h @ wk), weights(h @ (wq + shift), h @ wk)
        share = first.astype(jnp.float32) - strength * second.astype(jnp.float32)
        read = share @ (h @ wv)
        size = jnp.mean(jnp.square(read), axis=-1, keepdims=True)
        read = read * jax.lax.rsqrt(size + 1e-12)
        return jnp.mean(jnp.square(read - y)), read

    (value, read), grad = jax.value_and_grad(loss, has_aux=True)(wv)
    return value, read, wv - 0.1 * grad


@fault("integer", "coarse", policy="bf16")
@source("reports of rotary positions that are cast with the model")
@inputs("48x32 @11; 32x16 w*2 @12; 32x16 w*2 @13; 32x32 w @14; i32 5001")
def rotary_angles_of_positions_in_half(x, wq, wk, wv, first):
    def rotate(h):
        rate = 10000.0 ** (-jnp.arange(8) / 8.0)
        place = (first + jnp.arange(48)).astype(jnp.float16)  # fault
        # + place = (first + jnp.arange(48)).astype(jnp.float32)
        angle = place.astype(jnp.float32)[:, None] * rate
        even, odd = h[:, :8], h[:, 8:]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], axis=1)

    h = layer_norm(x)
    scores = rotate(h @ wq) @ rotate(h @ wk).T / 4.0
    causal = jnp.tril(jnp.ones((48, 48), bool))
    share = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return x + share @ (h @ wv), share


@fault("overflow", "non-finite", policy="fp32")
@source("softmax with a one in the denominator, written out")
@inputs("24x32 @21; 32x16 w*5 @22; 32x16 w*5 @23; 32x8 w @24; 24x8 @25")
def attention_that_may_look_away(x, wq, wk, wv, y):
    def loss(wv):
        h = layer_norm(x)
        scores = (h @ wq) @ (h @ wk).T
        share = jnp.exp(scores) / (
            1.0 + jnp.exp(scores).sum(-1, keepdims=True)
        )  # fault
        # + whole = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        # + share = jnp.exp(scores - jnp.logaddexp(0.0, whole))
        return jnp.mean(jnp.square(share @ (h @ wv) - y)), share

    (value, share), grad = jax.value_and_grad(loss, has_aux=True)(wv)
    return value, share, grad


@fault("underflow", policy="fp16")
@source("reports of query-key norms of small projections in half precision")
@inputs("32x24 @31; 24x16 *3e-5 @32; 24x16 *3e-5 @33; 24x24 w @34; 16 0.5..3 @35")
def query_key_norm_of_small_halves(x, wq, wk, wv, gain):
    def unit(h):
        h = h.astype(jnp.float16)
        size = jnp.mean(jnp.square(h), axis=-1, keepdims=True)  # fault
        # + size = jnp.mean(jnp.square(h.astype(jnp.float32)), axis=-1, keepdims=True)
        return gain * h * jax.lax.rsqrt(size.astype(jnp.float32) + 1e-14)

    h = layer_norm(x)
    q, k = unit(h @ wq), unit(h @ wk)
    share = jax.nn.softmax(q @ k.T / 4.0)
    return x + share @ (h @ wv), q, k


@fault("absorption", "stagnation", policy="fp32")
@source("experts balanced by a bias: its steps of 0.001 are lost in BF16")
@inputs("64x16 @41; 16x8 w @42; 8 =1.5; 8x16 @43")
def routing_bias_that_takes_no_steps(x, router, bias, values):
    score = jax.nn.sigmoid(x @ router)
    bias = bias.astype(jnp.bfloat16)  # -

    def turn(bias, _):
        chosen = jax.nn.one_hot(jnp.argmax(score + bias, axis=-1), 8)
        load = jnp.mean(chosen, axis=0)
        push = 1e-3 * jnp.sign(0.125 - load)
        return bias + push.astype(bias.dtype), load  # here

    bias, loads = jax.lax.scan(turn, bias, length=120)
    bias = bias.astype(jnp.float32)
    chosen = jax.nn.one_hot(jnp.argmax(score + bias, axis=-1), 8)
    gate = jnp.sum(score * chosen, axis=-1, keepdims=True)
    return bias - jnp.mean(bias), loads[-1], gate * (chosen @ values)


@fault("coarse", "cancellation", policy="bf16")
@source("state-space duality: segment sums as differences of a cumulative sum")
@inputs("96x4 0.1..1 @51; 96x4 @52; 96x8 *0.3 @53; 96x8 *0.3 @54; 4x6 w @55; 96x6 @56")
def segment_sums_of_a_total_in_bfloat16(rate, u, b, c, out, y):
    def loss(out, rate):
        total = jnp.cumsum(-rate, axis=0).astype(jnp.bfloat16)  # fault
        # + total = jnp.cumsum(-rate, axis=0)
        reach = total[:, None] - total[None]
        causal = jnp.tril(jnp.ones((96, 96), bool))[:, :, None]
        decay = jnp.exp(jnp.where(causal, reach.astype(jnp.float32), -1e9))
        scores = (c @ b.T)[:, :, None] * decay
        h = jnp.sum(scores * u[None], axis=1)
        return jnp.mean(jnp.square(h @ out - y)), h

    grads, h = jax.grad(loss, argnums=(0, 1), has_aux=True)(out, rate)
    return out - 0.1 * grads[0], grads[1], h


@fault("cancellation", policy="fp32")
@source("group norm in one pass over raw sensor values")
@inputs("4x8x8x8 +3000 @61; 8 0.5..2 @62; 8 *0.1 @63; 8x3 w @64; 4 int 0..3 @65")
def group_norm_of_raw_pictures(x, gain, bias, head, labels):
    def loss(params):
        groups = x.reshape(4, 64, 4, 2)
        mean = jnp.mean(groups, axis=(1, 3), keepdims=True)
        power = jnp.mean(jnp.square(groups), axis=(1, 3), keepdims=True)
        var = jnp.maximum(power - jnp.square(mean), 0.0)  # fault
        # + var = jnp.mean(jnp.square(groups - mean), axis=(1, 3), keepdims=True)
        centred = (groups - mean) * jax.lax.rsqrt(var + 1e-3)
        h = centred.reshape(4, 64, 8) * params["gain"] + params["bias"]
        pooled = jnp.log1p(jnp.mean(jax.nn.relu(h), axis=1))
        scores = jax.nn.log_softmax(pooled @ params["head"])
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1)), h

    params = {"gain": gain, "bias": bias, "head": head}
    grads, h = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), h


@fault("cancellation", "singular", policy="fp32")
@source("cosine schedules of diffusion near the clean end")
@inputs("mlp 9x24x8 @71", "32x8 @72; 32x8 @73; 32x1 1e-4..2e-3 @74")
def cosine_schedule_near_its_start(params, x, noise, time):
    angle = 0.5 * jnp.pi * time
    keep = jnp.cos(angle)
    sigma = jnp.sqrt(1.0 - keep * keep)  # fault
    # + sigma = jnp.sin(angle)
    noisy = keep * x + sigma * noise

    def loss(params):
        hint = 0.25 * jnp.log(time)
        clean = noisy + mlp(params, jnp.concatenate([noisy, hint], axis=1))
        guess = (noisy - keep * clean) / sigma
        return jnp.mean(jnp.square(guess - noise) * jnp.square(sigma)), guess

    grads, guess = jax.grad(loss, has_aux=True)(params)
    return guess, jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


@fault("overflow", policy="fp16")
@source("preconditioned diffusion with a largest sigma of 700 in half precision")
@inputs("mlp 8x24x8 @81", "16x8 @82; 16x8 @83; 16x1 20..700 @84")
def preconditioning_of_large_sigma_in_half(params, x, noise, sigma):
    sigma = sigma.astype(jnp.float16)
    total = sigma * sigma + 0.25  # fault
    # + total = jnp.square(sigma.astype(jnp.float32)) + 0.25
    total = total.astype(jnp.float32)
    skip, scale = 0.25 / total, jax.lax.rsqrt(total)
    noisy = x + sigma.astype(jnp.float32) * noise

    def loss(params):
        inner = mlp(params, scale * noisy)
        out = skip * noisy + 0.5 * sigma.astype(jnp.float32) * scale * inner
        return jnp.mean(jnp.square(out - x)), out

    grads, out = jax.grad(loss, has_aux=True)(params)
    return out, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("integer", "stagnation", "absorption", policy="fp32")
@source("expert capacity: the place of a token by a cumulative sum of a BF16 mask")
@inputs("1024x8 @91; 8x2 @92; 2x8x8 *0.35 @93")
def places_in_experts_counted_in_bfloat16(x, router, experts):
    logits = x @ router
    best = jnp.argmax(logits, axis=-1)
    chosen = jax.nn.one_hot(best, 2, dtype=jnp.bfloat16)
    gate = jnp.max(jax.nn.softmax(logits), axis=-1, keepdims=True)
    place = jnp.cumsum(chosen, axis=0)  # fault
    # + place = jnp.cumsum(chosen.astype(jnp.float32), axis=0)
    place = jnp.sum(place * chosen, axis=1).astype(jnp.int32) - 1
    buffer = jnp.zeros((2, 700, 8)).at[best, place].add(x)
    done = jnp.tanh(jnp.einsum("ecd,edf->ecf", buffer, experts))
    return x + gate * done[best, place]
