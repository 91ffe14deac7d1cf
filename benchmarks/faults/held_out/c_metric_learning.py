"""Contrastive, metric and preference losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, normal, weight


def unit(x):
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


def supervised_arguments():
    labels = np.arange(20, dtype=np.int32) % 4
    labels[-1] = 9
    return "in: 16x32 w*1.4 @9410, out: 32x8 w; 20x16 @9412", labels


@fault("non-finite")
@source("report of a NaN SupCon loss: the mask's row sum is zero")
@inputs(by=supervised_arguments)
def supervised_contrast_of_single_picture(params, x, labels):
    """SupCon: the mean over the others of a class; one class has one picture."""

    def loss_of(params):
        z = unit(jax.nn.relu(x @ params["in"]) @ params["out"])
        own = jnp.eye(z.shape[0], dtype=bool)
        logits = jnp.where(own, -1e9, z @ z.T / 0.1)
        logp = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        mates = (labels[:, None] == labels) & ~own
        each = jnp.sum(jnp.where(mates, logp, 0.0), -1) / mates.sum(-1)  # fault
        # + each = jnp.sum(jnp.where(mates, logp, 0.0), -1)
        return -jnp.sum(each) / z.shape[0]  # -
        # + return -jnp.sum(each / jnp.maximum(mates.sum(-1), 1)) / z.shape[0]

    return jax.value_and_grad(loss_of)(params)


def arcface_arguments():
    centres, labels = normal(9420, 12, 32), integers(9421, 12, 16)
    x = normal(9422, 16, 32)
    x[::2] = 3.0 * centres[labels[::2]]
    return centres, x, labels


@fault("non-finite", "singular", "cancellation")
@source("report of NaN in ArcFace: the root of one minus a squared cosine")
@inputs(by=arcface_arguments)
def angular_margin_of_perfect_match(params, x, labels):
    """ArcFace with an angular margin; some pictures are the centres of their class."""
    z, centres = unit(x), unit(params)
    cosine = z @ centres.T
    sine = jnp.sqrt(1.0 - cosine * cosine)  # fault
    # + sine = jnp.sqrt(jnp.clip(1.0 - cosine * cosine, 1e-9, 1.0))
    margin = cosine * np.float32(np.cos(0.5)) - sine * np.float32(np.sin(0.5))
    own = jax.nn.one_hot(labels, centres.shape[0], dtype=bool)
    logits = 16.0 * jnp.where(own, margin, cosine)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def twins_arguments():
    anchor, other = normal(9430, 12, 16), normal(9431, 12, 16)
    twin = anchor + 2e-4 * normal(9432, 12, 16)
    return "16x8 w*0.5 @9433", anchor, twin, other


@fault("underflow", "singular", policy="fp16")
@source("report of NaN gradients of a triplet loss with alike pictures")
@inputs(by=twins_arguments)
def triplet_of_near_twins_in_half(params, anchor, twin, other):
    """Triplet loss on embeddings in FP16; a twin is a slightly brighter copy."""

    def loss_of(params):
        def distance(a, b):
            gap = (a - b).astype(jnp.float16)  # -
            # + gap = a - b
            return jnp.sqrt(jnp.sum(gap * gap, axis=-1)).astype(jnp.float32)  # fault
            # + return jnp.sqrt(jnp.sum(gap * gap, axis=-1) + 1e-20)

        a, p, n = (jnp.tanh(x @ params) for x in (anchor, twin, other))
        return jnp.mean(jax.nn.relu(distance(a, p) - distance(a, n) + 2.0))

    return jax.grad(loss_of)(params)


@fault("cancellation", policy="fp32")
@source("report of a NaN maximum mean discrepancy in FP32")
@inputs("16x8 w @9441; 64x16 @9440", lambda: normal(9442, 64, 16) + 0.3)
def mean_discrepancy_with_wide_kernel(params, x, y):
    """Maximum mean discrepancy of two batches of features, with a wide kernel."""
    a, b = jnp.tanh(x @ params), jnp.tanh(y @ params)

    def kernel(u, v):  # -
        gap = u[:, None] - v[None]
        return jnp.exp(-jnp.sum(gap * gap, axis=-1) / 2e6)

    xx, yy, xy = kernel(a, a).mean(), kernel(b, b).mean(), kernel(a, b).mean()  # -
    square = xx + yy - 2.0 * xy  # fault
    return jnp.sqrt(square)  # -
    # + def kernel_less_one(u, v):
    # +     gap = u[:, None] - v[None]
    # +     return jnp.expm1(-jnp.sum(gap * gap, axis=-1) / 2e6)
    # + xx, yy = kernel_less_one(a, a).mean(), kernel_less_one(b, b).mean()
    # + return jnp.sqrt(xx + yy - 2.0 * kernel_less_one(a, b).mean())


@fault("cancellation", "singular", policy="fp32")
@source("von Mises-Fisher estimates of embeddings that agree")
@inputs(
    "24x16 w @9452", lambda: normal(9450, 10, 1, 24) + 2e-4 * normal(9451, 10, 8, 24)
)
def concentration_of_aligned_views(params, views):
    """Quality of a face by the von Mises-Fisher concentration of its views."""
    z = unit(views @ params)
    r = jnp.linalg.norm(z.mean(1), axis=-1)  # -
    d = z.shape[-1]  # -
    kappa = r * (d - r * r) / (1.0 - r * r)  # fault
    return jnp.log(kappa)  # -
    # + mean = z.mean(1)
    # + r, d = jnp.linalg.norm(mean, axis=-1), z.shape[-1]
    # + gap = z - mean[:, None]
    # + spread = jnp.sum(gap * gap, axis=-1).mean(1)
    # + return jnp.log(r * (d - r * r) / spread)


@fault("underflow", "non-finite", policy="fp32")
@source("MixMatch implementations with a low temperature")
@inputs("teacher: 16x10 w*0.5 @9460, student: 16x10 w; 8x16 @9462; 8x16 @9463")
def sharpened_guess_by_hundredth_power(params, x, strong):
    """MixMatch: the mean of two guesses, sharpened with a temperature of 0.01."""
    p = jax.nn.softmax(x @ params["teacher"])
    guess = 0.5 * (p + jnp.roll(p, 1, axis=0))
    powered = guess ** (1.0 / 0.01)  # fault
    target = powered / powered.sum(-1, keepdims=True)  # -
    # + target = jax.nn.softmax(jnp.log(guess) / 0.01)
    logp = jax.nn.log_softmax(strong @ params["student"])
    return target, -jnp.sum(target * logp, axis=-1)


class Judge(nnx.Module):
    """A reward model."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(16, 32, rngs=rngs)
        self.score = nnx.Linear(32, 1, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.score(jax.nn.gelu(self.inner(x)))[..., 0]


def margin_arguments():
    params = jax.tree.map(np.asarray, nnx.state(Judge(nnx.Rngs(5)), nnx.Param))
    better = normal(9470, 24, 16)
    worse = better + 0.2 * normal(9471, 24, 16)
    return params, "f32 23", better, worse


@fault("cancellation", "coarse", policy="fp32")
@source("reward models whose margins are zero in BF16")
@inputs(by=margin_arguments)
def reward_margin_of_bf16_scores(params, base, better, worse):
    """Bradley-Terry margins of a reward model whose scores leave its head in BF16."""
    judge = nnx.merge(nnx.graphdef(Judge(nnx.Rngs(0))), params)
    r, s = judge(better) + base, judge(worse) + base  # -
    gap = r.astype(jnp.bfloat16) - s.astype(jnp.bfloat16)  # fault
    # + gap = judge(better) - judge(worse)
    gap = gap.astype(jnp.float32)  # -
    return gap, -jax.nn.log_sigmoid(4.0 * gap)


def preference_arguments():
    reference = weight(9480, 16, 12)
    params = reference + weight(9481, 16, 12, 16.0)
    return params, reference, "6x120x16 @9482; 6x120x16 @9483"


@fault("underflow", "singular", "non-finite")
@source("preference losses written without a log-sigmoid")
@inputs(by=preference_arguments)
def dpo_logarithm_of_sigmoid(params, reference, chosen, rejected):
    """DPO: the logarithm of a sigmoid of the margin, after a bad step."""

    def loss_of(params):
        def ratio(x):
            logp = jax.nn.log_softmax(x @ params) - jax.nn.log_softmax(x @ reference)
            return logp[:, :, 0].sum(-1)

        margin = 0.5 * (ratio(chosen) - ratio(rejected))
        return -jnp.mean(jnp.log(jax.nn.sigmoid(margin)))  # fault
        # + return -jnp.mean(jax.nn.log_sigmoid(margin))

    return jax.value_and_grad(loss_of)(params)


@fault("cancellation", policy="fp32")
@source("the edge cases of PixelCNN++'s discretized logistic likelihood")
@inputs(
    lambda: {
        n: weight(9490 + i, 16, 16) for i, n in enumerate(("in", "mean", "scale"))
    },
    "12x16 @9495; 12x16 0.95..1 @9496",
)
def pixel_likelihood_by_two_sigmoids(params, x, pixels):
    """PixelCNN++: a pixel's probability is a difference of two sigmoids."""
    h = jax.nn.silu(x @ params["in"])
    mean = jnp.tanh(h @ params["mean"]) - 0.6
    sharp = jnp.exp(2.0 + 0.1 * (h @ params["scale"]))
    upper = jax.nn.sigmoid(sharp * (pixels - mean + 1 / 255))  # -
    lower = jax.nn.sigmoid(sharp * (pixels - mean - 1 / 255))  # -
    return jnp.log(jnp.maximum(upper - lower, 1e-30))  # fault
    # + up, low = sharp * (pixels - mean + 1 / 255), sharp * (pixels - mean - 1 / 255)
    # + rise = jnp.log(-jnp.expm1(low - up))
    # + return rise + jax.nn.log_sigmoid(up) + jax.nn.log_sigmoid(-low)
