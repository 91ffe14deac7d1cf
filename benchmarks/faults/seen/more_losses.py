"""Losses of classifiers, detectors, adversaries and regressions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import (
    block,
    block_params,
    conv,
    integers,
    mlp,
    mlp_params,
    normal,
    uniform,
)


def lm_naive_softmax(params, tokens):
    """A language model's loss; the logits of the tied embedding are large."""

    def loss(params):
        x = params["embed"][tokens[:-1]] * 0.05
        x = block(params["block"], x)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        logits = x @ params["embed"].T
        probs = jnp.exp(logits) / jnp.sum(jnp.exp(logits), -1, keepdims=True)  # fault
        picked = jnp.take_along_axis(probs, tokens[1:, None], axis=-1)
        return -jnp.mean(jnp.log(picked))

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def lm_log_softmax(params, tokens):
    def loss(params):
        x = params["embed"][tokens[:-1]] * 0.05
        x = block(params["block"], x)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        logits = x @ params["embed"].T
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)
        return -jnp.mean(picked)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def lm_arguments():
    params = {"embed": normal(1, 64, 32, scale=6.0), "block": block_params(2, 32, 64)}
    return params, integers(3, 0, 64, 17)


def distillation_log_of_softmax(student, teacher, x):
    """KL of a student with FP16 logits from its teacher."""
    wanted = jax.nn.softmax(mlp(teacher, x))
    hidden = jnp.tanh(x @ student[0]["w"] + student[0]["b"])
    z = (hidden @ student[1]["w"] + student[1]["b"]).astype(jnp.float16)
    log_q = jnp.log(jax.nn.softmax(z))  # fault
    cross = -jnp.sum(wanted * log_q.astype(jnp.float32), axis=-1)
    return jnp.mean(cross), jnp.argmax(z, axis=-1)


def distillation_log_softmax(student, teacher, x):
    wanted = jax.nn.softmax(mlp(teacher, x))
    hidden = jnp.tanh(x @ student[0]["w"] + student[0]["b"])
    z = (hidden @ student[1]["w"] + student[1]["b"]).astype(jnp.float16)
    log_q = jax.nn.log_softmax(z.astype(jnp.float32))
    cross = -jnp.sum(wanted * log_q, axis=-1)
    return jnp.mean(cross), jnp.argmax(z, axis=-1)


def distillation_arguments():
    student = mlp_params(10, 16, 32, 24)
    student[1]["w"] = student[1]["w"] * 14
    return student, mlp_params(20, 16, 32, 24), normal(11, 32, 16)


def gan_log_one_minus(disc, gen, noise, real):
    """Discriminator's step of a GAN; it is sure that some fakes are real."""
    fake = jnp.tanh(mlp(gen, noise))

    def loss(disc):
        missed = jax.nn.log_sigmoid(mlp(disc, real)[:, 0])
        d_fake = jax.nn.sigmoid(mlp(disc, fake)[:, 0])
        caught = jnp.log(1.0 - d_fake)  # fault
        return -jnp.mean(caught) - jnp.mean(missed)

    value, grads = jax.value_and_grad(loss)(disc)
    return value, jax.tree.map(lambda p, g: p - 1e-2 * g, disc, grads)


def gan_from_logits(disc, gen, noise, real):
    fake = jnp.tanh(mlp(gen, noise))

    def loss(disc):
        missed = jax.nn.log_sigmoid(mlp(disc, real)[:, 0])
        z_fake = mlp(disc, fake)[:, 0]
        caught = -jax.nn.softplus(z_fake)
        return -jnp.mean(caught) - jnp.mean(missed)

    value, grads = jax.value_and_grad(loss)(disc)
    return value, jax.tree.map(lambda p, g: p - 1e-2 * g, disc, grads)


def gan_arguments():
    disc = mlp_params(30, 12, 48, 1)
    disc[1]["w"] = disc[1]["w"] * 22
    return disc, mlp_params(40, 8, 32, 12), normal(31, 24, 8), normal(32, 24, 12)


def logcosh_naive(params, x, y):
    """Log-cosh regression on prices whose first residuals are hundreds."""

    def loss(params):
        residual = mlp(params, x)[:, 0] - y
        each = jnp.log(jnp.cosh(residual))  # fault
        return jnp.mean(each)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def logcosh_folded(params, x, y):
    def loss(params):
        residual = mlp(params, x)[:, 0] - y
        size = jnp.abs(residual)
        each = size + jax.nn.softplus(-2.0 * size) - 0.6931472
        return jnp.mean(each)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def logcosh_arguments():
    return mlp_params(50, 6, 32, 1), normal(51, 64, 6), uniform(52, 40, 300, 64)


def survival_log_one_minus(params, x, baseline):
    """Log survival over many short intervals with tiny hazards."""
    risk = mlp(params, x)
    hazard = jnp.exp(jnp.clip(risk, -3.0, 3.0) + baseline)
    stay = jnp.log(1.0 - hazard)  # fault
    cumulative = jnp.sum(stay, axis=-1)
    return cumulative, jnp.mean(cumulative)


def survival_log1p(params, x, baseline):
    risk = mlp(params, x)
    hazard = jnp.exp(jnp.clip(risk, -3.0, 3.0) + baseline)
    stay = jnp.log1p(-hazard)
    cumulative = jnp.sum(stay, axis=-1)
    return cumulative, jnp.mean(cumulative)


def survival_arguments():
    return (
        mlp_params(60, 8, 16, 1),
        normal(61, 48, 8),
        uniform(62, -20.5, -18.5, 1, 256),
    )


def detr_clip_eps(params, queries, boxes):
    """Boxes refined in logit space; the reference points are BF16."""
    reference = boxes.astype(jnp.bfloat16)
    hidden = jax.nn.relu(queries @ params[0]["w"] + params[0]["b"])
    delta = hidden @ params[1]["w"] + params[1]["b"]
    anchor = jax.scipy.special.logit(jnp.clip(reference, 1e-3, 1 - 1e-3))  # fault
    refined = jax.nn.sigmoid(anchor.astype(jnp.float32) + delta)
    centre, size = refined[:, :2], refined[:, 2:]
    return anchor.astype(jnp.float32), jnp.concatenate([centre, size], -1)


def detr_clip_wide(params, queries, boxes):
    reference = boxes.astype(jnp.bfloat16)
    hidden = jax.nn.relu(queries @ params[0]["w"] + params[0]["b"])
    delta = hidden @ params[1]["w"] + params[1]["b"]
    p = jnp.clip(reference.astype(jnp.float32), 1e-3, 1 - 1e-3)
    anchor = jnp.log(p / (1.0 - p))
    refined = jax.nn.sigmoid(anchor + delta)
    centre, size = refined[:, :2], refined[:, 2:]
    return anchor, jnp.concatenate([centre, size], -1)


def detr_arguments():
    boxes = np.round(uniform(71, 0.05, 0.95, 20, 4) * 128) / 128
    boxes[3, 2:] = 1.0
    boxes[11, 3] = 1.0
    params = mlp_params(70, 32, 32, 4)
    return params, normal(72, 20, 32), boxes.astype(np.float32)


def clip_zero_row(params, images, texts):
    """Contrastive loss; the last texts of the batch are padding, all zeros."""

    def loss(params):
        a = images @ params["image"]
        b = texts @ params["text"]
        a = a * jax.lax.rsqrt(jnp.sum(jnp.square(a), -1, keepdims=True))
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)  # fault
        logits = (a @ b.T) * 10.0
        valid = jnp.any(texts != 0, axis=-1)
        rows = jax.nn.log_softmax(jnp.where(valid[None], logits, -1e9), axis=-1)
        diagonal = jnp.diagonal(rows)
        return -jnp.sum(jnp.where(valid, diagonal, 0.0)) / jnp.sum(valid)

    return jax.value_and_grad(loss)(params)


def clip_guarded(params, images, texts):
    def loss(params):
        a = images @ params["image"]
        b = texts @ params["text"]
        a = a * jax.lax.rsqrt(jnp.sum(jnp.square(a), -1, keepdims=True))
        b = b * jax.lax.rsqrt(jnp.maximum(jnp.sum(b * b, -1, keepdims=True), 1e-6))
        logits = (a @ b.T) * 10.0
        valid = jnp.any(texts != 0, axis=-1)
        rows = jax.nn.log_softmax(jnp.where(valid[None], logits, -1e9), axis=-1)
        diagonal = jnp.diagonal(rows)
        return -jnp.sum(jnp.where(valid, diagonal, 0.0)) / jnp.sum(valid)

    return jax.value_and_grad(loss)(params)


def clip_arguments():
    texts = normal(82, 16, 20)
    texts[13:] = 0
    params = {"image": normal(80, 24, 16, scale=0.2), "text": normal(81, 20, 16)}
    return params, normal(83, 16, 24), texts


def denoise_divided_first(kernels, noisy, clean):
    """A denoiser's loss as a map in FP16, every pixel divided before they are added."""
    h = jax.nn.relu(conv(noisy, kernels[0]))
    out = noisy - 0.001 * conv(h, kernels[1])
    squared = jnp.square(out - clean)
    per_pixel = (squared / squared.size).astype(jnp.float16)  # fault
    return jnp.sum(per_pixel.astype(jnp.float32))


def denoise_mean(kernels, noisy, clean):
    h = jax.nn.relu(conv(noisy, kernels[0]))
    out = noisy - 0.001 * conv(h, kernels[1])
    squared = jnp.square(out - clean)
    return jnp.sum(squared) / squared.size


def denoise_arguments():
    clean = uniform(90, 0, 1, 2, 48, 48, 1)
    noisy = clean + normal(91, 2, 48, 48, 1, scale=0.005)
    kernels = [normal(92, 3, 3, 1, 8, scale=0.3), normal(93, 3, 3, 8, 1, scale=0.1)]
    return kernels, noisy, clean


FAULTS = (
    Fault(
        name="lm-loss-exp-of-large-logits",
        kinds=("overflow", "non-finite"),
        faulty=lm_naive_softmax,
        healthy=lm_log_softmax,
        arguments=lm_arguments,
        policy="bf16",
        source="forum threads on NaN loss with a hand-written softmax cross-entropy",
    ),
    Fault(
        name="distillation-log-of-half-softmax",
        kinds=("underflow", "non-finite", "singular"),
        faulty=distillation_log_of_softmax,
        healthy=distillation_log_softmax,
        arguments=distillation_arguments,
        policy="fp16",
        source=(
            "framework issues on log(softmax(x)) giving -inf where log_softmax does not"
        ),
    ),
    Fault(
        name="gan-discriminator-log-one-minus-sigmoid",
        kinds=("cancellation", "singular", "absorption", "non-finite"),
        faulty=gan_log_one_minus,
        healthy=gan_from_logits,
        arguments=gan_arguments,
        policy="bf16",
        source="GAN issues: discriminator loss becomes inf once a fake scores 1.0",
    ),
    Fault(
        name="logcosh-regression-large-residual",
        kinds=("overflow",),
        faulty=logcosh_naive,
        healthy=logcosh_folded,
        arguments=logcosh_arguments,
        policy="bf16",
        source="reports that a log-cosh loss is inf for residuals above 88",
    ),
    Fault(
        name="discrete-survival-tiny-hazards",
        kinds=("absorption", "cancellation"),
        faulty=survival_log_one_minus,
        healthy=survival_log1p,
        arguments=survival_arguments,
        policy="bf16",
        source="literature on log1p: log(1 - h) for tiny hazards",
    ),
    Fault(
        name="detr-inverse-sigmoid-bf16-clip",
        kinds=("singular", "absorption", "coarse", "non-finite"),
        faulty=detr_clip_eps,
        healthy=detr_clip_wide,
        arguments=detr_arguments,
        policy="bf16",
        source=(
            "detector issues: inverse sigmoid with 1 - 1e-3, which half types round "
            "to 1"
        ),
    ),
    Fault(
        name="contrastive-norm-of-padding",
        kinds=("non-finite", "singular"),
        faulty=clip_zero_row,
        healthy=clip_guarded,
        arguments=clip_arguments,
        policy="bf16",
        source="retrieval issues: cosine similarity of an empty text is NaN",
    ),
    Fault(
        name="denoiser-divides-pixels-by-count",
        kinds=("underflow",),
        faulty=denoise_divided_first,
        healthy=denoise_mean,
        arguments=denoise_arguments,
        policy="fp16",
        source="mixed-precision guides: mean losses divided per element vanish in FP16",
    ),
)
