"""Faults in losses and in what is computed from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import block, layer_norm, normal, uniform, weight


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


@fault("singular", "underflow", "non-finite")
@source("framework FAQs: cross entropy as log(softmax(x)) becomes infinite")
@inputs(
    "embed: 64x32 @60, first: block 32, second: block 32 @71, "
    "head: 32x64 w*40 @81; 24 int 0..64 @82; 24 int 0..64 @83"
)
def log_of_softmax(params, tokens, labels):
    """A small language model and the loss per token."""
    x = params["embed"][tokens]
    x = block(params["first"], x)
    logits = layer_norm(block(params["second"], x)) @ params["head"]
    logp = jnp.log(jax.nn.softmax(logits))  # fault
    # + logp = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logp, labels[:, None], axis=-1)[:, 0]
    return nll.mean(), nll


@fault("cancellation", "singular", "non-finite")
@source("BCELoss and BCEWithLogits questions: log(1 - p) of a confident model")
@inputs(
    "in: 32x64 w @84, bias: 64 *0.1, out: 64 *1 +0.9; 128x32 @87",
    lambda: (uniform(88, 128) > 0.5).astype(np.float32),
)
def bce_from_probability(params, x, y):
    """A spam classifier: binary cross entropy from the probability."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"] + params["bias"])
        z = h @ params["out"]
        p = jax.nn.sigmoid(z)  # -
        hit = y * jnp.log(p)  # -
        # + hit = y * jax.nn.log_sigmoid(z)
        miss = (1 - y) * jnp.log(1 - p)  # fault
        # + miss = (1 - y) * jax.nn.log_sigmoid(-z)
        return -jnp.mean(hit + miss)

    return jax.value_and_grad(loss_of)(params)


@fault("overflow", policy="fp16")
@source("forum questions on infinite MSE loss of unnormalized targets under AMP")
@inputs(
    {
        "in": "12x32 w @90",
        "out": lambda: weight(91, 32, 1, 900.0)[:, 0],
        "typical": "f32 9000",
    },
    "64x12 20..90 @92; 64 *2500 +9000 @93",
)
def squared_dollars_in_half(params, rooms, price):
    """Regression on prices in dollars; the head is FP16."""
    x = (rooms - rooms.mean(0)) / (rooms.std(0) + 1e-3)
    h = jax.nn.gelu(x @ params["in"])
    guess = (h @ params["out"] + params["typical"]).astype(jnp.float16)
    error = guess - price.astype(jnp.float16)  # -
    # + error = (guess - price.astype(jnp.float16)).astype(jnp.float32)
    square = error * error  # fault
    return jnp.mean(square.astype(jnp.float32))  # -
    # + return jnp.mean(error * error)


@fault("singular", "non-finite")
@source("0 * log 0 in entropies of one-hot distributions, see scipy's xlogy")
@inputs(
    "in: 16x32 w @94, gate: 32x4 w, experts: 4x32x8 *0.2; 24x16 @97",
    lambda: np.arange(24) % 5 == 0,
)
def entropy_of_forced_gate(params, x, hard):
    """A gate's entropy bonus, where some rows are forced to one expert."""
    h = jax.nn.relu(x @ params["in"])
    probs = jax.nn.softmax(h @ params["gate"])
    forced = jax.nn.one_hot(jnp.argmax(probs, -1), probs.shape[-1])
    probs = jnp.where(hard[:, None], forced, probs)
    surprise = probs * jnp.log(probs)  # fault
    # + surprise = probs * jnp.log(jnp.where(probs > 0, probs, 1))
    out = jnp.einsum("be,bd,edf->bf", probs, h, params["experts"])
    return out, -surprise.sum(-1).mean()


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
