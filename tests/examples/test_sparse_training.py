"""Masks, straight-through gradients, schedules and the Optax link.

Gradients are compared with formulas in NumPy, the schedule with rational arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax

import neuronjax as nj
from examples.sparse_training import (
    cubic,
    from_scratch,
    keep_pattern,
    magnitude_mask,
    magnitude_masks,
    masked,
    masked_params,
    matching,
)
from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.sparsity import PATTERNS, SparseArray, get_pattern, sparsify

each_pattern = pytest.mark.parametrize("pattern", list(PATTERNS))
KERNELS = matching("kernel")


def _normal(*shape: int, seed: int = 0) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def _params(seed: int = 0) -> dict:
    return {
        "hidden": {
            "kernel": _normal(32, 8, seed=seed),
            "bias": _normal(8, seed=seed + 1),
        },
        "head": {"kernel": _normal(48, 4, seed=seed + 2)},
    }


# -- masks -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["4:16", "1:2"])
def test_a_mask_is_where_sparsify_keeps(pattern, strict_promotion):
    x = _normal(2, 37, 3)
    mask = magnitude_mask(x, pattern, axis=1)
    assert (mask.dtype, mask.shape) == (jnp.bool_, x.shape)
    dense = sparsify(x, pattern, axis=1).todense()
    np.testing.assert_array_equal(masked(x, mask), dense)


def test_a_mask_with_another_number_kept():
    x = jnp.array([3, 1, 2, 2], jnp.float32)
    assert magnitude_mask(x, "1:4", kept=0).tolist() == [False] * 4
    assert magnitude_mask(x, "1:4").tolist() == [True, False, False, False]
    assert magnitude_mask(x, "1:4", kept=2).tolist() == [True, False, True, False]
    assert magnitude_mask(x, "1:4", kept=4).tolist() == [True] * 4


@pytest.mark.slow
def test_masks_are_the_same_under_every_transformation(strict_promotion):
    x, kept = _normal(3, 32, 5), jnp.arange(2, 5, dtype=jnp.int32)

    def mask(x: jax.Array, kept: jax.Array) -> jax.Array:
        return magnitude_mask(x, "2:4", axis=0, kept=kept)

    expected = jnp.stack([mask(*one) for one in zip(x, kept, strict=True)])
    scanned = jax.jit(lambda *xs: lax.scan(lambda c, one: (c, mask(*one)), 0, xs)[1])
    for actual in (jax.vmap(mask)(x, kept), scanned(x, kept), jax.jit(mask)(x[0], 2)):
        reference = expected[0] if actual.ndim == 2 else expected
        np.testing.assert_array_equal(actual, reference)


# -- gradients -------------------------------------------------------------------------


def test_ste_prunes_forward_and_passes_every_gradient(strict_promotion):
    x = jnp.array([1, -3, 2, jnp.nan], jnp.float32)
    mask = jnp.array([False, True, True, False])
    y, pull = jax.vjp(lambda x: masked(x, mask), x)
    assert y.tolist() == [0, -3, 2, 0]
    g = jnp.array([-0.0, 1e-40, jnp.inf, 5], jnp.float32)
    np.testing.assert_array_equal(
        *(np.asarray(a).view("uint32") for a in (pull(g)[0], g))
    )


@pytest.mark.slow
def test_sr_ste_adds_a_decay_to_what_is_pruned(strict_promotion):
    x, g = _normal(64, 3), _normal(64, 3, seed=1)
    mask = magnitude_mask(x, "4:16")
    (actual,) = jax.vjp(lambda x: masked(x, mask, decay=2e-4), x)[1](g)
    decay = np.where(mask, np.float32(0), np.float32(2e-4) * np.asarray(x))
    np.testing.assert_array_equal(actual, np.asarray(g) + decay)


@pytest.mark.slow
def test_the_bits_of_sr_ste_next_to_other_arithmetic():
    x, g = _normal(4, 64), _normal(4, 64, seed=1)

    def gradient(x: jax.Array, g: jax.Array) -> jax.Array:
        mask = magnitude_mask(x, "2:4")
        loss = lambda x: jnp.sum(masked(x, mask, decay=0.3) * g)  # noqa: E731
        return jax.grad(loss)(x)

    expected = jnp.stack([gradient(*one) for one in zip(x, g, strict=True)])
    with jax.disable_jit():
        np.testing.assert_array_equal(gradient(x[0], g[0]), expected[0])
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(x, g), expected)
    twice = jax.jit(lambda x, g: gradient(x, g) * jnp.float32(2))(x[0], g[0])
    np.testing.assert_array_equal(twice, 2 * expected[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_have_the_dtype_of_the_parameters(dtype):
    x = _normal(16).astype(dtype)
    loss = lambda x: jnp.sum(masked(x, magnitude_mask(x, "2:4"), decay=0.5))  # noqa: E731
    gradient = jax.grad(loss)(x)
    assert gradient.dtype == dtype
    pruned = ~magnitude_mask(x, "2:4")
    np.testing.assert_array_equal(
        gradient, jnp.where(pruned, 1 + x * jnp.asarray(0.5, dtype), 1).astype(dtype)
    )


@pytest.mark.parametrize(
    "mask", [jnp.ones(3, bool), jnp.ones(4, jnp.float32), jnp.ones((1, 4), bool)]
)
def test_a_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(InvalidProgramError, match=r"for an array of shape \[4\]"):
        masked(jnp.ones(4), mask)


# -- trees -----------------------------------------------------------------------------


@pytest.mark.slow
def test_masks_of_a_tree():
    params = _params()
    masks = magnitude_masks(params, "4:16", axis_of=KERNELS)
    assert masks["hidden"]["bias"] is None
    pruned = masked_params(params, masks)
    assert pruned["hidden"]["bias"] is params["hidden"]["bias"]
    for layer in ("hidden", "head"):
        expected = sparsify(params[layer]["kernel"]).todense()
        np.testing.assert_array_equal(pruned[layer]["kernel"], expected)


@pytest.mark.slow
def test_axes_by_path():
    params = {"a": _normal(4, 16), "b": _normal(16, 4), "c": _normal(3)}
    axes = {"a": 1, "b": 0, "c": None}
    masks = magnitude_masks(params, "2:4", axis_of=lambda path, x: axes[path])
    np.testing.assert_array_equal(masks["a"].sum(axis=1), 8)
    np.testing.assert_array_equal(masks["b"].sum(axis=0), 8)
    assert masks["c"] is None


def test_a_selection_of_nothing_is_refused():
    paths = "head/kernel, hidden/bias, hidden/kernel"
    with pytest.raises(InvalidProgramError, match=f"select one of: {paths}"):
        magnitude_masks(_params(), "4:16", axis_of=matching("weight"))


# -- schedules -------------------------------------------------------------------------


def _cubic_model(pattern: str, begin: int, end: int, step: int) -> int:
    kept, group = get_pattern(pattern).kept, get_pattern(pattern).group
    left = min(max(Fraction(end - step, end - begin), Fraction(0)), Fraction(1))
    return kept + math.ceil((group - kept) * left**3)


def test_the_cubic_by_hand():
    """12 (1 - t/4)^3 over 4 steps: 12, 5.06, 1.5, 0.19, 0."""
    kept = cubic("4:16", begin=10, end=14)
    steps = jnp.arange(9, 16)
    assert jax.jit(kept)(steps).tolist() == [16, 16, 10, 6, 5, 4, 4]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    pattern=st.sampled_from(list(PATTERNS)),
    begin=st.integers(0, 10**6),
    span=st.integers(1, 10**6),
    data=st.data(),
)
def test_the_cubic_is_exact(pattern, begin, span, data):
    steps = data.draw(
        st.lists(st.integers(0, begin + span + 9), min_size=8, max_size=8)
    )
    kept = cubic(pattern, begin=begin, end=begin + span)(jnp.array(steps, jnp.int32))
    expected = [_cubic_model(pattern, begin, begin + span, step) for step in steps]
    assert kept.dtype == jnp.int32
    assert kept.tolist() == expected


@pytest.mark.slow_except("4:12", "2:4")
@each_pattern
def test_the_cubic_at_every_step_falls_from_all_to_the_pattern(pattern):
    kept = np.asarray(cubic(pattern, begin=5, end=105)(jnp.arange(111)))
    assert kept.tolist() == [_cubic_model(pattern, 5, 105, step) for step in range(111)]
    assert (np.diff(kept) <= 0).all()
    assert (kept[0], kept[-1]) == (
        get_pattern(pattern).group,
        get_pattern(pattern).kept,
    )


def test_from_scratch_keeps_the_pattern_from_the_start():
    schedule = from_scratch("2:8")
    assert int(jax.jit(schedule)(jnp.int32(0))) == int(schedule(10**6)) == 2


def test_a_schedule_that_ends_before_it_begins_is_refused():
    with pytest.raises(InvalidProgramError, match="from step 5 to step 5"):
        cubic("2:4", begin=5, end=5)


# -- training --------------------------------------------------------------------------


def _assert_obeys(params: dict, pattern: str) -> None:
    for layer in ("hidden", "head"):
        SparseArray.from_dense(params[layer]["kernel"], pattern)


@pytest.mark.slow
def test_keep_pattern_follows_its_schedule():
    schedule = cubic("2:4", begin=0, end=4)
    optimizer = optax.chain(
        optax.adam(0.1), keep_pattern("2:4", axis_of=KERNELS, schedule=schedule)
    )
    params: Any = _params()
    state: Any = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, seed: jax.Array) -> tuple:
        gradients = jax.tree.map(lambda p: jnp.sin(p * seed), params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for index in range(6):
        params, state = step(params, state, jnp.float32(index + 1))
        kernel = np.asarray(params["hidden"]["kernel"]).reshape(8, 4, 8)
        np.testing.assert_array_equal((kernel != 0).sum(axis=1), int(schedule(index)))
    _assert_obeys(params, "2:4")
    assert int(state[1].step) == 6
    assert step._cache_size() == 1


@pytest.mark.slow
def test_keep_pattern_only_undoes_what_it_prunes():
    params, updates = _params(), _params(seed=7)
    optimizer = keep_pattern("4:16", axis_of=KERNELS)
    new: Any = optimizer.update(updates, optimizer.init(params), params)[0]
    assert new["hidden"]["bias"] is updates["hidden"]["bias"]
    target = params["head"]["kernel"] + updates["head"]["kernel"]
    actual = params["head"]["kernel"] + new["head"]["kernel"]
    np.testing.assert_array_equal(actual, sparsify(target).todense())


@pytest.mark.slow
def test_pruned_parameters_become_zero_under_narrow_updates():
    params = {"kernel": _normal(32, 4)}
    updates = {"kernel": _normal(32, 4, seed=1).astype(jnp.bfloat16)}
    optimizer = keep_pattern("4:16", axis_of=KERNELS)
    new, _ = optimizer.update(updates, optimizer.init(params), params)
    updated: Any = optax.apply_updates(params, new)
    SparseArray.from_dense(updated["kernel"], "4:16")


def test_keep_pattern_needs_the_parameters():
    optimizer = keep_pattern("4:16", axis_of=KERNELS)
    with pytest.raises(InvalidProgramError, match="needs the parameters"):
        optimizer.update(_params(), optimizer.init(_params()))


@pytest.mark.slow
def test_training_through_masks_on_the_emulated_chip():
    """SR-STE on a schedule inside `neuronjax.jit`: compiled = op by op, and learns."""
    x, schedule = _normal(16, 32, seed=5), cubic("4:16", begin=0, end=3)
    target = x @ sparsify(_normal(32, 4, seed=6)).todense()

    def step(params: dict, index: jax.Array) -> tuple[dict, jax.Array]:
        kept = schedule(index)
        masks = magnitude_masks(params, "4:16", axis_of=KERNELS, kept=kept)

        def loss(params: dict) -> jax.Array:
            pruned = masked_params(params, masks, decay=1e-3)
            return jnp.mean((x @ pruned["kernel"] - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients), value

    emulated = nj.jit(step, target="trn2", policy="bf16")
    params, losses = {"kernel": _normal(32, 4, seed=7)}, []
    with jax.disable_jit():
        by_op = emulated(params, jnp.int32(0))
    for index in range(8):
        params, loss = emulated(params, jnp.int32(index))
        if index == 0:
            jax.tree.map(np.testing.assert_array_equal, (params, loss), by_op)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 4  # sparse since step 3
