"""Define masks and schedules that make weights N:M sparse during training.

A mask is a boolean array, True where an element is kept. You can prune inside the loss,
with gradients that pass straight through (`masked_params`: STE, and SR-STE of Zhou et
al. 2021, "Learning N:M fine-grained structured sparse neural networks from scratch").
Or you can prune after every optimizer update (`keep_pattern`, an Optax transformation).

A schedule gives the number of kept elements of a group over the steps: `from_scratch`,
or the cubic of Zhu and Gupta 2017 ("To prune, or not to prune") applied to N:M. Masks
and schedules are integer arithmetic on traced values, so one compiled step serves the
whole schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.sparsity import (
    Array,
    SparsityPattern,
    get_pattern,
    magnitude_ranks,
)

Pattern = str | SparsityPattern
# (path "layers/0/kernel", array) -> contraction axis, or None to leave it dense.
AxisOf = Callable[[str, Any], int | None]
# step -> kept elements of a group, int32.
Schedule = Callable[[Any], jax.Array]


# -- one array -------------------------------------------------------------------------


def magnitude_mask(
    x: Array, pattern: Pattern, *, axis: int = 0, kept: Any = None
) -> jax.Array:
    """Returns where `sparsify` would keep: bool, of the shape of `x`.

    Args:
        x: of a dtype in `sparsity.DTYPES`.
        pattern: N:M.
        axis: the contraction axis.
        kept: how many to keep of a group, a (traced) integer scalar; N without it.

    Raises:
        InvalidProgramError: as `sparsify`.
    """
    pattern = get_pattern(pattern)
    kept = pattern.kept if kept is None else kept
    ranks = magnitude_ranks(x, pattern, axis=axis)
    return ranks.astype(jnp.int32) < jnp.asarray(kept, jnp.int32)


def masked(x: jax.Array, mask: jax.Array, *, decay: float = 0.0) -> jax.Array:
    """Returns `x` where the mask is True and +0 elsewhere, with a straight-through
    gradient.

    Backward, with g the gradient of the result and without one for the mask:

        STE     g                             (decay = 0, and exactly g)
        SR-STE  g + decay (1 - mask) x        (Zhou et al., equation 9)

    The decay pulls pruned weights toward zero, so that they return less easily; the
    paper's is 2e-4. Its product and sum are those of the program around it: rounded
    apart on the emulated chip, while a host's XLA may contract them.

    Raises:
        InvalidProgramError: `mask` is not bool of the shape of `x`.
    """
    if mask.dtype != jnp.bool_ or mask.shape != x.shape:
        raise InvalidProgramError(
            f"a mask {mask.dtype}{list(mask.shape)} for an array of shape "
            f"{list(x.shape)}",
            remedy="make it with magnitude_mask(x, pattern, axis=...)",
        )
    return _masked(x, mask, decay)


def _select(x: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask, x, jnp.zeros_like(x))


_masked = jax.custom_vjp(lambda x, mask, decay: _select(x, mask), nondiff_argnums=(2,))


def _masked_forward(x: jax.Array, mask: jax.Array, decay: float) -> tuple[Any, Any]:
    return _select(x, mask), ((x, mask) if decay else None)


def _masked_backward(decay: float, residuals: Any, g: jax.Array) -> tuple[Any, None]:
    if residuals is None:
        return g, None
    x, mask = residuals
    return g + _select(x * jnp.asarray(decay, x.dtype), ~mask), None


_masked.defvjp(_masked_forward, _masked_backward)


# -- a tree of parameters --------------------------------------------------------------


def matching(regex: str, *, axis: int = 0) -> AxisOf:
    """Selects by path, with one contraction axis: `matching("kernel")` for Flax.

    Args:
        regex: searched for in "layers/0/kernel".
        axis: the contraction axis; Flax keeps kernels as [inputs, outputs].
    """
    return lambda path, _: axis if re.search(regex, path) else None


def magnitude_masks(
    params: Any, pattern: Pattern, *, axis_of: AxisOf, kept: Any = None
) -> Any:
    """Returns a tree like `params`: the mask of each selected array, else None.

    Args:
        params: a pytree of arrays.
        pattern: N:M.
        axis_of: which arrays, and their contraction axes.
        kept: as in `magnitude_mask`.

    Raises:
        InvalidProgramError: nothing is selected, or as `sparsify`.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    paths = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in leaves]
    axes = [axis_of(path, x) for path, (_, x) in zip(paths, leaves, strict=True)]
    if all(axis is None for axis in axes):
        raise InvalidProgramError(
            "axis_of selects no parameter",
            remedy=f"select one of: {', '.join(paths) or 'none, the tree is empty'}",
        )
    masks = [
        None if axis is None else magnitude_mask(x, pattern, axis=axis, kept=kept)
        for axis, (_, x) in zip(axes, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, masks)


def masked_params(params: Any, masks: Any, *, decay: float = 0.0) -> Any:
    """Applies `masked` to every parameter that has a mask; the others pass unchanged.

    Use it inside the loss, on the dense parameters that the optimizer holds.
    """

    def one(mask: jax.Array | None, x: jax.Array) -> jax.Array:
        return x if mask is None else masked(x, mask, decay=decay)

    return jax.tree.map(one, masks, params, is_leaf=lambda mask: mask is None)


# -- schedules -------------------------------------------------------------------------


def from_scratch(pattern: Pattern) -> Schedule:
    """Keeps N from the first step on."""
    kept = get_pattern(pattern).kept
    return lambda step: jnp.full_like(jnp.asarray(step), kept, jnp.int32)


def cubic(pattern: Pattern, *, begin: int, end: int) -> Schedule:
    """Keeps M until `begin`, N from `end` on, and between them, with T = end - begin,

        N + ceil((M - N) ((end - step) / T)^3)

    which is equation 1 of Zhu and Gupta 2017, rounded to whole elements of a group:
    fast pruning first, and longer and longer pauses. Exact: the steps at which it falls
    are computed in unlimited integers when the schedule is made.

    Raises:
        InvalidProgramError: `end` is not after `begin`.
    """
    pattern = get_pattern(pattern)
    if end <= begin:
        raise InvalidProgramError(
            f"a schedule from step {begin} to step {end}",
            remedy="give an end after the begin, or use from_scratch(pattern)",
        )
    # Kept are N + j + 1 elements or more as long as more than `last[j]` steps remain.
    extra, span = pattern.group - pattern.kept, end - begin
    last = [_cube_root(j * span**3 // extra) for j in range(extra)]
    thresholds = np.array(last, np.int32)

    def kept(step: Any) -> jax.Array:
        remaining = end - jnp.asarray(step, jnp.int32)
        above = jnp.expand_dims(remaining, -1) > thresholds
        return pattern.kept + jnp.sum(above, axis=-1, dtype=jnp.int32)

    return kept


def _cube_root(n: int) -> int:
    """The largest integer whose cube is at most n."""
    root = round(n ** (1 / 3))
    while root**3 > n:
        root -= 1
    while (root + 1) ** 3 <= n:
        root += 1
    return root


# -- Optax -----------------------------------------------------------------------------


class KeepPatternState(NamedTuple):
    """Of `keep_pattern`: how many updates were done, an int32 scalar."""

    step: Any


def keep_pattern(
    pattern: Pattern, *, axis_of: AxisOf, schedule: Schedule | None = None
) -> optax.GradientTransformation:
    """Makes updated parameters obey the pattern; the last link of an `optax.chain`.

    Where an updated parameter is among the largest of its group it gets its update;
    elsewhere its update is its negative, so that it becomes 0 exactly (if it was
    finite), and may return.

    Args:
        pattern: N:M.
        axis_of: which parameters, and their contraction axes.
        schedule: kept elements after each update; `from_scratch` without it.
    """
    schedule = schedule or from_scratch(pattern)

    def init(params: Any) -> KeepPatternState:
        del params
        return KeepPatternState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: Any, params: Any = None
    ) -> tuple[Any, KeepPatternState]:
        if params is None:
            raise InvalidProgramError(
                "keep_pattern needs the parameters",
                remedy="call update(gradients, state, params)",
            )
        updated = optax.apply_updates(params, updates)
        kept = schedule(state.step)
        masks = magnitude_masks(updated, pattern, axis_of=axis_of, kept=kept)

        def one(mask: jax.Array | None, u: jax.Array, p: jax.Array) -> jax.Array:
            if mask is None:
                return u
            dtype = jnp.result_type(u, p)  # -p must stay exact
            return jnp.where(mask, u.astype(dtype), -p.astype(dtype))

        new = jax.tree.map(one, masks, updates, params, is_leaf=lambda m: m is None)
        return new, KeepPatternState(optax.safe_increment(state.step))

    return optax.GradientTransformation(init, update)
