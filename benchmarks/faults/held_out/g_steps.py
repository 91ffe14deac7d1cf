"""Steps of training: states of optimizers, scales of losses, sums of gradients."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import block, cross_entropy


@fault("stagnation", "absorption", policy="bf16")
@source("reports of optimizer states that are kept in bfloat16 to save memory")
@inputs("24 *0.3 @1; 24 0.01..0.03 @2; 64x24 @3; 64 @4")
def second_moment_that_cannot_decay(w, v, x, y):
    v = v.astype(jnp.bfloat16)  # -

    def turn(state, _):
        w, v = state
        g = jax.grad(lambda w: jnp.mean(jnp.square(x @ w - y)))(w)
        wide = v.astype(jnp.float32)
        v = (0.999 * wide + 0.001 * g * g).astype(jnp.bfloat16)  # fault
        # + v = 0.999 * wide + 0.001 * g * g
        return (w - 1e-3 * g / (jnp.sqrt(v.astype(jnp.float32)) + 1e-8), v), None

    return jax.lax.scan(turn, (w, v), None, length=600)[0]


@fault("absorption", "stagnation", "coarse", policy="bf16")
@source("fine-tuning without a master copy of the weights")
@inputs("block 32 @11; 32x16 w @21; 24x32 @22; 24 int 0..16 @23")
def updates_of_optax_for_half_weights(params, head, x, labels):
    optimizer = optax.sgd(2e-3)
    kept = (params, head)
    kept = jax.tree.map(lambda a: a.astype(jnp.bfloat16), kept)  # -

    def loss(weights):
        params, head = weights
        return cross_entropy(block(params, x) @ head, labels)

    def turn(kept, _):
        read = jax.tree.map(lambda a: a.astype(jnp.bfloat16), kept)
        value, grads = jax.value_and_grad(loss)(read)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        updates, _ = optimizer.update(grads, optimizer.init(kept))
        return optax.apply_updates(kept, updates), value  # here

    kept, values = jax.lax.scan(turn, kept, None, length=16)
    return values[-1], kept


@fault("underflow", policy="fp16")
@source("mixed precision without loss scaling")
@inputs("64x12 @31; 12x16 w @32; 16x8 w @33; 64x8 @34")
def small_auxiliary_loss_without_a_scale(x, w1, w2, y):
    scale = 1.0  # -
    # + scale = 2.0**14

    def loss(w1, w2):
        hidden = jnp.tanh(x.astype(jnp.float16) @ w1.astype(jnp.float16))
        out = (hidden @ w2.astype(jnp.float16)).astype(jnp.float32)  # here
        return scale * (1e-5 * jnp.mean(jnp.square(out - y)))

    grads = jax.grad(loss, (0, 1))(w1, w2)
    return [g / scale for g in grads]


@fault("stagnation", "absorption", policy="bf16")
@source("gradient accumulation in the dtype of the model")
@inputs("400x8x12 *0.3 +1 @41; 400x8 *0.5 +4 @42; 12 *0.1 @43")
def four_hundred_microbatches(xs, ys, w):
    def loss(w, x, y):
        return jnp.mean(jnp.square(jnp.sum(x * w, axis=-1) - y))

    def turn(total, batch):
        g = jax.grad(loss)(w, *batch)
        total = total + g.astype(jnp.bfloat16)  # fault
        # + total = total + g
        return total, None

    zero = jnp.zeros(12, jnp.bfloat16)  # -
    # + zero = jnp.zeros(12)
    total, _ = jax.lax.scan(turn, zero, (xs, ys))
    mean = total.astype(jnp.float32) / 400
    return w - 0.01 * mean, mean


@fault("underflow", "singular", policy="fp32")
@source("factored second moments of very small gradients")
@inputs("64x24 *1e-3 @61; 24x16 w @62; 64x16 @63")
def factors_of_a_second_moment(x, w, y):
    g = jax.grad(lambda w: 1e-8 * jnp.mean(jnp.square(x @ w - y)))(w)
    squares = g * g + 1e-30
    rows, columns = squares.mean(1, keepdims=True), squares.mean(0, keepdims=True)
    moment = rows * columns / rows.mean()  # fault
    # + moment = rows / rows.mean() * columns
    return w - 0.01 * g * jax.lax.rsqrt(moment)


@fault("overflow", policy="fp16")
@source("skipped steps under dynamic loss scaling, though no gradient overflows")
@inputs("48x40 *0.5 +1 @71; 40x8 w @72; 48x8 *0.5 +-3 @73; f32 256")
def sum_that_asks_whether_all_is_finite(x, w, y, scale):
    def loss(w):
        return scale * jnp.mean(jnp.sum(jnp.square(x @ w - y), axis=-1))

    g = jax.grad(loss)(w).astype(jnp.float16)
    finite = jnp.isfinite(jnp.sum(g))  # fault
    # + finite = jnp.all(jnp.isfinite(g))
    new = w - 0.01 * g.astype(jnp.float32) / scale
    return jnp.where(finite, new, w), jnp.where(finite, scale, scale / 2)
