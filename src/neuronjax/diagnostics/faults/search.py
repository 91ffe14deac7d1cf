"""A search from wrong results back to the ops that made them wrong.

An error is said to show at the first op whose result has too large an error. An earlier
op whose error looks like ordinary rounding may have made the error. So the search
follows the worst operands back to an op that makes an error itself. If that op narrows
(casts to fewer digits), flushes numbers to zero or absorbs addends (sums do not
change), it is at fault. If it only rounds as usual, the op that amplifies the error is
at fault.

Integers that wrap around, and quantizers that lose more than their format requires, are
wrong in float64 too. No result shows these faults, so separate searches find them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.diagnostics.faults.choices import (
    chosen_by,
    drops_digits,
    is_bit_field,
    is_choice,
    is_chosen_from,
    is_integer,
    is_magnitude,
    only_chooses,
)
from neuronjax.diagnostics.faults.evidence import (
    ADDS,
    BOUNDS,
    CLIPS,
    ROUNDS,
    OpEvidence,
    narrows,
)
from neuronjax.diagnostics.faults.flow import (
    AMPLIFIES,
    FACTORS,
    OWN,
    Flow,
    Step,
    amplification,
    computes,
)
from neuronjax.diagnostics.faults.guards import Misread, lost_guard, misread
from neuronjax.diagnostics.faults.judgement import COSTLY, OF_DATA, UNSEEN
from neuronjax.diagnostics.faults.open_loops import adds_up_errors
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.quantization import quantizing, truncates_steps
from neuronjax.diagnostics.faults.recorder import PART, Moment, OpTrace, Recorder
from neuronjax.diagnostics.faults.scales import (
    LINEAR,
    fill,
    loss_scale,
    one_maximum,
    unfit_scale,
)
from neuronjax.diagnostics.faults.shares import MOST_LOST, Share
from neuronjax.diagnostics.faults.state_steps import LOST_UPDATE
from neuronjax.diagnostics.faults.traits import (
    buries,
    flushes,
    handed_on,
    hands_on,
    has_offset,
    is_function,
    is_periodic,
    is_short,
    is_too_large,
    largest_operand,
    rounds_operands,
    rounds_to,
    vanishes,
    vanishes_on,
)
from neuronjax.diagnostics.faults.wrong_results import Wrong, wrong_results
from neuronjax.diagnostics.faults.zeros import LOG, flushed
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir.program import Op, Program, Value
from neuronjax.ir.value_sources import ValueSources

#: Searches for a nearby cause go back by at most this many ops.
NEARBY = 6
_QUANTIZES = CLIPS | ROUNDS | {"stablehlo.convert"}
#: `Suspect.scale` -> the function that searches for an op of this kind.
_UNSCALED = {"fill": fill, "maximum": one_maximum}
_WEIGHS = FACTORS | BOUNDS | {f"stablehlo.{n}" for n in ("sqrt", "rsqrt", "cbrt")}
#: A large addend of one value (an offset) costs digits if a sum's error exceeds this
#: share of the other addend.
OF_OFFSET = 1e-3
#: An op that amplifies an error by a larger factor is listed even for small errors.
TWO_DIGITS = 100.0
_MATMUL = "stablehlo.dot_general"
#: Ops that solve linear equations or prepare their solution.
_SOLVES = frozenset(("stablehlo.cholesky", "stablehlo.triangular_solve"))
ANGLES = frozenset(("chlo.acos", "chlo.asin"))
#: Functions whose result loses digits if an operand near 1 is rounded.
NEAR_ONE = ANGLES | {LOG}
#: A periodic function loses few digits of an operand up to this magnitude.
FEW_PERIODS = 16.0


@dataclass(frozen=True)
class Suspect:
    """An op at fault.

    Attributes:
        trace: the execution record of the op.
        role: "makes" or "amplifies": what the op does to the error.
        results: the indices of the results that depend on the op.
        amplifier: the first op with too large an error, if it is not the op at fault.
        is_running: whether the op is a loop's running sum that addends do not change.
        is_update: whether the op loses the step of a state (a parameter's update).
        bounding: for an op of a quantizer, the execution that clips most numbers or
            rounds most numbers to zero; for an op that made a scale, the execution that
            loses the scaled numbers.
        lost_guard: text on the epsilon that the op adds, if the epsilon became zero.
        misread: a constant of the op that rounding turned into Inf, 0 or 1.
        scale: "small" or "large" if the op made a scale that does not fit the scaled
            numbers; "fill" if it selects a constant so large that the scale of a
            policy's cast fits only the constant; "maximum" if it finds the one maximum
            that the program subtracts from several rows; "loss" if it made the scale of
            a loss; "square" if it multiplied a matrix by itself for a solver;
            "differences" if it rounded differences whose errors a running sum adds up.
        scaled: the op that rounds or bounds the scaled numbers, if `scale` is given.
    """

    trace: OpTrace
    role: str
    results: tuple[int, ...]
    amplifier: OpTrace | None = None
    is_running: bool = False
    is_update: bool = False
    bounding: OpEvidence | None = None
    lost_guard: str = ""
    misread: Misread | None = None
    scale: str = ""
    scaled: OpTrace | None = None

    @property
    def follows(self) -> bool:
        """Return whether the op does little more than pass on its operands' error."""
        return self.role == "amplifies" and amplification(self.trace.shown) < AMPLIFIES


class FaultSearch:
    """The wrong results of a run, and the search for the ops at fault."""

    def __init__(
        self,
        program: Program,
        recorder: Recorder,
        arguments: Sequence[np.ndarray],
        names: Sequence[str],
    ) -> None:
        self._program = program
        self._recorder = recorder
        self._graph = ValueSources(program)
        self._flow = Flow(self._graph, recorder)
        main = program.functions[program.main].body
        self._results, self._arguments = main.results, frozenset(main.arguments)
        pairs = zip(main.arguments, program.argument_names, strict=False)
        self._names = {v: name for v, name in pairs if "/" in name}
        self._result_names = dict(zip(main.results, names, strict=True))
        self.wrong = tuple(
            wrong_results(
                main,
                arguments,
                recorder.results,
                recorder.units,
                self._flow.owes_to_chance,
                self._flow.is_costly,
                lambda value: is_choice(self._flow, value),
                self._increments,
                self._hands_on,
            )
        )

    def _increments(self, result: Value, argument: Value) -> bool:
        if argument not in self._names:
            return False
        name, of_argument = self._result_names[result], self._names[argument]
        within = of_argument.partition("/")[2]
        is_named = within in (name, name.partition("/")[2])
        return is_named and self._flow.increments(result, argument)

    def _hands_on(self, result: Value, argument: Value) -> bool:
        return argument in self._passed(result)

    @functools.cached_property
    def _behind(self) -> list[set[Op]]:
        return [self._flow.ops_behind(value) for value in self._results]

    @functools.cached_property
    def _ends(self) -> set[Value]:
        """Return the results, and the values in calls and loops that become results."""
        behind = (
            self._flow.behind(v, lambda v: not self._flow.trace(v))
            for v in self._results
        )
        return {*itertools.chain.from_iterable(behind)}

    def suspects(self) -> list[Suspect]:
        """Return the ops at fault, each once, in the order in which to examine them."""
        found: dict[OpPath, Suspect] = {}
        every = itertools.chain.from_iterable(map(self._with_cause, self._all()))
        for suspect in (s for each in every for s in self._with_scale(each)):
            lines = {path.op.location.source for path in found}
            line = suspect.trace.path.op.location.source
            if not (found and suspect.follows and line not in lines):
                found.setdefault(suspect.trace.path, suspect)
        return [*found.values()] or [*self._swallowed(), *self._vanishing()]

    def parameter(self, trace: OpTrace) -> str:
        """Return the path of the nearest leaf of the arguments that `trace`, or an op
        at most `NEARBY` steps before it, reads; "" if there is no such leaf."""
        return self._flow.named(trace, self._names, NEARBY)

    def _all(self) -> Iterator[Suspect]:
        yield from self._wrapping()
        yield from self._misread()
        shown = self._shown()
        stagnating, late = list[Suspect](), list[Suspect]()
        for suspect in self._stagnating():
            is_late = self._is_late(suspect.trace, shown)
            (late if is_late else stagnating).append(suspect)
        yield from stagnating
        lost = [[*self._losing(w)] for w in self.wrong if w.how == "lost"]
        for suspects in lost:
            if suspects and suspects[0].is_update:
                yield from suspects
        yield from self._rounding_whole(())
        traced = [s for m, trace in shown for s in self._traced_back(trace, m[2])]
        allowed = {w.index: w.allowed for w in self.wrong}
        yield from sorted(traced, key=lambda s: _is_dwarfed(s, traced, allowed))
        yield from late
        if not traced:
            yield from self._correcting()
        # If a step was wrong before its addition, `traced` has the cause.
        for suspects in lost:
            yield from suspects
        if not shown:
            yield from self._rounding_whole([w.index for w in self.wrong])
            yield from self._choosing()
        yield from self._quantizing()

    def _on(self, trace: OpTrace) -> tuple[int, ...]:
        """Return the indices of the results that depend on the op of `trace`."""
        return tuple(n for n, ops in enumerate(self._behind) if trace.path.op in ops)

    # -- errors that reach a result ----------------------------------------------------

    def _shown(self) -> list[tuple[Moment, OpTrace]]:
        """Return (first execution with too large an error, execution record) for ops on
        which a wrong result depends. Ops that make Inf or NaN come first."""
        broken, carrying = self._broken(), self._carrying
        # In 1 / exp(x), the exponential may overflow without fault: the result is zero.
        off = [self._results[w.index] for w in self.wrong if w.how != "lost"]
        reaching = {op for v in off for op in self._flow.carrying_nonfinite(v)}
        found = []
        for trace in self._recorder.traces.values():
            op = trace.path.op
            if op in broken and trace.made_nonfinite:
                found.append((op not in reaching, trace.made_nonfinite, trace))
            elif trace.first and op in carrying and not hands_on(trace.first[2]):
                found.append((2, trace.first, trace))
        found.sort(key=lambda shown: (shown[0], shown[1][0]))
        return [(moment, trace) for _, moment, trace in found]

    def _broken(self) -> set[Op]:
        off = [w.index for w in self.wrong if w.how == "nonfinite"]
        return {op for n in off for op in self._behind[n]}

    @functools.cached_property
    def _carrying(self) -> set[Op]:
        off = [w for w in self.wrong if w.how != "lost"]
        return {op for w in off for op in self._flow.carrying(self._results[w.index])}

    def _traced_back(self, shown: OpTrace, evidence: OpEvidence) -> Iterator[Suspect]:
        """Yield the ops that made or amplified the error of op `shown`."""
        results = self._on(shown)
        if evidence.result.nonfinite:
            scale = loss_scale(self._flow, shown, evidence)
            if scale is not None:
                of = {"bounding": evidence, "scale": "loss"}
                yield Suspect(scale, "makes", results, shown, **of)
            yield from self._squared(shown, results)
            yield from self._off_before(shown, evidence)
            found = []
            for maker, amplifier in self._nonfinite(shown, evidence):
                guard, lost = lost_guard(self._flow, maker) or (maker, "")
                shows = amplifier if guard is maker else maker
                of = {"amplifier": shows, "lost_guard": lost}
                found.append(Suspect(guard, "makes", results, **of))
            # Ops whose epsilon became zero come first: an epsilon should prevent zeros.
            yield from sorted(found, key=lambda suspect: not suspect.lost_guard)
            return
        chain = self._flow.chain(shown, evidence)
        origins = [t for t, _ in reversed(chain) if t is not shown]
        if not shown.absorbs:  # otherwise `shown` loses the digits
            origins += self._flow.entries(chain)
        origins = [t for t in origins if self._makes(t, shown)]
        # As many zeros as lost elements matter more than earlier roundings.
        lost = evidence.result.lost
        emptying = (t for t in origins if flushes(t) and t.zeros >= lost > 0)
        maker = next(emptying, origins[0] if origins else None)
        if maker is None and len(chain) > 1:
            maker = self._loses_digits(chain)
        if maker is not None:
            others = (t for t in self._flow.beside(chain) if self._makes(t, shown))
            makers = {trace.path for trace in (maker, *others)}
            traces = self._recorder.traces
            # A sum that loses all of an addend comes first: roundings may cancel later.
            found = [trace for path, trace in traces.items() if path in makers]
            found.sort(key=lambda trace: not trace.absorbs)
            yield from (Suspect(trace, "makes", results, shown) for trace in found)
        last = chain[-1][0]
        is_cast = maker is None and last is not shown and rounds_operands(last)
        adds_up = self._flow.multiplies_again(chain, self._recorder.unit(last.path.op))
        for worst, seen in self._amplifying(chain):
            yield from self._squared(worst, results)
            own = seen.own >= OWN * seen.result.error
            own |= adds_up and worst.cast is not None
            own &= maker is None
            found = [Suspect(worst, "makes" if own else "amplifies", results)]
            if is_cast and amplification(seen) > COSTLY:
                found.append(Suspect(last, "makes", results, shown))
                steps = (t for t, _ in chain[:-1])
                between = [*itertools.dropwhile(lambda t: t is not worst, steps)]
                # A linear op, however written, needs the digits that the cast lost,
                # unless it subtracts a number that the cast did not round.
                others = (self._flow.adds_other(t, last.path.op) for t in between)
                is_linear = all(t.path.op.name in LINEAR for t in between or [worst])
                if is_linear and not any(others):
                    found.reverse()
            yield from found

    @functools.cached_property
    def _solving(self) -> set[str]:
        """Return the source lines that solve linear equations."""
        paths = self._recorder.traces
        return {path.source for path in paths if path.op.name in _SOLVES}

    def _squared(self, trace: OpTrace, results: tuple[int, ...]) -> Iterator[Suspect]:
        """Yield the product of a matrix and itself if the line of `trace` solves
        equations with this product, whose condition number is the square of the
        matrix's."""
        line = trace.path.source
        if line not in self._solving:
            return

        def passes(value: Value) -> bool:
            made = self._flow.trace(value)
            if made is None or not computes(made):
                return True
            is_solver = made.path.source == line or made.path.op.name in _SOLVES
            return is_solver or made.path.op.name in LINEAR - {_MATMUL}

        values = self._flow.behind(trace.path.op.results[0], passes)
        for made in filter(None, map(self._flow.trace, values)):
            factors = {self._graph.origin(v, MOVING) for v in made.path.op.operands}
            if made.path.op.name == _MATMUL and len(factors) == 1:
                yield Suspect(made, "makes", results, trace, scale="square")
                return

    def _amplifying(self, chain: list[Step]) -> list[Step]:
        """Return the steps of an error's path `chain` that amplify the error, earliest
        first. The last returned step amplifies by a factor f; the others amplify by
        sqrt(f) or more, or lose small numbers, which hardly changes the norm."""
        # An op that moves numbers is not at fault, even if it drops exact numbers.
        chain = [step for step in chain if computes(step[0])] or chain
        times = [amplification(seen) for _, seen in chain]
        flagged = [n for n, (t, _) in enumerate(chain) if not n or t.first is not None]
        worst = max(flagged, key=lambda n: times[n])
        before = {
            n
            for n in range(worst + 1, len(chain))
            if times[n] ** 2 >= times[worst] > 1
            and (times[n] > TWO_DIGITS or chain[n][1].result.error > UNSEEN)
            and chain[n][1].result.error > chain[n][1].own / OWN
        }
        if times[worst] > TWO_DIGITS:
            lost = [_loses_some(seen.result) for _, seen in chain[worst + 1 :]]
            last = worst + len([*itertools.takewhile(bool, lost)])
            trace, seen = chain[last]
            is_late = any(map(_loses_some, seen.operands.values()))
            weighs = is_late or trace.path.op.name in FACTORS
            before |= set() if weighs else {last} - {worst}
        steps = [chain[n] for n in sorted(before, reverse=True)]
        return [*steps, self._before_factors(chain[worst])]

    def _before_factors(self, step: Step) -> Step:
        """Return the nearest step before `step` whose op is not in `_WEIGHS`, if this
        op loses elements or amplifies the error; else `step`. Ops in `_WEIGHS`, such as
        a product, only change the weights of wrong elements."""
        found, seen = step, set[Op]()
        while found[0].path.op.name in _WEIGHS and found[0].path.op not in seen:
            seen.add(found[0].path.op)
            behind = next(self._flow.behind_step(*found), None)
            if behind is None:
                return step
            found = behind, behind.worst
        loses = found[1].result.lost or amplification(found[1]) > AMPLIFIES
        return found if loses else step

    def _makes(self, trace: OpTrace, shown: OpTrace) -> bool:
        own, other = map(rounds_to, (trace, shown))
        if narrows(trace.path.op) and own == other:
            return True
        rounds_data = trace.rounds_whole and not (trace.cast and trace.cast.is_scaled)
        return own > other or flushes(trace) or trace.absorbs or rounds_data

    def _loses_digits(self, chain: list[Step]) -> OpTrace | None:
        """Return the op on the path `chain` that lost digits although it rounds as
        usual: a sum with a small addend, an op that rounds whole numbers, or one that
        makes large numbers of which only the fraction or phase matters; else None."""
        (last, evidence), (_, shown) = chain[-1], chain[0]
        if chain[0][0].path.op.name in NEAR_ONE:
            before = (t for t, _ in chain[1:] if t.path.op.name not in BOUNDS)
            found = next(before, None)
            if found is not None and self._is_for(found, chain[0][0]):
                return found
        is_own = evidence.own >= OWN * evidence.result.error
        if is_own and any(self._is_window(t, e, last, shown) for t, e in chain[:-1]):
            return last
        large = self._before_phase(chain)
        functions = [n for n, (t, _) in enumerate(chain[:-1]) if self._is_singular(t)]
        if large is not None and functions:
            return large
        chain = chain[functions[-1] + 1 :] if functions else chain
        shown = chain[0][1]
        if len(chain) == 1 or (functions and shown.result.error < UNSEEN):
            return None
        # In a running sum, the roundings of all iterations add up.
        is_own |= next(self._flow.behind_step(last, evidence), None) is last
        between = chain[1:-1]
        is_own &= all(s.own < PART * s.result.error for _, s in between)
        lost, share = buries(last, evidence), shown.result
        if is_own and lost > OWN * min(max(share.error, share.lost), 1.0):
            return last
        # A later subtraction can cancel only an offset that all elements share.
        is_offset = chain[0][0].path.op.name in ADDS and has_offset(last, evidence)
        if is_own and is_offset and lost > OF_OFFSET:
            return last
        if large is not None:
            return large
        return self._rounds_whole_before(last, evidence)

    def _is_singular(self, trace: OpTrace) -> bool:
        """Return whether an op is a function with a singular point. A division by a
        constant has none."""
        op, is_constant = trace.path.op, self._flow.is_constant
        scales = op.name == "stablehlo.divide" and is_constant(op.operands[1])
        return is_function(trace) and not scales

    def _rounds_whole_before(
        self, trace: OpTrace, evidence: OpEvidence
    ) -> OpTrace | None:
        """Return the op that rounds whole numbers and makes a part of the error of
        `trace`, at most through products that scale the numbers; else None."""
        seen, left = {trace.path.op}, [*self._flow.behind_step(trace, evidence)]
        while left:
            operand = left.pop(0)
            seen.add(operand.path.op)
            is_part = operand.worst.result.error >= PART * evidence.result.error
            if operand.rounds_whole and is_part:
                return operand
            if operand.path.op.name in FACTORS:
                behind = self._flow.behind_step(operand, operand.worst)
                left += [t for t in behind if t.path.op not in seen]
        return None

    def _is_for(self, made: OpTrace, function: OpTrace) -> bool:
        """Return whether `made` computes a number near 1 only for `function`. For a
        logarithm, the number must be a sum with a constant, on another line."""
        if function.path.op.name != LOG:
            return len(self._flow.readers(made.path.op.results[0])) == 1
        is_constant = any(map(self._flow.is_constant, made.path.op.operands))
        is_sum = made.path.op.name in ADDS and is_constant
        return is_sum and made.path.source != function.path.source

    def _before_phase(self, chain: list[Step]) -> OpTrace | None:
        """Return the earliest op that made a part of the error of large numbers, if an
        op on the path `chain` uses only their phase or fraction; else None."""
        phase = (
            n
            for n, (t, seen) in enumerate(chain[:-1])
            if is_periodic(self._flow, t) and largest_operand(seen) > FEW_PERIODS
        )
        first = next(phase, None)
        large = [] if first is None else chain[first + 1 :]
        if any(TWO_DIGITS < amplification(s) < math.inf for _, s in large):
            return None  # a difference that cancels comes first
        while large and (behind := next(self._flow.behind_step(*large[-1]), None)):
            is_part = behind.worst.own >= PART * large[-1][1].result.error
            if not is_part or any(behind is t for t, _ in large):
                break
            large.append((behind, behind.worst))
        makes = (t for t, s in reversed(large) if s.own >= PART * s.result.error)
        return next(makes, None)

    def _is_window(
        self, trace: OpTrace, seen: OpEvidence, sums: OpTrace, shown: OpEvidence
    ) -> bool:
        """Return whether `trace` adds and subtracts only running sums of the op `sums`,
        and its rounding alone would make an acceptable error in `shown`."""
        if sums.path.op.name != "stablehlo.reduce_window" or trace is sums:
            return False
        left, seen_ops = [trace], {sums.path.op}
        while left:
            made = left.pop()
            if made is None or made.path.op.name not in ADDS:
                return False
            seen_ops.add(made.path.op)
            makers = map(self._flow.maker, made.path.op.operands)
            left += [t for t in makers if t is None or t.path.op not in seen_ops]
        times = shown.result.error / (seen.result.error or math.inf)
        return times * unit_of(trace.path.op.results[0].type.dtype) <= UNSEEN

    def _with_scale(self, suspect: Suspect) -> Iterator[Suspect]:
        """Yield `suspect` and, if a scale does not fit its numbers, the op that made
        the scale. This op comes first if it reads the lost numbers, otherwise last."""
        trace, seen = suspect.trace, suspect.bounding or suspect.trace.shown
        cut = any(map(any, seen.cut_off.values())) and suspect.bounding
        cuts = bool(cut or seen.result.clipped or seen.result.beyond or trace.wrapped)
        is_made = trace.path.op.name in _QUANTIZES and suspect.role == "makes"
        is_made &= not suspect.is_update
        found = None
        if is_made and (cuts or trace.zeros or trace.flattened):
            found = unfit_scale(self._flow, trace, cuts=cuts)
        word = "small" if cuts else "large"
        for name, find in _UNSCALED.items():
            other = find(self._flow, trace)
            if other is not None:
                found, word = (other, True), name
        if found is None or found[0] is trace:
            yield suspect
            return
        shows = suspect.amplifier or trace
        of = {"trace": found[0], "amplifier": shows, "bounding": seen, "scaled": trace}
        both = [replace(suspect, scale=word, **of), suspect]
        loses = cuts or word in _UNSCALED or seen.result.nothing > 0
        result = trace.path.op.results[0]
        is_half = trace.path.op.name == "stablehlo.convert" and not is_short(result)
        is_first = found[1] and loses and not is_half
        # A scale that depends on no argument, such as that of a loss, also comes first.
        behind = self._flow.behind(found[0].path.op.results[0], lambda v: True)
        is_first |= self._arguments.isdisjoint(behind)
        yield from both if is_first else reversed(both)

    def _with_cause(self, suspect: Suspect) -> Iterator[Suspect]:
        """Yield `suspect` after the ops that made it lose digits or make zeros."""
        yield from self._offsets(suspect)
        yield from self._infinite(suspect)
        yield suspect

    def _offsets(self, suspect: Suspect) -> Iterator[Suspect]:
        """Yield the op that loses digits because it adds a large offset to a state, if
        `suspect` is a later sum of the state, which does not change the state."""
        if not suspect.trace.absorbs:
            return
        passed = map(self._flow.trace, self._passed(suspect.trace.path.op.results[0]))
        offsets = [t for t in passed if t is not None and has_offset(t, t.worst)]
        first = offsets[-1] if offsets else suspect.trace
        if first is not suspect.trace and buries(first, first.worst) > OF_OFFSET:
            yield Suspect(first, "makes", suspect.results, suspect.trace)

    def _infinite(self, suspect: Suspect) -> Iterator[Suspect]:
        """Yield the op that overflows, if `suspect` makes zeros by dividing by Inf."""
        zeros = suspect.trace

        def passes(value: Value) -> bool:
            made = self._flow.trace(value)
            if made is None or made is zeros:
                return True
            return made.is_broken and made.made_nonfinite is None

        if zeros.zeros and zeros.path.op.name == "stablehlo.divide":
            values = self._flow.behind(zeros.path.op.results[0], passes)
            for made in filter(None, map(self._flow.trace, values)):
                if made.made_nonfinite and is_too_large(made, made.made_nonfinite[2]):
                    yield Suspect(made, "makes", suspect.results, zeros)

    # -- Inf and NaN -------------------------------------------------------------------

    def _nonfinite(
        self, shown: OpTrace, evidence: OpEvidence
    ) -> Iterator[tuple[OpTrace, OpTrace | None]]:
        """Yield (op that causes the Inf or NaN of `shown`, op at which the effect first
        shows); the second is None if `shown` is the cause."""
        if is_too_large(shown, evidence):  # earlier roundings do not matter
            yield from ((t, shown) for t in self._overflowing_terms(shown))
            yield shown, None
            return
        maker = flushed(self._flow, shown, evidence)
        maker = maker or next(self._absorbed(shown), shown)
        if not evidence.result.nonfinite_reference:
            # A sum is zero only if its addends cancel, so rounding it makes no zeros.
            behind = self._flow.behind_step(maker, maker.worst)
            start = next(behind, maker) if maker.path.op.name in ADDS else maker
            source = self._flow.chain(start, start.worst)[-1][0]
            if source is not maker and self._makes(source, maker):
                yield source, maker
        if maker is not shown:
            yield maker, shown
        yield shown, None

    def _overflowing_terms(self, shown: OpTrace) -> Iterator[OpTrace]:
        """Yield the ops, before the sums and products that end in `shown`, that make
        large numbers and overflow too, in a later iteration."""

        def passes(value: Value) -> bool:
            trace = self._flow.trace(value)
            if trace is None or not computes(trace):
                return True
            return trace.path.op.name in FACTORS | ADDS

        first = shown.made_nonfinite
        values = self._flow.behind(shown.path.op.results[0], passes)
        terms = (self._flow.trace(v) for v in values if not passes(v))
        for trace in filter(None, terms):
            moment = trace.made_nonfinite
            if first and moment and moment[0] > first[0]:
                if is_too_large(trace, moment[2]):
                    yield trace

    def _off_before(self, shown: OpTrace, evidence: OpEvidence) -> Iterator[Suspect]:
        """Yield the ops whose errors made an operand for which `shown` is undefined."""
        is_nan = evidence.result.nan and not evidence.result.nonfinite_reference
        if not is_nan or is_too_large(shown, evidence):
            return
        if flushed(self._flow, shown, evidence):
            return  # the cause is a zero among the operands, not an operand's error
        if any(t.absorbs for t in self._absorbed(shown)):
            return
        for trace in self._flow.behind_step(shown, evidence):
            before = trace.worst if trace.first is None else trace.first[2]
            is_off = trace.first is not None or before.result.lost
            if is_off and not before.result.nonfinite:
                yield from self._traced_back(trace, before)
                return

    def _absorbed(self, trace: OpTrace) -> Iterator[OpTrace]:
        """Yield the sums, up to `NEARBY` ops before `trace`, that equal an addend."""
        return (t for t in self._flow.near(trace, NEARBY) if t.absorbed[0] == 1)

    # -- states and sums ---------------------------------------------------------------

    def _stagnating(self) -> Iterator[Suspect]:
        """Yield the running sums, in loops, that most addends do not change."""
        for trace in self._recorder.traces.values():
            op, loses = trace.path.op, trace.absorbs and not trace.is_broken
            # Lost addends are a fault even if the errors of all results are ordinary.
            reaches = loses and (op in self._carrying if self.wrong else trace.first)
            results = self._on(trace) if reaches else ()
            # Three kinds are at fault only if they make a state: a cast, a sum with a
            # constant (which may be an epsilon), and any sum if no result is wrong.
            needs_state = op.name == "stablehlo.convert" or not self.wrong
            needs_state |= any(map(self._flow.is_constant, op.operands))
            behind = self._handing_on if needs_state else self._flow.ops_behind
            if results and any(op in behind(v) for v in op.operands):
                yield Suspect(trace, "makes", results, is_running=True)

    def _is_late(self, sum_: OpTrace, shown: Sequence[tuple[Moment, OpTrace]]) -> bool:
        """Return whether ops made Inf, NaN or zeros before `sum_` lost addends."""
        if sum_.moment is None:
            return False
        before = (t for moment, t in shown if moment[0] < sum_.moment[0])
        return any(t.made_nonfinite or flushes(t) for t in before)

    def _losing(self, wrong: Wrong) -> Iterator[Suspect]:
        """Yield the ops that lose the step (change) of the state `wrong`, or that made
        the step wrong."""
        assert wrong.step is not None
        traces = [
            t
            for t in self._recorder.traces.values()
            if t.path.op in self._behind[wrong.index]
            and t.worst.result.error > LOST_UPDATE * wrong.step.size
        ]
        handing = self._handing_on(self._results[wrong.index])
        before = self._flow.before_casts  # the cast of an argument loses no step
        on_chain = [
            t for t in traces if t.path.op in handing and before(t.path.op.results[0])
        ]
        for trace in on_chain[:1] or traces[-1:]:
            step = self._wrong_step(trace)
            if step is not None:
                yield from self._traced_back(step, step.worst)
            if trace in on_chain and (step is None or not wrong.step.has_room):
                yield Suspect(trace, "makes", (wrong.index,), is_update=True)

    def _wrong_step(self, trace: OpTrace) -> OpTrace | None:
        """Return the op that made the step which `trace` adds to a state, if the step
        was wrong before its addition; else None."""
        states = set(handed_on(trace))
        for value, share in trace.worst.operands.items():
            if value not in states and share.error > LOST_UPDATE:
                return self._flow.maker(value)
        return None

    def _handing_on(self, value: Value) -> set[Op]:
        inside = map(self._flow.trace, self._passed(value))
        return {trace.path.op for trace in inside if trace is not None}

    def _passed(self, value: Value) -> list[Value]:
        """Return `value` and its sources, back through sums and scalings by about 1."""

        def others(value: Value) -> Collection[Value]:
            trace = self._flow.trace(value)
            left = set() if trace is None else set(trace.path.op.operands)
            return left.difference(handed_on(trace) if trace else ())

        return self._flow.behind(value, lambda v: True, others)

    def _rounding_whole(self, wrong: Collection[int]) -> Iterator[Suspect]:
        """Yield the ops that round whole numbers, if a cast to integers reads these
        numbers or a result whose index is in `wrong` depends on them."""
        rounding = [t for t in self._recorder.traces.values() if t.rounds_whole]
        for trace in rounding:
            on = self._on(trace)
            counts = is_integer(self._flow, trace.path.op)
            results = on if counts else tuple(n for n in on if n in wrong)
            if results:
                behind = self._flow.ops_behind(trace.path.op.results[0])
                first = next(t for t in rounding if t.path.op in behind)
                yield Suspect(first, "makes", results)

    def _correcting(self) -> Iterator[Suspect]:
        """Yield the ops that make the corrections of a loop's state wrong."""
        for wrong in self.wrong:
            value = self._results[wrong.index]
            trace, unit = self._flow.maker(value), self._recorder.units.get(value, 0.0)
            if trace is not None and wrong.how == "far":
                chain = self._flow.chain(trace, trace.worst)
                step = self._flow.wrong_corrections(chain, unit)
                if step is not None:
                    steps = self._flow.chain(step, step.worst)
                    worst, _ = max(steps, key=lambda s: amplification(s[1]))
                    yield Suspect(worst, "amplifies", self._on(worst))

    def _choosing(self) -> Iterator[Suspect]:
        """Yield the ops that made errors in numbers from which a result is chosen."""
        for wrong in self.wrong:
            if wrong.how == "chosen":
                for maker, chooser in chosen_by(self._flow, self._results[wrong.index]):
                    yield Suspect(maker, "makes", (wrong.index,), chooser)

    # -- faults that leave every result right ------------------------------------------

    def _wrapping(self) -> Iterator[Suspect]:
        """Yield the ops whose integers wrap or lose digits and affect a result."""
        for trace in self._recorder.traces.values():
            op = trace.path.op
            wraps = trace.wrapped and not is_bit_field(self._flow, op)
            wraps |= trace.misread and is_magnitude(self._flow, op)
            wraps |= drops_digits(self._flow, trace)
            results = self._on(trace) if wraps else ()
            if results and not is_chosen_from(self._flow, op, self._ends):
                yield Suspect(trace, "makes", results)

    def _misread(self) -> Iterator[Suspect]:
        """Yield the ops with a constant that rounding turned into another number."""
        broken = self._broken()
        for trace in self._recorder.traces.values():
            is_broken = trace.path.op in broken
            found = misread(self._flow, trace, is_broken=is_broken)
            if found is not None and self._on(trace):
                yield Suspect(trace, "makes", self._on(trace), misread=found)

    def _vanishing(self) -> Iterator[Suspect]:
        """Yield the first op whose numbers underflow to zero and so affect a result."""
        for trace in self._recorder.traces.values():
            results = self._on(trace) if vanishes(trace) else ()
            if results and vanishes_on(self._flow, trace, self._ends):
                yield Suspect(trace, "makes", results)
                return

    def _swallowed(self) -> Iterator[Suspect]:
        """Yield the causes of Inf or NaN in ops whose results have no finite number."""
        for trace in self._recorder.traces.values():
            op, moment = trace.path.op, trace.made_nonfinite
            if moment is None or is_chosen_from(self._flow, op, self._ends):
                continue
            share = moment[2].result
            if share.nonfinite == share.elements and self._on(trace):
                yield from self._traced_back(trace, moment[2])

    def _quantizing(self) -> Iterator[Suspect]:
        """Yield the ops of quantizers that clip numbers or round them to zero, and the
        ops that truncate the steps of integer states."""
        traces = self._recorder.traces
        for trace in traces.values():
            if truncates_steps(self._flow, trace):
                yield Suspect(trace, "makes", self._on(trace), is_update=True)
            total = adds_up_errors(self._flow, self._recorder, trace)
            if total is not None:
                on = self._on(trace)
                yield Suspect(trace, "makes", on, total, scale="differences")
            found = quantizing(self._flow, self._graph, traces, trace)
            for near, moment in found:
                if only_chooses(self._graph, near.path.op, self._ends):
                    continue
                yield Suspect(near, "makes", self._on(near), trace, bounding=moment)


def _loses_some(share: Share) -> bool:
    by_data = min(OF_DATA * share.data_lost, share.data_lost + MOST_LOST)
    return share.lost > by_data


def _is_dwarfed(
    suspect: Suspect, others: Sequence[Suspect], allowed: Mapping[int, float]
) -> bool:
    """Return whether an op of `others` that affects a result of `suspect` makes an
    error over `TWO_DIGITS` times as large as the error of `suspect`; or, if `suspect`
    amplifies an error to no more than `allowed` in its results, makes more than that.
    False if `suspect` makes zeros: a small error in zeros becomes an infinite error in
    a quotient."""
    if suspect.trace.zeros:
        return False
    error, results = suspect.trace.worst.result.error, {*suspect.results}
    makers = (o.trace for o in others if o.role == "makes" and results & {*o.results})
    least = TWO_DIGITS * error
    if suspect.role == "amplifies":
        most = min((allowed[n] for n in results if n in allowed), default=0.0)
        least = min(least, most) if error <= most else least
    return any(math.inf > t.worst.own > least > 0 for t in makers)
