"""What a walk saw of every op, for the search for faults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from neuronjax.diagnostics.faults.evidence import (
    OpEvidence,
    absorbed,
    cut_off,
    flattened,
    is_tie,
    narrows,
    rounds,
)
from neuronjax.diagnostics.faults.judgement import excused, is_far, loses_elements
from neuronjax.diagnostics.faults.masks import unmasked
from neuronjax.diagnostics.faults.shares import Seen, Share, repeated, share_of, wide
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.faults.whole_numbers import (
    misread,
    rounds_whole,
    unheld,
    wrapped,
    wrapped_over_devices,
)
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.execution.probes.signs import MOSTLY, Finiteness, makes_nonfinite
from neuronjax.ir.program import Op, Value


class Witness(Protocol):
    """Looks at the numbers of a walk.

    Attributes:
        contractions: to what a policy casts operands, by op.
        hears_every_device: whether it is told of devices that hold the same arrays.
    """

    contractions: Mapping[Op, Cast]
    hears_every_device: ClassVar[bool]

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
        """After every op that both runs execute; one that `repeats` has every number of
        its operand equally often. Of a mesh every device is seen that holds numbers of
        its own."""

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Hear that a device holds what an op made on another."""

    def ended(self, results: Sequence[Seen]) -> None:
        """After the last op, with the results of main."""


_ARITHMETIC = frozenset(f"stablehlo.{name}" for name in ("add", "subtract", "multiply"))
#: Share of an error that is a part of it.
PART = 0.25
#: The number of an execution, its iterations, and what was seen.
Moment = tuple[int, tuple[int, ...], OpEvidence]


@dataclass
class OpTrace:
    """All executions of an op.

    Attributes:
        worst: the one with the largest error of its result.
        cast: of a contraction, to what a policy casts operands.
        first: the number, the iterations and the evidence of the first one that is
            farther off than it should be; None where none is.
        made_nonfinite: the same of the first that makes an Inf or NaN of
            finite numbers.
        bounding: of a bound, the one that takes most off each operand.
        emptiest: the one with most zeros.
        flattened: share of numbers that a turn rounds by all of themselves, at most.
        own, absorbed, zeros, beneath: the largest of any.
        vanished: the smallest share that underflows to zero of any.
        is_broken: whether any result has an Inf or NaN.
        rounded_away: the largest error of its own, as a root mean square.
        left_out: that of what sums left out, added up.
        left_behind: the same, each beside the sum that it is missing in.
        wrapped, misread: of all.
        rounds_whole: of any.
    """

    path: OpPath
    worst: OpEvidence
    cast: Cast | None = None
    first: Moment | None = None
    made_nonfinite: Moment | None = None
    bounding: dict[Value, OpEvidence] = field(default_factory=dict)
    emptiest: OpEvidence = field(init=False)
    own: float = 0.0
    absorbed: tuple[float, float] = (0.0, 0.0)
    rounded_away: float = 0.0
    left_out: float = 0.0
    left_behind: float = 0.0
    zeros: float = 0.0
    beneath: float = 0.0
    vanished: float = 1.0
    is_broken: bool = False
    wrapped: int = 0
    misread: int = 0
    rounds_whole: bool = False
    flattened: float = 0.0

    def __post_init__(self) -> None:
        self.emptiest = self.worst

    def add(self, evidence: OpEvidence) -> None:
        """One more."""
        if _badness(evidence.result) > _badness(self.worst.result):
            self.worst = evidence
        for value, lost in evidence.cut_off.items():
            known = self.bounding.setdefault(value, evidence)
            if lost > known.cut_off[value]:
                self.bounding[value] = evidence
        if evidence.result.nothing > self.emptiest.result.nothing:
            self.emptiest = evidence
        self.own = max(self.own, evidence.own)
        if evidence.absorbed[0] > self.absorbed[0]:
            self.absorbed = evidence.absorbed
        if math.isfinite(evidence.own):
            away = evidence.own * evidence.result.norm
            self.rounded_away = max(self.rounded_away, away)
        _, left_out = evidence.absorbed
        self.left_out += left_out
        self.left_behind += left_out / (evidence.result.norm or math.inf)
        self.zeros = max(self.zeros, evidence.result.zeros)
        self.beneath = max(self.beneath, evidence.result.beneath)
        vanished = min(evidence.result.zeros, evidence.result.beneath)
        self.vanished = min(self.vanished, vanished)
        self.is_broken |= evidence.result.nonfinite > 0
        self.wrapped += evidence.wrapped
        self.misread += evidence.misread
        self.rounds_whole |= evidence.rounds_whole

    @property
    def absorbs(self) -> bool:
        """Whether sums leave out an addend, and it is a part of what they round away; a
        series that has converged leaves out its last terms, and is none the worse."""
        return self.absorbed[0] > MOSTLY and self.left_out >= PART * self.rounded_away


def _makes_nonfinite(evidence: OpEvidence) -> bool:
    """An Inf of finite numbers, or a NaN of numbers."""
    operands = [_finiteness(x) for x in evidence.operands.values()]
    return bool(operands) and any(
        makes_nonfinite(_finiteness(evidence.result), operands)
    )


def _finiteness(share: Share) -> Finiteness:
    return Finiteness(np.bool_(share.nonfinite > 0), np.bool_(share.nan > 0))


def _badness(share: Share) -> tuple[float, float]:
    return share.error, share.lost


@dataclass
class Recorder:
    """The traces of a run, and its results.

    Attributes:
        units: of every value, the coarsest format on the way to it.
        contractions: as at `Witness`.
        masked: values in which numbers may stand for infinity.
        traces: in the order of first execution.
        results: of main.
    """

    units: Mapping[Value, float]
    contractions: Mapping[Op, Cast]
    masked: frozenset[Value] = frozenset()
    hears_every_device: ClassVar[bool] = False
    traces: dict[OpPath, OpTrace] = field(default_factory=dict)
    results: tuple[Seen, ...] = ()
    _count: int = 0
    # Of every device, as values are.
    _shares: dict[int, dict[Value, Share]] = field(default_factory=dict)
    # What a cast in a loop made last.
    _states: dict[tuple[int, OpPath], Seen] = field(default_factory=dict)
    # The turn at hand of an op, and what each device did in it.
    _turn: tuple[OpPath, tuple[int, ...]] | None = None
    _devices: list[tuple[Seen, Seen]] = field(default_factory=list)

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
        """Adds an execution."""
        if not results:
            return
        self._count += 1
        known = self._shares.setdefault(device, {})
        state = self._states.get((device, path))
        if iterations and narrows(path.op):
            self._states[device, path] = results[0]
        evidence = self._evidence(
            path.op, operands, results, own, repeats, known, state
        )
        trace = self.traces.get(path)
        if trace is None:
            cast = self.contractions.get(path.op)
            trace = self.traces[path] = OpTrace(path, evidence, cast)
        trace.add(evidence)
        if self._turn != (path, iterations):
            self._end_turn()
            self._turn = path, iterations
        if path.op.name == "stablehlo.all_reduce" or rounds(path.op):
            self._devices.append((next(iter(operands.values())), results[0]))
        moment = (self._count, iterations, evidence)
        if trace.first is None and self._is_off(path.op, evidence):
            trace.first = moment
        if trace.made_nonfinite is None and _makes_nonfinite(evidence):
            trace.made_nonfinite = moment

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Takes over the figures of an op's results."""
        known = self._shares.get(done, {})
        own = {v: known[v] for v in op.results if v in known}
        self._shares.setdefault(device, {}).update(own)

    def ended(self, results: Sequence[Seen]) -> None:
        """Keeps the results."""
        self._end_turn()
        self.results = tuple(results)

    def _end_turn(self) -> None:
        """Take up what all devices did in a turn."""
        if not self._devices or self._turn is None:
            return
        operands, results = zip(*self._devices, strict=True)
        self._devices, trace = [], self.traces[self._turn[0]]
        trace.wrapped += wrapped_over_devices(trace.path.op, operands, results)
        shares = [*map(flattened, operands, results)]
        trace.flattened = max(trace.flattened, sum(shares) / len(shares))

    def unit(self, op: Op) -> float:
        """Of the coarsest format on the way to an op's results."""
        return max((self.units.get(v, 0.0) for v in op.results), default=0.0)

    def _is_off(self, op: Op, evidence: OpEvidence) -> bool:
        if evidence.wrapped:
            return True
        share = evidence.result
        if op.results[0].type.dtype.kind in "iub":
            # A choice that flips is no arithmetic, and a number made of it neither.
            amplifies = op.name in _ARITHMETIC and loses_elements(share)
            return amplifies and not any(
                map(loses_elements, evidence.operands.values())
            )
        return is_far(share, self.unit(op))

    def _share(self, value: Value, seen: Seen, unit: float) -> Share:
        share = share_of(seen, unit, excused(unit))
        if value not in self.masked:
            return share
        numbers = unmasked(seen, share)
        return share if numbers is seen else share_of(numbers, unit, excused(unit))

    def _evidence(
        self,
        op: Op,
        operands: Mapping[Value, Seen],
        results: Sequence[Seen],
        own: float,
        repeats: bool,
        known: dict[Value, Share],
        state: Seen | None,
    ) -> OpEvidence:
        unit = self.unit(op)
        read = {
            v: known[v] if v in known else self._share(v, x, unit)
            for v, x in operands.items()
        }
        if repeats:
            size = np.size(results[0].reference)
            shares = [repeated(share, size) for share in read.values()]
        else:
            pairs = zip(op.results, results, strict=True)
            shares = [self._share(v, x, unit) for v, x in pairs]
        known.update(zip(op.results, shares, strict=True))
        arrays = [operands[v] for v in op.operands if v in operands]
        own = own if math.isfinite(own) else math.inf
        cast = self.contractions.get(op)
        # Of an index and the number there, the number: a choice is no arithmetic.
        pairs = zip(op.results, shares, strict=True)
        floats = [s for v, s in pairs if v.type.dtype.kind not in "iub"]
        return OpEvidence(
            result=max(floats or shares, key=_badness),
            operands=read,
            own=own,
            absorbed=absorbed(op, arrays, results[0], state),
            wrapped=wrapped(op, arrays, results[0]),
            misread=misread(op, arrays, results[0]),
            rounds_whole=rounds_whole(op, results[0], shares[0], own)
            or (own > 0 and unheld([wide(x.reference) for x in arrays], cast)),
            cut_off=cut_off(op, operands, results[0]),
            is_tie=bool(shares[0].error) and is_tie(op, arrays, results[0]),
        )
