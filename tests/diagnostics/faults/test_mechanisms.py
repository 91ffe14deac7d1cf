"""What a fault is called, and which of several lines it is laid to, where two readings
are near: a sum that absorbs or has converged, a cast or the difference that shows it,
one call of a helper or the other, an operand or the op that it is no operand of.
"""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.api.compare import compare
from neuronjax.diagnostics.faults.naming import (
    IN_FP32,
    KINDS,
    LOST_GUARD,
    WHOLE_IN_FP32,
)
from neuronjax.policy import Policy
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line

BF16 = ml_dtypes.bfloat16


# Each is (kind, policy, faulty, healthy, arguments); the faulty line says so.


def summed_in(dtype):
    """Return a function that adds in FP32, and casts every sum."""

    def total(rows):
        def turn(total, row):
            total = (total + row).astype(total.dtype)  # here
            return total, None

        last, _ = jax.lax.scan(turn, jnp.zeros(rows.shape[1], dtype), rows)
        return last.astype(jnp.float32) / len(rows)

    return total


def short_sums(x, w):
    y = jax.lax.dot(x, w, preferred_element_type=jnp.int16)  # here
    return y.astype(jnp.float32)


def long_sums(x, w):
    return jax.lax.dot(x, w, preferred_element_type=jnp.int32).astype(jnp.float32)


def shifted(x):
    high = x << 12  # here
    return (high >> 16).astype(jnp.float32)


def shifted_once(x):
    return (x >> 4).astype(jnp.float32)


def cell(rows, columns):
    flat = rows * 40_961 + columns  # here
    return flat & 255


def cell_by_parts(rows, columns):
    return ((rows & 255) + (columns & 255)) & 255


def series(z):
    def add(n, carry):
        term, total = carry
        term = term * z / (n + 1).astype(jnp.float32)
        return term, total + term  # here

    one = jnp.ones_like(z)
    return jax.lax.fori_loop(0, 60, add, (one, one))[1]


def middle(low, high):
    half = (low.astype(jnp.bfloat16) + high.astype(jnp.bfloat16)) / 2  # here
    return half.astype(jnp.float32) - 1.148 * low


def middle_in_fp32(low, high):
    return (low + high) / 2 - 1.148 * low


def ages(stamps):
    stamps = stamps.astype(jnp.bfloat16)  # here
    return (stamps[-1] - stamps).astype(jnp.float32)


def ages_in_fp32(stamps):
    return stamps[-1] - stamps


def rates(values, ticks):
    ticks = ticks.astype(jnp.float32)  # here
    return jnp.diff(values) / (jnp.diff(ticks) + 0.1)


def rates_of_whole_ticks(values, ticks):
    return jnp.diff(values) / (jnp.diff(ticks).astype(jnp.float32) + 0.1)


def scaled(x):
    variance = (x * x).mean(-1) - x.mean(-1) ** 2  # here
    return jax.lax.rsqrt(variance + 1e-5)


def scaled_centred(x):
    centred = x - x.mean(-1, keepdims=True)
    return jax.lax.rsqrt((centred * centred).mean(-1) + 1e-5)


def shares(a, b):
    both = a.astype(jnp.float16) * b.astype(jnp.float16)  # here
    return both.astype(jnp.float32) * 1e7


def shares_in_fp32(a, b):
    return a * b * 1e7


def energies(x, w):
    h = jax.nn.relu(x @ w)
    return jnp.sum(h * h, axis=0, dtype=jnp.float16)  # here


def mean_energies(x, w):
    h = jax.nn.relu(x @ w)
    return jnp.mean(h * h, axis=0)


def squares_in_fp8(x, w):
    hidden = jax.nn.relu(x @ w["up"]) ** 2
    return hidden @ w["down"]  # here


def squares_scaled(x, w):
    hidden = jax.nn.relu(x @ w["up"] / 16) ** 2
    return (hidden @ w["down"]) * 256


def remembered(x, w):
    gate = jax.nn.sigmoid(x @ w - 8)
    keep = (1 - gate).astype(jnp.float16)  # here
    return keep.astype(jnp.float32) ** 128


def remembered_in_fp32(x, w):
    return (1 - jax.nn.sigmoid(x @ w - 8)) ** 128


def waves(x):
    positions = jnp.arange(512, dtype=jnp.bfloat16)  # here
    return x * jnp.cos(positions.astype(jnp.float32))


def short_waves(x):
    """BF16 holds these positions."""
    positions = jnp.arange(100, dtype=jnp.bfloat16)
    return x[:100] * jnp.cos(positions.astype(jnp.float32))


def rotated(x):
    half = x.shape[-1] // 2
    frequencies = 1e4 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    positions = jnp.arange(x.shape[0], dtype=x.dtype)  # here
    angles = positions[:, None] * frequencies
    left, right = x[:, :half], x[:, half:]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    turned = [left * cosine - right * sine, right * cosine + left * sine]
    return jnp.concatenate(turned, -1).astype(x.dtype)


def rotated_by_fp32(x):
    return rotated(x.astype(jnp.float32)).astype(x.dtype)


def tone(start, pitch):
    count = (start + jnp.arange(256)).astype(jnp.float32)
    turns = pitch * count / 16_000 * 1.1 / 1.3 * 0.7  # here
    return jnp.sin(2 * jnp.pi * turns)


def windows(x):
    """Only the quiet end is lost, so the norm of the difference is hardly off."""
    total = jnp.cumsum(x * x)  # here
    power = total[8:] - total[:-8]
    return jnp.sqrt(jnp.maximum(power, 0) / 8)[-256:]


def windows_apart(x):
    places = jnp.arange(len(x) - 8)[:, None] + jnp.arange(1, 9)
    return jnp.sqrt((x * x)[places].sum(1) / 8)[-256:]


def moments_in(dtype):
    """Return a function that scales steps by the root of second moments of a format."""

    def descended(w, second, gradients):
        def turn(state, g):
            w, v = state
            v = (0.999 * v.astype(jnp.float32) + 0.001 * g * g).astype(v.dtype)  # here
            return (w - 0.01 * g * jax.lax.rsqrt(v.astype(jnp.float32)), v), None

        start = (w, second.astype(dtype))
        return jax.lax.scan(turn, start, gradients)[0][0]

    return descended


ENGINES = Policy(integer_path="fp32")
POSITIVE = np.abs(normal(64, seed=3)) + 0.5
OUTLIER = np.where(np.arange(128) == 7, 25, 1).astype(np.float32)
OFFSET = 1000 + normal(4, 512, seed=6, scale=0.3)

CASES = [
    (
        "integer",
        "bf16",
        short_sums,
        long_sums,
        [np.full((3, 64), 90, np.int8), np.full((64, 2), 70, np.int8)],
    ),
    ("integer", "bf16", shifted, shifted_once, [np.int32([900_000, 7, 3_000_000])]),
    (
        "integer",
        ENGINES,
        cell,
        cell_by_parts,
        [np.arange(9_000, 9_032, dtype=np.int32), np.arange(32, dtype=np.int32)],
    ),
    ("integer", "bf16", waves, short_waves, [np.ones(512, np.float32)]),
    ("integer", "bf16", rotated, rotated_by_fp32, [normal(512, 32).astype(BF16)]),
    ("cancellation", "fp32", series, jnp.exp, [np.float32([-9, -12, -14])]),
    (
        "coarse",
        "fp32",
        middle,
        middle_in_fp32,
        [POSITIVE, POSITIVE * np.float32(1.3)],
    ),
    (
        "coarse",
        "bf16",
        ages,
        ages_in_fp32,
        [np.linspace(9_000, 9_040, 24, dtype=np.float32)],
    ),
    (
        "integer",
        "fp32",
        rates,
        rates_of_whole_ticks,
        [
            np.linspace(0, 9, 24, dtype=np.float32) ** 2,
            1_700_000_000 + 60 * np.arange(24, dtype=np.int32) ** 2,
        ],
    ),
    ("cancellation", "fp32", scaled, scaled_centred, [OFFSET]),
    # Every op rounds by as much, but the first are where the number is large.
    ("integer", "fp32", tone, None, [np.int32(9_000_003), np.float32(659)]),
    (
        "stagnation",
        "fp32",
        windows,
        windows_apart,
        [normal(2048) * np.where(np.arange(2048) < 1500, 1, 1e-3).astype(np.float32)],
    ),
    # The weights are as near as BF16 allows; the moments are off by a tenth.
    (
        "stagnation",
        "fp32",
        moments_in(jnp.bfloat16),
        moments_in(jnp.float32),
        [1 + normal(32), np.full(32, 0.1275, np.float32), normal(80, 32, scale=1e-2)],
    ),
    (
        "stagnation",
        "fp32",
        summed_in(jnp.bfloat16),
        summed_in(jnp.float32),
        [1 + normal(600, 4, scale=0.1)],
    ),
    # Some of what ReLU makes zero would not be; that is not why a sum overflows.
    (
        "overflow",
        "bf16",
        energies,
        mean_energies,
        [normal(2000, 16), normal(16, 8, seed=1, scale=2.5)],
    ),
    (
        "overflow",
        Policy(auto_cast="matmult", auto_cast_type="fp8_e4m3", scaling="none"),
        squares_in_fp8,
        squares_scaled,
        [
            normal(32, 64, seed=1),
            {
                "up": normal(64, 128, seed=51, scale=0.12) * OUTLIER,
                "down": normal(128, 32, seed=91, scale=0.1),
            },
        ],
    ),
    # An error of two percent, which the roundings of the operands do not explain.
    (
        "coarse",
        "bf16",
        remembered,
        remembered_in_fp32,
        [normal(64, 16), normal(16, 8, seed=1, scale=0.25)],
    ),
    (
        "underflow",
        "fp32",
        shares,
        shares_in_fp32,
        [POSITIVE * np.float32(1e-2), POSITIVE[::-1] * np.float32(2e-5)],
    ),
]


@pytest.mark.slow_except("shifted", "scaled", "shares")
@pytest.mark.parametrize(
    ("kind", "policy", "faulty", "healthy", "arguments"),
    CASES,
    ids=[case[2].__name__ for case in CASES],
)
def test_the_kind_and_line_and_its_twin(kind, policy, faulty, healthy, arguments):
    assert_named(kind, faulty, healthy, arguments, policy=policy)


@pytest.mark.slow
def test_nan_of_a_negative_variance_names_both_lines():
    """It is first told who made the operand negative, then which op made NaN of it."""
    report = compare(scaled, policy="fp32")(1e4 + normal(32, 64, seed=8, scale=0.1))
    kinds = [f.kind for f in report.faults]
    assert kinds[0] == "cancellation"
    assert report.faults[0].record.source == marked_line(scaled)
    assert "non-finite" in kinds


def normed(x):
    half = x.astype(jnp.float16)
    mean = jnp.mean(half * half, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + 1e-12)  # here


def normed_by_attribute(x, epsilon=1e-12):
    mean = jnp.mean(x.astype(jnp.float16) ** 2, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + epsilon)  # here


def normed_with_more(x):
    half = x.astype(jnp.float16)
    mean = jnp.mean(half * half, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + 1e-4)


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (normed, "1e-12 is 0 in float16; 1 of 4 numbers are Inf or NaN"),
        (
            normed_by_attribute,
            "the epsilon is 0 in float16; 1 of 4 numbers are Inf or NaN",
        ),
    ],
)
def test_an_epsilon_that_the_format_makes_zero_is_named(faulty, words):
    x = normal(4, 16)
    x[2] = 0
    report = compare(faulty, policy="bf16")(x)
    fault = report.faults[0]
    assert fault.record.source == marked_line(faulty)
    assert (fault.kind, fault.evidence) == ("singular", words)
    assert fault.remedy == LOST_GUARD
    assert compare(normed_with_more, policy="bf16")(x).faults == ()


def test_a_root_of_zero_without_an_epsilon_has_its_own_remedy():
    x = normal(4, 16)
    x[2] = 0
    report = compare(lambda x: jax.lax.rsqrt(jnp.mean(x * x, axis=-1)))(x)
    assert [f.remedy for f in report.faults] == [KINDS["singular"]]


def test_the_epsilon_comes_before_zeros_that_it_would_have_borne():
    """A few squares of small numbers are zero in FP16, as are all of an empty row."""
    x = normal(4, 512)
    x[0, :8] = 1e-5
    x[2] = 0
    report = compare(normed, policy="bf16")(x)
    assert report.faults[0].record.source == marked_line(normed)
    assert report.faults[0].remedy == LOST_GUARD


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: jnp.exp(60 * x), "overflow"),
        (lambda x: jnp.log(jnp.exp(-60 * x)), "underflow"),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, BF16])
def test_what_has_the_range_of_fp32_is_not_told_to_be_kept_in_it(function, kind, dtype):
    report = compare(function, policy="fp32")(jnp.asarray([1.0, 2.0, 3.0], dtype))
    assert (report.faults[0].kind, report.faults[0].remedy) == (kind, IN_FP32[kind])


@pytest.mark.slow
def test_positions_in_bf16_are_kept_in_fp32():
    report = compare(waves, policy="bf16")(np.ones(512, np.float32))
    assert report.faults[0].remedy == WHOLE_IN_FP32
    assert report.faults[0].evidence == (
        "the whole numbers reach 511; bfloat16 holds all of them only up to 256"
    )
    assert report.notes == ()


def test_the_headline_speaks_of_ops_that_the_report_shows():
    """The table has the cosine alone, whose error the difference makes larger."""
    report = compare(lambda x: jnp.cos(x) - 0.5, policy="bf16")(normal(64))
    worst = report.sorted("accumulation")[0]
    assert worst.short_op == "subtract"
    assert [r.short_op for r in report.differing] == ["cosine"]
    error = f"{worst.accumulation.relative_l2:.2g}"
    text = " ".join(str(report).split())
    assert f"the largest error in the run is {error} nothing wrong" in text


def test_an_error_that_no_result_is_wrong_by_is_said_to_be_none():
    """The gradient of a bias before a softmax is zero but for rounding."""

    def scored(bias, q, k, v):
        return (jax.nn.softmax(q @ (k + bias).T) @ v).sum()

    arguments = [normal(*size, seed=n) for n, size in enumerate([(8,), (4, 8)])]
    arguments += [normal(6, 8, seed=n) for n in (2, 3)]
    text = " ".join(str(compare(jax.grad(scored), policy="bf16")(*arguments)).split())
    assert "but no result is wrong nothing wrong: " in text
