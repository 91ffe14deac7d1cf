"""Training steps whose optimizer, written by hand, loses or spoils its state."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import cross_entropy, layer_norm


def zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def square_loss(params, x, y):
    return jnp.mean(jnp.square(mlp(params, x) - y))


@fault("absorption", "stagnation", policy="bf16")
@source("reports of Lion on BF16 weights without a master copy")
@inputs("mlp 16x32x4 @4", "16x32x16 @5; 16x32 int 0..4 @6")
def lion_moves_smaller_than_a_step_of_the_weights(params, xs, labels):
    def loss(params, x, y):
        return cross_entropy(mlp(params, x.astype(jnp.bfloat16)), y)

    params = jax.tree.map(lambda p: jnp.sign(p) * (0.5 + jnp.abs(p)), params)

    def turn(carry, batch):
        params, momentum = carry
        working = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        value, grads = jax.value_and_grad(loss)(working, *batch)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        ahead = jax.tree.map(lambda m, g: jnp.sign(0.9 * m + 0.1 * g), momentum, grads)
        momentum = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g, momentum, grads)

        def moved(p, a):
            return (p - 4e-4 * (a + 0.1 * p)).astype(jnp.bfloat16)  # fault
            # + return p - 4e-4 * (a + 0.1 * p)

        params = jax.tree.map(moved, params, ahead)
        return (params, momentum), value

    start = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # -
    # + start = params
    (params, momentum), values = jax.lax.scan(
        turn, (start, zeros(params)), (xs, labels)
    )
    change = jax.tree.map(
        lambda p, s: p.astype(jnp.float32) - s.astype(jnp.float32), params, start
    )
    return change, momentum, values


@fault("underflow", policy="bf16")
@source("reports of Adafactor: the factors' product of tiny gradients is zero in FP32")
@inputs("in: 16x24 w @7, out: 24x8 w, bias: 8 =0", "64x16 @10; 64x8 @11")
def factors_of_tiny_squares(params, x, y):
    def loss(params):
        out = jax.nn.gelu(x @ params["in"]) @ params["out"] + params["bias"]
        return 1e-9 * jnp.mean(jnp.square(out - y))

    value, grads = jax.value_and_grad(loss)(params)
    new = {}
    for name, g in grads.items():
        squares = jnp.square(g)
        if g.ndim == 2:
            row, column = jnp.mean(squares, axis=1), jnp.mean(squares, axis=0)
            v = row[:, None] * column / jnp.mean(row)  # fault
            # + v = (row / jnp.mean(row))[:, None] * column
        else:
            v = squares
        step = jnp.where(v > 0, g * jax.lax.rsqrt(v), 0.0)
        step = step / jnp.maximum(1.0, jnp.sqrt(jnp.mean(jnp.square(step))))
        size = jnp.maximum(1e-3, jnp.sqrt(jnp.mean(jnp.square(params[name]))))
        new[name] = 0.05 * size * step
    moved = jax.tree.map(lambda p, u: p - u, params, new)
    return moved, new, value


@fault("underflow", policy="bf16")
@source("reports of Muon whose gradients are normalized in half precision")
@inputs("up: 24x32 w @12, down: 32x24 w, gain: 24 =1", "48x24 @15; 48x24 *0.1 @16")
def muon_with_a_norm_in_half(params, x, y):
    def loss(params):
        h = layer_norm(x) * params["gain"]
        out = x + jax.nn.silu(h @ params["up"]) @ params["down"]
        return 3e-4 * jnp.mean(jnp.square(out - y))

    def orthogonal(m):
        g = m.astype(jnp.float16)
        norm = jnp.sqrt(jnp.sum(g * g))  # fault
        # + norm = jnp.sqrt(jnp.sum(m * m))
        x = m / (norm.astype(jnp.float32) + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        return x

    momentum = zeros(params)
    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, grads)
    ahead = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, grads)
    moves = {
        "up": orthogonal(ahead["up"]),
        "down": orthogonal(ahead["down"].T).T,
        "gain": jnp.sign(ahead["gain"]),
    }
    return jax.tree.map(lambda p, u: p - 0.02 * u, params, moves), moves, value


@fault("stagnation", "absorption", policy="bf16")
@source("reports of gradient accumulation over many small batches in BF16 buffers")
@inputs("mlp 8x12x2 @17", "512x4x8 @18; 512x4x2 *0.3 +1 @19")
def five_hundred_small_batches_in_bfloat16(params, xs, ys):
    def turn(total, batch):
        value, grads = jax.value_and_grad(square_loss)(params, *batch)
        total = jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads)  # here
        return total, value

    empty = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)  # -
    # + empty = zeros(params)
    total, values = jax.lax.scan(turn, empty, (xs, ys))
    grads = jax.tree.map(lambda t: t.astype(jnp.float32) / 512, total)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    shrink = jnp.minimum(1.0, 1.0 / norm)
    grads = jax.tree.map(lambda g: g * shrink, grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), grads, values.mean()


@fault("cancellation", "coarse", "absorption", policy="bf16")
@source("reports of AdamW whose decay rates are held in the dtype of the weights")
@inputs("mlp 10x20x2 @20", "32x10 @21; 32x2 @22", "i32 3")
def bias_correction_with_rates_in_bfloat16(params, x, y, count):
    value, grads = jax.value_and_grad(square_loss)(params, x, y)
    mu = jax.tree.map(lambda g: 0.2 * g, grads)
    nu = jax.tree.map(lambda g: 3e-3 * g * g, grads)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, nu, grads)
    count = count + 1
    first = 1.0 - 0.9 ** count.astype(jnp.float32)
    rate = count.astype(jnp.bfloat16)  # -
    # + rate = count.astype(jnp.float32)
    second = 1.0 - 0.999**rate  # here
    second = second.astype(jnp.float32)

    def moved(p, m, v):
        return p - 1e-2 * (m / first / (jnp.sqrt(v / second) + 1e-8) + 0.01 * p)

    new = jax.tree.map(moved, params, mu, nu)
    return jax.tree.map(jnp.subtract, new, params), mu, nu, value


@fault("non-finite", policy="fp8")
@source("reports of LAMB: a leaf without a gradient has a trust ratio of 0/0")
@inputs("experts: 3x12x16 *0.3 @26, out: 16x4 w, bias: 16 =0", "24x12 @29; 24x4 @30")
def trust_ratio_of_an_expert_without_tokens(params, x, y):
    choice = (jnp.arange(24) % 2)[:, None] == jnp.arange(3)

    def loss(params):
        hidden = jnp.einsum("td,edf->etf", x, params["experts"])
        hidden = jnp.einsum("te,etf->tf", choice.astype(x.dtype), hidden)
        out = jax.nn.relu(hidden + params["bias"]) @ params["out"]
        return jnp.mean(jnp.square(out - y))

    def each(p):
        return [*p["experts"], p["out"], p["bias"]]

    value, grads = jax.value_and_grad(loss)(params)
    new = []
    for p, g in zip(each(params), each(grads), strict=True):
        mu, nu = 0.1 * g, 0.01 * g * g
        update = mu / (jnp.sqrt(nu) + 1e-6)
        size, length = jnp.linalg.norm(p), jnp.linalg.norm(update)
        size = jnp.where(size > 0, size, 1.0)
        direction = update / length  # fault
        # + direction = update / jnp.maximum(length, 1e-9)
        new.append(p - 0.01 * jnp.minimum(size, 10.0) * direction)
    return new, value


@fault("integer", policy="mxfp8", target="trn3")
@source("reports of schedules by tokens seen, counted in int32")
@inputs("mlp 12x16x3 @34", "48x12 @35; 48 int 0..3 @36", "i32 700000")
def tokens_seen_that_wrap_around(params, x, labels, step):
    def loss(params):
        return cross_entropy(mlp(params, x), labels)

    value, grads = jax.value_and_grad(loss)(params)
    per_step = 48 * 128
    seen = (step * per_step).astype(jnp.float32)  # fault
    # + seen = step.astype(jnp.float32) * per_step
    warm = jnp.minimum(1.0, seen / 1e8)
    share = jnp.clip((seen - 1e8) / 6e9, 0.0, 1.0)
    rate = 0.1 * warm * (0.1 + 0.45 * (1 + jnp.cos(jnp.pi * share)))
    mu = jax.tree.map(lambda g: 0.1 * g, grads)
    nu = jax.tree.map(lambda g: 0.001 * g * g, grads)
    moves = jax.tree.map(
        lambda m, v: rate * (m / 0.1) / (jnp.sqrt(v / 0.001) + 1e-3), mu, nu
    )
    return jax.tree.map(jnp.subtract, params, moves), moves, rate, value


@fault("absorption", policy="bf16")
@source("reports of decoupled weight decay that does nothing to BF16 weights")
@inputs("table: 40x12 +2 @37, out: 12x5 w", "128x24 int 0..20 @39; 128x24 int 0..5 @40")
def decay_that_rounds_to_nothing(params, tokens, labels):
    def loss(params, ids, y):
        return cross_entropy(params["table"][ids] @ params["out"], y)

    def turn(params, batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        rate = jnp.float32(0.05) * jnp.exp(-value)
        keep = (1.0 - 0.02 * rate).astype(jnp.bfloat16)  # fault
        # + keep = 1.0 - 0.02 * rate
        params = jax.tree.map(lambda p, g: keep * p - rate * g, params, grads)
        return params, value

    final, values = jax.lax.scan(turn, params, (tokens, labels))
    unused = final["table"][20:] - params["table"][20:]
    return final, unused, values
