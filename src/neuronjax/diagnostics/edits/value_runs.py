"""Runs a program op by op, and keeps every value: what made it, and of which values."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from neuronjax.diagnostics.edits.alignment import FlatOp, FlatProgram
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.diagnostics.faults.evidence import Seen
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.op_errors import Errors, errors_of
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.execution.device_sharding import join_parts
from neuronjax.ir.program import Op, Value

#: Ops that show every element of their operand again, none left out.
_SHOWING = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "optimization_barrier", "reshape", "transpose")
)


@dataclass(eq=False)
class RunValue:
    """What one execution of an op made, or what no op made: an argument.

    Attributes:
        op: None of an argument.
        result: which of the op's results it is.
        iterations: of the loops around it.
        reads: the values that the op read.
        parts: the array of every device of a mesh; of one outside of a mesh.
    """

    op: FlatOp | None
    result: int
    iterations: tuple[int, ...]
    reads: tuple[RunValue, ...]
    parts: list[np.ndarray]

    @property
    def name(self) -> str:
        """Of the op, "stablehlo.add"; "" of an argument."""
        return self.op.op.name if self.op else ""

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """What is equal for ops that do the same to operands of any shape."""
        if self.op is None:
            return ()
        op = self.op.op
        inside = (inner.name for region in op.regions for inner in region.ops)
        words = {k: v for k, v in op.attributes.items() if isinstance(v, str)}
        return op.name, *inside, *sorted(words.items())

    @property
    def root(self) -> RunValue:
        """The value whose elements this one shows, in another order or shape."""
        value = self
        while value.name in _SHOWING and value.reads:
            value = value.reads[0]
        return value

    @property
    def is_constant(self) -> bool:
        """Whether the value stands in the text of the program."""
        return self.root.name == CONSTANT

    @functools.cached_property
    def content(self) -> tuple[Any, ...]:
        """The type of the value and a hash of its elements; equal for equal arrays."""
        [whole] = [*gathered(self.parts, self.parts[0].shape)][:1] or [None]
        arrays = self.parts if whole is None else [whole]
        digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
        return (len(arrays), arrays[0].shape, arrays[0].dtype, digest)

    @property
    def tells(self) -> bool:
        """Whether another value is not equal to it by chance: it is no counter and no
        constant."""
        array = self.parts[0]
        if array.size == 1:
            return array.dtype.kind not in "biu" and array.item() % 1 != 0
        return array.tobytes() != array.tobytes()[: array.itemsize] * array.size


def gathered(parts: Sequence[np.ndarray], shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the arrays of a shape of which devices may hold such parts.

    Devices with the same part hold the same bits. Neighbours on an axis of the mesh are
    a stride of devices apart."""
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
    """A value beside another.

    Attributes:
        errors: of all parts.
        before, after: both arrays, the parts of devices gathered; where both have the
            same parts, those of the first device on which they differ.
        device: this one; None where the parts are gathered.
    """

    errors: Errors
    before: np.ndarray
    after: np.ndarray
    device: int | None = None


def values_beside(before: RunValue, after: RunValue) -> Beside | None:
    """Return a value beside another; None where they have different shapes, also after
    the parts of devices are gathered."""
    left, right = before.parts, after.parts
    if left[0].shape == right[0].shape and len(left) == len(right):
        each = [errors_of(b, a) for a, b in zip(left, right, strict=True)]
        n = next((n for n, e in enumerate(each) if e.differing), 0)
        device = None if len(left) == 1 else n
        return Beside(sum(each, Errors()), left[n], right[n], device)
    shape = (left if len(left) < len(right) else right)[0].shape
    pairs = product(gathered(left, shape), gathered(right, shape))
    found = [Beside(errors_of(b, a), a, b) for a, b in pairs]
    return min(found, key=lambda beside: beside.errors.differing, default=None)


@dataclass
class ProgramRun:
    """A witness that keeps every value of a run.

    Attributes:
        values: in the order in which they were made.
        results: the values that main returns.
    """

    program: FlatProgram
    values: list[RunValue] = field(default_factory=list)
    results: list[RunValue] = field(default_factory=list)
    contractions: Mapping[Op, Cast] = field(default_factory=dict)
    hears_every_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._ops = {o.path: o for o in self.program.ops}
        self._made: dict[tuple[OpPath, tuple[int, ...]], list[RunValue]] = {}
        # By the place of an array in memory, which is kept as long as this is.
        self._holders: dict[Hashable, tuple[np.ndarray, RunValue]] = {}

    @classmethod
    def of(cls, side: Side, program: FlatProgram, arguments: Sequence[Any]) -> Any:
        """Run a lowered program on arguments."""
        run = cls(program)
        _GatheringWalk(side, run).run(arguments)
        return run

    def value(self, array: np.ndarray) -> RunValue:
        """Return the value that an array is, an argument where no op has made it."""
        if _at(array) not in self._holders:
            self.hold(array, RunValue(None, 0, (), (), [array]))
        return self._holders[_at(array)][1]

    def hold(self, array: np.ndarray, value: RunValue) -> None:
        """Note which value an array is, or is a part of."""
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
        """After every op on every device."""
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

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Every device is heard."""

    def ended(self, results: Sequence[Seen]) -> None:
        """Keep what main returns."""
        self.arrays = [x.actual for x in results]
        self.results = [self.value(x) for x in self.arrays]


def _at(array: np.ndarray) -> Hashable:
    """Return what two views of one array in memory have in common."""
    return array.ctypes.data, array.shape, array.dtype


class _GatheringWalk(ParallelWalk):
    """A walk that follows values into a mesh, in parts, and out of it."""

    def __init__(self, side: Side, run: ProgramRun) -> None:
        # A walk of one program beside itself has no errors to hear of.
        super().__init__(side, side, lambda *_: None, isolates=False, witness=run)
        self._run = run

    def cut(self, value: Any, part: tuple[slice, ...]) -> Any:
        """Return a part of an array, which is known as the whole."""
        found = super().cut(value, part)
        self._run.hold(found, self._run.value(np.asarray(value)))
        return found

    def joined(
        self, values: Sequence[Any], join: Callable[[Sequence[Any]], np.ndarray]
    ) -> Any:
        """Return one array, which is known as its parts are."""
        found = super().joined(values, join)
        self._run.hold(found, self._run.value(np.asarray(values[0])))
        return found
