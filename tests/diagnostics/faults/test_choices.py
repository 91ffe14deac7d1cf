"""Choices that fall otherwise, counts that were rounded before, and unsigned words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line

# Each is (kind, faulty, healthy, arguments); the faulty line says so.


def ages(now, written):
    age = now - written  # here
    return jnp.exp(-age.astype(jnp.float32))


def ages_in_signed(now, written):
    age = now.astype(jnp.int32) - written.astype(jnp.int32)
    return jnp.exp(-age.astype(jnp.float32))


def window(x, places):
    ahead = places[:, None] - places[None]  # here
    return jnp.where(ahead < 3, x[:, None] * x[None], 0.0)


def window_in_signed(x, places):
    ahead = places[:, None].astype(jnp.int32) - places[None].astype(jnp.int32)
    return jnp.where(ahead < 3, x[:, None] * x[None], 0.0)


def share_of_range(ids):
    signed = ids.astype(jnp.int32)  # here
    return signed.astype(jnp.float32) / 2.0**32


def share_of_range_unsigned(ids):
    return ids.astype(jnp.float32) / 2.0**32


def best(x, w):
    scores = (x @ w + 30).astype(jnp.float16)  # here
    return jnp.argmax(scores, axis=-1)


def best_without_offset(x, w):
    return jnp.argmax(x @ w, axis=-1)


def best_two(x, w):
    scores = jax.nn.softmax(x @ w).astype(jnp.float8_e4m3)  # here
    return jnp.sort(jax.lax.top_k(scores.astype(jnp.float32), 2)[1], axis=-1)


def best_two_in_fp32(x, w):
    return jnp.sort(jax.lax.top_k(jax.nn.softmax(x @ w), 2)[1], axis=-1)


def slots(queue):
    one_hot = jax.nn.one_hot(queue, 3, dtype=jnp.bfloat16)
    place = jnp.cumsum(one_hot, axis=0)  # here
    slot = jnp.sum(place * one_hot, axis=-1).astype(jnp.int32)
    return jnp.zeros(1024).at[slot].add(1.0)


def slots_of_integers(queue):
    one_hot = jax.nn.one_hot(queue, 3, dtype=jnp.int32)
    slot = jnp.sum(jnp.cumsum(one_hot, axis=0) * one_hot, axis=-1)
    return jnp.zeros(1024).at[slot].add(1.0)


def decoded_in(dtype):
    """Return a greedy decoder that compares logits in a format."""

    def decoded(h, table, turn):
        def step(h, _):
            token = jnp.argmax((h @ table.T).astype(dtype), axis=-1)  # here
            return jnp.tanh(h @ turn + 0.5 * table[token]), token

        return jax.lax.scan(step, h, None, length=6)[1]

    return decoded


FAR_IDS = np.array([7, 2**31 + 5, 2**32 - 9], np.uint32)
CASES = [
    ("integer", ages, ages_in_signed, [np.uint32(9), np.uint32([8, 9, 10])]),
    ("integer", window, window_in_signed, [normal(8), np.arange(8, dtype=np.uint32)]),
    ("integer", share_of_range, share_of_range_unsigned, [FAR_IDS]),
    (
        "coarse",
        best,
        best_without_offset,
        [normal(64, 8), normal(8, 4, seed=1, scale=0.01)],
    ),
    (
        "coarse",
        best_two,
        best_two_in_fp32,
        [normal(64, 8), normal(8, 8, seed=1, scale=0.1)],
    ),
    (
        "integer",
        slots,
        slots_of_integers,
        [np.random.default_rng(2).integers(0, 2, 1200).astype(np.int32)],
    ),
    # The loop's counter says where a choice is kept, not which it is.
    (
        "coarse",
        decoded_in(jnp.bfloat16),
        decoded_in(jnp.float32),
        [
            normal(6, 24),
            normal(24) + normal(200, 24, seed=1, scale=0.02),
            normal(24, 24, seed=2, scale=0.2),
        ],
    ),
]


@pytest.mark.slow_cases("slots", "window", "best_two", "best", "decoded")
@pytest.mark.parametrize(
    ("kind", "faulty", "healthy", "arguments"),
    CASES,
    ids=[case[1].__name__ for case in CASES],
)
def test_the_kind_and_line_and_its_twin(kind, faulty, healthy, arguments):
    assert_named(kind, faulty, healthy, arguments, policy="fp32")


@pytest.mark.slow
def test_a_hash_of_words_is_none():
    """Differences that wrap, as in Jenkins's: what is mixed has no size."""

    def mixed(a, b):
        a = (a - b) ^ (b >> 13)
        b = (b - a) ^ (a << 8)
        return (b % 64).astype(jnp.float32)

    words = np.random.default_rng(0).integers(0, 2**32, (2, 16), np.uint32)
    assert compare(mixed, policy="fp32")(*words).faults == ()


@pytest.mark.slow
def test_a_count_of_choices_may_be_another():
    """One of many that were compared falls otherwise; it is a sum, and near."""

    def right(x, w, labels):
        scores = (x @ w).astype(jnp.bfloat16)
        return jnp.sum(jnp.argmax(scores, axis=-1) == labels)

    labels = np.random.default_rng(1).integers(0, 16, 256).astype(np.int32)
    report = compare(right, policy="bf16")(
        normal(256, 32), normal(32, 16, seed=1), labels
    )
    assert report.faults == ()


@pytest.mark.slow
def test_choices_that_data_decide_are_no_fault():
    """Equal scores but for the last digits of the operands."""

    def nearest(x, w):
        return jnp.argmax(x @ w, axis=-1)

    w = np.tile(normal(32, 1, seed=1), (1, 6)) * (1 + normal(32, 6, seed=2, scale=1e-5))
    report = compare(nearest, policy="bf16")(normal(200, 32), w.astype(np.float32))
    actual = np.argmax(normal(200, 32) @ w, axis=-1)
    assert np.unique(actual).size > 1
    assert report.faults == ()


@pytest.mark.slow
def test_the_page_says_that_a_choice_fell_otherwise():
    """Between two, so that no index is far off."""
    report = compare(best, policy="fp32")(
        normal(64, 8), normal(8, 2, seed=1, scale=0.002)
    )
    assert report.verdict is not None
    [wrong] = report.verdict.wrong
    assert wrong.how == "chosen"
    assert wrong.lost > 0.1
    assert report.faults[0].record.source == marked_line(best)
    text = " ".join(str(report).split())
    assert "of the whole numbers differ" in text
    assert "the reduction chooses by the rounded numbers" in text
