"""What is said of a run that diverges: the step, the kind of fault, the user's line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.api import study
from neuronjax.report.progress import StudyProgress

FP8 = nj.Policy(auto_cast="matmult", auto_cast_type="fp8", name="fp8")
DELAYED = nj.Policy(
    auto_cast="matmult", auto_cast_type="fp8", scaling="delayed", name="delayed"
)


def growing(x):
    """The operand is past 240, the largest number of E4M3 on trn2, from step 3 on."""
    product = x @ jnp.eye(8)
    return 8 * x, jnp.abs(product).mean()


def train(jit, seed, *, steps=5):
    step, x = jit(growing), jnp.full((8, 8), 0.5)
    for _ in range(steps):
        x, loss = step(x)
        yield loss


def train_delayed(jit, seed):
    step, x = jit(growing), jnp.full((8, 8), 0.5)
    history = step.init_amax_history(x)
    for _ in range(5):
        (x, loss), history = step.with_amax_history(history)(x)
        yield loss


def studied(train, policy, folder=None):
    return nj.study(train, policies=[policy], seeds=2, folder=folder, progress=False)


def test_a_run_that_diverges_says_where(tmp_path):
    found = studied(train, FP8, tmp_path)
    (seen,) = found.seen.values()
    assert seen.startswith("seed 0, step 3: overflow in ")
    line = growing.__code__.co_firstlineno + 2
    assert f"test_study_faults.py:{line}" in seen
    assert "cast, float8_e4m3" in seen
    told = " ".join(str(found).split())
    assert f"fp8 before it diverges: {seen}." in told
    assert found.as_dict()["seen"] == {"fp8": seen}
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(files) == 3
    assert studied(train, FP8, tmp_path).seen == found.seen
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}


def test_an_overflow_is_named_rather_than_an_underflow_before_it():
    def both(x):
        small = jnp.abs((1e-9 * x) @ jnp.eye(8)).mean()
        larger, loss = growing(x)
        return larger, loss + small

    def train(jit, seed):
        step, x = jit(both), jnp.full((8, 8), 0.5)
        for _ in range(5):
            x, loss = step(x)
            yield loss

    (seen,) = studied(train, FP8).seen.values()
    line = growing.__code__.co_firstlineno + 2
    assert seen.startswith("seed 0, step 3: overflow in ")
    assert f"test_study_faults.py:{line}" in seen


def test_a_run_that_cannot_be_repeated_keeps_the_study():
    """Data that only one reader of each run may open."""
    opened = []

    def once(jit, seed):
        if seed in opened:
            raise OSError("the data are read")
        opened.append(seed)
        yield from train(jit, seed)

    found = studied(once, FP8)
    (seen,) = found.seen.values()
    assert seen == "seed 0, the run could not be repeated: OSError('the data are read')"
    assert len(found.records) == 10


def test_steps_are_those_that_the_loop_counts():
    """Every other yield has a loss, and the loop counts in tens."""

    def train_in_tens(jit, seed):
        for n, loss in enumerate(train(jit, seed)):
            yield {"step": 20 * n, "loss": loss}
            yield {"step": 20 * n + 10, "seconds": 1.0}

    found = studied(train_in_tens, FP8)
    assert found.verdicts()["fp8"].diverged == {0: 60, 1: 60}
    assert found.seen["fp8"].startswith("seed 0, step 60: overflow in ")


@pytest.mark.slow
def test_a_state_of_delayed_scaling_is_watched_too():
    (seen,) = studied(train_delayed, DELAYED).seen.values()
    assert "overflow in " in seen


@pytest.mark.slow
def test_a_function_inside_another_is_seen_in_that():
    def nested(jit, seed):
        inner = jit(growing)
        step, x = jit(lambda x: inner(x)), jnp.full((8, 8), 0.5)
        for _ in range(5):
            x, loss = step(x)
            yield loss

    (seen,) = studied(nested, FP8).seen.values()
    assert "step 3: overflow in " in seen


@pytest.mark.slow
def test_nothing_is_collected_of_what_is_differentiated_outside():
    def train(jit, seed):
        loss_of = jit(lambda x: growing(x)[1])
        x = jnp.full((8, 8), 0.5)
        for _ in range(5):
            loss, _ = jax.value_and_grad(loss_of)(x)
            x = 8 * x
            yield loss

    (seen,) = studied(train, FP8).seen.values()
    assert seen.startswith("seed 0, no statistics: none are collected inside jax.grad")


@pytest.mark.parametrize(
    "make",
    [
        lambda step, x: step.lower(x).compile(),
        lambda step, x: step.with_options(target="trn2"),
    ],
    ids=["ahead of time", "with options"],
)
def test_nothing_is_collected_of_what_is_made_of_a_function(make):
    def train(jit, seed):
        x = jnp.full((8, 8), 0.5)
        step = make(jit(growing), x)
        for _ in range(5):
            x, loss = step(x)
            yield loss

    found = studied(train, FP8)
    assert found.verdicts()["fp8"].diverged == {0: 3, 1: 3}
    assert "no statistics: " in found.seen["fp8"]


def test_of_the_host_nothing_is_seen():
    def train(jit, seed):
        yield from (1.0, np.nan)

    found = nj.study(train, policies=["native"], seeds=2, progress=False)
    assert found.seen == {}
    assert found.verdicts()["native"].diverged == {0: 1, 1: 1}


def test_no_run_is_repeated_if_nobody_asks():
    runs = []

    def counted(jit, seed):
        runs.append(seed)
        yield from train(jit, seed)

    found = nj.study(counted, policies=[FP8], seeds=2, find_fault=False, progress=False)
    assert runs == [0, 1]
    assert found.seen == {}
    assert found.verdicts()["fp8"].diverged == {0: 3, 1: 3}


def test_a_repeated_run_shows_its_progress(monkeypatch, tmp_path):
    told = []

    class Heard(StudyProgress):
        def begin(self, what, steps=None):
            told.append([what, steps, 0])
            super().begin(what, steps)

        def advance(self, record):
            told[-1][2] += 1
            super().advance(record)

    monkeypatch.setattr(study, "StudyProgress", Heard)
    studied(train, FP8, tmp_path)
    assert told == [
        ["fp8 seed 0", None, 5],
        ["fp8 seed 1", None, 5],
        ["fp8 seed 0, again", 4, 3],
    ]
    told.clear()
    studied(train, FP8, tmp_path)
    assert told == []
