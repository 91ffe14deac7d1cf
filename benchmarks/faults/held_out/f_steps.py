"""Losses and optimizers: preferences, policies, events, Lion, Muon, Adafactor."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import layer_norm, normal


def token_scores(logits, tokens):
    """The log-probabilities of tokens."""
    scores = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]


def short_weights():
    """FP32 weights that BF16 holds exactly."""
    return normal(61, 16, 16, scale=0.25).astype(jnp.bfloat16).astype("float32")


@fault("overflow", "non-finite", policy="bf16")
@source("sigmoid losses of pictures and texts without a softplus")
@inputs("12x32 @1; 12x32 *0.02 @2; 32x16 w @3; 32x16 *0.02 @4; f32 150; f32 -10")
def sigmoid_loss_of_near_duplicates(pictures, change, w, other, scale, bias):
    pictures = jnp.concatenate([pictures, pictures + change])
    sign = 2.0 * jnp.eye(24) - 1.0

    def loss(w, shift):
        a, b = pictures @ w, pictures @ (w + other)
        a = a / jnp.sqrt(jnp.sum(a * a, axis=-1, keepdims=True) + 1e-8)
        b = b / jnp.sqrt(jnp.sum(b * b, axis=-1, keepdims=True) + 1e-8)
        logits = sign * (scale * a @ b.T + shift)
        return jnp.mean(jnp.log(1.0 + jnp.exp(-logits)))  # fault
        # + return jnp.mean(jax.nn.softplus(-logits))

    value, grads = jax.value_and_grad(loss, argnums=(0, 1))(w, bias)
    return value, w - 0.01 * grads[0], bias - 0.1 * grads[1]


@fault("underflow", "non-finite", policy="fp32")
@source("policy gradients with one ratio for a whole answer")
@inputs("6x64x12 @11; 12x32 *0.3 @12; 12x32 *0.01 @13; 6x64 int 0..32 @14; 6 @15")
def ratio_of_whole_answers(x, w, moved, tokens, advantage):
    old = jnp.sum(token_scores(x @ (w - moved), tokens), axis=-1)

    def loss(w):
        new = jnp.sum(token_scores(x @ w, tokens), axis=-1)
        ratio = jnp.exp(new) / jnp.exp(old)  # fault
        # + ratio = jnp.exp(new - old)
        clipped = jnp.clip(ratio, 0.5, 2.0)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
        return -jnp.mean(gain), ratio

    (value, ratio), grad = jax.value_and_grad(loss, has_aux=True)(w)
    return value, ratio, grad


@fault("cancellation", policy="fp32")
@source("group-relative policies: the penalty exp(d) - d - 1 after few steps")
@inputs("8x16x12 @21; 12x24 *0.3 @22; 12x24 *5e-5 @23; 8x16 int 0..24 @24; 8 @25")
def penalty_of_a_policy_that_has_hardly_moved(x, w, moved, tokens, reward):
    centred = reward - jnp.mean(reward)
    advantage = centred / (jnp.sqrt(jnp.mean(centred * centred)) + 1e-4)
    reference = token_scores(x @ (w - moved), tokens)

    def loss(w):
        scores = token_scores(x @ w, tokens)
        d = reference - scores
        penalty = jnp.exp(d) - d - 1.0  # fault
        # + penalty = jnp.expm1(d) - d
        ratio = jnp.exp(scores - jax.lax.stop_gradient(scores))
        gain = ratio * advantage[:, None] - 0.04 * penalty
        return -jnp.mean(gain), jnp.mean(penalty, axis=-1)

    grad, penalty = jax.grad(loss, has_aux=True)(w)
    return w - 0.1 * grad, penalty


@fault("coarse", "cancellation", policy="fp32")
@source("direct preference optimization with sums of scores in BF16")
@inputs(
    "6x96x12 @31; 6x96x12 @32; 12x40 *0.2 @33; 12x40 *0.01 @34; 2x6x96 int 0..40 @35"
)
def preferences_between_rounded_sums(better, worse, w, moved, tokens):
    def answer(w, x, tokens):
        scores = token_scores(x @ w, tokens)
        return jnp.sum(scores, axis=-1).astype(jnp.bfloat16)  # fault
        # + return jnp.sum(scores, axis=-1)

    def gain(w, x, tokens):
        new, old = answer(w, x, tokens), answer(w - moved, x, tokens)
        return new.astype(jnp.float32) - old.astype(jnp.float32)

    def loss(w):
        margin = gain(w, better, tokens[0]) - gain(w, worse, tokens[1])
        return -jnp.mean(jax.nn.log_sigmoid(0.1 * margin)), margin

    grad, margin = jax.grad(loss, has_aux=True)(w)
    return margin, w - 0.1 * grad, jnp.mean(margin > 0)


@fault("cancellation", "singular", "non-finite", policy="bf16")
@source("likelihoods of events in short intervals, of neural hazard models")
@inputs("mlp 6x16x1 @41", "48x6 @42; 48 1e-9..3e-7 @43; 48 0.1..2 @44")
def events_in_very_short_intervals(params, x, width, waited):
    def loss(params):
        rate = jax.nn.softplus(mlp(params, layer_norm(x))[:, 0]) + 1e-3
        survived = jnp.exp(-rate * waited)
        happened = jnp.log(1.0 - jnp.exp(-rate * width))  # fault
        # + happened = jnp.log(-jnp.expm1(-rate * width))
        return -jnp.mean(happened - rate * waited), survived

    (value, survived), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return value, survived, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("underflow", policy="fp32")
@source("Lion with its momentum in half and a loss divided by all tokens")
@inputs("8x32x12 @51; 8x32x4 @52; 12x4 w @53; f32 4e8")
def lion_with_a_momentum_of_zeros(xs, ys, w, tokens):
    def loss(w, x, y):
        return jnp.sum(jnp.square(jnp.tanh(x @ w) - y)) / tokens

    def step(state, batch):
        w, m = state
        value, g = jax.value_and_grad(loss)(w, *batch)
        direction = jnp.sign(0.9 * m.astype(jnp.float32) + 0.1 * g)
        m = (0.99 * m.astype(jnp.float32) + 0.01 * g).astype(m.dtype)  # here
        return (w - 0.02 * (direction + 0.1 * w), m), value * tokens

    m = jnp.zeros_like(w, jnp.float16)  # -
    # + m = jnp.zeros_like(w)
    (w, m), values = jax.lax.scan(step, (w, m), (xs, ys))
    return w, m.astype(jnp.float32), values


@fault("absorption", "coarse", policy="bf16")
@source("Muon on weights that are kept in BF16 only")
@inputs(short_weights, "12x32x16 @62; 12x32x16 @63; f32 2e-3")
def orthogonal_steps_on_short_weights(start, xs, ys, rate):
    def orthogonal(g):
        g = g / (jnp.sqrt(jnp.sum(g * g)) + 1e-7)
        for _ in range(5):
            gram = g @ g.T
            g = 3.4445 * g + (-4.775 * gram + 2.0315 * gram @ gram) @ g
        return g

    def step(state, batch):
        w, m = state
        g = jax.grad(lambda w: jnp.mean(jnp.square(batch[0] @ w - batch[1])))(w)
        m = 0.95 * m + g
        w = (w - rate * orthogonal(m)).astype(jnp.bfloat16)  # fault
        # + w = w - rate * orthogonal(m)
        w = w.astype(jnp.float32)
        return (w, m), jnp.sqrt(jnp.sum(jnp.square(w - start)))

    (w, m), moved = jax.lax.scan(step, (start, jnp.zeros_like(start)), (xs, ys))
    return w - start, m, moved


@fault("underflow", "non-finite", "singular", policy="bf16")
@source("Adafactor's 1e-30 in half precision, with rows that have no gradient")
@inputs("48x16 @71; 16x4 w @72; 32 int 0..24 @73; 32x4 @74")
def factored_moments_with_an_absent_constant(table, head, tokens, y):
    def loss(table):
        return jnp.mean(jnp.square(jnp.tanh(table[tokens]) @ head - y))

    g = 16.0 * jax.grad(loss)(table)
    half = g.astype(jnp.float16)
    squares = half * half + 1e-30  # fault
    # + squares = jnp.square(half.astype(jnp.float32)) + 1e-30
    rows = jnp.mean(squares.astype(jnp.float32), axis=1, keepdims=True)
    columns = jnp.mean(squares.astype(jnp.float32), axis=0, keepdims=True)
    update = g * jax.lax.rsqrt(rows * columns / jnp.mean(rows))
    update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update * update)))
    return table - 0.1 * update, update, columns


@fault("overflow", policy="fp16")
@source("clipping by the norm of scaled gradients in half: no step is taken")
@inputs("mlp 10x24x3 @81", "48x10 @82; 48x3 *2 @83; f32 8192")
def clipping_by_an_infinite_norm(params, x, y, scale):
    def loss(params):
        return scale * jnp.mean(jnp.square(mlp(params, x) - y))

    value, grads = jax.value_and_grad(loss)(params)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    total = jnp.float32(0.0)
    for g in jax.tree.leaves(grads):
        squares = jnp.sum(g * g)  # fault
        # + squares = jnp.sum(jnp.square(g.astype(jnp.float32)))
        total = total + squares.astype(jnp.float32)
    norm = jnp.sqrt(total) / scale
    factor = jnp.minimum(1.0, 1.0 / (norm + 1e-6)) / scale
    update = jax.tree.map(lambda g: factor * g.astype(jnp.float32), grads)
    moved = jax.tree.map(lambda p, u: p - 0.1 * u, params, update)
    return moved, update, value / scale


@fault("coarse", policy="fp32")
@source("fused cross entropies that keep their sums for the way back in BF16")
@inputs("24x16 @91; 16x64 *12 @92; 24 int 0..64 @93; 16x16 w @94")
def cross_entropy_with_a_short_residual(x, unembed, labels, w):
    @jax.custom_vjp
    def entropy(logits):
        return forward(logits)[0]

    def forward(logits):
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        kept = total.astype(jnp.bfloat16)  # fault
        # + kept = total
        return jnp.mean(total - chosen), (logits, kept)

    def backward(residual, g):
        logits, kept = residual
        share = jnp.exp(logits - kept.astype(jnp.float32)[:, None])
        return (g / 24.0 * (share - jax.nn.one_hot(labels, 64)),)

    entropy.defvjp(forward, backward)
    whole = jax.value_and_grad(lambda w: entropy((x + jnp.tanh(x @ w)) @ unembed))
    value, grad = whole(w)
    return value, grad, w - 0.01 * grad
