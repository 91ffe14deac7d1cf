"""Faults in losses and in what is computed from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def clip_faulty(params, images, texts):
    """CLIP's symmetric loss with a learned temperature, and its gradient."""

    def loss_of(params):
        a = jnp.tanh(images @ params["image"]) @ params["join"]
        b = jnp.tanh(texts @ params["text"]) @ params["join"]
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = (a @ b.T) * jnp.exp(params["log_scale"])
        matches = jnp.diag(logits)
        odds = jnp.exp(logits)  # fault
        rows, columns = jnp.log(odds.sum(1)), jnp.log(odds.sum(0))
        return jnp.mean(rows + columns - 2 * matches) / 2

    return jax.value_and_grad(loss_of)(params)


def clip_healthy(params, images, texts):
    def loss_of(params):
        a = jnp.tanh(images @ params["image"]) @ params["join"]
        b = jnp.tanh(texts @ params["text"]) @ params["join"]
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = (a @ b.T) * jnp.exp(params["log_scale"])
        matches = jnp.diag(logits)
        rows = jax.nn.logsumexp(logits, axis=1)
        columns = jax.nn.logsumexp(logits, axis=0)
        return jnp.mean(rows + columns - 2 * matches) / 2

    return jax.value_and_grad(loss_of)(params)


def clip_arguments():
    images = normal(50, 32, 48)
    params = {
        "image": weight(51, 48, 64),
        "text": weight(51, 48, 64),
        "join": weight(53, 64, 32),
        "log_scale": np.float32(np.log(100.0)),
    }
    return params, images, images + normal(54, 32, 48, scale=0.8)


def nll_faulty(params, tokens, labels):
    """A small language model and the loss per token."""
    x = params["embed"][tokens]
    x = block(params["first"], x)
    logits = layer_norm(block(params["second"], x)) @ params["head"]
    logp = jnp.log(jax.nn.softmax(logits))  # fault
    nll = -jnp.take_along_axis(logp, labels[:, None], axis=-1)[:, 0]
    return nll.mean(), nll


def nll_healthy(params, tokens, labels):
    x = params["embed"][tokens]
    x = block(params["first"], x)
    logits = layer_norm(block(params["second"], x)) @ params["head"]
    logp = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logp, labels[:, None], axis=-1)[:, 0]
    return nll.mean(), nll


def nll_arguments():
    params = {
        "embed": normal(60, 64, 32),
        "first": block_params(61, 32),
        "second": block_params(71, 32),
        "head": weight(81, 32, 64, 40.0),
    }
    return params, integers(82, 64, 24), integers(83, 64, 24)


def detector_faulty(params, x, y):
    """A spam classifier: binary cross entropy from the probability."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"] + params["bias"])
        z = h @ params["out"]
        p = jax.nn.sigmoid(z)
        hit = y * jnp.log(p)
        miss = (1 - y) * jnp.log(1 - p)  # fault
        return -jnp.mean(hit + miss)

    return jax.value_and_grad(loss_of)(params)


def detector_healthy(params, x, y):
    def loss_of(params):
        h = jax.nn.relu(x @ params["in"] + params["bias"])
        z = h @ params["out"]
        hit = y * jax.nn.log_sigmoid(z)
        miss = (1 - y) * jax.nn.log_sigmoid(-z)
        return -jnp.mean(hit + miss)

    return jax.value_and_grad(loss_of)(params)


def detector_arguments():
    params = {
        "in": weight(84, 32, 64),
        "bias": normal(85, 64, scale=0.1),
        "out": normal(86, 64, scale=1.0, shift=0.9),
    }
    return params, normal(87, 128, 32), (uniform(88, 128) > 0.5).astype(np.float32)


def prices_faulty(params, rooms, price):
    """Regression on prices in dollars; the head is FP16."""
    x = (rooms - rooms.mean(0)) / (rooms.std(0) + 1e-3)
    h = jax.nn.gelu(x @ params["in"])
    guess = (h @ params["out"] + params["typical"]).astype(jnp.float16)
    error = guess - price.astype(jnp.float16)
    square = error * error  # fault
    return jnp.mean(square.astype(jnp.float32))


def prices_healthy(params, rooms, price):
    x = (rooms - rooms.mean(0)) / (rooms.std(0) + 1e-3)
    h = jax.nn.gelu(x @ params["in"])
    guess = (h @ params["out"] + params["typical"]).astype(jnp.float16)
    error = (guess - price.astype(jnp.float16)).astype(jnp.float32)
    return jnp.mean(error * error)


def prices_arguments():
    params = {
        "in": weight(90, 12, 32),
        "out": weight(91, 32, 1, 900.0)[:, 0],
        "typical": np.float32(9000.0),
    }
    price = normal(93, 64, scale=2500.0, shift=9000.0)
    return params, uniform(92, 64, 12, low=20.0, high=90.0), price


def entropy_faulty(params, x, hard):
    """A gate's entropy bonus, where some rows are forced to one expert."""
    h = jax.nn.relu(x @ params["in"])
    probs = jax.nn.softmax(h @ params["gate"])
    forced = jax.nn.one_hot(jnp.argmax(probs, -1), probs.shape[-1])
    probs = jnp.where(hard[:, None], forced, probs)
    surprise = probs * jnp.log(probs)  # fault
    out = jnp.einsum("be,bd,edf->bf", probs, h, params["experts"])
    return out, -surprise.sum(-1).mean()


def entropy_healthy(params, x, hard):
    h = jax.nn.relu(x @ params["in"])
    probs = jax.nn.softmax(h @ params["gate"])
    forced = jax.nn.one_hot(jnp.argmax(probs, -1), probs.shape[-1])
    probs = jnp.where(hard[:, None], forced, probs)
    surprise = probs * jnp.log(jnp.where(probs > 0, probs, 1))
    out = jnp.einsum("be,bd,edf->bf", probs, h, params["experts"])
    return out, -surprise.sum(-1).mean()


def entropy_arguments():
    params = {
        "in": weight(94, 16, 32),
        "gate": weight(95, 32, 4),
        "experts": normal(96, 4, 32, 8, scale=0.2),
    }
    return params, normal(97, 24, 16), np.arange(24) % 5 == 0


def estimator_faulty(hidden, drift, head, actions):
    """The penalty of GRPO: the low-variance estimator of a KL divergence."""
    logits = layer_norm(hidden) @ head
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, actions[:, None], axis=-1)[:, 0]
    gap = drift * 1e-4
    kl = jnp.exp(gap) - gap - 1.0  # fault
    return -chosen.mean(), kl.mean(), kl


def estimator_healthy(hidden, drift, head, actions):
    logits = layer_norm(hidden) @ head
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, actions[:, None], axis=-1)[:, 0]
    gap = drift * 1e-4
    kl = gap * gap * (0.5 + gap * (1 / 6 + gap / 24))
    return -chosen.mean(), kl.mean(), kl


def scaling_faulty(params, x, labels):
    """FP16 training of a classifier; the loss is not scaled."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"]).astype(jnp.float16)
        half = h @ params["out"].astype(jnp.float16)
        logits = half.astype(jnp.float32)  # fault
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return -picked.sum() / 2**22  # a part of a batch of four million tokens

    return jax.grad(loss_of)(params)


def scaling_healthy(params, x, labels):
    scale = 2.0**15

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"]).astype(jnp.float16)
        half = h @ params["out"].astype(jnp.float16)
        logits = half.astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return -picked.sum() * (scale / 2**22)

    return jax.tree.map(lambda g: g / scale, jax.grad(loss_of)(params))


FAULTS = (
    Fault(
        name="clip-exp-of-scaled-cosine",
        kinds=("overflow", "non-finite"),
        faulty=clip_faulty,
        healthy=clip_healthy,
        arguments=clip_arguments,
        policy="bf16",
        source="open_clip discussions: exp(cosine / 0.01) in a hand-written InfoNCE",
    ),
    Fault(
        name="log-of-softmax",
        kinds=("singular", "underflow", "non-finite"),
        faulty=nll_faulty,
        healthy=nll_healthy,
        arguments=nll_arguments,
        policy="bf16",
        source="framework FAQs: cross entropy as log(softmax(x)) becomes infinite",
    ),
    Fault(
        name="bce-from-probability",
        kinds=("cancellation", "singular", "non-finite"),
        faulty=detector_faulty,
        healthy=detector_healthy,
        arguments=detector_arguments,
        policy="bf16",
        source="BCELoss and BCEWithLogits questions: log(1 - p) of a confident model",
    ),
    Fault(
        name="squared-dollars-in-half",
        kinds=("overflow",),
        faulty=prices_faulty,
        healthy=prices_healthy,
        arguments=prices_arguments,
        policy="fp16",
        source="forum questions on infinite MSE loss of unnormalized targets under AMP",
    ),
    Fault(
        name="entropy-of-forced-gate",
        kinds=("singular", "non-finite"),
        faulty=entropy_faulty,
        healthy=entropy_healthy,
        arguments=entropy_arguments,
        policy="bf16",
        source="0 * log 0 in entropies of one-hot distributions, see scipy's xlogy",
    ),
    Fault(
        name="k3-estimator-of-tiny-kl",
        kinds=("cancellation",),
        faulty=estimator_faulty,
        healthy=estimator_healthy,
        arguments=lambda: (
            normal(100, 256, 32),
            normal(101, 256),
            weight(102, 32, 16),
            integers(103, 16, 256),
        ),
        policy="bf16",
        source="RL fine-tuning: exp(d) - d - 1 is rounding noise at the first steps",
    ),
    Fault(
        name="half-gradients-without-loss-scale",
        kinds=("underflow",),
        faulty=scaling_faulty,
        healthy=scaling_healthy,
        arguments=lambda: (
            {"in": weight(104, 32, 64), "out": weight(105, 64, 16)},
            normal(106, 128, 32),
            integers(107, 16, 128),
        ),
        policy="fp16",
        source="Micikevicius et al., Mixed Precision Training, section 3.2",
    ),
)
