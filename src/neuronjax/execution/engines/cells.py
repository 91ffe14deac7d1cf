"""Operands of the systolic array by the cells that hold their rows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import InternalError
from neuronjax.execution.engines.array_fold import Matrix

Index = int | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cells:
    """Operands by the array's cell that holds them, in the memory order they have.

    Attributes:
        array: float32, [batch, J, cells, free] if `rows_first`, else
            [batch, cells, J, free].
        rows_first: which.
    """

    array: jax.Array
    rows_first: bool = dataclasses.field(metadata=dict(static=True))

    @property
    def batch(self) -> int:
        return self.array.shape[0]

    @property
    def cells(self) -> int:
        return self.array.shape[2 if self.rows_first else 1]

    @property
    def rows(self) -> int:
        """J, the rows in a cell."""
        return self.array.shape[1 if self.rows_first else 2]

    @property
    def free(self) -> int:
        return self.array.shape[3]

    def part(self, start: tuple[Index, ...], size: tuple[int, ...]) -> Cells:
        """Those from (batch, cell, free) on, as many as `size` says."""
        at = 1 if self.rows_first else 2
        starts, sizes = list(map(jnp.int32, start)), list(size)
        starts.insert(at, jnp.int32(0))
        sizes.insert(at, self.rows)
        return Cells(lax.dynamic_slice(self.array, starts, sizes), self.rows_first)

    def row(self, cell: int, j: int) -> jax.Array:
        """[batch, free], row j of a cell."""
        return self.array[:, j, cell] if self.rows_first else self.array[:, cell, j]


def paired(matrix: Matrix) -> Cells:
    """Double-row: cell p of a tile of K rows holds rows p and p + K/2."""
    return _cells(matrix, (2, -1), rows_first=True)


def quads(matrix: Matrix) -> Cells:
    """MX: cell p holds rows 4p .. 4p+3."""
    return _cells(matrix, (-1, 4), rows_first=False)


def singles(matrix: Matrix) -> Cells:
    """A row in each."""
    return _cells(matrix, (-1, 1), rows_first=False)


def _cells(matrix: Matrix, split: tuple[int, int], rows_first: bool) -> Cells:
    rows = split[0] if rows_first else split[1]
    if matrix.k % rows:
        raise InternalError(
            f"a K tile of {matrix.k} does not fill cells of {rows} rows; pad it with "
            "zeros to a multiple"
        )
    array = matrix.array if matrix.k_first else jnp.swapaxes(matrix.array, 1, 2)
    shape = (matrix.batch, *split, matrix.free)
    return Cells(jnp.reshape(array, shape), rows_first)
