"""Data of a precision search: batches that it sees, and held-out batches.

A search may find a policy that is within the tolerance only by luck on its batches. So
the result is tried on held-out batches, which the search has not seen. If the user
gives no held-out batches, they are variations of the first batch: floats change by less
than a BF16 step, so that all roundings differ. This detects luck in the roundings, but
is no substitute for other data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: The largest relative change of a float in a variation.
VARIATION = 2.0**-8
Batch = tuple[tuple, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class JudgedBatches:
    """The batches of a search: positional and keyword arguments of the function.

    Attributes:
        seen: batches of the search; a policy's error is its largest on these batches.
        held_out: batches on which only the result is tried.
        varied: whether `held_out` are variations of the first batch.
    """

    seen: tuple[Batch, ...]
    held_out: tuple[Batch, ...]
    varied: bool

    @classmethod
    def of(
        cls,
        first: Batch,
        batches: Sequence[tuple],
        holdout: Sequence[tuple],
        variations: int,
    ) -> JudgedBatches:
        """Return the batches of a search on `first` and `batches`. `holdout` is held
        out; if it is empty, `variations` variations of `first` are held out."""
        keywords = first[1]
        varied: tuple[Batch, ...] = ()
        if not holdout and any(map(_is_float, jax.tree.leaves(first))):
            varied = tuple(_varied(first, seed) for seed in range(variations))
        return cls(
            seen=(first, *((args, keywords) for args in batches)),
            held_out=varied or tuple((args, keywords) for args in holdout),
            varied=bool(varied),
        )


def _varied(batch: Batch, seed: int) -> Batch:
    draw = np.random.default_rng(seed)

    def moved(leaf: Any) -> Any:
        if not _is_float(leaf):
            return leaf
        shift = draw.uniform(-VARIATION, VARIATION, np.shape(leaf))
        return (np.asarray(leaf) * (1 + shift)).astype(leaf.dtype)

    return jax.tree.map(moved, batch)


def _is_float(leaf: Any) -> bool:
    is_array = isinstance(leaf, np.ndarray | jax.Array)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)
