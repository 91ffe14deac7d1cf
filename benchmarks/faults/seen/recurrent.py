"""Recurrences: states, filters and sums that run for long."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal


@fault("overflow")
@source("BiLSTM-CRF tutorials: the partition function grows with the sentence")
@inputs(
    "xz xn: 16x32 w @250, hz hn: 32x32 w, out: 32x6 w @255, moves: 6x6",
    "64x16 @257; 64 int 0..6 @258",
)
def crf_forward_in_plain_exp(params, x, tags):
    """The negative log-likelihood of a linear-chain CRF over a GRU."""

    def gru(h, x):
        z = jax.nn.sigmoid(x @ params["xz"] + h @ params["hz"])
        n = jnp.tanh(x @ params["xn"] + z * (h @ params["hn"]))
        h = h + z * (n - h)
        return h, h

    _, hidden = jax.lax.scan(gru, jnp.zeros(32), x)
    emission = hidden @ params["out"] + 2.0
    moves = params["moves"]

    def forward(alpha, e):
        paths = jnp.exp(alpha[:, None] + moves)  # fault
        return jnp.log(paths.sum(0)) + e, None  # -
        # + return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + e, None

    alpha, _ = jax.lax.scan(forward, emission[0], emission[1:])
    path = jnp.take_along_axis(emission, tags[:, None], axis=1).sum()
    path = path + moves[tags[:-1], tags[1:]].sum()
    return jax.nn.logsumexp(alpha) - path


@fault("non-finite")
@source("CTC written by hand: logaddexp(-Inf, -Inf) is NaN")
@inputs("in: 16x32 w @296, out: 32x10 w; 40x16 @298; 8 int 1..10 @299")
def ctc_impossible_prefixes(params, frames, label):
    """CTC's forward pass, where impossible prefixes have log probability -Inf."""
    h = jax.nn.relu(frames @ params["in"])
    logp = jax.nn.log_softmax(h @ params["out"])
    extended = jnp.zeros(2 * label.shape[0] + 1, label.dtype).at[1::2].set(label)
    # + never = -1e9

    def add(a, b):
        top = jnp.maximum(a, b)
        return top + jnp.log(jnp.exp(a - top) + jnp.exp(b - top))  # here

    def step(alpha, logp):
        moved = jnp.concatenate([jnp.full(1, -jnp.inf), alpha[:-1]])  # -
        # + moved = jnp.concatenate([jnp.full(1, never), alpha[:-1]])
        skipped = jnp.concatenate([jnp.full(2, -jnp.inf), alpha[:-2]])  # -
        # + skipped = jnp.concatenate([jnp.full(2, never), alpha[:-2]])
        odd = jnp.arange(alpha.shape[0]) % 2 == 1
        alpha = add(alpha, add(moved, jnp.where(odd, skipped, -jnp.inf)))  # -
        # + alpha = add(alpha, add(moved, jnp.where(odd, skipped, never)))
        return alpha + logp[extended], None

    start = jnp.full(extended.shape, -jnp.inf).at[:2].set(logp[0, extended[:2]])  # -
    # + start = jnp.full(extended.shape, never).at[:2].set(logp[0, extended[:2]])
    alpha, _ = jax.lax.scan(step, start, logp[1:])
    return -add(alpha[-1], alpha[-2])


@fault("overflow", "non-finite")
@source("tutorial code: a logistic function as exp(z) / (1 + exp(z)) is NaN for z = 90")
# Row 17 has a spike of a sensor.
@inputs(
    "x: 6x64 *0.5 @600, h: 16x64 *0.2, b: 64 *0.3, out: 16x2 *0.3",
    "30x6 @604 [17]*=90; 30x2 @605",
)
def lstm_gate_as_quotient_of_exponentials(p, x, y):
    """An LSTM whose author wrote the logistic function as e^z / (1 + e^z)."""

    def gate(z):  # -
        return jnp.exp(z) / (1.0 + jnp.exp(z))  # fault

    def loss(p):
        def cell(state, x):
            h, c = state
            z = x @ p["x"] + h @ p["h"] + p["b"]
            i, f, o, g = jnp.split(z, 4)
            c = gate(f) * c + gate(i) * jnp.tanh(g)  # -
            # + c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = gate(o) * jnp.tanh(c)  # -
            # + h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(p["h"].shape[0])
        _, hidden = jax.lax.scan(cell, (zeros, zeros), x)
        return jnp.mean(jnp.square(hidden @ p["out"] - y))

    value, grads = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, p, grads)


@fault("underflow", policy="fp32")
@source("Rabiner's tutorial on hidden Markov models, the section on scaling")
@inputs("8x8 @610; 8x24 @611; 8 @612; 120 int 0..24 @613")
def hmm_forward_unscaled(transition, emission, start, observed):
    """Likelihood of 120 observations under a hidden Markov model."""
    t = jax.nn.softmax(transition, axis=-1)
    e = jax.nn.softmax(emission, axis=-1)

    def step(alpha, symbol):  # -
        alpha = (alpha @ t) * e[:, symbol]  # fault
        return alpha, None

    # + def step(state, symbol):
    # +     alpha, log_total = state
    # +     joint = (alpha @ t) * e[:, symbol]
    # +     total = jnp.sum(joint)
    # +     return (joint / total, log_total + jnp.log(total)), None

    alpha, _ = jax.lax.scan(step, jax.nn.softmax(start), observed)  # -
    return jnp.log(jnp.sum(alpha)), alpha / jnp.sum(alpha)  # -
    # + (alpha, log_total), _ = jax.lax.scan(
    # +     step, (jax.nn.softmax(start), jnp.zeros(())), observed
    # + )
    # + return log_total, alpha


def gated_linear_arguments():
    p = {n: normal(660 + i, 16, 8, scale=0.3) for i, n in enumerate("qkvg")}
    p["o"] = normal(665, 8, 16, scale=0.3)
    x = normal(666, 64, 16)
    p["g"] = p["g"] - 0.25 * np.sign(x.mean(axis=0))[:, None]
    return p, x + 0.6 * np.sign(x.mean(axis=0))


@fault("overflow", "non-finite")
@source("chunked linear attention: dividing keys by cumulated gates overflows")
@inputs(by=gated_linear_arguments)
def gated_linear_attention_split_decay(p, x):
    """Gated linear attention in a chunk: decay is split over queries and keys."""
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    log_gate = jax.nn.log_sigmoid(x @ p["g"])
    decay = jnp.cumsum(log_gate, axis=0)
    scores = jnp.tril((q * jnp.exp(decay)) @ (k * jnp.exp(-decay)).T)  # fault
    # + seen = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))[..., None]
    # + gap = jnp.where(seen, decay[:, None] - decay[None], 0.0)
    # + pairs = jnp.where(seen, jnp.exp(gap), 0.0)
    # + scores = jnp.sum(q[:, None] * k[None] * pairs, axis=-1)
    return (scores @ v) @ p["o"]


def boosting_arguments():
    features = normal(300, 64, 5)
    prices = 340 + features @ np.float32([1.0, -0.8, 0.5, 0.3, 0.0])
    prices = prices + normal(301, 64, scale=0.3)
    return features, prices.astype(np.float32), "120 int 0..5 @302; 120 *0.4 @303"


@fault("absorption", "stagnation", "coarse", policy="fp32")
@source("gradient boosting on accelerators: margins kept in half precision")
@inputs(by=boosting_arguments)
def boosted_predictions_in_half(features, prices, columns, cuts):
    """Boosted stumps for house prices; the predictions are stored in FP16."""

    def grow(predicted, stump):
        column, cut = stump
        left = (jnp.take(features, column, axis=1) < cut).astype(jnp.float32)
        residual = prices - predicted.astype(jnp.float32)  # -
        # + residual = prices - predicted
        low = jnp.sum(left * residual) / (jnp.sum(left) + 1.0)
        high = jnp.sum((1 - left) * residual) / (jnp.sum(1 - left) + 1.0)
        leaf = 0.05 * jnp.where(left > 0, low, high)  # -
        predicted = predicted + leaf.astype(predicted.dtype)  # fault
        # + predicted = predicted + 0.05 * jnp.where(left > 0, low, high)
        return predicted, jnp.mean(residual**2)

    base = jnp.round(jnp.mean(prices))
    start = jnp.full(prices.shape, base).astype(jnp.float16)  # -
    # + start = jnp.full(prices.shape, base)
    predicted, errors = jax.lax.scan(grow, start, (columns, cuts))
    lift = predicted.astype(jnp.float32) - base  # -
    return lift, errors  # -
    # + return predicted - base, errors


def refinement_arguments():
    matrix = np.eye(24) + 0.1 * np.random.default_rng(320).standard_normal((24, 24))
    rough = np.linalg.inv(matrix + 0.03 * normal(321, 24, 24))
    return matrix.astype(np.float32), rough.astype(np.float32), "24x6 @322"


@fault("absorption", "coarse", "stagnation", policy="fp32")
@source("Carson and Higham: the solution is updated in the working precision")
@inputs(by=refinement_arguments)
def refinement_correction_in_bf16(matrix, inverse, right):
    """Iterative refinement of many right-hand sides with a rough inverse."""

    def refine(x, _):
        residual = right - matrix @ x.astype(jnp.float32)  # -
        # + residual = right - matrix @ x
        correction = inverse @ residual
        x = x + correction.astype(x.dtype)  # fault
        return x, None  # -
        # + return x + correction, None

    first = (inverse @ right).astype(jnp.bfloat16)  # -
    x, _ = jax.lax.scan(refine, first, None, length=10)  # -
    # + x, _ = jax.lax.scan(refine, inverse @ right, None, length=10)
    return x, jnp.max(jnp.abs(x), axis=0)


@fault("absorption", "stagnation", policy="fp32")
@source("filtering in short words: the variance stops falling (Bierman)")
@inputs("1800x16 +5 @330; f32 1")
def kalman_variance_in_bf16(series, noise):
    """A Kalman filter for the constant levels of 16 sensors."""

    def update(carry, y):
        level, variance = carry
        gain = variance / (variance + noise.astype(variance.dtype))  # -
        # + gain = variance / (variance + noise)
        variance = variance - gain * variance  # here
        level = level + gain.astype(jnp.float32) * (y - level)  # -
        # + level = level + gain * (y - level)
        return (level, variance), level

    start = (series[0], jnp.ones(series.shape[1], jnp.bfloat16))  # -
    # + start = (series[0], jnp.ones(series.shape[1]))
    (level, variance), levels = jax.lax.scan(update, start, series[1:])
    return variance, jnp.var(levels[-300:], axis=0), level


@fault("stagnation", "absorption")
@source("DeepSeek-V3 ports: the bias that balances experts must stay in FP32")
@inputs("1300x16x6 @350; 6x8 *0.3 @351; f32 4 3 3.5 -3 -4 -3.5 3 -3")
def router_bias_in_bf16(tokens, router, skew):
    """Experts are balanced by a bias that moves by 0.0005 per batch."""
    experts = router.shape[1]

    def balance(bias, batch):
        scores = jax.nn.sigmoid(batch @ router + skew)
        _, chosen = jax.lax.top_k(scores + bias.astype(jnp.float32), 2)  # -
        # + _, chosen = jax.lax.top_k(scores + bias, 2)
        load = jnp.mean(jax.nn.one_hot(chosen, experts), axis=(0, 1))
        error = jnp.sign(1.0 / experts - load)  # -
        bias = bias + (5e-4 * error).astype(bias.dtype)  # fault
        return bias, load  # -
        # + return bias + 5e-4 * jnp.sign(1.0 / experts - load), load

    start = jnp.zeros(experts, jnp.bfloat16)  # -
    bias, loads = jax.lax.scan(balance, start, tokens)  # -
    # + bias, loads = jax.lax.scan(balance, jnp.zeros(experts), tokens)
    return bias, jnp.mean(loads[-50:], axis=0)


def rating_arguments():
    rng = np.random.default_rng(140)
    pairs = np.stack([rng.permutation(8)[:2] for _ in range(1200)]).astype(np.int32)
    strength = np.linspace(-120, 120, 8)
    gap = strength[pairs[:, 1]] - strength[pairs[:, 0]]
    scores = rng.random(1200) < 1 / (1 + 10 ** (gap / 400))
    return pairs[:, 0], pairs[:, 1], scores.astype(np.float32), "8 =1500"


@fault("absorption", "stagnation", policy="fp32")
@source("ranking services: small K-factors and ratings of 1500 in FP16")
@inputs(by=rating_arguments)
def elo_ratings_in_half(first, second, scores, start):
    """Elo ratings of a server with many short games, stored in FP16."""

    def play(ratings, game):
        a, b, score = game
        gap = (ratings[b] - ratings[a]).astype(jnp.float32)  # -
        # + gap = ratings[b] - ratings[a]
        expected = 1.0 / (1.0 + jnp.power(10.0, gap / 400.0))
        gain = (0.8 * (score - expected)).astype(ratings.dtype)  # -
        # + gain = 0.8 * (score - expected)
        ratings = ratings.at[jnp.stack([a, b])].add(jnp.stack([gain, -gain]))  # here
        return ratings, expected

    half = start.astype(jnp.float16)  # -
    ratings, expected = jax.lax.scan(play, half, (first, second, scores))  # -
    # + ratings, expected = jax.lax.scan(play, start, (first, second, scores))
    ratings = ratings.astype(jnp.float32)  # -
    surprise = -jnp.mean(scores * jnp.log(expected))
    return ratings - jnp.mean(ratings), surprise


@fault("absorption", "coarse", "cancellation", policy="fp32")
@source("compressible solvers at low Mach number: solve for the perturbation")
@inputs(
    lambda: (5e-3 * np.sin(2 * np.pi * np.arange(160) / 40)).astype(np.float32),
    "f32 343; f32 1.2",
)
def sound_on_absolute_pressure(source, speed, density):
    """Sound in a tube by staggered differences of the absolute pressure."""
    cells, courant = 96, 0.5
    ambient = 101325.0  # -
    taper = jnp.exp(-0.5 * ((jnp.arange(cells) - 20.0) / 3.0) ** 2)

    def step(carry, drive):
        p, u = carry
        u = u.at[1:-1].add(-courant / (density * speed) * (p[1:] - p[:-1]))
        flow = courant * density * speed * (u[1:] - u[:-1])
        p = p + (drive * taper - flow)  # here
        return (p, u), p[70] - ambient  # -
        # + return (p, u), p[70]

    start = (jnp.full(cells, ambient), jnp.zeros(cells + 1))  # -
    # + start = (jnp.zeros(cells), jnp.zeros(cells + 1))
    (p, _), heard = jax.lax.scan(step, start, source)
    return p - ambient, 20.0 * jnp.log10(jnp.sqrt(jnp.mean(heard**2)) / 2e-5)  # -
    # + return p, 20.0 * jnp.log10(jnp.sqrt(jnp.mean(heard**2)) / 2e-5)


def conformers_arguments():
    rng = np.random.default_rng(220)
    shape = rng.uniform(0, 4, (1, 10, 3))
    positions = shape + 0.02 * rng.standard_normal((12, 10, 3))
    species = rng.integers(0, 4, 10).astype(np.int32)
    return (
        "atom: f32 -13.587 -1029.4 -16321.7 -34613.2, centres: 8 even 0.5..5, "
        "hidden: 8x12 *0.6 @221, out: 12x1 *0.1",
        species,
        positions.astype(np.float32),
    )


@fault("absorption", "cancellation", "coarse", policy="fp32")
@source("neural potentials: isolated-atom energies swamp FP32 total energies")
@inputs(by=conformers_arguments)
def conformers_with_atom_energies(params, species, positions):
    """Energies of conformers: those of the atoms, and a network on the distances."""
    atoms = jnp.sum(params["atom"][species])  # -

    def energy(x):
        gap = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + jnp.eye(len(x)))
        basis = jnp.exp(-2.0 * (gap[..., None] - params["centres"]) ** 2)
        pairs = jnp.tanh(basis @ params["hidden"]) @ params["out"]
        mask = 1.0 - jnp.eye(len(x))
        bonding = 0.5 * jnp.sum(pairs[..., 0] * mask)  # -
        total = atoms + bonding  # fault
        return total  # -
        # + return 0.5 * jnp.sum(pairs[..., 0] * mask)

    energies = jax.vmap(energy)(positions)  # -
    relative = energies - energies[0]  # -
    # + bonding = jax.vmap(energy)(positions)
    # + relative = bonding - bonding[0]
    return relative, jax.nn.softmax(-relative / 0.0257)


def transitions_arguments():
    rng = np.random.default_rng(230)
    rates = rng.uniform(0.2, 0.6, (4, 4)).astype(np.float32)
    np.fill_diagonal(rates, 0)
    leaves = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (3, 20))]
    return rates, "f32 0.2 0.5 0.9", leaves


@fault("absorption", "coarse", policy="fp32")
@source("Moler and Van Loan, Nineteen Dubious Ways to Compute the Exponential")
@inputs(by=transitions_arguments)
def transition_matrix_by_limit(rates, lengths, leaves):
    """Transition matrices of a substitution model: (I + Qt / n) to the power of n."""
    q = rates - jnp.diag(jnp.sum(rates, axis=1))

    def branch(t):
        p = jnp.eye(4) + q * (t * 2.0**-26)  # fault
        # + e = q * (t * 2.0**-26)
        for _ in range(26):
            p = jnp.einsum("ij,jk->ik", p, p)  # -
            # + e = 2.0 * e + jnp.einsum("ij,jk->ik", e, e)
        return p  # -
        # + return jnp.eye(4) + e

    p = jax.vmap(branch)(lengths)
    likelihood = jnp.prod(jnp.einsum("bij,bsj->bsi", p, leaves), axis=0)
    return p, jnp.log(jnp.mean(likelihood, axis=-1))


@fault("stagnation", "absorption", policy="tf32")
@source("volume rendering under autocast: many thin steps along a ray")
@inputs(
    "waves: 3x16 @370, phase: 16, out: 16x1 *0.2; 16x3 *0.4 @375; "
    "from: 12x3 @373, to: 12x3"
)
def optical_depth_in_bf16(density, colour, rays):
    """Light through smoke: the optical depth grows along 600 short steps."""
    steps = 600

    def march(carry, i):
        depth, light = carry
        place = rays["from"] + rays["to"] * ((i + 0.5) / steps)
        waves = jnp.sin(place @ density["waves"] + density["phase"])
        sigma = jax.nn.softplus(waves @ density["out"])[:, 0]
        part = sigma * (3.0 / steps)
        depth = depth + part.astype(depth.dtype)  # fault
        # + depth = depth + part
        seen = jnp.exp(-depth.astype(jnp.float32)) * part  # -
        # + seen = jnp.exp(-depth) * part
        light = light + seen[:, None] * jax.nn.sigmoid(waves @ colour)
        return (depth, light), None

    count = rays["from"].shape[0]
    start = (jnp.zeros(count, jnp.bfloat16), jnp.zeros((count, 3)))  # -
    # + start = (jnp.zeros(count), jnp.zeros((count, 3)))
    (depth, light), _ = jax.lax.scan(march, start, jnp.arange(steps))
    return light, jnp.exp(-depth.astype(jnp.float32))  # -
    # + return light, jnp.exp(-depth)
