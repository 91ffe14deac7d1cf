"""The launch grid: `program_id`, `num_programs`, `program_ndim`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod

import numpy as np

from neuronjax.errors import user_line
from neuronjax.nki import trace as tracing

GRID_REMEDY = "launch kernel[4](...), or run neuronjax judge with --grid 4"
# Keys of the trace's notes that `wants_grid` reads.
_ASKED_WHICH, _ASKED_HOW_MANY = "asked for its program", "asked for their number"


class GridWarning(UserWarning):
    """A warning that a kernel without a grid reads its program id, but never the number
    of programs, so it seems to need a grid."""


def program_id(axis: int = 0) -> int:
    """Return this program's index along an axis of the grid; 0 without a grid."""
    trace = tracing.current()
    if not trace.grid:
        trace.notes.setdefault(_ASKED_WHICH, user_line())
        return 0
    return int(np.unravel_index(trace.program, trace.grid)[axis])


def num_programs(axes: int | Sequence[int] | None = None) -> int:
    """Return the number of programs along the axes, by default along all."""
    grid = _grid()
    if not grid:
        return 1
    if axes is None:
        return prod(grid)
    chosen = [axes] if isinstance(axes, int) else axes
    return prod(grid[a] for a in chosen)


def program_ndim() -> int:
    """Return the number of dimensions of the grid, 0 without a grid."""
    return len(_grid())


def _grid() -> tuple[int, ...]:
    trace = tracing.current()
    trace.notes[_ASKED_HOW_MANY] = True
    return trace.grid


def wants_grid(trace: tracing.Trace) -> str:
    """Return the line for which a `GridWarning` is given, or ""."""
    line = trace.notes.get(_ASKED_WHICH)
    if not line or _ASKED_HOW_MANY in trace.notes:
        return ""
    what = f"program_id is 0 without a launch grid, at {line}: only one program runs"
    warnings.warn(f"{what}: {GRID_REMEDY}", GridWarning, stacklevel=2)
    return str(line)
