"""Losses of classifiers, language models and agents."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import convolution, layer_norm, normal, uniform, weight


def clip_arguments():
    images = normal(50, 32, 48)
    params = {
        "image": weight(51, 48, 64),
        "text": weight(51, 48, 64),
        "join": weight(53, 64, 32),
        "log_scale": np.float32(np.log(100.0)),
    }
    return params, images, images + normal(54, 32, 48, scale=0.8)


@fault("overflow", "non-finite")
@source("open_clip discussions: exp(cosine / 0.01) in a hand-written InfoNCE")
@inputs(by=clip_arguments)
def clip_exp_of_scaled_cosine(params, images, texts):
    """CLIP's symmetric loss with a learned temperature, and its gradient."""

    def loss_of(params):
        a = jnp.tanh(images @ params["image"]) @ params["join"]
        b = jnp.tanh(texts @ params["text"]) @ params["join"]
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = (a @ b.T) * jnp.exp(params["log_scale"])
        matches = jnp.diag(logits)
        odds = jnp.exp(logits)  # fault
        rows, columns = jnp.log(odds.sum(1)), jnp.log(odds.sum(0))  # -
        # + rows = jax.nn.logsumexp(logits, axis=1)
        # + columns = jax.nn.logsumexp(logits, axis=0)
        return jnp.mean(rows + columns - 2 * matches) / 2

    return jax.value_and_grad(loss_of)(params)


@fault("cancellation")
@source("RL fine-tuning: exp(d) - d - 1 is rounding noise at the first steps")
@inputs("256x32 @100; 256 @101; 32x16 w @102; 256 int 0..16 @103")
def k3_estimator_of_tiny_kl(hidden, drift, head, actions):
    """The penalty of GRPO: the low-variance estimator of a KL divergence."""
    logits = layer_norm(hidden) @ head
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, actions[:, None], axis=-1)[:, 0]
    gap = drift * 1e-4
    kl = jnp.exp(gap) - gap - 1.0  # fault
    # + kl = gap * gap * (0.5 + gap * (1 / 6 + gap / 24))
    return -chosen.mean(), kl.mean(), kl


@fault("underflow", policy="fp16")
@source("Micikevicius et al., Mixed Precision Training, section 3.2")
@inputs("in: 32x64 w @104, out: 64x16 w; 128x32 @106; 128 int 0..16 @107")
def half_gradients_without_loss_scale(params, x, labels):
    """FP16 training of a classifier; the loss is not scaled."""

    # + scale = 2.0**15
    def loss_of(params):
        h = jax.nn.relu(x @ params["in"]).astype(jnp.float16)
        half = h @ params["out"].astype(jnp.float16)
        logits = half.astype(jnp.float32)  # here
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return -picked.sum() / 2**22  # a part of a batch of four million tokens  # -
        # + return -picked.sum() * (scale / 2**22)

    return jax.grad(loss_of)(params)  # -
    # + return jax.tree.map(lambda g: g / scale, jax.grad(loss_of)(params))


@fault("underflow", "non-finite", "singular", policy="fp16")
@source("framework issues on log(softmax(x)) giving -inf where log_softmax does not")
@inputs("mlp 16x32x24 @10 [1][w]*=14; mlp 16x32x24 @20; 32x16 @11")
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


@fault("cancellation", "singular", "absorption", "non-finite")
@source("GAN issues: discriminator loss becomes inf once a fake scores 1.0")
@inputs("mlp 12x48x1 @30 [1][w]*=22; mlp 8x32x12 @40; 24x8 @31; 24x12 @32")
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


@fault("non-finite", "singular")
@source("retrieval issues: cosine similarity of an empty text is NaN")
@inputs("image: 24x16 *0.2 @80, text: 20x16; 16x24 @83; 16x20 @82 [13:]=0")
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
    h = jax.nn.relu(convolution(noisy, kernels[0]))
    out = noisy - 0.001 * convolution(h, kernels[1])
    squared = jnp.square(out - clean)
    per_pixel = (squared / squared.size).astype(jnp.float16)  # fault
    return jnp.sum(per_pixel.astype(jnp.float32))  # -
    # + return jnp.sum(squared) / squared.size


@fault("cancellation", "singular", "absorption", "non-finite")
@source("RL libraries: log-probability of a tanh-squashed Gaussian is inf")
@inputs("mlp 10x32x8 @120 [1][w]*=6; 32x10 @121; 32x4 @122; 4 @123")
def sac_log_one_minus_tanh_squared(params, states, noise, q_weight):
    """Actor loss of soft actor-critic with a squashed Gaussian."""

    def loss(params):
        mean, log_std = jnp.split(mlp(params, states), 2, axis=-1)
        std = jnp.exp(jnp.clip(log_std, -5.0, 1.0))
        pre = mean + std * noise
        action = jnp.tanh(pre)
        gauss = -0.5 * jnp.square(noise) - jnp.clip(log_std, -5.0, 1.0) - 0.918939
        squash = jnp.log(1.0 - jnp.square(action))  # fault
        # + squash = 2.0 * (0.6931472 - pre - jax.nn.softplus(-2.0 * pre))
        log_prob = jnp.sum(gauss - squash, axis=-1)
        return jnp.mean(0.2 * log_prob - action @ q_weight)

    return jax.value_and_grad(loss)(params)


@fault("non-finite", "underflow", "singular")
@source("actor-critic issues: p log p with p = 0 gives NaN")
@inputs("mlp 8x24x5 @140; 40x8 @141; 40 int 0..5 @142; 40 @143")
def entropy_bonus_of_cold_policy(params, states, actions, advantages):
    """Advantage actor-critic with an entropy bonus on a sharpened policy."""

    def loss(params):
        logits = mlp(params, states) / 0.02
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
        probs = jax.nn.softmax(logits)
        entropy = -jnp.sum(probs * jnp.log(probs), axis=-1)  # fault
        # + entropy = -jnp.sum(probs * log_probs, axis=-1)
        return -jnp.mean(picked * advantages) - 0.01 * jnp.mean(entropy)

    return jax.value_and_grad(loss)(params)


def _gae(deltas):
    def back(carry, delta):
        carry = delta + 0.95 * carry
        return carry, carry

    return jax.lax.scan(back, jnp.zeros(()), deltas, reverse=True)[1]


@fault("coarse", "cancellation", "absorption")
@source("RL in half precision: value estimates with a large mean lose their steps")
@inputs(
    "w: 8x24 *0.3 @160, head: 24 *0.2, mean: f32 1003.25; 101x8 @162; "
    "100 -0.3..0.3 @163"
)
def gae_values_in_bf16(params, states, rewards):
    """Advantages from a value head whose mean return is near 1,000."""
    hidden = jnp.tanh(states @ params["w"])
    scores = hidden @ params["head"]
    values = (scores + params["mean"]).astype(jnp.bfloat16)  # fault
    wide = values.astype(jnp.float32)  # -
    deltas = rewards + wide[1:] - wide[:-1]  # -
    # + deltas = rewards + (scores[1:] - scores[:-1])
    advantages = _gae(deltas)
    return advantages, advantages > 0


@fault("absorption", "stagnation", "integer")
@source("long runs: a float step counter stops at 16,777,216")
@inputs("4x8 *0.3 @180; 4x8 *0.3 @180; f32 16777190; 180x8 @181")
def frame_counter_in_fp32(weights, target, frames, observations):
    """Target-network copies by a float frame counter of a long run."""

    def step(state, observation):
        weights, target, frames = state
        error = jnp.tanh(weights @ observation) - jnp.tanh(target @ observation)
        weights = weights - 0.01 * jnp.outer(error, observation) + 0.002
        frames = frames + 1.0  # fault
        # + frames = frames + 1
        copy = jnp.mod(frames, 50.0) == 0.0  # -
        # + copy = frames % 50 == 0
        target = jnp.where(copy, weights, target)
        return (weights, target, frames), copy

    (weights, target, _), copies = jax.lax.scan(
        step, (weights, target, frames), observations
    )  # -
    # + (weights, target, _), copies = jax.lax.scan(
    # +     step, (weights, target, frames.astype(jnp.int32)), observations
    # + )
    return weights, target, copies
