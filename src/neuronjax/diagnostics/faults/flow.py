"""The paths along which errors reach the values of a program."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from neuronjax.diagnostics.faults.evidence import ADDS, OpEvidence, narrows
from neuronjax.diagnostics.faults.judgement import (
    COARSE,
    COSTLY,
    HOPELESS,
    OF_DATA,
    OF_ONE_OP,
    SHORT,
    UNSEEN,
    excused,
)
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import PART, OpTrace, Recorder
from neuronjax.diagnostics.faults.shares import MOST_LOST, NOISE, Share
from neuronjax.diagnostics.op_records import CONSTANT, MOVING
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources

#: An op makes an error if its own rounding is at least this share of the error.
OWN = 0.5
#: A relative error up to this may come from a few layers in FP32.
ORDINARY = 2.0**-16
#: An op that enlarges an error by a smaller factor only passes the error on.
AMPLIFIES = 2.0
#: At most this many consecutive ops count as one op if together they enlarge an error
#: by `COSTLY`: the difference, the exponential and the quotient of a softmax.
TOGETHER = 3
#: An addend's error is negligible below this share of another addend's error.
LITTLE = 1e-2
#: A sum below this share of its terms is FP32's rounding noise.
OF_FP32 = 2.0**-24
_OF_PRODUCTS = frozenset(("stablehlo.dot_general", "stablehlo.convolution"))
_SUMS = ADDS | _OF_PRODUCTS | {"stablehlo.reduce"}
#: Ops in which an element of the result has about the operands' relative error.
FACTORS = frozenset(
    f"stablehlo.{name}" for name in ("multiply", "divide", "negate", "convert")
)

#: The execution record of an op, and one of its executions.
Step = tuple[OpTrace, OpEvidence]


class Flow:
    """The values of a program, and the execution record (`OpTrace`) of every op.

    The maker of a value is the op that computed the numbers of the value, never an op
    that moves the numbers and never a call, loop or branch.
    """

    def __init__(self, graph: ValueSources, recorder: Recorder) -> None:
        self._graph = graph
        self.takes_outside = recorder.takes_outside
        self._by_op = {path.op: trace for path, trace in recorder.traces.items()}
        self._known: dict[Value, list[OpTrace]] = {}

    def trace(self, value: Value) -> OpTrace | None:
        """Return the execution record of the op that computes or moves a value; None if
        there is no record of such an op."""
        maker = self._graph.makers.get(value)
        return None if maker is None else self._by_op.get(maker)

    def maker(
        self, value: Value, key: Callable[[OpTrace], Any] | None = None
    ) -> OpTrace | None:
        """Return the execution record of the op that computed `value`, or None; of
        several ops (in branches), the record with the largest `key`, by default error.
        """
        found = self._makers(value)
        return max(found, key=key or _error, default=None)

    def _makers(self, value: Value) -> list[OpTrace]:
        if value not in self._known:
            behind = self.behind(value, lambda v: not computes(self.trace(v)))
            found = map(self.trace, behind)
            self._known[value] = [t for t in found if t is not None and computes(t)]
        return self._known[value]

    def behind(
        self,
        value: Value,
        passes: Callable[[Value], bool],
        leaves_out: Callable[[Value], Collection[Value]] = lambda value: (),
    ) -> list[Value]:
        """Return `value` and values from which it is computed: for each returned v, if
        `passes(v)`, also the sources of v except those in `leaves_out(v)`."""
        return self._graph.behind(
            [value], lambda v, source: passes(v) and source not in leaves_out(v)
        )

    def named(self, trace: OpTrace, names: Mapping[Value, str], steps: int) -> str:
        """Return the name (in `names`) of the nearest value that the op of `trace`, or
        an op at most `steps` ops before it, reads; "" if no such value has a name."""
        for near in (trace, *self.near(trace, steps)):
            for operand in near.path.op.operands:
                for v in self.behind(operand, lambda v: not computes(self.trace(v))):
                    if v in names:
                        return names[v]
        return ""

    def readers(self, value: Value) -> set[Op]:
        """Return the ops that read a value, also inside calls and loops."""

        def was_run(v: Value) -> bool:
            return self._graph.makers.get(v) in self._by_op

        through = self._graph.ahead([value], lambda _, reader: not was_run(reader))
        readers = (r for v in through for r in self._graph.readers.get(v, ()))
        return {self._graph.makers[r] for r in readers if was_run(r)}

    def ahead(self, op: Op, hands_on: Callable[[Op], bool]) -> Iterator[Op]:
        """Yield the ops that read the first result of `op`, and the readers of each
        yielded op for which `hands_on` returns True."""
        seen, left = {op}, [op]
        while left:
            for reader in self.readers(left.pop().results[0]) - seen:
                seen.add(reader)
                yield reader
                if hands_on(reader):
                    left.append(reader)

    def is_constant(self, value: Value) -> bool:
        """Return whether a value depends on no argument."""
        return self._graph.is_constant(value, CONSTANT)

    def ops_behind(self, value: Value) -> set[Op]:
        """Return every op on which a value may depend."""
        makers = self._graph.makers
        return {makers[v] for v in self.behind(value, lambda v: True) if v in makers}

    def carrying(self, value: Value) -> set[Op]:
        """Return the ops whose results carry an error into `value`."""
        return self._through(value, lambda t: t.first is not None, self._beside_others)

    def carrying_nonfinite(self, value: Value) -> set[Op]:
        """Return the ops whose results carry Inf or NaN, or an error caused by an Inf
        (a quotient by Inf is zero), into `value`."""
        is_off = lambda t: t.is_broken or t.first is not None  # noqa: E731
        return self._through(value, is_off, lambda value: ())

    def _through(
        self,
        value: Value,
        is_off: Callable[[OpTrace], bool],
        leaves_out: Callable[[Value], Collection[Value]],
    ) -> set[Op]:
        def passes(value: Value) -> bool:
            trace = self.trace(value)
            discrete = value.type.dtype.kind in "iub"
            if discrete or trace is None:
                return True
            return trace.path.op.name in MOVING or is_off(trace)

        makers = self._graph.makers
        return {
            makers[v]
            for v in self.behind(value, passes, leaves_out)
            if v in makers and passes(v) and self.trace(v) is not None
        }

    def _beside_others(self, value: Value) -> list[Value]:
        """Return the addends of the sum `value` whose errors are negligible (`LITTLE`);
        [] if `value` is no sum. The error of a running sum is itself a sum of its
        addends' small errors, so none of these is negligible."""
        trace = self.trace(value)
        if trace is None or trace.path.op.name not in ADDS:
            return []
        wrong = self._wrong(trace, trace.worst)
        if not wrong:
            return []
        if trace.is_in_loop and trace.path.op in self.ops_behind(wrong[0][2]):
            return []
        least = LITTLE * wrong[0][0]
        return [v for size, _, v in wrong if size < least]

    def adds_other(self, trace: OpTrace, source: Op) -> bool:
        """Return whether an op is a sum with an addend that does not depend on the op
        `source`, but is computed from some of the same numbers."""
        if trace.path.op.name not in ADDS:
            return False
        behind = [set(self.behind(v, lambda v: True)) for v in trace.path.op.operands]
        same = {v for v in behind[0] & behind[-1] if not self.is_constant(v)}
        return bool(same) and any(source.results[0] not in b for b in behind)

    def chain(self, trace: OpTrace, evidence: OpEvidence) -> list[Step]:
        """Return the path along which an op's error came: the op, the op that computed
        its worst operand, and so on. The last op makes its error itself, or reads a
        result of an op on the path (in a loop)."""
        found, seen = [(trace, evidence)], {trace.path.op}
        while not _is_own(trace.path.op, evidence):
            behind = next(self.behind_step(trace, evidence), None)
            if behind is None or behind.path.op in seen:
                break
            seen.add(behind.path.op)
            trace, evidence = behind, behind.worst
            found.append((trace, evidence))
        return found

    def beside(self, chain: list[Step]) -> Iterator[OpTrace]:
        """Yield, for each sum on an error's path `chain`, the ops that made errors of
        addends outside the path: of at least `PART` of the largest addend's error."""
        inside = {trace.path.op for trace, _ in chain}
        for trace, evidence in chain:
            wrong = self._wrong(trace, evidence) if trace.path.op.name in ADDS else []
            for size, _, value in wrong[1:]:
                maker = self.maker(value) if size >= PART * wrong[0][0] else None
                if maker is not None and maker.path.op not in inside:
                    yield self.chain(maker, maker.worst)[-1][0]

    def entries(self, chain: list[Step]) -> Iterator[OpTrace]:
        """Yield the ops from which errors enter the path `chain` of an error, if the
        path ends in a loop."""
        trace, last = chain[-1]
        inside = {trace.path.op for trace, _ in chain}
        around = next(self.behind_step(trace, last), None)
        closes = around is not None and around.path.op in inside
        if _is_own(trace.path.op, last) or not closes:
            return
        for step in chain:
            for _, _, value in self._wrong(*step):
                for operand in sorted(self._makers(value), key=_error, reverse=True):
                    if operand.path.op not in inside and _error(operand):
                        steps = reversed(self.chain(operand, operand.worst))
                        yield from (t for t, _ in steps if t.path.op not in inside)

    def behind_step(self, trace: OpTrace, evidence: OpEvidence) -> Iterator[OpTrace]:
        """Yield the ops that computed the operands with errors, largest error first."""
        makers = (self.maker(v) for _, _, v in self._wrong(trace, evidence))
        return (maker for maker in makers if maker is not None)

    def _wrong(
        self, trace: OpTrace, evidence: OpEvidence
    ) -> list[tuple[float, int, Value]]:
        """Return (error, index, value) of the operands with errors, the largest error
        first. The error is absolute in sums and relative in other ops; if many elements
        of a product are far off, the error is at least the share of elements that are
        far off in the operand."""
        name = trace.path.op.name
        loses = name in FACTORS and evidence.result.lost > MOST_LOST

        def size(share: Share) -> float:
            if name in ADDS and share.norm:
                return share.error * share.norm
            return max(share.error, share.lost, share.zeros) if loses else share.error

        wrong = [
            (size(s), n, v)
            for n, (v, s) in enumerate(evidence.operands.items())
            if s.error > 0
        ]
        return sorted(wrong, key=lambda w: (-w[0], w[1]))

    def owes_to_chance(self, value: Value, unit: float, data_error: float) -> bool:
        """Return whether the error of `value` is due to chance and not to an op. `unit`
        is the roundoff of the coarsest format on which the value depends, `data_error`
        the relative error of all draws of perturbed data. Chance
        explains rounding noise in place of a gradient of zero (as of a bias before a
        softmax); noise in a few elements, which an optimizer may enlarge; a float
        halfway between whole numbers that is rounded up instead of down; and, in 16
        bits or fewer, the sum of the errors of many layers."""
        trace = self.maker(value)
        if trace is None:
            return False
        chain = self.chain(trace, trace.worst)
        is_chance = any(e.is_tie or _is_noise(t.path.op, e) for t, e in chain)
        tie = self._tie
        is_chance |= tie is not None and tie in self.ops_behind(value)
        share = chain[0][1].result
        if share.lost:
            lost, near = share.lost / OF_DATA, excused(unit)
            # Of a larger array, the lost elements may be those that a slice left out.
            own = (e.result for _, e in chain if e.result.elements <= share.elements)
            lossy = (x for x in own if x.data_lost >= lost)
            is_chance |= any(min(share.error, x.error) <= near for x in lossy)
        of_index = any(t.path.op.results[0].type.dtype.kind in "iu" for t, _ in chain)
        if of_index and any(t.rounds_whole for t, _ in chain):
            return is_chance
        explained = share.error <= OF_DATA * max(share.data_error, data_error)
        if unit > COARSE:
            # Roundings in 8 bits rarely make an error as large as the result, but the
            # square of a gradient has twice the gradient's error.
            before = [e.result for _, e in chain if e.result.error > HOPELESS]
            explained |= any(x.error <= OF_DATA * x.data_error for x in before)
            explained |= share.error < 1
        may_be = explained and unit > SHORT and not self.is_costly(value, unit)
        return is_chance or (may_be and self._is_of_roundings(chain, unit))

    @functools.cached_property
    def _tie(self) -> Op | None:
        for op, trace in self._by_op.items():
            if trace.worst.is_tie or trace.moment is not None:
                return op if trace.worst.is_tie else None
        return None

    def is_costly(self, value: Value, unit: float) -> bool:
        """Return whether an op on the path of the error of `value` makes a large error
        of a small one, a loop on the path multiplies by a matrix in a short format, or
        the last changes of a loop's state are wrong. `unit` is the roundoff of the
        coarsest format on which `value` depends."""
        trace = self.maker(value)
        if trace is None or trace.worst.result.error <= UNSEEN:
            return False
        chain = self.chain(trace, trace.worst)
        if self.wrong_corrections(chain, unit):
            return True
        if trace.worst.result.error <= OF_ONE_OP:
            return False
        is_made = any(e.is_costly(unit, t.cast) for t, e in chain)
        return is_made or self.multiplies_again(chain, unit)

    def wrong_corrections(self, chain: list[Step], unit: float) -> OpTrace | None:
        """Return the op that made the addends of a running sum on an error's path
        `chain`, if they are below a roundoff `unit` of the sum and wrong in every
        digit; else None. Such a loop (as of an iterative solver) has converged, and
        right addends would make it exact."""
        if unit <= SHORT:
            return None
        for trace, seen in chain:
            if trace.path.op.name not in ADDS:
                continue
            others = {v for v in seen.operands if self.maker(v) is not trace}
            if len(others) == len(seen.operands):
                continue
            for value in others:
                share = seen.operands[value]
                if share.norm < unit * seen.result.norm and share.error > 1:
                    return self.maker(value)
        return None

    def multiplies_again(self, chain: list[Step], unit: float) -> bool:
        """Return whether an error's path `chain` ends in a loop of linear ops that
        multiplies a state by a matrix: rounding the matrix to 9 to 16 bits (roundoff
        `unit`) makes the same error in every iteration."""
        ops = [t.path.op for t, _ in chain]
        around = next(self.behind_step(*chain[-1]), None)
        if around is None or around.path.op not in ops or not SHORT < unit <= COARSE:
            return False
        loop = chain[ops.index(around.path.op) :]
        is_linear = all(t.path.op.name in _SUMS | FACTORS for t, _ in loop)
        errors = (
            e.result.error
            for t, e in loop
            if t.cast is not None and e.own < OWN * e.result.error / COSTLY
        )
        return is_linear and max(errors, default=0.0) > OF_ONE_OP

    def _is_of_roundings(self, chain: list[Step], unit: float) -> bool:
        """Return whether ordinary roundings in short formats explain the error of the
        first op of `chain`. If no digit of the last op's operands is correct, the op
        that computed the worst operand is examined."""
        seen: set[Op] = set()
        while _is_ordinary(chain, unit) and chain[-1][0].path.op not in seen:
            origin, last = chain[-1]
            before = next(self.behind_step(origin, last), None)
            if last.own <= excused(unit) or before is None:
                return last.own <= excused(unit)
            if last.error_before < HOPELESS:
                return False
            seen.add(origin.path.op)
            chain = self.chain(before, before.worst)
        return False

    def before_casts(self, value: Value) -> OpTrace | None:
        """Return the last op that computed `value` and is not a cast, or None."""
        trace = self.maker(value)
        while trace is not None and trace.path.op.name == "stablehlo.convert":
            trace = self.maker(trace.path.op.operands[0])
        return trace

    def increments(self, value: Value, argument: Value) -> bool:
        """Return whether `value` is `argument` plus or minus another term."""
        trace = self.before_casts(value)
        if trace is None or trace.path.op.name not in ADDS:
            return False

        def passes(value: Value) -> bool:
            trace = self.trace(value)
            return trace is None or trace.path.op.name in CONSTANT

        is_in = [argument in self.behind(v, passes) for v in trace.path.op.operands]
        if trace.path.op.name == "stablehlo.subtract":
            return is_in == [True, False]  # `argument` minus a term
        return any(is_in)

    def near(self, trace: OpTrace, steps: int) -> Iterator[OpTrace]:
        """Yield the ops at most `steps` ops before `trace`, the nearest first."""
        level, seen = [trace], {trace.path.op}
        for _ in range(steps):
            operands = [v for t in level for v in t.worst.operands]
            makers = {t.path: t for v in operands for t in self._makers(v)}
            level = [t for t in makers.values() if t.path.op not in seen]
            seen.update(t.path.op for t in level)
            yield from level


def computes(trace: OpTrace | None) -> bool:
    """Return whether an op computes or rounds numbers, and does not only move them."""
    if trace is None:
        return False
    return trace.path.op.name not in MOVING or trace.own > 0


def _is_own(op: Op, evidence: OpEvidence) -> bool:
    """Return whether `op` makes the error of its result itself. A cast makes it only if
    the operand's error is smaller."""
    if not evidence.own or evidence.own < OWN * evidence.result.error:
        return False
    before = evidence.error_before
    return op.name != "stablehlo.convert" or before < evidence.result.error


def _is_noise(op: Op, evidence: OpEvidence) -> bool:
    """Return whether a sum is rounding noise, because its terms cancel. A sum below
    FP32's roundoff of its terms is noise if perturbed data explain its error. A sum
    below float64's roundoff is noise if its terms are about as exact as FP32."""
    result = evidence.result
    norms = [evidence.operands[v].norm for v in op.operands if v in evidence.operands]
    terms = math.prod(norms) if op.name in _OF_PRODUCTS else max(norms, default=0.0)
    if op.name not in _SUMS or result.norm >= OF_FP32 * terms:
        return False
    if 0 < result.error <= OF_DATA * result.data_error:
        return True
    is_near = evidence.error_before <= ORDINARY
    # The norms overestimate the terms of a product if large columns meet small rows.
    moves = not result.norm or result.data_error > HOPELESS
    is_near &= op.name not in _OF_PRODUCTS or moves
    return is_near and result.norm < NOISE * terms


def _is_ordinary(chain: list[Step], unit: float) -> bool:
    """Return whether the error of the first op of `chain` is ordinary in short formats.

    The error is not ordinary if up to `TOGETHER` ops of `chain`, but not the last,
    enlarge an error below `HOPELESS` by a factor of `COSTLY` or of 1 / `unit`; if one
    of them enlarges it beyond what perturbed data explain; if an op casts to 8 bits and
    perturbed data do not explain the error; or if slices of the last result, which the
    other ops read, are wrong beyond that.
    """
    steps = [e for _, e in chain[:-1]]
    costly = [e for e in steps if _is_unexplained(e)]
    for n in range(len(steps)):
        near = steps[n : n + TOGETHER]
        times = itertools.accumulate(map(amplification, near), operator.mul)
        least = min(1 / unit, COSTLY)
        costly += [e for e, t in zip(near, times, strict=True) if t >= least]
    if any(e.error_before < HOPELESS for e in costly):
        return False
    share, last = chain[0][1].result, chain[-1][1].result
    if len(chain) > 1 and _loses_slices(chain[-2][1], last.error):
        return False
    casts = [t.path.op.results[0].type.dtype for t, _ in chain if narrows(t.path.op)]
    by_policy = max(map(unit_of, casts), default=0.0) <= COARSE
    return by_policy or share.error <= OF_DATA * share.data_error


def _is_unexplained(evidence: OpEvidence) -> bool:
    share = evidence.result
    is_larger = amplification(evidence) >= OF_DATA
    return is_larger and share.error > max(HOPELESS, OF_DATA * share.data_error)


def _loses_slices(reader: OpEvidence, error: float) -> bool:
    """Return whether an operand of `reader` is far more wrong than `error`, the error
    of the array from which it was sliced, and than perturbed data explain."""
    return any(
        s.error > max(HOPELESS, OF_DATA * max(s.data_error, error))
        for s in reader.operands.values()
    )


def _error(trace: OpTrace) -> float:
    return trace.worst.result.error


def amplification(evidence: OpEvidence) -> float:
    """Return the relative error of the result divided by that of the worst operand."""
    result, operands = evidence.result, evidence.operands.values()
    if result.nonfinite and not any(x.nonfinite for x in operands):
        return math.inf
    before = evidence.error_before
    if math.isinf(before) or not result.error:
        return 0.0
    return result.error / before if before else math.inf
