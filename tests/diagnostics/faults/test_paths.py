"""Along which of several ways an error, or an Inf, reached a result.

Each program has two lines that could be blamed, of which one decides.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import marked_line

# Each is (kind, policy, faulty, healthy, arguments); the faulty line says so.


def left_over(variance, noise):
    gain = variance / (variance + noise)
    return (1.0 - gain) * variance  # here


def left_over_as_a_product(variance, noise):
    return variance / (variance + noise) * noise


def closing(x):
    opened = 1.0 / (1.0 + jnp.exp(-x))
    return opened * (1.0 - opened)  # here


def closing_from_the_input(x):
    return jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)


def kept(x, steps):
    keep = jax.nn.sigmoid(x.astype(jnp.bfloat16))  # here
    return keep.astype(jnp.float32) ** steps


def kept_in_fp32(x, steps):
    return jax.nn.sigmoid(x) ** steps


def others(logits):
    rest = jnp.exp(logits).sum(-1) - jnp.exp(logits[:, 0])  # here
    return jnp.log(rest)


def others_alone(logits):
    return jax.nn.logsumexp(logits[:, 1:], axis=-1)


def gated(gate, up):
    opened = gate / (1.0 + jnp.exp(-gate))
    hidden = opened * up  # here
    return hidden.astype(jnp.float32).sum(-1)


def gated_in_fp32(gate, up):
    opened = gate / (1.0 + jnp.exp(-gate))
    return (opened.astype(jnp.float32) * up.astype(jnp.float32)).sum(-1)


def surprise(logits):
    weights = jnp.exp(logits.astype(jnp.float16))  # here
    shares = weights / weights.sum(-1, keepdims=True)
    return -jnp.log(shares[:, 0])


def surprise_from_logits(logits):
    return jax.nn.logsumexp(logits, axis=-1) - logits[:, 0]


def chances(tips):
    first = jnp.where(tips[0] > 0.5, 1.0, 0.0)

    def join(held, tip):
        held = held * tip  # here
        return held, None

    held, _ = jax.lax.scan(join, first + 0.1, tips)
    return jnp.log(held.sum(-1))


def chances_in_logarithms(tips):
    first = jnp.where(tips[0] > 0.5, 1.0, 0.0) + 0.1
    return jax.nn.logsumexp(jnp.log(first) + jnp.log(tips).sum(0), axis=-1)


def arrivals(start, passed):
    reached = jnp.cumprod(passed)  # here
    return jnp.cumsum(start / reached) * reached


def arrivals_by_steps(start, passed):
    def walk(still, here):
        still = still * here[1] + here[0]
        return still, still

    return jax.lax.scan(walk, 0.0 * passed[0], (start, passed))[1]


def distance(a, b):
    shift = jnp.square(a.mean(0) - b.mean(0)).sum()
    va, vb = a.var(0), b.var(0)
    spread = va.sum() + vb.sum() - 2.0 * jnp.sqrt(va * vb).sum()  # here
    return shift + spread


def distance_of_roots(a, b):
    shift = jnp.square(a.mean(0) - b.mean(0)).sum()
    roots = jnp.sqrt(a.var(0)) - jnp.sqrt(b.var(0))
    return shift + jnp.square(roots).sum()


def two_samples():
    a = normal(64, 8, scale=4.0)
    return a, a[::-1] * np.float32(1.001)


def missing(links, closed):
    degree = links.sum(1)
    return jnp.log1p(degree * (degree - 1) / 2 - closed / 2)


def paths_of_three(links):
    paths = links @ links
    closed = paths @ links  # here
    return missing(links, jnp.diagonal(closed))


def paths_by_product(links):
    return missing(links, jnp.sum((links @ links) * links, axis=1))


def links():
    upper = np.triu(np.random.default_rng(2).random((600, 600)) < 0.998, 1)
    return ((upper | upper.T).astype(np.float32),)


def ratings(start, players, gains):
    def play(held, game):
        player, gain = game
        held = held.at[player].add(gain.astype(held.dtype))  # here
        return held, None

    held, _ = jax.lax.scan(play, start.astype(jnp.float16), (players, gains))
    return held.astype(jnp.float32) - start


def ratings_in_fp32(start, players, gains):
    def play(held, game):
        return held.at[game[0]].add(game[1]), None

    return jax.lax.scan(play, start, (players, gains))[0] - start


def games():
    start = 1500 + 200 * np.random.default_rng(3).random(6)
    players = np.random.default_rng(4).integers(0, 6, (400, 2)).astype(np.int32)
    return start.astype(np.float32), players, np.full((400, 2), 0.4, np.float32)


def energies(base, parts):
    total = base + parts  # here
    return total - total[0]


def energies_of_parts(base, parts):
    return parts - parts[0]


CASES = [
    ("cancellation", "fp32", left_over, left_over_as_a_product,
     lambda: (np.full(16, 1e3, np.float32), np.abs(normal(16, scale=3e-4)) + 1e-4)),
    ("cancellation", "fp32", closing, closing_from_the_input,
     lambda: (14 + np.abs(normal(64)),)),
    ("cancellation", "bf16", others, others_alone,
     lambda: (np.concatenate([np.full((16, 1), 20.0, np.float32),
                              normal(16, 8)], 1),)),
    ("overflow", "fp16", gated, gated_in_fp32,
     lambda: (normal(12, 64, scale=400.0).astype(np.float16),
              normal(12, 64, scale=150.0).astype(np.float16))),
    ("absorption", "fp32", kept, kept_in_fp32,
     lambda: (6 + 0.3 * normal(32), np.float32(400.0))),
    ("overflow", "fp32", surprise, surprise_from_logits,
     lambda: (np.concatenate([normal(8, 1), 4 * normal(8, 31) + 4], 1),)),
    ("underflow", "fp32", chances, chances_in_logarithms,
     lambda: (0.2 + 0.1 * np.random.default_rng(5).random((90, 6, 4),
                                                          dtype=np.float32),)),
    ("underflow", "fp32", arrivals, arrivals_by_steps,
     lambda: (np.eye(1, 80, dtype=np.float32)[0], np.full(80, 0.1, np.float32))),
    ("cancellation", "fp32", distance, distance_of_roots, two_samples),
    ("integer", "bf16", paths_of_three, paths_by_product, links),
    ("stagnation", "fp32", ratings, ratings_in_fp32, games),
    ("absorption", "fp32", energies, energies_of_parts,
     lambda: (np.full(32, 1.4e5, np.float32), 3 + normal(32, scale=0.05))),
]  # fmt: skip


@pytest.mark.slow_except("left_over", "closing", "energies")
@pytest.mark.parametrize(
    ("kind", "policy", "faulty", "healthy", "arguments"),
    CASES,
    ids=[case[2].__name__ for case in CASES],
)
def test_the_kind_and_line_and_its_twin(kind, policy, faulty, healthy, arguments):
    ask = {"policy": policy, "explain": False}
    report = compare(faulty, **ask)(*arguments())
    assert [f.record.source for f in report.faults][:1] == [marked_line(faulty)]
    on_line = {f.kind for f in report.faults if f.record.source == marked_line(faulty)}
    assert kind in on_line
    assert not compare(healthy, **ask)(*arguments()).faults


def first_line(function, *arguments, policy="bf16"):
    report = compare(function, policy=policy, explain=False)(*arguments)
    return report.faults[0].record.source


@pytest.mark.slow
def test_what_a_step_is_wrong_by_comes_before_the_step():
    def step(weights, x):
        def loss(weights):
            places = jnp.arange(4096)[:, None]
            wave = jnp.cos(places.astype(jnp.bfloat16) * 0.37)  # here
            h = x.astype(jnp.bfloat16) * wave
            h = h @ weights["in"].astype(jnp.bfloat16)
            h = h * jax.nn.sigmoid(h)
            out = (h @ weights["out"].astype(jnp.bfloat16)).astype(jnp.float32)
            return jnp.square(out - wave.astype(jnp.float32)).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        moved = jax.tree.map(lambda w, g: w - 1e-3 * g / (jnp.abs(g) + 1e-8),
                             weights, slopes)  # fmt: skip
        return moved, value

    weights = {
        "in": normal(16, 32, seed=1, scale=0.3),
        "out": normal(32, 1, seed=2, scale=0.3),
    }
    assert first_line(step, weights, normal(4096, 16)) == marked_line(step)


@pytest.mark.slow
def test_an_overflow_is_no_sum_that_stagnates():
    @jax.jit
    def shares(scores):
        weights = jnp.exp(scores)  # here
        return weights / weights.sum(-1, keepdims=True)

    def twice(scores):
        return shares(shares(scores) + scores)

    scores = 87 + 0.8 * normal(64, 32)
    assert first_line(twice, scores, policy="fp32") == marked_line(shares.__wrapped__)


@pytest.mark.slow
def test_an_overflow_comes_before_the_logarithm_of_zeros_that_it_leads_to():
    """A number over the Inf of an exponential is zero, and its logarithm is Inf."""

    def loss(logits, labels):
        weights = jnp.exp(logits.astype(jnp.float16))  # here
        shares = weights / weights.sum(-1, keepdims=True)
        return -jnp.log(jnp.take_along_axis(shares, labels[:, None], 1)).mean()

    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 32)).astype(np.float32) * 3 + 4
    labels = rng.integers(0, 32, 8).astype(np.int32)
    assert first_line(loss, logits, labels) == marked_line(loss)


def test_a_sum_above_a_line_is_no_divisor_of_a_callee():
    """Of a sigmoid, which divides by its sum, the format is too coarse; not here."""

    @jax.jit
    def divided(x, y):
        return x / y

    def function(x, e):
        above = x + e  # here
        return divided(above, x * x + 1) - 1 / 256

    x, e = (jnp.full(64, number, jnp.bfloat16) for number in (256.0, 0.3))
    report = compare(function, policy="bf16", explain=False)(x, e)
    [first, *_] = report.faults
    assert (first.record.source, first.kind) == (marked_line(function), "absorption")


def test_inf_in_the_data_says_nothing_of_float64():
    def scaled(x):
        return x.astype(jnp.float16) * 400  # here

    report = compare(scaled, policy="fp16", explain=False)(np.float32([300, -np.inf]))
    assert "the largest result should be 120000" in report.faults[0].evidence
