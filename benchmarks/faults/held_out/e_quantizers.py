"""Quantizers written by hand: caches, weights, gradients, states; 8 and 4 bits."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import cross_entropy, layer_norm


@fault("saturation", "non-finite", policy="mxfp8", target="trn3")
@source("reports of FP8 caches: the range of a row of zeros is 0, its scale Inf")
@inputs("12x32 @1; 32x32 w @2; 32x32 w @3; 32x32 w @4; i32 9; 32x32 w @5")
def a_cache_with_rows_of_padding(x, wq, wk, wv, length, wo):
    real = (jnp.arange(12) < length)[:, None]
    h = layer_norm(x) * real
    q = (h @ wq).reshape(12, 4, 8) * 8**-0.5

    def stored(a):
        top = jnp.max(jnp.abs(a), axis=-1, keepdims=True)
        # + top = jnp.maximum(top, 1e-6)
        narrow = (a * (224 / top)).astype(jnp.float8_e4m3)  # here
        return narrow, top / 224

    codes_k, scale_k = stored((h @ wk).reshape(12, 4, 8))
    codes_v, scale_v = stored((h @ wv).reshape(12, 4, 8))
    k = codes_k.astype(jnp.float32) * scale_k
    v = codes_v.astype(jnp.float32) * scale_v
    mask = jnp.tril(jnp.ones((12, 12), bool)) & real[:, 0]
    scores = jnp.where(mask, jnp.einsum("qhd,khd->hqk", q, k), -1e9)
    read = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v)
    return (x + read.reshape(12, 32) @ wo) * real


@fault("stale-scale", "saturation", policy="bf16")
@source("reports of decoding with scales of the prompt: later keys are clipped")
@inputs("96x16 @6; 16x16 *0.4 @7; 16x16 *0.4 @8; 16x16 w @9; 16x8 w @10")
def later_keys_beyond_the_range_of_the_prompt(x, wq, wk, wv, readout):
    growth = jnp.linspace(0.2, 3.0, 96)[:, None]
    q, k = layer_norm(x) @ wq, growth * (layer_norm(x) @ wk)
    v = x @ wv
    prompt = jnp.max(jnp.abs(k[:16])) / 127  # -
    # + prompt = jnp.max(jnp.abs(k), axis=-1) / 127

    def turn(cache, now):
        i, q, k, v, scale = now
        codes, scales, values = cache
        code = jnp.clip(jnp.round(k / scale), -127, 127).astype(jnp.int8)  # here
        codes = codes.at[i].set(code)
        scales = scales.at[i].set(scale)
        values = values.at[i].set(v)
        keys = codes.astype(jnp.float32) * scales[:, None]
        scores = jnp.where(jnp.arange(96) <= i, keys @ q / 4, -1e9)
        return (codes, scales, values), jax.nn.softmax(scores) @ values

    empty = (jnp.zeros((96, 16), jnp.int8), jnp.ones(96), jnp.zeros((96, 16)))
    scale = jnp.broadcast_to(prompt, 96)
    _, read = jax.lax.scan(turn, empty, (jnp.arange(96), q, k, v, scale))
    return read, layer_norm(x + read) @ readout


@fault("integer", policy="fp8")
@source("reports of int8 products that are summed in int8")
@inputs("24x32 @11; 32x48 w @12; 48x8 w @13; 24 int 0..8 @14")
def products_of_codes_summed_in_int8(x, w1, w2, labels):
    h = layer_norm(x)
    scale_x = jnp.max(jnp.abs(h), axis=1, keepdims=True) / 127
    scale_w = jnp.max(jnp.abs(w1), axis=0, keepdims=True) / 127
    codes_x = jnp.round(h / scale_x).astype(jnp.int8)
    codes_w = jnp.round(w1 / scale_w).astype(jnp.int8)
    total = codes_x @ codes_w  # fault
    # + total = jnp.matmul(codes_x, codes_w, preferred_element_type=jnp.int32)
    hidden = jax.nn.gelu(total.astype(jnp.float32) * scale_x * scale_w)
    logits = hidden @ w2
    return cross_entropy(logits, labels), logits, jnp.mean(hidden, axis=0)


@fault("stale-scale", "overflow", "saturation", policy="fp8")
@source("reports of delayed scaling in FP8 training: the history is too short")
@inputs(
    "w1: 16x24 w @15, w2: 24x4 w", "64x16 *12 @18; 64x4 @19", "f32 0.9 0.8 1 0.7 0.9"
)
def delayed_scales_after_a_jump(params, x, y, history):
    def loss(params, history):
        h = jax.nn.relu(x @ params["w1"])
        # + history = jnp.append(history, jax.lax.stop_gradient(jnp.max(h)))
        scale = 224.0 / jnp.max(history)
        narrow = (h * scale).astype(jnp.float8_e4m3)  # here
        h = narrow.astype(jnp.float32) / scale
        out = h @ params["w2"] / 12
        return jnp.mean(jnp.square(out - y)), jnp.max(jnp.abs(h))

    (value, top), grads = jax.value_and_grad(loss, has_aux=True)(params, history)
    history = jnp.roll(history, 1).at[0].set(top)
    momentum = jax.tree.map(lambda g: 0.1 * g, grads)
    return jax.tree.map(lambda p, m: p - m, params, momentum), history, value


@fault("underflow", policy="bf16")
@source("reports of FP8 training whose gradients take E4M3 without a scale")
@inputs("w1: 20x24 w @20, w2: 24x6 w, bias: 24 =0", "128x20 @22; 128 int 0..6 @23")
def gradients_in_e4m3_without_a_scale(params, x, labels):
    @jax.custom_vjp
    def linear(x, w):
        return x @ w

    def backward(saved, g):
        x, w = saved
        narrow = g.astype(jnp.float8_e4m3)  # fault
        # + size = 100 / jnp.max(jnp.abs(g))
        # + narrow = (g * size).astype(jnp.float8_e4m3)
        g = narrow.astype(jnp.float32)  # -
        # + g = narrow.astype(jnp.float32) / size
        return g @ w.T, x.T @ g

    linear.defvjp(lambda x, w: (linear(x, w), (x, w)), backward)

    def loss(params):
        h = jax.nn.gelu(linear(x, params["w1"]) + params["bias"])
        return cross_entropy(linear(h, params["w2"]), labels)

    value, grads = jax.value_and_grad(loss)(params)
    mu = jax.tree.map(lambda g: 0.1 * g, grads)
    nu = jax.tree.map(lambda g: 0.001 * g * g, grads)
    moves = jax.tree.map(
        lambda m, v: 1e-2 * 10 * m / (jnp.sqrt(1000 * v) + 1e-3), mu, nu
    )
    return jax.tree.map(jnp.subtract, params, moves), mu, value


@fault("integer", policy="mxfp8", target="trn3")
@source("reports of MX by hand: the exponents with their bias in a signed byte")
@inputs("16x64 @24; 64x64 *3 @25; 64x8 w @26")
def shared_exponents_in_a_signed_byte(x, w, readout):
    blocks = w.reshape(64, 2, 32)
    top = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    power = jnp.floor(jnp.log2(jnp.maximum(top, 1e-30))) - 2
    biased = (power.astype(jnp.int32) + 127).astype(jnp.int8)  # fault
    # + biased = (power.astype(jnp.int32) + 127).astype(jnp.uint8)
    size = jnp.exp2(biased.astype(jnp.float32) - 127)
    grid = jnp.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], jnp.float32)
    scaled = jnp.clip(blocks / size, -6, 6)
    nearest = jnp.argmin(jnp.abs(jnp.abs(scaled)[..., None] - grid), axis=-1)
    kept = jnp.sign(scaled) * grid[nearest] * size
    hidden = jax.nn.silu(layer_norm(x) @ kept.reshape(64, 64) / 24)
    return hidden @ readout, kept.reshape(64, 64)


@fault("coarse", "underflow", "saturation", policy="fp32")
@source("reports of int8 activations with outlier channels (LLM.int8, SmoothQuant)")
@inputs("32x48 @30; 48x64 w @31; 64x48 w @32; 48x8 w @33")
def outlier_channels_in_one_scale(x, w1, w2, readout):
    strong = jnp.where(jnp.arange(48) % 16 == 5, 150.0, 1.0)
    h = layer_norm(x) * strong
    weights = w1 / strong[:, None]
    size = jnp.ones(48)  # -
    # + size = jnp.max(jnp.abs(h), axis=0)
    smooth = h / size
    code = jnp.round(smooth * (127 / jnp.max(jnp.abs(smooth)))).astype(jnp.int8)  # here
    kept = code.astype(jnp.float32) * (jnp.max(jnp.abs(smooth)) / 127)
    hidden = jax.nn.gelu(kept @ (weights * size[:, None]))
    out = layer_norm(x + hidden @ w2)
    return out @ readout, hidden


@fault("underflow", policy="fp16")
@source("reports of int8 tables whose scales are stored in half precision")
@inputs("60x16 @34; 60 -7..0 @35; 32 int 0..60 @36; 16x16 w @37; 16x5 w @38")
def scales_of_rows_that_vanish_in_half(table, spread, tokens, w, readout):
    table = table * 10.0 ** spread[:, None]
    top = jnp.max(jnp.abs(table), axis=1, keepdims=True)
    code = jnp.round(table / (top / 127)).astype(jnp.int8)
    scale = (top / 127).astype(jnp.float16)  # fault
    # + scale = top / 127
    found = code[tokens].astype(jnp.float32) * scale[tokens].astype(jnp.float32)
    mean = jnp.mean(jnp.square(found), axis=-1, keepdims=True)
    x = found * jax.lax.rsqrt(mean + 1e-18)
    x = x + jax.nn.gelu(x @ w)
    return jax.nn.log_softmax(x @ readout), x


@fault("underflow", "coarse", "saturation", policy="bf16")
@source("reports of 8-bit optimizers with one linear scale for the second moments")
@inputs(
    "table: 32x16 w @39, out: 16x8 w", "64 int 0..32 @41; 64 int 0..8 @42; 32 -3..0 @43"
)
def second_moments_in_one_linear_scale(params, tokens, labels, rare):
    seen = jnp.where(jnp.arange(64) < 40, tokens % 4, tokens)
    weight = 10.0 ** rare[seen]

    def loss(params):
        logits = params["table"][seen] @ params["out"]
        scores = jax.nn.log_softmax(logits)
        return -jnp.mean(weight * scores[jnp.arange(64), labels])

    value, grads = jax.value_and_grad(loss)(params)
    moved, kept = {}, {}
    for name, g in grads.items():
        root = jnp.abs(g) * jnp.sqrt(0.001)
        top = jnp.max(root)  # -
        # + top = jnp.max(root, axis=1, keepdims=True) + 1e-12
        code = jnp.ceil(root * (127 / top)).astype(jnp.uint8)  # here
        v = jnp.square(code.astype(jnp.float32) * top / 127)
        moved[name] = params[name] - 1e-2 * g / (jnp.sqrt(v / 0.001) + 1e-8)
        kept[name] = params[name] - moved[name]
    return moved, kept, value


@fault("underflow", "coarse", policy="bf16")
@source("reports of QLoRA: scales quantized once more, small blocks become zero")
@inputs("24x64 @44; 64x64 w @45; 128 -3.5..0 @46; 64x4 w @47; 4x64 =0; 24x64 @48")
def scales_quantized_once_more(x, w, spread, lora_a, lora_b, y):
    blocks = w.reshape(128, 32) * 10.0 ** spread[:, None]
    top = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
    code = jnp.round(blocks / top * 7).astype(jnp.int8)
    second = jnp.max(top)
    small = jnp.round(top / second * 255).astype(jnp.uint8)  # fault
    # + small = jnp.round(jnp.log2(top / second) * 8).astype(jnp.int32)
    scale = small.astype(jnp.float32) / 255 * second  # -
    # + scale = jnp.exp2(small.astype(jnp.float32) / 8) * second
    dense = (code.astype(jnp.float32) / 7 * scale) / 10.0 ** spread[:, None]
    dense = dense.reshape(64, 64)

    def loss(adapter):
        out = x @ dense + x @ adapter["a"] @ adapter["b"]
        return jnp.mean(jnp.square(jnp.tanh(out) - y))

    adapter = {"a": lora_a, "b": lora_b}
    value, grads = jax.value_and_grad(loss)(adapter)
    return jax.tree.map(lambda p, g: p - 0.1 * g, adapter, grads), dense, value


@fault("saturation", "overflow", policy="bf16")
@source("reports of FP8 activations without a scale: E4M3 ends at 240")
@inputs("w1: 16x32 w @49, w2: 32x4 w", "40x16 @51; 40 *1.5 +2 @52; 32 =0; 16x4 w @53")
def activations_beyond_e4m3(params, x, loud, bias, skip):
    x = x * jnp.exp(loud)[:, None]
    mean = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    h = jax.nn.relu(x @ params["w1"] + bias)
    size = jnp.float32(1)  # -
    # + size = jnp.max(h, axis=-1, keepdims=True) / 224 + 1e-9
    narrow = jnp.clip(h / size, -240, 240).astype(jnp.float8_e4m3)  # here
    h = narrow.astype(jnp.float32) * size
    out = h @ params["w2"] + x @ skip
    out = out * jax.lax.rsqrt(mean + 1e-6)
    return out, jax.nn.softmax(out), jnp.max(h, axis=-1)
