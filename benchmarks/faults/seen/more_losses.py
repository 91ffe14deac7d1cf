"""Losses of classifiers, detectors, adversaries and regressions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import block, conv, mlp, mlp_params
from benchmarks.faults.parts import normal, uniform


@fault("overflow", "non-finite")
@source("forum threads on NaN loss with a hand-written softmax cross-entropy")
@inputs("embed: 64x32 *6 @1, block: block 32x64; 17 int 0..64 @3")
def lm_loss_exp_of_large_logits(params, tokens):
    """A language model's loss; the logits of the tied embedding are large."""

    def loss(params):
        x = params["embed"][tokens[:-1]] * 0.05
        x = block(params["block"], x)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        logits = x @ params["embed"].T
        probs = jnp.exp(logits) / jnp.sum(jnp.exp(logits), -1, keepdims=True)  # fault
        picked = jnp.take_along_axis(probs, tokens[1:, None], axis=-1)  # -
        # + scores = jax.nn.log_softmax(logits)
        # + picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)
        return -jnp.mean(jnp.log(picked))  # -
        # + return -jnp.mean(picked)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def distillation_arguments():
    student = mlp_params(10, 16, 32, 24)
    student[1]["w"] = student[1]["w"] * 14
    return student, "mlp 16x32x24 @20; 32x16 @11"


@fault("underflow", "non-finite", "singular", policy="fp16")
@source("framework issues on log(softmax(x)) giving -inf where log_softmax does not")
@inputs(by=distillation_arguments)
def distillation_log_of_half_softmax(student, teacher, x):
    """KL of a student with FP16 logits from its teacher."""
    wanted = jax.nn.softmax(mlp(teacher, x))
    hidden = jnp.tanh(x @ student[0]["w"] + student[0]["b"])
    z = (hidden @ student[1]["w"] + student[1]["b"]).astype(jnp.float16)
    log_q = jnp.log(jax.nn.softmax(z))  # fault
    # + log_q = jax.nn.log_softmax(z.astype(jnp.float32))
    cross = -jnp.sum(wanted * log_q.astype(jnp.float32), axis=-1)  # -
    # + cross = -jnp.sum(wanted * log_q, axis=-1)
    return jnp.mean(cross), jnp.argmax(z, axis=-1)


def gan_arguments():
    disc = mlp_params(30, 12, 48, 1)
    disc[1]["w"] = disc[1]["w"] * 22
    return disc, "mlp 8x32x12 @40; 24x8 @31; 24x12 @32"


@fault("cancellation", "singular", "absorption", "non-finite")
@source("GAN issues: discriminator loss becomes inf once a fake scores 1.0")
@inputs(by=gan_arguments)
def gan_discriminator_log_one_minus_sigmoid(disc, gen, noise, real):
    """Discriminator's step of a GAN; it is sure that some fakes are real."""
    fake = jnp.tanh(mlp(gen, noise))

    def loss(disc):
        missed = jax.nn.log_sigmoid(mlp(disc, real)[:, 0])
        d_fake = jax.nn.sigmoid(mlp(disc, fake)[:, 0])  # -
        caught = jnp.log(1.0 - d_fake)  # fault
        # + z_fake = mlp(disc, fake)[:, 0]
        # + caught = -jax.nn.softplus(z_fake)
        return -jnp.mean(caught) - jnp.mean(missed)

    value, grads = jax.value_and_grad(loss)(disc)
    return value, jax.tree.map(lambda p, g: p - 1e-2 * g, disc, grads)


@fault("overflow")
@source("reports that a log-cosh loss is inf for residuals above 88")
@inputs("mlp 6x32x1 @50; 64x6 @51; 64 40..300 @52")
def logcosh_regression_large_residual(params, x, y):
    """Log-cosh regression on prices whose first residuals are hundreds."""

    def loss(params):
        residual = mlp(params, x)[:, 0] - y
        each = jnp.log(jnp.cosh(residual))  # fault
        # + size = jnp.abs(residual)
        # + each = size + jax.nn.softplus(-2.0 * size) - 0.6931472
        return jnp.mean(each)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


@fault("absorption", "cancellation")
@source("literature on log1p: log(1 - h) for tiny hazards")
@inputs("mlp 8x16x1 @60; 48x8 @61; 1x256 -20.5..-18.5 @62")
def discrete_survival_tiny_hazards(params, x, baseline):
    """Log survival over many short intervals with tiny hazards."""
    risk = mlp(params, x)
    hazard = jnp.exp(jnp.clip(risk, -3.0, 3.0) + baseline)
    stay = jnp.log(1.0 - hazard)  # fault
    # + stay = jnp.log1p(-hazard)
    cumulative = jnp.sum(stay, axis=-1)
    return cumulative, jnp.mean(cumulative)


def detr_arguments():
    boxes = np.round(uniform(71, 20, 4, low=0.05, high=0.95) * 128) / 128
    boxes[3, 2:] = 1.0
    boxes[11, 3] = 1.0
    return "mlp 32x32x4 @70; 20x32 @72", boxes.astype(np.float32)


@fault("singular", "absorption", "coarse", "non-finite")
@source("detector issues: inverse sigmoid with 1 - 1e-3, which half types round to 1")
@inputs(by=detr_arguments)
def detr_inverse_sigmoid_bf16_clip(params, queries, boxes):
    """Boxes refined in logit space; the reference points are BF16."""
    reference = boxes.astype(jnp.bfloat16)
    hidden = jax.nn.relu(queries @ params[0]["w"] + params[0]["b"])
    delta = hidden @ params[1]["w"] + params[1]["b"]
    anchor = jax.scipy.special.logit(jnp.clip(reference, 1e-3, 1 - 1e-3))  # fault
    # + p = jnp.clip(reference.astype(jnp.float32), 1e-3, 1 - 1e-3)
    # + anchor = jnp.log(p / (1.0 - p))
    refined = jax.nn.sigmoid(anchor.astype(jnp.float32) + delta)  # -
    # + refined = jax.nn.sigmoid(anchor + delta)
    centre, size = refined[:, :2], refined[:, 2:]
    return anchor.astype(jnp.float32), jnp.concatenate([centre, size], -1)  # -
    # + return anchor, jnp.concatenate([centre, size], -1)


def clip_arguments():
    texts = normal(82, 16, 20)
    texts[13:] = 0
    return "image: 24x16 *0.2 @80, text: 20x16; 16x24 @83", texts


@fault("non-finite", "singular")
@source("retrieval issues: cosine similarity of an empty text is NaN")
@inputs(by=clip_arguments)
def contrastive_norm_of_padding(params, images, texts):
    """Contrastive loss; the last texts of the batch are padding, all zeros."""

    def loss(params):
        a = images @ params["image"]
        b = texts @ params["text"]
        a = a * jax.lax.rsqrt(jnp.sum(jnp.square(a), -1, keepdims=True))
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)  # fault
        # + b = b * jax.lax.rsqrt(jnp.maximum(jnp.sum(b * b, -1, keepdims=True), 1e-6))
        logits = (a @ b.T) * 10.0
        valid = jnp.any(texts != 0, axis=-1)
        rows = jax.nn.log_softmax(jnp.where(valid[None], logits, -1e9), axis=-1)
        diagonal = jnp.diagonal(rows)
        return -jnp.sum(jnp.where(valid, diagonal, 0.0)) / jnp.sum(valid)

    return jax.value_and_grad(loss)(params)


def denoise_arguments():
    clean = uniform(90, 2, 48, 48, 1, low=0, high=1)
    noisy = clean + normal(91, 2, 48, 48, 1, scale=0.005)
    return ["3x3x1x8 *0.3 @92", "3x3x8x1 *0.1 @93"], noisy, clean


@fault("underflow", policy="fp16")
@source("mixed-precision guides: mean losses divided per element vanish in FP16")
@inputs(by=denoise_arguments)
def denoiser_divides_pixels_by_count(kernels, noisy, clean):
    """A denoiser's loss as a map in FP16, every pixel divided before they are added."""
    h = jax.nn.relu(conv(noisy, kernels[0]))
    out = noisy - 0.001 * conv(h, kernels[1])
    squared = jnp.square(out - clean)
    per_pixel = (squared / squared.size).astype(jnp.float16)  # fault
    return jnp.sum(per_pixel.astype(jnp.float32))  # -
    # + return jnp.sum(squared) / squared.size
