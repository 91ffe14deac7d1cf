"""The launch grid: `program_id`, `num_programs`, `program_ndim`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod

import numpy as np

from neuronjax.errors import user_line
from neuronjax.nki import trace as tracing


class GridWarning(UserWarning):
    """A kernel that asks for its program of the grid was launched without one."""


def program_id(axis: int = 0) -> int:
    """Index of this program along an axis of the grid; 0 without a grid."""
    trace = tracing.current()
    if not trace.grid:
        warnings.warn(
            f"program_id is 0 without a launch grid, at {user_line()}: only one "
            "program runs. Launch kernel[4](...), or judge with --grid 4",
            GridWarning,
            stacklevel=2,
        )
        return 0
    return int(np.unravel_index(trace.program, trace.grid)[axis])


def num_programs(axes: int | Sequence[int] | None = None) -> int:
    """Programs along the axes, by default (and without a grid) all of them."""
    grid = tracing.current().grid
    if not grid:
        return 1
    if axes is None:
        return prod(grid)
    chosen = [axes] if isinstance(axes, int) else axes
    return prod(grid[a] for a in chosen)


def program_ndim() -> int:
    """Dimensions of the grid, 0 without one."""
    return len(tracing.current().grid)
