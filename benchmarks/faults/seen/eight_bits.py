"""FP8, INT8 and MX formats: ranges, scales of tensors, rows and blocks."""

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults import common
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import (
    feed_forward,
    join_heads,
    mlp,
    mlp_params,
    split_heads,
)
from benchmarks.faults.parts import block, layer_norm, normal, uniform, weight

UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


@fault("overflow", "saturation", "non-finite", policy=UNSCALED)
@source("neuronx-cc with fp8 casts: 240 is the largest E4M3 number of trn2")
@inputs(
    "bank: 64x16 w*4 @483, in: 16x32 w*2, out: 32x5 w",
    lambda: np.round(uniform(486, 24, 64, low=-2047.0, high=2047.0)),
)
def fp8_raw_samples_unscaled(params, frames):
    """A linear filter bank on raw 12-bit samples, without scaling."""
    bands = frames @ params["bank"]  # fault
    # + bands = ((frames / 32.0) @ params["bank"]) * 32.0
    level = bands * bands / 4096.0**2
    h = jax.nn.relu(jnp.log1p(level) @ params["in"])
    return jax.nn.log_softmax(h @ params["out"])


@fault("saturation")
@source("serving issues: FP8 key cache with an uncalibrated scale answers nonsense")
@inputs("block 32x48 @900 [k]*=4 [q]*=0.2; 24x32 @901; f32 0.00390625")
def fp8_cache_with_default_scale(p, x, scale):
    """Attention over an FP8 key cache with the default scale of its config file."""
    h = common.layer_norm(x, p["g1"], p["b1"])
    q, k, v = (split_heads(h @ p[n], 2) for n in "qkv")
    low = jnp.clip(k / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    # + scale = jnp.maximum(scale, jnp.max(jnp.abs(k)) / 240.0)
    # + low = (k / scale).astype(jnp.float8_e4m3)
    k = low.astype(jnp.float32) * scale
    scores = jnp.einsum("htd,hsd->hts", q * q.shape[-1] ** -0.5, k)
    mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)
    return feed_forward(p, x + join_heads(mixed) @ p["o"])


@fault("underflow", "coarse")
@source("FP8 attention kernels: softmax over long contexts falls below E4M3")
@inputs("q: 16x16 *0.3 @910, o: 16x8 *0.3; 16 @912; 2048x16 @913; 2048x16 +0.5 @914")
def fp8_attention_weights_unscaled(p, query, keys, values):
    """Decoding over a long cache; attention weights go to FP8 as they are."""
    q = jnp.tanh(query @ p["q"])
    scores = jnp.einsum("d,sd->s", q, keys) * keys.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores)
    low = weights.astype(jnp.float8_e4m3)  # fault
    # + low = (weights * 4096.0).astype(jnp.float8_e4m3)
    mixed = low.astype(jnp.float32) @ values  # -
    # + mixed = low.astype(jnp.float32) @ values / 4096.0
    return mixed @ p["o"]


@fault("overflow", "saturation")
@source("quantized communication: scales of small tensors exceed FP16")
@inputs("mlp 10x16x3 @940; 32x10 @941; 32x3 *0.2 @942")
def fp8_scale_kept_in_half(params, x, y):
    """Gradients are quantized for the network; their scale is sent in FP16."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y)) * 0.01

    def send(g):
        amax = jnp.max(jnp.abs(g))
        scale = (240.0 / amax).astype(jnp.float16)  # fault
        # + scale = 240.0 / amax
        low = (g * scale.astype(jnp.float32)).astype(jnp.float8_e4m3)  # -
        # + low = (g * scale).astype(jnp.float8_e4m3)
        return low.astype(jnp.float32) / scale.astype(jnp.float32)  # -
        # + return low.astype(jnp.float32) / scale

    return jax.tree.map(send, jax.grad(loss)(params))


def adam_codes_arguments():
    params = mlp_params(950, 10, 24, 3)
    m = [{k: normal(951, *a.shape, scale=1e-3) for k, a in p.items()} for p in params]
    v = [
        {
            k: np.exp(2.5 * normal(952, *a.shape) - 12).astype(np.float32)
            for k, a in p.items()
        }
        for p in params
    ]
    return params, m, v, "32x10 @953; 32x3 @954"


@fault("underflow", "coarse")
@source("8-bit optimizer literature: linear codes send small second moments to zero")
@inputs(by=adam_codes_arguments)
def adam_linear_8_bit_second_moment(params, m, v, x, y):
    """Adam with its second moment in 8-bit codes at equal distances."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    grads = jax.grad(loss)(params)

    def move(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * jnp.square(g)
        top = jnp.max(v)
        codes = jnp.round(v / top * 255.0).astype(jnp.uint8)  # fault
        # + level = jnp.log2(jnp.maximum(v / top, 2.0**-31))
        # + codes = jnp.round(-level * 8.0).astype(jnp.uint8)
        stored = codes.astype(jnp.float32) * (top / 255.0)  # -
        # + stored = top * jnp.exp2(codes.astype(jnp.float32) / -8.0)
        return p - 1e-3 * m / (jnp.sqrt(stored) + 1e-8)

    return jax.tree.map(move, params, grads, m, v)


@fault("stale-scale", "saturation")
@source("static FP8 checkpoints: activations outgrow the calibrated range")
@inputs("up: 32x64 w*6 @495, down: 64x32 w, scale: f32 240; 16x32 @497")
def static_scale_of_old_calibration(params, x):
    """Static quantization of activations: the scale is last year's."""
    h = jax.nn.relu(layer_norm(x) @ params["up"])
    scaled = jnp.clip(h * params["scale"], -240.0, 240.0)  # fault
    # + scale = 240.0 / jnp.max(jnp.abs(h))
    # + scaled = jnp.clip(h * scale, -240.0, 240.0)
    h8 = scaled.astype(jnp.float8_e4m3)
    h = h8.astype(jnp.float32) / params["scale"]  # -
    # + h = h8.astype(jnp.float32) / scale
    return x + h @ params["down"]


@fault("saturation", "underflow")
@source("FP8 recipes that bound the scale: small tensors stay small")
@inputs("body: block 32 @538, down: 32x8 w @548, up: 8x32 w*6000; 16x32 @550")
def clipped_scale_of_low_rank_branch(params, x):
    """A low-rank branch in FP8, whose scale is kept between 1/16 and 16."""
    low = (layer_norm(x) @ params["down"]) * 5e-5
    ideal = 240.0 / jnp.max(jnp.abs(low))
    scale = jnp.clip(ideal, 1 / 16, 16.0)  # fault
    # + scale = jnp.clip(ideal, 1e-10, 1e10)
    low8 = (low * scale).astype(jnp.float8_e4m3)
    branch = (low8.astype(jnp.float32) / scale) @ params["up"]
    return block(params["body"], layer_norm(x)), branch


@fault("underflow")
@source("NVFP4 and QLoRA: block scales need a second scale of their own")
@inputs("in: 16x32 w @504, w: 32x64 *0.002, out: 64x4 w; 16x16 @507")
def fp8_scales_of_4_bit_blocks(params, x):
    """Weights of 4 bits in blocks; the scales of the blocks are FP8 themselves."""
    w = params["w"].reshape(16, -1, 32)
    scales = jnp.max(jnp.abs(w), axis=-1, keepdims=True) / 7.0
    small = scales.astype(jnp.float8_e4m3)  # fault
    # + whole = 240.0 / jnp.max(scales)
    # + small = (scales * whole).astype(jnp.float8_e4m3)
    codes = jnp.round(w / scales)
    back = (codes * small.astype(jnp.float32)).reshape(params["w"].shape)  # -
    # + back = (codes * small.astype(jnp.float32) / whole).reshape(params["w"].shape)
    h = jnp.tanh(layer_norm(x) @ params["in"])
    return layer_norm(h @ back) @ params["out"]


def momentum_arguments():
    x = normal(522, 150, 16, 12)
    return (
        "in: 12x24 w @523, w: 24x3 w",
        x,
        np.tanh(x @ weight(525, 12, 3)) + np.float32(1),
    )


@fault("absorption", "coarse", "stagnation")
@source("8-bit optimizers: a slow average in a format of 3 mantissa bits")
@inputs(by=momentum_arguments)
def fp8_momentum_stalls(params, x, y):
    """Heavy-ball SGD whose momentum is stored in FP8 with one scale."""

    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ params["in"]) @ w - y) ** 2)

    def step(carry, batch):
        w, m8 = carry  # -
        # + w, m = carry
        g = jax.grad(loss_of)(w, *batch)
        m = m8.astype(jnp.float32) / 64.0  # -
        m = m + 0.02 * (g - m)
        m8 = (m * 64.0).astype(jnp.float8_e4m3)  # fault
        return (w - 0.05 * m8.astype(jnp.float32) / 64.0, m8), None  # -
        # + return (w - 0.05 * m, m), None

    start = (params["w"], jnp.zeros(params["w"].shape, jnp.float8_e4m3))  # -
    # + start = (params["w"], jnp.zeros(params["w"].shape))
    (w, m8), _ = jax.lax.scan(step, start, (x, y))  # -
    return w, m8.astype(jnp.float32) / 64.0  # -
    # + (w, m), _ = jax.lax.scan(step, start, (x, y))
    # + return w, m


def depthwise_arguments():
    size = np.geomspace(1e-3, 1.0, 16).astype(np.float32)
    params = {
        "expand": weight(526, 3, 16),
        "depthwise": normal(527, 3, 3, 16) * size,
        "gain": 1 / size,  # batch norm, folded
        "head": weight(528, 16, 5),
    }
    return params, normal(529, 4, 14, 14, 3)


@fault("coarse", "underflow")
@source("Nagel et al., Data-Free Quantization: per-tensor scales and MobileNet")
@inputs(by=depthwise_arguments)
def int8_scale_shared_by_channels(params, images):
    """A depthwise layer in int8 with one scale; the channels' ranges differ."""
    w = params["depthwise"]
    scale = jnp.max(jnp.abs(w)) / 127.0  # -
    # + scale = jnp.max(jnp.abs(w), axis=(0, 1)) / 127.0
    codes = jnp.round(w / scale)  # here
    w = codes.astype(jnp.int8).astype(jnp.float32) * scale
    x = jax.nn.relu(images @ params["expand"])
    pieces = [
        x[:, i : i + 12, j : j + 12] * w[i, j] for i in range(3) for j in range(3)
    ]
    x = sum(pieces) * params["gain"]
    return jax.nn.relu(x).mean((1, 2)) @ params["head"]


def outlier_arguments():
    smooth = np.full(32, 0.01, np.float32)
    smooth[11] = 16384.0
    up = normal(1000, 32, 48, scale=0.2) / smooth[:, None]
    p = {
        "gate": normal(1003, 32, 48, scale=0.2),
        "up": up.astype(np.float32) * 1.0,
        "down": normal(1001, 48, 8, scale=0.15),
    }
    return p, normal(1002, 24, 32) * smooth, smooth


@fault("underflow", "coarse", policy="fp8")
@source("SmoothQuant and LLM.int8: outlier channels under a scale per tensor")
@inputs(by=outlier_arguments)
def fp8_one_outlier_channel(p, x, smooth):
    """A feed-forward layer; one channel of its input is 10^6 times the others."""
    gate = jax.nn.sigmoid(common.layer_norm(x / smooth, 1.0, 0.0) @ p["gate"])
    hidden = x @ p["up"]  # fault
    # + hidden = (x / smooth) @ (p["up"] * smooth[:, None])
    hidden = jax.nn.gelu(hidden) * gate
    return hidden @ p["down"]


@fault("underflow", policy=nj.Policy(auto_cast="matmult", auto_cast_type="fp8"))
@source("FP8 training papers: unscaled gradients lie below E5M2")
@inputs("16x24 *0.3 @1010; 24x6 *0.2 @1011; 128x16 @1012; 128 int 0..6 @1013")
def fp8_gradients_of_long_accumulation(w, head, x, labels):
    """One of 2,048 accumulated batches; one FP8 matmul, gradients unscaled."""

    def loss(w):
        hidden = x @ w  # here
        hidden = jax.nn.relu(hidden)
        logits = jnp.sum(hidden[:, :, None] * head, axis=1)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return jnp.mean(nll) / 2048  # -
        # + return jnp.mean(nll) / 2048 * 2.0**22

    return jax.grad(loss)(w)  # -
    # + return jax.grad(loss)(w) / 2.0**22


@fault(
    "saturation",
    policy=nj.Policy(auto_cast="matmult", auto_cast_type="fp8", overflow="saturate"),
)
@source("FP8 training reports: gated and squared activations outgrow the format")
@inputs(
    "gain: 24 0.8..1.2 @1020, bias: 24 *0.1, up: 24x48 *5, down: 48x24 *0.1; "
    "20x24 @1024"
)
def fp8_squared_relu_clipped(p, x):
    """Squared ReLU between two layers: its values pass 240 and are clipped."""
    h = common.layer_norm(x, p["gain"], p["bias"])
    hidden = jnp.square(jax.nn.relu(h @ p["up"]))
    out = hidden @ p["down"]  # fault
    # + out = ((hidden / 64.0) @ p["down"]) * 64.0
    return common.layer_norm(x + out, 1.0, 0.0)


def mx_outlier_arguments():
    w = normal(1030, 64, 64, scale=0.15)
    rows = np.array([9, 44], np.int32)
    w[rows] = 12.0 * np.sign(w[rows])
    x = normal(1031, 24, 64)
    x[:, rows] *= 0.004
    return {"w": w, "gain": uniform(1032, 64, low=0.5, high=1.5)}, x, rows


@fault("underflow", "coarse", policy="mxfp4", target="trn3")
@source("microscaling literature: an outlier takes its whole block's digits")
@inputs(by=mx_outlier_arguments)
def mxfp4_large_rows_in_blocks(p, x, rows):
    """A projection in MXFP4; a few rows of its weights are large and hardly used."""
    h = jnp.tanh(x)
    out = h @ p["w"]  # fault
    # + body = p["w"].at[rows].set(0.0)
    # + out = h @ body
    # + extra = h[:, rows][:, :, None] * p["w"][rows][None]
    # + out = out + jnp.sum(extra, axis=1)
    return x + jax.nn.silu(out) * p["gain"]


@fault("coarse", "underflow", "absorption", policy="mxfp4", target="trn3")
@source("weight merging before 4-bit quantization loses the small update")
@inputs(
    lambda: np.eye(64, dtype=np.float32) + normal(1040, 64, 64, scale=0.012),
    "64x8 @1041; 24x64 @1042",
)
def mxfp4_merged_residual(merged, mixers, x):
    """A residual layer whose checkpoint holds one weight, identity and all."""
    h = common.layer_norm(x, 1.0, 0.0)
    out = h @ merged  # fault
    moved = out - h  # -
    # + moved = h @ (merged - jnp.eye(merged.shape[0]))
    return moved, jax.nn.softmax(moved @ mixers, axis=-1)


def mx_units_arguments():
    spread = 10.0 ** np.random.default_rng(1053).integers(-4, 7, 32)
    spread = spread.astype(np.float32)
    w = (normal(1050, 32, 24, scale=0.25) / spread[:, None]).astype(np.float32)
    p = {"w": w, "b": normal(1051, 24, scale=0.2), "out": normal(1054, 24, 3)}
    return p, (normal(1052, 40, 32) * spread).astype(np.float32), spread


@fault("underflow", "coarse", policy="mxfp8", target="trn3")
@source("tabular models without standardized columns, in block formats")
@inputs(by=mx_units_arguments)
def mxfp8_columns_of_many_units(p, table, spread):
    """A tabular model in MXFP8; prices and rates share a block of 32 columns."""
    inner = table @ p["w"]  # fault
    # + inner = (table / spread) @ (p["w"] * spread[:, None])
    hidden = jnp.tanh(inner + p["b"])
    return jax.nn.sigmoid(hidden @ p["out"])


@fault(
    "stagnation",
    "absorption",
    policy=nj.Policy(auto_cast="matmult", auto_cast_type="bf16", psum_dtype="bfloat16"),
    target="trn3",
)
@source("reports on reduced-precision accumulation of long contractions")
@inputs(
    "w: 8192x8 *0.005 +0.003 @1060 [:128]+=1.2, bias: 8 *0.1, out: 8x4",
    lambda: np.random.default_rng(1063).poisson(1.0, (6, 8192)).astype(np.float32),
)
def matmul_partial_sums_in_bf16(p, x):
    """A bag-of-words layer over 8,192 columns; partial sums are rounded to BF16."""
    counts = jnp.log1p(x)
    hidden = counts @ p["w"]  # fault
    # + pieces = counts.reshape(x.shape[0], -1, 128)
    # + rows = p["w"].reshape(-1, 128, p["w"].shape[1])
    # + hidden = jnp.sum(jnp.einsum("bck,ckn->cbn", pieces, rows), axis=0)
    hidden = jnp.tanh(hidden * 0.005 + p["bias"])
    return hidden, hidden @ p["out"]
