"""Recurrences of 64 to 512 turns: state space models, filters, returns, solvers."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm


@fault("cancellation", policy="bf16")
@source("reports of zero-order hold in state space models with small time steps")
@inputs("256x8 *0.5 +0.3 @1; 8x6 w @2; 8 -15..-13.5 @3; 6 -2..-0.2 @4; 6x8 w @5")
def zero_order_hold_of_small_steps(u, b, log_step, decay, c):
    step = jnp.exp(log_step)[:, None]
    turned = step * decay
    keep = jnp.exp(turned)
    enter = (keep - 1.0) / decay  # fault
    # + enter = jnp.expm1(turned) / decay
    enter = enter * b

    def turn(state, x):
        state = keep * state + enter * x[:, None]
        return state, jnp.einsum("ds,sd->d", state, c)

    last, read = jax.lax.scan(turn, jnp.zeros((8, 6)), layer_norm(u) + u)
    return last, 2e5 * read, jax.nn.gelu(2e5 * read) @ b


@fault("uniform", "coarse", "absorption", policy="bf16")
@source("reports of gated linear recurrences (Griffin) whose gates are BF16")
@inputs("384x16 @6; 16x16 w @7; 16x16 w @8; 16 -7..-5 @9; 16x8 w @10")
def recurrent_gates_that_are_all_one(x, w_in, w_gate, strength, out):
    h = layer_norm(x)
    entered = h @ w_in
    gate = jax.nn.sigmoid(h @ w_gate)
    log_keep = -8.0 * jax.nn.softplus(strength) * gate * 0.1
    keep = jnp.exp(log_keep).astype(jnp.bfloat16)  # fault
    # + keep = jnp.exp(log_keep)
    keep = keep.astype(jnp.float32)
    scaled = jnp.sqrt(-jnp.expm1(2 * log_keep)) * entered

    def turn(state, now):
        a, b = now
        state = a * state + b
        return state, state

    last, states = jax.lax.scan(turn, jnp.ones(16) * 4.0, (keep, scaled))
    return last, jax.nn.silu(states) @ out


@fault("underflow", policy="fp32")
@source("reports of chunked linear recurrences that divide by products of decays")
@inputs("256x4 -1.5..-0.2 @11; 256x4 @12; 4x12 w @13; 12x4 w @14")
def products_of_decays_that_vanish(log_decay, x, up, down):
    cum = jnp.cumsum(log_decay.reshape(2, 128, 4), axis=1)
    kept = jnp.exp(cum)  # fault
    # + mask = jnp.tril(jnp.ones((128, 128), bool))[None, :, :, None]
    # + apart = jnp.where(mask, cum[:, :, None] - cum[:, None], -jnp.inf)
    value = jnp.tanh(x @ up) @ down
    value = value.reshape(2, 128, 4)
    inner = kept * jnp.cumsum(value / kept, axis=1)  # -
    # + inner = jnp.einsum("ctsd,csd->ctd", jnp.exp(apart), value)

    def turn(state, chunk):
        y, decay, total = chunk
        read = y + decay * state
        return total * state + y[-1], read

    decay = jnp.exp(cum)
    chunks = (inner, decay, decay[:, -1])
    last, reads = jax.lax.scan(turn, jnp.ones(4), chunks)
    return last, jax.nn.silu(reads.reshape(256, 4)) @ up


@fault("stagnation", "absorption", policy="bf16")
@source("reports of linear attention whose normalizer is summed in BF16")
@inputs("512x16 @15; 16x8 w @16; 16x8 w @17; 16x8 w @18; 8x16 w @19")
def normalizer_of_linear_attention(x, wq, wk, wv, wo):
    h = layer_norm(x)
    q, k = jax.nn.elu(h @ wq) + 1, jax.nn.elu(h @ wk) + 1
    v = h @ wv + 1.0

    def turn(carry, token):
        memory, total = carry
        q, k, v = token
        memory = memory + k[:, None] * v
        total = (total + k).astype(total.dtype)  # here
        read = q @ memory / jnp.sum(q * total.astype(jnp.float32))
        return (memory, total), read

    empty = (jnp.zeros((8, 8)), jnp.zeros(8, jnp.bfloat16))  # -
    # + empty = (jnp.zeros((8, 8)), jnp.zeros(8))
    (memory, total), read = jax.lax.scan(turn, empty, (q, k, v))
    return x + read @ wo, memory, total.astype(jnp.float32)


@fault("overflow", policy="fp32")
@source("reports of RWKV without a running maximum: exp of keys is Inf")
@inputs("128x12 @20; 12x12 *6 @21; 12x12 w @22; 12x12 w @23; 12 0.01..0.5 @24")
def keys_without_a_running_maximum(x, wk, wv, wr, decay):
    h = layer_norm(x)
    k = 4.0 * (h @ wk)
    v, r = h @ wv, jax.nn.sigmoid(h @ wr)

    def turn(carry, token):
        top, upper, lower = carry
        k, v = token
        new = jnp.zeros_like(k)  # -
        # + new = jnp.maximum(top - decay, k)
        fresh = jnp.exp(k - new)  # here
        old = jnp.exp(top - decay - new)
        upper, lower = old * upper + fresh * v, old * lower + fresh
        return (new, upper, lower), upper / (lower + 1e-30)

    start = (jnp.zeros(12), jnp.zeros(12), jnp.zeros(12))
    _, read = jax.lax.scan(turn, start, (k, v))
    return x + r * read


@fault("stagnation", "coarse", "absorption", policy="bf16")
@source("reports of returns summed backwards in the dtype of the value network")
@inputs("400x6 0.02..0.2 @25; 400x6 int 0..500 @26; 400x6 @27; f32 0.999")
def discounted_returns_in_bfloat16(rewards, ends, values, discount):
    alive = (ends > 0).astype(jnp.bfloat16)  # -
    # + alive = (ends > 0).astype(jnp.float32)
    rewards = jax.nn.relu(rewards)

    def turn(later, now):
        reward, alive = now
        later = (reward + discount * alive * later).astype(alive.dtype)  # here
        return later, later

    _, returns = jax.lax.scan(
        turn, jnp.zeros(6, alive.dtype), (rewards, alive), reverse=True
    )
    returns = returns.astype(jnp.float32)
    advantage = returns - 40.0 * jax.nn.sigmoid(values)
    spread = jnp.std(advantage)
    return returns, (advantage - jnp.mean(advantage)) / (spread + 1e-6)


@fault("underflow", policy="fp32")
@source("textbooks on hidden Markov models: the forward algorithm without scaling")
@inputs("5x5 @28; 5x16 @29; 200 int 0..16 @30; 5 @31")
def forward_chances_of_a_long_sequence(transition, emission, seen, start):
    move = jax.nn.softmax(transition, axis=-1)
    emit = jax.nn.softmax(emission, axis=-1)
    first = jax.nn.softmax(start) * emit[:, seen[0]]

    def turn(carry, symbol):
        chance, log_total = carry
        chance = (chance @ move) * emit[:, symbol]  # here
        total = jnp.float32(1)  # -
        # + total = jnp.sum(chance)
        return (chance / total, log_total + jnp.log(total)), None

    (chance, log_total), _ = jax.lax.scan(turn, (first, 0.0), seen[1:])
    likelihood = log_total + jnp.log(jnp.sum(chance))
    return likelihood, likelihood / seen.shape[0]


@fault("cancellation", policy="fp32")
@source("textbooks on Kalman filters: the short form of the update of the variance")
@inputs("128x3 *0.02 @32; 128 even 0..6; f32 1e8; f32 0.01")
def a_vague_prior_and_exact_measurements(noise, times, vague, precision):
    truth = jnp.sin(times)[:, None] * jnp.array([1.0, 2.0, 0.5])
    seen = truth + noise
    drift = 1e-6

    def turn(carry, measured):
        mean, var, trust = carry
        var = var + drift
        gain = var / (var + precision)
        surprise = measured - mean
        mean = mean + gain * surprise
        var = var - gain * var  # fault
        # + var = gain * precision
        trust = trust + jnp.square(surprise) / (var + precision)
        return (mean, var, trust), (mean, var)

    start = (jnp.zeros(3), jnp.full(3, vague), jnp.zeros(3))
    (_, _, trust), (means, spreads) = jax.lax.scan(turn, start, seen)
    smooth = means + 0.1 * jnp.gradient(means, axis=0)
    return means, spreads[-1], smooth, trust / 128


@fault("stagnation", "absorption", policy="fp8")
@source("reports of neural ODEs whose time is carried in the dtype of the state")
@inputs("mlp 6x16x4 @33", "8x4 @34")
def time_of_a_solver_that_stands_still(params, start):
    step = 1.0 / 128

    def slope(state, t):
        clock = jnp.stack([jnp.sin(2.0 * t), jnp.cos(t)]).astype(jnp.float32)
        fed = jnp.concatenate([state, jnp.broadcast_to(clock, (8, 2))], axis=1)
        hidden = jnp.tanh(fed @ params[0]["w"] + params[0]["b"])
        return hidden @ params[1]["w"] + params[1]["b"] + jnp.sin(2.0 * t) - 0.5 * state

    def turn(carry, _):
        state, t = carry
        half = state + 0.5 * step * slope(state, t.astype(jnp.float32))
        middle = t.astype(jnp.float32) + 0.5 * step
        state = state + step * slope(half, middle)
        t = t + jnp.asarray(step, t.dtype)  # here
        return (state, t), jnp.mean(state)

    zero = jnp.zeros((), jnp.bfloat16)  # -
    # + zero = jnp.zeros(())
    (state, _), trace = jax.lax.scan(turn, (start, zero), length=512)
    return state, trace


@fault("absorption", "stagnation", policy="fp16")
@source("reports of one-pole filters in half precision that hold their last value")
@inputs("512x4 0..0.5 @35; f32 0.0008; 4x8 w @36")
def a_slow_filter_in_half(signal, rate, w):
    half = signal.astype(jnp.float16)  # -
    # + half = signal

    def turn(level, now):
        level = level + rate.astype(level.dtype) * (now - level)  # here
        return level, level

    last, levels = jax.lax.scan(turn, jnp.full(4, 2, half.dtype), half)
    levels = levels.astype(jnp.float32)
    bands = jnp.tanh((signal - levels) @ w)
    return last.astype(jnp.float32), bands, jnp.mean(jnp.square(bands), axis=0)
