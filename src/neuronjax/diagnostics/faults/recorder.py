"""A record of the errors of every op, measured in a walk: an execution op by op."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

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
from neuronjax.diagnostics.faults.judgement import (
    OF_ONE_OP,
    excused,
    is_far,
    loses_elements,
)
from neuronjax.diagnostics.faults.masks import unmasked
from neuronjax.diagnostics.faults.perturbation import is_whole
from neuronjax.diagnostics.faults.shares import Seen, Share, repeated, share_of, wide
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.diagnostics.faults.whole_numbers import (
    NOT_COUNTED,
    misread,
    outside,
    rounds_whole,
    takes,
    unheld,
    wrapped_over_devices,
)
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.execution.probes.signs import MOSTLY, Finiteness, makes_nonfinite
from neuronjax.ir.program import Op, Value


@dataclass
class Witness:
    """An observer of a walk (an execution op by op) that keeps the results of main.

    Attributes:
        contractions: for each contraction, the cast of its operands by a policy.
        results: the results of main, after the walk.
        hears_every_device: whether devices with equal arrays are observed separately.
    """

    contractions: Mapping[Op, Cast] = field(default_factory=dict)
    results: tuple[Seen, ...] = ()
    hears_every_device: ClassVar[bool] = False

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
        """Observe an op that the run and the reference have executed. `own` is the op's
        own rounding error, on the reference's operands. If `repeats`, the result has
        every number of the operand equally often. A device with the same numbers as an
        earlier device is not observed."""

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Observe that `device` has the same results of an op as the device `done`."""

    def ended(self, results: Sequence[Seen]) -> None:
        """Keep the results of main, after the last op."""
        self.results = tuple(results)


_ARITHMETIC = frozenset(f"stablehlo.{name}" for name in ("add", "subtract", "multiply"))
#: Ops whose result counts as outside the range of its type if an operand does.
_COPIES_OUTSIDE = MOVING | {"stablehlo.multiply"}
#: A contribution of at least this share of an error counts as a part of the error.
PART = 0.25
#: (Index of an execution, iterations of the loops around the op, what was observed).
Moment = tuple[int, tuple[int, ...], OpEvidence]


@dataclass
class OpTrace:
    """The execution record of an op: its worst executions, and sums over all of them.

    Attributes:
        worst: the execution with the largest error of its result.
        cast: for a contraction, the cast of its operands by a policy.
        first: the first execution whose error is too large, or None.
        made_nonfinite: the first execution that makes Inf or NaN of finite numbers.
        bounding: for each operand, the execution that cuts off most of the operand.
        emptiest: the execution with most zeros in the result.
        flattened: the mean share of numbers whose rounding error is at least their
            magnitude, over `ends` iterations.
        flattened_norm, dead_channels: the largest `norm` and `channels` of `Flattened`
            in any execution, averaged over devices.
        own, absorbed, zeros, beneath, largest: the largest value of this field of
            `OpEvidence`, or of its `result`, in any execution.
        vanished: the smallest share of numbers that underflow to zero, in any execution
            whose result is not zero in the reference.
        is_broken: whether any result has an Inf or NaN.
        rounded_away: the largest product of an execution's `own` and its result's norm.
        left_out: the sum over all executions of `OpEvidence.absorbed[1]`.
        left_behind: the same sum, with each term divided by the result's norm.
        wrapped, misread: the sum of this field of `OpEvidence` over all executions.
        executions: how often the op was executed on device 0.
        has_fractions: whether the op, after it rounded whole numbers, has other results
            too, so that the numbers were whole by chance.
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
    largest: float = 0.0
    beneath: float = 0.0
    vanished: float = 1.0
    is_broken: bool = False
    wrapped: int = 0
    misread: int = 0
    executions: int = 0
    has_rounded_whole: bool = False
    has_fractions: bool = False
    flattened: float = 0.0
    flattened_norm: float = 0.0
    dead_channels: float = 0.0
    ends: int = 0

    def __post_init__(self) -> None:
        self.emptiest = self.worst

    def add(self, evidence: OpEvidence) -> None:
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
        self.largest = max(self.largest, evidence.result.largest)
        self.beneath = max(self.beneath, evidence.result.beneath)
        if evidence.result.norm:
            vanished = min(evidence.result.zeros, evidence.result.beneath)
            self.vanished = min(self.vanished, vanished)
        self.is_broken |= evidence.result.nonfinite > 0
        self.wrapped += evidence.wrapped
        self.misread += evidence.misread
        self.has_rounded_whole |= evidence.rounds_whole

    @property
    def rounds_whole(self) -> bool:
        """Return whether the op rounds whole numbers, such as counts."""
        return self.has_rounded_whole and not self.has_fractions

    @property
    def moment(self) -> Moment | None:
        """Return the first execution with a large error or a new Inf or NaN."""
        return self.first or self.made_nonfinite

    @property
    def is_in_loop(self) -> bool:
        return self.moment is not None and bool(self.moment[1])

    @property
    def shown(self) -> OpEvidence:
        """Return what was observed at `moment`, or `worst` if `moment` is None."""
        return self.moment[2] if self.moment else self.worst

    @property
    def absorbs(self) -> bool:
        """Return whether rounding drops an addend of most sums, and these addends are
        at least `PART` of the rounding error and of the result's error. (An epsilon, or
        the last terms of a converged series, make smaller parts.)"""
        error = min(self.worst.result.error, 1.0)
        is_part = self.left_out >= PART * self.rounded_away
        is_part &= self.left_behind >= PART * error
        return self.absorbed[0] > MOSTLY and is_part


def _makes_nonfinite(evidence: OpEvidence) -> bool:
    if not evidence.result.nonfinite:
        return False
    operands = [_finiteness(x) for x in evidence.operands.values()]
    return bool(operands) and any(
        makes_nonfinite(_finiteness(evidence.result), operands)
    )


def _finiteness(share: Share) -> Finiteness:
    return Finiteness(np.bool_(share.nonfinite > 0), np.bool_(share.nan > 0))


def _badness(share: Share) -> tuple[float, float]:
    return share.error, share.lost


@dataclass(kw_only=True)
class Recorder(Witness):
    """An observer that also keeps an execution record (`OpTrace`) of every op.

    Attributes:
        units: for every value, the roundoff of the coarsest format on which it depends.
        masked: values that may have large negative numbers instead of minus infinity.
        traces: the execution records, in the order of the first executions.
        takes_outside: the selects that took an integer outside the range of its type.
    """

    units: Mapping[Value, float]
    masked: frozenset[Value] = frozenset()
    traces: dict[OpPath, OpTrace] = field(default_factory=dict)
    takes_outside: set[Op] = field(default_factory=set)
    _count: int = 0
    # Device -> op -> (its last result with integers outside their range, their mask).
    _outside: defaultdict[int, dict[Op, tuple[np.ndarray, np.ndarray]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _shares: dict[int, dict[Value, Share]] = field(default_factory=dict)
    # The last result of a cast in a loop, by device and op.
    _states: dict[tuple[int, OpPath], Seen] = field(default_factory=dict)
    # The op that is being observed, and the iterations of the loops around it.
    _turn: tuple[OpPath, tuple[int, ...]] | None = None
    # The first operand and the first result of the op in `_turn`, on each device.
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
        if not results:
            return
        self._count += 1
        known = self._shares.setdefault(device, {})
        state = self._states.get((device, path))
        if iterations and narrows(path.op):
            self._states[device, path] = results[0]
        evidence = self._evidence(
            path.op, operands, results, own, repeats, known, state, device
        )
        trace = self.traces.get(path)
        if trace is None:
            cast = self.contractions.get(path.op)
            trace = self.traces[path] = OpTrace(path, evidence, cast)
        if trace.has_rounded_whole and trace.cast is None:
            trace.has_fractions |= not is_whole(wide(results[0].reference))
        trace.add(evidence)
        trace.executions += device == 0
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
        """Copy the comparisons of an op's results from device `done` to `device`."""
        known = self._shares.get(done, {})
        own = {v: known[v] for v in op.results if v in known}
        self._shares.setdefault(device, {}).update(own)

    def ended(self, results: Sequence[Seen]) -> None:
        self._end_turn()
        super().ended(results)

    def _end_turn(self) -> None:
        """Complete `wrapped` and `flattened` of an op after its run on all devices."""
        if not self._devices or self._turn is None:
            return
        operands, results = zip(*self._devices, strict=True)
        self._devices, trace = [], self.traces[self._turn[0]]
        trace.wrapped += wrapped_over_devices(trace.path.op, operands, results)
        shares = [*map(flattened, operands, results)]
        trace.ends += 1
        numbers, size, channels = np.mean(shares, axis=0)  # of all devices
        trace.flattened += (numbers - trace.flattened) / trace.ends
        trace.flattened_norm = max(trace.flattened_norm, size)
        trace.dead_channels = max(trace.dead_channels, channels)

    def last(self, value: Value) -> Share:
        """Return the last comparison of a value with its reference, on the first device
        that computed the value."""
        return next(known[value] for known in self._shares.values() if value in known)

    def unit(self, op: Op) -> float:
        """Return the largest roundoff in `units` of the results of `op`."""
        return max((self.units.get(v, 0.0) for v in op.results), default=0.0)

    def _is_off(self, op: Op, evidence: OpEvidence) -> bool:
        if evidence.wrapped:
            return True
        share = evidence.result
        if op.results[0].type.dtype.kind in "iub":
            # A flipped choice, or its effect, is no error of arithmetic.
            loses = op.name in _ARITHMETIC and loses_elements(share)
            return loses and not any(map(loses_elements, evidence.operands.values()))
        return is_far(share, self.unit(op), OF_ONE_OP)

    def _share(self, value: Value, seen: Seen, unit: float) -> Share:
        share = share_of(seen, unit, excused(unit))
        if value not in self.masked:
            return share
        numbers = unmasked(seen, share)
        return share if numbers is seen else share_of(numbers, unit, excused(unit))

    def _wrapped(
        self, op: Op, operands: Sequence[Seen], result: Seen, device: int
    ) -> int:
        """Return the number of results outside the range of their type. Add `op` to
        `takes_outside` if it selects such results of earlier ops."""
        which, outsiders = outside(op, operands, result), self._outside[device]
        if which is NOT_COUNTED and not outsiders:
            return 0
        count, kept = int(which.sum()), [*outsiders.values()]
        if any(takes(op, operands, *known) for known in kept):
            self.takes_outside.add(op)
        if op.name in _COPIES_OUTSIDE and any(
            known.all() and np.array_equal(x.actual, numbers)
            for x in operands
            for numbers, known in kept
        ):
            which = np.ones(np.shape(result.actual), bool)
        if which.dtype == bool and which.any():
            outsiders[op] = np.asarray(result.actual), which
        return count

    def _evidence(
        self,
        op: Op,
        operands: Mapping[Value, Seen],
        results: Sequence[Seen],
        own: float,
        repeats: bool,
        known: dict[Value, Share],
        state: Seen | None,
        device: int,
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
        # If an op returns an index and the number at this index, the number is judged:
        # an index is a choice and not the result of arithmetic.
        pairs = zip(op.results, shares, strict=True)
        floats = [s for v, s in pairs if v.type.dtype.kind not in "iub"]
        return OpEvidence(
            result=max(floats or shares, key=_badness),
            operands=read,
            own=own,
            absorbed=absorbed(op, arrays, results[0], state),
            wrapped=self._wrapped(op, arrays, results[0], device),
            misread=misread(op, arrays, results[0]),
            rounds_whole=rounds_whole(op, results[0], shares[0], own)
            or (own > 0 and unheld([wide(x.reference) for x in arrays], cast)),
            cut_off=cut_off(op, operands, results[0]),
            is_tie=bool(shares[0].error) and is_tie(op, arrays, results[0]),
        )
