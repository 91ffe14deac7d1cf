"""Densities, tails, flows and codes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.scipy.special import gammaln, i0
from jax.scipy.stats import norm

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform, weight


@fault("underflow", "cancellation", "non-finite", policy="fp32")
@source("Ament et al. (2023), Unexpected Improvements to Expected Improvement")
@inputs(
    "in: 4x16 w @9201, mean: 16 *0.03, spread: 16 *0.3, offset: f32 0.3; "
    "40x4 @9204; f32 0.75"
)
def d_expected_improvement_far_behind(params, x, best):
    """Expected improvement of candidates, all far behind the best so far."""
    h = jnp.tanh(x @ params["in"])
    mean = h @ params["mean"] + params["offset"]
    spread = 0.02 + 0.02 * jax.nn.sigmoid(h @ params["spread"])
    z = (mean - best) / spread
    gain = spread * (norm.pdf(z) + z * norm.cdf(z))  # fault
    # + w = 1 / (z * z)
    # + tail = 1 - 3 * w * (1 - 5 * w * (1 - 7 * w * (1 - 9 * w)))
    # + scale = jnp.log(spread) + jnp.log(w) - 0.5 * jnp.log(2 * jnp.pi)
    # + gain = scale - 0.5 * z * z + jnp.log(tail)
    return jnp.log(gain), jnp.argmax(gain)  # -
    # + return gain, jnp.argmax(gain)


def angle_density_arguments():
    out = normal(9212, 24, 2, scale=0.2)
    out[:, 1] += 0.36
    params = {"in": weight(9211, 12, 24), "out": out}
    x = normal(9213, 30, 12)
    mean = np.maximum(x @ params["in"], 0) @ out[:, 0]
    return params, x, mean + normal(9214, 30, scale=0.15)


@fault("overflow", "non-finite", policy="fp32")
@source("distributions issues: VonMises is NaN for large concentrations")
@inputs(by=angle_density_arguments)
def d_von_mises_of_sharp_angles(params, x, angle):
    """Von Mises densities of dihedral angles, predicted with their concentration."""
    h = jax.nn.relu(x @ params["in"])
    out = h @ params["out"]
    mean, kappa = out[:, 0], jnp.exp(out[:, 1])
    density = jnp.exp(kappa * jnp.cos(angle - mean)) / i0(kappa)  # fault
    return density / (2 * jnp.pi)  # -
    # + away = -2 * jnp.sin((angle - mean) / 2) ** 2
    # + return jnp.exp(kappa * away) / jax.scipy.special.i0e(kappa) / (2 * jnp.pi)


def counts_arguments():
    params = {
        "rate": normal(9221, 6, 5, scale=0.3),
        "log_size": uniform(9222, 5, low=13.0, high=15.0),
    }
    x = normal(9223, 32, 6)
    counts = np.random.default_rng(9224).poisson(np.exp(x @ params["rate"]))
    return params, x, np.minimum(counts, 23).astype(np.float32)


@fault("cancellation", policy="fp32")
@source("scvi and Pyro issues: lgamma(k + r) - lgamma(r) in FP32")
@inputs(by=counts_arguments)
def d_negative_binomial_of_large_size(params, x, counts):
    """A negative binomial for gene counts whose inverse dispersion has grown large."""

    def loss(params):
        mean = jnp.exp(x @ params["rate"])
        size = jnp.exp(params["log_size"])
        shape = gammaln(counts + size) - gammaln(size)  # fault
        # + steps = jnp.arange(24.0)[:, None, None]
        # + each = jnp.log1p(steps / size)
        # + shape = jnp.sum(jnp.where(steps < counts, each, 0.0), axis=0)
        tail = (size + counts) * jnp.log1p(mean / size) + counts * jnp.log(size)  # -
        # + tail = (size + counts) * jnp.log1p(mean / size)
        return jnp.mean(counts * jnp.log(mean) + shape - tail - gammaln(counts + 1))

    value, slope = jax.value_and_grad(loss)(params)
    return value, slope["rate"]


@fault("overflow", "non-finite", policy="fp16")
@source("RealNVP without a tanh on the log scale, mixed precision")
@inputs(
    {
        "hidden": "kernel: 4x24 w @9231, bias: 24",
        "out": "kernel: 24x8 w*1.2 @9233, bias: 8 =0 [2]=10.5",
    },
    "20x8 @9234",
)
def d_coupling_scale_beyond_half(variables, x):
    """An affine coupling layer of a flow with an unbounded scale, under autocast."""
    a, b = jnp.split(x, 2, axis=-1)
    hidden = nn.Dense(24).apply({"params": variables["hidden"]}, a)
    out = nn.Dense(8).apply({"params": variables["out"]}, nn.relu(hidden))
    log_scale, shift = jnp.split(out.astype(jnp.float16), 2, axis=-1)  # -
    # + log_scale, shift = jnp.split(out.astype(jnp.float32), 2, axis=-1)
    stretch = jnp.exp(log_scale)  # here
    moved = b * stretch.astype(jnp.float32) + shift.astype(jnp.float32)  # -
    return moved, jnp.sum(log_scale.astype(jnp.float32), axis=-1)  # -
    # + return b * stretch + shift, jnp.sum(log_scale, axis=-1)


def codebook_arguments():
    codes = normal(9242, 10, 4)
    codes[7:] += 9.0  # dead codes
    params = {"in": weight(9241, 12, 4), "codes": codes, "out": weight(9243, 4, 12)}
    params = jax.tree.map(jnp.asarray, params)
    return params, optax.sgd(0.05).init(params), normal(9244, 40, 12)


@fault("underflow", "non-finite")
@source("VQ-VAE code: 1e-10 inside the log of the perplexity under FP16")
@inputs(by=codebook_arguments)
def d_codebook_entropy_constant_in_half(params, state, x):
    """A VQ-VAE step whose code-usage entropy, a bonus, is computed in half."""
    optimizer = optax.sgd(0.05)

    def loss(params):
        z = x @ params["in"]
        far = jnp.sum((z[:, None] - params["codes"]) ** 2, axis=-1)
        soft = jax.nn.softmax(-4.0 * far).astype(jnp.float16)  # -
        # + soft = jax.nn.softmax(-4.0 * far)
        usage = jnp.mean(soft, axis=0)
        entropy = -jnp.sum(usage * jnp.log(usage + 1e-10))  # here
        nearest = soft.astype(jnp.float32) @ params["codes"]  # -
        # + nearest = soft @ params["codes"]
        miss = jnp.mean((nearest @ params["out"] - x) ** 2)
        return miss - 0.1 * entropy.astype(jnp.float32)  # -
        # + return miss - 0.1 * entropy

    value, slope = jax.value_and_grad(loss)(params)
    updates, _ = optimizer.update(slope, state, params)
    return value, optax.apply_updates(params, updates)


def pixel_network():
    rngs = nnx.Rngs(9251)
    first, last = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)
    return nnx.split(nnx.Sequential(first, jnp.tanh, last))


PIXEL_NETWORK, _ = pixel_network()


def pixel_arguments():
    _, state = pixel_network()
    return state, "40x8 @9253; 40 0.5..0.95 @9254"


@fault("cancellation")
@source("PixelCNN++ code: cdf_plus - cdf_min needs a fallback")
@inputs(by=pixel_arguments)
def d_pixel_mass_between_two_sigmoids(state, features, pixels):
    """Bits of 8-bit pixels under PixelCNN++'s discretized logistic."""
    out = nnx.merge(PIXEL_NETWORK, state)(features)
    mean, inverse = jnp.tanh(0.3 * out[:, 0]), jnp.exp(3.2 + 0.1 * out[:, 1])
    high = inverse * (pixels - mean + 1 / 255)
    low = inverse * (pixels - mean - 1 / 255)
    mass = jax.nn.sigmoid(high) - jax.nn.sigmoid(low)  # fault
    return -jnp.log2(jnp.maximum(mass, 1e-12))  # -
    # + between = jnp.log(-jnp.expm1(-inverse * (2 / 255)))
    # + log_mass = jax.nn.log_sigmoid(high) + jax.nn.log_sigmoid(-low) + between
    # + return -jnp.maximum(log_mass, np.log(1e-12)) / np.log(2.0)


@fault("cancellation", "absorption", policy="fp32")
@source("Wasserman and Mateos (2024), on stable Kumaraswamy log-densities")
@inputs(
    "in: 8x12 w @9261; 24x8 @9263",
    lambda: (10.0 ** uniform(9262, 24, 6, low=-7.0, high=-5.0)).astype(np.float32),
)
def d_kumaraswamy_sample_near_zero(params, x, u):
    """Kumaraswamy samples of a stick-breaking VAE whose shapes have run away."""
    h = jax.nn.softplus(x @ params["in"])
    a, b = 1.0 + h[:, :6], 40.0 * h[:, 6:] + 1.0
    kept = 1 - (1 - u) ** (1 / b)  # fault
    # + kept = -jnp.expm1(jnp.log1p(-u) / b)
    v = kept ** (1 / a)
    rest = jnp.cumprod(1 - v, axis=1)
    before = jnp.concatenate([jnp.ones_like(v[:, :1]), rest[:, :-1]], axis=1)
    return v, v * before


def decoder_arguments():
    rng = np.random.default_rng(9271)
    checks = np.zeros((6, 12), np.float32)
    for row in checks:
        row[rng.choice(12, 4, replace=False)] = 1.0
    channel = rng.choice([-1.0, 1.0], 12) * rng.uniform(16, 26, 12)
    return checks, channel.astype(np.float32)


@fault("singular", "non-finite", "coarse", policy="fp32")
@source("LDPC decoders: atanh of a product of tanh that rounds to one")
@inputs(by=decoder_arguments)
def d_parity_check_at_certainty(checks, channel):
    """Belief propagation of an LDPC code by the tanh rule, on a good channel."""

    # + def boxplus(a, b):
    # +     least = jnp.sign(a) * jnp.sign(b) * jnp.minimum(jnp.abs(a), jnp.abs(b))
    # +     up, down = jnp.abs(a + b), jnp.abs(a - b)
    # +     return least + jnp.log1p(jnp.exp(-up)) - jnp.log1p(jnp.exp(-down))
    # + size = checks.shape[1]
    def sweep(messages, _):
        total = channel + jnp.sum(checks * messages, axis=0)
        outgoing = jnp.where(checks > 0, total - messages, 80.0)
        t = jnp.tanh(outgoing / 2)  # -
        others = jnp.prod(t, axis=1, keepdims=True) / t  # -
        incoming = 2 * jnp.arctanh(others)  # fault
        # + spread = jnp.where(jnp.eye(size) > 0, 80.0, outgoing[:, None, :])
        # + incoming = spread[..., 0]
        # + for n in range(1, size):
        # +     incoming = boxplus(incoming, spread[..., n])
        return jnp.where(checks > 0, incoming, 0.0), None

    messages, _ = jax.lax.scan(sweep, jnp.zeros_like(checks), None, length=3)
    return channel + jnp.sum(messages, axis=0)


@fault("underflow", "non-finite")
@source("truncated-normal issues: pdf / cdf is 0 / 0 in FP32")
@inputs("in: 6x12 w @9281, out: 12 *0.3, sigma: f32 0.15; 30x6 @9283; 30 =2.9")
def d_inverse_mills_ratio_in_the_tail(params, x, limit):
    """Imputes censored incomes: the mean of a normal beyond its limit (Tobit)."""
    mean = jnp.tanh(x @ params["in"]) @ params["out"]
    z = (limit - mean) / params["sigma"]
    ratio = norm.pdf(z) / norm.cdf(-z)  # fault
    return mean + params["sigma"] * ratio  # -
    # + w = 1 / (z * z)
    # + series = 1 - w * (1 - 3 * w * (1 - 5 * w * (1 - 7 * w * (1 - 9 * w))))
    # + return mean + params["sigma"] * z / series
