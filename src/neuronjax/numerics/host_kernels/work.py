"""How the work of a kernel is shared out: blocks, and the threads that take them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

#: Elements below which another thread takes longer to wake than to help.
FEW = 1 << 15
#: Elements that a thread takes at a time, about.
MANY = 1 << 14


@dataclass(frozen=True, kw_only=True)
class RowParts:
    """Rows of an array, [outer, size], each cut into parts.

    Attributes:
        each: elements of a part, the last one maybe shorter.
    """

    size: int
    parts: int
    each: int


#: The fields of a plan, in the order in which the kernel reads them.
ROW_FIELDS = tuple(field.name for field in fields(RowParts))


def words(
    blocks: int, threads: int, scratch_bytes: int, plan: Any, *more: int
) -> np.ndarray[Any, Any]:
    """Return a plan as it travels: `handler.PLAN`, the fields of a dataclass, and more.

    The caller is one of the threads, without blocks too.
    """
    helpers = max(min(threads, blocks) - 1, 0)
    own = [getattr(plan, field.name) for field in fields(plan)]
    return np.array([blocks, helpers, scratch_bytes, *own, *more], np.int64)


def element_words(blocks: int, elements: int, plan: Any, *more: int) -> np.ndarray:
    """Return the same where threads are worth waking from so many elements on."""
    return words(blocks, threads() if elements > FEW else 1, 128, plan, *more)


def by_rows(call: Callable[..., Any], again: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call of a kernel that `vmap` turns into one call with more rows.

    Args:
        call: the kernel's; all its arrays and results have rows in front.
        again: plans and calls the kernel for any number of rows.
    """
    mappable = custom_vmap(call)

    @mappable.def_vmap
    def batched(count: int, mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        stacked = [
            x if has else jnp.broadcast_to(x, (count, *x.shape))
            for x, has in zip(arrays, mapped, strict=True)
        ]
        rows = stacked[0].shape[1]
        found = again(*(x.reshape(count * rows, *x.shape[2:]) for x in stacked))
        split = jax.tree.map(lambda x: x.reshape(count, rows, *x.shape[1:]), found)
        return split, jax.tree.map(lambda _: True, found)

    return mappable


@functools.cache
def threads() -> int:
    """As many as XLA has."""
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
