"""Values that are computed when they are used; the computation depends on the use."""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.isa import nc_matmul
from neuronjax.nki.isa.assignment import assign
from neuronjax.nki.isa.constants import matmul_perf_mode
from neuronjax.nki.language.arithmetic import apply
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.legacy.masks import Box
from neuronjax.nki.legacy.tiles import Tile, alike
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor


class Product(Tile):
    """The value of `nisa.nc_matmul(...)`: `+=` adds it to PSUM; any other use makes a
    new tile.

    Args:
        flags: arguments of `isa.nc_matmul`.
        skipped: whether a mask excludes the instruction, which then writes nothing.
        columns: the box of the columns that a mask selects, or None; `moving` contains
            only these columns.
    """

    def __init__(
        self,
        stationary: NkiTensor,
        moving: NkiTensor,
        flags: dict[str, Any],
        skipped: bool = False,
        columns: Box | None = None,
    ) -> None:
        self.grid, self._skipped, self._columns = None, skipped, columns
        self._operands, self._flags = (stationary, moving), flags
        self._made: NkiTensor | None = None

    @property
    def _dtype(self) -> str:
        moved = self._flags.get("is_transpose")
        return self._operands[0].dtype if moved else "float32"

    @property
    def tensor(self) -> NkiTensor:  # type: ignore[override]
        """The product in PSUM, computed at the first access."""
        if self._made is None:
            stationary, moving = self._operands
            shape = _product_shape(stationary, moving, self._flags)
            if self._columns is not None:
                start, stop = self._columns.starts[1], self._columns.stops[1]
                shape = (shape[0], self._columns.sizes[1])
                self.box = Box((0, start), (shape[0], stop), shape)
            self._made = ndarray(shape, self._dtype, "psum")
            if self._skipped:
                zeros = (0,) * len(shape)
                self.box = Box(zeros, zeros, shape)
                return self._made
            self._write(self._made, accumulate=False)
        return self._made

    def _write(self, target: NkiTensor, **how: Any) -> None:
        if self._columns is not None:
            target = target.slice(1, self._columns.starts[1], self._columns.stops[1])
        nc_matmul(target, *self._operands, **how, **self._flags)

    def added_to(self, target: NkiTensor) -> bool:
        """Add the product to a tile and return True; return False if the tile is not in
        PSUM or the product was computed before."""
        return self._written(target, target.storage.memory == "psum")

    def into(self, target: NkiTensor) -> bool:
        """Write the product to a tile of its dtype, if it was not computed before."""
        fits = target.storage.memory == "psum" and target.dtype == self._dtype
        return self._written(target, fits, accumulate=False)

    def _written(self, target: NkiTensor, fits: bool, **how: Any) -> bool:
        if not self._skipped:
            if not fits or self._made is not None:
                return False
            self._write(target, **how)
        return True


def _product_shape(
    stationary: NkiTensor, moving: NkiTensor, flags: dict[str, Any]
) -> tuple[int, ...]:
    rows = stationary.size // stationary.shape[0]
    if flags.get("perf_mode") == matmul_perf_mode.double_row:
        return (rows // 2, *moving.shape[2:])
    return (rows, *moving.shape[1:])


class LoopReduction(Tile):
    """The value of `nl.loop_reduce(x, op, ...)`: an assignment reduces x with the
    values of the target, any other use with those of earlier iterations.

    Args:
        value: the value of this iteration.
        skipped: whether a mask excludes the iteration.
        before: the reduction in the iteration before, or None in the first one.
    """

    def __init__(
        self,
        value: NkiTensor,
        op: str,
        skipped: bool = False,
        before: LoopReduction | None = None,
    ) -> None:
        self.grid, self._skipped, self._before = None, skipped, before
        self._value, self._op = value, op
        self._made: NkiTensor | None = None

    @property
    def tensor(self) -> NkiTensor:  # type: ignore[override]
        """The reduction of the iterations so far, computed at the first access."""
        if self._made is None:
            turns = [t for t in self._turns() if not t._skipped]
            if not turns:
                refuse(
                    "nl.loop_reduce",
                    "a reduction without a value: a mask excludes every iteration",
                    "use a mask that includes at least one iteration, or assign the "
                    "reduction to an initialised tile",
                )
            self._made = ndarray(self._value.shape, self._value.dtype)
            for turn in turns:
                turn.into(self._made)
        return self._made

    def _turns(self) -> list[LoopReduction]:
        """Return the iterations so far, the first one first."""
        turns: list[LoopReduction] = []
        turn: LoopReduction | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn._before
        return turns[::-1]

    def into(self, target: NkiTensor) -> bool:
        """Assign target <op> value to the target, or only the value if it is unwritten.

        This is how iterations of `affine_range` may depend on one another."""
        if self._skipped:
            return True
        value = alike(self._value, target)
        trace = tracing.current()
        loops, trace.loops = trace.loops, ()
        try:
            if trace.has_written(target.storage):
                value = apply(self._op, target, value, target.dtype)
            assign(target, value)
        finally:
            trace.loops = loops
        return True
