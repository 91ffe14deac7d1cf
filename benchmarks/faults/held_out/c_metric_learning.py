"""Contrastive, metric and preference losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, normal, uniform, weight


def unit(x):
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


def supervised_faulty(params, x, labels):
    """SupCon: the mean over the others of a class; one class has one picture."""

    def loss_of(params):
        z = unit(jax.nn.relu(x @ params["in"]) @ params["out"])
        own = jnp.eye(z.shape[0], dtype=bool)
        logits = jnp.where(own, -1e9, z @ z.T / 0.1)
        logp = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        mates = (labels[:, None] == labels) & ~own
        each = jnp.sum(jnp.where(mates, logp, 0.0), -1) / mates.sum(-1)  # fault
        return -jnp.sum(each) / z.shape[0]

    return jax.value_and_grad(loss_of)(params)


def supervised_healthy(params, x, labels):
    def loss_of(params):
        z = unit(jax.nn.relu(x @ params["in"]) @ params["out"])
        own = jnp.eye(z.shape[0], dtype=bool)
        logits = jnp.where(own, -1e9, z @ z.T / 0.1)
        logp = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        mates = (labels[:, None] == labels) & ~own
        each = jnp.sum(jnp.where(mates, logp, 0.0), -1)
        return -jnp.sum(each / jnp.maximum(mates.sum(-1), 1)) / z.shape[0]

    return jax.value_and_grad(loss_of)(params)


def supervised_arguments():
    params = {"in": weight(9410, 16, 32, 1.4), "out": weight(9411, 32, 8)}
    labels = np.arange(20, dtype=np.int32) % 4
    labels[-1] = 9
    return params, normal(9412, 20, 16), labels


def arcface_faulty(params, x, labels):
    """ArcFace with an angular margin; some pictures are the centres of their class."""
    z, centres = unit(x), unit(params)
    cosine = z @ centres.T
    sine = jnp.sqrt(1.0 - cosine * cosine)  # fault
    margin = cosine * np.float32(np.cos(0.5)) - sine * np.float32(np.sin(0.5))
    own = jax.nn.one_hot(labels, centres.shape[0], dtype=bool)
    logits = 16.0 * jnp.where(own, margin, cosine)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def arcface_healthy(params, x, labels):
    z, centres = unit(x), unit(params)
    cosine = z @ centres.T
    sine = jnp.sqrt(jnp.clip(1.0 - cosine * cosine, 1e-9, 1.0))
    margin = cosine * np.float32(np.cos(0.5)) - sine * np.float32(np.sin(0.5))
    own = jax.nn.one_hot(labels, centres.shape[0], dtype=bool)
    logits = 16.0 * jnp.where(own, margin, cosine)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def arcface_arguments():
    centres, labels = normal(9420, 12, 32), integers(9421, 12, 16)
    x = normal(9422, 16, 32)
    x[::2] = 3.0 * centres[labels[::2]]
    return centres, x, labels


def twins_faulty(params, anchor, twin, other):
    """Triplet loss on embeddings in FP16; a twin is a slightly brighter copy."""

    def loss_of(params):
        def distance(a, b):
            gap = (a - b).astype(jnp.float16)
            return jnp.sqrt(jnp.sum(gap * gap, axis=-1)).astype(jnp.float32)  # fault

        a, p, n = (jnp.tanh(x @ params) for x in (anchor, twin, other))
        return jnp.mean(jax.nn.relu(distance(a, p) - distance(a, n) + 2.0))

    return jax.grad(loss_of)(params)


def twins_healthy(params, anchor, twin, other):
    def loss_of(params):
        def distance(a, b):
            gap = a - b
            return jnp.sqrt(jnp.sum(gap * gap, axis=-1) + 1e-20)

        a, p, n = (jnp.tanh(x @ params) for x in (anchor, twin, other))
        return jnp.mean(jax.nn.relu(distance(a, p) - distance(a, n) + 2.0))

    return jax.grad(loss_of)(params)


def twins_arguments():
    anchor, other = normal(9430, 12, 16), normal(9431, 12, 16)
    twin = anchor + 2e-4 * normal(9432, 12, 16)
    return weight(9433, 16, 8, 0.5), anchor, twin, other


def discrepancy_faulty(params, x, y):
    """Maximum mean discrepancy of two batches of features, with a wide kernel."""
    a, b = jnp.tanh(x @ params), jnp.tanh(y @ params)

    def kernel(u, v):
        gap = u[:, None] - v[None]
        return jnp.exp(-jnp.sum(gap * gap, axis=-1) / 2e6)

    xx, yy, xy = kernel(a, a).mean(), kernel(b, b).mean(), kernel(a, b).mean()
    square = xx + yy - 2.0 * xy  # fault
    return jnp.sqrt(square)


def discrepancy_healthy(params, x, y):
    a, b = jnp.tanh(x @ params), jnp.tanh(y @ params)

    def kernel_less_one(u, v):
        gap = u[:, None] - v[None]
        return jnp.expm1(-jnp.sum(gap * gap, axis=-1) / 2e6)

    xx, yy = kernel_less_one(a, a).mean(), kernel_less_one(b, b).mean()
    return jnp.sqrt(xx + yy - 2.0 * kernel_less_one(a, b).mean())


def discrepancy_arguments():
    x = normal(9440, 64, 16)
    return weight(9441, 16, 8), x, normal(9442, 64, 16) + 0.3


def concentration_faulty(params, views):
    """Quality of a face by the von Mises-Fisher concentration of its views."""
    z = unit(views @ params)
    r = jnp.linalg.norm(z.mean(1), axis=-1)
    d = z.shape[-1]
    kappa = r * (d - r * r) / (1.0 - r * r)  # fault
    return jnp.log(kappa)


def concentration_healthy(params, views):
    z = unit(views @ params)
    mean = z.mean(1)
    r, d = jnp.linalg.norm(mean, axis=-1), z.shape[-1]
    gap = z - mean[:, None]
    spread = jnp.sum(gap * gap, axis=-1).mean(1)
    return jnp.log(r * (d - r * r) / spread)


def concentration_arguments():
    views = normal(9450, 10, 1, 24) + 2e-4 * normal(9451, 10, 8, 24)
    return weight(9452, 24, 16), views


def sharpened_faulty(params, x, strong):
    """MixMatch: the mean of two guesses, sharpened with a temperature of 0.01."""
    p = jax.nn.softmax(x @ params["teacher"])
    guess = 0.5 * (p + jnp.roll(p, 1, axis=0))
    powered = guess ** (1.0 / 0.01)  # fault
    target = powered / powered.sum(-1, keepdims=True)
    logp = jax.nn.log_softmax(strong @ params["student"])
    return target, -jnp.sum(target * logp, axis=-1)


def sharpened_healthy(params, x, strong):
    p = jax.nn.softmax(x @ params["teacher"])
    guess = 0.5 * (p + jnp.roll(p, 1, axis=0))
    target = jax.nn.softmax(jnp.log(guess) / 0.01)
    logp = jax.nn.log_softmax(strong @ params["student"])
    return target, -jnp.sum(target * logp, axis=-1)


def sharpened_arguments():
    params = {"teacher": weight(9460, 16, 10, 0.5), "student": weight(9461, 16, 10)}
    return params, normal(9462, 8, 16), normal(9463, 8, 16)


class Judge(nnx.Module):
    """A reward model."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(16, 32, rngs=rngs)
        self.score = nnx.Linear(32, 1, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.score(jax.nn.gelu(self.inner(x)))[..., 0]


def margin_faulty(params, base, better, worse):
    """Bradley-Terry margins of a reward model whose scores leave its head in BF16."""
    judge = nnx.merge(nnx.graphdef(Judge(nnx.Rngs(0))), params)
    r, s = judge(better) + base, judge(worse) + base
    gap = r.astype(jnp.bfloat16) - s.astype(jnp.bfloat16)  # fault
    gap = gap.astype(jnp.float32)
    return gap, -jax.nn.log_sigmoid(4.0 * gap)


def margin_healthy(params, base, better, worse):
    judge = nnx.merge(nnx.graphdef(Judge(nnx.Rngs(0))), params)
    gap = judge(better) - judge(worse)
    return gap, -jax.nn.log_sigmoid(4.0 * gap)


def margin_arguments():
    params = jax.tree.map(np.asarray, nnx.state(Judge(nnx.Rngs(5)), nnx.Param))
    better = normal(9470, 24, 16)
    worse = better + 0.2 * normal(9471, 24, 16)
    return params, np.float32(23.0), better, worse


def preference_faulty(params, reference, chosen, rejected):
    """DPO: the logarithm of a sigmoid of the margin, after a bad step."""

    def loss_of(params):
        def ratio(x):
            logp = jax.nn.log_softmax(x @ params) - jax.nn.log_softmax(x @ reference)
            return logp[:, :, 0].sum(-1)

        margin = 0.5 * (ratio(chosen) - ratio(rejected))
        return -jnp.mean(jnp.log(jax.nn.sigmoid(margin)))  # fault

    return jax.value_and_grad(loss_of)(params)


def preference_healthy(params, reference, chosen, rejected):
    def loss_of(params):
        def ratio(x):
            logp = jax.nn.log_softmax(x @ params) - jax.nn.log_softmax(x @ reference)
            return logp[:, :, 0].sum(-1)

        margin = 0.5 * (ratio(chosen) - ratio(rejected))
        return -jnp.mean(jax.nn.log_sigmoid(margin))

    return jax.value_and_grad(loss_of)(params)


def preference_arguments():
    reference = weight(9480, 16, 12)
    params = reference + weight(9481, 16, 12, 16.0)
    return params, reference, normal(9482, 6, 120, 16), normal(9483, 6, 120, 16)


def pixels_faulty(params, x, pixels):
    """PixelCNN++: a pixel's probability is a difference of two sigmoids."""
    h = jax.nn.silu(x @ params["in"])
    mean = jnp.tanh(h @ params["mean"]) - 0.6
    sharp = jnp.exp(2.0 + 0.1 * (h @ params["scale"]))
    upper = jax.nn.sigmoid(sharp * (pixels - mean + 1 / 255))
    lower = jax.nn.sigmoid(sharp * (pixels - mean - 1 / 255))
    return jnp.log(jnp.maximum(upper - lower, 1e-30))  # fault


def pixels_healthy(params, x, pixels):
    h = jax.nn.silu(x @ params["in"])
    mean = jnp.tanh(h @ params["mean"]) - 0.6
    sharp = jnp.exp(2.0 + 0.1 * (h @ params["scale"]))
    up, low = sharp * (pixels - mean + 1 / 255), sharp * (pixels - mean - 1 / 255)
    rise = jnp.log(-jnp.expm1(low - up))
    return rise + jax.nn.log_sigmoid(up) + jax.nn.log_sigmoid(-low)


def pixels_arguments():
    params = {
        n: weight(9490 + i, 16, 16) for i, n in enumerate(("in", "mean", "scale"))
    }
    return params, normal(9495, 12, 16), uniform(9496, 12, 16, low=0.95, high=1.0)


FAULTS = (
    Fault(
        name="supervised-contrast-of-single-picture",
        kinds=("non-finite",),
        faulty=supervised_faulty,
        healthy=supervised_healthy,
        arguments=supervised_arguments,
        policy="bf16",
        source="report of a NaN SupCon loss: the mask's row sum is zero",
    ),
    Fault(
        name="angular-margin-of-perfect-match",
        kinds=("non-finite", "singular", "cancellation"),
        faulty=arcface_faulty,
        healthy=arcface_healthy,
        arguments=arcface_arguments,
        policy="bf16",
        source="report of NaN in ArcFace: the root of one minus a squared cosine",
    ),
    Fault(
        name="triplet-of-near-twins-in-half",
        kinds=("underflow", "singular"),
        faulty=twins_faulty,
        healthy=twins_healthy,
        arguments=twins_arguments,
        policy="fp16",
        source="report of NaN gradients of a triplet loss with alike pictures",
    ),
    Fault(
        name="mean-discrepancy-with-wide-kernel",
        kinds=("cancellation",),
        faulty=discrepancy_faulty,
        healthy=discrepancy_healthy,
        arguments=discrepancy_arguments,
        policy="fp32",
        source="report of a NaN maximum mean discrepancy in FP32",
    ),
    Fault(
        name="concentration-of-aligned-views",
        kinds=("cancellation", "singular"),
        faulty=concentration_faulty,
        healthy=concentration_healthy,
        arguments=concentration_arguments,
        policy="fp32",
        source="von Mises-Fisher estimates of embeddings that agree",
    ),
    Fault(
        name="sharpened-guess-by-hundredth-power",
        kinds=("underflow", "non-finite"),
        faulty=sharpened_faulty,
        healthy=sharpened_healthy,
        arguments=sharpened_arguments,
        policy="fp32",
        source="MixMatch implementations with a low temperature",
    ),
    Fault(
        name="reward-margin-of-bf16-scores",
        kinds=("cancellation", "coarse"),
        faulty=margin_faulty,
        healthy=margin_healthy,
        arguments=margin_arguments,
        policy="fp32",
        source="reward models whose margins are zero in BF16",
    ),
    Fault(
        name="dpo-logarithm-of-sigmoid",
        kinds=("underflow", "singular", "non-finite"),
        faulty=preference_faulty,
        healthy=preference_healthy,
        arguments=preference_arguments,
        policy="bf16",
        source="preference losses written without a log-sigmoid",
    ),
    Fault(
        name="pixel-likelihood-by-two-sigmoids",
        kinds=("cancellation",),
        faulty=pixels_faulty,
        healthy=pixels_healthy,
        arguments=pixels_arguments,
        policy="fp32",
        source="the edge cases of PixelCNN++'s discretized logistic likelihood",
    ),
)
