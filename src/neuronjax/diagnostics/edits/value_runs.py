"""A run op by op that keeps every value, its op and the values that the op read."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from neuronjax.diagnostics.edits.alignment import FlatOp, FlatProgram
from neuronjax.diagnostics.faults.recorder import Witness
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.lane_errors import REPEATS
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.execution.device_sharding import join_parts
from neuronjax.ir.program import Value

#: Ops whose result has every element of the operand, moved or repeated.
_SHOWING = REPEATS | {"stablehlo.optimization_barrier"}


@dataclass(eq=False)
class RunValue:
    """A result of one execution of an op, or an argument.

    Attributes:
        op: the op; None for an argument.
        result: the index of the value among the op's results.
        iterations: the iterations of the loops around it.
        reads: the values that the op read.
        parts: the array on every device of a mesh; one array outside of a mesh.
    """

    op: FlatOp | None
    result: int
    iterations: tuple[int, ...]
    reads: tuple[RunValue, ...]
    parts: list[np.ndarray]

    @property
    def name(self) -> str:
        """Return the name of the op, "stablehlo.add"; "" for an argument."""
        return self.op.op.name if self.op else ""

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """Return a key of what the op computes: its name, the names of ops inside it,
        and its attributes that are text. Shapes do not count."""
        if self.op is None:
            return ()
        op = self.op.op
        inside = (inner.name for region in op.regions for inner in region.ops)
        words = {k: v for k, v in op.attributes.items() if isinstance(v, str)}
        return op.name, *inside, *sorted(words.items())

    @property
    def root(self) -> RunValue:
        """Return the value whose elements this value repeats or moves, or itself."""
        value = self
        while value.name in _SHOWING and value.reads:
            value = value.reads[0]
        return value

    @functools.cached_property
    def content(self) -> tuple[Any, ...]:
        """Return the type and a hash of the elements; equal for equal arrays."""
        whole = next(gathered(self.parts, self.parts[0].shape), None)
        arrays = self.parts if whole is None else [whole]
        digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
        return (len(arrays), arrays[0].shape, arrays[0].dtype, digest)

    @property
    def is_distinctive(self) -> bool:
        """Return whether a value with equal content is probably the same value. False
        for a whole number, and for an array of one repeated number."""
        array = self.parts[0]
        if array.size == 1:
            return array.dtype.kind not in "biu" and array.item() % 1 != 0
        return array.tobytes() != array.tobytes()[: array.itemsize] * array.size


def gathered(parts: Sequence[np.ndarray], shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield each array of `shape` that may have been split over devices as `parts`.

    The order of the mesh's axes is unknown, so every order is tried; devices that would
    hold the same part must have equal bits."""
    local, devices = parts[0].shape, len(parts)
    if len(local) != len(shape) or any(n % (k or 1) for n, k in zip(shape, local)):
        return
    ratios = [n // (k or 1) or 1 for n, k in zip(shape, local)]
    strides = [
        [s for s in range(1, devices + 1) if devices % (s * r) == 0] if r > 1 else [1]
        for r in ratios
    ]
    for steps in product(*strides):
        pieces: dict[tuple[int, ...], np.ndarray] = {}
        for n, part in enumerate(parts):
            place = tuple(n // s % r for s, r in zip(steps, ratios, strict=True))
            first = pieces.setdefault(place, part)
            if first is not part and first.tobytes() != part.tobytes():
                break
        else:
            order = sorted(pieces)
            if len(order) == prod(ratios):
                yield join_parts([pieces[place] for place in order], order[-1])


class Beside(NamedTuple):
    """Two values compared.

    Attributes:
        errors: the errors of all parts, added up.
        before, after: both arrays, gathered from the devices; where both are split
            alike, the parts on the first device on which they differ.
        device: number of this device; None outside of a mesh, or if parts are gathered.
    """

    errors: Errors
    before: np.ndarray
    after: np.ndarray
    device: int | None = None


def values_beside(before: RunValue, after: RunValue) -> Beside | None:
    """Return the comparison of two values, or None if their shapes differ even after
    the parts of devices are gathered."""
    left, right = before.parts, after.parts
    if left[0].shape == right[0].shape and len(left) == len(right):
        each = [errors_of(b, a) for a, b in zip(left, right, strict=True)]
        n = next((n for n, e in enumerate(each) if e.differing), 0)
        device = None if len(left) == 1 else n
        return Beside(sum(each, Errors()), left[n], right[n], device)
    shape = (left if len(left) < len(right) else right)[0].shape
    pairs = product(gathered(left, shape), gathered(right, shape))
    candidates = [Beside(errors_of(b, a), a, b) for a, b in pairs]
    return min(candidates, key=lambda beside: beside.errors.differing, default=None)


@dataclass(kw_only=True)
class ProgramRun(Witness):
    """An observer that keeps every value of a run, in the order of execution."""

    program: FlatProgram
    values: list[RunValue] = field(default_factory=list)
    hears_every_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._ops = {o.path: o for o in self.program.ops}
        self._made: dict[tuple[OpPath, tuple[int, ...]], list[RunValue]] = {}
        # Memory of an array -> the array, which is kept alive, and its value.
        self._holders: dict[Hashable, tuple[np.ndarray, RunValue]] = {}

    @classmethod
    def of(cls, side: Side, program: FlatProgram, arguments: Sequence[Any]) -> Self:
        run = cls(program=program)
        _GatheringWalk(side, run).run(arguments)
        return run

    def value(self, array: np.ndarray) -> RunValue:
        """Return the value of an array; a new argument if no op has made it."""
        if _at(array) not in self._holders:
            self.hold(array, RunValue(None, 0, (), (), [array]))
        return self._holders[_at(array)][1]

    def hold(self, array: np.ndarray, value: RunValue) -> None:
        """Record that `array` is `value`, or a device's part of it."""
        self._holders[_at(array)] = (array, value)

    def saw(
        self,
        path: OpPath,
        iterations: tuple[int, ...],
        operands: Mapping[Value, Seen],
        results: Sequence[Seen],
        own: float,
        *,
        repeats: bool = False,
        device: int = 0,
    ) -> None:
        known = self._made.get((path, iterations))
        if known is None:
            reads = tuple(self.value(x.actual) for x in operands.values())
            known = self._made[path, iterations] = [
                RunValue(self._ops[path], n, iterations, reads, [])
                for n in range(len(results))
            ]
            self.values += known
        for value, x in zip(known, results, strict=True):
            value.parts.append(x.actual)
            self.hold(x.actual, value)


def _at(array: np.ndarray) -> Hashable:
    """Return a key that is equal for views of the same array in memory."""
    return array.ctypes.data, array.shape, array.dtype


class _GatheringWalk(ParallelWalk):
    """A walk that tracks values as they are split over a mesh and joined again."""

    def __init__(self, side: Side, run: ProgramRun) -> None:
        # Both sides are the same, so the walk has no errors to report.
        super().__init__(side, side, lambda *_: None, isolates=False, witness=run)
        self._run = run

    def cut(self, value: Any, part: tuple[slice, ...]) -> Any:
        piece = super().cut(value, part)
        self._run.hold(piece, self._run.value(np.asarray(value)))
        return piece

    def joined(
        self, values: Sequence[Any], join: Callable[[Sequence[Any]], np.ndarray]
    ) -> Any:
        whole = super().joined(values, join)
        self._run.hold(whole, self._run.value(np.asarray(values[0])))
        return whole
