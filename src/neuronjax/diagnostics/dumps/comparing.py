"""A check whether saved tensors are within the error bounds of a program's values.

The program runs on values with error bounds. Each saved tensor is compared with the
bounds of its value and then replaces the value, so later values are computed from the
device's own numbers. The first tensor outside its bounds therefore points to the ops
between this tensor and the saved tensors from which it is computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.diagnostics.dumps.dump_result import DumpedTensor
from neuronjax.diagnostics.dumps.matching import Key, Match
from neuronjax.diagnostics.legal.held import Held, drawn, half_steps
from neuronjax.diagnostics.legal.results import LegalOutput, legal_output
from neuronjax.diagnostics.legal.walk import LegalWalk, Made
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.drawn import Draw, sharpened
from neuronjax.diagnostics.tolerance.model import ErrorModel, roundoff
from neuronjax.diagnostics.tolerance.tracked import exact
from neuronjax.ir.program import CALLEES, Op, Program, Value
from neuronjax.ir.value_sources import ValueSources
from neuronjax.numerics.float_format import FORMATS
from neuronjax.report.places import OpPlace

#: The tensors and arguments from which a value is computed, and the ops in between.
_Origin = tuple[tuple[str, ...], tuple[OpPlace, ...]]


@dataclass(frozen=True)
class _Waypoint:
    """A match that the walk has reached, and the legal values of its tensor."""

    match: Match
    output: LegalOutput
    array: np.ndarray
    since: tuple[str, ...]
    ops: tuple[OpPlace, ...]


@dataclass
class DumpWalk:
    """A run of a program whose values are compared with the tensors of a dump. `side`
    is the lowered program; `samples` is the argument of `nj.tolerance`."""

    program: Program
    side: Side
    model: ErrorModel
    matches: Sequence[Match]
    samples: int | None = None

    def run(self, arguments: Sequence[Any]) -> list[DumpedTensor]:
        """Return the tensors in the order of execution, each with its check."""
        self._by_key: dict[Key, Match] = {m.value.key: m for m in self.matches}
        self._points: dict[Key, _Waypoint] = {}
        self._graph = ValueSources(self.program)
        self._tensors = {value: m.tensor for (_, value), m in self._by_key.items()}
        values = self.program.entry.body.arguments
        self._arguments = dict(zip(values, self.program.argument_names, strict=True))
        entered = []
        for value, array in zip(values, map(np.asarray, arguments), strict=True):
            match = self._by_key.get(((), value))
            if match is not None:
                held = exact(array, self.model) if is_float(array.dtype) else array
                array = self._noted(match, Held(held, array.shape), ((), ()))
            entered.append(array)

        def noted(key: Key, held: Held) -> Held:
            return self._noted(self._by_key[key], held, self._behind(key))

        LegalWalk(self.side, self.model, self._hearing(noted)).run(entered)

        def sampled(draw: Draw) -> Iterable[tuple[Key, np.ndarray]]:
            saved_values: dict[Key, np.ndarray] = {}

            def kept(key: Key, held: Held) -> Held:
                point = self._points[key]
                held = with_storage(held, point.array, point.output.dtype, self.model)
                saved_values[key] = drawn(held, True, draw).values
                return self._device(point)

            LegalWalk(self.side, self.model, self._hearing(kept), draw).run(entered)
            return saved_values.items()

        bounds = {key: point.output.tolerance for key, point in self._points.items()}
        bounds = sharpened(bounds, sampled, self.samples, self.model.failure)
        return [
            DumpedTensor(
                tensor=point.match.tensor,
                name=point.match.value.names[0],
                how=point.match.how,
                place=point.match.value.path and _place(point.match.value.path),
                checked=dataclasses.replace(point.output, tolerance=bounds[key]).check(
                    point.array
                ),
                since=point.since,
                ops=point.ops,
            )
            for key, point in self._points.items()
        ]

    def _hearing(self, take: Callable[[Key, Held], Held]) -> Made:
        """Return a function that replaces matched values by results of `take`."""

        def made(
            path: OpPath, iterations: tuple[int, ...], found: Mapping[Value, Held]
        ) -> Mapping[Value, Held]:
            # Values in loops are computed many times, so no single tensor matches them.
            return {
                value: take((path.calls, value), held)
                for value, held in found.items()
                if not iterations and (path.calls, value) in self._by_key
            }

        return made

    def _behind(self, key: Key) -> _Origin:
        """Return the nearest saved tensors and arguments on which the value `key`
        depends, and the computing ops in between, in program order."""
        _, value = key
        since: dict[str, None] = {}
        ops: dict[Op, int] = {}
        inside = self._graph.behind(
            [value], lambda v, _: v is value or v not in self._tensors
        )
        for inner in inside:
            if inner is not value and inner in self._tensors:
                since[self._tensors[inner]] = None
            elif inner in self._arguments:
                since[self._arguments[inner]] = None
            elif (maker := self._graph.makers.get(inner)) is not None:
                ops.setdefault(maker, inner.number)
        passing = MOVING | {*CALLEES, "sdy.manual_computation"}
        ordered = sorted(ops, key=lambda op: ops[op])
        places = (_place(OpPath((), op)) for op in ordered if op.name not in passing)
        return tuple(since), tuple(places)

    def _noted(self, match: Match, held: Held, behind: _Origin) -> Held:
        """Record the legal values and origin of a match; return the saved tensor."""
        dtype = match.value.value.type.dtype
        array = as_declared(match.array, dtype)
        held = with_storage(held, array, dtype, self.model)
        output = legal_output(held, match.tensor, dtype, self.model)
        self._points[match.value.key] = point = _Waypoint(match, output, array, *behind)
        return self._device(point)

    def _device(self, point: _Waypoint) -> Held:
        """Return the values that the device saved, with which the walk continues."""
        array, dtype = point.array, point.match.value.value.type.dtype
        if not is_float(dtype):
            return Held(array.astype(dtype), array.shape)
        plain = Held(exact(array.astype(np.float64), self.model), array.shape)
        return with_storage(plain, array, dtype, self.model)


def as_declared(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a saved array, as `dtype` if NumPy read an unknown dtype as raw bytes."""
    if array.dtype.kind != "V" or array.dtype.name in FORMATS:
        return array
    if array.dtype.itemsize == dtype.itemsize:
        return np.ascontiguousarray(array).view(dtype)
    return array


def with_storage(
    held: Held, array: np.ndarray, dtype: np.dtype, model: ErrorModel
) -> Held:
    """Return `held`, with the error of rounding to the format of `array` added if that
    format is coarser than `dtype`."""
    stored = array.dtype.name
    if not {stored, dtype.name} <= FORMATS.keys():
        return held
    if roundoff(stored).unit <= roundoff(dtype.name).unit:
        return held
    x = held.tracked(model)
    before = held.bound(model)
    size = np.abs(x.value).astype(np.float32) + before
    with np.errstate(all="ignore"):
        half = half_steps(size, roundoff(stored)).astype(np.float32)
    half = np.where(np.isfinite(size), half, np.float32(0.0))
    return Held(x.wider(half), held.shape, before + half)


def _place(path: OpPath) -> OpPlace:
    return OpPlace(path.op.name.rpartition(".")[2], path.location.label, path.source)
